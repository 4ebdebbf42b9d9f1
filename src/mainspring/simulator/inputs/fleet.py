"""A fleet as a replay knows it: what its engines would say at first, and what becomes of it in time."""

from __future__ import annotations

from dataclasses import dataclass

from mainspring.domain.errors import InvalidInput, nearest
from mainspring.domain.fleet import Inventory, Replica
from mainspring.domain.ids import ChipName, ClusterName, NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """Nodes that are away for a while.

    Args:
        from_s: When they go, in seconds of virtual time.
        until_s: When they are back, infinity for never.
        notice_s: How long before they go the planner is told; 0 for a fault, which nobody announces.
        reason: One clause for people.
    """

    cluster: ClusterName
    nodes: tuple[NodeName, ...]
    from_s: float
    until_s: float
    notice_s: float = 0.0
    reason: str = "failed"

    def __post_init__(self) -> None:
        """Checks the times.

        Raises:
            InvalidInput: It ends before it begins, or names no node.
        """
        if not (self.nodes and 0 <= self.from_s <= self.until_s and self.notice_s >= 0):
            raise InvalidInput(
                "accept an outage",
                on=self.cluster,
                got=f"{self.from_s:g} to {self.until_s:g} s",
                wanted="nodes, and an end after the start",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceChange:
    """A price from a time on."""

    cluster: ClusterName
    chip: ChipName
    at_s: float
    dollars_per_chip_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Clusters, and what becomes of them.

    Args:
        name: Shown in tables and plots.
        inventories: Every cluster as it is at first, by name.
        outages: When nodes are away: faults, and spot capacity that comes and goes.
        replicas: Where data lie at first.
    """

    name: str
    inventories: tuple[Inventory, ...]
    outages: tuple[Outage, ...] = ()
    prices: tuple[PriceChange, ...] = ()
    replicas: tuple[Replica, ...] = ()

    def __post_init__(self) -> None:
        """Checks that names are unique and that what is told is told of clusters and nodes there are.

        Raises:
            InvalidInput: A cluster comes twice, or a name is not known.
        """
        nodes = {each.cluster: frozenset(node.name for node in each.nodes) for each in self.inventories}
        if len(nodes) < len(self.inventories) or not nodes:
            raise InvalidInput(
                "accept a fleet",
                on=self.name,
                got=f"{len(self.inventories)} clusters",
                wanted="at least one, names that differ",
            )
        told: tuple[Outage | PriceChange | Replica, ...] = (*self.outages, *self.prices, *self.replicas)
        for cluster in sorted({each.cluster for each in told}):
            if cluster not in nodes:
                raise InvalidInput(
                    "accept a fleet", on=self.name, got=f"cluster {cluster}", wanted=nearest(cluster, nodes)
                )
        for outage in self.outages:
            for node in outage.nodes:
                if node not in nodes[outage.cluster]:
                    raise InvalidInput(
                        "accept a fleet",
                        on=f"{self.name}/{outage.cluster}",
                        got=node,
                        wanted=nearest(node, nodes[outage.cluster]),
                    )
