"""Time accounting from events alone, for logs and replays, where no lead keeps a ledger.

A pure fold, in seconds of attempts and not of nodes; `goodput` has the ledger of what really ran. What the parts say
always adds up to the whole.

Times are cut to a grid of 2^-20 s (about a microsecond). Sums of such numbers are exact in binary floating point up
to 2^33 s, so "adds up" means equality, not nearness.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from mainspring.domain.answers import Event
from mainspring.domain.life import AttemptState
from mainspring.domain.wire import EXIT_PREEMPTED, EventKind

KINDS = (
    EventKind.ATTEMPT_GRANTED,
    EventKind.ATTEMPT_ENDED,
    EventKind.STOP_REQUESTED,
    EventKind.GENERATION_PREPARING,
    EventKind.GENERATION_RESUMED,
    EventKind.GENERATION_STEPPING,
    EventKind.CAUGHT_UP,
    EventKind.RANK_EXITED,
    EventKind.RANK_LEFT,
    EventKind.HANG,
    EventKind.LEAD_ENDED,
)  # What the fold reads; others may be left out.
_GRID = 1 << 20
_SECONDS_PER_HOUR = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Seconds of attempts by what they went into, which add up to `allocated_s`; `checkpoint_s` is within steps.

    `recoveries_s` is how long each recovery took, `repeated_steps` how many steps were done once more.
    """

    allocated_s: float
    startup_s: float
    productive_s: float
    checkpoint_s: float
    repeated_s: float
    recovery_s: float
    wind_down_s: float
    recoveries_s: tuple[float, ...] = ()
    repeated_steps: int = 0


class _Phase(str, Enum):
    STARTUP = "startup"
    PRODUCTIVE = "productive"
    REPEATED = "repeated"
    RECOVERY = "recovery"
    WIND_DOWN = "wind_down"


@dataclass(slots=True, kw_only=True)
class _Fold:
    """One attempt so far, in ticks of the grid."""

    at: int
    phase: _Phase = _Phase.STARTUP
    spent: dict[_Phase, int] = field(default_factory=lambda: dict.fromkeys(_Phase, 0))
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
        """Charges the time up to `until` to the phase; clocks that disagree never make time run back."""
        until = max(until, self.at)
        self.spent[self.phase] += until - self.at
        self.at = until

    def take(self, event: Event) -> None:
        """Moves to the phase that an event begins."""
        step = event.detail.get("step")
        match event.kind:
            case EventKind.RANK_EXITED if event.detail.get("exit_code") not in (0, EXIT_PREEMPTED):
                self._fail()
                self.reach(step)
            case EventKind.RANK_LEFT if event.detail.get("words"):
                self._fail()
                self.reach(step)
            case EventKind.GENERATION_PREPARING | EventKind.HANG:
                self._fail()
            case EventKind.STOP_REQUESTED:
                self.stopping = True
            case EventKind.GENERATION_RESUMED:
                self.resumed = step if isinstance(step, int) and step >= 0 else None
                self.ran_at = self.at if self.ran_at is None else self.ran_at
            case EventKind.GENERATION_STEPPING:
                self._step(step if isinstance(step, int) else 0)
            case EventKind.CAUGHT_UP if self.phase is _Phase.REPEATED:
                self.phase = _Phase.PRODUCTIVE
                self.reach(step)
            case EventKind.LEAD_ENDED:
                self.reach(step)
                if not self.stepped and event.detail.get("outcome") == AttemptState.SUCCEEDED.value:
                    self._credit_stepless()
                self.blocked = _ticks(_number(event.detail.get("snapshot_blocked_s")))
                self.phase = _Phase.WIND_DOWN
            case _:
                pass

    def _credit_stepless(self) -> None:
        """Counts a program that tells no steps and ends well as productive from when its ranks ran."""
        if self.phase is _Phase.STARTUP and self.ran_at is not None:
            self.spent[_Phase.STARTUP] -= self.at - self.ran_at
            self.spent[_Phase.PRODUCTIVE] += self.at - self.ran_at

    def _fail(self) -> None:
        # Ranks that end because they were told to need no recovery.
        if self.phase in (_Phase.PRODUCTIVE, _Phase.REPEATED) and not self.stopping:
            self.phase = _Phase.RECOVERY
            self.recovery_began = self.at

    def _step(self, step: int) -> None:
        if self.phase is _Phase.RECOVERY:
            self.recoveries.append(self.at - self.recovery_began)
        last = step - 1 if self.resumed is None else self.resumed
        self.repeated_steps += max(0, self.furthest - last)
        if self.phase is not _Phase.WIND_DOWN:
            self.phase = _Phase.REPEATED if self.furthest >= step else _Phase.PRODUCTIVE
        self.stepped = True
        self.reach(step)

    def reach(self, step: object) -> None:
        """Notes how far the job has come."""
        if isinstance(step, int):
            self.furthest = max(self.furthest, step)


def spent(events: Iterable[Event], now_s: float) -> Spent | None:
    """Returns where the allocated time of an attempt, or of all attempts of a job, went; None before the first grant.

    startup: granted to the first step (of a program that tells no steps and succeeds: to its ranks' start).
    productive: stepping, less what snapshots blocked (checkpoint). recovery: from
    a rank's bad exit to the next step. repeated: from there, or from a later attempt's first step, until the furthest
    step before is passed. wind-down: from
    the lead's last word until every allocation is gone.

    Args:
        events: In order of sequence; of one attempt, or of one job.
        now_s: Until when an attempt that has not ended is counted.
    """
    by_attempt: dict[str, list[Event]] = {}
    for event in events:
        if event.attempt is not None:
            by_attempt.setdefault(event.attempt, []).append(event)
    parts = [_attempt(own, now_s) for own in by_attempt.values() if own[0].kind is EventKind.ATTEMPT_GRANTED]
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
    ended = next((event for event in events if event.kind is EventKind.ATTEMPT_ENDED), None)
    end = max(granted, _ticks(now_s if ended is None else ended.time_s))
    fold = _Fold(at=granted)
    fold.reach(events[0].detail.get("step"))  # Where earlier attempts had come to.
    for event in events[1:]:
        fold.advance(min(_ticks(event.time_s), end))
        fold.take(event)
    fold.advance(end)
    # Snapshots block steps, so their time is part of stepping; what a lead claims beyond that cannot be.
    checkpoint = min(fold.blocked, fold.spent[_Phase.PRODUCTIVE])
    return Spent(
        allocated_s=(end - granted) / _GRID,
        startup_s=fold.spent[_Phase.STARTUP] / _GRID,
        productive_s=(fold.spent[_Phase.PRODUCTIVE] - checkpoint) / _GRID,
        checkpoint_s=checkpoint / _GRID,
        repeated_s=fold.spent[_Phase.REPEATED] / _GRID,
        recovery_s=fold.spent[_Phase.RECOVERY] / _GRID,
        wind_down_s=fold.spent[_Phase.WIND_DOWN] / _GRID,
        recoveries_s=tuple(ticks / _GRID for ticks in fold.recoveries),
        repeated_steps=fold.repeated_steps,
    )


def _sum(parts: Sequence[Spent]) -> Spent:
    return Spent(
        allocated_s=sum(part.allocated_s for part in parts),
        startup_s=sum(part.startup_s for part in parts),
        productive_s=sum(part.productive_s for part in parts),
        checkpoint_s=sum(part.checkpoint_s for part in parts),
        repeated_s=sum(part.repeated_s for part in parts),
        recovery_s=sum(part.recovery_s for part in parts),
        wind_down_s=sum(part.wind_down_s for part in parts),
        recoveries_s=tuple(seconds for part in parts for seconds in part.recoveries_s),
        repeated_steps=sum(part.repeated_steps for part in parts),
    )


def _ticks(seconds: float) -> int:
    return round(seconds * _GRID)


def _number(fact: object) -> float:
    return max(0.0, float(fact)) if isinstance(fact, (int, float)) else 0.0
