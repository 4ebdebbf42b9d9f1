"""Virtual time: the real loop and store against fake engines, with faults drawn from a seed."""
