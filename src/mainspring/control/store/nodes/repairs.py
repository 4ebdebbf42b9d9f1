"""What was done to nodes in quarantine, each step once: which are under way, and which of them are burn-ins."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import sqlalchemy as sa

from mainspring.control.store.nodes.tables import node_repairs
from mainspring.control.store.records import chunks
from mainspring.control.store.rows import RowMapping
from mainspring.domain.answers import NodeRepair, RepairOutcome
from mainspring.domain.fleet import NodeRef
from mainspring.domain.hardware.care import BURN_IN
from mainspring.domain.ids import ClusterName, JobId, NodeName

NEW = 0  # The number of one that is not in the store yet.
_ROWS = RowMapping(NodeRepair, node_repairs)


def begin_repair(connection: sa.Connection, step: NodeRepair) -> NodeRepair:
    """Adds a step that begins, and returns it with its number.

    Args:
        connection: From `Store.write`.
    """
    values = _ROWS.row({name: getattr(step, name) for name in _ROWS.columns if name != "number"})
    query = sa.insert(node_repairs).values(values).returning(node_repairs.c.number)
    return replace(step, number=connection.execute(query).scalar_one())


def end_repair(connection: sa.Connection, number: int, outcome: RepairOutcome, words: str, now_s: float) -> bool:
    """Writes how a step ended, and returns whether it was under way.

    Args:
        connection: From `Store.write`.
    """
    own = (node_repairs.c.number == number, node_repairs.c.ended_s.is_(None))
    values = _ROWS.row({"ended_s": now_s, "outcome": outcome, "words": words})
    return connection.execute(sa.update(node_repairs).where(*own).values(values)).rowcount > 0


def repairs_of(connection: sa.Connection, closures: Iterable[int]) -> Mapping[int, Sequence[NodeRepair]]:
    """Returns the steps of some closures, oldest first."""
    found: dict[int, list[NodeRepair]] = defaultdict(list)
    for some in chunks(closures):
        query = _ROWS.select.where(node_repairs.c.closure.in_(some)).order_by(node_repairs.c.number)
        for one in _ROWS.read(connection, query):
            found[one.closure].append(one)
    return found


def repairs_at(connection: sa.Connection, cluster: ClusterName, node: NodeName, limit: int) -> Sequence[NodeRepair]:
    """Returns what was done to a node, newest first.

    Args:
        limit: The most to return.
    """
    own = (node_repairs.c.cluster == cluster, node_repairs.c.node == node)
    return _ROWS.read(connection, _ROWS.select.where(*own).order_by(node_repairs.c.number.desc()).limit(limit))


def under_way(connection: sa.Connection) -> Sequence[NodeRepair]:
    """Returns the steps that are not over, oldest first."""
    return _ROWS.read(connection, _ROWS.select.where(node_repairs.c.ended_s.is_(None)).order_by(node_repairs.c.number))


def burning_in(connection: sa.Connection) -> Mapping[NodeRef, JobId]:
    """Returns the nodes where a burn-in may run now, and its job."""
    return {one.at: one.job for one in under_way(connection) if one.step == BURN_IN}
