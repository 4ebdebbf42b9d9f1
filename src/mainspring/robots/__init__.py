"""Robots: the simulated arm, recordings as a robot makes them, policies in closed loop, the policy server.

Nothing is imported here: whoever wants none of it must not pay for a physics engine.
"""
