"""Commands about what policies are worth."""
