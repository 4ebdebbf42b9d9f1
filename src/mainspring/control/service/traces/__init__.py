"""Traces: a job's life as spans, folded from its events, and how far they were told."""
