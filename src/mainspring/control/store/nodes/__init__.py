"""Nodes in the store: what was seen of them, what closes them, which rules act, which breakers are open."""
