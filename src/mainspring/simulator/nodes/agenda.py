"""Event queue: what is to happen on one virtual clock, in order of time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import final

from mainspring.domain.ports import Dice
from mainspring.testing import FakeClock

_SIXTEEN_BITS = 1 << 16


@final
class Agenda:
    """What is to happen. Two things of one moment happen in the order they were entered.

    Args:
        clock: Moved to the time of each thing before it happens.
    """

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._entered = 0

    @property
    def now_s(self) -> float:
        """Returns the time on the monotonic clock."""
        return self.clock.monotonic_s()

    def after(self, seconds: float, do: Callable[[], object]) -> None:
        """Enters something.

        Args:
            seconds: From now on, never negative.
        """
        assert seconds >= 0
        self._entered += 1
        heapq.heappush(self._queue, (self.now_s + seconds, self._entered, do))

    def every(self, seconds: float, do: Callable[[], bool]) -> None:
        """Enters something that happens again and again, until it returns false."""

        def again() -> None:
            if do():
                self.after(seconds, again)

        self.after(seconds, again)

    def run(self, seconds: float, *, until: Callable[[], bool] = lambda: False) -> bool:
        """Lets time pass; returns whether `until` came true, which ends it early."""
        end_s = self.now_s + seconds
        while self._queue and self._queue[0][0] <= end_s:
            at_s, _, do = heapq.heappop(self._queue)
            self.clock.advance(max(0.0, at_s - self.now_s))
            do()
            if until():
                return True
        self.clock.advance(max(0.0, end_s - self.now_s))
        return until()


def chance(dice: Dice, rate: float) -> bool:
    """Returns true at a rate.

    Args:
        dice: Where it is drawn.
        rate: 0 for never, 1 for always.
    """
    return rate > 0 and dice.bits(16) < rate * _SIXTEEN_BITS


def pick(dice: Dice, count: int) -> int:
    """Returns a number below `count`.

    Args:
        dice: Where it is drawn.
        count: At least 1.
    """
    return dice.bits(32) % count


def within(dice: Dice, low: float, high: float) -> float:
    """Returns a number from `low` to `high`.

    Args:
        dice: Where it is drawn.
    """
    return low + (high - low) * dice.bits(16) / _SIXTEEN_BITS
