"""Reads datasets that hold episodes as such: each recording is one, and needs no recipe."""
