"""What one server counts of itself as it goes: requests, ticks, and what every process tells of itself."""

from __future__ import annotations

from typing import final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    ProcessCollector,
    Summary,
    disable_created_metrics,
)

from mainspring.control.loop.loop import Step
from mainspring.domain.ports import Clock

REQUEST_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
PROBES = ("livez", "readyz")  # Operations whose 503 says how the server is, and not that a request failed.
TICK_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 15.0)


@final
class Measures:
    """Counts; used by many threads.

    Args:
        clock: Its durations are measured on the one that never jumps.
    """

    def __init__(self, clock: Clock) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # A tenth of all series, which no rule takes.
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.clock = clock
        self._seconds = Histogram(
            "mainspring_request_seconds",
            "From a request's head until its answer begins.",
            ["operation"],
            buckets=REQUEST_S,
            registry=self.registry,
        )
        self._answers = Counter(
            "mainspring_requests",
            "Requests answered, but for probes, by the status of the answer.",
            ["status"],
            registry=self.registry,
        )
        for status in (200, 500, 503):  # What Prometheus first sees at 1 has not grown, to it.
            self._answers.labels(str(status))
        self._ticks = Histogram(
            "mainspring_tick_seconds",
            "Whole ticks: clusters looked at, planned, told.",
            buckets=TICK_S,
            registry=self.registry,
        )
        self._steps = Summary(
            "mainspring_tick_step_seconds", "What each step of a tick took.", ["step"], registry=self.registry
        )
        self._cut = Counter("mainspring_ticks_failed", "Ticks that were cut short.", registry=self.registry)
        self._begun_s = self._step_s = clock.monotonic_s()

    def answered(self, operation: str, status: int, begun_s: float) -> None:
        """Counts a request whose answer begins.

        Args:
            operation: One of the API's; "" for a path that it does not have.
            status: HTTP's.
            begun_s: When it came, on the clock that never jumps.
        """
        self._seconds.labels(operation or "none").observe(self.clock.monotonic_s() - begun_s)
        if operation not in PROBES:
            self._answers.labels(str(status)).inc()

    def stepped(self, step: Step) -> None:
        """Counts a step of a tick; told by the loop's thread alone."""
        now_s = self.clock.monotonic_s()
        if step is Step.LEADING:
            self._begun_s = now_s
        elif step is not Step.FOLLOWING:
            self._steps.labels(step.value).observe(now_s - self._step_s)
        if step is Step.RECORDED:
            self._ticks.observe(now_s - self._begun_s)
        self._step_s = now_s

    def failed(self) -> None:
        """Counts a tick that was cut short."""
        self._cut.inc()
