"""What events since the last look add up to: why attempts were stopped, and how long recoveries took.

Each server reads every event once, from when it began: counts of two differ, and rates do not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import final

import sqlalchemy as sa
from prometheus_client import Counter, Histogram, Metric

from mainspring.control.store.records import read_text
from mainspring.control.store.schema import attempts, events
from mainspring.domain.ids import AttemptId
from mainspring.domain.wire.events.attempts import AttemptEndedEvent, AttemptStoppingEvent
from mainspring.domain.wire.events.leads import (
    CheckpointDurableEvent,
    GenerationPreparingEvent,
    GenerationSteppingEvent,
    HangEvent,
    RankSlowEvent,
)

READ_MAX = 20_000  # Events of one look: under half a second; what is left is read at the next.
RECOVERIES_MAX = 20_000  # Attempts that recover at once.
RECOVERY_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0)
COUNTED = (HangEvent.kind, RankSlowEvent.kind, CheckpointDurableEvent.kind)
_READ = (AttemptStoppingEvent, AttemptEndedEvent, GenerationPreparingEvent, GenerationSteppingEvent)
_QUERY = (
    sa.select(events, attempts.c.cluster)
    .join(attempts, attempts.c.id == events.c.attempt_id)
    .where(events.c.kind.in_((*(event.kind for event in _READ), *COUNTED)))
    .order_by(events.c.sequence)
)


@final
class EventCounts:
    """Counts that only grow. Used by one thread at a time.

    Args:
        most: How many events to read at once.
    """

    def __init__(self, most: int = READ_MAX) -> None:
        words = "Hangs, slow ranks and durable checkpoints that leads told of."
        self._told = Counter("mainspring_events", words, ["cluster", "kind"], registry=None)
        words = "Attempts asked to end, and why."
        self._stopped = Counter("mainspring_attempts_stopped", words, ["cluster", "cause"], registry=None)
        words = "From the decision for another generation of ranks to its first step."
        self._recovery_s = Histogram(
            "mainspring_recovery_seconds", words, ["cluster"], buckets=RECOVERY_S, registry=None
        )
        self._most = most
        self._seen: int | None = None
        self._recovering: OrderedDict[AttemptId, float] = OrderedDict()

    def collect(self, connection: sa.Connection) -> Iterator[Metric]:
        """Returns the counts, having read what came since the last time.

        Args:
            connection: From `Store.read`.
        """
        self._read(connection)
        for one in (self._told, self._stopped, self._recovery_s):
            yield from one.collect()

    def _read(self, connection: sa.Connection) -> None:
        if self._seen is None:  # What came before was counted by others, or by nobody.
            newest = connection.execute(sa.select(sa.func.max(events.c.sequence))).scalar_one()
            self._seen = newest or 0
            return
        for row in connection.execute(_QUERY.where(events.c.sequence > self._seen).limit(self._most)):
            self._seen = row.sequence
            self._take(row.kind, AttemptId(row.attempt_id), row.cluster, row.time_s, row.detail)

    def _take(self, kind: str, attempt: AttemptId, cluster: str, time_s: float, detail: str) -> None:
        facts = read_text(dict[str, str | int | float | bool], detail)  # Of a newer release they may be others.
        if kind in COUNTED:
            self._told.labels(cluster, kind).inc()
        elif kind == AttemptStoppingEvent.kind:
            self._stopped.labels(cluster, str(facts.get("cause", ""))).inc()
        elif kind == GenerationPreparingEvent.kind and facts.get("generation") != 1:
            self._recovering.setdefault(attempt, time_s)
            if len(self._recovering) > RECOVERIES_MAX:
                self._recovering.popitem(last=False)
        elif (began_s := self._recovering.pop(attempt, None)) is not None and kind == GenerationSteppingEvent.kind:
            self._recovery_s.labels(cluster).observe(max(0.0, time_s - began_s))
