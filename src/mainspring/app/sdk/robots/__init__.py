"""Verbs of robots and of what they run."""
