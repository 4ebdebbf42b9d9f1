"""Versions written in formats that other people's programs read."""
