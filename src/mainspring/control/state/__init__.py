"""What has not ended, folded from events, and what ended attempts mean for plans to come."""
