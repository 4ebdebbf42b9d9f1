"""Closures: each time that a node was closed to new work, by whom, why, until when; and whether its engine shows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import sqlalchemy as sa

from mainspring.control.store.records import chunks
from mainspring.control.store.rows import RowMapping
from mainspring.control.store.schema import closures
from mainspring.domain.answers import ClosureKind, NodeClosure
from mainspring.domain.fleet import NodeRef
from mainspring.domain.ids import ClusterName, NodeName
from mainspring.domain.job import Hold

OPEN_MAX = 20_000  # More than anybody looks after; the loop reads them all when one changes.
_ROWS = RowMapping(NodeClosure, closures)
_OPEN = closures.c.ended_s.is_(None)
NEW = 0  # The number of one that is not in the store yet.
NOBODY = ""  # Who has ended what ended at its time.


def open_closures(connection: sa.Connection) -> tuple[NodeClosure, ...]:
    """Returns what keeps nodes closed, the oldest first."""
    return _ROWS.read(connection, _ROWS.select.where(_OPEN).order_by(closures.c.number).limit(OPEN_MAX))


def shown_closures(connection: sa.Connection) -> tuple[NodeClosure, ...]:
    """Returns what keeps nodes closed, and what is over and its engine still shows; the oldest first."""
    query = _ROWS.select.where(sa.or_(_OPEN, closures.c.on_engine)).order_by(closures.c.number).limit(2 * OPEN_MAX)
    return _ROWS.read(connection, query)


def ended_closures(connection: sa.Connection, nodes: Sequence[NodeRef]) -> tuple[NodeClosure, ...]:
    """Returns closures of some nodes that are over, the newest first."""
    found: list[NodeClosure] = []
    for some in chunks(nodes):
        own = (closures.c.ended_s.is_not(None), closures.c.node.in_([at.node for at in some]))
        found += _ROWS.read(connection, _ROWS.select.where(*own).order_by(closures.c.number.desc()))
    wanted = frozenset(nodes)
    return tuple(one for one in found if one.at in wanted)


def closures_of(
    connection: sa.Connection,
    *,
    cluster: ClusterName | None = None,
    node: NodeName | None = None,
    past: bool,
    before: int | None = None,
    limit: int,
) -> tuple[NodeClosure, ...]:
    """Returns closures, the newest first.

    Args:
        cluster: Only of this cluster, unless None.
        node: Only of this node, unless None.
        past: Whether also those that are over.
        before: Only those with a lower number, unless None.
        limit: The most to return.
    """
    query = _ROWS.select.order_by(closures.c.number.desc()).limit(limit)
    query = query if past else query.where(_OPEN)
    query = query if before is None else query.where(closures.c.number < before)
    query = query if cluster is None else query.where(closures.c.cluster == cluster)
    query = query if node is None else query.where(closures.c.node == node)
    return _ROWS.read(connection, query)


def released_s(connection: sa.Connection, since_s: float, owner: str) -> Mapping[NodeRef, float]:
    """Returns when nodes were last let out of quarantine by somebody, whatever was seen of them before.

    Args:
        since_s: Only since then.
        owner: Who has looked at nothing: health ends what it does not find any more; what ends at its time nobody does.
    """
    ended = (closures.c.ended_s > since_s, closures.c.ended_by.not_in([owner, NOBODY]))
    by_people = (*ended, closures.c.kind == _QUARANTINE)
    query = sa.select(closures.c.cluster, closures.c.node, sa.func.max(closures.c.ended_s).label("at_s"))
    rows = connection.execute(query.where(*by_people).group_by(closures.c.cluster, closures.c.node))
    return {NodeRef(cluster=ClusterName(row.cluster), node=NodeName(row.node)): row.at_s for row in rows}


def add_closure(connection: sa.Connection, closure: NodeClosure) -> NodeClosure:
    """Adds a closure, and returns it with its number.

    Args:
        connection: From `Store.write`.
    """
    assert closure.number == NEW
    values = _ROWS.row({name: getattr(closure, name) for name in _ROWS.columns if name != "number"})
    number = connection.execute(sa.insert(closures).values(values).returning(closures.c.number)).scalar_one()
    return replace(closure, number=number)


def change_closures(connection: sa.Connection, numbers: Iterable[int], **values: object) -> None:
    """Writes some fields of closures.

    Args:
        connection: From `Store.write`.
        values: By name of the field.
    """
    for some in chunks(numbers):
        connection.execute(sa.update(closures).where(closures.c.number.in_(some)).values(_ROWS.row(values)))


def holds_of(found: Iterable[NodeClosure]) -> Mapping[NodeRef, Hold]:
    """Returns what closures hold, as people's holds do: of one node what drains it first, then the oldest.

    Args:
        found: Open ones, the oldest first.
    """
    held: dict[NodeRef, Hold] = {}
    for one in found:
        hold = Hold(
            by=one.owner,
            since_s=one.from_s,
            reason=f"{one.kind.value}: {one.reason}",
            drain=one.kind is not ClosureKind.CORDON,
            cluster=one.cluster,
            node=one.node,
        )
        known = held.get(one.at)
        if known is None or (hold.drain and not known.drain):
            held[one.at] = hold
    return held


_QUARANTINE = ClosureKind.QUARANTINE.value
