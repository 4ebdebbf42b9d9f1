"""Avoided nodes, in groups: nodes that the same waiting jobs avoid are alike, so that a few groups tell all apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

import numpy as np

from mainspring.domain.fleet import NodeRef
from mainspring.planner.facts.snapshot import Integers, Snapshot

# Groups told apart; nodes beyond share the last one, and who avoids one of them avoids all. Each group may add a shelf
# to every search for a node, and a tree of domains to a plan: 32 of them cost 12,000 nodes some tens of milliseconds.
GROUPS_MAX = 32


@final
class AvoidedGroups:
    """Which group each node is of: 0 for those that no waiting job avoids.

    Args:
        snapshot: Its pending jobs' shapes say what they avoid.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.of: Integers = np.zeros(len(snapshot.nodes.names), dtype=np.int64)
        self._row_of: dict[NodeRef, int] = {}
        if snapshot.avoid_nodes or any(shape.spreads for shape in snapshot.shapes):
            self._divide(snapshot)

    def of_nodes(self, avoided: Iterable[NodeRef]) -> frozenset[int]:
        """Returns the groups of some nodes; one that no cluster has is passed over."""
        rows = [self._row_of[at] for at in avoided if at in self._row_of]
        return frozenset(self.of[rows].tolist()) - {0}

    def _divide(self, snapshot: Snapshot) -> None:
        shapes = [snapshot.shapes[row] for row in np.unique(snapshot.pending.shape).tolist()]
        sets = dict.fromkeys(avoided for shape in shapes for avoided in (shape.avoids, shape.shuns) if avoided)
        self._row_of = _rows(snapshot, {at for avoided in sets for at in avoided})
        avoided_by: dict[int, list[int]] = {}
        for number, avoided in enumerate(sets):
            for at in avoided:
                if at in self._row_of:
                    avoided_by.setdefault(self._row_of[at], []).append(number)
        groups: dict[Sequence[int], int] = {}
        for row in sorted(avoided_by):
            group = groups.setdefault(tuple(avoided_by[row]), len(groups) + 1)
            self.of[row] = min(group, GROUPS_MAX)


def _rows(snapshot: Snapshot, wanted: set[NodeRef]) -> dict[NodeRef, int]:
    """Returns the rows of some nodes, as far as there are such nodes."""
    clusters, nodes = snapshot.clusters.names, snapshot.nodes
    named = {at.node for at in wanted}
    rows = (row for row, name in enumerate(nodes.names) if name in named)
    found = {NodeRef(cluster=clusters[nodes.cluster[row]], node=nodes.names[row]): row for row in rows}
    return {at: row for at, row in found.items() if at in wanted}
