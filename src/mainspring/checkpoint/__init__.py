"""The checkpoint format: shards, manifests, restoring from byte ranges."""
