"""A look at how a Kubernetes cluster is set up, before jobs are sent there."""
