"""What attempts that have not ended hold: their allocations, by attempt, and what each of these is."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import final

import sqlalchemy as sa

from mainspring.control.store.holdings import AllocationRecord, allocations_by_id, parts
from mainspring.control.store.restores.held import Held
from mainspring.domain.ids import AllocationId, AttemptId, ClusterName, JobId, NodeName
from mainspring.domain.plan import Grant


@final
class LiveHoldings:
    """Every allocation that is not gone, and its part; `bereaved` are attempts that have lost an agent.

    `held` is what clusters show beyond what the store knows, `held_jobs` those that must not start for it; those that
    were submitted until `unseen_until_s` must not either.
    """

    def __init__(self) -> None:
        self.parts: dict[AllocationId, Grant] = {}
        self.bereaved: dict[AttemptId, None] = {}
        self.held: Held = {}
        self.held_jobs: frozenset[JobId] = frozenset()
        self.unseen_until_s = 0.0
        self._by_attempt: dict[AttemptId, tuple[AllocationRecord, ...]] = {}

    def all(self) -> tuple[AllocationRecord, ...]:
        """Returns every allocation, in order of attempt and place."""
        return tuple(one for attempt in sorted(self._by_attempt) for one in self._by_attempt[attempt])

    def of(self, attempt: AttemptId) -> tuple[AllocationRecord, ...]:
        """Returns an attempt's allocations, in order of place."""
        return self._by_attempt.get(attempt, ())

    def take(
        self,
        connection: sa.Connection,
        touched: Iterable[AttemptId],
        found: Iterable[AllocationRecord],
        live: Container[AttemptId],
    ) -> list[AllocationRecord]:
        """Learns the allocations of some attempts anew; returns those that were counted before and are over.

        Args:
            touched: Those of the attempts that were known before.
            found: Their allocations that are not gone.
            live: The attempts that have not ended.
        """
        before = {one.id: one for attempt in touched for one in self._by_attempt.pop(attempt, ())}
        now = {one.id: one for one in found}
        gone = allocations_by_id(connection, [allocation for allocation in before if allocation not in now])
        over: list[AllocationRecord] = []
        for one in sorted((*gone, *now.values()), key=lambda one: one.id):
            if one.ended_s is not None and one.id in before and before[one.id].ended_s is None:
                over.append(one)
            if one.lost and one.attempt in live:
                self.bereaved[one.attempt] = None
        self.parts.update(parts(connection, [allocation for allocation in now if allocation not in self.parts]))
        for one in gone:
            del self.parts[one.id]
        by_attempt: dict[AttemptId, list[AllocationRecord]] = {}
        for one in now.values():
            by_attempt.setdefault(one.attempt, []).append(one)
        for attempt, own in by_attempt.items():
            self._by_attempt[attempt] = tuple(sorted(own, key=lambda allocation: allocation.place))
        return over

    def set_held(self, held: Held) -> frozenset[JobId]:
        """Learns what is held; returns the jobs of which something is now and was not before, or the reverse."""
        before = self.held_jobs
        self.held, self.held_jobs = held, frozenset(one.job for one in held.values() if one.holds_job)
        return before ^ self.held_jobs

    def strays(self, live: Container[AttemptId]) -> dict[ClusterName, frozenset[NodeName]]:
        """Returns the nodes that allocations of fenced attempts, and what is held, may still use, by cluster.

        Args:
            live: The attempts that have not ended.
        """
        strays: dict[ClusterName, frozenset[NodeName]] = {}
        for beyond in (one for one in self.held.values() if not one.over):
            strays[beyond.cluster] = strays.get(beyond.cluster, frozenset()) | frozenset(beyond.nodes)
        for allocation in (one for attempt, own in self._by_attempt.items() if attempt not in live for one in own):
            nodes = frozenset(self.parts[allocation.id].nodes)
            strays[allocation.cluster] = strays.get(allocation.cluster, frozenset()) | nodes
        return strays
