"""The fleet as the planner reads it, for the question whether a job could ever run here."""

from __future__ import annotations

from threading import Lock
from typing import final

from mainspring.control.store.fleet import FleetView
from mainspring.planner import Snapshot, SnapshotBuilder


@final
class KnownMachines:
    """A snapshot of what clusters have, made again when that has changed. Used by many threads.

    Args:
        fleet: What every cluster last answered.
    """

    def __init__(self, fleet: FleetView) -> None:
        self._fleet = fleet
        self._lock = Lock()
        self._version = -1
        self._made: Snapshot | None = None

    def snapshot(self) -> Snapshot | None:
        """Returns all clusters without jobs, None before any has answered."""
        with self._lock:
            if self._version != self._fleet.version:
                self._version = self._fleet.version
                builder = SnapshotBuilder()
                for seen in self._fleet.seen().values():
                    builder.set_inventory(seen.inventory, answering=seen.answering)
                self._made = builder.build()
            return self._made if self._fleet.seen() else None
