"""Has spans told as they end: a fold over events, from where the last leader had come to.

Nothing of it is kept but one number in the store, the last event that was looked at: what was not taken yet is read
from the events once more, so the queue is the store, and another leader goes on where this one died. What was taken
and not written down is told again, by the same ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import final

import sqlalchemy as sa

from mainspring.control.service.traces.spans import (
    ENDING,
    UNTOLD,
    JobSpan,
    SpanLink,
    spans_of_attempt,
    spans_of_job,
)
from mainspring.control.store.records import (
    attempts_by_id,
    chunks,
    event_of,
    jobs_by_id,
    look_on,
    looked_at,
    newest_event,
    specs,
)
from mainspring.control.store.schema import events
from mainspring.control.store.store import Store
from mainspring.domain.answers import Event
from mainspring.domain.errors import InvalidInput
from mainspring.domain.ids import AttemptId, JobId
from mainspring.domain.job import JobSpec, checkpoint_named
from mainspring.domain.ports import Clock
from mainspring.domain.wire.events.jobs import JobMovedEvent, JobSubmittedEvent
from mainspring.domain.wire.telemetry import SpanPlace, TraceRules, place_from, place_of

LOOKED_AT_MAX = 20_000  # Events passed in one step, so that no read of the store is long.
TAKEN_MAX = 200  # Of them, those that may end spans.
EVENTS_MAX = 20_000  # Of a hundred jobs' own: what is older is in no span.
JOBS_MAX = 100  # Whose events are read at once.
SENT_MAX = 256  # Spans in one request: a megabyte where texts are long, of the four that collectors take.
_UNWRITTEN_MAX = 1_000  # Events of no interest that another leader may look at once more.
_CURSOR = "traces"  # See `looked_at`.
_SUBMITTED = sa.select(events).where(
    events.c.job_id.in_(sa.bindparam("some", expanding=True)), events.c.kind == JobSubmittedEvent.kind
)
Sender = Callable[[Sequence[JobSpan]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """What may have ended in some events: jobs and attempts, between two sequences."""

    since: int
    until: int
    jobs: frozenset[JobId]
    attempts: frozenset[AttemptId]


@final
class Traces:
    """The spans of one controller's store. Used by one thread.

    Args:
        send: Sends spans, and returns once they were taken; raises `Unavailable` where it is to be tried again, and
            `InvalidInput` where they are never taken. Bounded in time.
        write: Begins a transaction of the leader's.
        since_s: What ended before is told to nobody, where nobody has looked before.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        rules: TraceRules,
        send: Sender,
        write: Callable[[], AbstractContextManager[sa.Connection]],
        *,
        since_s: float,
    ) -> None:
        self._since_s = since_s
        self._store = store
        self._clock = clock
        self._rules = rules
        self._send = send
        self._write = write
        self._seen: int | None = None
        self._written = 0
        self.refused = 0
        """Spans that were never taken."""

    def forget(self) -> None:
        """Reads anew how far events were looked at: another leader may have gone on."""
        self._seen = None

    def step(self) -> bool:
        """Has what ended in the next events told; returns whether there is more to look at already.

        Raises:
            Conflict: Another controller leads.
            Unavailable: The store does not answer, or spans are not taken now.
        """
        seen = self._begin() if self._seen is None else self._seen
        with self._store.read() as connection:
            newest = newest_event(connection)
            if newest <= seen:
                self._seen = seen if newest == seen else None  # A store that went back in time.
                return False
            until = min(newest, seen + LOOKED_AT_MAX)
            ended = self._ended(connection, seen, until)
            found = _spans(connection, ended)
        for begin in range(0, len(found), SENT_MAX):
            self._tell(found[begin : begin + SENT_MAX])
        if found or ended.until - self._written >= _UNWRITTEN_MAX:
            with self._write() as connection:
                look_on(connection, _CURSOR, ended.until)
            self._written = ended.until
        self._seen = ended.until
        return ended.until < newest

    def _begin(self) -> int:
        """Returns how far events were looked at."""
        with self._write() as connection:
            self._written = looked_at(connection, _CURSOR, lambda: self._first(connection))
        return self._written

    def _first(self, connection: sa.Connection) -> int:
        """Returns where to begin where nobody has looked before."""
        newest = newest_event(connection)
        young = (events.c.sequence > newest - LOOKED_AT_MAX, events.c.time_s >= self._since_s)
        first = connection.execute(sa.select(sa.func.min(events.c.sequence)).where(*young)).scalar()
        return newest if first is None else int(first) - 1

    def _ended(self, connection: sa.Connection, seen: int, until: int) -> _Ended:
        young = events.c.time_s >= self._clock.now_s() - 3_600 * self._rules.hours
        ending = events.c.kind.in_([told.kind for told in ENDING])
        wanted = (events.c.sequence > seen, events.c.sequence <= until, young, ending, events.c.job_id.is_not(None))
        query = sa.select(events.c.sequence, events.c.kind, events.c.job_id, events.c.attempt_id).where(*wanted)
        rows = connection.execute(query.order_by(events.c.sequence).limit(TAKEN_MAX)).all()
        return _Ended(
            since=seen,
            until=rows[-1].sequence if len(rows) == TAKEN_MAX else until,
            jobs=frozenset(JobId(row.job_id) for row in rows if row.kind == JobMovedEvent.kind),
            attempts=frozenset(AttemptId(row.attempt_id) for row in rows if row.attempt_id),
        )

    def _tell(self, spans: Sequence[JobSpan]) -> None:
        """Sends spans; of those that are never taken, all that are when they come without the others."""
        try:
            self._send(spans)
        except InvalidInput:
            if len(spans) == 1:
                self.refused += 1
                return
            half = len(spans) // 2
            self._tell(spans[:half])
            self._tell(spans[half:])


def _spans(connection: sa.Connection, ended: _Ended) -> list[JobSpan]:
    """Returns the spans that ended in some events, in the order in which they did; of jobs that are no more, none."""
    attempts = {one.id: one for one in attempts_by_id(connection, sorted(ended.attempts))}
    of_jobs = sorted(ended.jobs | {one.job for one in attempts.values()})
    found: list[JobSpan] = []
    for some in chunks(of_jobs, JOBS_MAX):
        records, asked, parents = jobs_by_id(connection, some), specs(connection, some), _parents(connection, some)
        told = _events(connection, some, ended)
        links = _links(connection, {job: asked[job] for job in some if job in ended.jobs and job in asked})
        for job in some:
            parent = parents.get(job)
            if job not in records or (parent is not None and not parent.sampled):
                continue
            own = [attempts[one] for one in told.get(job, {}) if one in attempts]
            for attempt in own:
                about = told[job][attempt.id]
                found += spans_of_attempt(attempt, about, parent, team=records[job].team)
            if job in ended.jobs:
                about = told.get(job, {}).get(None, [])
                found += spans_of_job(records[job], asked[job], about, parent, links.get(job, ()))
    now = (span for span in found if ended.since < span.closed_by <= ended.until)
    return sorted(now, key=lambda span: (span.closed_by, -span.begun_s))  # Of those that end at once, the inner first.


def _events(
    connection: sa.Connection, of: Sequence[JobId], ended: _Ended
) -> Mapping[JobId, Mapping[AttemptId | None, list[Event]]]:
    """Returns the newest events of some jobs that spans are made of, by attempt, in order."""
    own = sa.or_(events.c.attempt_id.is_(None), events.c.attempt_id.in_(sorted(ended.attempts)))
    wanted = (events.c.job_id.in_(of), events.c.sequence <= ended.until, own)
    query = sa.select(events).where(*wanted, events.c.kind.not_in([told.kind for told in UNTOLD]))
    rows = connection.execute(query.order_by(events.c.sequence.desc()).limit(EVENTS_MAX)).all()
    found: dict[JobId, dict[AttemptId | None, list[Event]]] = {}
    for row in reversed(rows):
        event = event_of(row)
        assert event.job is not None
        found.setdefault(event.job, {}).setdefault(event.attempt, []).append(event)
    return found


def _parents(connection: sa.Connection, of: Iterable[JobId]) -> dict[JobId, SpanPlace | None]:
    """Returns what jobs were submitted under, of those that the store has."""
    found: dict[JobId, SpanPlace | None] = {}
    for some in chunks(of):
        for event in map(event_of, connection.execute(_SUBMITTED, {"some": some})):
            if event.job is not None:
                found[event.job] = place_from(str(event.detail.get("traceparent", "")))
    return found


def parent_of(connection: sa.Connection, job: JobId) -> SpanPlace | None:
    """Returns what a job was submitted under, None for nothing."""
    return _parents(connection, [job]).get(job)


def trace_of(connection: sa.Connection, job: JobId, rules: TraceRules) -> str:
    """Returns the id of the trace that a job is in, "" for none."""
    parent = parent_of(connection, job)
    if parent is None:
        return place_of(job, parent=None).trace if rules.endpoint else ""
    return parent.trace if parent.sampled else ""


def _links(connection: sa.Connection, of: Mapping[JobId, JobSpec]) -> Mapping[JobId, Sequence[SpanLink]]:
    """Returns links to what jobs come after, and to whose checkpoint they begin from, as far as the store has them."""
    leans = {job: [(JobId(each), "after") for each in spec.after] for job, spec in of.items()}
    for job, spec in of.items():
        if spec.begins_from:
            leans[job].append((JobId(checkpoint_named(spec.begins_from)[0]), "begins_from"))
    parents = _parents(connection, sorted({other for own in leans.values() for other, _ in own}))
    return {
        job: [
            SpanLink(place=place_of(other, parent=parents[other]), facts={"mainspring.link": how})
            for other, how in own
            if other in parents
        ]
        for job, own in leans.items()
    }
