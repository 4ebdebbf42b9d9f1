"""Virtual time: what happens when, in order, and since when a plan has something to answer."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from math import inf


class Timeline:
    """A heap of what is to happen. What happens at one time happens in the order it was foretold."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s
        self.changed_s = inf  # When the first thing happened that no plan has answered yet.
        self.expected = 0  # What is bound to come; faults that are drawn for ever do not count.
        self._heap: list[tuple[float, int, bool, Callable[[], None]]] = []
        self._foretold = 0

    @property
    def next_s(self) -> float:
        """Returns when something happens next, infinity for never."""
        return self._heap[0][0] if self._heap else inf

    def at(self, time_s: float, happens: Callable[[], None], *, expected: bool = True) -> None:
        """Lets something happen at a time, or now if that time is past.

        Args:
            time_s: When; infinity is never.
            expected: Whether a replay that waits for something may wait for this.
        """
        if time_s < inf:
            self._foretold += 1
            self.expected += expected
            heapq.heappush(self._heap, (max(time_s, self.now_s), self._foretold, expected, happens))

    def happen(self) -> None:
        """Lets everything happen that is due now."""
        while self._heap and self._heap[0][0] <= self.now_s:
            _, _, expected, happens = heapq.heappop(self._heap)
            self.expected -= expected
            happens()

    def change(self) -> None:
        """Notes that something happened that a plan may answer."""
        self.changed_s = min(self.changed_s, self.now_s)
