"""Preemption, elastic shrinking, moves of running jobs."""
