"""Pictures that need no script: where the time went, and what happened when, as bars on a scale of 0 to 1,000."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mainspring.app.render.events import event_words
from mainspring.app.render.goodput import USES, hours_text
from mainspring.domain.answers import AttemptView, Event, JobView
from mainspring.domain.goodput import Goodput, TimeUse
from mainspring.domain.life import ended
from mainspring.domain.wire.events import EVENTS
from mainspring.domain.wire.events.attempts import AttemptGrantedEvent
from mainspring.domain.wire.events.jobs import JobMovedEvent
from mainspring.domain.wire.events.leads import (
    CheckpointDurableEvent,
    GenerationPreparingEvent,
    GenerationResumedEvent,
    GenerationSteppingEvent,
    HangEvent,
    RankExitedEvent,
)

SCALE = 1_000.0
MARKS_MAX = 400  # Of one picture; more would lie on each other.
POINTS_MAX = 2_000
_BAR_MIN = 1.5  # Of the scale: what is shorter could not be seen.
_TICKS = 5
_Drawn: TypeAlias = Callable[[float, float, str, str], "Strip"]  # From when, until when, its look, what it says.
_TROUBLE = {each.kind for each in EVENTS if each.notable}


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """A bar: from where, how long, on a scale of 0 to `SCALE`, of which look, and what it says."""

    x: float
    width: float
    tone: str
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One line of a picture."""

    label: str
    value: str
    strips: tuple[Strip, ...]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Lanes over one stretch of time; `ticks` are its moments, evenly apart."""

    lanes: tuple[Lane, ...]
    ticks: tuple[float, ...]


def waterfall(told: Goodput) -> tuple[Lane, ...]:
    """Returns how allocated time becomes productive time: what each use takes away from it, the largest first."""
    if told.allocated_s <= 0:
        return ()
    scale = SCALE / told.allocated_s
    lanes = [
        Lane(label="allocated", value=hours_text(told.allocated_s), strips=(_strip(0, SCALE, "whole", "allocated"),))
    ]
    left_s = told.allocated_s
    losses = sorted(
        ((told.seconds.get(use, 0.0), use) for use in USES if use is not TimeUse.PRODUCTIVE), key=lambda one: -one[0]
    )
    for seconds, use in losses:
        if seconds <= 0:
            continue
        left_s -= seconds
        name, meaning = USES[use]
        share = f"{seconds / told.allocated_s:.1%}"
        says = f"{name}: {share}, {hours_text(seconds)}"
        strip = _strip(left_s * scale, seconds * scale, f"use-{use.value}", says)
        lanes.append(Lane(label=name, value=share, strips=(strip,), note=f"{hours_text(seconds)}: {meaning}"))
    productive_s = told.seconds.get(TimeUse.PRODUCTIVE, 0.0)
    name, meaning = USES[TimeUse.PRODUCTIVE]
    strip = _strip(0, productive_s * scale, "use-productive", name)
    value = f"{productive_s / told.allocated_s:.1%}"
    lanes.append(Lane(label=name, value=value, strips=(strip,), note=f"{hours_text(productive_s)}: {meaning}"))
    return tuple(lanes)


def _strip(x: float, width: float, tone: str, says: str) -> Strip:
    return Strip(
        x=round(max(0.0, min(SCALE, x)), 2), width=round(max(_BAR_MIN, min(SCALE, width)), 2), tone=tone, says=says
    )


def timeline(job: JobView, events: Sequence[Event], *, now_s: float) -> Timeline:
    """Returns a job's life: its states, each attempt with its generations, and what went wrong.

    Args:
        events: Its events, oldest first.
    """
    begin_s = job.submitted_s
    end_s = max(job.ended_s if job.ended_s is not None else now_s, begin_s + 1.0)
    scale = SCALE / (end_s - begin_s)

    def strip(from_s: float, to_s: float, tone: str, says: str) -> Strip:
        from_s, to_s = max(begin_s, min(from_s, end_s)), max(begin_s, min(to_s, end_s))
        return _strip((from_s - begin_s) * scale, (to_s - from_s) * scale, tone, says)

    lanes = [Lane(label="job", value=job.state.value, strips=tuple(_states(job, events, end_s, strip)))]
    for attempt in job.attempts[-20:]:
        own = [event for event in events if event.attempt == attempt.id]
        until_s = attempt.ended_s if attempt.ended_s is not None else end_s
        strips = [strip(attempt.granted_s, until_s, "attempt", f"attempt {attempt.number}: {attempt.state.value}")]
        strips += _generations(own, until_s, strip)
        strips += [strip(event.time_s, event.time_s, "trouble", event_words(event)) for event in _troubles(own)]
        value = f"{attempt.generation} generation{'' if attempt.generation == 1 else 's'}"
        lanes.append(Lane(label=f"attempt {attempt.number}", value=value, strips=tuple(strips), note=_end_of(attempt)))
    ticks = tuple(begin_s + (end_s - begin_s) * tick / (_TICKS - 1) for tick in range(_TICKS))
    return Timeline(lanes=tuple(lanes), ticks=ticks)


def _end_of(attempt: AttemptView) -> str:
    return f"{attempt.state.value}: {attempt.reason}" if attempt.reason else attempt.state.value


def _states(job: JobView, events: Sequence[Event], end_s: float, strip: _Drawn) -> list[Strip]:
    moves = [(job.submitted_s, "queued")]
    moves += [
        (event.time_s, str(event.detail.get("after", ""))) for event in events if event.kind == JobMovedEvent.kind
    ]
    strips = []
    for number, (at_s, word) in enumerate(moves[:MARKS_MAX]):
        until_s = moves[number + 1][0] if number + 1 < len(moves) else end_s
        if word and until_s > at_s:
            strips.append(strip(at_s, until_s, f"state-{word}", word))
    return strips


def _generations(events: Sequence[Event], until_s: float, strip: _Drawn) -> list[Strip]:
    """Returns, of each generation, what it took to prepare and how long it stepped."""
    marks = [
        event
        for event in events
        if event.kind in (GenerationPreparingEvent.kind, GenerationResumedEvent.kind, GenerationSteppingEvent.kind)
    ]
    strips = []
    for number, event in enumerate(marks[:MARKS_MAX]):
        ends_s = marks[number + 1].time_s if number + 1 < len(marks) else until_s
        tone = "stepping" if event.kind == GenerationSteppingEvent.kind else "preparing"
        strips.append(strip(event.time_s, ends_s, tone, event_words(event)))
    return strips


def _troubles(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if event.kind in _TROUBLE][-MARKS_MAX:]


_STEPS = {
    AttemptGrantedEvent.kind,
    GenerationResumedEvent.kind,
    GenerationSteppingEvent.kind,
    CheckpointDurableEvent.kind,
    RankExitedEvent.kind,
    HangEvent.kind,
}


def progress(job: JobView, events: Sequence[Event], *, now_s: float) -> dict[str, object]:
    """Returns the job's step over time, and its pace, as far as events tell: back where state was lost.

    Args:
        events: Its events, oldest first.
    """
    steps: list[tuple[float, float]] = []
    back: list[tuple[float, float]] = []
    pace: list[tuple[float, float]] = []
    last: tuple[float, int] | None = None
    for event in events:
        step = event.detail.get("step")
        if event.kind not in _STEPS or not isinstance(step, int) or (step < 0 and not steps):
            continue
        step = max(0, step)  # The start is no step: told as -1.
        if event.kind == GenerationResumedEvent.kind:
            if last is not None:
                back.append((event.time_s * 1_000, step))
            last = None
        steps.append((event.time_s * 1_000, step))
        if event.kind in (GenerationSteppingEvent.kind, CheckpointDurableEvent.kind):
            if last is not None and step > last[1] and event.time_s > last[0]:
                pace.append((event.time_s * 1_000, (event.time_s - last[0]) / (step - last[1])))
            last = (event.time_s, step)
    if job.step >= 0 and not ended(job.state):
        steps.append((now_s * 1_000, job.step))
    return {"steps": steps[-POINTS_MAX:], "back": back[-POINTS_MAX:], "pace": pace[-POINTS_MAX:]}
