"""Fault proof: the real controller against clusters that fail, on virtual time."""
