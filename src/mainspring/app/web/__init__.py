"""The page that people keep open: what the API tells of jobs, queue, fleet and teams, drawn for browsers."""
