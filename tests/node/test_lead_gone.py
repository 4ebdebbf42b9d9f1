"""Agents that an engine has seen end: the lead goes on without them at once, and without no other."""

from __future__ import annotations

from mainspring.domain.life import AttemptState
from mainspring.domain.wire.events.leads import AgentLostEvent, GenerationResumedEvent, LeadEndedEvent
from mainspring.node.lead.effects import Acknowledged
from tests.node.lead_agents import LEASE_S, orders
from tests.node.lead_cluster import Cluster


def _stepping(cluster: Cluster, step: int = 30) -> Cluster:
    cluster.until_step(step)
    return cluster


def test_lead_told_that_a_node_has_ended_goes_on_without_it_at_once() -> None:
    cluster = _stepping(Cluster(1, orders(4, spares=1)))
    cluster.engine_sees, lost_s = True, cluster.now_s
    cluster.lose(cluster.agents[1])
    cluster.until(GenerationResumedEvent.kind, 120.0, count=2)
    assert cluster.now_s - lost_s < LEASE_S / 3
    assert cluster.of_kind(AgentLostEvent.kind)[0]["agent"] == 1
    assert cluster.resumed[1][1:] == ("arena", 3)


def test_lead_told_that_a_node_it_needs_has_ended_is_lost_at_once_and_says_so() -> None:
    cluster = _stepping(Cluster(1, orders(2)))
    cluster.engine_sees, lost_s = True, cluster.now_s
    cluster.lose(cluster.agents[1])
    cluster.until(LeadEndedEvent.kind, 120.0)
    assert cluster.lead.outcome is AttemptState.LOST
    assert cluster.lead.reason.startswith("agents 1 gone; ")
    assert cluster.now_s - lost_s < LEASE_S / 3


def test_lead_waits_out_the_lease_of_a_node_that_is_cut_off_whatever_the_engine_sees_of_others() -> None:
    cluster = _stepping(Cluster(1, orders(5, spares=2)))
    cluster.engine_sees, lost_s = True, cluster.now_s
    cluster.cut_off(cluster.agents[1], 1_000.0)
    cluster.lose(cluster.agents[2])
    cluster.until(GenerationResumedEvent.kind, 120.0, count=2)
    assert cluster.now_s - lost_s > LEASE_S
    assert [one["agent"] for one in cluster.of_kind(AgentLostEvent.kind)] == [2, 1]


def test_lead_told_that_a_node_has_ended_whose_line_is_up_believes_the_line() -> None:
    cluster = _stepping(Cluster(1, orders(4, spares=1)))
    cluster.feed(Acknowledged(sent_s=cluster.now_s, gone=(1,)))
    cluster.hang_up(cluster.agents[1])
    cluster.run(2 * LEASE_S)
    assert cluster.lead.generation == 1
    assert cluster.of_kind(AgentLostEvent.kind) == []


def test_lead_of_a_later_epoch_told_that_the_lead_before_has_ended_does_not_wait_for_its_agent() -> None:
    cluster = _stepping(Cluster(1, orders(4, spares=1)))
    cluster.engine_sees = True
    cluster.lose(cluster.agents[0])
    cluster.until_led(epoch=2, seconds=5 * LEASE_S)
    began_s = cluster.now_s
    cluster.until(GenerationResumedEvent.kind, 120.0)
    assert cluster.now_s - began_s < LEASE_S / 3
