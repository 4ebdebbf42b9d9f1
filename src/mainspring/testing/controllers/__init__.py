"""Controllers that tests and benchmarks install on their own Kubernetes, and what all of them bring along."""
