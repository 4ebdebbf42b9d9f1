"""A store that went back in time: what runs beyond its memory is neither stopped nor started again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mainspring.control.store.restores.lives import LEAP
from mainspring.domain.answers import HealthStatus, HeldOnes, HeldView, NewHold
from mainspring.domain.errors import NotAllowed, NotFound, Unavailable
from mainspring.domain.fleet import LaunchOrder
from mainspring.domain.ids import AllocationId, AttemptId, NodeName, RoleName
from mainspring.domain.life import JobState
from mainspring.domain.team import TeamRole
from mainspring.domain.wire import Register

if TYPE_CHECKING:
    from tests.control.conftest import World


def _held(world: World) -> tuple[HeldView, ...]:
    return world.control.restores.held()


def _all_running(world: World) -> set[AllocationId]:
    return {allocation for cluster in world.clusters.values() for allocation in cluster.running()}


def test_what_no_store_knows_is_left_alone_with_its_nodes_until_an_operator_ends_it(world: World) -> None:
    stray = LaunchOrder(
        allocation=AllocationId("allocation-stray"),
        attempt=AttemptId("attempt-stray"),
        role=RoleName("main"),
        nodes=(NodeName("west-0"),),
        chip_milli=(1_000,),
        controller="",
        token="",
    )
    world.west.launch(stray)
    wide = world.submit(world.spec("wide", replicas=4, roles=2))  # Of eight chips there are, west-0 has one.
    world.tick(3)
    assert world.job(wide).state is JobState.QUEUED
    assert _all_running(world) == {"allocation-stray"}
    (held,) = _held(world)
    assert (held.allocation, held.cluster, held.nodes, held.over) == ("allocation-stray", "west", ("west-0",), False)
    assert "1 allocations go beyond" in str(world.control.health())
    assert {one.status for one in world.control.health().checks if one.name == "held"} == {HealthStatus.DEGRADED}
    viewer = world.control.people.caller(world.token(TeamRole.VIEWER))
    with pytest.raises(NotAllowed):
        world.control.restores.end(HeldOnes(all=True), viewer)
    with pytest.raises(NotFound, match="allocation-stray"):
        world.control.restores.end(HeldOnes(allocations=(AllocationId("allocation-strai"),)))
    world.control.restores.end(HeldOnes(allocations=(stray.allocation,)))
    world.tick(3)
    assert _held(world) == ()
    assert not world.west.running().keys() & {"allocation-stray"}
    assert not [one for one in world.control.health().checks if one.name == "held"]


def test_restored_store_neither_stops_nor_repeats_what_came_after_it(world: World, tmp_path: Path) -> None:
    """Jobs known as waiting that run by now, or ran; one known as running that is over; one that nobody knows."""
    long, done, failed = (world.submit(world.spec(name)) for name in ("long", "done", "failed"))
    world.run(long)
    for job in (done, failed):
        world.control.steering.pause(job, NewHold())
    world.tick(2)
    over = world.submit(world.spec("over"))
    world.run(over)
    world.back_up(tmp_path / "copy")
    newest, plan = world.control.newest_event(), world.control.questions.plan().number
    world.clock.advance(60.0)
    world.beat(long, step=5)
    world.succeed(over)
    for job in (done, failed):
        world.control.steering.resume(job)
    world.tick(2)
    world.register(done)
    world.beat(done)
    world.succeed(done)
    world.register(failed)
    world.beat(failed)
    unknown = world.submit(world.spec("unknown"))
    world.run(unknown)
    running, leads = _all_running(world), {job: world.orders_of(job) for job in (failed, unknown)}
    assert len(running) == 3
    world.go_back(tmp_path / "copy")
    for job in (done, failed):
        world.control.steering.resume(job)  # What it was said of them since is forgotten too.
    world.tick(5, seconds=20.0)
    assert _all_running(world) == running
    assert world.control.newest_event() > newest + LEAP
    assert world.control.questions.plan().number > plan + LEAP
    told = {(one.job, one.over) for one in _held(world)}
    assert told == {(done, True), (failed, False), (unknown, False), (over, True)}
    assert {world.job(job).state for job in (done, failed, over)} == {JobState.QUEUED}
    assert world.job(long).state is JobState.RUNNING
    for orders in leads.values():
        (order,) = orders.values()
        with pytest.raises(Unavailable, match="does not know"):
            world.tell(replace(world.last_beat, attempt=order.attempt), order)
        agent = Register(allocation=order.allocation, node=order.nodes[0], address="x:1")
        caller = world.control.entered(order.token, attempt=order.attempt)
        with pytest.raises(Unavailable, match="ms restore"):
            world.control.register(agent, caller)
        with pytest.raises(NotAllowed):
            world.control.entered(order.token, attempt=f"{order.attempt}x")
    world.succeed(long)
    assert world.job(long).state is JobState.SUCCEEDED
    world.control.restores.end(HeldOnes(all=True))
    world.tick(3)
    assert world.control.restores.held() == ()
    for job in (done, failed, over):
        world.register(job)
        world.beat(job)
        world.succeed(job)
        assert world.job(job).state is JobState.SUCCEEDED
        assert world.job(job).attempts[-1].number == 1_001  # Those between may have been given out.


def test_lead_that_was_named_after_a_back_up_goes_on_leading(world: World, tmp_path: Path) -> None:
    job = world.submit(world.spec(replicas=2, spares=1))
    world.run(job)
    world.back_up(tmp_path / "copy")
    world.clock.advance(20.0)
    (order,) = world.orders_of(job).values()
    call = Register(allocation=order.allocation, node=order.nodes[1], address="b:1", lost_epoch=1)
    caller = world.control.entered(order.token, attempt=order.attempt)
    assert world.control.register(call, caller).epoch == 2
    world.go_back(tmp_path / "copy")
    world.tick()
    world.epochs[order.attempt] = 2
    assert not world.beat(job, step=7).fenced
    world.epochs[order.attempt] = 1
    assert world.beat(job, step=8).fenced
    assert (world.job(job).state, world.job(job).step) == (JobState.RUNNING, 7)
    world.tick(2)
    assert world.job(job).state is JobState.RUNNING
