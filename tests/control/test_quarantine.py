"""Quarantine in the loop: what is seen of nodes closes them once a rule acts, here and at their engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from tests.control.told_of_nodes import fault, well

from mainspring.control import Caller
from mainspring.control.api_metrics import Metrics
from mainspring.control.health.quarantines import QUARANTINE_S
from mainspring.control.loop.nodes.known import OwnKnowledge
from mainspring.control.store.schema import health_events
from mainspring.domain.answers import ClosureKind, NewClosure, Reason
from mainspring.domain.ids import ClusterName, NodeName
from mainspring.domain.job import LAB
from mainspring.domain.life import AttemptState, JobState
from mainspring.domain.team import TeamRole
from mainspring.domain.wire import HealthBatch

if TYPE_CHECKING:
    from tests.control.conftest import World

    from mainspring.domain.hardware.health import HealthEvent

OPS = Caller(role=TeamRole.OPERATOR, team=LAB, holder="olga")


def tell(world: World, *events: HealthEvent) -> None:
    world.control.care.tell(HealthBatch(events=events), OPS)


def act(world: World, rule: str = "fatal") -> None:
    world.control.care.promote(rule, Reason(reason="measured"), OPS)


def condition(world: World, node: str) -> tuple[str, str]:
    """What a node's engine says of it by itself."""
    found = next(one for one in world.clusters[ClusterName(_cluster(node))].inventory().nodes if one.name == node)
    return found.condition.value, found.condition_owner


def kinds(world: World) -> list[str]:
    names = ("node_closed", "node_opened", "breaker_opened", "breaker_reset", "health_rule_promoted")
    return [event.kind for event in world.control.events() if event.kind in names]


def open_of(world: World) -> list[tuple[str, str, str]]:
    return [(one.node, one.owner, one.kind.value) for one in world.control.care.closures()]


def _cluster(node: str) -> str:
    return node.partition("-")[0]


def test_a_rule_in_shadow_closes_nothing_and_no_job_dies_for_it(world: World) -> None:
    job = world.submit(world.spec(replicas=2))
    world.run(job)
    at = world.job(job).attempts[-1]
    node = next(iter(world.orders_of(job).values())).nodes[0]
    tell(world, fault(node, cluster=at.cluster, at_s=world.clock.now_s()))
    world.tick(5)
    assert open_of(world) == []
    assert condition(world, node) == ("ready", "")
    assert [one.id for one in world.job(job).attempts] == [at.id]
    (incident,) = world.control.care.incidents()
    assert (incident.kind.value, incident.rule, incident.done) == ("node", "fatal", "shadow")
    rule = next(one for one in world.control.care.rules() if one.name == "fatal")
    assert ([one.node for one in rule.found], rule.found_count) == ([node], 1)


def test_a_fatal_event_closes_its_node_moves_its_job_and_is_released_by_a_word(world: World) -> None:
    job = world.submit(world.spec(replicas=1))
    world.run(job)
    first = world.job(job).attempts[-1]
    node = next(iter(world.orders_of(job).values())).nodes[0]
    act(world)
    tell(world, fault(node, cluster=first.cluster, at_s=world.clock.now_s()))
    world.tick(2)
    assert open_of(world) == [(node, "health", "quarantine")]
    assert condition(world, node) == ("cordoned", "health")
    (closure,) = world.control.care.closures()
    assert (closure.rule, closure.on_engine, len(closure.evidence)) == ("fatal", True, 1)
    assert closure.until_s == pytest.approx(world.clock.now_s() + QUARANTINE_S, abs=60.0)
    world.tick(4)
    ended = world.job(job).attempts[0]
    assert (ended.state, "drained by health" in ended.reason) == (AttemptState.CANCELLED, True)
    again = world.job(job).attempts[-1]
    assert again.id != first.id
    assert node not in next(iter(world.orders_of(job).values())).nodes
    assert world.job(job).state in (JobState.STARTING, JobState.RUNNING)
    world.control.care.open(first.cluster, node, OPS, reason="the riser was loose")
    world.tick(3)
    assert condition(world, node) == ("ready", "")
    assert open_of(world) == [], "what was seen before is held against it no more"
    assert [one.on_engine for one in world.control.care.closures(past=True)] == [False]
    tell(world, fault(node, cluster=first.cluster, at_s=world.clock.now_s()))
    world.tick(2)
    assert open_of(world) == [(node, "health", "quarantine")], "what is seen after is"
    assert kinds(world) == ["health_rule_promoted", "node_closed", "node_opened", "node_closed"]


def test_why_says_that_a_node_is_in_quarantine(world: World) -> None:
    world.tick()
    act(world)
    for node in ("east-0", "east-1"):
        world.control.care.close("east", node, NewClosure(kind=ClosureKind.QUARANTINE, reason="burn-in failed"), OPS)
    world.tick(2)
    waits = world.submit(world.spec(roles=1, replicas=4))
    other = world.submit(world.spec(replicas=4))
    world.tick(2)
    assert world.job(waits).state is JobState.STARTING, "west has room for it"
    told = [str(hold) for hold in world.control.questions.why(other).holds]
    assert "node east-0 of east is drained by olga: quarantine: burn-in failed" in told


def test_who_only_changes_a_quarantine_or_lets_its_time_pass_has_not_looked_at_its_node(world: World) -> None:
    world.tick()
    act(world)
    tell(world, fault("west-0", cluster="west", at_s=world.clock.now_s()))
    world.tick(2)
    asked = NewClosure(kind=ClosureKind.QUARANTINE, reason="burn-in", hours=0.01)
    world.control.care.close("west", "west-0", asked, OPS)
    world.control.care.close("west", "west-0", NewClosure(kind=asked.kind, reason="burn-in 2", hours=0.02), OPS)
    assert world.control.care.closures()[0].reason == "burn-in 2"
    world.tick(4, seconds=30.0)
    assert open_of(world) == [("west-0", "health", "quarantine")]
    world.loop.resign()
    world.restart()
    world.tick(2)
    assert open_of(world) == [("west-0", "health", "quarantine")], "a new leader folds the same"
    namesake = Caller(role=TeamRole.OPERATOR, team=LAB, holder="health")
    world.control.care.close("west", "west-1", NewClosure(kind=ClosureKind.CORDON, reason="mine"), namesake)
    world.tick(3)
    assert ("west-1", "health, a person", "cordon") in open_of(world), "no rule opens what a person closed"


def test_a_watcher_that_takes_its_fault_back_opens_the_node(world: World) -> None:
    world.tick()
    act(world)
    tell(world, fault("west-0", cluster="west", at_s=world.clock.now_s()))
    world.tick(2)
    tell(world, well("west-0", cluster="west", at_s=world.clock.now_s()))
    world.tick(3)
    assert open_of(world) == []
    assert condition(world, "west-0") == ("ready", "")
    assert [one.ended_by for one in world.control.care.closures(past=True)] == ["health"]


def test_a_rule_that_is_back_in_shadow_opens_what_it_closed(world: World) -> None:
    world.tick()
    act(world)
    tell(world, fault("west-0", cluster="west", at_s=world.clock.now_s()))
    world.tick(2)
    world.control.care.demote("fatal", OPS, reason="it was wrong")
    world.tick(3)
    assert open_of(world) == []
    assert condition(world, "west-0") == ("ready", "")


def test_a_foreign_cordon_is_never_touched(world: World) -> None:
    world.tick()
    act(world)
    world.west.cordon(NodeName("west-0"), owner="somebody", reason="theirs")
    tell(world, fault("west-0", cluster="west", at_s=world.clock.now_s()))
    world.tick(3)
    assert condition(world, "west-0") == ("cordoned", "somebody")
    (closure,) = world.control.care.closures()
    assert not closure.on_engine
    assert "somebody" in closure.refused
    world.control.care.open("west", "west-0", OPS, reason="well")
    world.tick(3)
    assert condition(world, "west-0") == ("cordoned", "somebody")


def test_a_cordon_lets_what_runs_go_on_and_ends_at_its_time(world: World) -> None:
    job = world.submit(world.spec(replicas=1))
    world.run(job)
    at = world.job(job).attempts[-1]
    node = next(iter(world.orders_of(job).values())).nodes[0]
    asked = NewClosure(kind=ClosureKind.CORDON, reason="look at its fan", hours=1.0)
    world.control.care.close(at.cluster, node, asked, OPS)
    world.tick(3)
    assert condition(world, node) == ("cordoned", "olga")
    assert world.job(job).attempts[-1].state is AttemptState.RUNNING
    world.clock.advance(3_600.0)
    world.beat(job)
    world.tick(3)
    assert open_of(world) == []
    assert condition(world, node) == ("ready", "")
    assert kinds(world) == ["node_closed", "node_opened"]


def test_the_oldest_of_several_closures_is_the_one_that_an_engine_shows(world: World) -> None:
    world.tick()
    act(world)
    world.control.care.close("west", "west-0", NewClosure(kind=ClosureKind.CORDON, reason="a fan"), OPS)
    world.tick(2)
    tell(world, fault("west-0", cluster="west", at_s=world.clock.now_s()))
    world.tick(2)
    assert condition(world, "west-0") == ("cordoned", "olga")
    assert len(open_of(world)) == 2
    world.control.care.open("west", "west-0", OPS, kind=ClosureKind.CORDON, reason="turned out to be fine")
    world.tick(3)
    assert condition(world, "west-0") == ("cordoned", "health")


def test_the_breaker_keeps_everything_as_it_is_until_somebody_resets_it(world: World) -> None:
    world.tick()
    act(world)
    tell(world, *(fault(f"west-{index}", cluster="west", at_s=world.clock.now_s()) for index in range(4)))
    world.tick(3)
    assert sorted(open_of(world)) == [("west-0", "health", "quarantine"), ("west-1", "health", "quarantine")]
    incidents = world.control.care.incidents(cluster="west")
    assert (incidents[0].kind.value, incidents[0].done) == ("breaker", "held")
    tell(world, well("west-0", cluster="west", at_s=world.clock.now_s()))
    world.tick(3)
    world.clock.advance(1_000.0)
    world.tick(3)
    assert len(open_of(world)) == 2, "nothing is opened either"
    assert kinds(world).count("breaker_opened") == 1
    check = next(one for one in world.control.health().checks if one.name == "breaker of west")
    assert (check.status.value, "3 of 4 nodes" in check.words) == ("degraded", True)
    shown = Metrics(world.control).read(OPS, "")[0].decode()
    assert 'mainspring_breaker_open{cluster="west"} 1.0' in shown
    assert 'mainspring_breaker_open{cluster="east"} 0.0' in shown
    assert 'mainspring_nodes_closed{by="health",closure="quarantine",cluster="west"} 2.0' in shown
    assert 'mainspring_nodes_health{cluster="west",state="failed"} 3.0' in shown
    world.restart()
    world.tick(3)
    assert len(open_of(world)) == 2, "nor after a new start"
    world.control.care.reset_breaker("west", OPS, reason="two had lost power")
    world.tick(3)
    assert {node for node, _, _ in open_of(world)} >= {"west-1", "west-2"}
    assert ("west-0", "health", "quarantine") not in open_of(world)
    assert "breaker_reset" in kinds(world)


def test_a_new_controller_folds_the_same_and_closes_nothing_twice(world: World) -> None:
    world.tick()
    act(world)
    tell(world, fault("west-0", cluster="west", at_s=world.clock.now_s()), fault("west-1", cluster="west", fatal=False))
    world.tick(3)
    before = (world.control.care.closures(), world.control.questions.nodes("west"))
    world.loop.resign()
    world.restart()
    world.tick(3)
    assert (world.control.care.closures(), world.control.questions.nodes("west")) == before
    assert kinds(world).count("node_closed") == 1


def test_a_cordon_that_an_engine_lost_is_told_again_and_one_that_died_half_told_is_taken_back(world: World) -> None:
    world.tick()
    world.control.care.close("west", "west-0", NewClosure(kind=ClosureKind.CORDON, reason="a fan"), OPS)
    world.tick(2)
    world.west.uncordon(NodeName("west-0"), owner="olga")
    world.tick(2)
    assert condition(world, "west-0") == ("ready", "")
    world.tick(2, seconds=100.0)
    world.tick(2)
    assert condition(world, "west-0") == ("cordoned", "olga")
    world.control.care.close("west", "west-1", NewClosure(kind=ClosureKind.CORDON, reason="a fan"), OPS)
    for step in world.loop.steps():
        if step.value == "acted":
            break  # The engine has it, and the controller dies before it could write that.
    assert condition(world, "west-1") == ("cordoned", "olga")
    for node in ("west-0", "west-1"):
        world.control.care.open("west", node, OPS, reason="well")
    world.loop.resign()
    world.restart()
    world.tick(3)
    assert [condition(world, node) for node in ("west-0", "west-1")] == [("ready", "")] * 2


def test_an_engine_that_does_not_answer_is_told_later(world: World) -> None:
    world.tick()
    world.west.answering = False
    world.control.care.close("west", "west-0", NewClosure(kind=ClosureKind.CORDON, reason="a fan"), OPS)
    world.tick(2)
    assert open_of(world) == [("west-0", "olga", "cordon")]
    world.west.answering = True
    world.tick(3)
    assert condition(world, "west-0") == ("cordoned", "olga")


def test_a_cordon_that_comes_late_is_taken_back(world: World) -> None:
    world.tick()
    world.control.care.close("west", "west-0", NewClosure(kind=ClosureKind.CORDON, reason="a fan"), OPS)
    world.tick(2)
    world.control.care.open("west", "west-0", OPS, reason="well")
    world.tick(3)
    world.west.cordon(NodeName("west-0"), owner="olga", reason="a fan")  # Told before, heard only now.
    world.west.cordon(NodeName("west-1"), owner="olga", reason="her own doing, never through us")
    world.tick(3, seconds=60.0)
    world.tick(2)
    assert condition(world, "west-0") == ("ready", "")
    assert condition(world, "west-1") == ("cordoned", "olga")


def test_what_the_runtime_knows_becomes_health_events(world: World) -> None:
    job = world.submit(world.spec(replicas=2, attempts_max=4))
    world.run(job)
    at = world.job(job).attempts[-1]
    node = next(iter(world.orders_of(job).values())).nodes[0]
    world.beat(
        job,
        ("rank_slow", {"rank": 0, "node": node, "ratio": 2.5}),
        ("replicas_differ", {"generation": 1, "step": 9, "ranks": 3, "odd": "0", "nodes": node}),
        ("replicas_differ", {"generation": 1, "step": 12, "ranks": 2, "odd": "", "nodes": ""}),
        ("agent_quiet", {"agent": 0, "node": node}),
        ("agent_lost", {"agent": 0, "node": node}),
        ("rank_exited", {"generation": 1, "rank": 0, "exit_code": -11, "step": 3, "last_words": "secret words"}),
        ("hang", {"generation": 1, "step": 3, "silent_s": 90.0, "odd": "0", "evidence": "more secrets"}),
    )
    world.tick(2)
    told = {one.event.check: one.event for one in world.control.care.events()}
    assert sorted(told) == ["agent-lost", "hang", "quiet", "rank-exit", "replicas", "straggler"]
    assert {one.scope.node for one in told.values()} == {node}
    assert {(one.source.name, one.source.session, one.job) for one in told.values()} == {("runtime", at.id, job)}
    assert not [one for one in told.values() if "secret" in one.message], "whoever reads of nodes may not read of jobs"
    world.tick(2)
    with world.control.store.write() as connection:
        OwnKnowledge().take(connection, world.clock.now_s())
        assert connection.execute(sa.select(sa.func.count()).select_from(health_events)).scalar_one() == len(told)


def test_devices_that_compute_otherwise_become_health_events_fatal_where_that_is_certain(world: World) -> None:
    job = world.submit(world.spec(replicas=2, attempts_max=4))
    world.run(job)
    node = next(iter(world.orders_of(job).values())).nodes[0]
    known: dict[str, str | int | float] = {
        "generation": 1,
        "step": 250,
        "ranks": "0",
        "nodes": node,
        "agreed_step": 249,
    }
    world.beat(
        job,
        ("devices_differ", {**known, "device": "device 3 of rank 0 (secret words)", "certain": True}),
        ("devices_differ", {**known, "device": "device 5 of rank 0 (H100)", "again": True}),
        (
            "devices_differ",
            {**known, "ranks": "0, 1", "nodes": f"{node}, other", "device": "device 0 of rank 0, device"},
        ),
        ("devices_differ", {**known, "ranks": "0, 1", "nodes": f"{node}, other", "certain": True}),
        ("replicas_differ", {"generation": 1, "step": 9, "ranks": 5, "odd": "0, 1", "nodes": f"{node}, other"}),
        ("devices_differ", {**known, "ranks": "", "nodes": ""}),
    )
    world.tick(2)
    events = [one.event for one in world.control.care.events()]
    told = sorted(events, key=lambda one: (one.source.sequence, one.source.session))
    assert [(one.check, one.fatal, one.scope.node, one.repair.value) for one in told] == [
        ("sdc", True, node, "call people"),
        ("sdc", False, node, "reset device"),
        ("sdc", False, node, "reset device"),
        ("sdc", False, "other", "reset device"),
        ("sdc", True, node, "call people"),
        ("sdc", True, "other", "call people"),
        ("replicas", True, node, "call people"),
        ("replicas", True, "other", "call people"),
    ], "each node that an event names is told of, once"
    first, second, *rest = [one.message.split(" c")[0].split(" did")[0] for one in told]
    assert (first, second) == ("device 3", "device 5")
    assert not [one for one in rest if "device 0" in one], "whose that is, nobody knows"
    assert not [one for one in told if "secret" in one.message]
    health = world.control.care.node(world.job(job).attempts[-1].cluster, node).health
    assert health is not None
    assert health.state.value == "failed"


def test_a_lead_that_is_not_heard_of_makes_its_node_suspect_until_it_speaks_again(world: World) -> None:
    job = world.submit(world.spec(replicas=1))
    world.run(job)
    for _ in range(10):
        world.tick()
        world.beat(job)
    at = world.job(job).attempts[-1]
    (order,) = world.orders_of(job).values()

    def told() -> list[tuple[str, bool]]:
        return [(one.event.check, one.event.healthy) for one in world.control.care.events()]

    def state() -> str:
        health = world.control.care.node(at.cluster, order.nodes[0]).health
        return "" if health is None else health.state.value

    assert told() == []
    world.tick(6)
    assert told() == []
    world.tick(2)
    assert told() == [("quiet", False)]
    assert state() == "suspect"
    assert world.job(job).state is JobState.RUNNING, "nothing of its run follows"
    world.beat(job)
    world.tick(2)
    assert told() == [("quiet", True), ("quiet", False)]
    assert state() == "sound"


def test_losses_of_many_jobs_at_a_node_make_it_suspect(world: World) -> None:
    for _ in range(3):
        job = world.submit(world.spec(replicas=1, attempts_max=1))
        world.run(job)
        world.end_agents(job, exit_code=1, reason="the machine died")
        world.tick(4)
    found = [one for node in ("east", "west") for one in world.control.questions.nodes(node) if one.health is not None]
    assert {one.check for each in world.control.care.events() for one in [each.event]} == {"attempt-lost"}
    assert sum(len(world.control.care.events(cluster=name)) for name in ("east", "west")) == 3
    assert all(one.health is not None and one.health.state.value in ("sound", "suspect") for one in found)


def test_what_an_engine_says_of_a_node_is_told_and_stays_a_shadow(world: World) -> None:
    world.tick(2)
    act(world)
    world.west.inner.node_down(NodeName("west-0"), "NHC: ib0 is down")
    world.tick(3)
    (told,) = world.control.care.events()
    assert (told.event.source.name, told.event.codes, told.event.message) == ("engine", ("down",), "NHC: ib0 is down")
    assert open_of(world) == [], "its engine has closed it by itself"
    world.west.inner.node_up(NodeName("west-0"))
    world.tick(3)
    assert [one.event.healthy for one in world.control.care.events()] == [True, False]


def test_samples_and_closures_go_once_they_are_old_and_what_stands_stays(world: World) -> None:
    world.tick()
    tell(world, fault("west-0", cluster="west", at_s=world.clock.now_s()))
    for node in ("west-1", "west-2"):
        world.control.care.close("west", node, NewClosure(kind=ClosureKind.CORDON, reason="a fan"), OPS)
    world.control.care.open("west", "west-1", OPS, reason="well")
    world.tick(3)
    world.clock.advance(29 * 86_400.0)
    assert world.control.retention.sweep(at_once=True).health_events == 0
    world.clock.advance(2 * 86_400.0)
    tell(world, fault("west-3", cluster="west", at_s=world.clock.now_s()))
    assert world.control.retention.sweep(at_once=True).health_events == 1
    assert [one.event.scope.node for one in world.control.care.events()] == ["west-3"]
    world.clock.advance(400 * 86_400.0)
    assert world.control.retention.sweep(at_once=True).closures == 1
    assert [one.node for one in world.control.care.closures(past=True)] == ["west-2"]
