"""Ample resources: nodes with more cores or memory than all their chips together could ever ask for.

There neither binds, whatever starts or ends. Nodes that differ in them alone are alike, and so are jobs: planning sees
a few kinds of nodes and a few shapes where it would see thousands.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np

from mainspring.domain.ids import ChipName
from mainspring.domain.job import ANY_CHIP, MILLI, Option
from mainspring.planner.facts.snapshot import NONE, UNCOUNTED, Flags, Floats, Integers, Shape, Snapshot


class Ample:
    """What of a snapshot's cores and memory can bind.

    Args:
        snapshot: The facts; every job that is placed must be of one of its shapes.

    Attributes:
        cpu_milli: Free cores by node, `UNCOUNTED` where no shape could run short of them.
        memory_mib: Free memory by node, likewise.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        nodes, live = snapshot.nodes, snapshot.live
        count = len(nodes.names)
        known = np.flatnonzero(live.held_node != NONE)
        node = live.held_node[known]

        def ours(free: Integers, column: Integers) -> Integers:
            return free + np.bincount(node, weights=column[known], minlength=count).astype(np.int64)

        # What is free or ours; what foreign work uses of chips and cores does not count on either side.
        chips = ours(nodes.whole, live.held_whole) + np.bincount(nodes.share_node, minlength=count)

        def enough(free: Integers, total: Integers, rate: Floats) -> Flags:
            bounded = np.isfinite(rate)
            most = np.where(bounded, rate, 0.0)[nodes.chip]
            return bounded[nodes.chip] & (free >= chips * most) & (total >= nodes.chips * most)

        cpu_rate, memory_rate = _rates(snapshot)
        cores = enough(ours(nodes.cpu_milli, live.held_cpu_milli), nodes.cpu_total_milli, cpu_rate)
        room = enough(ours(nodes.memory_mib, live.held_memory_mib), nodes.memory_total_mib, memory_rate)
        self.cpu_milli: Integers = np.where(cores, UNCOUNTED, nodes.cpu_milli)
        self.memory_mib: Integers = np.where(room, UNCOUNTED, nodes.memory_mib)
        self._cpu = _everywhere(snapshot, cores)
        self._memory = _everywhere(snapshot, room)

    def plain(self, shape: Shape) -> Shape:
        """Returns a shape without the wishes for cores and memory that nothing can deny it.

        Args:
            shape: One of the snapshot's.
        """
        roles = tuple(
            replace(role, options=tuple(self._plain(option) for option in role.options)) for role in shape.roles
        )
        return replace(shape, roles=roles)

    def _plain(self, option: Option) -> Option:
        cpus = 0.0 if option.chip in self._cpu and option.chips else option.cpus
        memory_gib = 0.0 if option.chip in self._memory and option.chips else option.memory_gib
        if (cpus, memory_gib) == (option.cpus, option.memory_gib):
            return option
        return replace(option, cpus=cpus, memory_gib=memory_gib)


def _everywhere(snapshot: Snapshot, ample: Flags) -> frozenset[ChipName]:
    """Returns the chip types on all of whose nodes there is plenty."""
    scarce = set(np.unique(snapshot.nodes.chip[~ample]).tolist())
    chips = {chip for row, chip in enumerate(snapshot.chips) if row not in scarce}
    return frozenset(chips if scarce else chips | {ANY_CHIP})


def _rates(snapshot: Snapshot) -> tuple[Floats, Floats]:
    """Returns by chip type the most cores (milli) and memory (MiB) that any shape asks for with one chip."""
    row_of = {chip: [row] for row, chip in enumerate(snapshot.chips)}
    row_of[ANY_CHIP] = list(range(len(snapshot.chips)))
    cpu, memory = [0.0] * len(snapshot.chips), [0.0] * len(snapshot.chips)
    options = [option for shape in snapshot.shapes for role in shape.roles for option in role.options]
    if not options:
        return np.full(len(cpu), inf), np.full(len(cpu), inf)  # Nothing is known of what may come.
    for option in options:
        if not (option.cpus or option.memory_gib):
            continue
        if option.chips == 0:
            each = inf  # Nothing but cores and memory bounds it.
        elif option.chips < 1:
            each = float(MILLI // option.chip_milli)
        else:
            each = 1.0 / option.chips
        for row in row_of.get(option.chip, ()):
            cpu[row] = max(cpu[row], each * option.cpu_milli if option.cpus else 0.0)
            memory[row] = max(memory[row], each * option.memory_mib if option.memory_gib else 0.0)
    return np.array(cpu), np.array(memory)
