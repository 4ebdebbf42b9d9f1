"""Rows of the store as values, and the queries that read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import sqlalchemy as sa

from mainspring.control.schema import allocations, attempts, events, jobs, teams
from mainspring.domain.codec import decode, encode
from mainspring.domain.ids import AllocationId, AttemptId, ClusterName, JobId, TeamName
from mainspring.domain.job import MILLI, JobSpec
from mainspring.domain.life import AllocationState, AttemptState, JobState, ended
from mainspring.domain.plan import Grant
from mainspring.domain.wire import Detail, Event, EventKind, RankStatus
from mainspring.planner import TeamQuota

ACTIVE_MAX = 200_000  # Jobs not ended that one loop looks at; the oldest come first.
_CHUNK = 500  # Ids in one IN list: under every database's bound on parameters.
Value = TypeVar("Value")
Item = TypeVar("Item")

JOB_LIVE = tuple(state.value for state in JobState if not ended(state))
ATTEMPT_LIVE = tuple(state.value for state in AttemptState if not ended(state))
ALLOCATION_LIVE = tuple(state.value for state in AllocationState if not ended(state))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """One job, but for its spec, which is read apart because it never changes."""

    ordinal: int
    id: JobId
    team: TeamName
    state: JobState
    submitted_s: float
    ended_s: float | None
    reason: str
    step: int
    metrics_text: str
    result_text: str

    @property
    def metrics(self) -> Mapping[str, float]:
        """Returns its newest metrics."""
        return read_text(dict[str, float], self.metrics_text)

    @property
    def result(self) -> Detail:
        """Returns what the program wanted kept."""
        return read_text(dict[str, str | int | float | bool], self.result_text)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One attempt, but for its grants and ranks. `stop_cause` is why it was asked to stop, "" when it was not."""

    id: AttemptId
    job: JobId
    number: int
    state: AttemptState
    cluster: ClusterName
    simulated: bool
    plan: int
    dollars_per_hour: float
    granted_s: float
    ended_s: float | None
    stop_cause: str
    outcome: AttemptState | None
    reason: str
    generation: int
    step: int
    events_seen: int

    @property
    def epoch(self) -> int:
        """Returns the epoch of its lead: attempts of a job count up, and each has one lead."""
        return self.number


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRecord:
    """One allocation: the attempt's grant number `place`."""

    id: AllocationId
    attempt: AttemptId
    place: int
    cluster: ClusterName
    state: AllocationState
    launched_s: float | None
    stopped_s: float | None


_JOB_COLUMNS = [column for column in jobs.c if column.name != "spec"]
_ATTEMPT_COLUMNS = [column for column in attempts.c if column.name not in ("grants", "ranks")]


_LIVE_JOBS = sa.select(*_JOB_COLUMNS).where(jobs.c.state.in_(JOB_LIVE)).order_by(jobs.c.ordinal).limit(ACTIVE_MAX)
_LIVE_ATTEMPTS = sa.select(*_ATTEMPT_COLUMNS).where(attempts.c.state.in_(ATTEMPT_LIVE)).order_by(attempts.c.id)
_LIVE_ALLOCATIONS = (
    sa.select(allocations)
    .where(allocations.c.state.in_(ALLOCATION_LIVE))
    .order_by(allocations.c.attempt_id, allocations.c.place)
)


def job_of(row: sa.Row[Any]) -> JobRecord:
    """Returns a row of `jobs` as a value.

    Args:
        row: As selected.
    """
    return JobRecord(
        ordinal=row.ordinal,
        id=JobId(row.id),
        team=TeamName(row.team),
        state=JobState(row.state),
        submitted_s=row.submitted_s,
        ended_s=row.ended_s,
        reason=row.reason,
        step=row.step,
        metrics_text=row.metrics,
        result_text=row.result,
    )


def attempt_of(row: sa.Row[Any]) -> AttemptRecord:
    """Returns a row of `attempts` as a value.

    Args:
        row: As selected.
    """
    return AttemptRecord(
        id=AttemptId(row.id),
        job=JobId(row.job_id),
        number=row.number,
        state=AttemptState(row.state),
        cluster=ClusterName(row.cluster),
        simulated=row.simulated,
        plan=row.plan,
        dollars_per_hour=row.dollars_per_hour,
        granted_s=row.granted_s,
        ended_s=row.ended_s,
        stop_cause=row.stop_cause,
        outcome=AttemptState(row.outcome) if row.outcome else None,
        reason=row.reason,
        generation=row.generation,
        step=row.step,
        events_seen=row.events_seen,
    )


def allocation_of(row: sa.Row[Any]) -> AllocationRecord:
    """Returns a row of `allocations` as a value.

    Args:
        row: As selected.
    """
    return AllocationRecord(
        id=AllocationId(row.id),
        attempt=AttemptId(row.attempt_id),
        place=row.place,
        cluster=ClusterName(row.cluster),
        state=AllocationState(row.state),
        launched_s=row.launched_s,
        stopped_s=row.stopped_s,
    )


def event_of(row: sa.Row[Any]) -> Event:
    """Returns a row of `events` as a value.

    Args:
        row: As selected.
    """
    return Event(
        sequence=row.sequence,
        time_s=row.time_s,
        kind=EventKind(row.kind),
        job=JobId(row.job_id) if row.job_id else None,
        attempt=AttemptId(row.attempt_id) if row.attempt_id else None,
        detail=read_text(dict[str, str | int | float | bool], row.detail),
    )


def read_text(kind: type[Value], text: str) -> Value:
    """Returns the value that a column of JSON text holds.

    Args:
        kind: What it holds.
        text: As `text_of` wrote it.
    """
    return decode(kind, text.encode())


def text_of(value: object) -> str:
    """Returns a value as a column of JSON text.

    Args:
        value: Anything `codec.encode` takes.
    """
    return encode(value).decode()


def chunks(items: Iterable[Item]) -> Iterator[Sequence[Item]]:
    """Yields the items in pieces small enough for one IN list.

    Args:
        items: Any number of them.
    """
    whole = list(items)
    for start in range(0, len(whole), _CHUNK):
        yield whole[start : start + _CHUNK]


def live_jobs(connection: sa.Connection) -> tuple[JobRecord, ...]:
    """Returns every job that has not ended, oldest first, at most `ACTIVE_MAX`.

    Args:
        connection: Where to read.
    """
    return tuple(job_of(row) for row in connection.execute(_LIVE_JOBS))


def live_attempts(connection: sa.Connection) -> tuple[AttemptRecord, ...]:
    """Returns every attempt that has not ended, in order of id.

    Args:
        connection: Where to read.
    """
    return tuple(attempt_of(row) for row in connection.execute(_LIVE_ATTEMPTS))


def live_allocations(connection: sa.Connection) -> tuple[AllocationRecord, ...]:
    """Returns every allocation that is not gone, in order of attempt and place.

    Args:
        connection: Where to read.
    """
    return tuple(allocation_of(row) for row in connection.execute(_LIVE_ALLOCATIONS))


def specs(connection: sa.Connection, wanted: Iterable[JobId]) -> Mapping[JobId, JobSpec]:
    """Returns the specs of some jobs.

    Args:
        connection: Where to read.
        wanted: The jobs.
    """
    found = {}
    for some in chunks(wanted):
        for row in connection.execute(sa.select(jobs.c.id, jobs.c.spec).where(jobs.c.id.in_(some))):
            found[JobId(row.id)] = read_text(JobSpec, row.spec)
    return found


def grants(connection: sa.Connection, wanted: Iterable[AttemptId]) -> Mapping[AttemptId, tuple[Grant, ...]]:
    """Returns the grants of some attempts; they never change.

    Args:
        connection: Where to read.
        wanted: The attempts.
    """
    found = {}
    for some in chunks(wanted):
        for row in connection.execute(sa.select(attempts.c.id, attempts.c.grants).where(attempts.c.id.in_(some))):
            found[AttemptId(row.id)] = read_text(tuple[Grant, ...], row.grants)
    return found


def ranks(connection: sa.Connection, attempt: AttemptId) -> tuple[RankStatus, ...]:
    """Returns an attempt's ranks as its lead last reported them.

    Args:
        connection: Where to read.
        attempt: Its id.
    """
    text = connection.execute(sa.select(attempts.c.ranks).where(attempts.c.id == attempt)).scalar_one()
    return read_text(tuple[RankStatus, ...], text)


def jobs_by_id(connection: sa.Connection, wanted: Iterable[JobId]) -> Mapping[JobId, JobRecord]:
    """Returns those of some jobs that exist, in no particular order.

    Args:
        connection: Where to read.
        wanted: Their ids.
    """
    found = {}
    for some in chunks(wanted):
        for row in connection.execute(sa.select(*_JOB_COLUMNS).where(jobs.c.id.in_(some)).order_by(jobs.c.ordinal)):
            found[JobId(row.id)] = job_of(row)
    return found


def attempt_by_id(connection: sa.Connection, attempt: AttemptId) -> AttemptRecord | None:
    """Returns one attempt, or None.

    Args:
        connection: Where to read.
        attempt: Its id.
    """
    row = connection.execute(sa.select(*_ATTEMPT_COLUMNS).where(attempts.c.id == attempt)).one_or_none()
    return attempt_of(row) if row else None


def attempts_of(connection: sa.Connection, wanted: Iterable[JobId]) -> Mapping[JobId, list[AttemptRecord]]:
    """Returns the attempts of some jobs, each job's in order of number.

    Args:
        connection: Where to read.
        wanted: The jobs.
    """
    found: dict[JobId, list[AttemptRecord]] = {}
    for some in chunks(wanted):
        query = (
            sa.select(*_ATTEMPT_COLUMNS)
            .where(attempts.c.job_id.in_(some))
            .order_by(attempts.c.job_id, attempts.c.number)
        )
        for row in connection.execute(query):
            found.setdefault(JobId(row.job_id), []).append(attempt_of(row))
    return found


def furthest_step(connection: sa.Connection, job: JobId, *, before: int) -> int:
    """Returns the furthest step that a job's earlier attempts told of, -1 for none.

    Args:
        connection: Where to read.
        job: The job.
        before: Number of the attempt that asks.
    """
    query = sa.select(sa.func.max(attempts.c.step)).where(attempts.c.job_id == job, attempts.c.number < before)
    found = connection.execute(query).scalar()
    return -1 if found is None else int(found)


def allocations_of(connection: sa.Connection, attempt: AttemptId) -> tuple[AllocationRecord, ...]:
    """Returns an attempt's allocations, in order of place.

    Args:
        connection: Where to read.
        attempt: Its id.
    """
    query = sa.select(allocations).where(allocations.c.attempt_id == attempt).order_by(allocations.c.place)
    return tuple(allocation_of(row) for row in connection.execute(query))


def events_since(
    connection: sa.Connection,
    *,
    since: int,
    limit: int,
    job: JobId | None = None,
    kinds: Iterable[EventKind] = (),
) -> tuple[Event, ...]:
    """Returns events after a sequence number, oldest first.

    Args:
        connection: Where to read.
        since: The last sequence the caller has seen; 0 for all.
        limit: The most to return.
        job: Only this job's, unless None.
        kinds: Only these, unless empty.
    """
    query = sa.select(events).where(events.c.sequence > since).order_by(events.c.sequence).limit(limit)
    if job is not None:
        query = query.where(events.c.job_id == job)
    if names := [kind.value for kind in kinds]:
        query = query.where(events.c.kind.in_(names))
    return tuple(event_of(row) for row in connection.execute(query))


def quotas(connection: sa.Connection) -> tuple[TeamQuota, ...]:
    """Returns the tenant tree, in order of name.

    Args:
        connection: Where to read.
    """
    return tuple(
        TeamQuota(
            name=TeamName(row.name),
            parent=TeamName(row.parent) if row.parent else None,
            chips_max=None if row.chip_milli_max is None else row.chip_milli_max / MILLI,
        )
        for row in connection.execute(sa.select(teams).order_by(teams.c.name))
    )
