"""What is told to be wrong outlives what happens beside it: a stop, a store that is away, a generation that ends."""

from __future__ import annotations

import pytest

from mainspring.domain import wire
from mainspring.domain.life import AttemptState
from mainspring.domain.wire.events.leads import DevicesDifferEvent, GenerationResumedEvent
from mainspring.simulator.nodes.leading import SLOW_STORE_S_MAX
from tests.node.lead_agents import orders
from tests.node.lead_cluster import Cluster
from tests.node.test_lead_again import agreed, being_written, durable, stands_alone, tried

GRACE_S = 30.0
AWAY_S = 20.0


def with_wrong_steps(seed: int) -> tuple[Cluster, int]:
    """Returns an attempt with durable steps before and after one on which all agreed, and that one."""
    cluster = Cluster(seed, orders(4, spares=1))
    kept = max(durable(cluster, 1))
    trusted = agreed(cluster, 1)
    assert max(durable(cluster, 2)) > trusted >= kept
    return cluster, trusted


def over(cluster: Cluster) -> None:
    assert cluster.run(1_200.0, until=lambda: cluster.done), "\n".join(cluster.trace[-20:])


@pytest.mark.parametrize("away", [False, True])
def test_verdict_while_the_attempt_stops_withdraws_what_came_since_before_it_ends(*, away: bool) -> None:
    cluster, trusted = with_wrong_steps(1)
    cluster.store.up = not away
    cluster.after(AWAY_S, lambda: setattr(cluster.store, "up", True))
    cluster.stop(GRACE_S)
    tried(cluster, stands_alone(cluster, 2, since=trusted), 2)
    over(cluster)
    assert cluster.lead.outcome is AttemptState.CANCELLED
    assert 0 <= max(cluster.store.steps) <= trusted, "the next attempt begins before"


@pytest.mark.parametrize("seed", range(3))
def test_manifest_under_way_when_the_verdict_comes_while_the_attempt_stops_is_withdrawn_too(seed: int) -> None:
    cluster, trusted = with_wrong_steps(seed)
    cluster.store.slow = 1.0
    assert cluster.run(120.0, until=lambda: bool(being_written(cluster)))
    cluster.stop(GRACE_S)
    tried(cluster, stands_alone(cluster, 2, since=trusted), 2)
    over(cluster)
    cluster.run(2 * SLOW_STORE_S_MAX)
    assert 0 <= max(cluster.store.steps) <= trusted


def test_attempt_that_was_stopping_already_when_all_ranks_had_left_is_not_over_before_it_has_withdrawn() -> None:
    cluster, trusted = with_wrong_steps(2)
    cluster.stop(GRACE_S)
    generation, alone = cluster.lead.generation, stands_alone(cluster, 2, since=trusted)
    assert cluster.run(60.0, until=lambda: cluster.lead.outcome is not None)
    tried(cluster, alone, 2, generation=generation)
    over(cluster)
    assert 0 <= max(cluster.store.steps) <= trusted


def test_store_that_never_answers_does_not_keep_an_attempt_from_its_end() -> None:
    cluster, trusted = with_wrong_steps(3)
    cluster.store.up = False
    cluster.stop(GRACE_S)
    tried(cluster, stands_alone(cluster, 2, since=trusted), 2)
    over(cluster)
    assert cluster.lead.outcome is AttemptState.CANCELLED


def test_verdict_of_a_generation_that_is_over_is_gone_back_for_and_blames_nobody() -> None:
    cluster, trusted = with_wrong_steps(4)
    generation, alone = cluster.lead.generation, stands_alone(cluster, 2, since=trusted)
    cluster.kill(1)
    cluster.until(GenerationResumedEvent.kind, 60.0, 2)
    assert int(str(cluster.resumed[-1][0])) > trusted, "nobody knew"
    tried(cluster, alone, 2, generation=generation)
    cluster.until(GenerationResumedEvent.kind, 120.0, 3)
    assert int(str(cluster.resumed[-1][0])) <= trusted
    (told,) = cluster.of_kind(DevicesDifferEvent.kind)
    assert (told["generation"], told["nodes"], told["certain"]) == (generation, "", True)
    tried(cluster, alone, 3, generation=generation)
    cluster.run(30.0)
    assert len(cluster.resumed) == 3, "what was computed since comes of nothing wrong"


def test_program_that_ended_well_on_a_wrong_device_is_run_again_from_before() -> None:
    cluster, trusted = with_wrong_steps(5)
    generation, alone = cluster.lead.generation, stands_alone(cluster, 2, since=trusted)
    cluster.ranks.last = cluster.lead.step + 2
    assert cluster.run(60.0, until=lambda: cluster.lead.outcome is AttemptState.SUCCEEDED)
    tried(cluster, alone, 2, generation=generation)
    over(cluster)
    assert cluster.lead.outcome is AttemptState.LOST
    assert 0 <= max(cluster.store.steps) <= trusted


# ---------------------------------------------------------------- ranks that check their devices


def of_devices(cluster: Cluster) -> list[tuple[object, object, object]]:
    return [(told["certain"], told["again"], told["nodes"]) for told in cluster.of_kind(DevicesDifferEvent.kind)]


def lies(cluster: Cluster, rank: int) -> None:
    device = cluster.agents[rank].device(rank)
    device.lies = device.faulty = True


def test_simulated_ranks_find_a_device_that_lies_and_none_of_two_or_that_slips() -> None:
    cluster = Cluster(6, orders(4, spares=1))
    cluster.attempt.checks.every = 4
    cluster.until_step(9)
    cluster.agents[1].device(1).slips = True
    cluster.until(DevicesDifferEvent.kind, 60.0)
    assert [(certain, again) for certain, again, _ in of_devices(cluster)] == [(False, True)]
    lies(cluster, 2)
    cluster.until(GenerationResumedEvent.kind, 60.0, 2)
    assert of_devices(cluster)[1:] == [(True, False, "n2")]
    two = Cluster(7, orders(2))
    two.attempt.checks.every = 4
    two.until_step(9)
    lies(two, 0)
    two.until(DevicesDifferEvent.kind, 60.0, 2)
    assert of_devices(two) == [(False, False, "n0, n1")] * 2
    assert len(two.resumed) == 1


def test_program_that_does_not_repeat_itself_is_checked_no_more_and_nobody_is_named() -> None:
    cluster = Cluster(9, orders(4))
    cluster.attempt.checks.every, cluster.attempt.checks.repeats = 4, False
    lies(cluster, 2)
    cluster.until_step(40)
    (told,) = cluster.of_kind(DevicesDifferEvent.kind)
    assert (told["given_up"], told["certain"], told["nodes"]) == (True, False, "")
    assert len(cluster.resumed) == 1


def test_word_of_checks_is_told_as_agents_tell_it() -> None:
    cluster = Cluster(8, orders(3))
    cluster.attempt.checks.every = 4
    cluster.until_step(9)
    first, second = cluster.agents[0].tried[:2]
    assert first.report == wire.StepTried(step=0, equal=True, agreed_step=-1)
    assert second.report == wire.StepTried(step=4, equal=True, agreed_step=3)
    assert (first.sequence, second.sequence) == (1, 2)
