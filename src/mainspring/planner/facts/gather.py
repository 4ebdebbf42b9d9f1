"""The tables of a snapshot that are put together anew each time: nodes, clusters, teams, data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from math import inf

import numpy as np

from mainspring.domain.errors import InvalidInput, nearest
from mainspring.domain.fleet import Inventory, Replica
from mainspring.domain.ids import ChipName, ClusterName, TeamName
from mainspring.domain.job import MILLI
from mainspring.domain.team import Team, TeamOrder
from mainspring.planner.facts.columns import ClusterColumns, integers
from mainspring.planner.facts.snapshot import (
    NO_LIMIT,
    NONE,
    UNCOUNTED,
    Clusters,
    Data,
    Integers,
    Live,
    Nodes,
    Scalar,
    Teams,
    sealed,
)


def tenant_tree(teams: Iterable[Team]) -> dict[TeamName, Team]:
    """Returns teams by name.

    Args:
        teams: Every team, in any order.

    Raises:
        InvalidInput: A team is listed twice, has an unknown parent, or is its own ancestor.
    """
    tree: dict[TeamName, Team] = {}
    for team in teams:
        if team.name in tree:
            raise InvalidInput("accept a tenant tree", on=team.name, got="the team twice", wanted="each team once")
        tree[team.name] = team
    for team in tree.values():
        seen = [team.name]
        while (parent := tree[seen[-1]].parent) is not None:
            if parent not in tree:
                raise InvalidInput("accept a tenant tree", on=seen[-1], got=parent, wanted=nearest(parent, tree))
            if parent in seen:
                raise InvalidInput("accept a tenant tree", on=parent, got="a team above itself", wanted="a tree")
            seen.append(parent)
    return tree


def team_table(
    teams: Sequence[Team], chips: tuple[ChipName, ...], *, usage: Sequence[float], dollars: Sequence[float]
) -> Teams:
    """Returns the tenant tree as columns.

    Args:
        teams: In order of name.
        chips: Chip types known.
        usage: Decayed use of each.
        dollars: What each spent.
    """
    row_of = {team.name: row for row, team in enumerate(teams)}
    size = (len(teams), len(chips))
    guarantee = [[round(team.guarantee.get(chip, 0.0) * MILLI) for chip in chips] for team in teams]
    borrow = [[_milli(team.borrow_max.get(chip)) for chip in chips] for team in teams]
    lend = [[_milli(team.lend_max.get(chip)) for chip in chips] for team in teams]
    return Teams(
        names=tuple(team.name for team in teams),
        parent=integers(NONE if team.parent is None else row_of.get(team.parent, NONE) for team in teams),
        milli_max=integers(_milli(team.chips_max) for team in teams),
        guarantee_milli=sealed(np.array(guarantee, dtype=np.int64).reshape(size)),
        borrow_max_milli=sealed(np.array(borrow, dtype=np.int64).reshape(size)),
        lend_max_milli=sealed(np.array(lend, dtype=np.int64).reshape(size)),
        weight=sealed(np.array([team.weight for team in teams], dtype=np.float64)),
        usage=sealed(np.array(usage, dtype=np.float64)),
        dollars_max=sealed(np.array([inf if team.dollars_max is None else team.dollars_max for team in teams])),
        dollars=sealed(np.array(dollars, dtype=np.float64)),
        attained=sealed(np.array([team.order is TeamOrder.ATTAINED for team in teams], dtype=np.bool_)),
    )


def _milli(chips: float | None) -> int:
    return NO_LIMIT if chips is None else round(chips * MILLI)


def cluster_table(
    inventories: Sequence[Inventory],
    chips: tuple[ChipName, ...],
    *,
    answering: Sequence[bool],
    silent_s: Sequence[float],
) -> Clusters:
    """Returns the clusters as columns.

    Args:
        inventories: In order of cluster.
        chips: Chip types known.
        answering: Whether each answers.
        silent_s: For how long each has not.
    """
    prices = [[inventory.dollars_per_chip_hour.get(chip, 0.0) for chip in chips] for inventory in inventories]
    return Clusters(
        names=tuple(inventory.cluster for inventory in inventories),
        simulated=sealed(np.array([inventory.simulated for inventory in inventories], dtype=np.bool_)),
        answering=sealed(np.array(answering, dtype=np.bool_)),
        silent_s=sealed(np.array(silent_s, dtype=np.float64)),
        delegated=sealed(np.array([inventory.delegated for inventory in inventories], dtype=np.bool_)),
        dollars_per_chip_hour=sealed(np.array(prices, dtype=np.float64).reshape(len(inventories), len(chips))),
        losses_per_node_hour=sealed(
            np.array([inventory.losses_per_node_hour for inventory in inventories], dtype=np.float64)
        ),
    )


def node_table(
    clusters: Sequence[ClusterColumns],
    chips: tuple[ChipName, ...],
    levels: tuple[str, ...],
    taints: tuple[tuple[str, ...], ...],
    slices: tuple[str, ...],
    live: Live,
) -> Nodes:
    """Returns all nodes, less what live attempts hold.

    Args:
        clusters: Their own columns, in order of cluster.
        chips: Chip types known.
        levels: Levels known.
        taints: Taint sets known.
        slices: Slice shapes known.
        live: What is held.
    """
    counts = [len(cluster.row_of) for cluster in clusters]
    count = sum(counts)
    known = live.held_node != NONE
    node = live.held_node[known]

    def left(free: list[Integers], held: Integers) -> Integers:
        whole = _joined(free, np.int64)
        used = np.bincount(node, weights=held[known], minlength=count).astype(np.int64)
        return np.where(whole == UNCOUNTED, whole, np.maximum(whole - used, 0))

    share = _shares(clusters, counts, live)
    opened = np.bincount(share.node[share.ours], minlength=count)
    held = np.bincount(node, weights=live.held_whole[known], minlength=count).astype(np.int64) + opened
    # Where foreign work took more than we left, nobody can tell which chip: none of ours is shared any further.
    over = held > _joined([cluster.whole for cluster in clusters], np.int64)
    share.milli[over[share.node]] = 0
    domain_parts = [np.zeros((0, len(levels)), dtype=np.int64)]
    for cluster, nodes in zip(clusters, counts, strict=True):
        domain = np.full((nodes, len(levels)), NONE, dtype=np.int64)
        for column, level in enumerate(cluster.levels):
            domain[:, levels.index(level)] = cluster.domain[:, column]
        domain_parts.append(domain)
    return Nodes(
        names=tuple(chain.from_iterable(cluster.row_of for cluster in clusters)),
        cluster=sealed(np.repeat(np.arange(len(clusters)), counts)),
        chip=sealed(_renumbered([(each.chip, each.chip_names) for each in clusters], chips)),
        chips=sealed(_joined([cluster.chips for cluster in clusters], np.int64)),
        whole=sealed(np.maximum(left([cluster.whole for cluster in clusters], live.held_whole) - opened, 0)),
        cpu_total_milli=sealed(_joined([cluster.cpu_total_milli for cluster in clusters], np.int64)),
        cpu_milli=sealed(left([cluster.cpu_milli for cluster in clusters], live.held_cpu_milli)),
        memory_total_mib=sealed(_joined([cluster.memory_total_mib for cluster in clusters], np.int64)),
        memory_mib=sealed(left([cluster.memory_mib for cluster in clusters], live.held_memory_mib)),
        ready=sealed(_joined([cluster.ready for cluster in clusters], np.bool_)),
        coming=sealed(_joined([cluster.coming for cluster in clusters], np.bool_)),
        taint=sealed(_renumbered([(each.taint, each.taint_sets) for each in clusters], taints)),
        slice=sealed(_renumbered([(each.slice, each.slice_names) for each in clusters], slices)),
        leaves_s=sealed(_joined([cluster.leaves_s for cluster in clusters], np.float64)),
        leaving=tuple(chain.from_iterable(cluster.leaving for cluster in clusters)),
        divides=sealed(_joined([cluster.divides for cluster in clusters], np.bool_)),
        domain=sealed(np.concatenate(domain_parts)),
        share_node=sealed(share.node),
        share_chip=sealed(share.chip),
        share_milli=sealed(share.milli),
    )


class _Shares:
    """Partly used chips, by node, then chip; `ours` marks those our attempts opened on whole chips."""

    def __init__(self, used: dict[tuple[int, int], int], foreign: set[tuple[int, int]]) -> None:
        keys = sorted(used)
        self.node = np.array([key[0] for key in keys], dtype=np.int64)
        self.chip = np.array([key[1] for key in keys], dtype=np.int64)
        self.milli = np.array([max(0, MILLI - used[key]) for key in keys], dtype=np.int64)
        self.ours = np.array([key not in foreign for key in keys], dtype=np.bool_)


def _shares(clusters: Sequence[ClusterColumns], counts: Sequence[int], live: Live) -> _Shares:
    used: dict[tuple[int, int], int] = {}
    first = 0
    for cluster, nodes in zip(clusters, counts, strict=True):
        for row, chip, free_milli in cluster.foreign_share:
            used[first + row, chip] = MILLI - free_milli
        first += nodes
    foreign = set(used)
    rows = np.flatnonzero((live.held_chip != NONE) & (live.held_node != NONE))
    for node, chip, milli in zip(
        live.held_node[rows].tolist(), live.held_chip[rows].tolist(), live.held_share_milli[rows].tolist(), strict=True
    ):
        used[node, chip] = used.get((node, chip), 0) + milli
    return _Shares(used, foreign)


def _joined(
    parts: Sequence[np.ndarray[tuple[int], np.dtype[Scalar]]], of: type[Scalar]
) -> np.ndarray[tuple[int], np.dtype[Scalar]]:
    return np.concatenate([np.zeros(0, dtype=of), *parts])


def _renumbered(parts: Sequence[tuple[Integers, Sequence[object]]], known: Sequence[object]) -> Integers:
    row_of = {name: row for row, name in enumerate(known)}
    return _joined([integers(row_of[name] for name in names)[column] for column, names in parts], np.int64)


def data_table(replicas: Sequence[Replica], clusters: Sequence[ClusterName]) -> Data:
    """Returns where inputs lie.

    Args:
        replicas: Every whole copy there is.
        clusters: In order.
    """
    names = tuple(sorted({replica.name for replica in replicas}))
    row_of = {name: row for row, name in enumerate(names)}
    column_of = {name: column for column, name in enumerate(clusters)}
    size = np.zeros(len(names), dtype=np.int64)
    present = np.zeros((len(names), len(clusters)), dtype=np.bool_)
    for replica in replicas:
        size[row_of[replica.name]] = max(replica.size_bytes, size[row_of[replica.name]])
        if replica.cluster in column_of:
            present[row_of[replica.name], column_of[replica.cluster]] = True
    return Data(names=names, size_bytes=sealed(size), present=sealed(present))
