"""Looks at a Slurm cluster's set-up and says what to fix."""
