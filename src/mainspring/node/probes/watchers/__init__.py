"""Watchers of a node: each looks at one side of it, and knows no other. Nothing is imported here."""
