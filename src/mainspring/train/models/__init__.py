"""Models as pytrees of arrays and pure functions, one file an idea; `shapes` alone is free of JAX."""
