"""What the store keeps of health: rules that somebody lets act, what the leader's fold makes of nodes, breakers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from mainspring.control.store.nodes.tables import breakers, health_rules
from mainspring.control.store.records import chunks
from mainspring.control.store.rows import RowMapping
from mainspring.control.store.schema import node_health
from mainspring.domain.answers import NodeHealthView
from mainspring.domain.codec import alike
from mainspring.domain.fleet import NodeRef
from mainspring.domain.ids import ClusterName, NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """That somebody lets a rule act."""

    rule: str
    by: str
    since_s: float
    reason: str


_PROMOTIONS = RowMapping(Promotion, health_rules)
_HEALTHS = RowMapping(NodeHealthView, node_health)


def promotions(connection: sa.Connection) -> Mapping[str, Promotion]:
    """Returns the rules that act, by name."""
    found = _PROMOTIONS.read(connection, _PROMOTIONS.select.order_by(health_rules.c.rule))
    return {one.rule: one for one in found}


def promote(connection: sa.Connection, promotion: Promotion) -> None:
    """Lets a rule act.

    Args:
        connection: From `Store.write`.
    """
    demote(connection, promotion.rule)
    connection.execute(sa.insert(health_rules).values(_PROMOTIONS.row(alike(Promotion, promotion))))


def demote(connection: sa.Connection, rule: str) -> None:
    """Puts a rule into shadow.

    Args:
        connection: From `Store.write`.
    """
    connection.execute(sa.delete(health_rules).where(health_rules.c.rule == rule))


# ---------------------------------------------------------------- what the leader's fold says


def healths(
    connection: sa.Connection, *, cluster: ClusterName | None = None, nodes: Sequence[NodeName] | None = None
) -> Mapping[NodeRef, NodeHealthView]:
    """Returns how nodes are of which anything is known, in order of cluster and name.

    Args:
        cluster: Only of this cluster, unless None.
        nodes: Only these, unless None.
    """
    query = _HEALTHS.select.order_by(node_health.c.cluster, node_health.c.node)
    query = query if cluster is None else query.where(node_health.c.cluster == cluster)
    parts = [query] if nodes is None else [query.where(node_health.c.node.in_(some)) for some in chunks(nodes)]
    return {one.at: one for part in parts for one in _HEALTHS.read(connection, part)}


def write_healths(connection: sa.Connection, changed: Mapping[NodeRef, NodeHealthView | None]) -> None:
    """Writes how some nodes are; None for those of which nothing is known any more.

    Args:
        connection: From `Store.write`, of the leader.
    """
    own = [{"of_cluster": at.cluster, "of_node": at.node} for at in changed]
    there = (node_health.c.cluster == sa.bindparam("of_cluster"), node_health.c.node == sa.bindparam("of_node"))
    if own:
        connection.execute(sa.delete(node_health).where(*there), own)
    rows = [_HEALTHS.row(alike(NodeHealthView, one)) for one in changed.values() if one is not None]
    if rows:
        connection.execute(sa.insert(node_health), rows)


# ---------------------------------------------------------------- breakers


def breaker_texts(connection: sa.Connection) -> Mapping[ClusterName, str]:
    """Returns what is known of each cluster's breaker, as it was written."""
    rows = connection.execute(sa.select(breakers).order_by(breakers.c.cluster))
    return {ClusterName(row.cluster): row.breaker for row in rows}


def write_breaker(connection: sa.Connection, cluster: ClusterName, text: str) -> None:
    """Writes what is known of a cluster's breaker.

    Args:
        connection: From `Store.write`.
        text: "" for nothing.
    """
    connection.execute(sa.delete(breakers).where(breakers.c.cluster == cluster))
    if text:
        connection.execute(sa.insert(breakers).values(cluster=cluster, breaker=text))
