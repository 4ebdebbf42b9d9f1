"""Releases of policies: what is in one, and how people sign it."""
