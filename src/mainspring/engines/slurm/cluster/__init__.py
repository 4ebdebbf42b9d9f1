"""Readers of a Slurm cluster: its commands, nodes, queue, limits."""
