"""The lead bounds the work at risk."""

from __future__ import annotations

from mainspring.domain.wire.events import leads
from tests.node.lead_agents import orders
from tests.node.lead_cluster import Cluster


def test_lead_takes_snapshots_the_less_often_the_more_their_nodes_spend_on_them() -> None:
    every = []
    for cost_s in (0.0, 0.02, 0.2):
        cluster = Cluster(1, orders(2), cost_s=cost_s)
        cluster.run(600.0)
        every.append(cluster.of_kind(leads.SnapshotPaceEvent.kind)[-1]["every"])
    assert every == [8, 64, 128]
