"""The builder's parts: inventories as columns, and growable tables of rows that come and go."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from mainspring.domain.fleet import Inventory, NodeCondition
from mainspring.domain.ids import ChipName, NodeName
from mainspring.domain.job import MILLI, JobSpec
from mainspring.domain.plan import Grant
from mainspring.planner.facts.snapshot import NONE, UNCOUNTED, Flags, Floats, Integers, sealed

MIB_PER_GIB = 1_024
HELD_COLUMNS = 6  # node, whole, cpu_milli, memory_mib, chip, share_milli


def integers(values: Iterable[int]) -> Integers:
    """Returns a sealed column.

    Args:
        values: What it holds.
    """
    return sealed(np.fromiter(values, dtype=np.int64))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClusterColumns:
    """One inventory as columns; `chip`, `taint`, `slice` and `domain` count within the cluster.

    `foreign_share` lists partly used chips of foreign work: (row, chip number, thousandths free).
    """

    inventory: Inventory
    row_of: Mapping[NodeName, int]
    chip_names: tuple[ChipName, ...]
    taint_sets: tuple[tuple[str, ...], ...]
    slice_names: tuple[str, ...]
    levels: tuple[str, ...]
    chip: Integers
    chips: Integers
    whole: Integers
    cpu_total_milli: Integers
    cpu_milli: Integers
    memory_total_mib: Integers
    memory_mib: Integers
    ready: Flags
    coming: Flags
    taint: Integers
    slice: Integers
    leaves_s: Floats
    leaving: tuple[str, ...]
    divides: Flags
    domain: Integers
    foreign_share: tuple[tuple[int, int, int], ...]


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
    foreign_cpu = [UNCOUNTED if node.cpus is None else round(node.foreign_cpus * MILLI) for node in nodes]
    foreign_memory = [
        UNCOUNTED if node.memory_gib is None else round(node.foreign_memory_gib * MIB_PER_GIB) for node in nodes
    ]
    cpu_total = integers(UNCOUNTED if node.cpus is None else round(node.cpus * MILLI) for node in nodes)
    memory_total = integers(
        UNCOUNTED if node.memory_gib is None else round(node.memory_gib * MIB_PER_GIB) for node in nodes
    )
    shares = [(row, node.foreign_chip_milli % MILLI) for row, node in enumerate(nodes)]
    return ClusterColumns(
        inventory=inventory,
        row_of={node.name: row for row, node in enumerate(nodes)},
        chip_names=chip_names,
        taint_sets=taint_sets,
        slice_names=slice_names,
        levels=levels,
        chip=integers(chip_row[node.chip] for node in nodes),
        chips=integers(node.chips for node in nodes),
        whole=integers(node.chips - -(-node.foreign_chip_milli // MILLI) for node in nodes),
        cpu_total_milli=cpu_total,
        cpu_milli=_left(cpu_total, foreign_cpu),
        memory_total_mib=memory_total,
        memory_mib=_left(memory_total, foreign_memory),
        ready=sealed(np.array([node.condition is NodeCondition.READY for node in nodes], dtype=np.bool_)),
        coming=sealed(np.array([node.condition is NodeCondition.COMING for node in nodes], dtype=np.bool_)),
        taint=integers(taint_row[tuple(sorted(set(node.taints)))] for node in nodes),
        slice=integers(slice_row[node.slice] for node in nodes),
        leaves_s=sealed(np.array([inf if node.leaves_s is None else node.leaves_s for node in nodes])),
        leaving=tuple("" if node.leaves_s is None else node.condition_reason for node in nodes),
        divides=sealed(np.array([node.divides for node in nodes], dtype=np.bool_)),
        domain=_domains(inventory, levels),
        # Which chip foreign work shares is not told; the last one stands for it.
        foreign_share=tuple((row, nodes[row].chips - 1, MILLI - used) for row, used in shares if used),
    )


def _left(total: Integers, foreign: Sequence[int]) -> Integers:
    counted = total != UNCOUNTED
    return sealed(np.where(counted, np.maximum(total - np.array(foreign, dtype=np.int64), 0), UNCOUNTED))


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
    return np.array(rows, dtype=np.int64).reshape(-1, HELD_COLUMNS)


class Table:
    """Rows that come and go, in columns, read out in the order of a key.

    Args:
        columns: Name and type of each column.
    """

    def __init__(self, columns: Mapping[str, type]) -> None:
        self._columns: dict[str, NDArray[np.generic]] = {name: np.zeros(64, dtype=of) for name, of in columns.items()}
        self._free: list[int] = list(range(63, -1, -1))
        self._order: list[tuple[float, str, int]] = []
        self._late: list[tuple[float, str, int]] = []
        self._entry: dict[str, tuple[float, str, int]] = {}

    def __len__(self) -> int:
        return len(self._entry)

    def __contains__(self, name: str) -> bool:
        return name in self._entry

    def put(self, name: str, key: float, values: Mapping[str, float]) -> None:
        """Adds a row.

        Args:
            name: Its name, not in the table yet.
            key: Rows are read out by key, then name.
            values: One for each column.
        """
        if not self._free:
            size = len(next(iter(self._columns.values())))
            for column, old in self._columns.items():
                self._columns[column] = np.concatenate([old, np.zeros_like(old)])
            self._free = list(range(2 * size - 1, size - 1, -1))
        row = self._free.pop()
        for column, value in values.items():
            self._columns[column][row] = value
        self._entry[name] = (key, name, row)
        self._late.append(self._entry[name])

    def set(self, name: str, column: str, value: float) -> None:
        """Changes one value.

        Args:
            name: Of the row.
            column: Of the value.
            value: The new one.
        """
        self._columns[column][self._entry[name][2]] = value

    def write(self, row: int, column: str, value: float) -> None:
        """Changes one value.

        Args:
            row: Where it lies, see `rows`.
            column: Of the value.
            value: The new one.
        """
        self._columns[column][row] = value

    def drop(self, name: str) -> None:
        """Takes a row away.

        Args:
            name: Its name.
        """
        self._settle()
        entry = self._entry.pop(name)
        del self._order[bisect_left(self._order, entry)]
        self._free.append(entry[2])

    def names(self) -> list[str]:
        """Returns the names of all rows, in order."""
        self._settle()
        return [entry[1] for entry in self._order]

    def rows(self) -> Integers:
        """Returns where the rows lie in `column`, in order."""
        self._settle()
        return np.fromiter((entry[2] for entry in self._order), dtype=np.int64, count=len(self._order))

    def column(self, name: str, rows: Integers) -> NDArray[np.generic]:
        """Returns one column's values, sealed.

        Args:
            name: Which column.
            rows: See `rows`.
        """
        values = self._columns[name][rows]
        values.setflags(write=False)
        return values

    def _settle(self) -> None:
        if len(self._late) > 64:
            self._order.extend(self._late)
            self._order.sort()
        else:
            for entry in self._late:
                insort(self._order, entry)
        self._late = []
