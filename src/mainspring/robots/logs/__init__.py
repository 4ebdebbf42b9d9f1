"""A robot's own log: a ring of MCAP files on its disk, clips that triggers cut out of it, and sending them home."""
