"""Planning: one pure function from a snapshot to a plan.

`SnapshotBuilder` folds what control learns into a `Snapshot`; `plan` turns it into a `Plan`; `explain` finds the
cheapest change that would start a job; `feasible` tells whether a spec could ever run here.
"""

from mainspring.planner.cycle import plan
from mainspring.planner.explain import Change, ChangeKind, explain
from mainspring.planner.facts.builder import SnapshotBuilder
from mainspring.planner.facts.policy import Budget, Policy
from mainspring.planner.facts.snapshot import LiveAttempt, PendingJob, Snapshot
from mainspring.planner.feasible import feasible

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
