"""The Python SDK: `Lab` and its groups of verbs."""
