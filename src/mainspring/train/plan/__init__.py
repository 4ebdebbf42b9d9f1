"""What a recipe would need on chips that nobody has asked for yet, and how fast it would run there."""
