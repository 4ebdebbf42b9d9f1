"""Profiles of a program while it runs; nothing of it is imported before somebody asks."""
