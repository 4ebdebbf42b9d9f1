"""Free capacity while a plan is made: finds places, takes them, keeps some for reservations, gives all of it back.

A job that fits on one node is placed by kinds of nodes (see `kinds`), a gang by the topology (see `topology`).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from math import inf, isnan

import numpy as np

from mainspring.domain.fleet import NodeRef
from mainspring.domain.job import MILLI, Option
from mainspring.planner.facts.snapshot import Flags, Integers, Snapshot, emptied
from mainspring.planner.place.ample import Ample
from mainspring.planner.place.fragmentation import Fragmentation
from mainspring.planner.place.kinds import NodeClass, NodeClasses, capacity, groups
from mainspring.planner.place.pool import Area, Picked, Pool, Pools
from mainspring.planner.place.topology import NODE, Shortfall, choose, most, shortfall

__all__ = ["FreeCapacity", "Picked", "Pool"]

_Chips = tuple[tuple[int, int], ...]  # Partly used chips of a node: number, free thousandths; by number.


class FreeCapacity:
    """What is free, by row of the snapshot's nodes; nothing on nodes that are not `usable`.

    Args:
        snapshot: The facts the plan is made from.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        nodes = snapshot.nodes
        self.snapshot = snapshot
        # A node that leaves gets no new work: when the work would end is not known well enough.
        lasting = (nodes.leaves_s == inf) & (nodes.avoided_s == -inf)
        self.usable: Flags = nodes.ready & snapshot.clusters.answering[nodes.cluster] & lasting
        self.whole: Integers = np.where(self.usable, nodes.whole, 0)
        self.ample = Ample(snapshot)
        self.cpu: Integers = np.where(self.usable, self.ample.cpu_milli, 0)
        self.memory: Integers = np.where(self.usable, self.ample.memory_mib, 0)
        self.hold: Integers = np.zeros(len(nodes.names), dtype=np.int64)
        self._kept = 0
        self._pools = Pools(snapshot, self.usable)
        self._changes = [0] * (int(self._pools.block.max(initial=-1)) + 1)
        self._chips: dict[int, _Chips] = {}
        shares = zip(nodes.share_node.tolist(), nodes.share_chip.tolist(), nodes.share_milli.tolist(), strict=True)
        for row, chip, milli in shares:
            self._chips[row] = (*self._chips.get(row, ()), (chip, milli))
        self._kinds = NodeClasses(
            Fragmentation(snapshot),
            self._pools.block,
            _ranks(self._pools.areas(), self.whole),
            (nodes.chip, nodes.chips, self.whole, self.cpu, self.memory),
            {
                row: tuple(sorted(milli for _, milli in chips if milli))
                for row, chips in self._chips.items()
                if self.usable[row]
            },
        )
        self._undo: list[tuple[Integers, Integers, tuple[_Chips, ...]]] = []

    @cached_property
    def emptied(self) -> FreeCapacity:
        """Returns the same nodes with nothing on them."""
        return FreeCapacity(emptied(self.snapshot))

    def pool(self, cluster: int, option: Option, avoided: Iterable[NodeRef] = ()) -> Pool | None:
        """Returns where an option's replicas may go on a cluster; None when it has no such nodes.

        Args:
            cluster: Index of the cluster.
            avoided: Nodes it may not use.
        """
        return self._pools.pool(cluster, option, avoided)

    # ---------------------------------------------------------------- finding

    def stand(self, pool: Pool, replicas: int, holds: Flags | None = None) -> Picked | None:
        """Returns the best place for replicas together as things stand, or None. Takes nothing.

        Args:
            pool: Where they may go.
            holds: By reservation: whether nodes it keeps may be used; None for no node that is kept.
        """
        changes = 0
        for block in pool.area.blocks:
            changes += self._changes[block]
        asked = (replicas, b"" if holds is None else holds.tobytes())
        known = pool.stood.get(asked)
        if known is not None and known[0] == changes:
            return known[1]
        picked = self._stand(pool, replicas, holds)
        pool.stood[asked] = (changes, picked)
        return picked

    def fits(self, pool: Pool, replicas_max: int, holds: Flags | None = None) -> int:
        """Returns the most replicas that stand together as things stand, up to a number.

        Args:
            pool: Where they may go.
            holds: See `stand`.
        """
        if not pool.level_known:
            return 0
        together = most(self._caps(pool, holds), pool.tree, pool.ask(replicas_max)) // pool.units_per_replica
        replicas = min(together, replicas_max)
        return replicas - replicas % pool.together

    def shortfall(self, pool: Pool, replicas: int, holds: Flags | None = None) -> Shortfall | None:
        """Returns why replicas do not stand together, in numbers that prove it; None when they do.

        Args:
            pool: Where they may go.
            holds: See `stand`.
        """
        return shortfall(self._caps(pool, holds), pool.tree, pool.ask(replicas))

    def free_chips(self, pool: Pool) -> float:
        """Returns how many chips of a pool are free, parts of chips included, those kept for reservations too."""
        parts = 0
        if self._chips:
            shared = set(pool.rows[self.usable[pool.rows]].tolist()) & self._chips.keys()
            parts = sum(milli for row in sorted(shared) for _, milli in self._chips[row])
        return int(self.whole[pool.rows].sum()) + parts / MILLI

    def chips_shared(self, rows: Integers) -> Integers:
        """Returns how many partly used chips nodes have."""
        return np.array([len(self._chips.get(row, ())) for row in rows.tolist()], dtype=np.int64)

    def cost(self, pool: Pool, picked: Picked) -> float:
        """Returns how much a place leaves broken up, as things stood when it was found: lower is better.

        Args:
            pool: Where the units go.
        """
        if not isnan(picked.cost):
            return picked.cost
        total = 0.0
        numbers = self._kinds.number[picked.rows]
        for group in groups(numbers * (int(picked.units.max()) + 1) + picked.units):
            kind, units = self._kinds.of[int(numbers[group[0]])], int(picked.units[group[0]])
            total += len(group) * self._kinds.cost(kind, pool.need, units)
        return total

    def _stand(self, pool: Pool, replicas: int, holds: Flags | None) -> Picked | None:
        units = replicas * pool.units_per_replica
        if replicas <= 0 or replicas % pool.together or not pool.level_known:
            return None
        if units <= pool.units_max and not pool.whole_nodes and not pool.closeness.whole:
            picked = self._stand_on_one(pool, units, holds)
            if picked is not None or units == 1 or pool.closeness.within == NODE:
                return picked
        caps = self._caps(pool, holds)
        # Among nodes with as much room for the gang, those with least room for others are taken.
        chosen = choose(caps, pool.tree, pool.ask(replicas), cost=self.whole[pool.rows].astype(np.float64))
        return None if chosen is None else Picked(rows=pool.rows[chosen.rows], units=chosen.units)

    def _stand_on_one(self, pool: Pool, units: int, holds: Flags | None) -> Picked | None:
        allowed = (0,) if holds is None else (0, *(np.flatnonzero(holds) + 1).tolist())
        chips = bool(pool.need.whole or pool.need.share_milli)
        best, best_rank = inf, -1
        for shelf in self._kinds.shelves(pool.area.blocks, allowed, chips=chips):
            cost, rank = self._kinds.cheapest(shelf, pool.need, units)
            if cost < best or (cost == best < inf and rank < best_rank):
                best, best_rank = cost, rank
        if best == inf:
            return None
        return Picked(rows=np.array([self._kinds.row_of(best_rank)]), units=np.array([units]), cost=best)

    def _caps(self, pool: Pool, holds: Flags | None) -> Integers:
        """Returns how many units each node of a pool has room for now, partly used chips included."""
        if pool.need.share_milli:
            numbers, own = np.unique(self._kinds.number[pool.rows], return_inverse=True)
            states = [self._kinds.of[number].state for number in numbers.tolist()]
            caps = np.array([capacity(state, pool.need) for state in states], dtype=np.int64)[own]
        else:
            caps = pool.caps(self.whole, self.cpu, self.memory)
        if not self._kept:
            return caps
        hold = self.hold[pool.rows]
        barred = hold > 0
        if holds is not None and holds.any():
            barred &= ~np.append(holds, False)[np.minimum(hold - 1, len(holds))]
        return np.where(barred, 0, caps)

    # ---------------------------------------------------------------- taking

    def take(self, pool: Pool, picked: Picked) -> tuple[tuple[int, ...], ...]:
        """Takes a place; returns, for units that share chips, the chip of each unit on each node, else ().

        Args:
            pool: Where it was found.
        """
        kinds, need, rows = self._kinds, pool.need, picked.rows
        before = kinds.number[rows]
        chips = tuple(self._chips.get(row, ()) for row in rows.tolist()) if need.share_milli else ()
        self._undo.append((rows, before, chips))
        if len(rows) == 1:
            row, units = int(rows[0]), int(picked.units[0])
            kind, opened = kinds.after(kinds.of[before.item(0)], need, units)
            self._put_one(row, kind)
            return (self._share(row, need.share_milli, opened),) if need.share_milli else ()
        shared: dict[int, tuple[int, ...]] = {}
        for group in groups(before * (int(picked.units.max()) + 1) + picked.units):
            place = int(group[0])
            kind, opened = kinds.after(kinds.of[int(before[place])], need, int(picked.units[place]))
            self._put(rows[group], kind)
            if need.share_milli:
                for place, row in zip(group.tolist(), rows[group].tolist(), strict=True):
                    shared[place] = self._share(row, need.share_milli, opened)
        return tuple(shared[place] for place in range(len(rows))) if need.share_milli else ()

    def keep(self, rows: Integers, reservation: int) -> None:
        """Keeps nodes for a reservation; those that another one keeps already stay with it."""
        rows = np.unique(rows)
        rows = rows[self.hold[rows] == 0]
        if not len(rows):
            return
        self._kept += 1
        before = self._kinds.number[rows]
        self._undo.append((rows, before, ()))
        for group in groups(before):
            kind = self._kinds.of[int(before[group[0]])]
            self._put(rows[group], self._kinds.kind(kind.shelf.block, reservation + 1, kind.state))

    def mark(self) -> int:
        """Returns a mark to roll back to."""
        return len(self._undo)

    def rollback(self, mark: int) -> None:
        """Undoes everything taken and kept since a mark.

        Args:
            mark: See `mark`.
        """
        while len(self._undo) > mark:
            rows, before, chips = self._undo.pop()
            for group in groups(self._kinds.number[rows] * len(self._kinds.of) + before):
                self._put(rows[group], self._kinds.of[int(before[group[0]])])
            for row, known in zip(rows.tolist(), chips, strict=False):
                self._chips[row] = known

    def _share(self, row: int, milli: int, opened: tuple[int, ...]) -> tuple[int, ...]:
        """Takes thousandths of chips that have as much free as `opened` says; returns the numbers of the chips."""
        free = dict(self._chips.get(row, ()))
        numbers = []
        for wanted in opened:
            if wanted == MILLI:
                number = next(chip for chip in range(len(free) + 1) if chip not in free)
            else:
                number = min(chip for chip, left in free.items() if left == wanted)
            free[number] = wanted - milli
            numbers.append(number)
        self._chips[row] = tuple(sorted(free.items()))
        return tuple(numbers)

    def _put(self, rows: Integers, kind: NodeClass) -> None:
        if len(rows) == 1:
            self._put_one(int(rows[0]), kind)
            return
        self._kinds.put(rows, kind)
        state, shelf = kind.state, kind.shelf
        self.whole[rows], self.cpu[rows], self.memory[rows] = state.whole, state.cpu_milli, state.memory_mib
        self.hold[rows] = shelf.hold
        self._changes[shelf.block] += 1

    def _put_one(self, row: int, kind: NodeClass) -> None:
        self._kinds.put_one(row, kind)
        state, shelf = kind.state, kind.shelf
        self.whole[row], self.cpu[row], self.memory[row] = state.whole, state.cpu_milli, state.memory_mib
        self.hold[row] = shelf.hold
        self._changes[shelf.block] += 1


def _ranks(areas: list[Area], whole: Integers) -> Integers:
    """Returns the place of each node in the order in which equals are taken.

    Nodes of the most used domains of the narrowest level come first, among these those of the most used domains of the
    next wider one, and so on; then neighbours, so that a domain once begun is used up.
    """
    ranks = np.zeros(len(whole), dtype=np.int64)
    begun = 0
    for area in areas:
        tree = area.tree
        rows = area.rows[tree.order]
        keys = [np.arange(len(rows))]
        for depth in range(1, tree.bottom):
            sizes = np.diff(np.append(tree.starts[depth], len(rows)))
            keys.append(np.repeat(np.add.reduceat(whole[rows], tree.starts[depth]), sizes))
        ranks[rows[np.lexsort(keys)]] = np.arange(begun, begun + len(rows))
        begun += len(rows)
    return ranks
