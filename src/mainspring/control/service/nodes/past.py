"""What changed of a node: what its cluster said of it, and who closed and opened it, newest first."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa

from mainspring.control.health.quarantines import OWNER
from mainspring.control.store.nodes.closures import closures_of
from mainspring.control.store.nodes.repairs import repairs_at
from mainspring.control.store.schema import node_states
from mainspring.domain.answers import NodeChange, NodeClosure, NodeRepair
from mainspring.domain.ids import ClusterName, NodeName


def changes_of(connection: sa.Connection, cluster: ClusterName, node: NodeName, limit: int) -> tuple[NodeChange, ...]:
    """Returns what changed of a node, newest first, as long as it is kept.

    Args:
        limit: The most to return.
    """
    found = [*_told(connection, cluster, node, limit)]
    for closure in closures_of(connection, cluster=cluster, node=node, past=True, limit=limit):
        found.extend(_of_closure(closure))
    for step in repairs_at(connection, cluster, node, limit):
        found.extend(_of_repair(step))
    return tuple(sorted(found, key=lambda one: -one.time_s)[:limit])


def _told(connection: sa.Connection, cluster: ClusterName, node: NodeName, limit: int) -> Iterator[NodeChange]:
    own = (node_states.c.cluster == cluster, node_states.c.node == node)
    query = sa.select(node_states).where(*own).order_by(node_states.c.ordinal.desc()).limit(limit)
    later_s: float | None = None
    for row in connection.execute(query):
        if row.until_s is not None and row.until_s != later_s:
            yield NodeChange(time_s=row.until_s, what="gone")
        yield NodeChange(time_s=row.since_s, what=row.condition, by=row.owner, words=row.reason)
        later_s = row.since_s


def _of_repair(step: NodeRepair) -> Iterator[NodeChange]:
    yield NodeChange(time_s=step.begun_s, what=f"{step.step} begun", by=OWNER, words=step.job)
    if step.ended_s is not None and step.outcome is not None:
        what = f"{step.step} {step.outcome.value}"
        yield NodeChange(time_s=step.ended_s, what=what, by=OWNER, words=step.words)


def _of_closure(closure: NodeClosure) -> Iterator[NodeChange]:
    yield NodeChange(time_s=closure.from_s, what=closure.kind.value, by=closure.owner, words=closure.reason)
    if closure.ended_s is not None:
        what = f"{closure.kind.value} ended"
        yield NodeChange(time_s=closure.ended_s, what=what, by=closure.ended_by, words=closure.ended_reason)
