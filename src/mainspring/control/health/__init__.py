"""Health of nodes, as folds over what was seen of them: pure, and called by nobody yet."""
