"""Health of nodes, as folds over what was seen of them: pure."""
