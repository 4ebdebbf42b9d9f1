"""Fleets as people describe them: a YAML file, a list of nodes from a trace, `ms fleet --json`, or `72x8:gpu`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from pathlib import Path

import numpy as np

from mainspring.domain.answers import ClusterView
from mainspring.domain.codec import from_plain
from mainspring.domain.errors import InvalidInput, MainspringError
from mainspring.domain.fleet import NODES_MAX, Inventory, Node, Offer, Replica
from mainspring.domain.hardware.chips import named_memory_gib
from mainspring.domain.ids import ChipName, ClusterName, NodeName, checked_name
from mainspring.simulator.inputs.files import (
    DOCUMENT_BYTES_MAX,
    Row,
    Rows,
    parse,
    read_document,
    read_start,
    read_text,
)
from mainspring.simulator.inputs.fleet import Fleet, Outage, PriceChange
from mainspring.simulator.inputs.workload import slug

ENGINE = "described"
SPOT_TICKS_MAX = 1_000_000
_WORDS = re.compile(r"(\d+)x(\d+):([a-z0-9][a-z0-9._-]*)")
_OPENB = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_SPOT_2026 = ("gpu_model", "gpu_capacity_num", "cpu_num", "node_name")
_LINGJUN = ("ip", "DSW", "PSW", "ASW")
_PHILLY = ("machineId", "number of GPUs", "single GPU mem")
LINGJUN_CHIPS = 8  # Chips of a host: the trace tells of its network only.


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Equal nodes of a described cluster.

    Args:
        chips: Chips of one node.
        name: What their names begin with; the chip type when left out.
        cpus: CPU cores of one node, None when nobody counts them.
        memory_gib: Host memory of one node, None when nobody counts it.
        chip_memory_gib: Memory of one chip, None for what is published of such chips.
        levels: How many nodes a domain of each level holds ("rack: 16"), in any order.
        slice: Shape of the TPU slices they are hosts of; a level "slice" then says how many hosts one has.
        taints: Only work that tolerates every one of them comes here.
        available: A spot trace, beside the fleet file: they are there only while it says so.
        notice_s: How long before they go the planner is told.
    """

    count: int
    chip: ChipName
    chips: int
    name: str = ""
    cpus: float | None = None
    memory_gib: float | None = None
    chip_memory_gib: float | None = None
    levels: Mapping[str, int] = field(default_factory=dict)
    slice: str = ""
    taints: tuple[str, ...] = ()
    available: str = ""
    notice_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """A price from a time on.

    Args:
        at_s: From when, in seconds of virtual time.
    """

    at_s: float
    chip: ChipName
    dollars_per_chip_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedCluster:
    """One cluster of a fleet file.

    Args:
        nodes: Groups of equal nodes.
        prices: Dollars per chip-hour by chip type.
        delegated: Whether it places work by itself; its nodes are then slots.
        offers: Nodes it could get.
        losses_per_node_hour: How often it takes a node back (spot), on average.
    """

    name: ClusterName
    nodes: tuple[NodeGroup, ...] = ()
    prices: Mapping[ChipName, float] = field(default_factory=dict)
    price_changes: tuple[Price, ...] = ()
    delegated: bool = False
    offers: tuple[Offer, ...] = ()
    losses_per_node_hour: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedFleet:
    """A fleet file.

    Args:
        replicas: Where data lie at first; what is not listed lies everywhere.
    """

    clusters: tuple[DescribedCluster, ...]
    replicas: tuple[Replica, ...] = ()


def load_fleet(path: Path) -> Fleet:
    """Returns the fleet in a file.

    Args:
        path: A description in YAML or JSON (`DescribedFleet`), what `ms fleet --json` prints, or a list of nodes:
            openb's, Philly's, Alibaba's of 2026, or Lingjun's hosts in their network.

    Raises:
        NotFound: It cannot be read.
        InvalidInput: It is none of these, or a row or field of it cannot be read.
    """
    columns = tuple(cell.strip() for cell in read_start(path, "a fleet").partition("\n")[0].split(","))
    for known, read in ((_OPENB, _openb), (_SPOT_2026, _spot_2026), (_LINGJUN, _lingjun), (_PHILLY, _philly)):
        if columns == known:
            return _listed(path, read)
    plain = parse(path, read_text(path, "a fleet", bytes_max=DOCUMENT_BYTES_MAX), "a fleet")
    if isinstance(plain, list):
        return _shown(path, plain)
    return described(read_document(path, DescribedFleet, "a fleet"), name=path.stem, folder=path.parent)


def fleet_of(words: Sequence[str]) -> Fleet:
    """Returns the fleet that a few words describe.

    Args:
        words: Such as "72x8:gpu": 72 nodes of 8 chips; several make one cluster.

    Raises:
        InvalidInput: They do not read so.
    """
    groups = []
    for word in words:
        found = _WORDS.fullmatch(word)
        if found is None:
            raise InvalidInput("read a fleet", got=repr(word[:80]), wanted="NODESxCHIPS:CHIP, such as 72x8:h100")
        groups.append(NodeGroup(count=int(found[1]), chip=ChipName(found[3]), chips=int(found[2])))
    cluster = DescribedCluster(name=ClusterName("fleet"), nodes=tuple(groups))
    return described(DescribedFleet(clusters=(cluster,)), name=", ".join(words), folder=None)


def described(file: DescribedFleet, *, name: str, folder: Path | None) -> Fleet:
    """Returns the fleet that a description describes.

    Args:
        name: Shown in tables and plots.
        folder: Where spot traces are looked for; None where there can be none.

    Raises:
        InvalidInput: Something in it is out of range.
    """
    inventories: list[Inventory] = []
    outages: list[Outage] = []
    prices: list[PriceChange] = []
    for cluster in file.clusters:
        nodes: list[Node] = []
        for place, group in enumerate(cluster.nodes):
            made = tuple(_nodes(cluster.name, place, group))
            nodes.extend(made)
            if group.available:
                outages.extend(_absences(cluster.name, tuple(node.name for node in made), group, folder))
        inventories.append(
            Inventory(
                cluster=cluster.name,
                engine=ENGINE,
                simulated=True,
                dollars_per_chip_hour=cluster.prices,
                nodes=tuple(sorted(nodes, key=lambda node: node.name)),
                delegated=cluster.delegated,
                offers=tuple(sorted(cluster.offers, key=lambda offer: offer.name)),
                losses_per_node_hour=cluster.losses_per_node_hour,
            )
        )
        prices.extend(
            PriceChange(
                cluster=cluster.name,
                chip=price.chip,
                at_s=price.at_s,
                dollars_per_chip_hour=price.dollars_per_chip_hour,
            )
            for price in cluster.price_changes
        )
    return Fleet(
        name=name,
        inventories=tuple(sorted(inventories, key=lambda each: each.cluster)),
        outages=tuple(outages),
        prices=tuple(sorted(prices, key=lambda each: (each.at_s, each.cluster, each.chip))),
        replicas=file.replicas,
    )


def _nodes(cluster: ClusterName, place: int, group: NodeGroup) -> Iterator[Node]:
    """Yields the nodes of a group; wider domains hold whole narrower ones."""
    on = f"group {place + 1} of cluster {cluster}"
    if not 0 < group.count <= NODES_MAX:
        raise InvalidInput("read a fleet", on=on, got=f"{group.count} nodes", wanted=f"1 to {NODES_MAX}")
    levels = sorted(group.levels.items(), key=lambda item: (-item[1], item[0]))
    for (wide, most), (narrow, least) in pairwise(levels):
        if least <= 0 or most % least:
            raise InvalidInput(
                "read a fleet", on=on, got=f"{most} nodes a {wide}, {least} a {narrow}", wanted="whole ones inside"
            )
    if levels and levels[-1][1] <= 0:
        raise InvalidInput("read a fleet", on=on, got=f"{levels[-1][1]} nodes a {levels[-1][0]}", wanted="at least 1")
    stem = checked_name(group.name or f"{group.chip}-{place + 1}", "a group of nodes")
    for number in range(group.count):
        yield Node(
            name=NodeName(f"{stem}-{number:06d}"),
            chip=group.chip,
            chips=group.chips,
            domains=tuple((level, f"{stem}-{level}-{number // size:05d}") for level, size in levels),
            cpus=group.cpus,
            memory_gib=group.memory_gib,
            chip_memory_gib=group.chip_memory_gib,
            taints=group.taints,
            slice=group.slice,
        )


# ---------------------------------------------------------------- what comes and goes


@dataclass(frozen=True, slots=True, kw_only=True)
class _SpotMetadata:
    gap_seconds: float


def _absences(
    cluster: ClusterName, nodes: tuple[NodeName, ...], group: NodeGroup, folder: Path | None
) -> Iterator[Outage]:
    """Yields when nodes are away: at each tick of the trace the first so many are there, all where it only says 1."""
    if folder is None or Path(group.available).is_absolute() or ".." in Path(group.available).parts:
        raise InvalidInput(
            "read a fleet", on=f"cluster {cluster}", got=repr(group.available), wanted="a spot trace beside the fleet"
        )
    path = folder / group.available
    text = read_text(path, "a spot trace", bytes_max=DOCUMENT_BYTES_MAX)
    plain = parse(path, text, "a spot trace")
    if not isinstance(plain, dict) or not isinstance(plain.get("data"), list):
        raise InvalidInput("read a spot trace", on=str(path), got=text[:80], wanted="metadata.gap_seconds and data")
    gap_s = from_plain(_SpotMetadata, plain.get("metadata")).gap_seconds
    ticks = plain["data"]
    if gap_s <= 0 or not 0 < len(ticks) <= SPOT_TICKS_MAX:
        raise InvalidInput(
            "read a spot trace",
            on=str(path),
            got=f"gap {gap_s:g} s, {len(ticks)} ticks",
            wanted=f"1 to {SPOT_TICKS_MAX}",
        )
    wrong = next((tick for tick in ticks if type(tick) is not int or not 0 <= tick <= NODES_MAX), None)
    if wrong is not None:
        raise InvalidInput("read a spot trace", on=str(path), got=repr(wrong)[:80], wanted=f"0 to {NODES_MAX} nodes")
    # Ones and zeros tell of all nodes together, other numbers of how many there are.
    there = np.array(ticks) * (len(nodes) if max(ticks) <= 1 else 1)
    edges = np.unique(np.concatenate([[0, len(nodes)], np.minimum(there, len(nodes))])).tolist()
    for first, last in pairwise(edges):
        away = np.concatenate([[False], there < last, [False]])
        turns = np.flatnonzero(away[1:] != away[:-1])
        for begin, end in zip(turns[::2].tolist(), turns[1::2].tolist(), strict=True):
            yield Outage(
                cluster=cluster,
                nodes=nodes[first:last],
                from_s=begin * gap_s,
                until_s=end * gap_s if end < len(ticks) else inf,
                notice_s=group.notice_s,
                reason="was taken back",
            )


def load_outages(path: Path) -> tuple[Outage, ...]:
    """Returns the outages in a CSV: cluster, node, from_s, and until_s, which may be empty for one that never ends.

    Raises:
        NotFound: It cannot be read.
        InvalidInput: A row of it cannot be read.
    """
    rows = Rows(path, "a list of outages")
    rows.require(("cluster", "node", "from_s", "until_s"), ("cluster", "node", "from_s"))
    outages = []
    for row in rows:
        from_s = row.number("from_s")
        until_s = row.number("until_s", inf, least=from_s, most=inf)
        nodes = (NodeName(row.text("node")),)
        outages.append(Outage(cluster=ClusterName(row.text("cluster")), nodes=nodes, from_s=from_s, until_s=until_s))
    return tuple(outages)


# ---------------------------------------------------------------- lists of nodes


def _listed(path: Path, read: Callable[[Row], Node]) -> Fleet:
    nodes = []
    for row in Rows(path, "a list of nodes"):
        try:
            nodes.append(read(row))
        except MainspringError as error:
            raise error if "line" in error.on else row.wrong(error) from error
    nodes.sort(key=lambda node: node.name)
    inventory = Inventory(cluster=ClusterName(slug(path.stem)), engine=ENGINE, simulated=True, nodes=tuple(nodes))
    return Fleet(name=path.stem, inventories=(inventory,))


def _openb(row: Row) -> Node:
    chips = row.whole("gpu", most=1_024)
    return Node(
        name=NodeName(slug(row.text("sn"))),
        chip=ChipName(slug(row.text("model")) if chips else "cpu"),
        chips=chips,
        cpus=row.number("cpu_milli") / 1_000,
        memory_gib=row.number("memory_mib") / 1_024,
    )


def _spot_2026(row: Row) -> Node:
    return Node(
        name=NodeName(f"node-{row.whole('node_name'):06d}"),
        chip=ChipName(slug(row.text("gpu_model"))),
        chips=row.whole("gpu_capacity_num", most=1_024),
        cpus=row.number("cpu_num"),
    )


def _lingjun(row: Row) -> Node:
    levels = (("dsw", "DSW"), ("psw", "PSW"), ("asw", "ASW"))
    return Node(
        name=NodeName(slug(row.text("ip"))),
        chip=ChipName("gpu"),
        chips=LINGJUN_CHIPS,
        domains=tuple((level, slug(row.text(column))) for level, column in levels),
    )


def _philly(row: Row) -> Node:
    return Node(
        name=NodeName(slug(row.text("machineId"))),
        chip=ChipName("gpu"),
        chips=row.whole("number of GPUs"),
        chip_memory_gib=named_memory_gib(row.text("single GPU mem", "")),
    )


def _shown(path: Path, plain: list[object]) -> Fleet:
    """Returns the fleet that `ms fleet --json` printed; its use by others stays as it was."""
    try:
        views = [from_plain(ClusterView, each) for each in plain]
    except MainspringError as error:
        raise InvalidInput(
            "read a fleet",
            on=f"{error.on} of {path}" if error.on else str(path),
            got=error.got,
            wanted="what ms fleet --json prints",
        ) from error
    return Fleet(name=path.stem, inventories=tuple(view.inventory for view in views))
