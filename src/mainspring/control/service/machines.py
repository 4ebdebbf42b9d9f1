"""The fleet as the planner reads it, for the question whether a job could ever run here."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from threading import Lock
from typing import final

from mainspring.control.state.fleet import FleetView
from mainspring.domain.errors import ImpossibleJob
from mainspring.domain.ids import ClusterName, RoleName
from mainspring.domain.job import JobSpec, Option
from mainspring.planner import Snapshot, SnapshotBuilder
from mainspring.planner.feasible import feasible

_SHAPES_MAX = 10_000  # A lab's jobs of a year have a few dozen.


@final
class KnownMachines:
    """What clusters have, looked at again when that has changed. Used by many threads.

    Args:
        fleet: What every cluster last answered.
        clusters: All that are asked: while one has never answered, what it could run is not known.
    """

    def __init__(self, fleet: FleetView, clusters: Collection[ClusterName]) -> None:
        self._fleet = fleet
        self._clusters = clusters
        self._lock = Lock()
        self._version = -1
        self._made: Snapshot | None = None
        self._possible: dict[tuple[tuple[RoleName, tuple[Option, ...]], ...], None] = {}

    def impossible_each(self, specs: Sequence[JobSpec]) -> Sequence[ImpossibleJob | None]:
        """Returns the same of each of several jobs, many of which share their options."""
        possible: set[tuple[tuple[RoleName, int], ...]] = set()
        found: list[ImpossibleJob | None] = []
        for spec in specs:
            asks = tuple([(role.name, id(role.options)) for role in spec.roles])
            found.append(None if asks in possible else self.impossible(spec))
            if found[-1] is None:
                possible.add(asks)
        return found

    def impossible(self, spec: JobSpec) -> ImpossibleJob | None:
        """Returns why a job could never run here; None when it could, or before every cluster has answered once."""
        shape = tuple((role.name, role.options) for role in spec.roles)
        with self._lock:
            machines = self._snapshot()
            if machines is None or shape in self._possible:
                return None
            possible = self._possible
        error = feasible(machines, spec)
        if error is None and len(possible) < _SHAPES_MAX:
            possible[shape] = None
        return error

    def _snapshot(self) -> Snapshot | None:
        if self._version != self._fleet.version:
            self._version, self._possible = self._fleet.version, {}
            builder = SnapshotBuilder()
            for seen in self._fleet.seen().values():
                builder.set_inventory(seen.inventory, answering=seen.answering)
            self._made = builder.build()
        return self._made if self._fleet.seen().keys() >= set(self._clusters) else None
