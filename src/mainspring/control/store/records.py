"""Rows of the store as values, and the queries that read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import sqlalchemy as sa

from mainspring.control.store.schema import attempts, events, jobs, teams
from mainspring.domain.answers import Event
from mainspring.domain.codec import decode, encode
from mainspring.domain.ids import AttemptId, ClusterName, JobId, TeamName
from mainspring.domain.job import JobSpec
from mainspring.domain.life import AttemptState, JobState, ended
from mainspring.domain.plan import Grant
from mainspring.domain.team import Team
from mainspring.domain.wire import Detail, EventKind, RankStatus

ACTIVE_MAX = 200_000  # Jobs not ended that one loop looks at; the oldest come first.
_CHUNK = 500  # Ids in one IN list: under every database's bound on parameters.
Value = TypeVar("Value")
Item = TypeVar("Item")

JOB_LIVE = tuple(state.value for state in JobState if not ended(state))
ATTEMPT_LIVE = tuple(state.value for state in AttemptState if not ended(state))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """One job, but for its spec, which is read apart because it never changes.

    A job of an array knows the array by its first job, and its own place in it; any other job has None there.
    """

    ordinal: int
    id: JobId
    name: str
    team: TeamName
    state: JobState
    submitted_s: float
    ended_s: float | None
    reason: str
    step: int
    metrics_text: str
    result_text: str
    array: JobId | None
    array_index: int | None
    array_count: int | None

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
    """One attempt, but for its grants and ranks. `stop_cause` is why it was asked to stop, "" when it was not.

    `epoch` counts its leads, 0 while agents are missing; `lead` is the agent that leads, `led_s` when the first lead
    was named, and `heard_s` when this one last reported, or was named. The texts are ledgers: node-seconds by use.
    """

    id: AttemptId
    job: JobId
    number: int
    state: AttemptState
    cluster: ClusterName
    simulated: bool
    plan: int
    granted_s: float
    ended_s: float | None
    stop_cause: str
    outcome: AttemptState | None
    reason: str
    generation: int
    step: int
    events_seen: int
    heard_s: float | None
    epoch: int
    lead: int
    led_s: float | None
    seconds_text: str
    seconds_before_text: str

    @property
    def seconds(self) -> Mapping[str, float]:
        """Returns its lead's ledger."""
        return read_text(dict[str, float], self.seconds_text)

    @property
    def seconds_before(self) -> Mapping[str, float]:
        """Returns the ledger of the leads before."""
        return read_text(dict[str, float], self.seconds_before_text)


_JOB_COLUMNS = [column for column in jobs.c if column.name != "spec"]
_ATTEMPT_COLUMNS = [column for column in attempts.c if column.name not in ("grants", "ranks")]


_LIVE_JOBS = sa.select(*_JOB_COLUMNS).where(jobs.c.state.in_(JOB_LIVE)).order_by(jobs.c.ordinal).limit(ACTIVE_MAX)
_LIVE_ATTEMPTS = sa.select(*_ATTEMPT_COLUMNS).where(attempts.c.state.in_(ATTEMPT_LIVE)).order_by(attempts.c.id)


def job_of(row: sa.Row[Any]) -> JobRecord:
    """Returns a row of `jobs` as a value.

    Args:
        row: As selected.
    """
    return JobRecord(
        ordinal=row.ordinal,
        id=JobId(row.id),
        name=row.name,
        team=TeamName(row.team),
        state=JobState(row.state),
        submitted_s=row.submitted_s,
        ended_s=row.ended_s,
        reason=row.reason,
        step=row.step,
        metrics_text=row.metrics,
        result_text=row.result,
        array=JobId(row.array_id) if row.array_id else None,
        array_index=row.array_index,
        array_count=row.array_count,
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
        granted_s=row.granted_s,
        ended_s=row.ended_s,
        stop_cause=row.stop_cause,
        outcome=AttemptState(row.outcome) if row.outcome else None,
        reason=row.reason,
        generation=row.generation,
        step=row.step,
        events_seen=row.events_seen,
        heard_s=row.heard_s,
        epoch=row.epoch,
        lead=row.lead,
        led_s=row.led_s,
        seconds_text=row.seconds,
        seconds_before_text=row.seconds_before,
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


def specs(connection: sa.Connection, wanted: Iterable[JobId]) -> Mapping[JobId, JobSpec]:
    """Returns the specs of some jobs; those of one array share one object, which bears the array's name.

    Args:
        connection: Where to read.
        wanted: The jobs.
    """
    holders: dict[JobId, JobId] = {}
    for some in chunks(wanted):
        for row in connection.execute(sa.select(jobs.c.id, jobs.c.array_id).where(jobs.c.id.in_(some))):
            holders[JobId(row.id)] = JobId(row.array_id or row.id)
    written: dict[JobId, JobSpec] = {}
    for some in chunks(dict.fromkeys(holders.values())):
        for row in connection.execute(sa.select(jobs.c.id, jobs.c.spec).where(jobs.c.id.in_(some))):
            written[JobId(row.id)] = read_text(JobSpec, row.spec)
    return {job: written[holder] for job, holder in holders.items()}


def grants(connection: sa.Connection, wanted: Iterable[AttemptId]) -> Mapping[AttemptId, tuple[Grant, ...]]:
    """Returns what some attempts hold, or held last, one grant a role.

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


def jobs_of_array(connection: sa.Connection, array: JobId) -> tuple[JobRecord, ...]:
    """Returns every job of an array, in order.

    Args:
        connection: Where to read.
        array: Its first job.
    """
    query = sa.select(*_JOB_COLUMNS).where(jobs.c.array_id == array).order_by(jobs.c.array_index)
    return tuple(job_of(row) for row in connection.execute(query))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """What a job's attempts until now came to: the last one's number, and the furthest step, -1 for none."""

    number: int
    step: int


def befores(connection: sa.Connection, wanted: Iterable[JobId]) -> Mapping[JobId, Before]:
    """Returns what the attempts of some jobs came to; jobs without any are left out.

    Args:
        connection: Where to read.
        wanted: The jobs.
    """
    found = {}
    number, step = sa.func.max(attempts.c.number).label("number"), sa.func.max(attempts.c.step).label("step")
    for some in chunks(wanted):
        query = sa.select(attempts.c.job_id, number, step).where(attempts.c.job_id.in_(some))
        for row in connection.execute(query.group_by(attempts.c.job_id)):
            found[JobId(row.job_id)] = Before(number=row.number, step=row.step)
    return found


def furthest_step(connection: sa.Connection, job: JobId, *, until: int) -> int:
    """Returns the furthest step that a job's attempts told of, -1 for none.

    Args:
        connection: Where to read.
        job: The job.
        until: Number of the attempt that asks: a lead before may have told of steps.
    """
    query = sa.select(sa.func.max(attempts.c.step)).where(attempts.c.job_id == job, attempts.c.number <= until)
    found = connection.execute(query).scalar()
    return -1 if found is None else int(found)


def attempts_by_id(connection: sa.Connection, wanted: Iterable[AttemptId]) -> tuple[AttemptRecord, ...]:
    """Returns those of some attempts that exist, in no particular order.

    Args:
        connection: Where to read.
        wanted: Their ids.
    """
    return tuple(
        attempt_of(row)
        for some in chunks(wanted)
        for row in connection.execute(sa.select(*_ATTEMPT_COLUMNS).where(attempts.c.id.in_(some)))
    )


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


def tenants(connection: sa.Connection) -> tuple[Team, ...]:
    """Returns every team of the tenant tree, in order of name.

    Args:
        connection: Where to read.
    """
    return tuple(read_text(Team, row.facts) for row in connection.execute(sa.select(teams).order_by(teams.c.name)))
