"""The fleet view: what engines last said of their clusters, shared by the loop that asks and the API that shows; and
what people hold: teams, clusters and nodes of which nothing is to start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import final

import sqlalchemy as sa

from mainspring.control.store.rows import RowMapping
from mainspring.control.store.schema import holds
from mainspring.domain.fleet import Inventory, Node, NodeCondition, NodeRef
from mainspring.domain.ids import ClusterName, NodeName, TeamName
from mainspring.domain.job import Hold


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSeen:
    """One cluster as its engine last told it.

    Args:
        inventory: The last one it gave.
        answering: Whether it answered the last time it was asked.
        seen_s: When it last answered.
    """

    inventory: Inventory
    answering: bool
    seen_s: float


class FleetView:
    """The last inventory of each cluster that ever answered. Used by many threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._seen: dict[ClusterName, ClusterSeen] = {}
        self._version = 0

    def answered(self, inventory: Inventory, *, now_s: float) -> None:
        """Keeps an answer.

        Args:
            inventory: What the engine said.
        """
        seen = ClusterSeen(inventory=inventory, answering=True, seen_s=now_s)
        with self._lock:
            known = self._seen.get(inventory.cluster)
            if known is None or not known.answering or known.inventory != inventory:
                self._version += 1
            self._seen[inventory.cluster] = seen

    def silent(self, cluster: ClusterName) -> None:
        """Notes that a cluster did not answer; what it said before is kept, marked so."""
        with self._lock:
            known = self._seen.get(cluster)
            if known is not None and known.answering:
                self._version += 1
                self._seen[cluster] = ClusterSeen(inventory=known.inventory, answering=False, seen_s=known.seen_s)

    @property
    def version(self) -> int:
        """Returns a number that grows whenever what is known changes."""
        return self._version

    def seen(self) -> Mapping[ClusterName, ClusterSeen]:
        """Returns every cluster that ever answered, in order of name."""
        with self._lock:
            return {name: self._seen[name] for name in sorted(self._seen)}


# ---------------------------------------------------------------- holds

_ROWS = RowMapping(Hold, holds)


@final
@dataclass(frozen=True, slots=True)
class Holds:
    """What people hold, by what it is."""

    teams: Mapping[TeamName, Hold] = field(default_factory=dict)
    clusters: Mapping[ClusterName, Hold] = field(default_factory=dict)
    nodes: Mapping[NodeRef, Hold] = field(default_factory=dict)

    def all(self) -> tuple[Hold, ...]:
        """Returns every one of them."""
        return (*self.teams.values(), *self.clusters.values(), *self.nodes.values())

    def of(self, hold: Hold) -> Hold | None:
        """Returns what is held of the same, None for nothing."""
        if hold.team:
            return self.teams.get(hold.team)
        at = NodeRef(cluster=hold.cluster, node=hold.node)
        return self.nodes.get(at) if hold.node else self.clusters.get(hold.cluster)

    def of_team(self, line: Iterable[TeamName]) -> Hold | None:
        """Returns what keeps jobs of a team from starting, None for nothing.

        Args:
            line: The team, and those above it, nearest first.
        """
        return next((self.teams[team] for team in line if team in self.teams), None)

    def draining(self, line: Iterable[TeamName], cluster: ClusterName, nodes: Iterable[NodeName]) -> Hold | None:
        """Returns what ends an attempt that runs, None for nothing.

        Args:
            line: Its team, and those above it.
            nodes: Where it is.
        """
        own = [self.teams.get(team) for team in line] if self.teams else []
        own += [self.clusters.get(cluster)] if self.clusters else []
        own += [self.nodes.get(NodeRef(cluster=cluster, node=node)) for node in nodes] if self.nodes else []
        return next((hold for hold in own if hold is not None and hold.drain), None)

    def applied(self, inventory: Inventory) -> Inventory:
        """Returns an inventory in which the nodes that are held are cordoned; one that is not ready stays as it is."""
        whole = self.clusters.get(inventory.cluster)
        if whole is None and not any(at.cluster == inventory.cluster for at in self.nodes):
            return inventory

        def seen(node: Node) -> Node:
            hold = self.nodes.get(NodeRef(cluster=inventory.cluster, node=node.name), whole)
            if hold is None or node.condition is not NodeCondition.READY:
                return node
            return replace(
                node, condition=NodeCondition.CORDONED, condition_owner=hold.by, condition_reason=hold.reason
            )

        return replace(inventory, nodes=tuple(map(seen, inventory.nodes)))


def read_holds(connection: sa.Connection) -> Holds:
    """Returns what people hold of teams, clusters and nodes, each in order of name."""
    every = sorted(_ROWS.read(connection, _ROWS.select), key=lambda one: (one.team, one.cluster, one.node))
    return Holds(
        teams={one.team: one for one in every if one.team},
        clusters={one.cluster: one for one in every if one.cluster and not one.node},
        nodes={NodeRef(cluster=one.cluster, node=one.node): one for one in every if one.node},
    )


def write_hold(connection: sa.Connection, hold: Hold) -> None:
    """Writes what is held, in place of what was held of the same.

    Args:
        connection: From `Store.write`.
    """
    forget_hold(connection, hold)
    connection.execute(sa.insert(holds).values(_ROWS.row({name: getattr(hold, name) for name in _ROWS.columns})))


def forget_hold(connection: sa.Connection, hold: Hold) -> None:
    """Forgets what is held of a team, a cluster or a node.

    Args:
        connection: From `Store.write`.
        hold: Names it.
    """
    own = (holds.c.team == hold.team, holds.c.cluster == hold.cluster, holds.c.node == hold.node)
    connection.execute(sa.delete(holds).where(*own))
