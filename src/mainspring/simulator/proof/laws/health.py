"""Laws of health: what may never be wrong of nodes that rules close, whatever fails."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from math import isfinite
from typing import final

import sqlalchemy as sa

from mainspring.control.health.breaker import WINDOW_S
from mainspring.control.health.quarantines import OWNER
from mainspring.control.store.schema import closures
from mainspring.domain.errors import MainspringError
from mainspring.domain.fleet import NodeCondition
from mainspring.domain.hardware.care import USUAL_LIMITS
from mainspring.domain.ids import ClusterName
from mainspring.simulator.proof.cluster import SimulatedCluster
from mainspring.simulator.proof.watching import STRANGER, NodeWatchers

_CLOSED = sa.select(closures).where(closures.c.owner == OWNER).order_by(closures.c.from_s, closures.c.number)


@final
class HealthLaws:
    """The laws of one world.

    Args:
        watching: Those who watch there.
        clusters: Looked at past their faults.
    """

    def __init__(self, watching: NodeWatchers, clusters: Mapping[ClusterName, SimulatedCluster]) -> None:
        self._watching = watching
        self._clusters = clusters
        self._nodes: dict[ClusterName, int] = {}  # The most that each had.

    def check(self, connection: sa.Connection) -> None:
        """Checks them all, where anybody watches.

        Raises:
            AssertionError: One is broken.
        """
        if not self._watching.there:
            return
        self._check_strangers()
        closed_s: dict[ClusterName, list[tuple[float, str]]] = defaultdict(list)
        for row in connection.execute(_CLOSED):
            where = f"node {row.node} of {row.cluster}"
            ends = row.until_s is not None and isfinite(row.until_s)
            assert ends, f"{where} is in quarantine without an end"
            assert row.reason, f"{where} is in quarantine for no reason"
            assert row.rule in self._watching.promoted, f"{where} is closed for {row.rule}, which nobody promoted"
            closed_s[ClusterName(row.cluster)].append((row.from_s, row.node))
        for cluster, closings in closed_s.items():
            self._check_breaker(cluster, closings)

    def _check_breaker(self, cluster: ClusterName, closings: list[tuple[float, str]]) -> None:
        most = USUAL_LIMITS.most(self._nodes.get(cluster, 0))
        for last_s, _ in closings:
            together = {node for at_s, node in closings if last_s - WINDOW_S < at_s <= last_s}
            assert len(together) <= most, f"{len(together)} nodes of {cluster} are closed within {WINDOW_S:g} s"

    def _check_strangers(self) -> None:
        """Checks that cordons of others stand, whatever was closed and opened beside them."""
        for name, cluster in self._clusters.items():
            try:
                nodes = {node.name: node for node in cluster.inner.inventory().nodes}
            except MainspringError:
                continue  # It is away.
            self._nodes[name] = max(len(nodes), self._nodes.get(name, 0))
            for at in self._watching.cordoned:
                node = nodes.get(at.node) if at.cluster == name else None
                if node is not None and node.condition is NodeCondition.CORDONED:
                    assert node.condition_owner == STRANGER, f"{at.node} of {name} was cordoned by somebody else"
                elif node is not None:
                    assert node.condition is not NodeCondition.READY, f"a foreign cordon of {at.node} of {name} is gone"
