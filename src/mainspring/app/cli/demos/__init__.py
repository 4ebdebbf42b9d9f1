"""The main job, end to end: on this machine, and on a Slurm cluster."""
