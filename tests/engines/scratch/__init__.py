"""A kind of cluster that only tests know: nodes in memory. Its package is all there is of it."""
