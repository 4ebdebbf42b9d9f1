"""Reclaimable capacity: what would be free if some attempts ended; victims are looked for in it.

A part is what can be given up by itself: a whole attempt, or replicas an elastic role can do without. A thing is
what a part holds on one node (or of one shared chip).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mainspring.domain.job import MILLI
from mainspring.planner.facts.snapshot import NONE, Flags, Floats, Integers, Live
from mainspring.planner.place.candidates import OptionOnCluster
from mainspring.planner.place.free_capacity import FreeCapacity
from mainspring.planner.place.pool import Picked, Pool
from mainspring.planner.place.topology import choose


class Free(NamedTuple):
    """What is free, by row of the snapshot's nodes."""

    whole: Integers
    cpu: Integers
    memory: Integers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Things:
    """What is held, one row a node or shared chip.

    Args:
        part: Who holds it: a live row, or the number of a part.
        node: Row of the node.
        chip: Number of the shared chip, or `NONE`.
    """

    part: Integers
    node: Integers
    whole: Integers
    cpu: Integers
    memory: Integers
    chip: Integers
    share: Integers

    def where(self, rows: Flags | Integers) -> Things:
        """Returns some of them."""
        return Things(
            part=self.part[rows],
            node=self.node[rows],
            whole=self.whole[rows],
            cpu=self.cpu[rows],
            memory=self.memory[rows],
            chip=self.chip[rows],
            share=self.share[rows],
        )

    @property
    def milli(self) -> Integers:
        """Returns thousandths of chips."""
        return self.whole * MILLI + self.share


def things_of(live: Live, inside: Flags, holders: Flags) -> Things:
    """Returns what live attempts hold on some nodes, in the order of the attempts.

    Args:
        inside: By row of the snapshot's nodes: whether it counts.
        holders: By live row: whether it counts.
    """
    rows = np.flatnonzero(holders[live.held_by] & inside[live.held_node] & (live.held_node != NONE))
    return Things(
        part=live.held_by[rows],
        node=live.held_node[rows],
        whole=live.held_whole[rows],
        cpu=live.held_cpu_milli[rows],
        memory=live.held_memory_mib[rows],
        chip=live.held_chip[rows],
        share=live.held_share_milli[rows],
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parts:
    """What could be given up.

    Args:
        live: Live row of each.
        role: Row of the grant that would shrink, `NONE` where the whole attempt would end.
        price: Chip-seconds it costs to give up.
        things: What each holds; `part` numbers the parts.
    """

    live: Integers
    role: Integers
    price: Floats
    things: Things

    def __len__(self) -> int:
        return len(self.live)


class ReclaimableCapacity:
    """Nodes a job could use, what is free there now, and what would be free without some parts.

    What attempts that end already still hold counts as free. Nodes kept for somebody else do not count.

    Args:
        room: What is free now.
        choices: Where the roles of the job would go.
        everywhere: Whether all nodes count, not only those the job could use.
    """

    def __init__(self, room: FreeCapacity, choices: Sequence[OptionOnCluster], *, everywhere: bool = False) -> None:
        self.room = room
        self.live = room.snapshot.live
        self.count = len(room.whole)
        self._rows_in: dict[int, Integers] = {}
        self.inside: Flags = np.full(self.count, everywhere)
        for choice in choices:
            self.inside[pool_of(choice).rows] = True
        self.inside &= room.usable & (room.hold == 0)
        free = Free(*(np.where(self.inside, column, 0) for column in (room.whole, room.cpu, room.memory)))
        ending = self.live.stopping
        self.base = self.with_things(free, things_of(self.live, self.inside, ending)) if ending.any() else free

    def rows_in(self, pool: Pool) -> Integers:
        """Returns, by row of the snapshot's nodes, its row in a pool, or `NONE`."""
        if id(pool) not in self._rows_in:
            rows = np.full(self.count, NONE, dtype=np.int64)
            rows[pool.rows] = np.arange(len(pool.rows))
            self._rows_in[id(pool)] = rows
        return self._rows_in[id(pool)]

    def with_things(self, free: Free, things: Things) -> Free:
        """Returns what is free once some things are given up. A shared chip counts once nobody shares it any more.

        Args:
            free: What is free before.
            things: What is given up.
        """
        node = things.node
        whole = np.bincount(node, weights=things.whole, minlength=self.count)
        if things.share.any():
            whole += np.bincount(node[self.last_shares(things)], minlength=self.count)
        cpu = np.bincount(node, weights=things.cpu, minlength=self.count)
        memory = np.bincount(node, weights=things.memory, minlength=self.count)
        return Free(
            free.whole + whole.astype(np.int64), free.cpu + cpu.astype(np.int64), free.memory + memory.astype(np.int64)
        )

    def last_shares(self, things: Things) -> Integers:
        """Returns, for each shared chip that nobody uses once all these things are given up, the last of its things.

        Args:
            things: What is given up, in order.
        """
        nodes = self.room.snapshot.nodes
        width = int(nodes.chips.max(initial=0)) + 1
        shared = np.flatnonzero(things.share)
        key = things.node[shared] * width + things.chip[shared]
        free = dict(
            zip((nodes.share_node * width + nodes.share_chip).tolist(), nodes.share_milli.tolist(), strict=True)
        )
        last: dict[int, int] = {}
        for place, chip, milli in zip(shared.tolist(), key.tolist(), things.share[shared].tolist(), strict=True):
            free[chip] = free.get(chip, 0) + milli
            last[chip] = place
        return np.array([place for chip, place in last.items() if free[chip] >= MILLI], dtype=np.int64)

    def without(self, parts: Parts, given_up: Flags, *, free: Free | None = None) -> Free:
        """Returns what is free without some parts.

        Args:
            given_up: By part: whether it is given up.
            free: What is free before; what is free now when not given.
        """
        return self.with_things(free or self.base, parts.things.where(given_up[parts.things.part]))

    def stand(
        self, choices: Sequence[OptionOnCluster], replicas: Sequence[int], free: Free
    ) -> tuple[Picked, ...] | None:
        """Returns where a gang stands in what is free, one entry for each choice; None when it does not.

        Args:
            replicas: How many of each.
        """
        order = sorted(range(len(choices)), key=lambda row: (-choices[row].wanted.chip_milli, row))
        picked: dict[int, Picked] = {}
        for row in order:
            pool = pool_of(choices[row])
            chosen = choose(
                pool.caps(*free), pool.tree, pool.ask(replicas[row]), cost=free.whole[pool.rows].astype(np.float64)
            )
            if chosen is None:
                return None
            picked[row] = Picked(rows=pool.rows[chosen.rows], units=chosen.units)
            if len(choices) > 1:
                free = self.taken(pool, picked[row], free)
        return tuple(picked[row] for row in range(len(choices)))

    def taken(self, pool: Pool, picked: Picked, free: Free) -> Free:
        """Returns what is left once units stand somewhere.

        Args:
            free: What is free before.
        """
        need = pool.need
        per_chip = MILLI // need.share_milli if need.share_milli else 1
        chips = need.whole * picked.units if need.whole else -(-picked.units // per_chip) * bool(need.share_milli)
        whole, cpu, memory = free.whole.copy(), free.cpu.copy(), free.memory.copy()
        whole[picked.rows] -= chips
        cpu[picked.rows] -= need.cpu_milli * picked.units
        memory[picked.rows] -= need.memory_mib * picked.units
        return Free(whole, cpu, memory)


def pool_of(choice: OptionOnCluster) -> Pool:
    """Returns where a choice of a site goes; sites have no choice without one."""
    assert choice.pool is not None
    return choice.pool
