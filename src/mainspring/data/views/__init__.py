"""Training-ready products of versions."""
