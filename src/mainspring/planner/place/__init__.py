"""Placement: topology, fragmentation, free capacity, candidates."""
