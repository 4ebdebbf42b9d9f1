"""The fleet view: what engines last said of their clusters, shared by the loop that asks and the API that shows; and
what people hold: teams, clusters and nodes of which nothing is to start.

Where controllers share a store, the one that leads keeps its view there, and the others follow it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Lock
from typing import final

import sqlalchemy as sa

from mainspring.control.health.quarantines import NodePlace
from mainspring.control.store.nodes.closures import holds_of, open_closures
from mainspring.control.store.nodes.maintenance import windows
from mainspring.control.store.nodes.repairs import burning_in
from mainspring.control.store.records import chunks
from mainspring.control.store.rows import RowMapping, read_text, text_of
from mainspring.control.store.schema import fleet, holds, node_states
from mainspring.domain.answers import MaintenanceWindow
from mainspring.domain.fleet import Inventory, Node, NodeCondition, NodeRef
from mainspring.domain.hardware.care import ONLY
from mainspring.domain.ids import ClusterName, NodeName, TeamName
from mainspring.domain.job import Hold
from mainspring.domain.plan import Grant

OWNER_KEPT = 255  # Letters of who closed a node, and why.
KEPT_S = 5.0  # How old the time may be at which followers see that a cluster answered.
NOTICE_S = 3_600.0  # Before maintenance nothing more starts: as long as what was lost with an hour's work is felt.
_MARKS = sa.select(fleet.c.cluster, fleet.c.told_s, fleet.c.answering, fleet.c.seen_s)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _NodeStates:
    """The inventory from which the states of a cluster's nodes were written last, and these: condition and owner."""

    inventory: Inventory
    states: Mapping[NodeName, tuple[str, str]]


@final
class NodeIndex:
    """The nodes of one inventory, looked up as they are asked for; none of a cluster that chooses them by itself.

    Each look through all of them is made once an inventory: that is another only when something of it has changed.
    """

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self.nodes: Sequence[Node] = () if inventory.delegated else inventory.nodes

    @cached_property
    def by_name(self) -> Mapping[NodeName, Node]:
        """Returns each node by its name."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def cordoned(self) -> Sequence[Node]:
        """Returns the nodes that its engine shows as cordoned."""
        return [node for node in self.nodes if node.condition is NodeCondition.CORDONED]

    @cached_property
    def places(self) -> Mapping[NodeName, NodePlace]:
        """Returns where each node stands among the others."""
        leaves = {node.name: "/".join(part for _, part in node.domains) for node in self.nodes}
        counts, every = Counter(leaves.values()), len(self.nodes)
        return {
            name: NodePlace(leaf=leaf, leaf_nodes=counts[leaf] if leaf else 0, cluster_nodes=every)
            for name, leaf in leaves.items()
        }

    @cached_property
    def by_leaf(self) -> Mapping[str, Collection[NodeRef]]:
        """Returns the nodes of each narrowest domain, in which one is soon found."""
        found: dict[str, dict[NodeRef, None]] = {}
        for name, place in self.places.items():
            if place.leaf:
                found.setdefault(place.leaf, {})[NodeRef(cluster=self.inventory.cluster, node=name)] = None
        return found


@final
class Places(Mapping[NodeRef, NodePlace]):
    """Where each node stands among the others, of clusters where we choose nodes."""

    def __init__(self, indices: Mapping[ClusterName, NodeIndex]) -> None:
        self._indices = indices

    def __getitem__(self, at: NodeRef) -> NodePlace:
        """Returns where a node stands."""
        return self._indices[at.cluster].places[at.node]

    def __iter__(self) -> Iterator[NodeRef]:
        """Yields every node, cluster by cluster."""
        for name, index in self._indices.items():
            for node in index.places:
                yield NodeRef(cluster=name, node=node)

    def __len__(self) -> int:
        """Returns how many nodes there are."""
        return sum(len(index.nodes) for index in self._indices.values())


class FleetView:
    """The last inventory of each cluster that ever answered. Used by many threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._seen: dict[ClusterName, ClusterSeen] = {}
        self._indices: dict[ClusterName, NodeIndex] = {}
        self._version = 0
        self._kept: dict[ClusterName, ClusterSeen] = {}  # As the store has it, by the thread of the loop alone.
        self._told_s: dict[ClusterName, float] = {}
        self._states: dict[ClusterName, _NodeStates] = {}
        self._asked: Collection[ClusterName] | None = None

    def answered(self, inventory: Inventory, *, now_s: float) -> None:
        """Keeps an answer.

        Args:
            inventory: What the engine said.
        """
        with self._lock:
            known = self._seen.get(inventory.cluster)
            same = known is not None and known.inventory == inventory
            if known is None or not known.answering or not same:
                self._version += 1
            told = known.inventory if known is not None and same else inventory  # To be known again by itself.
            self._seen[inventory.cluster] = ClusterSeen(inventory=told, answering=True, seen_s=now_s)

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

    def indices(self) -> Mapping[ClusterName, NodeIndex]:
        """Returns the nodes of every cluster that ever answered, in order of name; the same as long as they are so."""
        with self._lock:
            before = self._indices
            self._indices = {
                name: known
                if (known := before.get(name)) is not None and known.inventory is self._seen[name].inventory
                else NodeIndex(self._seen[name].inventory)
                for name in sorted(self._seen)
            }
            return self._indices

    def places(self) -> Places:
        """Returns where each node stands among the others."""
        return Places(self.indices())

    # ---------------------------------------------------------------- in the store, by the thread of the loop

    def lead(self, clusters: Collection[ClusterName]) -> None:
        """Forgets what another leader said of clusters that this one does not know, and that it kept any of it.

        Args:
            clusters: Those that it asks.
        """
        with self._lock:
            known = {name: seen for name, seen in self._seen.items() if name in clusters}
            self._version += len(known) < len(self._seen)
            self._seen = known
        self._kept, self._told_s, self._states, self._asked = {}, {}, {}, clusters

    def note(self, connection: sa.Connection, now_s: float) -> None:
        """Writes which nodes came, changed and went since the last time; a node that only gives another reason has not.

        Slots are no nodes, and come and go with the queue of their cluster: of a delegated one nothing is written.

        Args:
            connection: From `Store.write`, of the leader; where that fails, `lead` is to be called again.
        """
        if self._asked is not None:
            gone = (node_states.c.until_s.is_(None), node_states.c.cluster.not_in(sorted(self._asked)))
            connection.execute(sa.update(node_states).where(*gone).values(until_s=now_s))
            self._asked = None
        for name, seen in self.seen().items():
            noted = self._states.get(name)
            if noted is None or noted.inventory is not seen.inventory:
                before = _open_states(connection, name) if noted is None else noted.states
                told = () if seen.inventory.delegated else seen.inventory.nodes
                states = {node.name: (node.condition.value, node.condition_owner[:OWNER_KEPT]) for node in told}
                ended = [node for node, state in before.items() if states.get(node) != state]
                begun = [node for node in told if before.get(node.name) != states[node.name]]
                _end_states(connection, name, ended, now_s)
                _begin_states(connection, name, begun, now_s)
                self._states[name] = _NodeStates(inventory=seen.inventory, states=states)

    def keep(self, connection: sa.Connection, now_s: float) -> None:
        """Writes what has changed: inventories as they do, and every few seconds that a cluster answered.

        Args:
            connection: From `Store.write`, of the leader; where that fails, `lead` is to be called again.
        """
        if not self._kept:
            connection.execute(sa.delete(fleet))
        for name, seen in self.seen().items():
            kept = self._kept.get(name)
            marks = {"answering": seen.answering, "seen_s": seen.seen_s}
            if kept is None or kept.inventory is not seen.inventory:
                told = {"cluster": name, "inventory": text_of(seen.inventory), "told_s": now_s}
                connection.execute(sa.delete(fleet).where(fleet.c.cluster == name))
                connection.execute(sa.insert(fleet).values(**told, **marks))
            elif kept.answering != seen.answering or abs(seen.seen_s - kept.seen_s) >= KEPT_S:
                connection.execute(sa.update(fleet).where(fleet.c.cluster == name).values(marks))
            else:
                continue
            self._kept[name] = seen

    def follow(self, connection: sa.Connection) -> None:
        """Reads what the leader keeps, and no inventory that is known already.

        Args:
            connection: From `Store.read`.
        """
        before, seen = self.seen(), {}
        marks = connection.execute(_MARKS.order_by(fleet.c.cluster)).all()
        for row in marks:
            name = ClusterName(row.cluster)
            if name in before and self._told_s.get(name) == row.told_s:
                inventory = before[name].inventory
            else:
                text = connection.execute(sa.select(fleet.c.inventory).where(fleet.c.cluster == name)).scalar_one()
                inventory = read_text(Inventory, text)
            seen[name] = ClusterSeen(inventory=inventory, answering=row.answering, seen_s=row.seen_s)
        self._told_s = {ClusterName(row.cluster): row.told_s for row in marks}
        with self._lock:
            same = all(
                name in before and before[name].inventory is one.inventory and before[name].answering == one.answering
                for name, one in seen.items()
            )
            self._version += not (same and len(seen) == len(before))
            self._seen = seen


# ---------------------------------------------------------------- states of nodes


def _open_states(connection: sa.Connection, cluster: ClusterName) -> Mapping[NodeName, tuple[str, str]]:
    now = (node_states.c.until_s.is_(None), node_states.c.cluster == cluster)
    query = sa.select(node_states.c.node, node_states.c.condition, node_states.c.owner).where(*now)
    return {NodeName(row.node): (row.condition, row.owner) for row in connection.execute(query)}


def _end_states(connection: sa.Connection, cluster: ClusterName, ended: Sequence[NodeName], now_s: float) -> None:
    now = (node_states.c.until_s.is_(None), node_states.c.cluster == cluster)
    for some in chunks(ended):
        connection.execute(sa.update(node_states).where(*now, node_states.c.node.in_(some)).values(until_s=now_s))


def _begin_states(connection: sa.Connection, cluster: ClusterName, begun: Sequence[Node], now_s: float) -> None:
    rows = [
        {
            "cluster": cluster,
            "node": node.name,
            "condition": node.condition.value,
            "owner": node.condition_owner[:OWNER_KEPT],
            "reason": node.condition_reason[:OWNER_KEPT],
            "since_s": now_s,
        }
        for node in begun
    ]
    if rows:
        connection.execute(sa.insert(node_states), rows)


# ---------------------------------------------------------------- holds

_ROWS = RowMapping(Hold, holds)


@final
@dataclass(frozen=True, slots=True)
class Holds:
    """What people hold, by what it is."""

    teams: Mapping[TeamName, Hold] = field(default_factory=dict)
    clusters: Mapping[ClusterName, Hold] = field(default_factory=dict)
    nodes: Mapping[NodeRef, Hold] = field(default_factory=dict)
    trials: Mapping[NodeRef, str] = field(default_factory=dict)
    """Closed nodes where a burn-in may run, and nothing else; and who keeps them."""
    windows: tuple[MaintenanceWindow, ...] = ()
    """Maintenance that is announced, and not over."""

    def starting(self, line: Iterable[TeamName], grants: Sequence[Grant]) -> Hold | None:
        """Returns what keeps something from starting where a plan has it, None for nothing.

        Args:
            line: Its team, and those above it.
        """
        own = [self.of_team(line), *(self.clusters.get(grant.cluster) for grant in grants)]
        places = (NodeRef(cluster=each.cluster, node=node) for each in grants for node in each.nodes)
        own += [self.nodes.get(at) for at in places if at not in self.trials] if self.nodes else []
        return next((hold for hold in own if hold is not None), None)

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
        places = [NodeRef(cluster=cluster, node=node) for node in nodes] if self.nodes else []
        own += [self.nodes.get(at) for at in places if at not in self.trials]
        return next((hold for hold in own if hold is not None and hold.drain), None)

    def ahead(self, now_s: float) -> Holds:
        """Returns the same, without maintenance that is over."""
        return replace(self, windows=tuple(one for one in self.windows if now_s < one.until_s))

    def due(self, now_s: float) -> Holds:
        """Returns the same, with the windows alone that plans look at: they begin soon, or have begun."""
        near = tuple(one for one in self.windows if one.from_s - NOTICE_S <= now_s < one.until_s)
        return self if near == self.windows else replace(self, windows=near)

    def planned(self, inventory: Inventory) -> Inventory:
        """Returns an inventory as plans see it: as `applied`, but for nodes that are open to a burn-in."""
        seen = self.applied(inventory)
        own = {at.node: owner for at, owner in self.trials.items() if at.cluster == inventory.cluster}
        if not own or inventory.cluster in self.clusters:
            return seen

        def tried(node: Node) -> Node:
            if node.condition is not NodeCondition.CORDONED or own.get(node.name) != node.condition_owner:
                return node  # It is down, or closed by somebody else as well.
            taint = trial_taint(NodeRef(cluster=inventory.cluster, node=node.name))
            return replace(
                node,
                condition=NodeCondition.READY,
                condition_owner="",
                condition_reason="",
                taints=(*node.taints, taint),
                slice="",  # A host alone is no slice.
            )

        return replace(seen, nodes=tuple(map(tried, seen.nodes)))

    def applied(self, inventory: Inventory) -> Inventory:
        """Returns an inventory in which the nodes that are held are cordoned; one that is not ready stays as it is."""
        inventory = _with_windows(inventory, [one for one in self.windows if one.cluster == inventory.cluster])
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


def _with_windows(inventory: Inventory, windows: Sequence[MaintenanceWindow]) -> Inventory:
    """Returns an inventory whose nodes leave when the first of their windows begins."""
    if not windows or inventory.delegated:
        return inventory
    every = [one for one in windows if not one.nodes]
    first: dict[NodeName, MaintenanceWindow] = {}
    for one in sorted(windows, key=lambda each: each.from_s):
        for name in one.nodes:
            first.setdefault(name, one)

    def seen(node: Node) -> Node:
        own = [*every, *([first[node.name]] if node.name in first else [])]
        window = min(own, key=lambda each: each.from_s, default=None)
        if window is None or (node.leaves_s is not None and node.leaves_s <= window.from_s):
            return node
        return replace(node, leaves_s=window.from_s, condition_reason=node.condition_reason or window.words)

    return replace(inventory, nodes=tuple(map(seen, inventory.nodes)))


def read_holds(connection: sa.Connection) -> Holds:
    """Returns what people hold of teams, clusters and nodes, each in order of name."""
    every = sorted(_ROWS.read(connection, _ROWS.select), key=lambda one: (one.team, one.cluster, one.node))
    return Holds(
        teams={one.team: one for one in every if one.team},
        clusters={one.cluster: one for one in every if one.cluster and not one.node},
        nodes={NodeRef(cluster=one.cluster, node=one.node): one for one in every if one.node},
    )


def read_closed(connection: sa.Connection) -> Holds:
    """Returns what people hold, and the nodes that they or health keep closed."""
    held, closed = replace(read_holds(connection), windows=windows(connection)), holds_of(open_closures(connection))
    if not closed:
        return held
    trials = {at: closed[at].by for at in burning_in(connection) if at in closed and at not in held.nodes}
    return replace(held, nodes={**closed, **held.nodes}, trials=trials)


@final
class ClosedNodes:
    """What is held, as plans look at it: maintenance from shortly before it begins."""

    def __init__(self) -> None:
        self.holds = Holds()
        self._every = Holds()

    def read(self, connection: sa.Connection, now_s: float) -> None:
        """Reads it anew."""
        self._every = read_closed(connection)
        self.holds = self._every.due(now_s)

    def look(self, now_s: float) -> bool:
        """Returns whether it has changed by now."""
        before, self.holds = self.holds, self._every.due(now_s)
        return self.holds != before


def trial_taint(at: NodeRef) -> str:
    """Returns the taint that binds a burn-in to its node, and keeps others off."""
    return f"{ONLY}burn-in/{at.cluster}/{at.node}"


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
