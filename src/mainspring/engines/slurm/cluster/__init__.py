"""What a Slurm cluster says: its commands, its nodes, its queue, its limits."""
