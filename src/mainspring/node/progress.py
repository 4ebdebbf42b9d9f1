"""How far an attempt has come, and what its failures amount to: the counting part of the lead's mind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from mainspring.domain.life import AttemptState
from mainspring.domain.wire import EventKind, RankExited

ALIKE_MAX = 3  # A program that fails the same way three times without a step between will do so again.


@dataclass(slots=True)
class AgentSeen:
    """One agent as the lead last saw it."""

    node: str = ""
    connected: bool = False
    left_s: float = 0.0
    prepared: bool = False
    drained: bool = False
    masters: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class RankSeen:
    """One rank as the lead last saw it: its process, how far it is, what its arena holds, the last result it told."""

    agent: int
    pid: int = 0
    exit_code: int | None = None
    step: int = -1
    metrics: Mapping[str, float] = field(default_factory=dict)
    arena: list[int] = field(default_factory=list)
    results: int = 0


@final
@dataclass(slots=True)
class Progress:
    """The furthest step so far, and what of it this generation has seen.

    Args:
        furthest: The furthest step of all this attempt's generations, -1 before the first.
        blocked_s: Seconds the lowest rank was blocked by snapshots.
        before: The furthest step of all generations and attempts before this one.
        stepping: Whether this generation has reported a step.
        caught_up: Whether it has passed `before`.
        reached: The furthest step of earlier attempts.
    """

    furthest: int = -1
    blocked_s: float = 0.0
    before: int = -1
    stepping: bool = False
    caught_up: bool = False
    reached: int = -1

    def new_generation(self) -> None:
        """Forgets what the generation before has seen."""
        self.before = max(self.furthest, self.reached)
        self.stepping = False
        self.caught_up = self.before < 0  # Before the first step of all there is nothing to catch up with.

    def stepped(self, step: int) -> tuple[EventKind, ...]:
        """Counts a step report; returns the events it amounts to.

        Args:
            step: The step reported.
        """
        kinds = []
        if not self.stepping:
            self.stepping = True
            kinds.append(EventKind.GENERATION_STEPPING)
        if not self.caught_up and step > self.before:
            self.caught_up = True
            kinds.append(EventKind.CAUGHT_UP)
        self.furthest = max(self.furthest, step)
        return tuple(kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What to do about a failure.

    Args:
        outcome: How the attempt ends, None to restart its ranks in place.
        reason: Why, for people.
    """

    outcome: AttemptState | None
    reason: str


@final
class Failures:
    """Counts ranks' failures, and knows when restarting in place is no use.

    Args:
        restarts_max: How many restarts in place are allowed.
    """

    def __init__(self, *, restarts_max: int) -> None:
        self._restarts_max = restarts_max
        self._restarts = 0
        self._alike = 0
        self._last = (0, 0)
        self._first_words = ""

    def another(self, exited: RankExited, furthest: int) -> Verdict:
        """Counts a failure; returns what to do about it.

        Args:
            exited: How the rank ended.
            furthest: The furthest step so far.
        """
        this = (exited.exit_code, furthest)
        self._alike = self._alike + 1 if this == self._last else 1
        self._last = this
        if self._alike == 1:
            self._first_words = exited.last_words
        code = exited.exit_code
        how = f"rank {exited.rank} " + (f"was killed by signal {-code}" if code < 0 else f"exited with {code}")
        if furthest >= 0:
            how += f" at step {furthest}"
        words = f"; it first said: {self._first_words}" if self._first_words else ""
        if self._alike >= ALIKE_MAX:
            reason = f"{how}, {self._alike} times the same way without a step between{words}"
            return Verdict(outcome=AttemptState.FAILED, reason=reason)
        if self._restarts >= self._restarts_max:
            # A signal comes from outside: other nodes may do better. An exit code is the program's own word.
            outcome = AttemptState.LOST if code < 0 else AttemptState.FAILED
            return Verdict(outcome=outcome, reason=f"{how}, after {self._restarts} restarts in place{words}")
        self._restarts += 1
        return Verdict(outcome=None, reason=how)
