"""Planning: one pure function from a snapshot to a plan.

`SnapshotBuilder` folds what control learns into a `Snapshot`; `plan` turns it into a `Plan`; `explain` finds the
cheapest change that would start a job; `feasible` tells whether a spec could ever run here.
"""

from typing import TYPE_CHECKING

from mainspring.lazy import names_of

if TYPE_CHECKING:
    from mainspring.planner.cycle import plan
    from mainspring.planner.explain import Change, ChangeKind
    from mainspring.planner.facts.builder import SnapshotBuilder
    from mainspring.planner.facts.policy import Budget, Policy
    from mainspring.planner.facts.snapshot import LiveAttempt, PendingJob, Snapshot
else:
    __getattr__, __dir__ = names_of(__name__)
