"""Choosing among versions: selections, splits, and what differs."""
