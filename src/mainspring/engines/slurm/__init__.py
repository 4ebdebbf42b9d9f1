"""The Slurm engine: Mainspring on a cluster whose queue somebody else runs; nothing of Slurm needs to be changed."""
