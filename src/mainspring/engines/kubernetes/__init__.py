"""The Kubernetes engine: Mainspring on clusters as they are, through their API alone."""
