"""One fake for each port."""
