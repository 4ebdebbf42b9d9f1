"""Verbs about nodes and their health."""
