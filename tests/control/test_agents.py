"""Orders for agents, acknowledgements for leads."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.control.store.holdings import AllocationRecord, layout
from mainspring.domain.errors import Conflict, InvalidMessage, NotAllowed, NotFound
from mainspring.domain.ids import AllocationId, AttemptId, ClusterName, JobId, NodeName, RoleName
from mainspring.domain.life import AllocationState, AttemptState, JobState
from mainspring.domain.plan import Grant
from mainspring.domain.wire import AtRisk, Heartbeat, LeadEvent, Register
from mainspring.domain.wire.events.attempts import AttemptGrantedEvent
from mainspring.domain.wire.events.leads import CheckpointDurableEvent

if TYPE_CHECKING:
    from tests.control.conftest import World

RANKS = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=5).filter(any), min_size=1, max_size=4)


def _grants(ranks: list[list[int]]) -> tuple[Grant, ...]:
    return tuple(
        Grant(
            role=RoleName(f"role-{index}"),
            option=0,
            cluster=ClusterName("east"),
            nodes=tuple(NodeName(f"n{node}") for node in range(len(counts))),
            chip_milli=tuple(1_000 * count for count in counts),
            ranks=tuple(counts),
        )
        for index, counts in enumerate(ranks)
    )


def _held(grants: tuple[Grant, ...]) -> list[tuple[AllocationRecord, Grant]]:
    held: list[tuple[AllocationRecord, Grant]] = []
    agent = rank = 0
    for place, grant in enumerate(grants):
        record = AllocationRecord(
            id=AllocationId(f"a{place}"),
            attempt=AttemptId("attempt"),
            place=place,
            cluster=grant.cluster,
            state=AllocationState.LAUNCHED,
            launched_s=0.0,
            stopped_s=None,
            agent_first=agent,
            rank_first=rank,
            nodes=len(grant.nodes),
            dollars_per_hour=0.0,
            granted_s=0.0,
            came_s=None,
            ended_s=None,
            lost=False,
            queued=None,
            hosts=(),
        )
        held.append((record, grant))
        agent, rank = agent + len(grant.nodes), rank + sum(grant.ranks)
    return held


@given(RANKS)
def test_layout_numbers_every_rank_once_and_keeps_roles_and_agents_in_order(ranks: list[list[int]]) -> None:
    places = layout(_held(_grants(ranks)))
    flat = [count for counts in ranks for count in counts]
    assert [place.rank for place in places] == list(range(sum(flat)))
    assert [sum(place.agent == agent for place in places) for agent in range(len(flat))] == flat
    for index, counts in enumerate(ranks):
        own = [place for place in places if place.role == f"role-{index}"]
        assert [place.role_rank for place in own] == list(range(sum(counts)))
        assert all(place.role_size == sum(counts) for place in own)


def test_orders_are_ready_once_every_agent_has_come_and_name_one_lead(world: World) -> None:
    job = world.submit(world.spec(replicas=2, roles=2))
    world.tick()
    calls = [
        (Register(allocation=name, node=node, address=f"{node}:7"), world.control.people.caller(order.token))
        for name, order in world.orders_of(job).items()
        for node in order.nodes
    ]
    early = [world.control.register(call, caller) for call, caller in calls]
    assert [orders.ready for orders in early] == [False] * (len(calls) - 1) + [True]
    assert early[0].ranks == ()
    late = [world.control.register(call, caller) for call, caller in calls]
    assert all(orders.ready for orders in late)
    assert sorted(orders.agent for orders in late) == list(range(len(calls)))
    assert [orders.agent for orders in late if orders.lead] == [0]
    lead = next(call.address for (call, _), orders in zip(calls, late, strict=True) if orders.lead)
    assert {orders.lead_address for orders in late} == {lead}
    ranks = {orders.agent: [place.rank for place in orders.ranks] for orders in late}
    assert ranks == {0: [0, 1, 2, 3], 1: [1], 2: [2], 3: [3]}, "only the lead needs to know all"
    assert {role.command for role in late[0].roles} == {("train",)}
    assert {orders.epoch for orders in late} == {1}


def test_agents_of_an_attempt_are_told_one_secret_before_all_have_come_and_it_is_not_their_token(world: World) -> None:
    first, second = world.submit(world.spec("a", replicas=2)), world.submit(world.spec("b"))
    world.tick()
    told: dict[JobId, set[str]] = {first: set(), second: set()}
    for job in told:
        for name, order in world.orders_of(job).items():
            caller = world.control.people.caller(order.token)
            for node in order.nodes:
                orders = world.control.register(Register(allocation=name, node=node, address=f"{node}:7"), caller)
                told[job].add(orders.peers_secret)
                assert orders.peers_secret not in repr(orders)
            assert told[job].isdisjoint({"", order.token, order.token.removeprefix("ms_"), "a key"})
            with pytest.raises(NotAllowed):
                world.control.people.caller(next(iter(told[job])))
    assert [len(secrets) for secrets in told.values()] == [1, 1]
    assert told[first] != told[second]


def test_agent_that_comes_from_a_new_address_is_given_out_with_it(world: World) -> None:
    job = world.submit()
    world.tick()
    world.register(job)
    name, order = next(iter(world.orders_of(job).items()))
    caller = world.control.people.caller(order.token)
    moved = world.control.register(Register(allocation=name, node=order.nodes[0], address="elsewhere:1"), caller)
    assert moved.lead_address == "elsewhere:1"


def test_agents_with_anothers_token_or_unknown_names_are_refused(world: World) -> None:
    first, second = world.submit(world.spec("a")), world.submit(world.spec("b"))
    world.tick()
    name, order = next(iter(world.orders_of(first).items()))
    other = world.control.people.caller(next(iter(world.orders_of(second).values())).token)
    own = world.control.people.caller(order.token)
    good = Register(allocation=name, node=order.nodes[0], address="x:1")
    with pytest.raises(NotAllowed):
        world.control.register(good, other)
    with pytest.raises(NotAllowed):
        world.control.register(good, world.admin)
    with pytest.raises(NotFound, match="nobody"):
        world.control.register(Register(allocation=AllocationId("nobody"), node=order.nodes[0], address="x:1"), own)
    with pytest.raises(NotFound, match="elsewhere"):
        world.control.register(Register(allocation=name, node=NodeName("elsewhere"), address="x:1"), own)
    with pytest.raises(InvalidMessage, match="letters"):
        world.control.register(Register(allocation=name, node=order.nodes[0], address="x" * 300), own)


def test_orders_of_a_later_attempt_say_how_far_the_earlier_ones_came(world: World) -> None:
    job = world.submit()
    world.run(job)
    assert world.register(job)[0].furthest_step == -1
    world.beat(job, step=60)
    world.end_agents(job, exit_code=-9)
    world.tick(3)
    assert world.register(job)[0].furthest_step == 60
    granted = [event for event in world.control.events(reference=job) if event.kind == AttemptGrantedEvent.kind]
    assert [event.detail["step"] for event in granted] == [-1, 60]
    world.send(job, _beat(world, job, 1, step=-1))
    assert world.job(job).step == 60, "until it steps again the job stands where the attempt before has left it"


def test_agent_of_a_stopping_attempt_is_refused(world: World) -> None:
    job = world.submit()
    world.tick()
    world.control.steering.stop(job, world.admin)
    with pytest.raises(Conflict, match="stopping"):
        world.register(job)


def _beat(world: World, job: str, epoch: int, *sequences: int, step: int = 0, generation: int = 1) -> Heartbeat:
    return Heartbeat(
        attempt=world.control.job(job).attempts[-1].id,
        epoch=epoch,
        generation=generation,
        step=step,
        metrics={},
        ranks=(),
        events=tuple(
            LeadEvent(sequence=number, time_s=1.0, kind=CheckpointDurableEvent.kind, detail={"step": number})
            for number in sequences
        ),
    )


def test_heartbeats_that_repeat_or_come_late_are_counted_once(world: World) -> None:
    job = world.submit()
    world.run(job)
    assert world.send(job, _beat(world, job, 1, 1, 2, step=5)).acknowledged == 2
    assert world.send(job, _beat(world, job, 1, 1, 2, 3, step=8)).acknowledged == 3
    assert world.send(job, _beat(world, job, 1, 1, step=2)).acknowledged == 3
    kept = [event.detail["step"] for event in world.control.events(reference=job) if "durable" in event.kind]
    assert kept == [1, 2, 3]
    assert world.job(job).step == 8
    assert world.send(job, _beat(world, job, 1, step=3, generation=2)).acknowledged == 3
    assert world.job(job).step == 3, "a new generation resumes from an earlier step"


def test_job_shows_what_its_lead_last_said_is_at_risk_for_as_long_as_it_runs(world: World) -> None:
    job = world.submit()
    world.run(job)
    risk = AtRisk(steps=3, seconds=0.6, durable_steps=40, durable_seconds=8.0)
    assert world.job(job).attempts[-1].at_risk is None
    world.send(job, replace(_beat(world, job, 1, step=50), at_risk=risk))
    world.send(job, replace(_beat(world, job, 1, step=40), at_risk=replace(risk, steps=9)))  # It came late.
    assert world.job(job).attempts[-1].at_risk == risk
    assert world.control.jobs()[0].attempts[-1].at_risk is None
    world.send(job, _beat(world, job, 1, step=60))  # A lead of an earlier version.
    assert world.job(job).attempts[-1].at_risk is None
    world.send(job, replace(_beat(world, job, 1, step=70), at_risk=risk))
    world.end_agents(job, exit_code=-9)
    world.tick(3)
    assert world.job(job).attempts[-1].at_risk is None


def test_heartbeats_of_an_older_epoch_or_an_ended_attempt_are_fenced(world: World) -> None:
    job = world.submit()
    world.run(job)
    assert world.send(job, _beat(world, job, 0)).fenced
    assert not world.send(job, _beat(world, job, 1)).fenced
    old = _beat(world, job, 1, 1)
    order = next(iter(world.orders_of(job).values()))
    world.end_agents(job, exit_code=-9)
    world.tick(3)
    assert world.job(job).attempts[0].state is AttemptState.LOST
    assert world.control.heartbeat(old, world.control.people.caller(order.token)).fenced
    assert "durable" not in str(world.control.events(reference=job))


def test_heartbeat_with_an_outcome_that_is_no_end_is_refused(world: World) -> None:
    job = world.submit()
    world.run(job)
    with pytest.raises(InvalidMessage, match="running"):
        world.beat(job, outcome=AttemptState.RUNNING)


def test_success_told_while_being_stopped_is_kept(world: World) -> None:
    job = world.submit()
    world.run(job)
    world.control.steering.stop(job, world.admin)
    world.beat(job, outcome=AttemptState.SUCCEEDED)
    world.tick(3)
    assert world.job(job).state is JobState.SUCCEEDED
