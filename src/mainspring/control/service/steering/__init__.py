"""What people say of jobs, teams, clusters and nodes that are there; and calls that are done once for each key."""
