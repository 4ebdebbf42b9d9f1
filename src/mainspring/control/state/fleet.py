"""The fleet view: what engines last said of their clusters, shared by the loop that asks and the API that shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock

from mainspring.domain.fleet import Inventory
from mainspring.domain.ids import ClusterName


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSeen:
    """One cluster as its engine last told it.

    Args:
        inventory: The last one it gave.
        answering: Whether it answered the last time it was asked.
        seen_s: When it last answered.
    """

    inventory: Inventory
    answering: bool
    seen_s: float


class FleetView:
    """The last inventory of each cluster that ever answered. Used by many threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._seen: dict[ClusterName, ClusterSeen] = {}
        self._version = 0

    def answered(self, inventory: Inventory, *, now_s: float) -> None:
        """Keeps an answer.

        Args:
            inventory: What the engine said.
        """
        seen = ClusterSeen(inventory=inventory, answering=True, seen_s=now_s)
        with self._lock:
            known = self._seen.get(inventory.cluster)
            if known is None or not known.answering or known.inventory != inventory:
                self._version += 1
            self._seen[inventory.cluster] = seen

    def silent(self, cluster: ClusterName) -> None:
        """Notes that a cluster did not answer; what it said before is kept, marked so."""
        with self._lock:
            known = self._seen.get(cluster)
            if known is not None and known.answering:
                self._version += 1
                self._seen[cluster] = ClusterSeen(inventory=known.inventory, answering=False, seen_s=known.seen_s)

    @property
    def version(self) -> int:
        """Returns a number that grows whenever what is known changes."""
        return self._version

    def seen(self) -> Mapping[ClusterName, ClusterSeen]:
        """Returns every cluster that ever answered, in order of name."""
        with self._lock:
            return {name: self._seen[name] for name in sorted(self._seen)}
