"""What the store holds of robots, and of rollouts to them."""
