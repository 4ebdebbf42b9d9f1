"""Saves of a job that is faster than they are: a snapshot that newer ones have overwritten is no failure."""

from __future__ import annotations

from mainspring.domain import wire
from mainspring.domain.wire.events.leads import CheckpointDurableEvent, CheckpointFailedEvent
from mainspring.node.lead.effects import Said
from mainspring.node.lead.holdings import Holdings
from mainspring.node.lead.saves import Saves
from tests.node.lead_agents import MAIN, orders
from tests.node.lead_cluster import Cluster


def _saving() -> tuple[Cluster, wire.StoreStep]:
    """Returns a cluster whose agents have been told to store a step, and do not answer; and that order."""
    cluster = Cluster(1, orders(2))
    cluster.attempt.programs.silent_stores = True
    assert cluster.run(60.0, until=lambda: bool(cluster.store_orders))
    return cluster, cluster.store_orders[-1]


def _failed(cluster: Cluster, step: int, reason: str) -> None:
    for rank in range(2):
        cluster.feed(Said(agent=rank, message=wire.StoreFailed(rank=rank, step=step, reason=reason)))


def test_save_that_newer_snapshots_have_overtaken_is_no_failure_and_a_newer_one_is_saved_soon() -> None:
    cluster, order = _saving()
    cluster.run(5.0)  # Meanwhile there are newer snapshots.
    cluster.attempt.programs.silent_stores = False
    _failed(cluster, order.step, wire.NO_LONGER_HELD)
    cluster.until(CheckpointDurableEvent.kind, 3.0)
    assert int(cluster.of_kind(CheckpointDurableEvent.kind)[0]["step"]) > order.step
    assert cluster.of_kind(CheckpointFailedEvent.kind) == []


def test_save_of_the_newest_snapshot_that_is_gone_is_a_failure() -> None:
    cluster, order = _saving()
    _failed(cluster, order.step, wire.NO_LONGER_HELD)
    assert cluster.of_kind(CheckpointFailedEvent.kind) == [{"step": order.step, "reason": wire.NO_LONGER_HELD}]


def test_save_that_failed_while_newer_snapshots_came_is_a_failure_all_the_same() -> None:
    reason = "No space left on device"
    cluster, order = _saving()
    cluster.run(5.0)
    _failed(cluster, order.step, reason)
    assert cluster.of_kind(CheckpointFailedEvent.kind) == [{"step": order.step, "reason": reason}]


def _held_by(*agents: int) -> Holdings:
    """What is known where each of these agents holds its rank's snapshot of step 1."""
    holdings = Holdings([MAIN])
    for rank, agent in enumerate(agents):
        own = wire.Holding(step=1, generation=1, rank=rank, role=MAIN, role_rank=rank, role_size=len(agents))
        holdings.add(agent, own)
    return holdings


def test_save_that_takes_long_is_followed_by_a_rest_as_long_as_it_asks_for() -> None:
    saves = Saves()
    assert saves.start(_held_by(0), 0.0)
    saves.share(wire.ShareStored(rank=0, step=1))
    assert saves.finish() is not None
    saves.written(100.0)
    assert not saves.due(399.0)
    assert saves.due(400.0)


def test_save_whose_agent_is_lost_is_given_up_and_the_step_may_be_tried_again() -> None:
    saves = Saves()
    assert saves.start(_held_by(0, 1), 0.0)
    saves.abandon()
    assert saves.start(_held_by(0), 0.0)
