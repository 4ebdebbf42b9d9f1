"""The loop's own picture of what has not ended, kept up to date from events, so that a tick reads what changed."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from mainspring.control.fleet import Fleet
from mainspring.control.records import (
    AllocationRecord,
    AttemptRecord,
    JobRecord,
    grants,
    jobs_by_id,
    live_allocations,
    live_attempts,
    live_jobs,
    quotas,
    specs,
)
from mainspring.control.schema import events, plans
from mainspring.domain.ids import AttemptId, JobId, NodeName
from mainspring.domain.job import JobSpec
from mainspring.domain.life import JobState, ended
from mainspring.domain.plan import Grant
from mainspring.domain.wire import EventKind
from mainspring.planner import SnapshotBuilder, TeamQuota

_JOB_EVENTS = (EventKind.JOB_SUBMITTED.value, EventKind.JOB_MOVED.value)


class Mirror:
    """Jobs, attempts and allocations that have not ended, and the planner's builder that follows them.

    Valid only for transactions that were committed: whoever loses one makes a new mirror.
    """

    def __init__(self) -> None:
        self.jobs: dict[JobId, JobRecord] = {}
        self.specs: dict[JobId, JobSpec] = {}
        self.attempts: dict[AttemptId, AttemptRecord] = {}
        self.allocations: tuple[AllocationRecord, ...] = ()
        self.grants: dict[AttemptId, tuple[Grant, ...]] = {}
        self.plan_number = 0
        self.builder = SnapshotBuilder()
        self.version = 0
        self._event_seen = -1
        self._quotas: tuple[TeamQuota, ...] | None = None
        self._fleet_version = -1
        self._pending: dict[JobId, None] = {}
        self._live: dict[AttemptId, None] = {}

    def refresh(self, connection: sa.Connection) -> None:
        """Reads what changed since the last time; everything, the first time.

        Args:
            connection: Where to read.
        """
        newest = connection.execute(sa.select(sa.func.max(events.c.sequence))).scalar() or 0
        if self._event_seen < 0:
            self.plan_number = connection.execute(sa.select(sa.func.max(plans.c.number))).scalar() or 0
            self._take_jobs(connection, {job.id: job for job in live_jobs(connection)})
        elif newest > self._event_seen:
            query = sa.select(events.c.job_id).where(
                events.c.sequence > self._event_seen, events.c.kind.in_(_JOB_EVENTS)
            )
            changed = dict.fromkeys(JobId(job) for job in connection.execute(query).scalars())
            self._take_jobs(connection, jobs_by_id(connection, changed))
        self._event_seen = newest
        self.attempts = {attempt.id: attempt for attempt in live_attempts(connection)}
        self.allocations = live_allocations(connection)
        unknown = [attempt for attempt in self.attempts if attempt not in self.grants]
        self.grants.update(grants(connection, unknown))
        for attempt in [known for known in self.grants if known not in self.attempts]:
            del self.grants[attempt]
        self._feed_attempts()
        self._feed_teams(quotas(connection))

    def feed_fleet(self, fleet: Fleet) -> None:
        """Tells the planner's builder what the engines said.

        Args:
            fleet: What they said.
        """
        if fleet.version != self._fleet_version:
            self._fleet_version = fleet.version
            self.version += 1
            for seen in fleet.seen().values():
                self.builder.set_inventory(seen.inventory, answering=seen.answering)

    def _take_jobs(self, connection: sa.Connection, changed: Mapping[JobId, JobRecord]) -> None:
        unknown = [job.id for job in changed.values() if not ended(job.state) and job.id not in self.specs]
        self.specs.update(specs(connection, unknown))
        for job in changed.values():
            self.version += 1
            if job.id in self._pending and job.state is not JobState.QUEUED:
                self.builder.remove_pending(job.id)
                del self._pending[job.id]
            if ended(job.state):
                self.jobs.pop(job.id, None)
                self.specs.pop(job.id, None)
                continue
            self.jobs[job.id] = job
            if job.state is JobState.QUEUED and job.id not in self._pending:
                self.builder.add_pending(job.id, self.specs[job.id], job.submitted_s)
                self._pending[job.id] = None

    def _feed_attempts(self) -> None:
        for attempt in [known for known in self._live if known not in self.attempts]:
            self.version += 1
            self.builder.remove_live(attempt)
            del self._live[attempt]
        for attempt, record in self.attempts.items():
            if attempt in self._live:
                continue
            self.version += 1
            job = self.jobs[record.job]
            spec = self.specs[record.job]
            self.builder.add_live(
                attempt,
                record.job,
                team=spec.team,
                tier=spec.tier,
                submitted_s=job.submitted_s,
                cluster=record.cluster,
                chip_milli=held(self.grants[attempt]),
            )
            self._live[attempt] = None

    def _feed_teams(self, tree: tuple[TeamQuota, ...]) -> None:
        if tree != self._quotas:
            self._quotas = tree
            self.version += 1
            self.builder.set_teams(tree)


def held(granted: tuple[Grant, ...]) -> dict[NodeName, int]:
    """Returns thousandths of chips by node, all roles together.

    Args:
        granted: An attempt's grants.
    """
    sums: dict[NodeName, int] = {}
    for grant in granted:
        for node, milli in zip(grant.nodes, grant.chip_milli, strict=True):
            sums[node] = sums.get(node, 0) + milli
    return sums
