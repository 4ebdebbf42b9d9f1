"""The loop: from submit to the end, through every kind of loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from mainspring.control import Step
from mainspring.control.store.schema import plans
from mainspring.control.store.settings import Settings
from mainspring.domain.answers import NewHold, Submit
from mainspring.domain.errors import Conflict, DamagedData, Unavailable
from mainspring.domain.fleet import AllocationSeen, Inventory, LaunchOrder
from mainspring.domain.ids import ClusterName
from mainspring.domain.job import LAB
from mainspring.domain.life import AttemptState, JobState
from mainspring.domain.plan import Limit
from mainspring.domain.team import Team
from mainspring.domain.wire.events.leads import GenerationSteppingEvent, RankExitedEvent, ResultEvent
from mainspring.simulator.proof.cluster import CallFaults
from mainspring.testing import FakeEngine

if TYPE_CHECKING:
    from tests.control.conftest import World


def _plans(world: World) -> int:
    with world.control.store.read() as connection:
        return connection.execute(sa.select(sa.func.count()).select_from(plans)).scalar_one()


def test_job_that_fits_starts_on_the_cheaper_cluster_and_succeeds(world: World) -> None:
    job = world.submit(world.spec(replicas=2))
    assert world.job(job).state is JobState.QUEUED
    world.tick()
    view = world.job(job)
    assert (view.state, view.attempts[0].cluster, view.attempts[0].simulated) == (JobState.STARTING, "west", True)
    why = world.control.questions.why(job)
    assert why.limit is None
    assert "west" in why.summary
    assert "simulated" in why.summary
    assert {candidate.cluster for candidate in why.candidates} == {"east", "west"}
    world.register(job)
    world.beat(job, (GenerationSteppingEvent.kind, {"generation": 1, "step": 0}))
    assert world.job(job).state is JobState.RUNNING
    world.beat(job, (ResultEvent.kind, {"success": 0.97}), step=9, outcome=AttemptState.SUCCEEDED)
    world.end_agents(job, exit_code=0)
    world.tick(2)
    view = world.job(job)
    assert (view.state, view.step, view.result) == (JobState.SUCCEEDED, 9, {"success": 0.97})
    assert view.attempts[0].state is AttemptState.SUCCEEDED
    assert view.attempts[0].dollars == pytest.approx(
        2 * 1.0 * ((view.attempts[0].ended_s or 0) - view.attempts[0].granted_s) / 3600
    )
    assert not world.west.running()


def test_job_without_room_waits_with_its_reason_and_starts_when_room_comes(world: World) -> None:
    first = world.submit(world.spec("first", replicas=4))
    second = world.submit(world.spec("second", replicas=4))
    third = world.submit(world.spec("third", replicas=3))
    world.tick(2)
    assert [world.job(job).state for job in (first, second, third)] == [
        JobState.STARTING,
        JobState.STARTING,
        JobState.QUEUED,
    ]
    why = world.control.questions.why(third)
    assert (why.limit, why.where, why.short_by) == (Limit.CAPACITY, "west", 3.0)
    assert why.summary
    written = _plans(world)
    world.tick(3)
    assert _plans(world) == written, "a reason that has not changed was written again"
    world.register(first)
    world.beat(first, outcome=AttemptState.SUCCEEDED)
    world.tick(3)
    assert world.job(third).state is JobState.STARTING


def test_job_over_quota_waits_until_the_quota_is_raised(world: World) -> None:
    world.control.people.set_team(Team(name=LAB, chips_max=1), world.admin)
    job = world.submit(world.spec(replicas=2))
    world.tick(2)
    assert world.control.questions.why(job).limit is Limit.QUOTA
    world.control.people.set_team(Team(name=LAB, chips_max=2), world.admin)
    world.tick()
    assert world.job(job).state is JobState.STARTING


def test_job_with_two_roles_starts_both_or_none(world: World) -> None:
    job = world.submit(world.spec(replicas=2, roles=2))
    world.tick()
    orders = world.orders_of(job)
    assert sorted(order.role for order in orders.values()) == ["role-0", "role-1"]
    lone = next(iter(orders))
    cluster = world.clusters[world.job(job).attempts[0].cluster]
    for index in range(len(orders[lone].nodes)):
        cluster.inner.end_agent(lone, index, exit_code=1)
    world.tick(3)
    assert world.job(job).attempts[0].state is AttemptState.LOST
    assert not set(cluster.running()) & set(orders)


def test_attempt_whose_agents_die_is_lost_and_tried_again_until_the_most_allowed(world: World) -> None:
    job = world.submit(world.spec(attempts_max=2))
    world.run(job)
    world.beat(
        job,
        (RankExitedEvent.kind, {"generation": 1, "rank": 0, "exit_code": 1, "step": 3, "last_words": "CUDA is sad"}),
    )
    world.end_agents(job, exit_code=1, reason="a rank failed")
    world.tick(3)
    view = world.job(job)
    assert [attempt.state for attempt in view.attempts] == [AttemptState.LOST, AttemptState.GRANTED]
    assert "CUDA is sad" in view.attempts[0].reason
    world.end_agents(job, exit_code=-9, reason="out of memory")
    world.tick(3)
    view = world.job(job)
    assert view.state is JobState.FAILED
    assert "2 attempts" in view.reason
    assert "CUDA is sad" in view.reason


def test_attempt_lost_after_it_recovered_from_a_rank_is_said_to_be_lost_for_what_ended_it(world: World) -> None:
    job = world.submit()
    world.run(job)
    world.beat(
        job,
        (RankExitedEvent.kind, {"generation": 1, "rank": 0, "exit_code": -9, "step": 3}),
        (GenerationSteppingEvent.kind, {"generation": 2, "step": 3}),
        generation=2,
    )
    world.end_agents(job, exit_code=-9, reason="was ended by signal 9")
    world.tick(3)
    assert "was ended by signal 9" in world.job(job).attempts[0].reason
    assert "rank 0" not in world.job(job).attempts[0].reason


def test_attempt_that_loses_one_agent_is_stopped_at_once_and_placed_anew_when_nothing_of_it_runs(world: World) -> None:
    job = world.submit(world.spec(replicas=2))
    world.run(job)
    (name,) = world.orders_of(job)
    world.west.inner.end_agent(name, 1, exit_code=-9, reason="was ended by signal 9")
    world.tick()
    assert world.job(job).attempts[0].state is AttemptState.STOPPING
    world.tick(2)
    view = world.job(job)
    assert [attempt.state for attempt in view.attempts] == [AttemptState.LOST, AttemptState.GRANTED]
    assert "signal 9" in view.attempts[0].reason
    assert name not in world.west.running()


def test_attempt_whose_agents_end_well_one_by_one_is_not_lost(world: World) -> None:
    job = world.submit(world.spec(replicas=2))
    world.run(job)
    (name,) = world.orders_of(job)
    world.west.inner.end_agent(name, 1, exit_code=0, reason="every rank ended well")
    world.tick(2)
    assert world.job(job).state is JobState.RUNNING
    world.beat(job, outcome=AttemptState.SUCCEEDED)
    world.tick(3)
    assert world.job(job).state is JobState.SUCCEEDED


@pytest.mark.parametrize("which", [0, 1])
def test_attempt_lost_while_a_launch_is_unanswered_stops_that_allocation_too(world: World, which: int) -> None:
    job = world.submit(world.spec(replicas=1, roles=2))
    world.west.inner.drop_reply("launch", 2)
    world.tick()
    both = list(world.west.running())
    world.west.inner.end_agent(both[which], 0, exit_code=-9)
    world.tick(2)
    assert both[1 - which] not in world.west.running()
    assert world.job(job).attempts[0].state is AttemptState.LOST


def test_cluster_whose_own_records_are_damaged_does_not_hold_up_the_others(world: World) -> None:
    class Damaged(FakeEngine):
        def observe(self) -> tuple[AllocationSeen, ...]:
            raise DamagedData("read a claim", on="claim.json")

    world.east.inner = Damaged(world.east.inner.inventory(), world.clock)
    job = world.submit()
    world.tick(2)
    assert world.job(job).state is JobState.STARTING


def test_attempt_that_its_lead_calls_failed_fails_the_job_at_once(world: World) -> None:
    job = world.submit()
    world.run(job)
    world.beat(job, outcome=AttemptState.FAILED, reason="rank 0 exited with 2: no such file train.py")
    world.tick(2)
    view = world.job(job)
    assert (view.state, len(view.attempts)) == (JobState.FAILED, 1)
    assert "no such file" in view.reason


def test_attempt_that_its_lead_ends_because_its_machines_are_taken_is_tried_again_and_not_counted(world: World) -> None:
    job = world.submit(world.spec(attempts_max=1))
    world.run(job)
    world.beat(job, outcome=AttemptState.CANCELLED, reason="the machine was asked to stop")
    world.tick(3)
    first, second = world.job(job).attempts
    assert (first.state, second.state) == (AttemptState.CANCELLED, AttemptState.GRANTED)
    assert first.reason == "cluster west took it back: the machine was asked to stop"
    assert second.cluster == "east"


def test_attempt_that_is_asked_to_end_here_was_not_taken_back_when_its_lead_obeys(world: World) -> None:
    """Neither one that a person cancelled nor one that has lost an agent."""
    cancelled, lost = world.submit(), world.submit(world.spec(replicas=2))
    for job in (cancelled, lost):
        world.run(job)
    world.control.steering.stop(cancelled, world.admin)
    (name,) = world.orders_of(lost)
    world.clusters[world.job(lost).attempts[0].cluster].inner.end_agent(name, 1, exit_code=-9)
    world.tick()
    for job, asked in ((cancelled, 1), (lost, 0)):
        world.beat(job, outcome=AttemptState.CANCELLED, reason="stopped after step 3")
        told = [str(event.told) for event in world.control.events(reference=job)]
        assert not [words for words in told if "took it back" in words]
        assert len([words for words in told if words.startswith("asked to stop by")]) == asked


def test_launch_whose_answer_is_lost_starts_nothing_twice(world: World) -> None:
    world.west.faults = CallFaults(reply_lost=1.0)
    job = world.submit()
    for _ in range(3):
        world.tick()
        assert len(world.west.inner.used_chip_milli()) <= 1
    world.west.faults = CallFaults()
    world.tick(2)
    assert len(world.job(job).attempts) == 1
    assert world.register(job)[0].ready


def test_launch_of_a_node_that_is_gone_loses_the_attempt_with_the_engines_words(world: World) -> None:
    job = world.submit()
    steps = world.loop.steps()
    while next(steps) is not Step.COMMITTED:
        pass
    empty = Inventory(cluster=ClusterName("west"), engine="fake", simulated=True, nodes=())
    world.west.inner = FakeEngine(empty, world.clock)
    list(steps)
    world.tick(2)
    lost = world.job(job).attempts[0]
    assert lost.state is AttemptState.LOST
    assert "west-0" in lost.reason


def test_cancel_of_a_queued_job_is_done_at_once(world: World) -> None:
    job = world.submit()
    assert world.control.steering.stop(job, world.admin).state is JobState.CANCELLED
    world.tick(2)
    assert not world.job(job).attempts
    assert world.control.steering.stop(job, world.admin).state is JobState.CANCELLED


def test_cancel_of_a_running_job_stops_its_agents_before_it_has_ended(world: World) -> None:
    job = world.submit()
    world.run(job)
    assert world.control.steering.stop(job, world.admin).state is JobState.STOPPING
    assert world.west.running()
    world.tick()
    world.beat(job, outcome=AttemptState.CANCELLED)
    world.tick(2)
    view = world.job(job)
    assert (view.state, view.attempts[0].state) == (JobState.CANCELLED, AttemptState.CANCELLED)
    assert not world.west.running()


def test_cancel_between_commit_and_launch_leaves_nothing_running(world: World) -> None:
    job = world.submit()
    steps = world.loop.steps()
    while next(steps) is not Step.COMMITTED:
        pass
    world.control.steering.stop(job, world.admin)
    list(steps)
    world.tick(3)
    assert world.job(job).state is JobState.CANCELLED
    assert not world.west.running()


def test_silent_lead_kills_no_run_while_its_agents_are_seen(world: World) -> None:
    job = world.submit()
    world.run(job)
    world.tick(20, seconds=500.0)
    assert world.job(job).state is JobState.RUNNING


def test_agents_that_never_come_lose_the_attempt_after_the_time_a_start_may_take(world: World) -> None:
    job = world.submit(world.spec(attempts_max=1))
    world.tick(2)
    world.clock.advance(Settings().start_s_max + 1)
    world.tick(4)
    view = world.job(job)
    assert view.state is JobState.FAILED
    assert "0 of 1 agents" in view.reason


def test_controller_that_comes_back_goes_on_with_what_runs(world: World) -> None:
    job = world.submit()
    waiting = world.submit(world.spec("waiting", replicas=4))
    other = world.submit(world.spec("other", replicas=4))
    world.run(job)
    world.clock.advance(3_600)
    before = [view.attempts for view in map(world.job, (job, waiting, other))]
    world.restart()
    world.tick(3)
    assert [len(view.attempts) for view in map(world.job, (job, waiting, other))] == [len(one) for one in before]
    assert world.job(job).state is JobState.RUNNING
    assert not world.beat(job, step=5, outcome=AttemptState.SUCCEEDED).fenced
    world.tick(2)
    assert world.job(job).state is JobState.SUCCEEDED


@pytest.mark.parametrize("stop_after", [step for step in Step if step is not Step.FOLLOWING])
def test_controller_that_dies_after_any_step_starts_nothing_twice(world: World, stop_after: Step) -> None:
    job = world.submit(world.spec(replicas=2))
    for step in world.loop.steps():
        if step is stop_after:
            break
    world.restart()
    world.clock.advance(Settings().leader_lease_s)
    world.tick(3)
    view = world.job(job)
    assert (view.state, len(view.attempts)) == (JobState.STARTING, 1)
    assert len(world.orders_of(job)) == 1
    assert all(orders.ready for orders in world.register(job))


def test_second_controller_follows_while_the_first_leads_and_leads_when_it_falls_silent(world: World) -> None:
    world.tick()
    second = world.control.new_loop()
    assert second.tick() is Step.FOLLOWING
    world.clock.advance(Settings().leader_lease_s + 1)
    assert second.tick() is Step.RECORDED
    assert world.loop.tick() is Step.FOLLOWING


def test_controller_that_resigned_leaves_the_lead_at_once(world: World) -> None:
    world.tick()
    world.loop.resign()
    assert world.control.new_loop().tick() is Step.RECORDED


def test_stale_controller_can_write_nothing(world: World) -> None:
    job = world.submit()
    steps = world.loop.steps()
    while next(steps) is not Step.PLANNED:
        pass
    world.clock.advance(Settings().leader_lease_s + 1)
    world.control.new_loop().tick()
    with pytest.raises(Conflict, match="leader"):
        list(steps)
    assert len(world.job(job).attempts) == 1


def test_many_launches_are_spread_over_ticks(world: World) -> None:
    jobs = [world.submit(world.spec(f"job-{index}")) for index in range(4)]
    world.control.settings = Settings(acts_max=1)
    world.loop = world.control.new_loop()
    world.tick()
    assert len(world.west.running()) == 1
    world.tick(4)
    assert [world.job(job).state for job in jobs] == [JobState.STARTING] * 4
    assert len(world.west.running()) == 4


@pytest.mark.parametrize("held", ["team", "cluster", "node"])
def test_job_starts_nowhere_that_was_closed_while_its_start_was_planned(world: World, held: str) -> None:
    pauses, job = world.control.pauses, world.submit()
    for step in world.loop.steps():
        if step is Step.PLANNED:
            match held:
                case "team":
                    pauses.pause_team(LAB, NewHold())
                case "cluster":
                    pauses.pause_cluster("west", NewHold())
                case _:
                    for index in range(4):
                        pauses.drain("west", f"west-{index}", NewHold())
    assert not world.job(job).attempts
    world.tick()
    assert [one.cluster for one in world.job(job).attempts] == ([] if held == "team" else ["east"])
    pauses.resume_team(LAB)
    world.tick()
    assert len(world.job(job).attempts) == 1


def test_launches_that_a_cluster_does_not_take_keep_neither_its_stops_nor_other_clusters_waiting(world: World) -> None:
    class Stuck(FakeEngine):
        stuck = False

        def launch(self, order: LaunchOrder) -> None:
            if self.stuck:
                raise Unavailable("launch", on=order.allocation, got="a webhook that does not answer")
            super().launch(order)

    world.west.inner = engine = Stuck(world.west.inner.inventory(), world.clock)
    world.control.settings = Settings(acts_max=2)
    world.loop = world.control.new_loop()
    running = world.submit()
    world.run(running)
    engine.stuck = True
    jobs = [world.submit(world.spec(f"job-{index}")) for index in range(7)]
    world.tick(6)
    assert sorted(world.job(job).attempts[-1].cluster for job in jobs) == ["east"] * 4 + ["west"] * 3
    assert len(world.east.running()) == 4
    world.control.steering.stop(running)
    world.tick()
    assert world.west.stopped == set(world.orders_of(running))


def test_submit_with_the_same_key_returns_the_same_job(world: World) -> None:
    first = world.submit(world.spec(), key="once")
    world.tick(2)
    assert world.submit(world.spec(), key="once") == first
    with pytest.raises(Conflict, match="once"):
        world.control.submit(Submit(spec=world.spec("other"), key="once"), world.admin)
    assert len(world.control.jobs()) == 1


def test_leader_that_dies_after_the_clock_was_set_back_is_followed_within_two_leases(world: World) -> None:
    world.tick()
    world.clock.jump(-5_000.0)
    world.restart()
    assert world.tick(seconds=Settings().leader_lease_s) is Step.FOLLOWING
    assert world.tick() is Step.RECORDED


def test_start_that_is_lost_is_told_in_time_though_the_clock_was_set_back(world: World) -> None:
    limit_s = Settings().start_s_max
    job = world.submit()
    world.tick(2)
    world.clock.jump(-10 * limit_s)
    world.tick(2, seconds=limit_s / 2)
    assert world.job(job).attempts[0].reason == ""
    world.tick(2)
    assert "0 of 1 agents came" in world.job(job).attempts[0].reason
