"""Replicas of services, as the builder is told of them: where those of one service stand, and which of them wait.

Jobs of kind `service` that share team and name are replicas of one service. They keep away from each other's nodes
while other nodes have room, and start one by one, each once the one before has its place: so each sees where the others
are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from mainspring.domain.fleet import NodeRef
from mainspring.domain.ids import AttemptId, JobId, TeamName
from mainspring.domain.job import JobKind, JobSpec
from mainspring.planner.facts.snapshot import LiveAttempt, PendingJob

_Service = tuple[TeamName, str]


def serves(spec: JobSpec) -> bool:
    """Returns whether a job is a replica of a service."""
    return spec.kind is JobKind.SERVICE


@final
class Services:
    """What waits and what lives of every service."""

    def __init__(self) -> None:
        self._pending: dict[JobId, PendingJob] = {}
        self._live: dict[_Service, dict[AttemptId, LiveAttempt]] = {}

    def put_pending(self, job: PendingJob) -> None:
        """Adds a job that waits, or tells it anew; one that is no replica is passed over."""
        if serves(job.spec):
            self._pending[job.job] = job

    def drop_pending(self, job: JobId) -> None:
        """Forgets a job that waits."""
        self._pending.pop(job, None)

    def put_live(self, attempt: LiveAttempt) -> None:
        """Adds an attempt, or tells it anew; one that is no replica is passed over."""
        if serves(attempt.spec):
            self._live.setdefault(_service(attempt.spec), {})[attempt.attempt] = attempt

    def drop_live(self, attempt: AttemptId) -> None:
        """Forgets an attempt."""
        for service, own in list(self._live.items()):
            if own.pop(attempt, None) is not None and not own:
                del self._live[service]

    def pending(self) -> Iterator[PendingJob]:
        """Yields the replicas that wait, the oldest first."""
        yield from sorted(self._pending.values(), key=lambda job: (job.submitted_s, job.job))

    def nodes(self, spec: JobSpec) -> frozenset[NodeRef]:
        """Returns where others of a replica's service stay."""
        own = self._live.get(_service(spec), {}).values()
        grants = [grant for attempt in own if not attempt.stopping for grant in attempt.grants]
        return frozenset(NodeRef(cluster=grant.cluster, node=node) for grant in grants for node in grant.nodes)

    def behind(self) -> Iterator[JobId]:
        """Yields the replicas that wait for another of their service to have its place."""
        first: set[_Service] = set()
        for job in self.pending():
            if _service(job.spec) in first:
                yield job.job
            elif not (job.paused or job.blocked):
                first.add(_service(job.spec))


def _service(spec: JobSpec) -> _Service:
    return spec.team, spec.name
