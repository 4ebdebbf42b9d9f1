"""Straggler detection: the time a rank alone spends on a step, against what most ranks spend."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from mainspring.domain.goodput import TimeUse

WINDOW_S = 10.0  # Long enough for some steps of most programs, and for a step of the others as long as that takes:
WINDOWS_SLOW = (
    3  # so many in a row, as one slow file is no slow node. Greyhound (USENIX ATC 25) needs two or three steps.
)
WINDOWS_EVEN = 3  # In a row, after which it is not slow any more.
EXCESS_MIN = 0.1  # Of a step's time: less is not worth a word.
EVENTS_MAX = 16  # A generation: where more are slow, slow is the usual.


@dataclass(slots=True)
class _Rank:
    own_s: float = 0.0
    steps: int = 0
    slow: int = 0
    even: int = 0
    told: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """A rank that is slow.

    Args:
        ratio: A step's time with its excess over one without; 1 once it is as fast as the others again.
    """

    rank: int
    ratio: float


@final
@dataclass(slots=True)
class Stragglers:
    """Compares the ranks of one generation, window by window."""

    _ranks: dict[int, _Rank] = field(default_factory=dict)
    _since_s: float = 0.0
    _told: int = 0

    def begin(self, now_s: float) -> None:
        """Forgets the generation before."""
        self._ranks, self._since_s, self._told = {}, now_s, 0

    def stepped(self, rank: int, *, steps: int, seconds: Mapping[str, float]) -> None:
        """Counts a rank's steps; what it waited for its own data is its own doing."""
        seen = self._ranks.setdefault(rank, _Rank())
        seen.steps += steps
        seen.own_s += max(0.0, seconds.get(TimeUse.DATA.value, 0.0))

    def look(self, now_s: float, step_s: float | None) -> tuple[Slow, ...]:
        """Returns the ranks that have become slow, or are not any more, for some windows in a row.

        Args:
            step_s: How long a step takes, None while unknown.
        """
        if not step_s or now_s - self._since_s < max(WINDOW_S, step_s):
            return ()
        self._since_s = now_s
        own = {rank: seen.own_s / seen.steps for rank, seen in sorted(self._ranks.items()) if seen.steps > 0}
        usual_s = statistics.median(own.values()) if own else 0.0
        found = []
        for rank, seen in sorted(self._ranks.items()):
            excess_s = own.get(rank, 0.0) - usual_s
            if not seen.steps:
                continue  # A step that takes longer than the usual one says nothing before it is done.
            is_slow = excess_s > EXCESS_MIN * step_s
            seen.slow, seen.even = (seen.slow + 1, 0) if is_slow else (0, seen.even + 1)
            seen.own_s, seen.steps = 0.0, 0
            if seen.told and seen.even >= WINDOWS_EVEN:
                seen.told = False
                found.append(Slow(rank=rank, ratio=1.0))
            if seen.slow >= WINDOWS_SLOW and not seen.told and self._told < EVENTS_MAX:
                seen.told, self._told = True, self._told + 1
                found.append(Slow(rank=rank, ratio=1.0 + excess_s / max(step_s - excess_s, EXCESS_MIN * step_s)))
        return tuple(found)
