"""What events since the last look add up to: why attempts were stopped, how long recoveries took, promises kept.

Each server reads every event once, from when it began: counts of two differ, and rates do not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import final

import sqlalchemy as sa
from prometheus_client import Counter, Histogram, Metric

from mainspring.control.service.metrics.promises import Promises
from mainspring.control.store.ledger import StopCause
from mainspring.control.store.records import read_text
from mainspring.control.store.schema import attempts, events
from mainspring.domain.ids import AttemptId, JobId
from mainspring.domain.life import JobState, ended
from mainspring.domain.wire.events.attempts import AttemptEndedEvent, AttemptGrantedEvent, AttemptStoppingEvent
from mainspring.domain.wire.events.jobs import JobMovedEvent, JobPausedEvent, StartPromisedEvent
from mainspring.domain.wire.events.leads import (
    CheckpointCorruptEvent,
    CheckpointDurableEvent,
    CheckpointFailedEvent,
    GenerationPreparingEvent,
    GenerationSteppingEvent,
    HangEvent,
    RankSlowEvent,
    ReplicasDifferEvent,
)
from mainspring.domain.wire.facts import Detail

READ_MAX = 20_000  # Events of one look: under half a second; what is left is read at the next.
RECOVERIES_MAX = 20_000  # Attempts that recover at once.
RECOVERY_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0)
DETECTION_S = (1.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0)
_COUNTED = (
    HangEvent,
    RankSlowEvent,
    ReplicasDifferEvent,
    CheckpointDurableEvent,
    CheckpointFailedEvent,
    CheckpointCorruptEvent,
)
COUNTED = tuple(event.kind for event in _COUNTED)
_OF_ATTEMPTS = (AttemptStoppingEvent, AttemptEndedEvent, GenerationPreparingEvent, GenerationSteppingEvent)
_OF_JOBS = (StartPromisedEvent, AttemptGrantedEvent, JobMovedEvent, JobPausedEvent)
_KINDS_OF_JOBS = tuple(event.kind for event in _OF_JOBS)
_CAUSES = frozenset(cause.value for cause in StopCause)  # Of a newer release there may be others.
_ENDS = tuple(state.value for state in JobState if ended(state))
_QUERY = (
    sa.select(events, attempts.c.cluster)
    .outerjoin(attempts, attempts.c.id == events.c.attempt_id)
    .where(events.c.kind.in_((*(event.kind for event in _OF_ATTEMPTS), *_KINDS_OF_JOBS, *COUNTED)))
    .order_by(events.c.sequence)
)


@final
class EventCounts:
    """Counts that only grow. Used by one thread at a time.

    Args:
        most: How many events to read at once.
    """

    def __init__(self, most: int = READ_MAX) -> None:
        words = (
            "What leads told of: hangs, slow ranks, replicas that differ, checkpoints durable, failed or passed over."
        )
        self._told = Counter("mainspring_events", words, ["cluster", "kind"], registry=None)
        words = "Attempts asked to end, and why."
        self._stopped = Counter("mainspring_attempts_stopped", words, ["cluster", "cause"], registry=None)
        words = "From the decision for another generation of ranks to its first step."
        self._recovery_s = Histogram(
            "mainspring_recovery_seconds", words, ["cluster"], buckets=RECOVERY_S, registry=None
        )
        words = "From the last step of a generation that hangs until that was seen."
        self._detection_s = Histogram(
            "mainspring_detection_seconds", words, ["cluster"], buckets=DETECTION_S, registry=None
        )
        self._promises = Promises()
        self._most = most
        self._seen: int | None = None
        self._recovering: OrderedDict[AttemptId, float] = OrderedDict()

    def expect(self, clusters: Iterable[str]) -> None:
        """Has the counts of clusters begin at 0: what Prometheus first sees at 1 has not grown, to it."""
        for cluster in clusters:
            for kind in COUNTED:
                self._told.labels(cluster, kind)
            for cause in StopCause:
                self._stopped.labels(cluster, cause.value)
            self._recovery_s.labels(cluster)
            self._detection_s.labels(cluster)

    def collect(self, connection: sa.Connection, now_s: float) -> Iterator[Metric]:
        """Returns the counts, having read what came since the last time.

        Args:
            connection: From `Store.read`.
        """
        self._read(connection)
        for one in (self._told, self._stopped, self._recovery_s, self._detection_s):
            yield from one.collect()
        yield from self._promises.collect(now_s)

    def _read(self, connection: sa.Connection) -> None:
        if self._seen is None:  # What came before was counted by others, or by nobody.
            newest = connection.execute(sa.select(sa.func.max(events.c.sequence))).scalar_one()
            self._seen = newest or 0
            return
        for row in connection.execute(_QUERY.where(events.c.sequence > self._seen).limit(self._most)):
            self._seen = row.sequence
            facts = read_text(dict[str, str | int | float | bool], row.detail)  # Of a newer release they may be others.
            if row.kind in _KINDS_OF_JOBS:
                self._promise(row.kind, JobId(row.job_id), row.time_s, facts)
            elif row.cluster is not None:
                self._take(row.kind, AttemptId(row.attempt_id), row.cluster, row.time_s, facts)

    def _promise(self, kind: str, job: JobId, time_s: float, facts: Detail) -> None:
        if kind == StartPromisedEvent.kind:
            if isinstance(start_s := facts.get("start_s"), int | float):
                self._promises.promised(job, start_s, time_s)
        elif kind == AttemptGrantedEvent.kind:
            self._promises.started(job, time_s)
        elif kind == JobPausedEvent.kind or facts.get("after") in _ENDS:
            self._promises.excused(job)

    def _take(self, kind: str, attempt: AttemptId, cluster: str, time_s: float, facts: Detail) -> None:
        if kind in COUNTED:
            self._told.labels(cluster, kind).inc()
            if kind == HangEvent.kind and isinstance(silent_s := facts.get("silent_s"), int | float):
                self._detection_s.labels(cluster).observe(silent_s)
        elif kind == AttemptStoppingEvent.kind:
            cause = facts.get("cause")
            self._stopped.labels(cluster, str(cause) if cause in _CAUSES else "other").inc()
        elif kind == GenerationPreparingEvent.kind and facts.get("generation") != 1:
            self._recovering.setdefault(attempt, time_s)
            if len(self._recovering) > RECOVERIES_MAX:
                self._recovering.popitem(last=False)
        elif (began_s := self._recovering.pop(attempt, None)) is not None and kind == GenerationSteppingEvent.kind:
            self._recovery_s.labels(cluster).observe(max(0.0, time_s - began_s))
