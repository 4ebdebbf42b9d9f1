"""Writes a plan: attempts, stops, events, and why each job is where it is or waits, as far as that has changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import final

import sqlalchemy as sa

from mainspring.control.loop.granting import NewAllocation, NewAttempt, grant, resize
from mainspring.control.state.active_state import ActiveState
from mainspring.control.state.fleet import FleetView, Holds
from mainspring.control.store.holdings import (
    KEPT,
    AllocationChange,
    AllocationRecord,
    change,
    live_allocations_of,
    parts,
    split,
)
from mainspring.control.store.ledger import StateWriter, StopCause, clipped
from mainspring.control.store.records import AttemptRecord, JobRecord, attempt_by_id, chunks, jobs_by_id, text_of
from mainspring.control.store.rows import add_rows
from mainspring.control.store.schema import ID_LENGTH_MAX, WAIT_BYTES_MAX, plans, whys
from mainspring.control.store.settings import Settings
from mainspring.domain.ids import AllocationId, AttemptId, ChipName, ClusterName, JobId, draw_id
from mainspring.domain.job import ANY_CHIP, MILLI
from mainspring.domain.life import AttemptState, JobState
from mainspring.domain.plan import Candidate, Evict, Grant, Limit, Move, Plan, Provision, Resize, Start, Wait
from mainspring.domain.ports import Dice
from mainspring.domain.wire.events.attempts import AttemptResizedEvent
from mainspring.domain.wire.events.jobs import MoveWantedEvent, ProvisionWantedEvent, StartPromisedEvent

_SLACK_S = 60.0  # An expected start that moved by less, or by less than a tenth of the wait, is not told again.
_SLACK = 0.1
_TOLD_AT_ONCE = 100  # Jobs: written in some milliseconds, for which whoever submits waits.
_LIVE = (AttemptState.GRANTED, AttemptState.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Words:
    """What jobs of one class are told."""

    limit: Limit | None
    where: str
    short_by: float
    summary: str
    considered: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Why:
    words: _Words
    start_s: float | None = None
    exact: bool = False

    def tells(self, words: _Words, start_s: float | None, *, exact: bool, now_s: float) -> bool:
        """Returns whether who was told this need not be told that."""
        if self.words is not words or self.exact is not exact:
            return False
        if self.start_s is None or start_s is None:
            return self.start_s is start_s
        return abs(self.start_s - start_s) <= max(_SLACK_S, _SLACK * (start_s - now_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldWaits:
    """What jobs are told of why they wait.

    Args:
        changed: What is new, first in the queue first.
        every: What each of them has been told once that is written.
        words: Of the plan; those that were told before are the same objects.
    """

    changed: Mapping[JobId, _Why]
    every: dict[JobId, _Why]
    words: dict[_Words, _Words]


@final
class Committer:
    """Writes plans, one after the other.

    Moves of data and orders of nodes are events, written when they are first wanted: nobody here carries out the moves,
    and `NodeOrders` gives the orders. A resize adds allocations to its attempt and ends others, while it goes on. Where
    that cannot be (a part of an allocation would have to end, or the one with the lead), the attempt ends, saved, and
    the job is queued to start again at the other size.

    Args:
        mirror: What has not ended.
        fleet: What the engines said.
    """

    def __init__(self, mirror: ActiveState, fleet: FleetView, settings: Settings, dice: Dice) -> None:
        self._mirror = mirror
        self._fleet = fleet
        self._settings = settings
        self._dice = dice
        self._told: dict[JobId, _Why] = {}
        self._words: dict[_Words, _Words] = {}
        self._wanted: Collection[Move | Provision] = ()

    def commit(
        self,
        connection: sa.Connection,
        decided: Plan,
        waits: ToldWaits,
        *,
        answering: Iterable[ClusterName],
        now_s: float,
    ) -> None:
        """Writes a plan. What has moved on since the plan was made is passed over; the next plan sees it.

        Args:
            connection: From `Store.write`.
            waits: What `compare` says of it.
            answering: Clusters whose engines answer: elsewhere nothing can be made to end.
        """
        ledger = StateWriter(connection, now_s)
        # The words on nodes to order tell how long the job has waited; they are no other wish.
        wanted: dict[Move | Provision, Move | Provision] = {move: move for move in decided.moves}
        wanted |= {replace(order, reason=""): order for order in decided.provisions}
        fresh = [one for wish, one in wanted.items() if wish not in self._wanted]
        reached = frozenset(answering)
        planned: tuple[Evict | Resize, ...] = (*decided.evicts, *decided.resizes)
        ends = [end for end in planned if self._cluster_of(end.attempt) in reached]
        if not (decided.starts or ends or fresh or waits.changed):
            return
        connection.execute(
            sa.insert(plans).values(
                number=decided.number,
                made_s=now_s,
                starts=len(decided.starts),
                evicts=len(decided.evicts),
                waits=sum(len(wait.jobs) for wait in decided.waits),
            )
        )
        self._mirror.plan_number = decided.number
        starts = decided.starts[: self._settings.starts_max]
        closed = self._mirror.holds_by_now(connection) if starts or ends else Holds()
        for end in ends:
            self._end(ledger, end, closed)
        for one in fresh:
            _tell_wanted(ledger, one)
        self._wanted = wanted.keys()
        jobs = jobs_by_id(connection, [start.job for start in starts])
        told: dict[JobId, _Why] = {}
        granted: list[NewAttempt] = []
        for start in starts:
            if closed.starting(self._mirror.with_those_above(jobs[start.job].team), start.grants) is not None:
                continue  # A call that was answered is kept, though a plan was being made.
            if jobs[start.job].state is JobState.QUEUED and not _is_paused(jobs[start.job]):
                new = self._new_attempt(jobs[start.job], start, decided.number)
                granted.append(new)
                told[start.job] = _Why(words=_placed(start, new))
        grant(ledger, granted)
        _write_whys(ledger, told, decided.number, waiting=())

    def tell(
        self,
        write: Callable[[], AbstractContextManager[sa.Connection]],
        decided: Plan,
        waits: ToldWaits,
        *,
        now_s: float,
    ) -> None:
        """Tells jobs why they wait, some at a time: whoever submits waits for few of them. What fails half-way is told
        again by the next plan.

        Args:
            write: Begins a transaction, of the one who leads.
            waits: As given to `commit`, which has written the plan.
        """
        for some in chunks(waits.changed, _TOLD_AT_ONCE):
            with write() as connection:
                ledger = StateWriter(connection, now_s)
                _write_whys(ledger, {job: waits.changed[job] for job in some}, decided.number, waiting=some)
        self._told, self._words = waits.every, waits.words

    def compare(self, decided: Plan, now_s: float) -> ToldWaits:
        """Returns what jobs are to be told, at most `whys_max` of them.

        Called before anything is written: nobody who writes shall wait while a hundred thousand jobs are gone through.
        """
        changed: dict[JobId, _Why] = {}
        every: dict[JobId, _Why] = {}
        words: dict[_Words, _Words] = {}
        for wait in decided.waits:
            new = _words_of(wait)
            same = words[new] = self._words.get(new, new)
            for place, (job, start_s) in enumerate(zip(wait.jobs, wait.start_s, strict=True)):
                exact = place < wait.exact
                before = self._told.get(job)
                if before is not None:
                    every[job] = before
                    if before.tells(same, start_s, exact=exact, now_s=now_s):
                        continue
                if len(changed) < self._settings.whys_max:
                    every[job] = changed[job] = _Why(words=same, start_s=start_s, exact=exact)
        return ToldWaits(changed=changed, every=every, words=words)

    def _cluster_of(self, attempt: AttemptId) -> ClusterName | None:
        known = self._mirror.attempts.get(attempt)
        return None if known is None else known.cluster

    def _end(self, ledger: StateWriter, end: Evict | Resize, closed: Holds) -> None:
        attempt = attempt_by_id(ledger.connection, end.attempt)
        if attempt is None or attempt.state not in _LIVE:
            return
        match end:
            case Evict():
                ledger.stop_attempt(attempt, StopCause.EVICT, end.reason, for_job=end.for_job, limit=end.cause)
            case Resize():
                self._resize(ledger, attempt, end, closed)

    def _resize(self, ledger: StateWriter, attempt: AttemptRecord, wanted: Resize, closed: Holds) -> None:
        own = {one.id: one for one in live_allocations_of(ledger.connection, [attempt.id]) if one.state in KEPT}
        kept = sorted(own.values(), key=lambda one: one.place)
        held = parts(ledger.connection, [one.id for one in kept])
        of_role = {one.id: held[one.id] for one in kept if held[one.id].role == wanted.role}
        how = change(of_role, wanted.grant) if of_role else None
        if how is None or any(_leads(own[allocation], attempt) for allocation in how.dropped):
            reason = f"runs again with {wanted.replicas} replicas of {wanted.role}: {wanted.reason}"
            ledger.stop_attempt(attempt, StopCause.RESIZE, reason, for_job=wanted.for_job)
        elif how != AllocationChange(dropped=(), added=()) and closed.starting((), how.added) is None:
            roles = {role.name: role.options for role in self._mirror.specs[attempt.job].roles}
            resize(
                ledger,
                attempt,
                dropped=[own[allocation] for allocation in how.dropped],
                added=[self._new_allocation(part, roles[part.role][part.option].chip) for part in how.added],
                told=AttemptResizedEvent(
                    role=wanted.role, replicas=wanted.replicas, reason=wanted.reason, for_job=wanted.for_job
                ),
            )

    def _new_attempt(self, job: JobRecord, start: Start, number: int) -> NewAttempt:
        roles = {role.name: role.options for role in self._mirror.specs[start.job].roles}
        options = [roles[each.role][each.option] for each in start.grants]
        return NewAttempt(
            id=AttemptId(draw_id("attempt", self._dice)),
            job=job,
            grants=start.grants,
            allocations=tuple(
                self._new_allocation(part, option.chip)
                for each, option in zip(start.grants, options, strict=True)
                for part in split(each, option)
            ),
            simulated=self._fleet.seen()[start.grants[0].cluster].inventory.simulated,
            plan=number,
        )

    def _new_allocation(self, part: Grant, asked: ChipName) -> NewAllocation:
        inventory = self._fleet.seen()[part.cluster].inventory
        chip_of = {node.name: node.chip for node in inventory.nodes} if asked == ANY_CHIP else {}
        chips: dict[ChipName, int] = {}
        for node, milli in zip(part.nodes, part.chip_milli, strict=True):
            chip = chip_of.get(node, asked)
            chips[chip] = chips.get(chip, 0) + milli
        prices = inventory.dollars_per_chip_hour
        return NewAllocation(
            id=AllocationId(draw_id("allocation", self._dice)),
            part=part,
            chips=chips,
            dollars_per_hour=sum(prices.get(chip, 0.0) * milli / MILLI for chip, milli in chips.items()),
        )


def _is_paused(job: JobRecord) -> bool:
    """Returns whether somebody paused a job, maybe since the plan was made."""
    return job.overrides is not None and job.overrides.paused is not None


def _leads(allocation: AllocationRecord, attempt: AttemptRecord) -> bool:
    return allocation.agent_first <= attempt.lead < allocation.agent_first + allocation.nodes


def _words_of(wait: Wait) -> _Words:
    return _Words(
        limit=wait.limit,
        where=wait.where,
        short_by=wait.short_by,
        summary=wait.reason,
        considered=wait.considered,
    )


def _tell_wanted(ledger: StateWriter, wanted: Move | Provision) -> None:
    match wanted:
        case Move():
            moved = MoveWantedEvent(
                what=wanted.what, source=wanted.source, target=wanted.target, size_bytes=wanted.size_bytes
            )
            ledger.event(moved, job=wanted.for_job)
        case Provision():
            ordered = ProvisionWantedEvent(
                cluster=wanted.cluster, offer=wanted.offer, nodes=wanted.nodes, reason=wanted.reason
            )
            ledger.event(ordered, job=wanted.for_job)


def clipped_wait(text: str) -> str:
    """Returns why a job waits, short enough for the index of those who wait."""
    return clipped(text).encode()[:WAIT_BYTES_MAX].decode(errors="ignore")


def _write_whys(ledger: StateWriter, told: Mapping[JobId, _Why], number: int, *, waiting: Collection[JobId]) -> None:
    """Writes why jobs are where they are; a start promised to one that waits, and every change of it, is an event."""
    if not told:
        return
    connection = ledger.connection
    promised: dict[str, float | None] = {}
    for some in chunks(told):
        exact = sa.select(whys.c.job_id, whys.c.start_s).where(whys.c.job_id.in_(some), whys.c.exact)
        promised |= {row.job_id: row.start_s for row in connection.execute(exact)}
        connection.execute(sa.delete(whys).where(whys.c.job_id.in_(some)))
    # Jobs of one class share one value: its candidates are written out once.
    texts = {at: text_of(words.considered) for at, words in {id(why.words): why.words for why in told.values()}.items()}
    rows = [
        {
            "job_id": job,
            "plan": number,
            "summary": (clipped_wait if why.words.limit else clipped)(why.words.summary),
            "limit_name": why.words.limit.value if why.words.limit else None,
            "whose": why.words.where[:ID_LENGTH_MAX],
            "short_by": why.words.short_by,
            "start_s": why.start_s,
            "exact": why.exact,
            "candidates": texts[id(why.words)],
        }
        for job, why in told.items()
    ]
    add_rows(connection, whys, rows)
    now = {job: told[job].start_s if told[job].exact else None for job in waiting}
    moved = [job for job, start_s in now.items() if start_s != promised.get(job)]
    if moved:
        ledger.tell_each(moved, [StartPromisedEvent(start_s=now[job], before_s=promised.get(job)) for job in moved])


def _placed(start: Start, new: NewAttempt) -> _Words:
    """Returns where a job was placed and why there, and what came second."""
    placed = [
        f"{_counted(sum(grant.chip_milli) / MILLI, 'chip')} on {_counted(len(grant.nodes), 'node')} of {grant.cluster}"
        + (f" for {grant.role}" if len(start.grants) > 1 else "")
        for grant in start.grants
    ]
    fit = sum(candidate.fits for candidate in start.considered)
    pretended = " (simulated)" if new.simulated else ""
    summary = (
        f"placed {'; '.join(placed)}{pretended}, ${new.dollars_per_hour:.2f} an hour: "
        f"the cheapest per useful chip-hour of {fit} that fit, of {len(start.considered)} weighed"
    )
    cluster = start.grants[0].cluster
    return _Words(limit=None, where=cluster, short_by=0.0, summary=summary, considered=start.considered)


def _counted(count: float, what: str) -> str:
    return f"{count:g} {what}" if count == 1 else f"{count:g} {what}s"
