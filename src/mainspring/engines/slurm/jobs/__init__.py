"""Allocations as jobs of Slurm: what is submitted, what their folders tell, what is to be done."""
