"""Services in the store, and which jobs are their replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from mainspring.control.store.ledger import StopCause
from mainspring.control.store.records import ATTEMPT_LIVE, JOB_ROWS, JobRecord, read_text, text_of
from mainspring.control.store.schema import attempts, jobs
from mainspring.control.store.services.tables import service_replicas, services
from mainspring.domain.answers import NewScale
from mainspring.domain.ids import AttemptId, ClusterName, JobId, TeamName
from mainspring.domain.job import JobSpec
from mainspring.domain.wire import RankStatus, Serving

ENDED_KEPT = 32  # Replicas that have ended, of each service, from which the next start's wait follows.


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One spec of a service, and since when it is that."""

    number: int
    spec: JobSpec
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A service as it is wanted.

    Args:
        owner: Who its replicas belong to.
        wanted: How many replicas there are to be now.
        version: What they are to be of.
        before: The version that is being replaced, None while none is.
        versions: How many there were.
        reason: What became of it last.
    """

    name: str
    team: TeamName
    owner: str
    made_s: float
    scale: NewScale
    wanted: int
    version: Version
    before: Version | None = None
    versions: int = 1
    reason: str = ""

    def returned(self, reason: str, now_s: float) -> Service:
        """Returns it as it goes back to the version before."""
        assert self.before is not None
        words = f"went back to version {self.before.number}: {reason}"
        return replace(self, version=replace(self.before, since_s=now_s), before=None, reason=words)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRecord:
    """One replica: its job, and its attempt that has not ended, if there is one, with what it told last.

    `asked` tells that somebody has asked it to end: a policy server that was ends well.
    """

    job: JobRecord
    version: int
    attempt: AttemptId | None = None
    cluster: ClusterName | None = None
    granted_s: float | None = None
    heard_s: float | None = None
    ranks: tuple[RankStatus, ...] = ()
    asked: bool = False

    @property
    def rank(self) -> RankStatus | None:
        """Returns the rank that serves."""
        return next((rank for rank in self.ranks if rank.serving is not None), None)

    @property
    def serving(self) -> Serving | None:
        """Returns what it told last of how it serves."""
        return None if self.rank is None else self.rank.serving

    @property
    def told_silent_s(self) -> float:
        """Returns for how long its lead had heard nothing of it when that last reported."""
        return 0.0 if self.serving is None else self.serving.silent_s

    def silent_s(self, now_s: float) -> float | None:
        """Returns for how long nothing was heard of how it serves, None before anything was."""
        if self.serving is None:
            return None
        return self.told_silent_s + max(0.0, now_s - (self.heard_s if self.heard_s is not None else now_s))


def every_service(connection: sa.Connection) -> tuple[Service, ...]:
    """Returns all services, in order of name."""
    query = sa.select(services.c.facts).order_by(services.c.name)
    return tuple(read_text(Service, text) for text in connection.execute(query).scalars())


def service_named(connection: sa.Connection, name: str) -> Service | None:
    """Returns one service, None where there is none of that name."""
    text = connection.execute(sa.select(services.c.facts).where(services.c.name == name)).scalar()
    return None if text is None else read_text(Service, text)


def write_service(connection: sa.Connection, service: Service) -> None:
    """Writes a service, new or as it is now."""
    facts = text_of(service)
    if not connection.execute(sa.update(services).where(services.c.name == service.name).values(facts=facts)).rowcount:
        connection.execute(sa.insert(services).values(name=service.name, facts=facts))


def forget_service(connection: sa.Connection, name: str) -> None:
    """Removes a service, and what is known of its replicas; their jobs stay."""
    connection.execute(sa.delete(service_replicas).where(service_replicas.c.service == name))
    connection.execute(sa.delete(services).where(services.c.name == name))


def add_replica(connection: sa.Connection, service: str, version: int, job: JobId) -> None:
    """Notes that a job is a replica of a service."""
    connection.execute(sa.insert(service_replicas).values(service=service, job_id=job, version=version))


def forget_replicas(connection: sa.Connection, ended: Sequence[JobId]) -> None:
    """Forgets that some jobs, which have ended, were replicas."""
    connection.execute(sa.delete(service_replicas).where(service_replicas.c.job_id.in_(ended)))


def replicas_of(connection: sa.Connection, name: str) -> tuple[ReplicaRecord, ...]:
    """Returns the replicas of a service, the oldest first, those that ended lately too."""
    own = sa.select(service_replicas).where(service_replicas.c.service == name)
    versions: dict[str, int] = {row.job_id: row.version for row in connection.execute(own)}
    found = JOB_ROWS.read(connection, JOB_ROWS.select.where(jobs.c.id.in_(versions)).order_by(jobs.c.ordinal))
    columns = (attempts.c.id, attempts.c.job_id, attempts.c.cluster, attempts.c.granted_s, attempts.c.heard_s)
    live = sa.select(*columns, attempts.c.ranks).where(attempts.c.state.in_(ATTEMPT_LIVE))
    rows: Any = connection.execute(live.where(attempts.c.job_id.in_(versions)))
    held = {row.job_id: row for row in rows}
    ended = sa.select(attempts.c.job_id).where(attempts.c.stop_cause == StopCause.CANCEL.value)
    asked = set(connection.execute(ended.where(attempts.c.job_id.in_(versions))).scalars())
    return tuple(_replica(job, versions[job.id], held.get(job.id), asked=job.id in asked) for job in found)


def _replica(job: JobRecord, version: int, attempt: Any, *, asked: bool) -> ReplicaRecord:
    if attempt is None:
        return ReplicaRecord(job=job, version=version, asked=asked)
    return ReplicaRecord(
        job=job,
        version=version,
        asked=asked,
        attempt=AttemptId(attempt.id),
        cluster=ClusterName(attempt.cluster),
        granted_s=attempt.granted_s,
        heard_s=attempt.heard_s,
        ranks=read_text(tuple[RankStatus, ...], attempt.ranks),
    )
