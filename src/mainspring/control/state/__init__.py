"""State folded from events: what has not ended, and what ended attempts mean for plans to come."""
