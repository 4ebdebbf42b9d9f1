"""Services kept as wanted: how many replicas, which start and stop, when an update has failed."""
