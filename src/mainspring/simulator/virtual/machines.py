"""The nodes of a replayed fleet: which are there, what is taken of each, and what they cost now.

Nodes that are away for a while stay listed, as down, so that a planner knows they may come back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf

from mainspring.domain.fleet import Inventory, Node, NodeCondition, Offer
from mainspring.domain.ids import ChipName, ClusterName, NodeName
from mainspring.domain.job import MILLI, Option
from mainspring.domain.plan import Grant


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinePool:
    """The nodes of one chip type in one cluster.

    Args:
        counts_cores: Whether its nodes have no chips, so that cores are what is counted.
    """

    cluster: ClusterName
    chip: ChipName
    counts_cores: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineShare:
    """A part of a pool that comes or goes.

    Args:
        pool: Index of the pool.
        amount: Chips, or cores where the pool counts those.
    """

    pool: int
    amount: float
    dollars_per_hour: float


@dataclass(slots=True)
class _Machine:
    node: Node
    pool: int
    free_milli: int
    room: float  # Chips, or cores where the pool counts those.
    dollars_per_chip_hour: float | None = None  # None: its cluster's price.
    away: int = 0  # How many reasons it has to be away.
    coming: bool = False  # Whether that is because it was only ordered yet.
    leaves: tuple[float, ...] = ()  # Announced times at which it goes.


@dataclass(slots=True)
class _Cluster:
    inventory: Inventory
    machines: dict[NodeName, _Machine]
    prices: dict[ChipName, float]
    offers: dict[str, Offer]
    ordered: int = 0
    changed: bool = True
    relisted: bool = False


class Machines:
    """Every node of the fleet.

    Args:
        inventories: Every cluster as it is at first.
    """

    def __init__(self, inventories: Iterable[Inventory]) -> None:
        self.pools: list[MachinePool] = []
        self._pool_rows: dict[tuple[ClusterName, ChipName], int] = {}
        self._clusters: dict[ClusterName, _Cluster] = {}
        for inventory in inventories:
            self._clusters[inventory.cluster] = cluster = _Cluster(
                inventory=inventory,
                machines={},
                prices=dict(inventory.dollars_per_chip_hour),
                offers={offer.name: offer for offer in inventory.offers},
            )
            with_chips = {node.chip for node in inventory.nodes if node.chips}
            for node in inventory.nodes:
                self._add(cluster, node, counts_cores=node.chip not in with_chips)

    def _add(self, cluster: _Cluster, node: Node, *, counts_cores: bool) -> _Machine:
        key = cluster.inventory.cluster, node.chip
        if key not in self._pool_rows:
            self._pool_rows[key] = len(self.pools)
            self.pools.append(MachinePool(cluster=key[0], chip=key[1], counts_cores=counts_cores))
        pool = self._pool_rows[key]
        machine = _Machine(
            node=node,
            pool=pool,
            free_milli=node.chips * MILLI - node.foreign_chip_milli,
            room=(node.cpus or 0.0) if self.pools[pool].counts_cores else float(node.chips),
            away=int(node.condition is not NodeCondition.READY),
        )
        cluster.machines[node.name] = machine
        return machine

    # ---------------------------------------------------------------- what is there

    def changes(self) -> Iterator[Inventory]:
        """Yields the inventory of each cluster that changed since the last time."""
        for cluster in self._clusters.values():
            if cluster.changed:
                cluster.changed = False
                cluster.inventory = self._inventory(cluster)
                yield cluster.inventory

    def _inventory(self, cluster: _Cluster) -> Inventory:
        if cluster.relisted:
            cluster.machines = dict(sorted(cluster.machines.items()))
            cluster.relisted = False
        return replace(
            cluster.inventory,
            nodes=tuple(map(_as_seen, cluster.machines.values())),
            dollars_per_chip_hour=dict(cluster.prices),
            offers=tuple(offer for offer in cluster.offers.values() if offer.nodes_max),
        )

    def pieces(self) -> Iterator[MachineShare]:
        """Yields every node that is there."""
        for cluster in self._clusters.values():
            for machine in cluster.machines.values():
                if not machine.away:
                    yield _piece(cluster, machine)

    def is_listed(self, cluster: ClusterName, node: NodeName) -> bool:
        """Returns whether a node is listed, away or not."""
        return node in self._clusters[cluster].machines

    def is_there(self, cluster: ClusterName, node: NodeName) -> bool:
        """Returns whether a node is listed and not away."""
        machine = self._clusters[cluster].machines.get(node)
        return machine is not None and not machine.away

    # ---------------------------------------------------------------- what becomes of them

    def announce(self, cluster: ClusterName, nodes: Iterable[NodeName], at_s: float) -> None:
        """Notes that nodes will go."""
        self._clusters[cluster].changed = True
        for machine in self._listed(cluster, nodes):
            machine.leaves = (*machine.leaves, at_s)

    def go(self, cluster: ClusterName, nodes: Iterable[NodeName], at_s: float) -> Iterator[MachineShare]:
        """Takes nodes away, and yields each that was there.

        Args:
            at_s: The time; what was announced for it is done.
        """
        self._clusters[cluster].changed = True
        for machine in self._listed(cluster, nodes):
            machine.leaves = tuple(leaves_s for leaves_s in machine.leaves if leaves_s != at_s)
            machine.away += 1
            if machine.away == 1:
                yield _piece(self._clusters[cluster], machine)

    def come_back(self, cluster: ClusterName, nodes: Iterable[NodeName]) -> Iterator[MachineShare]:
        """Lets nodes come back, and yields each that is there again."""
        self._clusters[cluster].changed = True
        for machine in self._listed(cluster, nodes):
            machine.away -= 1
            if machine.away == 0:
                machine.coming = False
                yield _piece(self._clusters[cluster], machine)

    def _listed(self, cluster: ClusterName, nodes: Iterable[NodeName]) -> Iterator[_Machine]:
        machines = self._clusters[cluster].machines
        return (machines[node] for node in nodes if node in machines)

    def order(self, cluster: ClusterName, offer: str, count: int) -> tuple[Offer, tuple[NodeName, ...]]:
        """Orders nodes; returns the offer and the nodes, listed from now on and there when they come back.

        Args:
            count: How many are wanted; fewer are ordered when the offer has fewer left.
        """
        of = self._clusters[cluster]
        left = of.offers[offer]
        got = min(count, left.nodes_max)
        of.offers[offer] = replace(left, nodes_max=left.nodes_max - got)
        of.changed = of.relisted = True
        names = tuple(NodeName(f"{offer}-{of.ordered + place:05d}") for place in range(got))
        of.ordered += got
        for name in names:
            node = Node(name=name, chip=left.chip, chips=left.chips, condition=NodeCondition.COMING)
            machine = self._add(of, node, counts_cores=False)
            machine.node = replace(node, condition=NodeCondition.READY)
            machine.coming = True
            machine.dollars_per_chip_hour = left.dollars_per_chip_hour
        return left, names

    def give_back(self, cluster: ClusterName, offer: Offer, node: NodeName) -> MachineShare:
        """Gives a node back that was ordered and that nobody uses, and returns it as the part of its pool it was.

        Args:
            offer: What it was ordered from.
        """
        of = self._clusters[cluster]
        of.changed = of.relisted = True
        gone = _piece(of, of.machines.pop(node))
        left = of.offers[offer.name]
        of.offers[offer.name] = replace(left, nodes_max=left.nodes_max + 1)
        return gone

    def set_price(self, cluster: ClusterName, chip: ChipName, dollars_per_chip_hour: float) -> Iterator[MachineShare]:
        """Changes a price, and yields by how much each node that is there costs more."""
        of = self._clusters[cluster]
        more = dollars_per_chip_hour - of.prices.get(chip, 0.0)
        of.prices[chip] = dollars_per_chip_hour
        of.changed = True
        for machine in of.machines.values():
            if machine.node.chip == chip and not machine.away and machine.dollars_per_chip_hour is None:
                yield MachineShare(pool=machine.pool, amount=0.0, dollars_per_hour=machine.node.chips * more)

    # ---------------------------------------------------------------- what is taken

    def take(self, grant: Grant) -> None:
        """Takes what was granted. A plan that grants what is not free is a fault of the planner."""
        machines = self._clusters[grant.cluster].machines
        for node, milli in zip(grant.nodes, grant.chip_milli, strict=True):
            machine = machines[node]
            machine.free_milli -= milli
            assert machine.free_milli >= 0, f"{grant.cluster}/{node} has too few chips for {grant}"
            assert not machine.away, f"{grant.cluster}/{node} is not there for {grant}"

    def give(self, grant: Grant) -> None:
        """Gives back what was granted."""
        machines = self._clusters[grant.cluster].machines
        for node, milli in zip(grant.nodes, grant.chip_milli, strict=True):
            machines[node].free_milli += milli

    def use(self, grant: Grant, option: Option) -> Iterator[tuple[int, float]]:
        """Yields pool and amount (chips, or cores) that a grant uses on each of its nodes.

        Args:
            option: The option it was granted for.
        """
        machines = self._clusters[grant.cluster].machines
        for node, milli, ranks in zip(grant.nodes, grant.chip_milli, grant.ranks, strict=True):
            pool = machines[node].pool
            yield pool, option.cpus * ranks if self.pools[pool].counts_cores else milli / MILLI

    def dollars_per_hour(self, grant: Grant) -> float:
        """Returns what the chips of a grant cost now."""
        of = self._clusters[grant.cluster]
        price = 0.0
        for node, milli in zip(grant.nodes, grant.chip_milli, strict=True):
            price += _dollars_per_chip_hour(of, of.machines[node]) * milli / MILLI
        return price

    def is_idle(self, cluster: ClusterName, node: NodeName) -> bool:
        """Returns whether nobody has a chip of a node."""
        machine = self._clusters[cluster].machines[node]
        return machine.free_milli == machine.node.chips * MILLI


def _piece(cluster: _Cluster, machine: _Machine) -> MachineShare:
    return MachineShare(
        pool=machine.pool,
        amount=machine.room,
        dollars_per_hour=_dollars_per_chip_hour(cluster, machine) * machine.node.chips,
    )


def _dollars_per_chip_hour(cluster: _Cluster, machine: _Machine) -> float:
    own = machine.dollars_per_chip_hour
    return cluster.prices.get(machine.node.chip, 0.0) if own is None else own


def _as_seen(machine: _Machine) -> Node:
    leaves_s = min(machine.leaves, default=inf)
    known = machine.node.leaves_s
    if not machine.away and leaves_s == inf:
        return machine.node
    leaves = leaves_s if known is None else min(known, leaves_s)
    condition, reason = machine.node.condition, machine.node.condition_reason
    if machine.away and condition is NodeCondition.READY:
        condition, reason = (NodeCondition.COMING, "ordered") if machine.coming else (NodeCondition.DOWN, "away")
    return replace(
        machine.node,
        condition=condition,
        condition_reason=reason,
        leaves_s=None if leaves == inf else leaves,
    )
