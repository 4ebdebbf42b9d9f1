"""Pools: the nodes of one cluster that options of one kind may use, and how many replicas each node has room for.

Replicas that fit on a node are packed, several to a node; a replica larger than every node takes whole nodes of one
size, one rank on each. What is free lies with `Room`; a pool only knows the machines.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import gcd, nan

import numpy as np

from mainspring.domain.fleet import NodeRef
from mainspring.domain.hardware.care import ONLY
from mainspring.domain.job import ANY_CHIP, MILLI, Option
from mainspring.planner.facts.snapshot import NONE, Flags, Integers, Snapshot
from mainspring.planner.place.avoided import AvoidedGroups
from mainspring.planner.place.fragmentation import Need
from mainspring.planner.place.kinds import alike
from mainspring.planner.place.topology import CLUSTER, NODE, SLICE, Ask, Tree, most, tree_of

CORES_ALONE_MAX = 1 << 20  # Replicas without chips on a node whose cores nobody counts: more than any job has.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Picked:
    """Nodes chosen for one role.

    Args:
        rows: Rows of the snapshot's nodes, in rank order.
        cost: What it leaves broken up, see `Room.cost`; NaN when nobody weighed it yet.
    """

    rows: Integers
    units: Integers
    cost: float = nan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Area:
    """Nodes of one cluster, with all that pools of them share.

    Args:
        blocks: The blocks they make up.
        rows: Their rows, ascending.
        chips: How many chips each has.
        usable: Which may get new work.
        size: For each node: the number of its size.
        sizes: By size: chips, cores, memory.
        rooms: Replicas that could stand, known already.
    """

    blocks: tuple[int, ...]
    rows: Integers
    tree: Tree
    chips: Integers
    usable: Flags
    size: Integers
    sizes: tuple[Integers, Integers, Integers]
    rooms: dict[tuple[Need, int, Ask, bool], int] = field(default_factory=dict)

    def counts(self, usable: Flags | None) -> Integers:
        """Returns how many nodes there are of each size.

        Args:
            usable: Which nodes count; None for all.
        """
        return np.bincount(self.size, weights=usable, minlength=len(self.sizes[0])).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pool:
    """The nodes of one cluster that options of one kind may use.

    Args:
        cluster: Index of the cluster.
        need: What one unit takes on one node.
        units_per_replica: Units a replica is made of: more than 1 when it is larger than every node.
        closeness: What its gangs want of the topology; of it, `units` does not matter.
        level_known: Whether the levels that must hold replicas exist here.
        dollars_per_chip_hour: Price of one chip, of the dearest when there are several types.
        units_max: The most units one node could hold.
        stood: Answers given already, each with the changes its nodes had seen.
    """

    cluster: int
    area: Area
    need: Need
    units_per_replica: int
    closeness: Ask
    level_known: bool
    dollars_per_chip_hour: float
    units_max: int = 0
    stood: dict[tuple[int, bytes], tuple[int, Picked | None]] = field(default_factory=dict)

    @property
    def rows(self) -> Integers:
        """Returns rows of the snapshot's nodes, ascending."""
        return self.area.rows

    @property
    def tree(self) -> Tree:
        """Returns their topology."""
        return self.area.tree

    @property
    def whole_nodes(self) -> bool:
        """Returns whether each unit takes a whole node."""
        return self.units_per_replica > 1

    @property
    def room_usable(self) -> int:
        """Returns how many replicas would stand together if nothing used the nodes that are ready."""
        return self._room_on(self.area.usable)

    @property
    def room_ever(self) -> int:
        """Returns how many replicas would stand together if nothing used the nodes and all were ready."""
        return self._room_on(None)

    @property
    def together(self) -> int:
        """Returns of how many replicas every gang is a multiple."""
        return max(1, self.closeness.group_units // gcd(self.closeness.group_units, self.units_per_replica))

    def caps(self, whole: Integers, cpu: Integers, memory: Integers) -> Integers:
        """Returns how many units each node of the pool has room for; partly used chips are left out.

        Args:
            whole: Free whole chips of every node of the snapshot.
            cpu: Free cores of every node.
            memory: Free memory of every node.
        """
        rows = self.area.rows
        return self._caps(whole[rows], cpu[rows], memory[rows], self.area.chips)

    def caps_by_size(self) -> Integers:
        """Returns how many units nodes of each size have room for when nothing uses them."""
        chips, cpu, memory = self.area.sizes
        return self._caps(chips, cpu, memory, chips)

    def caps_empty(self) -> Integers:
        """Returns how many units each node of the pool has room for when nothing uses it."""
        caps: Integers = self.caps_by_size()[self.area.size]
        return caps

    def ask(self, replicas: int) -> Ask:
        """Returns what a gang wants of the topology.

        Args:
            replicas: How many start together.
        """
        known = self.closeness
        return Ask(
            units=replicas * self.units_per_replica,
            within=known.within,
            prefer=known.prefer,
            group_units=known.group_units,
            group_within=known.group_within,
            whole=known.whole,
        )

    def charge_milli(self, replicas: int) -> int:
        """Returns thousandths of chips that replicas take, the rest of whole nodes included."""
        return replicas * self.units_per_replica * (self.need.whole * MILLI + self.need.share_milli)

    def _caps(self, whole: Integers, cpu: Integers, memory: Integers, chips: Integers) -> Integers:
        need = self.need
        if self.whole_nodes:
            caps: Integers = ((whole == chips) & (chips == need.whole)).astype(np.int64)
        elif need.whole:
            caps = whole // need.whole if need.whole > 1 else whole
        elif need.share_milli:
            caps = whole * (MILLI // need.share_milli)
        else:
            caps = np.full(len(whole), CORES_ALONE_MAX, dtype=np.int64)
        if need.cpu_milli:
            caps = np.minimum(caps, cpu // need.cpu_milli)
        if need.memory_mib:
            caps = np.minimum(caps, memory // need.memory_mib)
        return caps

    def _room_on(self, usable: Flags | None) -> int:
        area = self.area
        asked = (self.need, self.units_per_replica, self.closeness, usable is not None)
        known = area.rooms.get(asked)
        if known is None:
            if self.closeness.within is None and not self.closeness.group_units:
                together = int((self.caps_by_size() * area.counts(usable)).sum())
            else:
                caps = self.caps_empty()
                together = most(caps if usable is None else np.where(usable, caps, 0), area.tree, self.closeness)
            known = area.rooms[asked] = together // self.units_per_replica
        return known


class Pools:
    """Finds the pool of an option; makes each one once.

    Nodes of one cluster with equal chip type and memory of chips, taints, slice shape, levels of topology and whether
    their chips divide, which the same jobs avoid, make up a block.

    Args:
        usable: Which nodes may get new work.
    """

    def __init__(self, snapshot: Snapshot, usable: Flags) -> None:
        nodes = snapshot.nodes
        self._snapshot, self._usable = snapshot, usable
        self._chip = {chip: row for row, chip in enumerate(snapshot.chips)}
        self._slice = {shape: row for row, shape in enumerate(snapshot.slices)}
        levels = (nodes.domain != NONE) @ (1 << np.arange(len(snapshot.levels), dtype=np.int64))
        self._avoided = AvoidedGroups(snapshot)
        columns = np.stack(
            [
                nodes.cluster,
                nodes.chip,
                nodes.taint,
                nodes.slice,
                levels,
                nodes.divides,
                self._avoided.of,
                nodes.chip_memory_mib,
            ]
        )
        self.block, first = alike(*columns)
        self._blocks: list[list[int]] = columns[:, first].T.tolist()
        self._areas: dict[tuple[int, ...], Area] = {}
        self._pools: dict[tuple[object, ...], Pool | None] = {}

    def pool(self, cluster: int, option: Option, avoided: Iterable[NodeRef] = ()) -> Pool | None:
        """Returns where an option's replicas may go on a cluster; None when it has no such nodes.

        Args:
            cluster: Index of the cluster.
            avoided: Nodes it may not use.
        """
        apart = self._avoided.of_nodes(avoided)
        key = (
            cluster, option.chip, option.chips, option.cpus, option.memory_gib, option.chip_memory_gib, option.within,
            option.prefer, option.group, option.group_within, option.slice, option.tolerates, apart,
        )  # fmt: skip
        if key not in self._pools:
            self._pools[key] = self._new(cluster, option, apart)
        return self._pools[key]

    def areas(self) -> list[Area]:
        """Returns the nodes of each cluster as one area."""
        clusters: dict[int, list[int]] = {}
        for number, block in enumerate(self._blocks):
            clusters.setdefault(block[0], []).append(number)
        return [self._area(tuple(blocks)) for blocks in clusters.values()]

    def _new(self, cluster: int, option: Option, apart: frozenset[int]) -> Pool | None:
        snapshot = self._snapshot
        chip, shape = self._chip.get(option.chip, NONE), self._slice.get(option.slice, NONE)
        blocks = [
            number
            for number, (own_cluster, own_chip, taint, own_slice, _, divides, group, memory) in enumerate(self._blocks)
            if own_cluster == cluster
            and memory >= option.chip_memory_mib
            and group not in apart
            and (divides or not 0 < option.chip_milli < MILLI)
            and (own_chip == chip or option.chip == ANY_CHIP)
            and own_slice == shape
            and all(each in option.tolerates for each in snapshot.taints[taint])
            and all(each in snapshot.taints[taint] for each in option.tolerates if each.startswith(ONLY))
        ]
        if not blocks:
            return None
        levels = [SLICE] if option.slice else []
        levels += [level for level in (option.within, option.group_within) if level not in (None, CLUSTER, NODE)]
        bits = sum(1 << snapshot.levels.index(level) for level in set(levels) & set(snapshot.levels))
        placed = [number for number in blocks if self._blocks[number][4] & bits == bits]
        known = bool(placed) and set(levels) <= set(snapshot.levels)
        area = self._area(tuple(placed if known else blocks))
        need, units = _unit(option, area.chips)
        closeness = Ask(
            units=0,
            within=option.within,
            prefer=option.prefer,
            group_units=option.group * units,
            group_within=option.group_within,
        )
        prices = snapshot.clusters.dollars_per_chip_hour[cluster]
        pool = Pool(
            cluster=cluster,
            area=area,
            need=need,
            units_per_replica=units,
            closeness=closeness,
            level_known=known,
            dollars_per_chip_hour=max(float(prices[self._blocks[number][1]]) for number in area.blocks),
        )
        pool = replace(pool, units_max=int(pool.caps_by_size().max()))
        return _sliced(pool, option) if option.slice and known else pool

    def _area(self, blocks: tuple[int, ...]) -> Area:
        known = self._areas.get(blocks)
        if known is None:
            nodes = self._snapshot.nodes
            rows = np.flatnonzero(np.isin(self.block, blocks))
            totals = nodes.chips[rows], nodes.cpu_total_milli[rows], nodes.memory_total_mib[rows]
            size, first = alike(*totals)
            chips, cpu, memory = (column[first] for column in totals)
            known = self._areas[blocks] = Area(
                blocks=blocks,
                rows=rows,
                tree=tree_of(self._snapshot.levels, nodes.domain[rows]),
                chips=totals[0],
                usable=self._usable[rows],
                size=size,
                sizes=(chips, cpu, memory),
            )
        return known


def _unit(option: Option, chips: Integers) -> tuple[Need, int]:
    """Returns what one unit takes on a node with some of these numbers of chips, and the units of a replica."""
    asked, largest = option.chip_milli, int(chips.max(initial=0)) * MILLI
    if asked <= largest or not largest:
        shared = 0 < asked < MILLI
        need = Need(
            whole=0 if shared else asked // MILLI,
            share_milli=asked if shared else 0,
            cpu_milli=option.cpu_milli,
            memory_mib=option.memory_mib,
        )
        return need, 1
    sizes, counts = np.unique(chips[chips > 0], return_counts=True)
    needed = -(-asked // (sizes * MILLI))
    best = int(np.lexsort((needed * sizes, -(counts // needed)))[0])  # Most replicas, then least left over on nodes.
    milli = int(sizes[best]) * MILLI
    # Cores and memory are spread like the chips.
    cpu, memory = round(option.cpu_milli * milli / asked), round(option.memory_mib * milli / asked)
    return Need(whole=milli // MILLI, cpu_milli=cpu, memory_mib=memory), int(needed[best])


def _sliced(pool: Pool, option: Option) -> Pool:
    """Returns a pool whose gangs take whole slices; the largest there are count as whole."""
    area = pool.area
    domain = area.tree.domain[:, area.tree.levels.index(SLICE)]
    group = max(1, int(np.bincount(domain, weights=pool.caps_empty()).max()))
    closeness = replace(pool.closeness, group_units=group, group_within=SLICE, whole=True)
    inside = option.group == 0 or (
        option.group_within == SLICE and group % (option.group * pool.units_per_replica) == 0
    )
    return replace(pool, closeness=closeness, level_known=inside)
