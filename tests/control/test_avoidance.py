"""A node must not eat jobs: what is lost at one node only is held against the node first."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from tests.control.conftest import inventory

from mainspring.control import open_store
from mainspring.control.state.avoidance import (
    AGAIN,
    DAY_S,
    ELSEWHERE,
    FRESH_S,
    REMEMBERED_S,
    RESTS,
    SUSPECTS_MIN,
    Avoidance,
)
from mainspring.control.state.history import AVOIDED, Past
from mainspring.control.store.evidence import SPARED_MAX, Evidence, LostAttempt, counted, evidence_since
from mainspring.control.store.schema import EVIDENCE, events
from mainspring.domain.fleet import NodeRef
from mainspring.domain.ids import ClusterName, JobId, NodeName
from mainspring.domain.life import AttemptState, JobState
from mainspring.domain.plan import Limit
from mainspring.domain.wire.events import EVENTS
from mainspring.domain.wire.events.attempts import NodeBlamedEvent, NodeClearedEvent
from mainspring.domain.wire.events.leads import AgentLostEvent, GenerationResumedEvent, RankExitedEvent
from mainspring.domain.wire.events.marks import Renews
from mainspring.testing import FakeEngine

if TYPE_CHECKING:
    from pathlib import Path

    from tests.control.conftest import World

FULL = "agent on west-0: 5 bytes free, 67108864 wanted"
WEST = ClusterName("west")
BAD, GOOD = (NodeRef(cluster=WEST, node=NodeName(f"west-{index}")) for index in range(2))
COUNTS = {WEST: 8}


def _only_west(world: World, nodes: int) -> None:
    """Leaves one cluster of a few nodes with one chip each; nodes are taken in order of name."""
    world.east.answering = False
    world.west.inner = FakeEngine(inventory("west", nodes=nodes, chips=1, dollars=1.0), world.clock)


def _nodes(world: World, job: JobId) -> list[str]:
    return [attempt.nodes[0] for attempt in world.job(job).attempts]


def _live_through(world: World, job: JobId, *, bad: tuple[str, ...], ticks: int = 4_000) -> JobState:
    """Lets time pass until a job has ended: on bad nodes its agents end at once, elsewhere it ends well."""
    done: set[str] = set()
    for _ in range(ticks):
        world.tick(seconds=2.0)
        view = world.job(job)
        if view.ended_s is not None:
            break
        if view.attempts and view.attempts[-1].id not in done and world.orders_of(job):
            done.add(view.attempts[-1].id)
            if view.attempts[-1].nodes[0] in bad:
                world.end_agents(job, exit_code=1, reason=FULL)
            else:
                world.register(job)
                world.beat(job, outcome=AttemptState.SUCCEEDED)
    return world.job(job).state


def _told(world: World, job: JobId, kind: str) -> list[str]:
    return [str(event.detail["node"]) for event in world.control.events(reference=job) if event.kind == kind]


# ---------------------------------------------------------------- jobs and nodes, through the loop


@pytest.mark.parametrize("attempts_max", [2, 4])
def test_job_lost_at_a_bad_node_ends_well_on_the_other_and_its_loss_is_not_counted(
    world: World, attempts_max: int
) -> None:
    _only_west(world, 2)
    job = world.submit(world.spec(attempts_max=attempts_max))
    world.tick(2)
    assert _nodes(world, job) == ["west-0"]
    world.end_agents(job, exit_code=1, reason=FULL)
    world.tick(2)
    assert "loss 0 of" in " ".join(str(one.detail.get("reason")) for one in world.control.events(reference=job))
    why = world.control.questions.why(job)
    assert [one.at for one in why.avoided] == [BAD]
    assert FULL in why.avoided[0].reason
    assert _live_through(world, job, bad=("west-0",)) is JobState.SUCCEEDED
    assert _nodes(world, job) == ["west-0", "west-1"]
    assert _told(world, job, NodeBlamedEvent.kind) == ["west-0"]


def test_two_jobs_are_not_eaten_and_their_losses_keep_all_others_away(world: World) -> None:
    _only_west(world, 2)
    first = world.submit()
    assert _live_through(world, first, bad=("west-0",)) is JobState.SUCCEEDED
    second = world.submit(world.spec("second"))
    assert _live_through(world, second, bad=("west-0",)) is JobState.SUCCEEDED
    assert _nodes(world, second) == ["west-0", "west-1"]
    third = world.submit(world.spec("third"))
    assert _live_through(world, third, bad=("west-0",)) is JobState.SUCCEEDED
    assert _nodes(world, third) == ["west-1"], "two jobs were lost there and nowhere else"
    west = world.control.clusters()[-1]
    assert [one.at for one in west.avoided] == [BAD]
    assert west.avoided[0].reason == f"2 jobs were lost there and nowhere else; the last: {second}"  # No words of its.
    wide = world.submit(world.spec("wide", replicas=2))
    world.tick(2)
    why = world.control.questions.why(wide)
    assert (why.limit, why.where) == (Limit.HEALTH, "west")
    assert "avoided for what was lost there" in why.summary
    world.tick(int(RESTS.first_s) + 20)
    assert world.job(wide).state is JobState.STARTING, "no node is avoided for ever"


def test_two_jobs_at_once_lose_once_each(world: World) -> None:
    _only_west(world, 3)
    jobs = [world.submit(world.spec(f"job-{index}")) for index in range(2)]
    assert [_live_through(world, job, bad=("west-0",)) for job in jobs] == [JobState.SUCCEEDED] * 2
    assert sum(_nodes(world, job).count("west-0") for job in jobs) <= 2


def test_job_that_is_lost_everywhere_fails_after_as_many_attempts_as_ever_and_says_so(world: World) -> None:
    _only_west(world, 4)
    job = world.submit(world.spec(attempts_max=3))
    assert _live_through(world, job, bad=tuple(f"west-{index}" for index in range(4))) is JobState.FAILED
    view = world.job(job)
    assert len(view.attempts) == 3
    assert len(set(_nodes(world, job))) == 3
    assert "3 attempts were lost on 3 nodes, and that is the most allowed" in view.reason
    assert FULL in view.reason
    assert world.control.clusters()[-1].avoided == (), "a job that fails everywhere says nothing about nodes"


def test_job_with_one_node_to_go_to_tries_again_after_growing_waits_and_then_ends(world: World) -> None:
    _only_west(world, 1)
    job = world.submit(world.spec(attempts_max=4))
    world.tick(2)
    world.end_agents(job, exit_code=1, reason=FULL)
    world.tick(3)
    why = world.control.questions.why(job)
    assert (why.state, why.limit) == (JobState.QUEUED, Limit.HEALTH)
    assert "west: was lost on west-0, and nothing else could run it" in why.summary
    assert why.start_s is not None
    assert _live_through(world, job, bad=("west-0",)) is JobState.FAILED
    view = world.job(job)
    assert len(view.attempts) == 4 + SPARED_MAX
    ends = [attempt.ended_s or 0.0 for attempt in view.attempts]
    waits = [start.granted_s - end for end, start in zip(ends, view.attempts[1:], strict=False)]
    wanted = [AGAIN.wait_s(times) for times in range(1, 6)]
    assert all(least <= wait <= least + 15.0 for wait, least in zip(waits, wanted, strict=True))
    assert all(later > earlier for earlier, later in pairwise(waits))
    assert "4 attempts were lost, and that is the most allowed, besides 2 held against west-0" in view.reason


@pytest.mark.parametrize("way", ["here", "before this server was"])
def test_pauses_last_no_longer_when_the_clock_is_set_back(world: World, way: str) -> None:
    _only_west(world, 1)
    job = world.submit(world.spec(attempts_max=4))
    world.tick(2)
    world.end_agents(job, exit_code=1, reason=FULL)
    world.tick(3)
    world.clock.jump(-5_000.0)
    if way != "here":
        world.restart()
    world.tick(4 * int(AGAIN.first_s))
    assert len(world.job(job).attempts) == 2


def test_job_waits_for_the_node_only_while_no_other_is_there(world: World) -> None:
    _only_west(world, 2)
    world.west.inner.node_down(NodeName("west-1"))
    job = world.submit()
    world.tick(2)
    world.end_agents(job, exit_code=1, reason=FULL)
    world.tick(3)
    assert world.job(job).state is JobState.QUEUED
    world.west.inner.node_up(NodeName("west-1"))
    world.tick(2)
    assert _nodes(world, job) == ["west-0", "west-1"]


def test_job_that_may_be_tried_once_is_tried_once(world: World) -> None:
    _only_west(world, 2)
    job = world.submit(world.spec(attempts_max=1))
    assert _live_through(world, job, bad=("west-0",)) is JobState.FAILED
    assert _nodes(world, job) == ["west-0"]


def test_evidence_outlives_the_controller(world: World) -> None:
    _only_west(world, 2)
    for name in ("first", "second"):
        assert _live_through(world, world.submit(world.spec(name)), bad=("west-0",)) is JobState.SUCCEEDED
    job = world.submit(world.spec("third", replicas=2))
    world.tick(2)
    before = world.control.clusters()[-1].avoided
    world.restart()
    world.tick(10)  # Until the lease of the one before is over.
    assert world.control.clusters()[-1].avoided == before != ()
    assert world.job(job).state is JobState.QUEUED
    lone = world.submit(world.spec("fourth"))
    world.tick(2)
    assert _nodes(world, lone) == ["west-1"]
    with world.control.store.read() as connection:
        told = evidence_since(connection, 0.0)
    assert [(one.at, one.outcome) for one in told] == [(BAD, AttemptState.LOST)] * 2


def test_success_at_a_suspected_node_is_told_and_takes_evidence_back(world: World) -> None:
    _only_west(world, 2)
    assert _live_through(world, world.submit(), bad=("west-0",)) is JobState.SUCCEEDED
    second = world.submit(world.spec("second"))
    assert _live_through(world, second, bad=()) is JobState.SUCCEEDED
    assert _told(world, second, NodeClearedEvent.kind) == ["west-0"]
    third = world.submit(world.spec("third"))
    assert _live_through(world, third, bad=("west-0",)) is JobState.SUCCEEDED
    assert world.control.clusters()[-1].avoided == ()
    assert _told(world, world.submit(world.spec("fourth")), NodeClearedEvent.kind) == []


def test_program_that_fails_where_others_were_lost_is_tried_once_elsewhere(world: World) -> None:
    _only_west(world, 2)
    assert _live_through(world, world.submit(), bad=("west-0",)) is JobState.SUCCEEDED
    job = world.submit(world.spec("second"))
    world.run(job)
    world.beat(job, outcome=AttemptState.FAILED, reason="rank 0 exited with 1: no CUDA driver")
    world.tick(3)
    view = world.job(job)
    assert [(one.state, one.nodes) for one in view.attempts] == [
        (AttemptState.FAILED, ("west-0",)),
        (AttemptState.GRANTED, ("west-1",)),
    ]
    world.register(job)
    world.beat(job, outcome=AttemptState.FAILED, reason="rank 0 exited with 1: no CUDA driver")
    world.tick(3)
    assert (world.job(job).state, len(world.job(job).attempts)) == (JobState.FAILED, 2), "it fails elsewhere too"


def test_program_that_fails_where_nobody_was_lost_fails_at_once(world: World) -> None:
    _only_west(world, 2)
    job = world.submit()
    world.run(job)
    world.beat(job, outcome=AttemptState.FAILED, reason="rank 0 exited with 2: no such file")
    world.tick(3)
    assert (world.job(job).state, len(world.job(job).attempts)) == (JobState.FAILED, 1)


@pytest.mark.parametrize("way", ["rank", "agent", "engine"])
def test_gang_holds_its_loss_against_the_node_that_failed_alone(world: World, way: str) -> None:
    _only_west(world, 4)
    job = world.submit(world.spec(replicas=3))
    world.run(job)
    exited: dict[str, str | int | float | bool] = {
        "generation": 2,
        "rank": 0,
        "exit_code": 1,
        "step": 3,
        "last_words": "of an hour ago",
    }
    resumed: dict[str, str | int | float | bool] = {"generation": 2, "step": 3, "source": "arena"}
    late = exited | {"rank": 2, "exit_code": -9, "last_words": ""}
    silent: dict[str, str | int | float | bool] = {"agent": 2, "node": "west-2"}
    told = {"rank": [(RankExitedEvent.kind, late)], "agent": [(AgentLostEvent.kind, silent)]}
    world.beat(job, (RankExitedEvent.kind, exited), (GenerationResumedEvent.kind, resumed), *told.get(way, []))
    if way == "engine":
        (name,) = world.orders_of(job)
        world.west.inner.end_agent(name, 2, exit_code=-9, reason="was ended by signal 9")
    else:
        world.beat(job, outcome=AttemptState.LOST, reason="too few are left")
    world.tick(4)
    assert _told(world, job, NodeBlamedEvent.kind) == ["west-2"]
    assert world.job(job).attempts[-1].nodes == ("west-0", "west-1", "west-3")


def test_loss_on_a_delegated_cluster_is_held_against_no_node(tmp_path: Path, world_type: type[World]) -> None:
    world = world_type(tmp_path, delegated=True)
    world.west.inner.queueing = False
    world.east.answering = False
    job = world.submit(world.spec(attempts_max=2))
    for _ in range(2):
        world.run(job)
        world.end_agents(job, exit_code=1, reason=FULL)
        world.tick(3)
    assert (world.job(job).state, len(world.job(job).attempts)) == (JobState.FAILED, 2)
    assert _told(world, job, NodeBlamedEvent.kind) == []
    world.control.store.close()


def test_index_of_evidence_has_every_kind_that_speaks_of_nodes() -> None:
    kinds = ", ".join(f"'{event.kind}'" for event in EVENTS if event.renews is Renews.NODE)
    assert str(EVIDENCE) == f"kind IN ({kinds})"


def test_evidence_is_found_by_its_index(world: World) -> None:
    query = sa.select(events).where(EVIDENCE, events.c.time_s > 1.0).order_by(events.c.time_s, events.c.sequence)
    text = str(query.compile(compile_kwargs={"literal_binds": True}))
    with open_store(world.url).read() as connection:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("SET enable_seqscan = off")  # An empty table is read whole, index or not.
        explain = "EXPLAIN" if connection.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN"
        steps = " ".join(str(row) for row in connection.exec_driver_sql(f"{explain} {text}"))
    assert "events_evidence" in steps


# ---------------------------------------------------------------- the fold


def _evidence(job: str, at: NodeRef, time_s: float, outcome: AttemptState = AttemptState.LOST) -> Evidence:
    return Evidence(time_s=time_s, job=JobId(job), at=at, outcome=outcome, again=True, reason="disk full")


def _suspected(told: list[Evidence], now_s: float) -> dict[NodeRef, float]:
    return {one.at: one.until_s for one in Avoidance(told).of_all(now_s, COUNTS)}


def test_job_keeps_away_longer_from_time_to_time() -> None:
    told = [_evidence("a", BAD, float(time)) for time in range(4)]
    found = [Avoidance(told[: count + 1]).of_job(JobId("a"))[0] for count in range(4)]
    assert [one.until_s - place for place, one in enumerate(found)] == [ELSEWHERE.wait_s(n) for n in range(1, 5)]
    assert [one.again_s - place for place, one in enumerate(found)] == [AGAIN.wait_s(n) for n in range(1, 5)]


def test_node_is_avoided_once_enough_jobs_were_lost_there_alone() -> None:
    assert _suspected([_evidence("a", BAD, 1.0), _evidence("a", BAD, 2.0)], 3.0) == {}, "one job says little"
    both = [_evidence("a", BAD, 1.0), _evidence("b", BAD, 2.0)]
    assert _suspected(both, 3.0) == {BAD: 2.0 + RESTS.first_s}
    assert _suspected([*both, _evidence("b", GOOD, 3.0)], 4.0) == {}, "b was lost elsewhere too"
    more = [*both, _evidence("c", BAD, 3.0), _evidence("d", BAD, 4.0)]
    assert _suspected(more, 5.0) == {BAD: 4.0 + RESTS.wait_s(3)}
    assert _suspected(both, 3.0 + RESTS.first_s) == {}
    assert _suspected(both, 2.0 + FRESH_S) == {}


def test_success_shrinks_what_stands_against_a_node() -> None:
    told = [_evidence(job, BAD, 1.0 + place) for place, job in enumerate("abc")]
    well = [_evidence("d", BAD, 5.0, AttemptState.SUCCEEDED), _evidence("e", BAD, 6.0, AttemptState.SUCCEEDED)]
    assert _suspected(told, 10.0)[BAD] == 3.0 + RESTS.wait_s(2)
    assert _suspected([*told, well[0]], 10.0)[BAD] == 3.0 + RESTS.wait_s(1)
    assert _suspected([*told, *well], 10.0) == {}


def test_only_the_worst_nodes_of_a_cluster_are_avoided_by_all_and_never_its_last() -> None:
    nodes = [NodeRef(cluster=WEST, node=NodeName(f"n{index:02}")) for index in range(40)]
    told = [_evidence(f"{at.node}-{job}", at, 1.0) for at in nodes for job in range(2 + (at in nodes[7:10]))]
    found = Avoidance(told)
    assert [one.at for one in found.of_all(2.0, {WEST: 40})] == [nodes[0], *nodes[7:10]]
    assert [one.at for one in found.of_all(2.0, {WEST: 2})] == [nodes[7]]
    assert found.of_all(2.0, {WEST: 1}) == ()
    assert found.of_all(2.0, {}) == ()


def test_node_is_avoided_no_longer_for_a_clock_that_was_set_back() -> None:
    found = Avoidance([_evidence("a", BAD, 9_001.0), _evidence("b", BAD, 9_002.0)])
    assert found.set_back(10_000.0) == set()
    assert found.set_back(5.0) == {"a", "b"}
    assert {one.at: one.until_s for one in found.of_all(6.0, COUNTS)} == {BAD: 5.0 + RESTS.first_s}


def test_cluster_that_took_a_job_back_is_avoided_no_longer_for_a_clock_that_was_set_back() -> None:
    taken = Past().with_attempt(chip_s=1.0, granted_s=9_000.0, ended_s=9_001.0, displaced=True, taken_by=WEST)
    assert taken.set_back(9_002.0) == taken
    assert taken.set_back(5.0).avoid == {WEST: 5.0 + AVOIDED.first_s}
    assert taken.set_back(5.0).evicted_s == 5.0


def test_old_evidence_is_forgotten() -> None:
    found = Avoidance([_evidence("a", BAD, 0.0)])
    found.forget(REMEMBERED_S - 1.0)
    assert found.of_job(JobId("a"))
    found.forget(REMEMBERED_S)
    assert not found.of_job(JobId("a"))
    assert DAY_S < REMEMBERED_S


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 3), st.booleans()), max_size=30))
def test_avoidance_is_bounded_and_a_success_never_makes_it_longer(steps: list[tuple[str, int, bool]]) -> None:
    told = [
        _evidence(
            job,
            NodeRef(cluster=WEST, node=NodeName(f"n{node}")),
            float(place),
            AttemptState.LOST if lost else AttemptState.SUCCEEDED,
        )
        for place, (job, node, lost) in enumerate(steps)
    ]
    now_s = float(len(steps))
    before = _suspected(told, now_s)
    assert all(now_s < until_s <= now_s + RESTS.cap_s for until_s in before.values())
    for node in range(4):
        at = NodeRef(cluster=WEST, node=NodeName(f"n{node}"))
        after = _suspected([*told, _evidence("z", at, now_s, AttemptState.SUCCEEDED)], now_s)
        assert after.get(at, 0.0) <= before.get(at, 0.0) or at not in before
    assert SUSPECTS_MIN >= 2


@given(st.lists(st.sampled_from([None, BAD, GOOD]), max_size=12), st.integers(1, 6))
def test_losses_that_count_are_all_but_a_few_at_one_node(where: list[NodeRef | None], attempts_max: int) -> None:
    losses = [LostAttempt(reason="", at=at) for at in where]
    count = counted(losses, attempts_max=attempts_max)
    assert len(losses) - SPARED_MAX <= count <= len(losses)
    if {BAD, GOOD} <= set(where) or attempts_max == 1:
        assert count == len(losses)
