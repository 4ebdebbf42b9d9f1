"""Screens that are drawn again and again."""
