"""Services and their replicas in the store."""
