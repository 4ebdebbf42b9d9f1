"""The brain: one pure function from a snapshot to a plan.

`SnapshotBuilder` folds what control learns into a `Snapshot`; `plan` turns it into a `Plan`; `feasible` tells whether a
spec could ever run here.
"""

from mainspring.planner.builder import SnapshotBuilder, TeamQuota
from mainspring.planner.decide import Budget, Policy, plan
from mainspring.planner.feasible import feasible
from mainspring.planner.snapshot import Snapshot

__all__ = ["Budget", "Policy", "Snapshot", "SnapshotBuilder", "TeamQuota", "feasible", "plan"]
