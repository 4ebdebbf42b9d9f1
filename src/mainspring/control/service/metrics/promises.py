"""Promised starts: how many jobs started when the plan first said they would."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import final

from prometheus_client import Counter, Metric

from mainspring.domain.ids import JobId

PROMISES_MAX = 20_000  # Jobs that wait with one; a plan holds room for far fewer.
TOLERANCE_S = 60.0  # What nobody calls late;
TOLERANCE = 0.1  # and this share of how far ahead it was said: where plans themselves tell of another time.


@final
class Promises:
    """Counts what became of the first promise made to each job; what moves it later does not excuse it."""

    def __init__(self) -> None:
        self._made = Counter("mainspring_promised_starts", "First promised starts that were due.", registry=None)
        words = "Of these, those that did not come in time: a minute, or a tenth of the wait that was promised."
        self._late = Counter("mainspring_promised_starts_late", words, registry=None)
        self._due_s: OrderedDict[JobId, float] = OrderedDict()

    def promised(self, job: JobId, start_s: float, told_s: float) -> None:
        """Notes that room is held for a job.

        Args:
            start_s: From when on, seconds since the Unix epoch.
            told_s: When it was said.
        """
        self._due_s.setdefault(job, start_s + max(TOLERANCE_S, TOLERANCE * (start_s - told_s)))
        if len(self._due_s) > PROMISES_MAX:
            self._due_s.popitem(last=False)

    def started(self, job: JobId, time_s: float) -> None:
        """Notes that a job was granted what it asked for; only the first time counts."""
        due_s = self._due_s.pop(job, None)
        if due_s is not None:
            self._made.inc()
            self._late.inc(time_s > due_s)

    def excused(self, job: JobId) -> None:
        """Forgets what was promised to a job that ended before, or that somebody keeps from running."""
        self._due_s.pop(job, None)

    def collect(self, now_s: float) -> Iterator[Metric]:
        """Returns the counts; whoever still waits beyond what was promised counts as late now."""
        for job in [job for job, due_s in self._due_s.items() if now_s > due_s]:
            self.started(job, now_s)
        yield from self._made.collect()
        yield from self._late.collect()
