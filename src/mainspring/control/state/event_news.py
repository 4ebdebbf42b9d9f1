"""What events since the last look say of jobs and attempts, so that only what changed is read again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf
from typing import final

import sqlalchemy as sa

from mainspring.control.store.evidence import Evidence, evidence_of
from mainspring.control.store.records import chunks, event_of, read_text
from mainspring.control.store.schema import EVIDENCE, events
from mainspring.domain.ids import AttemptId, JobId
from mainspring.domain.wire.events import EVENTS
from mainspring.domain.wire.events.attempts import AttemptResizedEvent
from mainspring.domain.wire.events.jobs import JobSubmittedEvent
from mainspring.domain.wire.events.marks import Renews

_RENEWS = {event.kind: event.renews for event in EVENTS if event.renews is not None}
_CHANGES = [kind for kind in _RENEWS if kind != JobSubmittedEvent.kind]
_BETWEEN = " "  # No id has it.
_TOGETHER = sa.func.aggregate_strings(events.c.job_id, _BETWEEN)
_DURABLE = [kind for kind, renews in _RENEWS.items() if renews is Renews.CHECKPOINT]
_HOLDS = [kind for kind, renews in _RENEWS.items() if renews is Renews.HOLDS]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTimes:
    """When an attempt last became durable, was resized, and was resized for another job's sake."""

    durable_s: float | None = None
    resized_s: float = -inf
    shrunk_s: float = -inf


@dataclass(frozen=True, slots=True, kw_only=True)
class EventNews:
    """The jobs and the attempts that events since the last look speak of, and what they say of nodes.

    `submitted` are the jobs that were submitted; of those not among `jobs` too nothing was said since. `holds` tells
    that what people hold of teams, clusters and nodes is another.
    """

    submitted: tuple[JobId, ...]
    jobs: dict[JobId, None]
    attempts: dict[AttemptId, None]
    evidence: list[Evidence]
    holds: bool = False


_NEVER = EventTimes()


@final
class EventFollower:
    """Reads events once each, and remembers when some of them were."""

    def __init__(self) -> None:
        self._seen = -1
        self._times: dict[AttemptId, EventTimes] = {}

    @property
    def started(self) -> bool:
        """Returns whether it follows events yet."""
        return self._seen >= 0

    def times(self, attempt: AttemptId) -> EventTimes:
        """Returns when some things last happened to an attempt."""
        return self._times.get(attempt, _NEVER)

    def forget(self, attempt: AttemptId) -> None:
        """Forgets an attempt that is over."""
        self._times.pop(attempt, None)

    def start(self, connection: sa.Connection, jobs: Iterable[JobId], newest: int) -> None:
        """Reads what happened to live attempts until now.

        Args:
            jobs: The jobs that have one.
            newest: The newest event's sequence number.
        """
        for some in chunks(dict.fromkeys(jobs)):
            own = events.c.job_id.in_(some)
            query = sa.select(events.c.attempt_id, sa.func.max(events.c.time_s)).where(own, events.c.kind.in_(_DURABLE))
            for attempt, time_s in connection.execute(query.group_by(events.c.attempt_id)):
                self._times[AttemptId(attempt)] = EventTimes(durable_s=time_s)
            self._take_resizes(connection, own)
        self._seen = newest

    def follow(self, connection: sa.Connection, newest: int) -> EventNews:
        """Returns what happened since the last time.

        Args:
            newest: The newest event's sequence number.
        """
        news = EventNews(submitted=(), jobs={}, attempts={}, evidence=[])
        if newest <= self._seen:
            return news
        since = events.c.sequence > self._seen
        # In one row, as of a batch there are thousands; for each that is read of SQLite a thread waits for its turn.
        of_new = sa.select(_TOGETHER).where(since, events.c.kind == JobSubmittedEvent.kind)
        submitted = connection.execute(of_new).scalar() or ""
        news = replace(news, submitted=tuple(JobId(job) for job in submitted.split(_BETWEEN) if job))
        query = sa.select(events.c.kind, events.c.job_id, events.c.attempt_id, events.c.time_s)
        resized = judged = False
        for kind, job, attempt, time_s in connection.execute(
            query.where(since, events.c.kind.in_(_CHANGES)).order_by(events.c.sequence)
        ):
            match _RENEWS[kind]:
                case Renews.JOB:
                    news.jobs[JobId(job)] = None
                case Renews.ATTEMPT:
                    news.attempts[AttemptId(attempt)] = None
                    resized |= kind == AttemptResizedEvent.kind
                case Renews.CHECKPOINT:
                    news.attempts[AttemptId(attempt)] = None
                    self._times[AttemptId(attempt)] = replace(self.times(AttemptId(attempt)), durable_s=time_s)
                case Renews.NODE:
                    judged = True
                case Renews.HOLDS:
                    news = replace(news, holds=True)
        if resized:
            self._take_resizes(connection, since)
        if judged:
            of_nodes = sa.select(events).where(since, EVIDENCE).order_by(events.c.sequence)
            news.evidence.extend(evidence_of(event_of(row)) for row in connection.execute(of_nodes))
        self._seen = newest
        return news

    def holds_changed(self, connection: sa.Connection) -> bool:
        """Returns whether what people hold has become another since the last time; the next one tells so too."""
        later = (events.c.sequence > self._seen, events.c.kind.in_(_HOLDS))
        return connection.execute(sa.select(events.c.sequence).where(*later).limit(1)).first() is not None

    def _take_resizes(self, connection: sa.Connection, which: sa.ColumnElement[bool]) -> None:
        query = sa.select(events.c.attempt_id, events.c.time_s, events.c.detail)
        resized: dict[AttemptId, float] = {}
        shrunk: dict[AttemptId, float] = {}
        for name, time_s, detail in connection.execute(query.where(which, events.c.kind == AttemptResizedEvent.kind)):
            attempt = AttemptId(name)
            resized[attempt] = max(time_s, resized.get(attempt, -inf))
            if read_text(AttemptResizedEvent, detail).for_job is not None:
                shrunk[attempt] = max(time_s, shrunk.get(attempt, -inf))
        for attempt, at_s in resized.items():
            times = self.times(attempt)
            self._times[attempt] = replace(times, resized_s=at_s, shrunk_s=shrunk.get(attempt, times.shrunk_s))
