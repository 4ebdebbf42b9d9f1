"""Gathers what a rank reports: its newest step, its metrics, and what its time went into."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar, final

from mainspring.domain.errors import InvalidInput
from mainspring.domain.goodput import TimeUse
from mainspring.domain.wire import StepReport

METRICS_MAX = 256  # Names; the lead keeps the newest of each, and tells the controller every few seconds.
MEASURED = (TimeUse.COMPILE, TimeUse.DATA, TimeUse.SNAPSHOT, TimeUse.RESTORE)  # What only the rank itself can know.

Item = TypeVar("Item")


class _Measured(threading.local):
    """What a thread has measured so far: what grows inside a measure is taken off it."""

    seconds = 0.0


@final
class Meter:
    """One rank's numbers since the last report. For any thread.

    Args:
        stopwatch: Seconds that never go back.
    """

    def __init__(self, stopwatch: Callable[[], float]) -> None:
        self._stopwatch = stopwatch
        self._lock = threading.Lock()
        self._measured = _Measured()
        self.step = -1  # The newest reported.
        self._fresh = False
        self._metrics: dict[str, float] = {}
        self._seconds: dict[str, float] = {}

    def report(self, step: int, metrics: Mapping[str, float] | None) -> bool:
        """Notes a finished step; returns whether it is the first. Metrics not yet sent are kept, the newest by name.

        Args:
            step: The step; one older than the newest only adds its metrics.
            metrics: Numbers; those that are not finite are left out.

        Raises:
            InvalidInput: There are more than `METRICS_MAX`.
        """
        with self._lock:
            if metrics:
                for name, value in metrics.items():
                    number = float(value)
                    if number - number == 0.0:  # It is finite.
                        self._metrics[name] = number
            first = self.step < 0
            if step > self.step:
                self.step = step
            self._fresh = True
            if len(self._metrics) > METRICS_MAX:
                self._metrics.clear()
                raise InvalidInput("report a step", got="more metrics", wanted=f"at most {METRICS_MAX} names")
            return first

    def add(self, use: TimeUse, seconds: float) -> None:
        """Notes time that went into something other than steps.

        Args:
            use: One of `MEASURED`.
            seconds: How long.

        Raises:
            InvalidInput: Ranks do not measure such time, or it is no length of time.
        """
        if use not in MEASURED or not 0.0 <= seconds < math.inf:
            wanted = f"seconds of {', '.join(measured.value for measured in MEASURED)}"
            raise InvalidInput("measure time", got=f"{seconds} s of {use.value}", wanted=wanted)
        self._measured.seconds += seconds
        with self._lock:
            self._seconds[use.value] = self._seconds.get(use.value, 0.0) + seconds

    @contextmanager
    def measure(self, use: TimeUse) -> Iterator[None]:
        """Notes the time until the block ends, less what is measured inside it by the same thread.

        Args:
            use: One of `MEASURED`.
        """
        started_s = self._stopwatch() - self._measured.seconds
        try:
            yield
        finally:
            self.add(use, max(self._stopwatch() - self._measured.seconds - started_s, 0.0))

    def timed(self, iterator: Iterator[Item]) -> Iterator[Item]:
        """Returns the iterator's items; waiting for each counts as `TimeUse.DATA`.

        Args:
            iterator: What to wait for.
        """
        stopwatch, measured, name = self._stopwatch, self._measured, TimeUse.DATA.value
        while True:  # As `measure` does, but for what a context costs: this runs every step.
            started_s = stopwatch() - measured.seconds
            try:
                item = next(iterator)
            except StopIteration:
                return
            waited_s = stopwatch() - measured.seconds - started_s
            if waited_s > 0.0:
                measured.seconds += waited_s
                with self._lock:
                    self._seconds[name] = self._seconds.get(name, 0.0) + waited_s
            yield item

    def take(self, *, again: bool = False, rest: bool = False) -> StepReport | None:
        """Returns a report of what was noted since the last one; None when there is no step or nothing new.

        Args:
            again: Whether to repeat the newest step, and nothing else, when there is nothing new.
            rest: Whether time measured after the newest step is news too: no later step will tell of it.
        """
        with self._lock:
            if self.step < 0:
                return None
            if self._fresh or (rest and self._seconds):
                report = StepReport(step=self.step, metrics=self._metrics, seconds=self._seconds)
                self._fresh, self._metrics, self._seconds = False, {}, {}
                return report
            return StepReport(step=self.step) if again else None

    def clear(self) -> None:
        """Forgets everything: another generation begins."""
        with self._lock:
            self.step, self._fresh, self._metrics, self._seconds = -1, False, {}, {}
