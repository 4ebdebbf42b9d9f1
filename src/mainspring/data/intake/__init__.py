"""From recordings to episodes of a dataset."""
