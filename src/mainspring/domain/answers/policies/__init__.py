"""What is told of policies: their releases, and services of them."""
