"""What a policy server tells Prometheus, and whoever asks how it does."""

from __future__ import annotations

from typing import final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from mainspring.robots.serving.wire import Refusal

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)  # Robots wait 20 to 200 ms for a chunk.
BATCHES = (1, 2, 4, 8, 16, 32, 64)


@final
class ServingMetrics:
    """Counts of one server; used from the thread that speaks to robots."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._seconds = self._histogram("chunk_seconds", "From a request until its chunk is sent.", SECONDS)
        self._computed = self._histogram("policy_seconds", "What of it the policy computed.", SECONDS)
        self._batches = self._histogram("batch_size", "Requests that a policy looked at together.", BATCHES)
        self._missed = Counter(
            "mainspring_serving_missed",
            "Requests whose chunk came after their deadline, or not.",
            registry=self.registry,
        )
        self._refused = Counter("mainspring_serving_refused", "Requests refused.", ["reason"], registry=self.registry)
        for reason in Refusal:
            self._refused.labels(reason.value)
        self.connections = self._gauge("connections", "Robots that are connected.")
        self.in_flight = self._gauge("in_flight", "Requests under way.")
        self.version = self._gauge("policy_version", "Policies that were in use so far.")
        self.answered = 0
        self.missed = 0

    def _histogram(self, name: str, words: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"mainspring_serving_{name}", words, buckets=buckets, registry=self.registry)

    def _gauge(self, name: str, words: str) -> Gauge:
        return Gauge(f"mainspring_serving_{name}", words, registry=self.registry)

    def sent(self, seconds: float) -> None:
        """Counts a chunk."""
        self.answered += 1
        self._seconds.observe(seconds)

    def late(self) -> None:
        """Counts a missed deadline."""
        self.missed += 1
        self._missed.inc()

    def refused(self, reason: Refusal) -> None:
        """Counts a request without a chunk."""
        self._refused.labels(reason.value).inc()

    def computed(self, size: int, seconds: float) -> None:
        """Counts a batch."""
        self._batches.observe(size)
        self._computed.observe(seconds)

    def text(self) -> bytes:
        """Returns all of it, as Prometheus reads it."""
        return generate_latest(self.registry)
