"""Supervision of one node's ranks and of what outlives them."""
