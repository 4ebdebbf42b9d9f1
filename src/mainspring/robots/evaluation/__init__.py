"""Evaluation of policies: played episodes, what they say with what certainty, reports and gates.

Nothing is imported here: whoever only reads a report needs neither a physics engine nor JAX.
"""
