"""What the planner was told of fleet, queue and running attempts; `version` counts what may change a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import final

from mainspring.control.state.fleet import FleetView, Holds
from mainspring.domain.fleet import Inventory, NodeCondition
from mainspring.domain.ids import AttemptId, ClusterName, JobId, NodeName
from mainspring.domain.plan import Grant
from mainspring.domain.team import Team
from mainspring.planner import LiveAttempt, PendingJob, SnapshotBuilder

_STRAY = "work of an attempt that was given up, or that the store does not know, may run here"


@final
class PlannerFeed:
    """Follows what has not ended in the planner's builder."""

    def __init__(self) -> None:
        self.builder = SnapshotBuilder()
        self.version = 0
        self._pending: dict[JobId, None] = {}
        self._shown: dict[AttemptId, tuple[Grant, ...]] = {}
        self._fleet_shown: tuple[int, object, object] = (-1, None, None)
        self._inventories: dict[ClusterName, Inventory] = {}

    @property
    def node_counts(self) -> Mapping[ClusterName, int]:
        """Returns how many nodes each cluster has where we choose nodes."""
        return {name: len(one.nodes) for name, one in self._inventories.items() if not one.delegated}

    def touch(self) -> None:
        """Notes that something has changed which plans weigh."""
        self.version += 1

    def set_teams(self, tree: tuple[Team, ...]) -> None:
        """Tells the teams."""
        self.version += 1
        self.builder.set_teams(tree)

    def set_fleet(
        self,
        fleet: FleetView,
        silent_s: Mapping[ClusterName, float],
        strays: Mapping[ClusterName, frozenset[NodeName]],
        holds: Holds,
    ) -> None:
        """Tells what the engines said.

        Args:
            silent_s: For how long each of those that do not answer has not.
            strays: Nodes on which nothing new is placed.
            holds: What people hold: neither is anything there.
        """
        seen = fleet.seen()
        if (fleet.version, strays, holds) != self._fleet_shown:
            self._fleet_shown = (fleet.version, strays, holds)
            self.version += 1
            self._inventories = {
                name: _without(holds.planned(one.inventory), strays.get(name, frozenset()))
                for name, one in seen.items()
            }
        for name, inventory in self._inventories.items():
            self.builder.set_inventory(inventory, answering=seen[name].answering, silent_s=silent_s.get(name, 0.0))

    def pends(self, job: JobId) -> bool:
        """Returns whether a job is in the queue."""
        return job in self._pending

    def add_pending(self, job: PendingJob) -> None:
        """Puts a job into the queue, or tells it anew."""
        self.builder.add_pending(job)
        self._pending[job.job] = None

    def drop_pending(self, job: JobId) -> None:
        """Takes a job out of the queue, if it is there."""
        if job in self._pending:
            self.builder.remove_pending(job)
            del self._pending[job]

    def set_live(
        self, attempt: AttemptId, kept: LiveAttempt | None, going: LiveAttempt | None, *, changed: bool
    ) -> None:
        """Tells what an attempt holds.

        Args:
            kept: It, with what it goes on with; None when its last allocation is gone, and it ends in a moment.
            going: What it has given up, held until it is gone by something that ends already.
            changed: Whether anything else about it has changed.
        """
        held = (kept.grants if kept is not None else ()) + (going.grants if going is not None else ())
        self.version += changed or held != self._shown.get(attempt)
        self._shown[attempt] = held
        for name, live in ((attempt, kept), (_going(attempt), going)):
            if live is not None:
                self.builder.add_live(replace(live, attempt=name))
            else:
                self.builder.remove_live(name)

    def drop_live(self, attempt: AttemptId) -> None:
        """Forgets an attempt that is over."""
        self.version += 1
        self._shown.pop(attempt, None)
        self.builder.remove_live(attempt)
        self.builder.remove_live(_going(attempt))


def _without(inventory: Inventory, strays: frozenset[NodeName]) -> Inventory:
    """Returns an inventory in which no new work is placed on some of its nodes."""
    if not strays:
        return inventory
    nodes = tuple(
        replace(node, condition=NodeCondition.CORDONED, condition_reason=_STRAY) if node.name in strays else node
        for node in inventory.nodes
    )
    return replace(inventory, nodes=nodes)


def _going(attempt: AttemptId) -> AttemptId:
    """Returns the name under which the planner knows what an attempt gives up while it goes on."""
    return AttemptId(f"{attempt}/going")
