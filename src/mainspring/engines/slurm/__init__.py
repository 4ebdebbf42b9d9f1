"""The Slurm engine: Mainspring on a cluster whose queue somebody else runs; nothing of Slurm needs to be changed."""

from mainspring.engines.slurm.cluster.config import SlurmCluster
from mainspring.engines.slurm.engine import SlurmEngine

__all__ = ["SlurmCluster", "SlurmEngine"]
