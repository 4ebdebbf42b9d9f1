"""What changes in a run: how it begins, where it lies on devices, which of it is learned, and which way it moves."""
