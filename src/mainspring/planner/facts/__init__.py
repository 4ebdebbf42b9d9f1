"""The snapshot: what the planner may know, as columns, and how it is kept up to date."""
