"""The tables of a snapshot that are put together anew each time: nodes, clusters, teams, data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import inf
from typing import Any

import numpy as np

from mainspring.domain.errors import InvalidInput, nearest
from mainspring.domain.fleet import Inventory, NodeRef, Replica
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
    Floats,
    Integers,
    Live,
    Nodes,
    Teams,
)
from mainspring.planner.facts.tables import columns, table_of


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
        usage: Decayed use of each.
    """
    row_of = {team.name: row for row, team in enumerate(teams)}
    size = (len(teams), len(chips))
    return table_of(
        Teams,
        names=tuple(team.name for team in teams),
        parent=[NONE if team.parent is None else row_of.get(team.parent, NONE) for team in teams],
        milli_max=[_milli(team.chips_max) for team in teams],
        guarantee_milli=np.reshape(
            [round(team.guarantee.get(chip, 0.0) * MILLI) for team in teams for chip in chips], size
        ),
        borrow_max_milli=np.reshape([_milli(team.borrow_max.get(chip)) for team in teams for chip in chips], size),
        lend_max_milli=np.reshape([_milli(team.lend_max.get(chip)) for team in teams for chip in chips], size),
        weight=[team.weight for team in teams],
        usage=usage,
        dollars_max=[inf if team.dollars_max is None else team.dollars_max for team in teams],
        dollars=dollars,
        attained=[team.order is TeamOrder.ATTAINED for team in teams],
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
        answering: Whether each answers.
        silent_s: For how long each has not.
    """
    prices = [inventory.dollars_per_chip_hour.get(chip, 0.0) for inventory in inventories for chip in chips]
    return table_of(
        Clusters,
        names=tuple(inventory.cluster for inventory in inventories),
        simulated=[inventory.simulated for inventory in inventories],
        answering=answering,
        silent_s=silent_s,
        delegated=[inventory.delegated for inventory in inventories],
        dollars_per_chip_hour=np.reshape(prices, (len(inventories), len(chips))),
        losses_per_node_hour=[inventory.losses_per_node_hour for inventory in inventories],
    )


def node_table(
    clusters: Sequence[ClusterColumns],
    chips: tuple[ChipName, ...],
    levels: tuple[str, ...],
    taints: tuple[tuple[str, ...], ...],
    slices: tuple[str, ...],
    live: Live,
    avoided_s: Mapping[NodeRef, float],
) -> Nodes:
    """Returns all nodes, less what live attempts hold.

    Args:
        clusters: Their own columns, in order of cluster.
        taints: Taint sets known.
        slices: Slice shapes known.
        avoided_s: Until when some are avoided by all.
    """
    counts = [len(cluster.row_of) for cluster in clusters]
    count = sum(counts)
    known = live.held_node != NONE
    node = live.held_node[known]

    parts = [cluster.nodes for cluster in clusters]
    found: dict[str, Any] = {
        name: np.concatenate([np.zeros(0, dtype=column.dtype), *(getattr(part, name) for part in parts)])
        for name, column in columns(Nodes, "").items()
        if name != "domain"
    }

    def left(whole: Integers, held: Integers) -> Integers:
        used = np.bincount(node, weights=held[known], minlength=count).astype(np.int64)
        return np.where(whole == UNCOUNTED, whole, np.maximum(whole - used, 0))

    share = _shares(clusters, counts, live)
    opened = np.bincount(share.node[share.ours], minlength=count)
    held = np.bincount(node, weights=live.held_whole[known], minlength=count).astype(np.int64) + opened
    # Where foreign work took more than we left, nobody can tell which chip: none of ours is shared any further.
    share.milli[(held > found["whole"])[share.node]] = 0
    domain = np.full((count, len(levels)), NONE, dtype=np.int64)
    for cluster, last in zip(clusters, np.cumsum(counts).tolist(), strict=True):
        rows = slice(last - len(cluster.row_of), last)
        domain[rows, [levels.index(level) for level in cluster.levels]] = cluster.nodes.domain
    found |= {
        "cluster": np.repeat(np.arange(len(clusters)), counts),
        "chip": _renumbered([(each.nodes.chip, each.chip_names) for each in clusters], chips),
        "whole": np.maximum(left(found["whole"], live.held_whole) - opened, 0),
        "cpu_milli": left(found["cpu_milli"], live.held_cpu_milli),
        "memory_mib": left(found["memory_mib"], live.held_memory_mib),
        "taint": _renumbered([(each.nodes.taint, each.taint_sets) for each in clusters], taints),
        "slice": _renumbered([(each.nodes.slice, each.slice_names) for each in clusters], slices),
        "domain": domain,
        "avoided_s": _avoided(clusters, counts, avoided_s),
    }
    return table_of(
        Nodes,
        names=tuple(chain.from_iterable(part.names for part in parts)),
        words=tuple(chain.from_iterable(part.words for part in parts)),
        share_node=share.node,
        share_chip=share.chip,
        share_milli=share.milli,
        **found,
    )


def _avoided(clusters: Sequence[ClusterColumns], counts: Sequence[int], until_s: Mapping[NodeRef, float]) -> Floats:
    found = np.full(sum(counts), -inf)
    firsts = np.cumsum([0, *counts]).tolist()
    first_of = {each.inventory.cluster: (each, first) for each, first in zip(clusters, firsts, strict=False)}
    for at, at_s in until_s.items():
        cluster, first = first_of.get(at.cluster, (None, 0))
        row = cluster.row_of.get(at.node) if cluster is not None else None
        if row is not None:
            found[first + row] = at_s
    return found


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
        own = cluster.nodes
        for row, chip, milli in zip(
            own.share_node.tolist(), own.share_chip.tolist(), own.share_milli.tolist(), strict=True
        ):
            used[first + row, chip] = MILLI - milli
        first += nodes
    foreign = set(used)
    rows = np.flatnonzero((live.held_chip != NONE) & (live.held_node != NONE))
    for node, chip, milli in zip(
        live.held_node[rows].tolist(), live.held_chip[rows].tolist(), live.held_share_milli[rows].tolist(), strict=True
    ):
        used[node, chip] = used.get((node, chip), 0) + milli
    return _Shares(used, foreign)


def _renumbered(parts: Sequence[tuple[Integers, Sequence[object]]], known: Sequence[object]) -> Integers:
    row_of = {name: row for row, name in enumerate(known)}
    own = [integers(row_of[name] for name in names)[column] for column, names in parts]
    return np.concatenate([np.zeros(0, dtype=np.int64), *own])


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
    return table_of(Data, names=names, size_bytes=size, present=present)
