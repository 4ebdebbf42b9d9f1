"""A store that went back in time: what runs beyond its memory is neither stopped nor started again."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mainspring.control import Step
from mainspring.control.store.restores.adopting import adopt
from mainspring.control.store.restores.attestations import read_attestation
from mainspring.control.store.restores.lives import LEAP
from mainspring.domain.answers import Adopted, HealthStatus, HeldOnes, HeldView, NewHold
from mainspring.domain.errors import Conflict, NotAllowed, NotFound, StorageFull, Unavailable
from mainspring.domain.fleet import LaunchOrder
from mainspring.domain.ids import AllocationId, AttemptId, NodeName, RoleName
from mainspring.domain.life import AttemptState, JobState
from mainspring.domain.team import TeamRole
from mainspring.domain.wire import LeadEvent, Register
from mainspring.simulator.proof.store_faults import StoreFaults, StoreRates
from mainspring.testing import SeededDice
from mainspring.testing.postgres import PostgresServer, postgres_missing

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


def test_what_a_cluster_showed_keeps_jobs_from_starting_twice_only_once_it_is_written(
    world: World, tmp_path: Path
) -> None:
    """A controller looks at all clusters and cannot write that down; one of them is silent from then on."""
    job = world.submit()
    world.control.steering.pause(job, NewHold())
    world.back_up(tmp_path / "copy")
    world.control.steering.resume(job)
    world.run(job)
    cluster = world.clusters[world.job(job).attempts[-1].cluster]
    world.go_back(tmp_path / "copy")
    world.control.steering.resume(job)
    faults = StoreFaults(SeededDice(1, "store"), Counter())
    faults.listen(world.control.store)
    steps = world.loop.steps()
    next(step for step in steps if step is Step.OBSERVED)
    faults.rates = StoreRates(full=1.0)
    with pytest.raises(StorageFull):
        list(steps)
    faults.rates = StoreRates()
    cluster.answering = False
    world.tick(5)
    assert world.job(job).state is JobState.QUEUED
    cluster.answering = True
    world.tick(2)
    (held,) = _held(world)
    assert (held.job, world.job(job).state) == (job, JobState.QUEUED)


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
    newest, plan = world.newest(), world.control.questions.plan().number
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
    assert world.newest() > newest + LEAP
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


@pytest.mark.parametrize("ends", [True, False])
def test_job_that_was_to_stop_at_a_back_up_and_may_have_succeeded_first_waits(
    world: World, tmp_path: Path, ends: bool
) -> None:
    job = world.submit()
    world.run(job)
    world.control.steering.requeue(job)
    assert world.job(job).attempts[-1].state is AttemptState.STOPPING
    world.back_up(tmp_path / "copy")
    world.clock.advance(60.0)
    if ends:
        world.succeed(job)
        assert world.job(job).state is JobState.SUCCEEDED
    world.go_back(tmp_path / "copy")
    if not ends:
        world.beat(job, step=5)
        world.tick()
        world.end_agents(job, exit_code=0)
    world.tick(3)
    assert [(one.job, one.over) for one in _held(world)] == ([(job, True)] if ends else [])
    assert len(world.job(job).attempts) == (1 if ends else 2)
    world.control.restores.end(HeldOnes(all=True))
    world.tick(3)
    assert len(world.job(job).attempts) == 2


def test_report_that_was_under_way_when_the_store_went_back_is_no_word_of_how_it_ended(
    world: World, tmp_path: Path
) -> None:
    job = world.submit()
    world.run(job)
    world.beat(job, step=5)
    ((_, order),) = world.orders_of(job).items()
    late = world.last_beat
    world.back_up(tmp_path / "copy")
    world.clock.advance(60.0)
    world.succeed(job)
    world.go_back(tmp_path / "copy")
    world.clock.advance(1.0)
    world.tell(late, order)
    world.tick(3)
    assert [(one.job, one.over) for one in _held(world)] == [(job, True)]
    assert world.job(job).state is JobState.QUEUED


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


def _adopt(world: World, *names: str) -> Adopted:
    asked = HeldOnes(allocations=tuple(map(AllocationId, names)), all=not names)
    return world.control.restores.adopt(asked)


def test_what_runs_is_adopted_as_it_is_and_goes_on_to_its_end(world: World, tmp_path: Path) -> None:
    """A job known as waiting, an elastic one of two allocations whose lead was replaced, one of an array."""
    waits = world.submit(world.spec("waits"))
    world.back_up(tmp_path / "copy")
    world.tick(2)
    world.register(waits)
    world.beat(waits)
    wide = world.submit(world.spec("wide", replicas=2, replicas_min=1), key="once")
    world.run(wide)
    of_agent = {
        told.agent: order for told, order in zip(world.register(wide), world.orders_of(wide).values(), strict=True)
    }
    first, second = of_agent[0], of_agent[1]
    world.clock.advance(20.0)
    call = Register(allocation=second.allocation, node=second.nodes[0], address="b:1", lost_epoch=1)
    assert world.control.register(call, world.control.entered(second.token, attempt=second.attempt)).lead
    world.epochs[second.attempt] = 2
    array = world.submit(world.spec("many"), count=2)
    world.tick(2)
    (one,) = (job.id for job in world.control.jobs(array=array) if job.array is not None and job.array.index)
    world.register(one)
    world.beat(one)
    running, beats = _all_running(world), {job: world.orders_of(job) for job in (waits, wide, one)}
    stopped = {allocation for cluster in world.clusters.values() for allocation in cluster.stopped}
    before = world.job(wide)
    world.go_back(tmp_path / "copy")
    world.tick(2, seconds=1_000.0)  # Longer than a start may take.
    assert {held.job for held in _held(world)} == {waits, wide, array, one}
    viewer = world.control.people.caller(world.token(TeamRole.VIEWER))
    with pytest.raises(NotAllowed):
        world.control.restores.adopt(HeldOnes(all=True), viewer)
    done = _adopt(world, second.allocation, waits, one)
    assert (set(done.adopted), done.refused) == ({name for own in beats.values() for name in own}, ())
    assert {held.job for held in _held(world)} == {array}
    assert {world.job(job).state for job in beats} == {JobState.STARTING}
    world.tick(3)
    for job, own in beats.items():
        order, agent = next(iter(own.values())), int(job == wide)  # Of the elastic one, agent 1 leads as the second.
        told = LeadEvent(sequence=7, time_s=world.clock.now_s(), kind="result", detail={"score": 0.5})
        beat = replace(world.last_beat, attempt=order.attempt, epoch=1 + agent, step=9, events=(told,))
        assert not world.tell(replace(beat, agent=agent, address=f"{agent}:1"), order).fenced
        view = world.job(job)
        assert (view.state, view.step, view.result) == (JobState.RUNNING, 9, {"score": 0.5})
    world.tick(3)
    after = world.job(wide)
    assert (after.spec, after.submitted_s, after.owner) == (before.spec, before.submitted_s, before.owner)
    times = [[(each.id, each.number, each.granted_s) for each in view.attempts] for view in (before, after)]
    assert times[0] == times[1]
    assert world.submit(world.spec("wide", replicas=2, replicas_min=1), key="once") == wide
    assert world.job(one).spec.roles[0].environment["MAINSPRING_ARRAY_INDEX"] == "1"
    assert _all_running(world) == running
    assert {allocation for cluster in world.clusters.values() for allocation in cluster.stopped} == stopped
    call = Register(allocation=first.allocation, node=first.nodes[0], address="a:2", lost_epoch=1)
    orders = world.control.register(call, world.control.entered(first.token, attempt=first.attempt))
    assert (orders.epoch, orders.lead, orders.lead_address) == (2, False, "1:1")
    for job in beats:
        world.succeed(job)
        assert world.job(job).state is JobState.SUCCEEDED
        assert [each.state for each in world.job(job).attempts] == [AttemptState.SUCCEEDED]
    goodput = world.job(wide).goodput
    assert goodput is not None
    assert goodput.allocated_s > 2 * 2_000.0  # Of both nodes, from when they were granted.
    world.control.restores.end(HeldOnes(all=True))
    world.tick(3)
    assert not _all_running(world)


def test_what_cannot_be_adopted_is_told_by_name_and_stays_held(world: World, tmp_path: Path) -> None:
    paused, twice = world.submit(world.spec("paused")), world.submit(world.spec("twice"))
    world.control.steering.pause(paused, NewHold())
    world.control.steering.pause(twice, NewHold())
    world.tick()
    world.back_up(tmp_path / "copy")
    for job in (paused, twice):
        world.control.steering.resume(job)
    unknown = world.submit(world.spec("unknown"))
    world.tick(2)
    known = {job: next(iter(world.orders_of(job).values())) for job in (paused, twice, unknown)}
    order = known[unknown]
    signature, _, packed = order.attestation.partition(".")
    for name, text in {
        "mute": "",
        "forged": f"{signature[::-1]}.{packed}",
        "borrowed": order.attestation,
    }.items():
        node = NodeName("east-1")
        stray = replace(order, allocation=AllocationId(f"allocation-{name}"), attestation=text, nodes=(node,))
        world.east.launch(replace(stray, chip_milli=(0,), cpu_milli=(), memory_mib=()))
    world.go_back(tmp_path / "copy")
    world.tick()
    world.control.steering.resume(twice)
    running = _all_running(world)
    assert [known[twice].allocation] == list(_adopt(world, twice).adopted)
    done = _adopt(world)
    assert list(done.adopted) == [known[unknown].allocation]
    refused = {one.allocation: one.reason for one in done.refused}
    words = {
        known[paused].allocation: f"ms resume {paused}",
        "allocation-mute": "none that runs and has an attestation",
        "allocation-forged": "key did not sign",
        "allocation-borrowed": f"what was attested of {order.allocation}",
    }
    assert {name: text for name, text in refused.items() if words[name] not in text} == {}
    assert refused.keys() == words.keys()
    world.tick(2)
    assert {held.allocation for held in _held(world)} == set(refused)
    assert _all_running(world) == running
    with pytest.raises(NotFound, match="ms restore lists it"):
        _adopt(world, "allocation-none")


def test_newer_attempt_of_a_job_is_adopted_once_the_one_that_the_store_knows_is_over(
    world: World, tmp_path: Path
) -> None:
    job = world.submit()
    world.run(job)
    world.back_up(tmp_path / "copy")
    world.clock.advance(60.0)
    world.end_agents(job, exit_code=1)
    world.tick(3)
    world.run(job)
    (order,) = world.orders_of(job).values()
    assert world.job(job).attempts[-1].number == 2
    world.go_back(tmp_path / "copy")
    newer = read_attestation(order.attestation, "a key")
    with pytest.raises(Conflict, match="attempt 1 lives"), world.control.store.write() as connection:
        adopt(connection, [newer], room=None, by="ada", now_s=world.clock.now_s())
    world.tick(2)
    assert {(one.job, one.over) for one in _held(world)} == {(job, True), (job, False)}
    with pytest.raises(Conflict, match="given to others"), world.control.store.write() as connection:
        adopt(connection, [newer], room={order.nodes[0]: 500}, by="ada", now_s=world.clock.now_s())
    done = _adopt(world)
    assert (done.adopted, done.refused) == ((order.allocation,), ())
    assert _adopt(world, order.allocation, job).adopted == ()  # Asked again, as where the answer was lost.
    world.tick(2)
    assert _held(world) == ()
    assert not world.tell(world.last_beat, order).fenced
    world.succeed(job)
    assert world.job(job).state is JobState.SUCCEEDED
    assert [each.number for each in world.job(job).attempts] == [1, 2]


@pytest.mark.slow
def test_standby_promoted_without_the_newest_holds_what_it_has_forgotten(
    tmp_path: Path, world_type: type[World]
) -> None:
    if missing := postgres_missing():
        pytest.skip(missing)
    with ExitStack() as running:
        primary, standby = PostgresServer(), PostgresServer()
        for server in (primary, standby):
            running.callback(server.stop)
        primary.start()
        name = primary.new_database().partition("?")[0].rpartition("/")[2]
        standby.follow(primary)
        world = world_type(tmp_path, url=primary.url(name, standby))
        known = world.submit(world.spec("known"))
        world.run(known)
        standby.fall_behind(primary)
        forgotten = world.submit(world.spec("forgotten"))
        world.run(forgotten)
        (order,) = world.orders_of(forgotten).values()
        live = _all_running(world)
        world.control.store.close()
        primary.kill()
        standby.promote()
        world.clock.advance(60.0)
        world.restart()
        world.tick(3)
        with pytest.raises(NotFound):
            world.job(forgotten)
        assert [held.job for held in _held(world)] == [forgotten]
        assert _all_running(world) == live
        with pytest.raises(Unavailable):
            world.tell(world.last_beat, order)
        assert _adopt(world, forgotten).refused == ()
        world.tick()
        assert not world.tell(world.last_beat, order).fenced
        assert {world.job(job).state for job in (known, forgotten)} == {JobState.RUNNING}
        for job in (known, forgotten):
            world.succeed(job)
            assert world.job(job).state is JobState.SUCCEEDED
        assert not any(cluster.stopped - live for cluster in world.clusters.values())
        world.control.store.close()
