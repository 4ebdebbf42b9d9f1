"""Environments that policies are evaluated in: a port of four methods, and what is behind it.

Nothing is imported here: each environment brings a package of its own.
"""
