"""The lead's state machine in the situations it is for, in a cluster in memory."""

from __future__ import annotations

import math

import pytest

from mainspring.domain import wire
from mainspring.domain.ids import NodeName
from mainspring.domain.life import AttemptState
from mainspring.domain.wire.events import leads
from mainspring.node.lead.effects import CoordinatorsUp, DurableSeen, Effect, Instant, Joined, Said, Tell, Tick
from mainspring.node.lead.lead import GATHER_LIMIT_S, Lead
from mainspring.node.lead.outbox import Phase
from mainspring.node.lead.preparation import HOLDINGS_TOLD_MAX
from tests.node.lead_agents import LEASE_S, MAIN, orders
from tests.node.lead_cluster import Cluster


def _stepping(cluster: Cluster, step: int = 30) -> Cluster:
    """Returns the cluster once its ranks have come to a step, with some snapshots taken."""
    cluster.until_step(step)
    return cluster


def test_lead_whose_ranks_all_end_well_succeeds_and_has_saved_the_last_step() -> None:
    cluster = Cluster(1, orders(2), last=20)
    cluster.until(leads.LeadEndedEvent.kind, 60.0)
    assert cluster.lead.outcome is AttemptState.SUCCEEDED
    assert cluster.manifests[-1].step == 20
    assert cluster.of_kind(leads.LeadEndedEvent.kind)[0]["outcome"] == "succeeded"


def test_lead_with_an_agent_missing_starts_nothing_and_gives_up_in_the_end() -> None:
    cluster = Cluster(1, orders(2))
    cluster.lose(cluster.agents[1])
    cluster.run(GATHER_LIMIT_S - 1)
    assert cluster.lead.generation == 0
    cluster.run(3)
    assert cluster.lead.outcome is AttemptState.LOST
    assert "agents 1 never joined" in cluster.lead.reason


@pytest.mark.parametrize("reconnects", [True, False])
def test_lead_that_loses_a_rank_resumes_all_at_the_newest_whole_step(*, reconnects: bool) -> None:
    cluster = _stepping(Cluster(1, orders(3), reconnects=reconnects))
    cluster.kill(1, words="boom")
    cluster.until(leads.CaughtUpEvent.kind, 60.0)
    assert len(cluster.resumed) == 2
    step, source, ranks = cluster.resumed[1]
    assert (source, ranks) == ("arena", 3)
    assert isinstance(step, int)
    assert 0 < step <= cluster.lead.step
    exited = cluster.of_kind(leads.RankExitedEvent.kind)
    assert [(one["rank"], one["exit_code"], one["last_words"]) for one in exited] == [(1, -9, "boom")]


def test_lead_that_hears_of_a_survivor_first_still_blames_the_rank_that_died() -> None:
    cluster = _stepping(Cluster(1, orders(2)))
    words = wire.RankLeft(generation=1, rank=0, words="peer closed")
    cluster.feed(Said(agent=0, message=words))
    cluster.kill(1, words="out of memory")
    cluster.until(leads.GenerationResumedEvent.kind, 30.0, count=2)
    cause = str(cluster.of_kind(leads.GenerationPreparingEvent.kind)[1]["cause"])
    assert cause.startswith("rank 1 was killed by signal 9")


def test_lead_of_a_rank_that_left_by_itself_begins_anew_and_says_why() -> None:
    cluster = _stepping(Cluster(1, orders(2)))
    cluster.feed(Said(agent=0, message=wire.RankLeft(generation=1, rank=0, words="device lost")))
    cluster.run(1.0)
    assert cluster.of_kind(leads.RankLeftEvent.kind)[0]["words"] == "device lost"
    cause = str(cluster.of_kind(leads.GenerationPreparingEvent.kind)[1]["cause"])
    assert cause.startswith("rank 0 left its generation")


def test_lead_of_a_program_that_fails_alike_three_times_quotes_the_first_error() -> None:
    cluster = _stepping(Cluster(1, orders(2), reconnects=False), 5)
    cluster.ranks.last = cluster.lead.step
    for number, words in enumerate(("KeyError: 'gripper'", "later words", "last words")):
        cluster.until(leads.GenerationResumedEvent.kind, 60.0, count=number + 1)
        cluster.feed(
            Said(agent=0, message=wire.RankExited(generation=number + 1, rank=0, exit_code=1, last_words=words))
        )
    assert cluster.lead.outcome is AttemptState.FAILED
    assert "KeyError: 'gripper'" in cluster.lead.reason


# ------------------------------------------------------------ the store


def test_lead_of_a_new_attempt_resumes_at_the_newest_durable_step() -> None:
    cluster = Cluster(1, orders(2))
    cluster.save_before(20, 40)
    cluster.until(leads.GenerationResumedEvent.kind, 30.0)
    assert cluster.resumed == [(40, "store", 2)]


def test_lead_of_a_later_attempt_has_caught_up_once_it_passes_the_furthest_step_of_the_earlier_ones() -> None:
    cluster = Cluster(1, orders(2, furthest_step=60))
    cluster.save_before(40)
    cluster.until(leads.CaughtUpEvent.kind, 60.0)
    assert cluster.of_kind(leads.CaughtUpEvent.kind)[0]["step"] in range(61, 66)


def test_lead_whose_store_does_not_answer_never_starts_fresh() -> None:
    cluster = Cluster(1, orders(2))
    cluster.store.up = False
    cluster.run(400)
    assert cluster.resumed == []
    assert cluster.lead.outcome is AttemptState.LOST
    assert "does not answer" in cluster.lead.reason


def test_lead_of_a_job_that_begins_from_anothers_checkpoint_counts_only_its_own_steps() -> None:
    cluster = Cluster(1, orders(2, begins_from="teacher@900"), last=20)
    cluster.until(leads.GenerationSteppingEvent.kind, 60.0)
    assert cluster.resumed == [(-1, "teacher@900", 2)]
    order = cluster.agents[1].order
    assert order is not None
    assert (order.step, order.source, order.begins_from) == (-1, "store", "teacher@900")
    cluster.kill(1)  # Before anything was saved: it begins from there once more, or from what memory has.
    cluster.until(leads.LeadEndedEvent.kind, 120.0)
    assert cluster.lead.outcome is AttemptState.SUCCEEDED
    assert {(one.parent_step, one.begins_from) for one in cluster.manifests} == {(-1, "teacher@900")}


def test_lead_of_a_job_that_has_saved_never_begins_from_anothers_checkpoint_again() -> None:
    cluster = Cluster(1, orders(2, begins_from="teacher@900"))
    cluster.save_before(30)
    cluster.until(leads.GenerationResumedEvent.kind, 30.0)
    assert cluster.resumed == [(30, "store", 2)]
    cluster.until_step(60)
    cluster.kill(0)
    cluster.until(leads.GenerationResumedEvent.kind, 60.0, count=2)
    assert cluster.resumed[1][1] == "arena"
    cluster.until(leads.CheckpointDurableEvent.kind, 60.0, count=2)
    assert {(one.parent_step, one.begins_from) for one in cluster.manifests} == {(30, "")}


@pytest.mark.parametrize("late", [False, True])
def test_lead_whose_job_cannot_begin_from_the_checkpoint_it_names_fails_and_says_so(*, late: bool) -> None:
    cluster = Cluster(1, orders(2, begins_from="teacher@900"))
    answer: wire.AgentToLead = wire.GenerationPrepared(
        generation=1, agent=0, ready=False, reason="no such step", corrupt=True
    )
    if late:  # Only when a rank reads it does it show.
        answer = wire.RestoreFailed(generation=1, rank=0, reason="no such step", corrupt=True)
    phase = Phase.RUNNING if late else Phase.PREPARING
    assert cluster.run(60.0, until=lambda: cluster.lead.phase is phase)
    cluster.feed(Said(agent=0, message=answer))
    cluster.run(60.0)
    assert cluster.lead.outcome is AttemptState.FAILED
    assert cluster.lead.reason == "teacher@900, from which the job begins, on agent 0: no such step"
    assert len(cluster.resumed) == late


def test_lead_whose_store_does_not_give_what_the_job_begins_from_waits_and_never_starts_fresh() -> None:
    cluster = Cluster(1, orders(2, begins_from="teacher@900"))
    assert cluster.run(60.0, until=lambda: cluster.lead.phase is Phase.PREPARING)
    cluster.store.up = False
    cluster.after(30.0, lambda: setattr(cluster.store, "up", True))
    cluster.until(leads.GenerationResumedEvent.kind, 120.0)
    assert cluster.resumed == [(-1, "teacher@900", 2)]
    assert cluster.now_s > 1_030.0


def test_lead_whose_store_answers_late_resumes_from_it() -> None:
    cluster = Cluster(1, orders(2))
    cluster.save_before(30)
    cluster.store.up = False
    cluster.after(60.0, lambda: setattr(cluster.store, "up", True))
    cluster.until(leads.GenerationResumedEvent.kind, 120.0)
    assert cluster.resumed == [(30, "store", 2)]


def test_lead_whose_store_is_away_trains_on_and_saves_when_it_is_back() -> None:
    cluster = _stepping(Cluster(1, orders(2)), 5)
    cluster.store.up = False
    cluster.run(60.0)
    assert cluster.lead.generation == 1
    assert len(cluster.of_kind(leads.CheckpointFailedEvent.kind)) >= 1
    cluster.store.up = True
    saved = len(cluster.manifests)
    cluster.until(leads.CheckpointDurableEvent.kind, 120.0, count=saved + 1)


def test_lead_whose_memory_is_damaged_passes_over_it_and_says_so() -> None:
    cluster = _stepping(Cluster(1, orders(2)), 40)
    cluster.run(30.0)
    for agent in cluster.agents.values():
        agent.damage()
    damaged = {one.step for one in cluster.agents[0].holdings}
    cluster.kill(1)
    cluster.until(leads.GenerationResumedEvent.kind, 60.0, count=2)
    corrupt = {one["step"] for one in cluster.of_kind(leads.CheckpointCorruptEvent.kind)}
    assert corrupt
    assert corrupt <= damaged
    step, source, _ = cluster.resumed[1]
    assert source == "store" or step not in damaged


def test_lead_told_of_a_damaged_durable_step_passes_over_it_and_replaces_it_when_it_comes_there_again() -> None:
    lead = Lead(orders(1), Instant(now_s=0.0, monotonic_s=0.0))
    now = Instant(now_s=1.0, monotonic_s=1.0)
    lead.handle(Joined(agent=0, node=NodeName("n0")), now)
    lead.handle(DurableSeen(steps=(20, 40)), now)
    bad = wire.GenerationPrepared(generation=1, agent=0, ready=False, reason="bad bytes", corrupt=True)
    told = lead.handle(Said(agent=0, message=bad), now)
    prepared = [one.message for one in told if isinstance(one, Tell)]
    assert [(one.generation, one.step) for one in prepared if isinstance(one, wire.PrepareGeneration)] == [(2, 20)]
    lead.handle(CoordinatorsUp(generation=2, addresses={}), now)
    lead.handle(Said(agent=0, message=wire.GenerationPrepared(generation=2, agent=0, ready=True)), now)
    lead.handle(Said(agent=0, message=wire.RankProgress(generation=2, rank=0, step=21, time_s=1.0)), now)
    holding = wire.Holding(step=40, generation=2, rank=0, role=MAIN, role_rank=0, role_size=1)
    lead.handle(Said(agent=0, message=wire.SnapshotTaken(holding=holding)), now)
    told = lead.handle(Said(agent=0, message=wire.ShareStored(rank=0, step=40, state={"from": 0})), now)
    assert [(one.step, one.replace) for one in told if not isinstance(one, Tell)] == [(40, True)]  # type: ignore[union-attr]


# ------------------------------------------------------------ agents


def test_lead_that_loses_a_node_gives_its_rank_to_the_spare_from_the_peers_copy() -> None:
    cluster = _stepping(Cluster(1, orders(4, spares=1)))
    cluster.lose(cluster.agents[1])
    cluster.until(leads.CaughtUpEvent.kind, 120.0)
    assert [source for _, source, _ in cluster.resumed] == ["", "arena"]
    assert cluster.resumed[1][2] == 3
    assert cluster.of_kind(leads.AgentLostEvent.kind)[0]["agent"] == 1
    assert {rank.place.rank for _, rank in cluster.living} == {0, 2, 3}


def test_lead_never_goes_on_without_a_node_before_the_nodes_lease_is_over() -> None:
    cluster = _stepping(Cluster(1, orders(4, spares=1)))
    lost_s = cluster.now_s
    cluster.cut_off(cluster.agents[1], 1_000.0)
    cluster.until(leads.GenerationResumedEvent.kind, 120.0, count=2)
    assert cluster.now_s - lost_s > LEASE_S


def test_lead_whose_controller_is_away_waits_with_going_on_without_a_node() -> None:
    cluster = _stepping(Cluster(1, orders(4, spares=1)))
    cluster.controller.up = False
    cluster.lose(cluster.agents[1])
    cluster.run(3_600.0)
    assert len(cluster.resumed) == 1
    assert cluster.lead.outcome is None
    cluster.controller.up = True
    cluster.until(leads.GenerationResumedEvent.kind, 30.0, count=2)


def test_lead_without_a_spare_shrinks_and_grows_again_when_the_node_is_back_with_nothing_repeated() -> None:
    cluster = _stepping(Cluster(1, orders(3, ranks_min=1)))
    cluster.cut_off(cluster.agents[1], 60.0)
    cluster.until(leads.GenerationResumedEvent.kind, 60.0, count=2)
    assert cluster.resumed[1][2] == 2
    cluster.until(leads.GenerationResumedEvent.kind, 120.0, count=3)
    step, source, ranks = cluster.resumed[2]
    assert (source, ranks) == ("arena", 3)
    assert step == cluster.lead.step


def test_lead_that_loses_a_node_it_needs_is_lost() -> None:
    cluster = _stepping(Cluster(1, orders(2)))
    cluster.lose(cluster.agents[1])
    cluster.until(leads.LeadEndedEvent.kind, 120.0)
    assert cluster.lead.outcome is AttemptState.LOST
    assert "agents 1 not heard of for 15 s" in cluster.lead.reason


def test_lead_whose_agents_line_breaks_for_a_moment_goes_on() -> None:
    cluster = _stepping(Cluster(1, orders(2)))
    for _ in range(5):
        cluster.hang_up(cluster.agents[1], again_s=3.0)
        cluster.run(8.0)
    assert cluster.lead.generation == 1


def test_lead_grows_while_running_with_nothing_repeated() -> None:
    cluster = _stepping(Cluster(1, orders(2, ranks_min=1)))
    cluster.grow()
    cluster.grow()
    cluster.until(leads.GenerationResumedEvent.kind, 60.0, count=2)
    assert cluster.resumed[1][1:] == ("arena", 4)
    assert cluster.resumed[1][0] == cluster.lead.step
    assert cluster.of_kind(leads.GenerationPreparingEvent.kind)[1]["cause"] == "grows to 4 ranks"


@pytest.mark.parametrize("grace_s", [5.0, 120.0])
def test_lead_told_that_a_node_is_taken_away_moves_its_ranks_with_nothing_repeated(grace_s: float) -> None:
    cluster = _stepping(Cluster(1, orders(4, spares=1)))
    cluster.leave(cluster.agents[1], grace_s)
    cluster.until(leads.GenerationResumedEvent.kind, 60.0, count=2)
    step, source, ranks = cluster.resumed[1]
    assert (source, ranks) == ("arena", 3)
    assert step == cluster.lead.step
    assert cluster.of_kind(leads.AgentLeavingEvent.kind)[0]["agent"] == 1
    cluster.run(grace_s + 30.0)
    assert cluster.lead.generation == 2
    assert not cluster.agents[1].alive


def test_lead_shows_no_place_whose_node_was_taken_away_and_still_shows_one_that_was_lost() -> None:
    cluster = _stepping(Cluster(1, orders(4, ranks_min=1)))
    cluster.leave(cluster.agents[1], 30.0)
    cluster.run(0.1)
    assert [status.rank for status in cluster.lead.rank_status] == [0, 1, 2, 3], "it has not left yet"
    cluster.until(leads.GenerationResumedEvent.kind, 60.0, count=2)
    assert [(status.rank, status.alive) for status in cluster.lead.rank_status if status.rank == 1] == []
    cluster.run(40.0)
    cluster.lose(cluster.agents[2])
    cluster.until(leads.CaughtUpEvent.kind, 120.0, count=2)
    assert [(status.rank, status.alive) for status in cluster.lead.rank_status] == [(0, True), (2, False), (3, True)]


def test_lead_asks_ranks_to_leave_at_a_step_none_of_them_is_past() -> None:
    cluster = _stepping(Cluster(3, orders(4, spares=1)))
    cluster.leave(cluster.agents[1], 30.0)
    assert cluster.run(1.0, until=lambda: bool(cluster.leave_orders))
    cluster.run(0.1)
    assert all(rank.step <= cluster.leave_orders[0].step for _, rank in cluster.living)


def test_lead_told_that_a_node_it_needs_is_taken_away_saves_and_ends_without_a_failure() -> None:
    cluster = _stepping(Cluster(1, orders(2)))
    cluster.leave(cluster.agents[1], 30.0)
    cluster.until(leads.LeadEndedEvent.kind, 60.0)
    assert cluster.lead.outcome is AttemptState.CANCELLED
    assert "preempted" in cluster.lead.reason
    assert cluster.manifests[-1].step == cluster.lead.step


def test_lead_swaps_a_node_whose_ranks_fail_twice_without_progress_for_a_spare() -> None:
    cluster = _stepping(Cluster(1, orders(4, spares=1), reconnects=False))
    cluster.ranks.last = cluster.lead.step
    for number, code in enumerate((-11, -6)):
        cluster.until(leads.GenerationResumedEvent.kind, 60.0, count=number + 1)
        cluster.feed(Said(agent=2, message=wire.RankExited(generation=number + 1, rank=2, exit_code=code)))
    cluster.run(3.0)
    assert cluster.lead.generation == 3
    assert all(rank.place.rank != 2 for _, rank in cluster.living)


def test_lead_of_a_later_epoch_takes_over_what_agents_hold_without_the_agent_of_the_lead_before() -> None:
    cluster = _stepping(Cluster(1, orders(4, spares=1)))
    before = cluster.lead.step
    cluster.lose(cluster.agents[0])
    cluster.until_led(epoch=2, seconds=5 * LEASE_S)
    cluster.until(leads.GenerationResumedEvent.kind, 120.0)
    ((step, source, ranks),) = cluster.resumed
    assert (source, ranks) == ("arena", 3)
    assert isinstance(step, int)
    assert step > before - 20
    assert cluster.lead.generation == 2


def test_lead_whose_agents_are_all_new_counts_generations_on_from_those_of_the_lead_before() -> None:
    cluster = _stepping(Cluster(1, orders(2, epoch=2, generation=12)))
    assert cluster.lead.generation == 13


# ------------------------------------------------------------ stops and hangs


def test_lead_told_to_stop_has_ranks_leave_at_one_step_and_saves_it() -> None:
    cluster = _stepping(Cluster(1, orders(2)))
    cluster.stop(20.0)
    cluster.until(leads.LeadEndedEvent.kind, 60.0)
    assert cluster.lead.outcome is AttemptState.CANCELLED
    assert cluster.lead.reason == "stopped"
    assert {message.step for message in cluster.leave_orders} == {cluster.manifests[-1].step}


def test_lead_told_to_stop_ends_ranks_that_outlive_the_grace() -> None:
    cluster = _stepping(Cluster(1, orders(2)))
    cluster.stop_process(1)
    cluster.stop(5.0)
    cluster.until(leads.LeadEndedEvent.kind, 30.0)
    assert cluster.lead.outcome is AttemptState.CANCELLED
    assert "outlived" in cluster.lead.reason


def test_lead_told_to_stop_while_a_node_leaves_keeps_to_the_step_it_named() -> None:
    cluster = _stepping(Cluster(1, orders(4, spares=1)))
    cluster.leave(cluster.agents[1], 30.0)
    cluster.run(0.6)
    cluster.stop(20.0)
    cluster.until(leads.LeadEndedEvent.kind, 60.0)
    assert cluster.lead.outcome is AttemptState.CANCELLED
    assert len({message.step for message in cluster.leave_orders}) == 1


def test_lead_told_to_stop_that_then_loses_a_rank_does_not_begin_anew() -> None:
    cluster = _stepping(Cluster(1, orders(3, ranks_min=1)))
    cluster.stop(60.0)
    cluster.lose(cluster.agents[1])
    cluster.until(leads.LeadEndedEvent.kind, 120.0)
    assert cluster.lead.outcome is AttemptState.CANCELLED
    assert cluster.lead.generation == 1


def test_lead_of_a_hung_rank_names_it_and_begins_anew() -> None:
    cluster = _stepping(Cluster(1, orders(3)))
    cluster.stop_process(2)
    cluster.until(leads.CaughtUpEvent.kind, 120.0)
    (hang,) = cluster.of_kind(leads.HangEvent.kind)
    assert hang["odd"] == "2"
    assert "state T" in str(hang["evidence"])
    assert cluster.lead.seconds(cluster.instant)["hang"] > 3 * 9.0


def test_lead_of_ranks_that_all_pause_alike_lets_them() -> None:
    cluster = _stepping(Cluster(1, orders(3)))
    cluster.run(10.0)
    here = cluster.lead.step
    for _, rank in cluster.living:
        rank.stepping = False
    cluster.run(600.0)
    assert cluster.lead.generation == 1
    for _, rank in cluster.living:
        rank.stepping = True
    cluster.until_step(here + 10)
    assert cluster.of_kind(leads.HangEvent.kind) == []


# ------------------------------------------------------------ what is told


def test_lead_told_a_result_again_keeps_it_once() -> None:
    cluster = _stepping(Cluster(1, orders(2)), 3)
    for sequence, value in ((1, "first"), (2, "second"), (1, "first"), (2, "second")):
        cluster.feed(Said(agent=0, message=wire.RankResult(rank=0, values={"x": value}, sequence=sequence)))
    assert cluster.of_kind(leads.ResultEvent.kind) == [{"x": "first"}, {"x": "second"}]


def test_lead_told_of_an_arena_without_room_says_so_once_a_step() -> None:
    cluster = _stepping(Cluster(1, orders(2)), 3)
    for rank in range(2):
        cluster.feed(Said(agent=rank, message=wire.StoreFailed(rank=rank, step=5, reason="no room")))
    assert cluster.of_kind(leads.CheckpointFailedEvent.kind) == [{"step": 5, "reason": "no room"}]


def test_ledger_of_a_lead_adds_up_to_its_nodes_times_its_time() -> None:
    cluster = Cluster(1, orders(3))
    for rank in range(3):
        cluster.run(40.0)
        cluster.kill(rank) if rank != 1 else cluster.stop_process(rank)
        seconds = math.fsum(cluster.lead.seconds(cluster.instant).values())
        assert seconds == pytest.approx(3 * (cluster.now_s - 1_000.0))


def test_lead_tells_all_ranks_where_each_roles_first_rank_lives() -> None:
    lead = Lead(orders(2), Instant(now_s=0.0, monotonic_s=0.0))
    now = Instant(now_s=1.0, monotonic_s=1.0)
    for agent in range(2):
        lead.handle(Joined(agent=agent, node=NodeName(f"n{agent}")), now)
    lead.handle(DurableSeen(steps=()), now)
    lead.handle(CoordinatorsUp(generation=1, addresses={"main": "c:1"}), now)
    told: list[Effect] = []
    for agent in range(2):
        masters = {"main": "10.0.0.1:99"} if agent == 0 else {}
        ready = wire.GenerationPrepared(generation=1, agent=agent, ready=True, masters=masters)
        told += lead.handle(Said(agent=agent, message=ready), now)
    starts = [one.message for one in told if isinstance(one, Tell) and isinstance(one.message, wire.StartRanks)]
    assert [(start.masters, start.coordinators) for start in starts] == [({"main": "10.0.0.1:99"}, {"main": "c:1"})] * 2


def test_lead_of_hundreds_of_ranks_tells_agents_no_more_than_they_need() -> None:
    agents, per_agent = 70, 8
    assert agents * per_agent > HOLDINGS_TOLD_MAX
    told = orders(agents, per_agent=per_agent, spares=per_agent)
    lead = Lead(told, Instant(now_s=0.0, monotonic_s=0.0))
    now = Instant(now_s=1.0, monotonic_s=1.0)
    running = (agents - 1) * per_agent
    for agent in range(agents):
        lead.handle(Joined(agent=agent, node=NodeName(f"n{agent}"), address=f"a{agent}:1"), now)
    lead.handle(DurableSeen(steps=()), now)
    lead.handle(CoordinatorsUp(generation=1, addresses={}), now)
    for agent in range(agents):
        lead.handle(Said(agent=agent, message=wire.GenerationPrepared(generation=1, agent=agent, ready=True)), now)
    assert lead.phase is Phase.RUNNING
    for rank in range(running):
        agent = rank // per_agent
        own = wire.Holding(step=5, generation=1, rank=rank, role=MAIN, role_rank=rank, role_size=running)
        copy = wire.Holding(step=5, generation=1, rank=rank, role=MAIN, role_rank=rank, role_size=running, copied=True)
        progress = wire.RankProgress(generation=1, rank=rank, step=5, time_s=1.0)
        lead.handle(Said(agent=agent, message=wire.SnapshotTaken(holding=own)), now)
        lead.handle(Said(agent=(agent + 35) % (agents - 1), message=wire.SnapshotTaken(holding=copy)), now)
        lead.handle(Said(agent=agent, message=progress), now)
    lead.handle(Said(agent=3, message=wire.AgentDrained(agent=3)), now)
    effects = lead.handle(Tick(), now)
    assert lead.generation == 2
    again = lead.handle(Joined(agent=5, node=NodeName("n5"), generation=1), now)
    told_again = [one for one in (*effects, *again) if isinstance(one, Tell)]
    assert told_again
    orders_of_5 = [one.message for one in told_again if isinstance(one.message, wire.PrepareGeneration)]
    assert [len(one.holders) for one in orders_of_5] == [1]
