"""Robots, and what they run, for people."""
