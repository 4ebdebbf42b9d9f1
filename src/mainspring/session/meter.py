"""Step reports of a rank: its newest step, its metrics, and what its time went into."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar, final

from mainspring.domain.errors import InvalidInput
from mainspring.domain.goodput import TimeUse
from mainspring.domain.wire import Detail, StepReport
from mainspring.domain.wire.rank import METRIC_NAME_LENGTH_MAX

FACTS_MAX = 1_000  # Of a snapshot's state, and of a result.
METRICS_MAX = 256  # Names; the lead keeps the newest of each, and tells the controller every few seconds.
WAIT_NOTED_S = 1e-3  # Shorter waits for data are noted once they add up to this: to note one costs as much as a step.
MEASURED = (TimeUse.COMPILE, TimeUse.DATA, TimeUse.SNAPSHOT, TimeUse.RESTORE)  # What only the rank itself can know.

Item = TypeVar("Item")


class _Measured:
    """What one thread has measured so far: what grows inside a measure is taken off it."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = 0.0


class _Threads(threading.local):
    """What each thread has measured."""

    def __init__(self) -> None:
        self.measured = _Measured()


@final
class Meter:
    """One rank's numbers since the last report. For any thread.

    What runs every step finds the caches cold, and pays for whatever it touches: it takes no lock (8 us there), but
    rests on single operations on a `dict` and an attribute being whole. Of two threads that report at one instant the
    older step may win; the next one mends that.

    Args:
        stopwatch: Seconds that never go back.
    """

    def __init__(self, stopwatch: Callable[[], float]) -> None:
        self.stopwatch = stopwatch
        self._lock = threading.Lock()
        self._threads = _Threads()
        self.step = -1  # The newest reported.
        self._told = -1  # The newest taken.
        self._fresh = False
        self._stepped_s = 0.0  # When the newest step was reported.
        self._metrics: dict[str, float] = {}
        self._not_finite: dict[str, None] = {}
        self._seconds: dict[str, float] = {}

    def report(self, step: int, metrics: Mapping[str, float] | None) -> bool:
        """Notes a finished step; returns whether it is the first. Metrics not yet sent are kept, the newest by name.

        Args:
            step: The step; one older than the newest only adds its metrics.
            metrics: Numbers; of those that are not finite, only that they were not is told.

        Raises:
            InvalidInput: There are more than `METRICS_MAX`.
        """
        if metrics:
            noted = self._metrics
            for name, value in metrics.items():
                number = float(value)
                if number - number == 0.0:  # It is finite.
                    noted[name] = number
                else:
                    self._not_finite[name] = None
            if len(noted) > METRICS_MAX or len(self._not_finite) > METRICS_MAX:
                self._metrics, self._not_finite = {}, {}
                raise InvalidInput("report a step", got="more metrics", wanted=f"at most {METRICS_MAX} names")
        first = self.step < 0
        if step > self.step:
            self.step = step
            self._stepped_s = self.stopwatch()
        self._fresh = True
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
            raise InvalidInput(
                "measure time",
                got=f"{seconds} s of {use.value}",
                wanted=f"seconds of {', '.join(measured.value for measured in MEASURED)}",
            )
        self._threads.measured.seconds += seconds
        with self._lock:
            self._seconds[use.value] = self._seconds.get(use.value, 0.0) + seconds

    @contextmanager
    def measure(self, use: TimeUse) -> Iterator[None]:
        """Notes the time until the block ends, less what is measured inside it by the same thread.

        Args:
            use: One of `MEASURED`.
        """
        measured = self._threads.measured
        started_s = self.stopwatch() - measured.seconds
        try:
            yield
        finally:
            self.add(use, max(self.stopwatch() - measured.seconds - started_s, 0.0))

    def timed(self, iterator: Iterator[Item]) -> Iterator[Item]:
        """Returns the iterator's items; waiting for each counts as `TimeUse.DATA`. For one thread."""
        stopwatch, measured = self.stopwatch, self._threads.measured
        waited_s = 0.0
        while True:  # As `measure` does, but for what a context costs: this runs every step.
            started_s = stopwatch() - measured.seconds
            try:
                item = next(iterator)
            except StopIteration:
                break
            waited_s += stopwatch() - measured.seconds - started_s
            if waited_s > WAIT_NOTED_S:
                self.add(TimeUse.DATA, waited_s)
                waited_s = 0.0
            yield item
        if waited_s > 0.0:
            self.add(TimeUse.DATA, waited_s)

    def take(self, *, again: bool = False, rest: bool = False) -> StepReport | None:
        """Returns a report of what was noted since the last one; None when there is no step or nothing new.

        Args:
            again: Whether to repeat the newest step, and nothing else, when there is nothing new.
            rest: Whether time measured after the newest step is news too: no later step will tell of it.
        """
        if self.step < 0:
            return None
        with self._lock:
            if self._fresh or (rest and self._seconds):
                self._fresh = False  # Before anything is taken: what is noted meanwhile counts as fresh again.
                noted = self._metrics
                taken = [noted.popitem() for _ in range(min(len(noted), METRICS_MAX))]
                metrics = {name[:METRIC_NAME_LENGTH_MAX]: value for name, value in taken}
                odd = self._not_finite
                names = [odd.popitem()[0] for _ in range(min(len(odd), METRICS_MAX))]
                not_finite = tuple(sorted(name[:METRIC_NAME_LENGTH_MAX] for name in names))
                seconds, self._seconds = self._seconds, {}
                self._told = max(self._told, self.step)
                return StepReport(
                    step=self._told,
                    metrics=metrics,
                    seconds=seconds,
                    ago_s=max(0.0, self.stopwatch() - self._stepped_s),
                    not_finite=not_finite,
                )
            return StepReport(step=self._told) if again else None

    def clear(self) -> None:
        """Forgets everything: another generation begins."""
        with self._lock:
            self.step = self._told = -1
            self._fresh, self._metrics, self._not_finite, self._seconds = False, {}, {}, {}


def checked_facts(facts: Detail, attempted: str) -> Detail:
    """Returns facts that can be kept.

    Args:
        facts: Of a snapshot's state, or a result.
        attempted: What is done with them, as a clause.

    Raises:
        InvalidInput: There are too many, or a number is not finite.
    """
    if len(facts) > FACTS_MAX:
        raise InvalidInput(attempted, got=f"{len(facts)} facts", wanted=f"at most {FACTS_MAX}")
    for name, value in facts.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidInput(attempted, on=name, got=str(value), wanted="a finite number")
    return dict(facts)
