"""Releases of policies, and by whose keys they are trusted."""
