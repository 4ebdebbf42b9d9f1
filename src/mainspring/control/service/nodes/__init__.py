"""What is told of nodes, what people say of them, and what of both is shown."""
