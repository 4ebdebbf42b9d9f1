"""Jobs and attempts as values, and the queries that read them, events and teams."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from threading import Lock
from typing import Any, TypeVar, final

import sqlalchemy as sa

from mainspring.control.store.nodes.samples import FreshSamples
from mainspring.control.store.rows import Prepared, RowMapping
from mainspring.control.store.rows import add_rows as add_rows
from mainspring.control.store.rows import read_text as read_text
from mainspring.control.store.rows import text_of as text_of
from mainspring.control.store.schema import archived, attempts, events, jobs, leases, teams
from mainspring.domain.answers import Event
from mainspring.domain.ids import AttemptId, ClusterName, JobId, TeamName
from mainspring.domain.job import JobSpec, Overrides
from mainspring.domain.life import AttemptState, JobState, ended
from mainspring.domain.team import Team
from mainspring.domain.wire import AtRisk, Detail, ProfileAsked, RankStatus

TEAMS_MAX = 10_000
ACTIVE_MAX = 200_000  # Jobs not ended that one loop looks at; the oldest come first.
FRESH_MAX = 20_000  # Two whole batches; whatever else there is, the loop reads from the store.
_CHUNK = 500  # Ids in one IN list: under every database's bound on parameters.
SPECS_KEPT = 4_096  # Read once: of forty teams the hundred newest.
SPEC_LETTERS_KEPT = 8_192  # The longest of them: eight times one that somebody wrote by hand.
LOOKED_AT_MAX = 100_000  # Events of all, to find those of some teams: a day's of a large lab, and a second's work.
Item = TypeVar("Item")

JOB_LIVE = tuple(state.value for state in JobState if not ended(state))
ATTEMPT_LIVE = tuple(state.value for state in AttemptState if not ended(state))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """One job, but for its spec, which is read apart because it never changes; its newest metrics and its result.

    A job of an array knows the array by its first job, and its own place in it; any other job has None there.
    `overrides` are what was said of it since it was submitted.
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
    metrics: Mapping[str, float]
    result: Detail
    array: JobId | None
    array_index: int | None
    array_count: int | None
    owner: str
    overrides: Overrides | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One attempt, but for its ranks and what is at risk. `stop_cause` is why it was asked to stop, "" when it was not.

    `epoch` counts its leads, 0 while agents are missing; `lead` is the agent that leads, `led_s` when the first lead
    was named, and `heard_s` when this one last reported, or was named. `seconds` is its lead's ledger, node-seconds by
    use, and `seconds_before` that of the leads before. `stacks_asked` is how often people asked where its ranks stand,
    `profile` what was last asked of its ranks.
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
    seconds: Mapping[str, float]
    seconds_before: Mapping[str, float]
    profile: ProfileAsked | None
    stacks_asked: int = 0


JOB_ROWS = RowMapping(JobRecord, jobs)
ATTEMPT_ROWS = RowMapping(AttemptRecord, attempts)

# Made once: to make a statement takes as long as to run it, and every look at a job runs ten.
_SOME: sa.BindParameter[Any] = sa.bindparam("some", expanding=True)
_JOBS_BY_ID = JOB_ROWS.select.where(jobs.c.id.in_(_SOME)).order_by(jobs.c.ordinal)
_HOLDERS = sa.select(jobs.c.id, jobs.c.array_id).where(jobs.c.id.in_(_SOME))
_SPECS = sa.select(jobs.c.id, jobs.c.spec).where(jobs.c.id.in_(_SOME))
_ATTEMPTS_BY_ID = ATTEMPT_ROWS.select.where(attempts.c.id.in_(_SOME))
_ATTEMPT = Prepared(ATTEMPT_ROWS.select.where(attempts.c.id == sa.bindparam("attempt")))
_ATTEMPTS_OF = ATTEMPT_ROWS.select.where(attempts.c.job_id.in_(_SOME)).order_by(attempts.c.job_id, attempts.c.number)
_REPORTED = sa.select(attempts.c.ranks, attempts.c.at_risk).where(attempts.c.id == sa.bindparam("attempt"))
_NEWEST_EVENT = sa.select(sa.func.max(events.c.sequence))
_LIVE_JOBS = JOB_ROWS.select.where(jobs.c.state.in_(JOB_LIVE)).order_by(jobs.c.ordinal).limit(ACTIVE_MAX)
_LIVE_ATTEMPTS = ATTEMPT_ROWS.select.where(attempts.c.state.in_(ATTEMPT_LIVE)).order_by(attempts.c.id)


def event_of(row: sa.Row[Any]) -> Event:
    """Returns a row of `events` as a value."""
    return Event(
        sequence=row.sequence,
        time_s=row.time_s,
        kind=row.kind,
        job=JobId(row.job_id) if row.job_id else None,
        attempt=AttemptId(row.attempt_id) if row.attempt_id else None,
        detail=read_text(dict[str, str | int | float | bool], row.detail),
    )


def chunks(items: Iterable[Item], size: int = _CHUNK) -> Iterator[Sequence[Item]]:
    """Yields the items in pieces, small enough for one IN list unless another size is asked.

    Args:
        items: Any number of them.
    """
    whole = list(items)
    for start in range(0, len(whole), size):
        yield whole[start : start + size]


def member_name(array: str, index: int) -> str:
    """Returns the name of one job of an array.

    Args:
        array: The array's name.
        index: The job's place in it.
    """
    return f"{array}-{index}"


def live_jobs(connection: sa.Connection) -> tuple[JobRecord, ...]:
    """Returns every job that has not ended, oldest first, at most `ACTIVE_MAX`."""
    return JOB_ROWS.read(connection, _LIVE_JOBS)


def live_attempts(connection: sa.Connection) -> tuple[AttemptRecord, ...]:
    """Returns every attempt that has not ended, in order of id."""
    return ATTEMPT_ROWS.read(connection, _LIVE_ATTEMPTS)


def specs(connection: sa.Connection, wanted: Iterable[JobId]) -> Mapping[JobId, JobSpec]:
    """Returns the specs of some jobs; those of one array share one object, which bears the array's name."""
    holders: dict[JobId, JobId] = {}
    for some in chunks(wanted):
        for row in connection.execute(_HOLDERS, {"some": some}):
            holders[JobId(row.id)] = JobId(row.array_id or row.id)
    return _specs(connection, holders, {})


def specs_of(
    connection: sa.Connection, wanted: Iterable[JobRecord], known: Mapping[JobId, JobSpec]
) -> Mapping[JobId, JobSpec]:
    """Returns the specs of some jobs, as `specs` does.

    Args:
        known: What need not be read; of an array, by its first job.
    """
    return _specs(connection, {job.id: job.array or job.id for job in wanted}, known)


def _specs(
    connection: sa.Connection, holders: Mapping[JobId, JobId], known: Mapping[JobId, JobSpec]
) -> Mapping[JobId, JobSpec]:
    written = {holder: known[holder] for holder in holders.values() if holder in known}
    for some in chunks(dict.fromkeys(holder for holder in holders.values() if holder not in known)):
        for row in connection.execute(_SPECS, {"some": some}):
            long = len(row.spec) > SPEC_LETTERS_KEPT
            written[JobId(row.id)] = read_text(JobSpec, row.spec) if long else _spec(row.spec)
    return {job: written[holder] for job, holder in holders.items()}


@lru_cache(maxsize=SPECS_KEPT)
def _spec(text: str) -> JobSpec:
    """Returns what a text says; whoever looks at a list of jobs looks at the same ones again and again."""
    return read_text(JobSpec, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshJob:
    """A job as it was submitted.

    Args:
        record: None of an array's first job, which stands for all of them.
    """

    spec: JobSpec
    record: JobRecord | None


@final
class FreshJobs:
    """Jobs that this server took and its loop has not seen: what came by a call, and was written, is not read again.

    For each row that is read of SQLite a thread waits for its turn to run. Of an array its first job is here. Used by
    many threads.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._jobs: dict[JobId, FreshJob] = {}

    def put(self, made: Mapping[JobId, FreshJob]) -> None:
        """Keeps jobs as they stand in the store, until they are taken or there are too many."""
        with self._lock:
            self._jobs.update(made)
            if len(self._jobs) > FRESH_MAX:
                self._jobs.clear()

    def take(self, wanted: Iterable[JobId]) -> Mapping[JobId, FreshJob]:
        """Returns those of some jobs that are kept, and keeps them no longer."""
        with self._lock:
            return {job: self._jobs.pop(job) for job in wanted if job in self._jobs}


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshWrites:
    """What this server wrote for callers, and its loop takes without reading it."""

    jobs: FreshJobs = field(default_factory=FreshJobs)
    samples: FreshSamples = field(default_factory=FreshSamples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """What an attempt's lead last reported, beside what its record has."""

    ranks: tuple[RankStatus, ...] = ()
    at_risk: AtRisk | None = None


def reported(connection: sa.Connection, attempt: AttemptId) -> Reported:
    """Returns an attempt's ranks, and what is at risk, as its lead last reported them."""
    row = connection.execute(_REPORTED, {"attempt": attempt}).one()
    at_risk = None if row.at_risk is None else read_text(AtRisk, row.at_risk)
    return Reported(ranks=read_text(tuple[RankStatus, ...], row.ranks), at_risk=at_risk)


def jobs_by_id(connection: sa.Connection, wanted: Iterable[JobId]) -> Mapping[JobId, JobRecord]:
    """Returns those of some jobs that exist, in no particular order."""
    found = {}
    for some in chunks(wanted):
        found.update({job.id: job for job in JOB_ROWS.read(connection, _JOBS_BY_ID, some=some)})
    return found


def removed_jobs(connection: sa.Connection, wanted: Iterable[JobId]) -> Mapping[JobId, RemovedJob]:
    """Returns those of some jobs that were archived and removed, or are about to be."""
    found: dict[JobId, RemovedJob] = {}
    for some in chunks(wanted):
        query = sa.select(archived.c.job_id, archived.c.team, archived.c.state).where(archived.c.job_id.in_(some))
        for row in connection.execute(query):
            found[JobId(row.job_id)] = RemovedJob(team=TeamName(row.team), state=JobState(row.state))
    return found


def jobs_of_array(connection: sa.Connection, array: JobId) -> tuple[JobRecord, ...]:
    """Returns every job of an array, in order.

    Args:
        array: Its first job.
    """
    query = JOB_ROWS.select.where(jobs.c.array_id == array).order_by(jobs.c.array_index)
    return JOB_ROWS.read(connection, query)


def attempt_by_id(connection: sa.Connection, attempt: AttemptId) -> AttemptRecord | None:
    """Returns one attempt, or None."""
    return next(iter(ATTEMPT_ROWS.read(connection, _ATTEMPT, attempt=attempt)), None)


def attempts_of(connection: sa.Connection, wanted: Iterable[JobId]) -> Mapping[JobId, list[AttemptRecord]]:
    """Returns the attempts of some jobs, each job's in order of number."""
    found: dict[JobId, list[AttemptRecord]] = {}
    for some in chunks(wanted):
        for attempt in ATTEMPT_ROWS.read(connection, _ATTEMPTS_OF, some=some):
            found.setdefault(attempt.job, []).append(attempt)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedJob:
    """What is known at once of a job that is in the archive: whose it is, and how it ended."""

    team: TeamName
    state: JobState


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """What a job's attempts until now came to: the last one's number, and the furthest step, -1 for none."""

    number: int
    step: int


def befores(connection: sa.Connection, wanted: Iterable[JobId]) -> Mapping[JobId, Before]:
    """Returns what the attempts of some jobs came to; jobs without any are left out."""
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
        until: Number of the attempt that asks: a lead before may have told of steps.
    """
    query = sa.select(sa.func.max(attempts.c.step)).where(attempts.c.job_id == job, attempts.c.number <= until)
    found = connection.execute(query).scalar()
    return -1 if found is None else int(found)


def attempts_by_id(connection: sa.Connection, wanted: Iterable[AttemptId]) -> tuple[AttemptRecord, ...]:
    """Returns those of some attempts that exist, in no particular order."""
    return tuple(
        attempt for some in chunks(wanted) for attempt in ATTEMPT_ROWS.read(connection, _ATTEMPTS_BY_ID, some=some)
    )


def events_since(
    connection: sa.Connection,
    *,
    since: int,
    limit: int,
    job: JobId | None = None,
    seen: frozenset[TeamName] | None = None,
    newest: bool = False,
) -> tuple[Event, ...]:
    """Returns events after a sequence number, oldest first.

    Args:
        since: The last sequence the caller has seen; 0 for all.
        limit: The most to return.
        job: Only this job's, unless None.
        seen: Only of jobs of these teams, unless None: of the newest `LOOKED_AT_MAX` events of all.
        newest: Whether to leave out the oldest where there are more, and not the newest.
    """
    if seen is not None:
        since = max(since, newest_event(connection) - LOOKED_AT_MAX)
    given: dict[str, object] = {"since": since, "most": limit}
    given |= {"job": job} if job is not None else {}
    given |= {"some": sorted(seen)} if seen is not None else {}
    query = _events_after(of_job=job is not None, of_teams=seen is not None, newest=newest)
    return tuple(event_of(row) for row in connection.execute(query, given))[:: -1 if newest else 1]


@cache
def _events_after(*, of_job: bool, of_teams: bool, newest: bool) -> sa.Select[Any]:
    order = events.c.sequence.desc() if newest else events.c.sequence
    query = sa.select(events).where(events.c.sequence > sa.bindparam("since")).order_by(order)
    if of_job:
        query = query.where(events.c.job_id == sa.bindparam("job"))
    if of_teams:
        # Not joined: databases would begin with the teams' jobs, and look at all of them.
        team = sa.select(jobs.c.team).where(jobs.c.id == events.c.job_id).scalar_subquery()
        query = query.where(team.in_(_SOME))
    return query.limit(sa.bindparam("most", type_=sa.Integer))


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamEvent:
    """An event, and whose job it is of; None for one that is of no job, or of a job that is gone."""

    event: Event
    team: TeamName | None


def events_of_teams(connection: sa.Connection, *, since: int | None, limit: int) -> tuple[TeamEvent, ...]:
    """Returns events after a sequence number, oldest first, each with whose it is.

    Args:
        since: The last sequence that is known; None for the newest there are.
        limit: The most to return.
    """
    team = sa.select(jobs.c.team).where(jobs.c.id == events.c.job_id).scalar_subquery().label("team")
    query = sa.select(events, team).limit(limit)
    if since is None:
        rows = connection.execute(query.order_by(events.c.sequence.desc())).all()[::-1]
    else:
        rows = connection.execute(query.where(events.c.sequence > since).order_by(events.c.sequence)).all()
    return tuple(TeamEvent(event=event_of(row), team=row.team and TeamName(row.team)) for row in rows)


def teams_of_jobs(connection: sa.Connection, wanted: Iterable[JobId]) -> Mapping[JobId, TeamName]:
    """Returns whose some jobs are; those that are gone are left out."""
    return {
        JobId(row.id): TeamName(row.team)
        for some in chunks(sorted(wanted))
        for row in connection.execute(sa.select(jobs.c.id, jobs.c.team).where(jobs.c.id.in_(some)))
    }


def newest_event(connection: sa.Connection) -> int:
    """Returns the sequence of the newest event, 0 before the first."""
    return connection.execute(_NEWEST_EVENT).scalar_one() or 0


def looked_at(connection: sa.Connection, name: str, begin: Callable[[], int]) -> int:
    """Returns how far somebody has looked at what grows: events, states of nodes. It is kept as an epoch in `leases`.

    Args:
        connection: From `Store.write`.
        name: Who looks, and at what.
        begin: Returns where to begin where nobody has looked before.
    """
    known = connection.execute(sa.select(leases.c.epoch).where(leases.c.name == name)).scalar()
    if known is None:
        known = begin()
        connection.execute(sa.insert(leases).values(name=name, holder="", epoch=known, expires_s=0.0))
    return known


def look_on(connection: sa.Connection, name: str, seen: int) -> None:
    """Notes how far somebody has looked who did before.

    Args:
        connection: From `Store.write`.
        name: See `looked_at`.
        seen: The last that was looked at.
    """
    connection.execute(sa.update(leases).where(leases.c.name == name).values(epoch=seen))


BETWEEN = "\x1e"  # No JSON has it.
_TENANTS = sa.select(sa.func.aggregate_strings(teams.c.facts, BETWEEN))


def tenants(connection: sa.Connection) -> tuple[Team, ...]:
    """Returns every team of the tenant tree, in order of name.

    In one row: every call asks for it, and for each row a thread that is not alone waits for its turn to run.
    """
    return _tree(connection.execute(_TENANTS).scalar() or "")


@lru_cache(maxsize=4)
def _tree(facts: str) -> tuple[Team, ...]:
    """Returns a tree, which seldom changes."""
    found = (read_text(Team, one) for one in facts.split(BETWEEN) if one)
    return tuple(sorted(found, key=lambda team: team.name))
