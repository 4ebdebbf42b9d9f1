"""Time accounting from events alone, for logs and replays, where no lead keeps a ledger.

A pure fold, in seconds of attempts and not of nodes; `goodput` has the ledger of what really ran. What the parts say
always adds up to the whole.

Times are cut to a grid of 2^-20 s (about a microsecond). Sums of such numbers are exact in binary floating point up
to 2^33 s, so "adds up" means equality, not nearness.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mainspring.domain.answers import Event
from mainspring.domain.goodput import TimeUse
from mainspring.domain.life import AttemptState
from mainspring.domain.wire import EXIT_PREEMPTED
from mainspring.domain.wire.events import AnyEvent
from mainspring.domain.wire.events.attempts import AttemptEndedEvent, AttemptGrantedEvent
from mainspring.domain.wire.events.jobs import StopRequestedEvent
from mainspring.domain.wire.events.leads import (
    CaughtUpEvent,
    GenerationPreparingEvent,
    GenerationResumedEvent,
    GenerationSteppingEvent,
    HangEvent,
    LeadEndedEvent,
    RankExitedEvent,
    RankLeftEvent,
)

_GRID = 1 << 20
_SECONDS_PER_HOUR = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Seconds of attempts by what they went into, which add up to `allocated_s`.

    `recoveries_s` is how long each recovery took, `repeated_steps` how many steps were done once more.
    """

    allocated_s: float
    seconds: Mapping[TimeUse, float]
    recoveries_s: tuple[float, ...] = ()
    repeated_steps: int = 0


@dataclass(slots=True, kw_only=True)
class _Fold:
    """One attempt so far, in ticks of the grid."""

    at: int
    use: TimeUse = TimeUse.STARTUP
    spent: dict[TimeUse, int] = field(default_factory=lambda: dict.fromkeys(TimeUse, 0))
    blocked: int = 0
    furthest: int = -1
    resumed: int | None = None
    recovery_began: int = 0
    recoveries: list[int] = field(default_factory=list)
    repeated_steps: int = 0
    stepped: bool = False
    stopping: bool = False
    ran_at: int | None = None

    def advance(self, until: int) -> None:
        """Charges the time up to `until` to its use; clocks that disagree never make time run back."""
        until = max(until, self.at)
        self.spent[self.use] += until - self.at
        self.at = until

    def take(self, event: AnyEvent) -> None:
        """Moves to the use that an event begins."""
        match event:
            case RankExitedEvent(step=step) if event.exit_code not in (0, EXIT_PREEMPTED):
                self._fail()
                self.reach(step)
            case RankLeftEvent(step=step) if event.words:
                self._fail()
                self.reach(step)
            case GenerationPreparingEvent() | HangEvent():
                self._fail()
            case StopRequestedEvent():
                self.stopping = True
            case GenerationResumedEvent(step=step):
                self.resumed = step if step >= 0 else None
                self.ran_at = self.at if self.ran_at is None else self.ran_at
            case GenerationSteppingEvent(step=step):
                self._step(step)
            case CaughtUpEvent(step=step) if self.use is TimeUse.REPEATED:
                self.use = TimeUse.PRODUCTIVE
                self.reach(step)
            case LeadEndedEvent(step=step):
                self.reach(step)
                if not self.stepped and event.outcome is AttemptState.SUCCEEDED:
                    self._credit_stepless()
                self.blocked = _ticks(max(0.0, event.snapshot_blocked_s))
                self.use = TimeUse.WINDDOWN
            case _:
                pass

    def _credit_stepless(self) -> None:
        """Counts a program that tells no steps and ends well as productive from when its ranks ran."""
        if self.use is TimeUse.STARTUP and self.ran_at is not None:
            self.spent[TimeUse.STARTUP] -= self.at - self.ran_at
            self.spent[TimeUse.PRODUCTIVE] += self.at - self.ran_at

    def _fail(self) -> None:
        # Ranks that end because they were told to need no recovery.
        if self.use in (TimeUse.PRODUCTIVE, TimeUse.REPEATED) and not self.stopping:
            self.use = TimeUse.RECOVERY
            self.recovery_began = self.at

    def _step(self, step: int) -> None:
        if self.use is TimeUse.RECOVERY:
            self.recoveries.append(self.at - self.recovery_began)
        last = step - 1 if self.resumed is None else self.resumed
        self.repeated_steps += max(0, self.furthest - last)
        if self.use is not TimeUse.WINDDOWN:
            self.use = TimeUse.REPEATED if self.furthest >= step else TimeUse.PRODUCTIVE
        self.stepped = True
        self.reach(step)

    def reach(self, step: int) -> None:
        """Notes how far the job has come."""
        self.furthest = max(self.furthest, step)


def spent(events: Iterable[Event], now_s: float) -> Spent | None:
    """Returns where the allocated time of an attempt, or of all attempts of a job, went; None before the first grant.

    startup: granted to the first step (of a program that tells no steps and succeeds: to its ranks' start).
    productive: stepping, less what snapshots blocked. recovery: from
    a rank's bad exit to the next step. repeated: from there, or from a later attempt's first step, until the furthest
    step before is passed. winddown: from
    the lead's last word until every allocation is gone.

    Args:
        events: In order of sequence; of one attempt, or of one job.
        now_s: Until when an attempt that has not ended is counted.
    """
    by_attempt: dict[str, list[Event]] = {}
    for event in events:
        if event.attempt is not None:
            by_attempt.setdefault(event.attempt, []).append(event)
    parts = [_attempt(own, now_s) for own in by_attempt.values() if own[0].kind == AttemptGrantedEvent.kind]
    return _sum(parts) if parts else None


def dollars(*, dollars_per_hour: float, granted_s: float, ended_s: float) -> float:
    """Returns what an attempt's chips cost.

    Args:
        dollars_per_hour: Price of all its chips: each cluster's price for the chip, times chips.
        granted_s: When they were granted.
        ended_s: When the last was given back, or now.
    """
    return dollars_per_hour * max(0.0, ended_s - granted_s) / _SECONDS_PER_HOUR


def _attempt(events: Sequence[Event], now_s: float) -> Spent:
    granted = _ticks(events[0].time_s)
    ended = next((event for event in events if event.kind == AttemptEndedEvent.kind), None)
    end = max(granted, _ticks(now_s if ended is None else ended.time_s))
    fold = _Fold(at=granted)
    first = events[0].told
    if isinstance(first, AttemptGrantedEvent):
        fold.reach(first.step)  # Where earlier attempts had come to.
    for event in events[1:]:
        fold.advance(min(_ticks(event.time_s), end))
        fold.take(event.told)
    fold.advance(end)
    # Snapshots block steps, so their time is part of stepping; what a lead claims beyond that cannot be.
    fold.spent[TimeUse.SNAPSHOT] = min(fold.blocked, fold.spent[TimeUse.PRODUCTIVE])
    fold.spent[TimeUse.PRODUCTIVE] -= fold.spent[TimeUse.SNAPSHOT]
    return Spent(
        allocated_s=(end - granted) / _GRID,
        seconds={use: ticks / _GRID for use, ticks in fold.spent.items()},
        recoveries_s=tuple(ticks / _GRID for ticks in fold.recoveries),
        repeated_steps=fold.repeated_steps,
    )


def _sum(parts: Sequence[Spent]) -> Spent:
    return Spent(
        allocated_s=sum(part.allocated_s for part in parts),
        seconds={use: sum(part.seconds[use] for part in parts) for use in TimeUse},
        recoveries_s=tuple(seconds for part in parts for seconds in part.recoveries_s),
        repeated_steps=sum(part.repeated_steps for part in parts),
    )


def _ticks(seconds: float) -> int:
    return round(seconds * _GRID)
