"""Where replicas go: blocks of equal chips, and pools that know how many replicas of one size fit in a block.

A block is every node of one cluster with one chip type; it owns the free chips while a plan is made. A pool is a view
of a block for replicas of one size under one level of topology. Replicas that fit on a node are packed, several to a
node; a replica larger than every node takes whole nodes of one size, one rank on each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mainspring.domain.ids import JobId
from mainspring.domain.job import Option
from mainspring.planner.snapshot import NONE, Flags, Integers, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Picked:
    """Nodes chosen for one role.

    Args:
        rows: Rows of the block, in rank order.
        units: Ranks on each.
    """

    rows: Integers
    units: Integers


class Block:
    """The nodes of one cluster with one chip type, and what is free on them while a plan is made."""

    def __init__(self, snapshot: Snapshot, cluster: int, chip: int) -> None:
        nodes = snapshot.nodes
        self.node = np.flatnonzero((nodes.cluster == cluster) & (nodes.chip == chip))
        self.total = nodes.total_milli[self.node]
        usable = nodes.ready[self.node] & snapshot.clusters.answering[cluster]
        self.usable_total = np.where(usable, self.total, 0)
        self.free = np.where(usable, nodes.free_milli[self.node], 0)
        self.domain = nodes.domain[self.node]
        self.free_milli = int(self.free.sum())
        self.usable_milli = int(self.usable_total.sum())
        self.held = np.zeros(len(self.node), dtype=np.bool_)
        self.held_milli = 0
        self.held_for: list[JobId] = []
        self.touched: list[Integers] = []

    def take(self, rows: Integers, milli: Integers) -> None:
        """Takes chips, or gives them back when `milli` is negative.

        Args:
            rows: Rows of the block, each once.
            milli: How much on each.
        """
        self.free[rows] -= milli
        self.free_milli -= int(milli.sum())
        self.touched.append(rows)

    def hold(self, rows: Integers, job: JobId) -> None:
        """Keeps everything free on some rows for a job that waits.

        Args:
            rows: Rows of the block, not held yet.
            job: The job.
        """
        milli = self.free[rows]
        self.held[rows] = True
        self.held_milli += int(milli.sum())
        self.held_for.append(job)
        self.take(rows, milli)

    def in_rank_order(self, rows: Integers) -> Integers:
        """Returns the order of `rows` that keeps neighbours in the topology next to each other.

        Args:
            rows: Rows of the block.
        """
        columns = [self.domain[rows, column] for column in range(self.domain.shape[1])]
        columns.sort(key=lambda ids: -len(np.unique(ids)))  # The finest level is the least significant key.
        return np.lexsort((rows, *columns))


class Pool:
    """How many replicas of one size fit in a block, kept up to date as the block is used.

    Args:
        block: The block.
        levels: Names of the snapshot's levels, the columns of the block's domains.
        option: What one replica needs.
    """

    def __init__(self, block: Block, levels: tuple[str, ...], option: Option) -> None:
        self.block = block
        self.unit_milli, self.units_per_replica = option.chip_milli, 1
        self.whole_nodes = option.chip_milli > int(block.total.max(initial=0)) > 0
        if self.whole_nodes:
            sizes = np.unique(block.total[block.total > 0])
            needed = -(-option.chip_milli // sizes)
            replicas = np.array([np.count_nonzero(block.total == size) for size in sizes]) // needed
            best = int(np.lexsort((needed * sizes, -replicas))[0])  # Most replicas, then least left over on nodes.
            self.unit_milli, self.units_per_replica = int(sizes[best]), int(needed[best])
        count = len(block.node)
        if option.within in (None, "cluster"):
            ids = np.zeros(count, dtype=np.int64)
        elif option.within == "node":
            ids = np.arange(count, dtype=np.int64)
        elif option.within in levels:
            ids = block.domain[:, levels.index(option.within)]
        else:
            ids = np.full(count, NONE, dtype=np.int64)
        self.placed = ids != NONE
        self.level_known = bool(self.placed.any())
        self.domain = np.unique(ids, return_inverse=True)[1]
        self.domain_count = int(self.domain.max(initial=0)) + 1
        self.caps = self._units(block.free, self.placed, block.total)
        self.sums = self._sums(self.caps)
        self._seen = len(block.touched)

    @property
    def room(self) -> int:
        """Returns how many replicas fit now, together in one domain."""
        self._refresh()
        return int(self.sums.max()) // self.units_per_replica

    @property
    def room_apart(self) -> int:
        """Returns how many replicas would fit now if the level of topology did not matter."""
        self._refresh()
        return int(self.sums.sum()) // self.units_per_replica

    @cached_property
    def room_usable(self) -> int:
        """Returns how many replicas would fit if no job used the nodes that are ready."""
        return self._room_on(self.block.usable_total)

    @cached_property
    def room_ever(self) -> int:
        """Returns how many replicas would fit if nothing used the nodes and all were ready."""
        return self._room_on(self.block.total)

    def pick(self, replicas: int) -> Picked | None:
        """Returns the nodes for `replicas`, or None when they do not fit now.

        The domain left with least room; in it the fewest nodes, the last of them the fullest that still has room.

        Args:
            replicas: How many start together.
        """
        self._refresh()
        units = replicas * self.units_per_replica
        fits = self.sums >= units
        if not fits.any():
            return None
        caps = self.caps
        if self.domain_count > 1:
            domain = int(np.where(fits, self.sums, np.iinfo(np.int64).max).argmin())
            caps = np.where(self.domain == domain, caps, 0)
        return self._fill(caps, units)

    def soonest(self, replicas: int) -> Integers | None:
        """Returns the rows to hold until `replicas` fit: those with most free now, none held yet; None if too few.

        Args:
            replicas: How many start together.
        """
        self._refresh()
        block = self.block
        units = replicas * self.units_per_replica
        caps = np.where(block.held, 0, self._units(block.usable_total, self.placed, block.total))
        fits = self._sums(caps) >= units
        if not fits.any():
            return None
        domain = int(np.where(fits, self.sums, -1).argmax())
        rows = np.flatnonzero((self.domain == domain) & (caps > 0))
        rows = rows[np.argsort(-block.free[rows], kind="stable")]
        enough = int(np.searchsorted(np.cumsum(caps[rows]), units)) + 1
        return rows[:enough]

    def _fill(self, caps: Integers, units: int) -> Picked:
        if int(caps.max()) >= units:
            row = self._fullest(caps, units)
            return Picked(rows=np.array([row]), units=np.array([units]))
        order = np.argsort(-caps, kind="stable")
        filled = np.cumsum(caps[order])
        last = int(np.searchsorted(filled, units))  # The row that completes the request; never the first one here.
        rest = units - int(filled[last - 1])
        whole = last
        if rest == caps[order[last]]:
            whole, rest = last + 1, 0
        rows, taken = order[:whole], caps[order[:whole]]
        if rest:
            left = caps.copy()
            left[rows] = 0
            rows = np.append(rows, self._fullest(left, rest))
            taken = np.append(taken, rest)
        ranked = self.block.in_rank_order(rows)
        return Picked(rows=rows[ranked], units=taken[ranked])

    def _fullest(self, caps: Integers, units: int) -> int:
        return int(np.where(caps >= units, self.block.free, np.iinfo(np.int64).max).argmin())

    def _units(self, milli: Integers, placed: Flags, total: Integers) -> Integers:
        if self.whole_nodes:
            fits = (milli == total) & (total == self.unit_milli)
            return np.where(placed & fits, 1, 0)
        return np.where(placed, milli // self.unit_milli, 0)

    def _sums(self, caps: Integers) -> Integers:
        return np.bincount(self.domain, weights=caps, minlength=self.domain_count).astype(np.int64)

    def _room_on(self, milli: Integers) -> int:
        sums = self._sums(self._units(milli, self.placed, self.block.total))
        return int(sums.max()) // self.units_per_replica

    def _refresh(self) -> None:
        touched = self.block.touched
        if self._seen == len(touched):
            return
        new = touched[self._seen :]
        rows = new[0] if len(new) == 1 else np.unique(np.concatenate(new))
        self._seen = len(touched)
        caps = self._units(self.block.free[rows], self.placed[rows], self.block.total[rows])
        change = caps - self.caps[rows]
        self.caps[rows] = caps
        if self.domain_count == 1:
            self.sums[0] += change.sum()
        else:
            np.add.at(self.sums, self.domain[rows], change)
