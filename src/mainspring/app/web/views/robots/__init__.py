"""Pages of robots, and of what is rolled out to them."""
