"""The brain: one pure function from a snapshot to a plan."""
