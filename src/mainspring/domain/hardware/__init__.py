"""Machines as their makers describe them, and what is seen of how they are."""
