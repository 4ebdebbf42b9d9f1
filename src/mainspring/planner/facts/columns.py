"""The builder's parts: inventories, and what grants hold, as columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from mainspring.domain.fleet import Inventory, NodeCondition
from mainspring.domain.hardware.chips import known_memory_gib
from mainspring.domain.ids import ChipName, NodeName
from mainspring.domain.job import MILLI, JobSpec
from mainspring.domain.plan import Grant
from mainspring.planner.facts.snapshot import NONE, UNCOUNTED, Integers, Live, Nodes, sealed
from mainspring.planner.facts.tables import columns, table_of

MIB_PER_GIB = 1_024
HELD_COLUMNS = tuple(columns(Live, "held"))[1:]  # But for whose it is.


def integers(values: Iterable[int]) -> Integers:
    """Returns a sealed column."""
    return sealed(np.fromiter(values, dtype=np.int64))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClusterColumns:
    """One inventory as columns; `chip`, `taint`, `slice` and `domain` of its nodes count within the cluster.

    Partly used chips are those of foreign work; what our own work holds is not taken off.
    """

    inventory: Inventory
    row_of: Mapping[NodeName, int]
    chip_names: tuple[ChipName, ...]
    taint_sets: tuple[tuple[str, ...], ...]
    slice_names: tuple[str, ...]
    levels: tuple[str, ...]
    nodes: Nodes


def columns_of(inventory: Inventory) -> ClusterColumns:
    """Returns an inventory as columns.

    Args:
        inventory: What an engine said.
    """
    nodes = inventory.nodes
    chip_names = tuple(sorted({node.chip for node in nodes}))
    taint_sets = tuple(sorted({tuple(sorted(set(node.taints))) for node in nodes}))
    slice_names = tuple(sorted({node.slice for node in nodes}))
    levels = tuple(sorted({level for node in nodes for level, _ in node.domains}))
    chip_row = {chip: row for row, chip in enumerate(chip_names)}
    taint_row = {taints: row for row, taints in enumerate(taint_sets)}
    slice_row = {shape: row for row, shape in enumerate(slice_names)}
    cpu_total = [UNCOUNTED if node.cpus is None else round(node.cpus * MILLI) for node in nodes]
    memory_total = [_mib(node.memory_gib) for node in nodes]
    shares = [(row, node.foreign_chip_milli % MILLI) for row, node in enumerate(nodes)]
    return ClusterColumns(
        inventory=inventory,
        row_of={node.name: row for row, node in enumerate(nodes)},
        chip_names=chip_names,
        taint_sets=taint_sets,
        slice_names=slice_names,
        levels=levels,
        nodes=table_of(
            Nodes,
            names=tuple(node.name for node in nodes),
            cluster=[0] * len(nodes),
            chip=[chip_row[node.chip] for node in nodes],
            chips=[node.chips for node in nodes],
            whole=[node.chips - -(-node.foreign_chip_milli // MILLI) for node in nodes],
            cpu_total_milli=cpu_total,
            cpu_milli=_left(cpu_total, [round(node.foreign_cpus * MILLI) for node in nodes]),
            memory_total_mib=memory_total,
            memory_mib=_left(memory_total, [round(node.foreign_memory_gib * MIB_PER_GIB) for node in nodes]),
            ready=[node.condition is NodeCondition.READY for node in nodes],
            coming=[node.condition is NodeCondition.COMING for node in nodes],
            taint=[taint_row[tuple(sorted(set(node.taints)))] for node in nodes],
            slice=[slice_row[node.slice] for node in nodes],
            chip_memory_mib=[_mib(known_memory_gib(node.chip_memory_gib, node.chip)) for node in nodes],
            leaves_s=[inf if node.leaves_s is None else node.leaves_s for node in nodes],
            words=tuple(node.condition_reason for node in nodes),
            avoided_s=[-inf] * len(nodes),
            divides=[node.divides for node in nodes],
            domain=_domains(inventory, levels),
            # Which chip foreign work shares is not told; the last one stands for it.
            share_node=[row for row, used in shares if used],
            share_chip=[nodes[row].chips - 1 for row, used in shares if used],
            share_milli=[MILLI - used for _, used in shares if used],
        ),
    )


def _mib(memory_gib: float | None) -> int:
    return UNCOUNTED if memory_gib is None else round(memory_gib * MIB_PER_GIB)


def _left(total: Sequence[int], foreign: Sequence[int]) -> list[int]:
    return [has if has == UNCOUNTED else max(has - used, 0) for has, used in zip(total, foreign, strict=True)]


def _domains(inventory: Inventory, levels: tuple[str, ...]) -> Integers:
    # Two blocks may both have a rack "r1": a domain is known by its whole path.
    nodes = inventory.nodes
    level_column = {level: column for column, level in enumerate(levels)}
    paths = sorted({node.domains[: depth + 1] for node in nodes for depth in range(len(node.domains))})
    domain_of = {path: row for row, path in enumerate(paths)}
    domain = np.full((len(nodes), len(levels)), NONE, dtype=np.int64)
    for row, node in enumerate(nodes):
        for depth, (level, _) in enumerate(node.domains):
            domain[row, level_column[level]] = domain_of[node.domains[: depth + 1]]
    return domain


def held_rows(spec: JobSpec, grants: tuple[Grant, ...], row_of: Mapping[NodeName, int]) -> Integers:
    """Returns what grants hold, one row a node or shared chip: the columns of `HELD_COLUMNS`.

    Args:
        spec: The job's spec.
        grants: What it was granted.
        row_of: Rows of the cluster's nodes; a node that is not there has row `NONE`.
    """
    options = {role.name: role.options for role in spec.roles}
    rows: list[tuple[int, ...]] = []
    for grant in grants:
        option = options[grant.role][grant.option]
        asked = option.chip_milli
        for place, (node, milli, ranks) in enumerate(zip(grant.nodes, grant.chip_milli, grant.ranks, strict=True)):
            # A replica larger than a node has its cores and memory spread like its chips.
            cpu = round(option.cpu_milli * milli / asked) if asked else option.cpu_milli * ranks
            memory = round(option.memory_mib * milli / asked) if asked else option.memory_mib * ranks
            row = row_of.get(node, NONE)
            if 0 < asked < MILLI:
                shared = grant.shared[place] if grant.shared else tuple(range(ranks))
                rows.append((row, 0, cpu, memory, shared[0], asked))
                rows.extend((row, 0, 0, 0, chip, asked) for chip in shared[1:])
            else:
                rows.append((row, milli // MILLI, cpu, memory, NONE, 0))
    return np.array(rows, dtype=np.int64).reshape(-1, len(HELD_COLUMNS))
