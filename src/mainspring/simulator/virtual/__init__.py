"""Replay: a workload on a fleet in virtual time, through the real planner."""
