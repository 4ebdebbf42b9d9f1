"""What becomes of policies, from Python: evaluations, releases, services."""
