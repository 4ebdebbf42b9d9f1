"""Has teams told: a fold over events that queues notices, and tries that end with one delivered or given up.

How far events were looked at and what is queued are in the store, written in one transaction by the leader alone, so
that another leader goes on where this one died. A notice that was delivered is sent again at most once, by whoever
finds it still queued; it has the same id then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import final

import sqlalchemy as sa

from mainspring.control.service.notices.letters import (
    TOLD,
    Letter,
    letter_of,
    notice_of_job,
    notice_of_team,
    occasions_of,
    plain,
)
from mainspring.control.service.notices.places import known_place, place_of
from mainspring.control.store.ledger import StateWriter
from mainspring.control.store.records import (
    event_of,
    jobs_by_id,
    look_on,
    looked_at,
    newest_event,
    read_text,
    specs,
    text_of,
)
from mainspring.control.store.schema import events, notices
from mainspring.control.store.secrets import SecretKeys
from mainspring.control.store.store import Store
from mainspring.domain.answers import Event, Notice
from mainspring.domain.errors import InvalidInput, MainspringError, NotFound
from mainspring.domain.ids import JobId, TeamName
from mainspring.domain.ports import Backoff, Clock
from mainspring.domain.team import NoticeRules
from mainspring.domain.wire.events.jobs import HoldPlacedEvent, HoldReleasedEvent, NoticeUndeliveredEvent

AGAIN = Backoff(first_s=2.0, cap_s=600.0)
WAITING_MAX = 100  # Of one team: whoever could not be told so much will look.
TAKEN_MAX = 500  # Events looked at in one step.
SENT_MAX = 20  # Of one team in one step, lest others wait.
REASON_LENGTH_MAX = 200
_UNWRITTEN_MAX = 1_000  # Events of no interest that another leader may look at once more.
_CURSOR = "notices"  # See `looked_at`.
Courier = Callable[[Letter], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    """A row of the queue."""

    sequence: int
    notice: Notice
    tries: int


@final
class Notices:
    """The notices of one controller's store. Used by one thread.

    Args:
        keys: What the secrets of teams are kept under.
        courier: Sends one, and returns once it was taken; raises a `MainspringError`, whose `got` says why it was not.
            Bounded in time and in what it reads.
        write: Begins a transaction of the leader's.
    """

    def __init__(
        self,
        store: Store,
        keys: SecretKeys,
        clock: Clock,
        rules: NoticeRules,
        courier: Courier,
        write: Callable[[], AbstractContextManager[sa.Connection]],
    ) -> None:
        self._store = store
        self._keys = keys
        self._clock = clock
        self._rules = rules
        self._courier = courier
        self._write = write
        self._seen: int | None = None
        self._written = 0

    def forget(self) -> None:
        """Reads anew how far events were looked at: another leader may have gone on."""
        self._seen = None

    def step(self) -> bool:
        """Queues what events ask for and sends what is due; returns whether there is more to look at already.

        Raises:
            Conflict: Another controller leads.
            Unavailable: The store does not answer.
        """
        more = self._take_in()
        with self._store.read() as connection:
            due = sa.select(notices.c.team).where(notices.c.due_s <= self._clock.now_s()).distinct()
            teams = sorted(connection.execute(due).scalars())
        for team in teams:
            self._send(TeamName(team))
        return more

    # ---------------------------------------------------------------- events

    def _take_in(self) -> bool:
        seen = self._begin() if self._seen is None else self._seen
        with self._store.read() as connection:
            newest = newest_event(connection)
            if newest <= seen:
                self._seen = seen if newest == seen else None  # A store that went back in time.
                return False
            kinds = [told.kind for told in TOLD]
            query = sa.select(events).where(events.c.sequence > seen, events.c.kind.in_(kinds))
            rows = connection.execute(query.order_by(events.c.sequence).limit(TAKEN_MAX)).all()
            found = self._wanted(connection, [event_of(row) for row in rows])
        more = len(rows) == TAKEN_MAX
        seen = rows[-1].sequence if more else newest
        if found or seen - self._written >= _UNWRITTEN_MAX:
            with self._write() as connection:
                self._queue(connection, found)
                look_on(connection, _CURSOR, seen)
            self._written = seen
        self._seen = seen
        return more

    def _begin(self) -> int:
        """Returns how far events were looked at; what came before anybody looked is told to nobody."""
        with self._write() as connection:
            self._written = looked_at(connection, _CURSOR, lambda: newest_event(connection))
        return self._written

    def _wanted(self, connection: sa.Connection, found: Sequence[Event]) -> Mapping[int, Notice]:
        """Returns the notices that are to be sent of events, by their sequence."""
        since_s = self._clock.now_s() - 3_600 * self._rules.hours
        young = [event for event in found if event.time_s >= since_s]
        of_jobs = {event.job for event in young if event.job is not None and occasions_of(event.told)}
        jobs, asked = jobs_by_id(connection, of_jobs), specs(connection, of_jobs)
        wanted: dict[int, Notice] = {}
        for event in young:
            told = event.told
            if isinstance(told, HoldPlacedEvent | HoldReleasedEvent) and told.team:
                wanted[event.sequence] = notice_of_team(event, told.team)
            elif event.job and event.job in jobs and set(asked[event.job].notify) & set(occasions_of(told)):
                wanted[event.sequence] = notice_of_job(event, jobs[event.job])
        places = {team: known_place(connection, team) for team in {notice.team for notice in wanted.values()}}
        since = {team: place.made_s if place.version == 1 else 0.0 for team, place in places.items() if place}
        return {
            sequence: notice
            for sequence, notice in wanted.items()
            if notice.team in since and notice.time_s >= since[notice.team]
        }

    def _queue(self, connection: sa.Connection, found: Mapping[int, Notice]) -> None:
        now_s = self._clock.now_s()
        counted = sa.select(notices.c.team, sa.func.count()).group_by(notices.c.team)
        waiting = Counter({row.team: row[1] for row in connection.execute(counted)})
        beyond: dict[TeamName, list[Notice]] = {}
        for sequence, notice in found.items():
            if waiting[notice.team] >= WAITING_MAX:
                beyond.setdefault(notice.team, []).append(notice)
                continue
            waiting[notice.team] += 1
            row = {"sequence": sequence, "job_id": notice.job, "team": notice.team, "body": text_of(notice)}
            connection.execute(sa.insert(notices).values(**row, tries=0, due_s=now_s))
        for team, left in beyond.items():
            self._give_up(connection, team, left[0].job, reason=f"{WAITING_MAX} wait already", count=len(left))

    # ---------------------------------------------------------------- deliveries

    def _send(self, team: TeamName) -> None:
        """Sends what is due of one team, in order, until the first that is not taken."""
        with self._store.read() as connection:
            due = sa.select(notices).where(notices.c.team == team, notices.c.due_s <= self._clock.now_s())
            rows = connection.execute(due.order_by(notices.c.sequence).limit(SENT_MAX)).all()
        for row in rows:
            one = _Waiting(sequence=row.sequence, notice=read_text(Notice, row.body), tries=row.tries)
            if not self._send_one(one):
                return

    def _send_one(self, one: _Waiting) -> bool:
        host = ""
        try:
            with self._store.read() as connection:
                place = place_of(connection, self._keys, one.notice.team, self._rules)
            if place is not None:
                host = place.target.host
                self._courier(letter_of(one.notice, place, self._clock.now_s()))
        except (InvalidInput, NotFound) as error:  # It is no place any more; a courier raises neither.
            return self._failed(one, error.on, error.got or "a host that is not allowed any more", last=True)
        except MainspringError as error:
            return self._failed(one, host, error.got, last=False)
        with self._write() as connection:
            connection.execute(sa.delete(notices).where(notices.c.sequence == one.sequence))
        return True

    def _failed(self, one: _Waiting, host: str, reason: str, *, last: bool) -> bool:
        """Puts a notice off, and with it what else waits for its team, or gives it up."""
        now_s, tries = self._clock.now_s(), one.tries + 1
        due_s = now_s + AGAIN.wait_s(tries)
        with self._write() as connection:
            if last or now_s >= one.notice.time_s + 3_600 * self._rules.hours:
                connection.execute(sa.delete(notices).where(notices.c.sequence == one.sequence))
                self._give_up(connection, one.notice.team, one.notice.job, reason=reason, host=host)
            else:
                own = sa.update(notices).where(notices.c.sequence == one.sequence)
                connection.execute(own.values(tries=tries))
                others = sa.update(notices).where(notices.c.team == one.notice.team, notices.c.due_s < due_s)
                connection.execute(others.values(due_s=due_s))
        return False

    def _give_up(
        self,
        connection: sa.Connection,
        team: TeamName,
        job: JobId | None,
        *,
        reason: str,
        host: str = "",
        count: int = 1,
    ) -> None:
        said = plain(reason)[:REASON_LENGTH_MAX]
        told = NoticeUndeliveredEvent(team=team, host=host, reason=said, notices=count)
        StateWriter(connection, self._clock.now_s()).event(told, job=job)
