"""What the loop does for nodes: folds what was seen of them, closes and opens, and tells engines."""
