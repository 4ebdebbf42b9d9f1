"""Machines as their makers describe them."""
