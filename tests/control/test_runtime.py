"""Attempts that change while they run: nodes lost, taken and added, leads that are gone, and where their time went."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.control.living import SWIFT, ask, begin, come, live

from mainspring.control.store.holdings import change, merged, split
from mainspring.control.store.settings import Settings
from mainspring.domain.errors import Conflict
from mainspring.domain.ids import AllocationId, ChipName, ClusterName, JobId, NodeName
from mainspring.domain.job import MAIN, Option, Role, Tier
from mainspring.domain.life import AttemptState, JobState
from mainspring.domain.plan import Grant
from mainspring.domain.wire.events.attempts import AttemptResizedEvent, LeadNamedEvent
from mainspring.domain.wire.events.jobs import StopRequestedEvent
from mainspring.domain.wire.events.leads import CheckpointDurableEvent
from mainspring.planner import Policy

if TYPE_CHECKING:
    from tests.control.conftest import World


LEASE_S = Settings().lease_s


def _kinds(world: World, job: JobId) -> list[str]:
    return [event.kind for event in world.control.events(reference=job)]


def _elastic(world: World, policy: Policy = SWIFT) -> JobId:
    """A running job of 2 to 4 replicas, on all four nodes of west."""
    world.restart(policy=policy)
    job = world.submit(world.spec("wide", replicas=4, replicas_min=2, tier=Tier.OPPORTUNISTIC))
    world.tick()
    world.submit(world.spec("east", replicas=4, tier=Tier.CRITICAL))
    begin(world, job)
    assert world.job(job).attempts[0].cluster == "west"
    return job


# ---------------------------------------------------------------- parts of grants


NODES = st.lists(st.integers(1, 3), min_size=1, max_size=6)


def _grant(ranks: list[int]) -> Grant:
    return Grant(
        role=MAIN,
        option=0,
        cluster=ClusterName("c"),
        nodes=tuple(NodeName(f"n{node}") for node, count in enumerate(ranks) if count),
        chip_milli=tuple(1_000 * count for count in ranks if count),
        ranks=tuple(count for count in ranks if count),
    )


@given(NODES, st.data())
def test_parts_of_a_grant_are_what_the_role_needs_and_then_single_nodes(ranks: list[int], data: st.DataObject) -> None:
    whole = _grant(ranks)
    least = data.draw(st.integers(1, sum(ranks)))
    parts = split(whole, Option(chip=ChipName("c"), replicas=sum(ranks), replicas_min=least))
    assert merged(parts) == (whole,)
    assert sum(parts[0].ranks) >= least
    assert sum(parts[0].ranks[:-1]) < least or len(parts) == 1
    assert all(len(part.nodes) == 1 for part in parts[1:])


@given(NODES, NODES)
def test_change_of_a_role_brings_it_to_what_is_wanted_by_whole_allocations_alone(
    before: list[int], after: list[int]
) -> None:
    option = Option(chip=ChipName("c"), replicas=100, replicas_min=1)
    held = {AllocationId(f"a{place}"): part for place, part in enumerate(split(_grant(before), option))}
    wanted = _grant(after)
    how = change(held, wanted)
    if how is None:
        assert any(new < old for old, new in zip(before, [*after, *[0] * 6], strict=False))
        return
    kept = [part for name, part in held.items() if name not in how.dropped]
    (made,) = merged([*kept, *how.added])
    assert dict(zip(made.nodes, made.ranks, strict=True)) == dict(zip(wanted.nodes, wanted.ranks, strict=True))
    assert dict(zip(made.nodes, made.chip_milli, strict=True)) == dict(
        zip(wanted.nodes, wanted.chip_milli, strict=True)
    )


# ---------------------------------------------------------------- shrink and grow


def test_elastic_job_gives_up_nodes_for_an_urgent_one_and_runs_on(world: World) -> None:
    job = _elastic(world)
    world.tick(8)
    narrow = world.submit(world.spec("narrow", replicas=2, tier=Tier.CRITICAL))
    world.tick()
    resized = [event for event in world.control.events(reference=job) if event.kind == AttemptResizedEvent.kind]
    assert [(event.detail["replicas"], event.detail["for_job"]) for event in resized] == [(2, narrow)]
    attempt = world.job(job).attempts[0]
    assert attempt.state is AttemptState.RUNNING
    assert len(live(world, job)) == 1, "the base alone goes on"
    assert len(attempt.nodes) == 4, "what is given up is held until it is gone"
    world.beat(job, step=7)
    world.tick(4)
    view = world.job(job)
    assert (view.state, len(view.attempts), len(view.attempts[0].nodes)) == (JobState.RUNNING, 1, 2)
    assert world.job(narrow).state is JobState.STARTING
    assert not set(world.job(narrow).attempts[0].nodes) & set(view.attempts[0].nodes)
    cost = view.attempts[0].dollars
    world.clock.advance(3_600.0)
    assert world.job(job).attempts[0].dollars == pytest.approx(cost + 2.0), "two nodes are paid, no more"


def test_elastic_job_grows_into_room_that_comes_free_and_late_agents_learn_of_the_lead_at_once(world: World) -> None:
    job = _elastic(world)
    world.tick(8)
    narrow = world.submit(world.spec("narrow", replicas=2, tier=Tier.CRITICAL, duration_s=60.0))
    world.tick(4)
    before = {orders.agent: orders for orders in come(world, job, twice=False).values()}
    begin(world, narrow)
    world.succeed(narrow)
    world.tick(30)
    view = world.job(job)
    assert (len(view.attempts), view.attempts[0].state, len(view.attempts[0].nodes)) == (1, AttemptState.RUNNING, 4)
    orders = {each.agent: each for each in come(world, job, twice=False).values()}
    assert sorted(orders) == [0, 1, 4, 5], "no agent's number comes twice"
    assert all(each.ready for each in orders.values())
    assert {each.lead_address for each in orders.values()} == {before[0].lead_address}
    assert [place.rank for place in orders[4].ranks] == [4]
    places = {place.rank: (place.agent, place.role_rank, place.role_size) for place in orders[0].ranks}
    assert places == {0: (0, 0, 4), 1: (1, 1, 4), 4: (4, 2, 4), 5: (5, 3, 4)}


@pytest.mark.parametrize("restarts", [False, True])
def test_elastic_job_that_was_resized_is_left_alone_before_it_grows_again(world: World, *, restarts: bool) -> None:
    policy = replace(SWIFT, runtime_min_s=20.0)
    job = _elastic(world, policy)
    world.tick(21)
    narrow = world.submit(world.spec("narrow", replicas=2, tier=Tier.CRITICAL, duration_s=60.0))
    world.tick(4)
    begin(world, narrow)
    world.succeed(narrow)
    if restarts:
        world.restart(policy=policy)
        world.clock.advance(Settings().leader_lease_s)
    resized_s = [e.time_s for e in world.control.events(reference=job) if e.kind == AttemptResizedEvent.kind][-1]
    while world.clock.now_s() < resized_s + 18.0:
        world.beat(job, step=9)
        world.tick()
    assert len(live(world, job)) == 1
    world.tick(2 + int(Settings().plan_s))
    assert len(live(world, job)) == 3


def test_shrink_that_would_end_the_lead_is_a_new_start_at_the_other_size(world: World) -> None:
    job = _elastic(world)
    last = list(live(world, job).items())[-1]
    world.clock.advance(LEASE_S + 1)
    moved = ask(world, last[0], last[1], last[1].nodes[0], lost_epoch=1)
    assert (moved.lead, moved.epoch) == (True, 2)
    world.tick(8)
    narrow = world.submit(world.spec("narrow", replicas=2, tier=Tier.CRITICAL))
    world.tick()
    assert world.job(job).attempts[0].state is AttemptState.STOPPING
    asked = [event for event in world.control.events(reference=job) if event.kind == StopRequestedEvent.kind]
    assert asked[-1].detail["for_job"] == narrow
    assert "2 replicas" in str(asked[-1].detail["by"])
    world.tick(4)
    assert world.job(narrow).state is JobState.STARTING
    assert [len(attempt.nodes) for attempt in world.job(job).attempts] == [4, 2]


def test_nodes_added_whose_agents_never_come_are_given_back(world: World) -> None:
    job = _elastic(world)
    world.tick(8)
    narrow = world.submit(world.spec("narrow", replicas=2, tier=Tier.CRITICAL, duration_s=60.0))
    world.tick(4)
    begin(world, narrow)
    world.succeed(narrow)
    world.tick(30)
    assert len(world.job(job).attempts[0].nodes) == 4
    world.clock.advance(Settings().start_s_max + 1)
    world.beat(job, step=9)
    world.tick()
    assert len(live(world, job)) == 1
    assert world.job(job).state is JobState.RUNNING


# ---------------------------------------------------------------- losses


def test_nodes_added_whose_agents_have_come_are_kept(world: World) -> None:
    job = _elastic(world)
    *_, name = live(world, job)
    world.west.inner.end_agent(name, 0, exit_code=-9)
    world.tick(3)
    assert len(world.job(job).attempts[0].nodes) == 4, "it grows back"
    come(world, job)
    held = sorted(live(world, job))
    for _ in range(5):
        world.clock.advance(world.control.settings.start_s_max / 3)
        world.beat(job, step=3)
        world.tick()
    assert sorted(live(world, job)) == held


def test_attempt_that_can_do_without_a_node_goes_on_without_it_and_stops_paying_for_it(world: World) -> None:
    job = _elastic(world)
    *_, (name, order) = live(world, job).items()
    world.west.inner.end_agent(name, 0, exit_code=-9, reason="was ended by signal 9")
    world.west.inner.node_down(order.nodes[0])
    world.tick(2)
    view = world.job(job)
    assert (view.state, len(view.attempts)) == (JobState.RUNNING, 1)
    assert order.nodes[0] not in view.attempts[0].nodes
    assert world.control.clusters()[1].used_chip_milli.get(order.nodes[0]) is None
    cost = view.attempts[0].dollars
    world.clock.advance(3_600.0)
    world.beat(job, step=3)
    world.tick()
    assert world.job(job).attempts[0].dollars == pytest.approx(cost + 3.0, abs=0.01)


def test_attempt_with_a_spare_leaves_the_loss_of_one_node_to_its_lead_and_ends_with_the_second(world: World) -> None:
    job = world.submit(world.spec(replicas=3, spares=1))
    orders = begin(world, job)
    assert [(role.spares, role.ranks_min) for role in next(iter(orders.values())).roles] == [(1, 2)]
    (name,) = world.orders_of(job)
    world.west.inner.end_agent(name, 2, exit_code=-9)
    world.tick(3)
    assert world.job(job).state is JobState.RUNNING
    world.west.inner.end_agent(name, 1, exit_code=-9)
    world.tick()
    assert world.job(job).attempts[0].state is AttemptState.STOPPING


def test_lead_is_told_of_agents_its_engine_has_seen_end_and_of_no_others(world: World) -> None:
    job = world.submit(world.spec(replicas=4, spares=2))
    begin(world, job)
    (name,) = world.orders_of(job)
    assert world.beat(job, step=1).gone == ()
    for place in (3, 1):
        world.west.inner.end_agent(name, place, exit_code=-9)
        world.tick()
    assert world.beat(job, step=2).gone == (1, 3)
    world.restart()
    world.tick(8)
    assert world.beat(job, step=3).gone == (1, 3), "whichever controller is asked"


def test_lead_is_told_of_agents_that_are_gone_with_their_allocations(
    world: World,
) -> None:
    job = _elastic(world)
    *_, (name, order) = live(world, job).items()
    world.west.inner.end_agent(name, 0, exit_code=-9)
    world.west.inner.node_down(order.nodes[0])
    world.tick(2)
    assert world.beat(job, step=2).gone == (3,)
    world.tick(8)
    world.submit(world.spec("narrow", replicas=1, tier=Tier.CRITICAL))
    world.tick(4)
    assert world.beat(job, step=3).gone == (2, 3), "stopped as planned, and seen to be over"


def test_attempt_that_lost_an_agent_and_of_whose_lead_nothing_is_heard_is_lost(world: World) -> None:
    job = world.submit(world.spec(replicas=3, spares=1))
    begin(world, job)
    (name,) = world.orders_of(job)
    world.west.inner.end_agent(name, 0, exit_code=-9)
    world.tick(int(Settings().leaderless_s) - 5)
    assert world.job(job).state is JobState.RUNNING
    world.tick(10)
    view = world.job(job)
    assert view.attempts[0].state is not AttemptState.RUNNING
    assert "no lead was heard of" in view.attempts[0].reason


def test_silence_while_no_controller_led_ends_no_attempt_that_lost_an_agent(world: World) -> None:
    job = world.submit(world.spec(replicas=3, spares=1))
    begin(world, job)
    (name,) = world.orders_of(job)
    world.west.inner.end_agent(name, 2, exit_code=-9)
    world.tick()
    world.clock.advance(10 * Settings().leaderless_s)
    world.restart()
    world.tick(5)
    world.beat(job, step=9)
    world.tick(int(Settings().leaderless_s) - 5)
    assert world.job(job).state is JobState.RUNNING


# ---------------------------------------------------------------- leads


def test_agent_that_lost_a_lead_which_still_reports_is_sent_back_to_it(world: World) -> None:
    job = world.submit(world.spec(replicas=2))
    first = begin(world, job)
    world.clock.advance(LEASE_S - 1)
    world.beat(job, step=4)
    world.clock.advance(LEASE_S - 1)
    again = come(world, job, lost_epoch=1)
    assert {orders.lead_address for orders in again.values()} == {orders.lead_address for orders in first.values()}
    assert {orders.epoch for orders in again.values()} == {1}
    assert LeadNamedEvent.kind not in _kinds(world, job)


def test_first_agent_to_miss_a_silent_lead_leads_next_and_the_others_follow_it(world: World) -> None:
    job = world.submit(world.spec(replicas=3))
    begin(world, job)
    world.beat(job, (CheckpointDurableEvent.kind, {"step": 20, "size_bytes": 1}), step=20)
    old = world.last_beat
    world.clock.advance(LEASE_S + 1)
    (name, order) = next(iter(world.orders_of(job).items()))
    answers = [ask(world, name, order, node, lost_epoch=1) for node in order.nodes[1:]]
    assert [(orders.lead, orders.epoch, orders.agent) for orders in answers] == [(True, 2, 1), (False, 2, 2)]
    assert {orders.lead_address for orders in answers} == {f"{order.nodes[1]}:1"}
    assert len(answers[0].ranks) == 3
    assert answers[0].furthest_step == 20
    assert world.send(job, old).fenced, "the old lead is over, whatever it says"
    named = [event.detail for event in world.control.events(reference=job) if event.kind == LeadNamedEvent.kind]
    assert [(detail["epoch"], detail["agent"]) for detail in named] == [(2, 1)]
    world.epochs[world.job(job).attempts[0].id] = 2
    world.sequences.clear()
    assert not world.beat(job, (CheckpointDurableEvent.kind, {"step": 30, "size_bytes": 1}), generation=3).fenced
    assert _kinds(world, job).count(CheckpointDurableEvent.kind) == 2, "the new lead counts its events from 1"


def test_agents_that_lost_an_older_lead_are_told_of_the_newest(world: World) -> None:
    job = world.submit(world.spec(replicas=3))
    begin(world, job)
    (name, order) = next(iter(world.orders_of(job).items()))
    for epoch, node in ((1, order.nodes[1]), (2, order.nodes[2])):
        world.clock.advance(LEASE_S + 1)
        assert ask(world, name, order, node, lost_epoch=epoch).lead
    late = ask(world, name, order, order.nodes[1], lost_epoch=1)
    assert (late.lead, late.epoch, late.lead_address) == (False, 3, f"{order.nodes[2]}:1")


def test_controller_that_came_back_a_moment_ago_names_no_lead_before_it_could_hear_the_old_one(world: World) -> None:
    job = world.submit(world.spec(replicas=2))
    begin(world, job)
    world.clock.advance(100 * LEASE_S)
    world.restart()
    assert {orders.epoch for orders in come(world, job, lost_epoch=1).values()} == {1}
    world.clock.advance(LEASE_S)
    assert {orders.epoch for orders in come(world, job, lost_epoch=1, twice=False).values()} == {2}


def test_lead_that_follows_another_is_told_how_far_its_generations_had_come(world: World) -> None:
    job = world.submit(world.spec(replicas=2))
    begin(world, job)
    world.beat(job, step=7, generation=12)
    (name, order) = next(iter(world.orders_of(job).items()))
    world.clock.advance(LEASE_S)
    orders = ask(world, name, order, order.nodes[1], lost_epoch=1)
    assert (orders.epoch, orders.generation) == (2, 12)


def test_attempt_that_loses_lead_after_lead_gets_no_more_after_the_most_allowed(world: World) -> None:
    job = world.submit(world.spec(replicas=2))
    begin(world, job)
    world.control.settings = Settings(leads_max=2)
    (name, order) = next(iter(world.orders_of(job).items()))
    world.clock.advance(LEASE_S)
    assert ask(world, name, order, order.nodes[1], lost_epoch=1).epoch == 2
    world.clock.advance(LEASE_S)
    with pytest.raises(Conflict, match="2 leads"):
        ask(world, name, order, order.nodes[0], lost_epoch=2)


def test_agents_launched_by_a_controller_that_started_anew_hold_the_same_secret(world: World) -> None:
    job = world.submit(world.spec(replicas=1, roles=2))
    world.control.settings = Settings(acts_max=1)
    world.loop = world.control.new_loop()
    world.tick()
    world.restart()
    world.clock.advance(Settings().leader_lease_s)
    world.tick(2)
    assert len({order.token for order in world.orders_of(job).values()}) == 1 < len(world.orders_of(job))


# ---------------------------------------------------------------- orders


def test_orders_name_every_role_though_all_agents_of_one_have_ended_well(world: World) -> None:
    job = world.submit(world.spec(replicas=1, roles=2))
    world.tick()
    before = come(world, job)
    (first, order), (second, _) = sorted(world.orders_of(job).items(), key=lambda one: one[1].role)
    world.beat(job)
    world.west.inner.end_agent(second, 0, exit_code=0)
    world.tick()
    orders = ask(world, first, order, order.nodes[0], lost_epoch=1)
    assert orders.roles == next(iter(before.values())).roles


def test_orders_say_how_few_ranks_an_elastic_role_may_run_with_and_what_bounds_them(world: World) -> None:
    option = Option(chip=ChipName("gpu"), replicas=4, replicas_min=2, group=2, group_within="node", memory_gib=2.0)
    role = Role(command=("train",), options=(replace(option, group=0, group_within=None),))
    spec = replace(world.spec(), roles=(role,), inputs=("robots@3",))
    job = world.submit(spec)
    orders = next(iter(begin(world, job).values()))
    (told,) = orders.roles
    assert (told.ranks_min, told.group, told.spares, told.memory_mib) == (2, 0, 0, 2_048)
    assert (orders.number, orders.inputs, orders.agents) == (
        1,
        ("robots@3",),
        4 if "west" in orders.lead_address else 2,
    )


def test_orders_name_the_checkpoint_that_the_job_begins_from(world: World) -> None:
    job = world.submit(replace(world.spec(), begins_from="teacher@900"))
    assert {orders.begins_from for orders in begin(world, job).values()} == {"teacher@900"}
