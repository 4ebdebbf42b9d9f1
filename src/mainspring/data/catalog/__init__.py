"""Datasets and their versions, and everything that is asked of them."""
