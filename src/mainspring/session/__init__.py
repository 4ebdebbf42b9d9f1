"""What a rank imports to talk to its agent."""
