"""What became of promises, as far as events tell it: kept and broken by day, and how fast the budget burns.

For a lab that runs no Prometheus, and for the page. What events do not tell (requests, waits, arrivals) is measured by
Prometheus alone.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import sqlalchemy as sa

from mainspring.control.service.alerts.slos import SLOS
from mainspring.control.service.alerts.values import BURNS, DAY_S
from mainspring.control.service.metrics.promises import TOLERANCE, TOLERANCE_S
from mainspring.control.store.records import read_text
from mainspring.control.store.schema import events
from mainspring.domain.answers import PromiseDay, PromiseView
from mainspring.domain.life import JobState, ended
from mainspring.domain.wire.events.attempts import AttemptGrantedEvent
from mainspring.domain.wire.events.jobs import JobMovedEvent, JobPausedEvent, StartPromisedEvent
from mainspring.domain.wire.events.leads import GenerationPreparingEvent, GenerationSteppingEvent, HangEvent
from mainspring.domain.wire.facts import Detail

DAYS = 28
READ_MAX = 50_000  # The newest events that tell anything of promises: a second of a server's time, once a minute.
SCANNED_MAX = 500_000  # The newest of all kinds that are looked through for them.
OPEN_MAX = 20_000  # Recoveries and promises that are open at once.
LATE_S = {"hang-detection": 60.0, "recovery": 120.0}  # As `SLOS` says, where they are written as PromQL.
_ENDS = tuple(state.value for state in JobState if ended(state))
_KINDS = tuple(
    event.kind
    for event in (
        HangEvent,
        GenerationPreparingEvent,
        GenerationSteppingEvent,
        StartPromisedEvent,
        AttemptGrantedEvent,
        JobMovedEvent,
        JobPausedEvent,
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    at_s: float
    late: bool


@dataclass(slots=True)
class _Fold:
    """Outcomes by promise, and what is open."""

    found: dict[str, deque[_Outcome]] = field(
        default_factory=lambda: {
            name: deque(maxlen=READ_MAX) for name in ("hang-detection", "recovery", "promised-starts")
        }
    )
    recovering: OrderedDict[str, float] = field(default_factory=OrderedDict)
    promised: OrderedDict[str, float] = field(default_factory=OrderedDict)

    def take(self, kind: str, job: str, attempt: str, at_s: float, facts: Detail) -> None:
        """Takes one event, in order."""
        if kind == HangEvent.kind:
            self._end("hang-detection", at_s, late=_number(facts, "silent_s") > LATE_S["hang-detection"])
        elif kind == GenerationPreparingEvent.kind:
            if facts.get("generation") != 1:
                _open(self.recovering, attempt, at_s)
        elif kind == GenerationSteppingEvent.kind:
            if (began_s := self.recovering.pop(attempt, None)) is not None:
                self._end("recovery", at_s, late=at_s - began_s > LATE_S["recovery"])
        elif kind == StartPromisedEvent.kind:
            start_s = _number(facts, "start_s")
            _open(self.promised, job, start_s + max(TOLERANCE_S, TOLERANCE * (start_s - at_s)))
        elif kind == AttemptGrantedEvent.kind:
            if (due_s := self.promised.pop(job, None)) is not None:
                self._end("promised-starts", at_s, late=at_s > due_s)
        elif kind == JobPausedEvent.kind or facts.get("after") in _ENDS:
            self.promised.pop(job, None)

    def _end(self, promise: str, at_s: float, *, late: bool) -> None:
        self.found[promise].append(_Outcome(at_s=at_s, late=late))


def promises(connection: sa.Connection, now_s: float) -> tuple[PromiseView, ...]:
    """Returns every promise that events tell of: by day, and how fast its budget burns."""
    newest = connection.execute(sa.select(sa.func.max(events.c.sequence))).scalar_one() or 0
    query = (
        sa.select(events.c.kind, events.c.job_id, events.c.attempt_id, events.c.time_s, events.c.detail)
        .where(events.c.sequence > newest - SCANNED_MAX, events.c.kind.in_(_KINDS))
        .order_by(events.c.sequence.desc())
        .limit(READ_MAX)
    )
    fold, first_s = _Fold(), now_s
    for row in reversed(connection.execute(query).all()):
        first_s = min(first_s, row.time_s)
        facts = read_text(dict[str, str | int | float | bool], row.detail)
        fold.take(row.kind, row.job_id or "", row.attempt_id or "", row.time_s, facts)
    slos = {slo.name: slo for slo in SLOS}
    return tuple(
        _view(name, slos[name].words, slos[name].objective, outcomes, max(first_s, now_s - DAYS * DAY_S), now_s)
        for name, outcomes in fold.found.items()
    )


def _view(
    name: str, words: str, objective: float, outcomes: deque[_Outcome], since_s: float, now_s: float
) -> PromiseView:
    count = min(DAYS, int((now_s - since_s) // DAY_S) + 1)
    days = [[0, 0] for _ in range(count)]
    for one in outcomes:
        day = count - 1 - int((now_s - one.at_s) // DAY_S)
        if 0 <= day < count:
            days[day][0] += 1
            days[day][1] += one.late
    burns = {}
    for burn in BURNS:
        recent = [one.late for one in outcomes if now_s - one.at_s <= burn.long_s]
        if recent:
            burns[f"{burn.long_s:g}"] = sum(recent) / len(recent) / (1.0 - objective)
    return PromiseView(
        name=name,
        words=words,
        objective=objective,
        since_s=since_s,
        days=tuple(
            PromiseDay(until_s=now_s - (count - 1 - day) * DAY_S, total=total, late=late)
            for day, (total, late) in enumerate(days)
        ),
        burns=burns,
    )


def _open(held: OrderedDict[str, float], key: str, value: float) -> None:
    held.setdefault(key, value)
    if len(held) > OPEN_MAX:
        held.popitem(last=False)


def _number(facts: Mapping[str, object], name: str) -> float:
    value = facts.get(name)
    return float(value) if isinstance(value, int | float) else 0.0
