"""What the store holds of releases of policies."""
