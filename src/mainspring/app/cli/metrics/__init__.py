"""`ms metrics` and `ms alerts`."""
