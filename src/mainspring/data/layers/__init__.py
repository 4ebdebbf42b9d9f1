"""Immutable sets of derived columns on episodes."""
