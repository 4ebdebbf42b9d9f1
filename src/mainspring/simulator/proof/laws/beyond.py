"""Laws of what goes beyond the store's knowledge, such as after it went back in time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import sqlalchemy as sa

from mainspring.control.store.ledger import StopCause
from mainspring.control.store.records import JOB_LIVE
from mainspring.control.store.schema import allocations, attempts, events, jobs, plans
from mainspring.domain.answers import Event, HeldView
from mainspring.domain.ids import AllocationId, AttemptId, ClusterName, JobId
from mainspring.domain.life import JobState
from mainspring.simulator.proof.cluster import SimulatedCluster
from mainspring.simulator.proof.laws.failover import FailoverLaws

_Numbers = tuple[int, int]  # Of the newest event, and of the newest plan.
_NEWEST = (sa.select(sa.func.max(events.c.sequence)), sa.select(sa.func.max(plans.c.number)))
_PLANS = sa.select(plans.c.number)
_ATTEMPTS = sa.select(attempts.c.id, attempts.c.job_id, attempts.c.number)
_ALLOCATIONS = sa.select(allocations.c.id)
_DONE = sa.select(jobs.c.id).where(jobs.c.state == JobState.SUCCEEDED.value)
_GIVEN_UP = sa.select(attempts.c.job_id.label("id")).where(attempts.c.stop_cause == StopCause.FENCED.value)
_LIVE = sa.select(jobs.c.id).where(jobs.c.state.in_(JOB_LIVE))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Forgotten:
    """Numbers that a store gave out and has forgotten: those above the low ones, up to the high ones."""

    low: _Numbers
    high: _Numbers


@dataclass(slots=True, kw_only=True)
class _Before:
    """What a store knew when it was last seen before it went back.

    Args:
        newest: Its newest event and plan.
        done: Jobs that had succeeded.
    """

    newest: _Numbers = (0, 0)
    done: set[JobId] = field(default_factory=set)


@final
class BeyondLaws:
    """The laws of what one world's store does not know, or no longer.

    Args:
        clusters: The clusters, looked at past their faults.
        failover: Knows which of them may be given up.
    """

    def __init__(self, clusters: Mapping[ClusterName, SimulatedCluster], failover: FailoverLaws) -> None:
        self._clusters = clusters
        self._failover = failover
        self.adopted: set[AllocationId] = set()
        """What the store knows again since an operator said so."""
        self._settled: set[AllocationId] = set()
        self._adoptable: dict[AllocationId, JobId] = {}
        self._copied: _Numbers = (0, 0)
        self._before = _Before()
        self._forgotten: list[_Forgotten] = []
        self._attempts: dict[tuple[JobId, int], AttemptId] = {}
        self._done: set[JobId] = set()
        self._back_s = 0.0  # Nothing that the store knew as it went back is younger.
        self._excused: set[JobId] = set()

    @property
    def went_back(self) -> bool:
        """Returns whether the store ever did."""
        return bool(self._forgotten)

    def settled(self, held: Iterable[HeldView]) -> None:
        """Notes what an operator had ended that the store does not know; its job may start once that is over."""
        for one in held:
            self._settled.add(one.allocation)
            self._done.discard(one.job)

    def may_adopt(self, held: Iterable[HeldView]) -> None:
        """Notes what an operator wants adopted, as far as that is possible."""
        self._adoptable |= {one.allocation: one.job for one in held}

    def runs_early(self, job: JobId) -> bool:
        """Returns whether a job may run though those it comes after have not succeeded, as far as the store knows."""
        return job in self._adoptable.values()

    def copied(self, connection: sa.Connection) -> None:
        """Notes what the store knows, which is copied."""
        self._copied = _newest(connection)

    def remember(self, connection: sa.Connection) -> None:
        """Notes what the store knows, which is about to go back."""
        self._before = _Before(newest=_newest(connection), done=_jobs(connection, _DONE))
        self._excused |= _jobs(connection, _GIVEN_UP)  # What was given up may run yet, beside what followed it.
        self._check_numbers(connection)

    def forget(self, connection: sa.Connection) -> None:
        """Notes what the store does not know any more, now that it went back."""
        known = {row.id for row in connection.execute(_ALLOCATIONS)}
        for cluster in self._clusters.values():
            cluster.strangers |= cluster.orders.keys() - known
            self._settled |= {one for one in cluster.strangers if cluster.stops[one]}  # It was to stop before.
            self.adopted -= cluster.strangers
        self._adoptable.clear()
        self._done |= self._before.done & _jobs(connection, _LIVE)
        self._back_s = connection.execute(sa.select(sa.func.max(events.c.time_s))).scalar() or 0.0
        self._forgotten.append(_Forgotten(low=self._copied, high=self._before.newest))
        self._failover.went_back()

    def check(self, attempt_of: Mapping[JobId, AttemptId], connection: sa.Connection) -> None:
        """Checks every law that holds at every instant.

        Args:
            attempt_of: The attempts that run and the store knows.

        Raises:
            AssertionError: One is broken; says which.
        """
        for name, cluster in self._clusters.items():
            self._check_adopted(cluster, connection)
            ended = cluster.strangers & cluster.stopped - self._settled
            assert not ended, f"{sorted(ended)} ran on {name}, no store knows of it, and it was stopped all the same"
            if not self.went_back:
                continue
            for allocation in sorted(cluster.running().keys() & cluster.strangers & cluster.orders.keys()):
                job = cluster.orders[allocation].job_id
                if job in attempt_of and self._failover.is_given_up(name):
                    self._excused.add(JobId(job))
                twice = job in attempt_of and job not in self._excused
                assert not twice, f"{job} runs in {attempt_of.get(JobId(job))}, and in {allocation} on {name} too"
        if self._done:
            self._check_done(connection)

    def _check_adopted(self, cluster: SimulatedCluster, connection: sa.Connection) -> None:
        """Checks that what the store knows again was adopted: then it is no stranger, nor is its job done."""
        again = {row.id for row in connection.execute(_ALLOCATIONS.where(allocations.c.id.in_(cluster.strangers)))}
        assert again <= self._adoptable.keys(), (
            f"{sorted(again - self._adoptable.keys())} are known again, and nobody adopted them"
        )
        self.adopted |= again
        cluster.strangers -= again
        self._done -= {JobId(cluster.orders[allocation].job_id) for allocation in again}

    def _check_done(self, connection: sa.Connection) -> None:
        """Checks that no job is done again that had succeeded, unless an operator said so."""
        given_up = _jobs(connection, _GIVEN_UP.where(attempts.c.ended_s >= self._back_s))
        for row in connection.execute(_ATTEMPTS.where(attempts.c.job_id.in_(sorted(self._done)))):
            key = (JobId(row.job_id), row.number)
            on = [
                name
                for name, cluster in self._clusters.items()
                if any(order.job_id == row.job_id for order in cluster.orders.values())
            ]
            if row.job_id in given_up or any(self._failover.is_given_up(name) for name in on):
                self._attempts.setdefault(key, AttemptId(row.id))
            assert key in self._attempts, f"{row.job_id} had succeeded, and starts again as {row.id}"

    def check_ends(self, connection: sa.Connection, everything: Sequence[Event]) -> None:
        """Checks that no number was given out twice.

        Args:
            everything: All events.

        Raises:
            AssertionError: One was.
        """
        self._check_numbers(connection)
        numbers = [row.number for row in connection.execute(_PLANS)]
        for kind, given in (("event", [one.sequence for one in everything]), ("plan", numbers)):
            place = ("event", "plan").index(kind)
            for gone in self._forgotten:
                again = [number for number in given if gone.low[place] < number <= gone.high[place]]
                assert not again, f"numbers of {kind}s are given out again since the store went back: {again[:3]}"

    def _check_numbers(self, connection: sa.Connection) -> None:
        for row in connection.execute(_ATTEMPTS):
            other = self._attempts.setdefault((JobId(row.job_id), row.number), AttemptId(row.id))
            assert other == row.id, f"{row.job_id} has two attempts of number {row.number}: {other} and {row.id}"


def _jobs(connection: sa.Connection, query: sa.Select[tuple[str]]) -> set[JobId]:
    return {JobId(row.id) for row in connection.execute(query)}


def _newest(connection: sa.Connection) -> _Numbers:
    event, plan = (connection.execute(one).scalar() or 0 for one in _NEWEST)
    return event, plan
