"""What events since the last look add up to: why attempts were stopped, and how long recoveries took.

Each server reads every event once, from when it began, so all servers of a store count the same.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import final

import sqlalchemy as sa

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


@dataclass(slots=True)
class Durations:
    """How long things took: how many took at most so many seconds, and all of them together."""

    counts: list[int]
    sum_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Counts one more."""
        self.sum_s += seconds
        for at, bound in enumerate(RECOVERY_S):
            self.counts[at] += seconds <= bound
        self.counts[-1] += 1


@final
class EventCounts:
    """Counts that only grow. Used by one thread at a time.

    Args:
        most: How many events to read at once.
    """

    def __init__(self, most: int = READ_MAX) -> None:
        self.stopped: Counter[tuple[str, str]] = Counter()
        """By cluster and cause."""
        self.told: Counter[tuple[str, str]] = Counter()
        """By cluster and kind of event."""
        self.recoveries: dict[str, Durations] = {}
        """By cluster: from the decision for another generation to its first step."""
        self._most = most
        self._seen: int | None = None
        self._recovering: OrderedDict[AttemptId, float] = OrderedDict()

    def read(self, connection: sa.Connection) -> None:
        """Reads what came since the last time; the first time nothing, as that was counted by others or nobody.

        Args:
            connection: From `Store.read`.
        """
        if self._seen is None:
            newest = connection.execute(sa.select(sa.func.max(events.c.sequence))).scalar_one()
            self._seen = newest or 0
            return
        for row in connection.execute(_QUERY.where(events.c.sequence > self._seen).limit(self._most)):
            self._seen = row.sequence
            self._take(row.kind, AttemptId(row.attempt_id), row.cluster, row.time_s, row.detail)

    def _take(self, kind: str, attempt: AttemptId, cluster: str, time_s: float, detail: str) -> None:
        facts = read_text(dict[str, str | int | float | bool], detail)
        if kind in COUNTED:
            self.told[cluster, kind] += 1
        elif kind == AttemptStoppingEvent.kind:
            self.stopped[cluster, str(facts["cause"])] += 1
        elif kind == GenerationPreparingEvent.kind and facts["generation"] != 1:
            self._recovering.setdefault(attempt, time_s)
            if len(self._recovering) > RECOVERIES_MAX:
                self._recovering.popitem(last=False)
        elif (began_s := self._recovering.pop(attempt, None)) is not None and kind == GenerationSteppingEvent.kind:
            spent = self.recoveries.setdefault(cluster, Durations([0] * (len(RECOVERY_S) + 1)))
            spent.add(max(0.0, time_s - began_s))
