"""Inputs of a replay: traces, fleets, faults, as people hand them in."""
