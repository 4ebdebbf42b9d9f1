"""Adapters of the `Engine` port, one for each kind of cluster."""
