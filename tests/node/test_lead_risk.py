"""The lead bounds the work at risk, and says how much it is."""

from __future__ import annotations

import pytest

from mainspring.domain import wire
from mainspring.domain.wire.events import leads
from mainspring.node.lead.effects import Said
from mainspring.node.lead.outbox import Phase
from tests.node.lead_agents import STEP_S, orders
from tests.node.lead_cluster import Cluster


def test_lead_tells_the_steps_that_a_lost_rank_and_a_lost_cluster_would_repeat() -> None:
    cluster = Cluster(1, orders(2))
    cluster.until_step(100)
    cluster.run(600.0, until=lambda: cluster.lead.at_risk.steps >= 5)
    for _, rank in cluster.living:
        rank.stepping = False
    cluster.run(2.0)  # All that was said has arrived.
    here, risk = cluster.lead.step, cluster.lead.at_risk
    assert risk.seconds == pytest.approx(risk.steps * STEP_S, rel=0.1)
    assert (risk.durable_steps, risk.durable_seconds >= risk.seconds) == (here - max(cluster.store.steps), True)
    for _, rank in cluster.living:
        rank.stepping = True
    cluster.kill(1)
    cluster.until(leads.GenerationResumedEvent.kind, 30.0, count=2)
    assert cluster.resumed[1][0] == here - risk.steps
    assert cluster.lead.at_risk.steps == 0
    assert cluster.lead.at_risk.durable_steps == here - risk.steps - max(cluster.store.steps)


def test_lead_without_a_snapshot_tells_that_all_would_be_lost() -> None:
    cluster = Cluster(1, orders(2))
    assert cluster.lead.at_risk == wire.AtRisk(steps=0, seconds=0.0, durable_steps=0, durable_seconds=0.0)
    cluster.run(60.0, until=lambda: cluster.lead.phase is Phase.RUNNING)
    for rank in range(2):
        progress = wire.RankProgress(generation=1, rank=rank, step=9, time_s=0.0)
        cluster.feed(Said(agent=rank, message=progress))
    risk = cluster.lead.at_risk
    assert (risk.steps, risk.durable_steps, risk.seconds) == (9, 9, 0.0)


def test_lead_takes_snapshots_the_less_often_the_more_their_nodes_spend_on_them() -> None:
    every = []
    for cost_s in (0.0, 0.02, 0.2):
        cluster = Cluster(1, orders(2), cost_s=cost_s)
        cluster.run(600.0)
        every.append(cluster.of_kind(leads.SnapshotPaceEvent.kind)[-1]["every"])
    assert every == [8, 64, 128]
