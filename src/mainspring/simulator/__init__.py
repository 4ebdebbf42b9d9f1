"""Virtual time: the real controller against clusters, agents and leads that fail on purpose, from one seed."""

from mainspring.simulator.cluster import CallFaults, SimulatedCluster
from mainspring.simulator.gang import Gang, GangFaults
from mainspring.simulator.proof import Trace, prove

__all__ = ["CallFaults", "Gang", "GangFaults", "SimulatedCluster", "Trace", "prove"]
