"""Robots: the simulated arm, recordings as a robot makes them, policies in closed loop."""
