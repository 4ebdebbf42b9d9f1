"""The brain: one pure function from a snapshot to a plan.

`SnapshotBuilder` folds what control learns into a `Snapshot`; `plan` turns it into a `Plan`; `explain` finds the
cheapest change that would start a job; `feasible` tells whether a spec could ever run here.
"""

from mainspring.planner.attempts import LiveAttempt
from mainspring.planner.builder import PendingJob, SnapshotBuilder
from mainspring.planner.cycle import plan
from mainspring.planner.explain import Change, ChangeKind, explain
from mainspring.planner.feasible import feasible
from mainspring.planner.policy import Budget, Policy
from mainspring.planner.snapshot import Snapshot

__all__ = [
    "Budget",
    "Change",
    "ChangeKind",
    "LiveAttempt",
    "PendingJob",
    "Policy",
    "Snapshot",
    "SnapshotBuilder",
    "explain",
    "feasible",
    "plan",
]
