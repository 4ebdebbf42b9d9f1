"""How many replicas the requests under way ask for: up in seconds, down slowly. Nothing here is kept in the store."""

from __future__ import annotations

from collections import deque
from math import ceil
from typing import final

from mainspring.domain.answers import NewScale

UP_S = 6.0  # Over so long the load is averaged; Knative's panic window.
DOWN_S = 300.0  # The highest need of so long counts when it falls; as Kubernetes' HPA stabilises.
GROWTH = 2.0  # So many times as many at once, at most: what is new must be warm before its help can be seen.
GROWTH_MIN = 2  # At least so many more at once.
SAMPLES_MAX = 4_096  # More than a loop that ticks ten times a second takes in `DOWN_S`.


@final
class Load:
    """The load of one service, as its replicas tell it."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=SAMPLES_MAX)  # When, and requests under way.
        self._needs: deque[tuple[float, int]] = deque(maxlen=SAMPLES_MAX)

    def add(self, in_flight: int, now_s: float) -> None:
        """Adds how many requests are under way now, at all replicas together."""
        if self._samples and now_s < self._samples[-1][0]:
            self._samples.clear()  # Clocks are put right, too.
            self._needs.clear()
        self._samples.append((now_s, float(in_flight)))
        while self._samples[0][0] < now_s - UP_S:
            self._samples.popleft()

    def wanted(self, scale: NewScale, before: int, now_s: float) -> int:
        """Returns how many replicas there are to be.

        Args:
            scale: The bounds, and how many requests one is to have.
            before: How many there were to be until now.
        """
        least, most = scale.replicas, scale.most
        mean = sum(each for _, each in self._samples) / len(self._samples) if self._samples else 0.0
        need = min(max(ceil(mean / scale.requests_each), least), most)
        self._needs.append((now_s, need))
        while self._needs[0][0] < now_s - DOWN_S:
            self._needs.popleft()
        before = min(max(before, least), most)
        if need >= before:
            return min(need, max(int(before * GROWTH), before + GROWTH_MIN))
        long_known = self._needs[0][0] <= now_s - DOWN_S + UP_S
        return min(before, max(each for _, each in self._needs)) if long_known else before
