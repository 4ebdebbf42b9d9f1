"""Datasets in the store: whose each of them is."""
