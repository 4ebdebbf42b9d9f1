"""What is kept of what is over, and where the rest went."""
