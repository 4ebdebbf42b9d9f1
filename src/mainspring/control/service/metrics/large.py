"""Where the time of large jobs goes, as counters: what `ms goodput` tells of them, from when this server began."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import final

import sqlalchemy as sa
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily

from mainspring.control.state.ledgers import ATTEMPTS, accounted
from mainspring.control.store.records import chunks
from mainspring.control.store.schema import UNCOUNTED, allocations, attempts
from mainspring.domain.goodput import TimeUse
from mainspring.domain.ids import AttemptId

LARGE_NODES = 16  # 128 accelerators, where one node's failure stops the most: one of 16 fails every 10 days or so.
_AT_ONCE = 500  # Attempts of one query.


@final
class LargeJobs:
    """Adds up what ledgers of large attempts grow by. Used by one thread at a time.

    Args:
        nodes: How many nodes make an attempt a large one.
    """

    def __init__(self, nodes: int = LARGE_NODES) -> None:
        self._nodes = nodes
        self._query = (
            sa.select(allocations.c.attempt_id)
            .join(attempts, attempts.c.id == allocations.c.attempt_id)
            .where(UNCOUNTED, allocations.c.ended_s.is_(None))
            .group_by(allocations.c.attempt_id)
            .having(sa.func.sum(allocations.c.nodes) >= nodes)
        )
        self._told: dict[AttemptId, Mapping[TimeUse, float]] = {}
        self._spent_s: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._shown_s: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._begun = False

    def collect(self, connection: sa.Connection, *, now_s: float, lease_s: float) -> Iterator[Metric]:
        """Returns node-seconds by cluster and use.

        Time that moves from one use to another is subtracted from what that use grows by next: counters never fall.
        """
        large = {AttemptId(one) for one in connection.execute(self._query).scalars()}
        for some in chunks(sorted(large | self._told.keys()), _AT_ONCE):
            rows = connection.execute(ATTEMPTS.where(attempts.c.id.in_(some))).all()
            for row, part in zip(rows, accounted(connection, rows, now_s=now_s, lease_s=lease_s), strict=True):
                before = self._told.get(row.id, {} if self._begun else part.seconds)
                for use, spent_s in part.seconds.items():
                    self._spent_s[row.cluster, use.value] += spent_s - before.get(use, 0.0)
                self._told[row.id] = part.seconds
                if row.ended_s is not None:
                    large.discard(row.id)
        self._told = {attempt: told for attempt, told in self._told.items() if attempt in large}
        self._begun = True
        words = f"Node-seconds of attempts of {self._nodes} nodes or more, by what they went into."
        family = CounterMetricFamily("mainspring_large_node_seconds", words, labels=("cluster", "use"))
        for key, spent_s in sorted(self._spent_s.items()):
            self._shown_s[key] = max(self._shown_s[key], spent_s)
            family.add_metric(key, self._shown_s[key])
        yield family
