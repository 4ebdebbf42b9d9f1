"""What a replay is given: traces, fleets, faults, as people hand them in."""
