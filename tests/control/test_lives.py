"""Lives of a store: numbers that are never given out twice, leads and clusters of a time that it forgot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mainspring.control.store.restores.lives import ATTEMPTS_LEAP, LEAP
from mainspring.domain.answers import HeldOnes, NewHold
from mainspring.domain.ids import JobId
from mainspring.domain.life import JobState
from mainspring.domain.wire import Orders, Register
from mainspring.planner import Policy

if TYPE_CHECKING:
    from tests.control.conftest import World


def _end_beyond(world: World) -> None:
    world.control.restores.end(HeldOnes(all=True))
    world.tick(3)


def test_numbers_are_new_in_each_life_that_one_back_up_begins(world: World, tmp_path: Path) -> None:
    job = world.submit()
    world.control.steering.pause(job, NewHold())
    world.back_up(tmp_path / "copy")
    world.tick()
    plans, newest, numbers = [world.control.questions.plan().number], [world.newest()], []
    for _ in range(2):
        world.go_back(tmp_path / "copy")
        world.clock.advance(60.0)
        world.tick()
        _end_beyond(world)
        world.control.steering.resume(job)
        world.run(job)
        plans.append(world.control.questions.plan().number)
        newest.append(world.newest())
        numbers.append(world.job(job).attempts[-1].number)
    assert numbers == [ATTEMPTS_LEAP + 1, 2 * ATTEMPTS_LEAP + 1]
    for before, after in zip([*plans[:-1], *newest[:-1]], [*plans[1:], *newest[1:]], strict=True):
        assert after > before + LEAP
    later = world.submit()
    _end_beyond(world)
    world.run(later)
    assert world.job(later).attempts[-1].number == 1


def test_job_that_may_run_where_nobody_has_looked_yet_waits_for_that_cluster(world: World, tmp_path: Path) -> None:
    job = world.submit()
    world.back_up(tmp_path / "copy")
    world.run(job)
    (ran,) = world.west.running()
    world.west.answering = False
    world.go_back(tmp_path / "copy")
    world.clock.advance(1.0)
    later = world.submit()
    world.tick(3)
    assert (world.job(job).state, world.job(later).state) == (JobState.QUEUED, JobState.STARTING)
    world.west.answering = True
    world.tick(2)
    assert [one.allocation for one in world.control.restores.held()] == [ran]
    assert world.job(job).state is JobState.QUEUED
    assert world.west.running().keys() == {ran}


def test_cluster_that_is_given_up_keeps_no_job_waiting(world: World, tmp_path: Path) -> None:
    job = world.submit()
    world.back_up(tmp_path / "copy")
    world.west.answering = False
    world.go_back(tmp_path / "copy")
    world.restart(policy=Policy(failover_s=4.0))
    world.tick(4)
    assert world.job(job).state is JobState.QUEUED
    world.tick(3)
    assert (world.job(job).state, world.job(job).attempts[-1].cluster) == (JobState.STARTING, "east")


def test_agent_that_lost_a_lead_which_the_store_forgot_is_given_no_older_one(world: World, tmp_path: Path) -> None:
    job = world.submit(world.spec(replicas=2, spares=1))
    world.run(job)
    world.back_up(tmp_path / "copy")
    world.clock.advance(20.0)
    assert _lost(world, job, node=1, epoch=1).epoch == 2
    world.go_back(tmp_path / "copy")
    world.tick()
    assert not _lost(world, job, node=0, epoch=2).ready  # Who leads now is not known, and may live.
    world.clock.advance(world.control.settings.lease_s)
    orders = _lost(world, job, node=0, epoch=2)
    assert (orders.ready, orders.lead, orders.epoch) == (True, True, 3)
    world.epochs[orders.attempt] = 2
    assert world.beat(job, step=7).fenced


def _lost(world: World, job: JobId, *, node: int, epoch: int) -> Orders:
    """Registers an agent that has lost its lead."""
    (order,) = world.orders_of(job).values()
    call = Register(allocation=order.allocation, node=order.nodes[node], address=f"{node}:1", lost_epoch=epoch)
    return world.control.register(call, world.control.entered(order.token, attempt=order.attempt))
