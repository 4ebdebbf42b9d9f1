"""Clusters we do not own: what they take back is nobody's failure, and what waits in their queues holds nothing yet."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from tests.control.living import SWIFT, begin, come, live

from mainspring.control.state.history import AVOIDED, STAYED_S, Past
from mainspring.control.store.schema import allocations
from mainspring.domain.fleet import Node, NodeCondition
from mainspring.domain.ids import AllocationId, ClusterName, JobId, NodeName, TeamName
from mainspring.domain.job import LAB, MAIN, Option, Role, Tier
from mainspring.domain.life import AttemptState, JobState
from mainspring.domain.plan import Limit
from mainspring.domain.team import Team
from mainspring.domain.wire.events.attempts import AllocationQueuedEvent, AllocationTakenEvent
from mainspring.planner import Policy

if TYPE_CHECKING:
    from pathlib import Path

    from tests.control.conftest import World

WEST = ClusterName("west")
REASON = "Slurm: Priority: jobs that come before it"
TAKEN = "preempted by job 17 of somebody else"


@pytest.fixture
def shared(tmp_path: Path, url: str, world_type: type[World]) -> Iterator[World]:
    """A world whose cheap cluster has a queue of its own, in which everything waits."""
    made = world_type(tmp_path, delegated=True, url=url)
    yield made
    made.control.store.close()


def _states(world: World, job: JobId) -> list[tuple[str, str]]:
    return [(attempt.state.value, attempt.cluster) for attempt in world.job(job).attempts]


def _told(world: World, job: JobId, kind: str) -> list[str]:
    return [str(event.detail["reason"]) for event in world.control.events(reference=job) if event.kind == kind]


def _only(world: World, job: JobId) -> AllocationId:
    (name,) = world.orders_of(job)
    return name


# ---------------------------------------------------------------- orders


def test_order_says_what_its_nodes_must_give_and_whose_it_is(world: World) -> None:
    option = Option(chip=world.west.inner.inventory().nodes[0].chip, replicas=3, cpus=1.5, memory_gib=2.0)
    role = Role(name=MAIN, command=("train",), options=(option,))
    spec = world.spec("mine", tier=Tier.CRITICAL, duration_s=60.0)
    job = world.submit(type(spec)(name="mine", roles=(role,), tier=Tier.CRITICAL, duration_s=60.0))
    world.tick()
    (order,) = world.orders_of(job).values()
    assert order.cpu_milli == (1_500,) * 3
    assert order.memory_mib == (2_048,) * 3
    assert (order.job, order.teams, order.tier, order.duration_s) == ("mine", (spec.team,), Tier.CRITICAL, 60.0)


def test_order_names_the_teams_above_its_own_nearest_first(world: World) -> None:
    vision, arms = TeamName("vision"), TeamName("arms")
    world.control.people.set_team(Team(name=LAB), world.admin)
    world.control.people.set_team(Team(name=vision, parent=LAB), world.admin)
    world.control.people.set_team(Team(name=arms, parent=vision), world.admin)
    job = world.submit(world.spec(team=arms))
    world.tick()
    (order,) = world.orders_of(job).values()
    assert order.teams == (arms, vision, LAB)


def test_order_of_a_replica_larger_than_a_node_spreads_its_cores_like_its_chips(world: World) -> None:
    option = Option(chip=world.east.inner.inventory().nodes[0].chip, chips=4, cpus=6.0, memory_gib=8.0)
    spec = world.spec()
    job = world.submit(type(spec)(name="wide", roles=(Role(name=MAIN, command=("t",), options=(option,)),)))
    world.tick()
    (order,) = world.orders_of(job).values()
    nodes = len(order.nodes)
    assert nodes > 1
    assert (sum(order.cpu_milli), sum(order.memory_mib)) == (6_000, 8_192)
    assert order.cpu_milli == (6_000 // nodes,) * nodes
    assert order.duration_s is None


# ---------------------------------------------------------------- taken


def test_attempt_that_its_cluster_takes_back_is_tried_elsewhere_and_not_counted(world: World) -> None:
    job = world.submit(world.spec(attempts_max=1))
    world.run(job)
    world.west.inner.take_back(_only(world, job), TAKEN)
    world.tick(3)
    assert _states(world, job) == [("cancelled", "west"), ("granted", "east")]
    assert world.job(job).attempts[0].reason == f"cluster west took it back: {TAKEN}"
    assert _told(world, job, AllocationTakenEvent.kind) == [f"cluster west took it back: {TAKEN}"]
    assert world.control.accounts.of_job(job).preemptions == 1


def test_job_taken_back_is_not_placed_there_again_at_once_and_says_so(world: World) -> None:
    world.west.answering = False
    job = world.submit(world.spec("big", replicas=4))
    world.tick(3)
    assert _states(world, job) == [("granted", "east")]
    world.east.inner.take_back(_only(world, job), TAKEN)
    world.tick(3)
    view = world.job(job)
    assert (view.state, len(view.attempts)) == (JobState.QUEUED, 1)
    why = world.control.questions.why(job)
    assert (why.limit, why.where) == (Limit.HEALTH, "east")
    assert "east: took it back" in why.summary
    assert view.start_s is not None
    other = world.submit(world.spec("other", replicas=4))
    world.tick(3)
    assert _states(world, other) == [("granted", "east")], "jobs alike may go where it may not"
    world.control.steering.stop(other, world.admin)
    world.tick(int(AVOIDED.first_s) + 15)
    assert _states(world, job)[-1] == ("granted", "east")


@pytest.mark.parametrize("restarts", [False, True])
def test_job_taken_back_over_and_over_waits_longer_each_time(world: World, *, restarts: bool) -> None:
    world.east.answering = False
    job = world.submit(world.spec(attempts_max=1))
    starts: list[float] = []
    for _ in range(3):
        while world.job(job).state is JobState.QUEUED:
            world.tick(seconds=5.0)
        starts.append(world.clock.now_s())
        world.west.inner.take_back(_only(world, job), TAKEN)
        if restarts:
            world.restart()
        world.tick(3)
        assert world.job(job).state is JobState.QUEUED
    waits = [later - earlier for earlier, later in pairwise(starts)]
    assert AVOIDED.first_s <= waits[0] < 2 * AVOIDED.first_s <= waits[1] < 4 * AVOIDED.first_s


def test_pause_after_a_cluster_took_a_job_back_is_bounded_and_forgotten_once_it_stayed() -> None:
    past, at_s = Past(), 0.0
    for _ in range(40):
        past = past.with_attempt(chip_s=0.0, granted_s=at_s, ended_s=at_s, displaced=True, taken_by=WEST)
    assert past.avoid == {WEST: AVOIDED.cap_s}
    later = past.with_attempt(chip_s=0.0, granted_s=0.0, ended_s=2 * STAYED_S, displaced=True, taken_by=WEST)
    assert later.avoid == {WEST: 2 * STAYED_S + AVOIDED.first_s}


def test_lead_that_ends_before_its_cluster_shows_why_comes_to_the_same(world: World) -> None:
    job = world.submit(world.spec(attempts_max=1, replicas=2))
    world.run(job)
    name = _only(world, job)
    world.west.inner.take_back(name, TAKEN, grace_s=30.0)
    world.beat(job, outcome=AttemptState.CANCELLED, reason="stopped")
    world.tick(3)
    assert _states(world, job) == [("cancelled", "west"), ("granted", "east")]
    assert world.job(job).attempts[0].reason == f"cluster west took it back: {TAKEN}", "the cluster knows better"


@pytest.mark.parametrize("lead_tells", [False, True])
def test_attempt_that_seemed_lost_until_its_cluster_showed_why_is_not_counted(
    world: World, *, lead_tells: bool
) -> None:
    world.west.inner = type(world.west.inner)(world.west.inner.inventory(), world.clock, obey_s=5.0)
    job = world.submit(world.spec(attempts_max=1, replicas=2))
    world.run(job)
    name = _only(world, job)
    world.west.inner.take_back(name, TAKEN, grace_s=5.0)
    if lead_tells:
        world.beat(job, outcome=AttemptState.LOST, reason="agents 1 gone")
    else:
        world.west.inner.end_agent(name, 1, exit_code=-9)
    world.tick()
    assert world.job(job).attempts[0].state is AttemptState.STOPPING
    world.tick(8)
    assert _states(world, job) == [("cancelled", "west"), ("granted", "east")]


def test_attempt_lost_for_a_reason_of_its_own_is_counted(world: World) -> None:
    job = world.submit(world.spec(attempts_max=1))
    world.run(job)
    world.end_agents(job, exit_code=3)
    world.tick(3)
    assert world.job(job).state is JobState.FAILED


def test_elastic_attempt_goes_on_without_what_its_cluster_takes_back(world: World) -> None:
    world.restart(policy=SWIFT)
    job = world.submit(world.spec("wide", replicas=4, replicas_min=2, tier=Tier.OPPORTUNISTIC))
    world.tick()
    world.submit(world.spec("east", replicas=4, tier=Tier.CRITICAL))
    begin(world, job)
    *_, name = live(world, job)
    world.west.inner.take_back(name, TAKEN)
    world.tick(2)
    view = world.job(job)
    assert (view.state, [attempt.state for attempt in view.attempts]) == (JobState.RUNNING, [AttemptState.RUNNING])
    assert name not in live(world, job)
    assert len(live(world, job)) >= 2
    assert _told(world, job, AllocationTakenEvent.kind) == [f"cluster west took it back: {TAKEN}"]


def test_job_cancelled_while_its_cluster_takes_it_back_is_cancelled(world: World) -> None:
    job = world.submit()
    world.run(job)
    world.control.steering.stop(job, world.admin)
    world.west.inner.take_back(_only(world, job), TAKEN)
    world.tick(3)
    assert world.job(job).state is JobState.CANCELLED


# ---------------------------------------------------------------- queues


def test_attempt_in_its_clusters_queue_says_what_it_waits_for_and_is_charged_nothing(shared: World) -> None:
    job = shared.submit(shared.spec(replicas=2))
    submitted_s = shared.clock.now_s()
    shared.tick(2)
    shared.tick(3, seconds=1_000.0)
    view = shared.job(job)
    assert (view.state, _states(shared, job)) == (JobState.STARTING, [("granted", "west")])
    wanted = "waits in the queue of west itself: those that come before it"
    assert view.reason == view.attempts[0].reason == wanted
    assert shared.control.questions.why(job).summary.endswith(wanted)
    assert view.attempts[0].dollars == 0.0
    assert view.goodput is not None
    assert view.goodput.allocated_s == 0.0
    assert view.goodput.waited_s == pytest.approx(shared.clock.now_s() - submitted_s)
    assert len(_told(shared, job, AllocationQueuedEvent.kind)) == 1


def test_attempt_that_leaves_its_clusters_queue_counts_from_then_on(shared: World) -> None:
    job = shared.submit(shared.spec(replicas=2))
    submitted_s = shared.clock.now_s()
    shared.tick(4, seconds=1_000.0)
    shared.west.inner.let_start(_only(shared, job))
    left_s = shared.clock.now_s()
    shared.tick()
    (attempt,) = shared.job(job).attempts
    assert attempt.granted_s == left_s
    assert dict(attempt.hosts) == {node: f"host-of-{node}" for node in attempt.nodes}
    begin(shared, job)
    shared.clock.advance(3_600.0)
    shared.beat(job, step=3, seconds={"productive": 7_200.0})
    view = shared.job(job)
    assert view.attempts[0].dollars == pytest.approx(2 * (shared.clock.now_s() - left_s) / 3_600.0)
    assert view.goodput is not None
    assert view.goodput.allocated_s == pytest.approx(2 * (shared.clock.now_s() - left_s))
    assert view.goodput.waited_s == pytest.approx(left_s - submitted_s)
    assert (view.reason, view.attempts[0].reason) == ("attempt 1 runs on west", "")


def test_agents_that_come_before_the_cluster_shows_them_count_from_then_on(shared: World) -> None:
    job = shared.submit()
    shared.tick(3, seconds=1_000.0)
    came_s = shared.clock.now_s()
    shared.register(job)
    shared.clock.advance(50.0)
    shared.tick()  # It shows still what it showed before.
    (attempt,) = shared.job(job).attempts
    assert (attempt.granted_s, attempt.reason) == (came_s, "")
    shared.beat(job)
    shared.tick(2)
    assert shared.job(job).state is JobState.RUNNING
    assert shared.job(job).attempts[0].granted_s == came_s


def test_attempt_that_left_the_queue_and_ended_in_a_time_the_store_forgot_is_held(
    shared: World, tmp_path: Path
) -> None:
    job = shared.submit()
    shared.tick(2)
    shared.back_up(tmp_path / "copy")
    shared.clock.advance(60.0)
    shared.west.inner.let_start(_only(shared, job))
    shared.register(job)
    shared.beat(job)
    shared.succeed(job)
    shared.go_back(tmp_path / "copy")
    shared.clock.advance(1.0)
    shared.tick(3)
    assert [(one.job, one.over) for one in shared.control.restores.held()] == [(job, True)]
    assert shared.job(job).state is JobState.QUEUED


@pytest.mark.parametrize("restarts", [False, True])
def test_start_is_late_only_by_what_comes_after_the_clusters_queue(shared: World, *, restarts: bool) -> None:
    limit_s = shared.control.settings.start_s_max
    job = shared.submit()
    shared.tick(5, seconds=limit_s)
    if restarts:
        shared.restart()
        shared.tick(2, seconds=limit_s)
    assert _states(shared, job) == [("granted", "west")]
    shared.west.inner.let_start(_only(shared, job))
    shared.tick()
    shared.tick(seconds=limit_s)
    assert _states(shared, job) == [("granted", "west")]
    shared.tick(2)
    assert _states(shared, job)[0][0] != "granted"
    assert "0 of 1 agents came" in shared.job(job).attempts[0].reason


def test_wait_where_nodes_are_ours_counts_as_a_late_start(world: World) -> None:
    world.west.inner.queueing = True
    job = world.submit()
    world.tick()
    world.tick(3, seconds=world.control.settings.start_s_max)
    assert "0 of 1 agents came" in world.job(job).attempts[0].reason


def test_attempt_refused_in_its_clusters_queue_was_never_anywhere_and_goes_elsewhere(shared: World) -> None:
    job = shared.submit(shared.spec(attempts_max=1))
    shared.tick(4, seconds=1_000.0)
    shared.west.inner.take_back(_only(shared, job), "sbatch: error: AssocGrpGRES")
    shared.tick()
    (first, *_) = shared.job(job).attempts
    assert (first.state, first.dollars, first.granted_s) == (AttemptState.CANCELLED, 0.0, first.ended_s)
    assert first.reason == "cluster west took it back: sbatch: error: AssocGrpGRES"
    shared.tick(2)
    assert _states(shared, job)[1:] == [("granted", "east")]
    told = shared.control.accounts.of_job(job)
    assert told.allocated_s == pytest.approx(2.0, abs=2.0), "the second attempt's alone"


def test_job_cancelled_in_its_clusters_queue_costs_nothing(shared: World) -> None:
    job = shared.submit()
    shared.tick(3, seconds=1_000.0)
    shared.control.steering.stop(job, shared.admin)
    shared.tick(2, seconds=1_000.0)
    view = shared.job(job)
    assert (view.state, view.attempts[0].dollars) == (JobState.CANCELLED, 0.0)
    assert view.goodput is not None
    assert view.goodput.allocated_s == 0.0


def test_nodes_in_use_of_an_attempt_that_waits_in_the_queue_are_kept_from_others(shared: World) -> None:
    shared.east.answering = False
    first = shared.submit(shared.spec(replicas=3))
    shared.tick(2)
    second = shared.submit(shared.spec(replicas=2))
    shared.tick(2)
    assert shared.job(first).state is JobState.STARTING
    assert shared.job(second).state is JobState.QUEUED


# ---------------------------------------------------------------- drained


def test_attempt_on_a_node_that_operators_drain_is_saved_and_goes_on_beside_it(world: World) -> None:
    job = world.submit(world.spec(replicas=2))
    world.run(job)
    drained = world.job(job).attempts[0].nodes[0]
    world.west.inner.drain(drained, "maintenance of the RAID")
    world.tick(4)
    first, second = world.job(job).attempts
    assert first.state is AttemptState.CANCELLED
    assert first.reason == f"node {drained} of west is taken away: maintenance of the RAID"
    assert (second.state, drained in second.nodes) == (AttemptState.GRANTED, False)
    come(world, job)


def test_fake_engine_shows_a_drain_as_its_own_cordon(world: World) -> None:
    world.west.inner.drain(NodeName("west-1"), "bad memory")
    node: Node = next(node for node in world.west.inner.inventory().nodes if node.name == "west-1")
    assert (node.condition, node.condition_owner) == (NodeCondition.CORDONED, "fake")
    assert node.leaves_s == world.clock.now_s()


def test_attempt_given_up_after_the_clock_was_set_back_ends_no_allocation_before_it_began(shared: World) -> None:
    """Its allocations leave the cluster's queue a minute apart."""
    shared.restart(policy=Policy(failover_s=10.0))
    job = shared.submit(shared.spec(roles=2))
    shared.tick(3)
    for name in shared.orders_of(job):
        shared.west.inner.let_start(name)
        shared.tick(2, seconds=30.0)
    shared.clock.jump(-10_000.0)
    shared.west.answering = False
    shared.tick(40)
    assert _states(shared, job)[0] == ("lost", "west")
    with shared.control.store.read() as connection:
        spans = connection.execute(sa.select(allocations.c.ended_s - allocations.c.granted_s)).scalars().all()
    assert len(spans) >= 2
    assert min(span for span in spans if span is not None) == 0.0
