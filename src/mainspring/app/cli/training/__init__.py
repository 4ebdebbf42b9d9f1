"""Verbs of what is trained."""
