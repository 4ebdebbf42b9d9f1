"""Nodes: who may tell what of them, what people say of them, and what is shown."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from fastapi.testclient import TestClient
from tests.control.told_of_nodes import fault

from mainspring.control import Caller, create_app
from mainspring.control.service.nodes.care import FEW
from mainspring.domain.answers import ClosureKind, NewClosure, Reason
from mainspring.domain.codec import encode
from mainspring.domain.errors import Conflict, InvalidInput, NotAllowed, NotFound
from mainspring.domain.hardware.health import HealthState, Repair, ScopeKind
from mainspring.domain.ids import ClusterName, NodeName
from mainspring.domain.job import LAB, NO_NODE
from mainspring.domain.team import TeamRole
from mainspring.domain.wire import HEALTH_BATCH_MAX, HealthBatch

if TYPE_CHECKING:
    from tests.control.calling import Api
    from tests.control.conftest import World

OPS = Caller(role=TeamRole.OPERATOR, team=LAB, holder="olga")


def test_what_is_told_twice_is_there_once_and_newest_first(world: World) -> None:
    world.tick()
    told = [fault("east-0"), fault("east-1", check="disk"), fault("west-0", cluster="west")]
    first = world.control.care.tell(HealthBatch(events=tuple(told[:2])), OPS)
    again = world.control.care.tell(HealthBatch(events=tuple(told)), OPS)
    assert ((first.taken, first.repeated), (again.taken, again.repeated)) == ((2, 0), (1, 2))
    shown = world.control.care.events()
    assert [one.event.scope.node for one in shown] == ["west-0", "east-1", "east-0"]
    assert {one.teller for one in shown} == {"olga"}
    assert [one.event.check for one in world.control.care.events(cluster="east", node="east-1")] == ["disk"]
    assert [one.number for one in world.control.care.events(before=shown[0].number, limit=1)] == [shown[1].number]
    with pytest.raises(InvalidInput, match="its cluster"):
        world.control.care.events(node="east-1")


def test_what_is_told_again_in_other_words_is_as_the_store_has_it(world: World) -> None:
    world.tick()
    now_s = world.clock.now_s()
    mild = fault("east-0", at_s=now_s, fatal=False, repair=Repair.NONE, number=1 << 41)
    grave = replace(mild, fatal=True, repair=Repair.RESTART_NODE)
    for told in ((mild,), (grave, fault("east-1", at_s=now_s)), (replace(grave, check="disk"),)):
        world.control.care.tell(HealthBatch(events=told), OPS)
    world.tick()
    found = {name: world.control.care.node("east", name).health for name in ("east-0", "east-1")}
    assert {name: one.state for name, one in found.items() if one} == {
        "east-0": HealthState.SOUND,
        "east-1": HealthState.FAILED,
    }


def test_engine_tells_of_a_node_that_is_down_and_well_again_and_not_of_new_ones_that_are_well(world: World) -> None:
    node = NodeName("west-0")
    world.tick(3)
    assert world.control.care.events() == ()
    world.west.inner.node_down(node, "no power")
    world.tick(3)
    world.west.inner.node_up(node)
    world.tick(3)
    told = [one.event for one in world.control.care.events() if one.event.check == "condition"]
    assert [(one.scope.node, one.healthy) for one in told] == [(node, True), (node, False)]


def test_one_watcher_cannot_take_the_words_of_another(world: World) -> None:
    world.tick()
    batch = HealthBatch(events=(fault("east-0", number=1 << 40),))
    eve = Caller(role=TeamRole.WATCHER, team=LAB, holder="eve")
    assert world.control.care.tell(batch, eve).taken == 1
    assert world.control.care.tell(batch, OPS).taken == 1, "of the same number, told by somebody else"


def test_nothing_is_from_later_than_now(world: World) -> None:
    world.tick()
    world.control.care.tell(HealthBatch(events=(fault("east-0", at_s=9e10),)), OPS)
    assert world.control.care.events()[0].event.at_s == world.clock.now_s()


def test_agents_speak_of_their_own_nodes_alone_and_for_their_own_job(world: World) -> None:
    job = world.submit(world.spec(replicas=1))
    world.run(job)
    (order,) = world.orders_of(job).values()
    agent = world.control.entered(order.token, attempt=order.attempt)
    cluster, own = world.job(job).attempts[-1].cluster, order.nodes[0]
    other = next(node.name for node in world.clusters[cluster].inventory().nodes if node.name != own)
    told = fault(own, cluster=cluster, kind=ScopeKind.DEVICE, part="GPU-1")
    assert world.control.care.tell(HealthBatch(events=(told,)), agent).taken == 1
    shown = world.control.care.events()[0]
    assert (shown.teller, shown.event.job) == (order.attempt, job)
    elsewhere = next(name for name in world.clusters if name != cluster)
    for strange in (fault(other, cluster=cluster), fault(own, cluster=elsewhere)):
        with pytest.raises(NotAllowed, match="one of its own nodes"):
            world.control.care.tell(HealthBatch(events=(told, strange)), agent)
    scope = replace(told.scope, kind=ScopeKind.DOMAIN, node=NO_NODE, part="rack-1")
    with pytest.raises(NotAllowed, match="one of its own nodes"):
        world.control.care.tell(HealthBatch(events=(replace(told, scope=scope),)), agent)
    assert len(world.control.care.events()) == 1, "a batch is taken whole or not at all"
    world.succeed(job)
    with pytest.raises(NotAllowed):
        world.control.care.tell(HealthBatch(events=(told,)), agent)


def test_batches_are_bounded_and_of_known_clusters(world: World) -> None:
    world.tick()
    with pytest.raises(InvalidInput, match="1 to 500"):
        HealthBatch(events=())
    with pytest.raises(InvalidInput, match="1 to 500"):
        HealthBatch(events=tuple(fault("east-0") for _ in range(HEALTH_BATCH_MAX + 1)))
    with pytest.raises(NotFound, match="east"):
        world.control.care.tell(HealthBatch(events=(fault("east-0", cluster="eats"),)), OPS)
    for role in (TeamRole.MEMBER, TeamRole.AUDITOR, TeamRole.VIEWER):
        with pytest.raises(NotAllowed):
            world.control.care.tell(HealthBatch(events=(fault("east-0"),)), Caller(role=role, team=LAB))


def test_a_watcher_over_http_tells_and_can_do_nothing_else(api: Api) -> None:
    api.world.tick()
    headers = {"Authorization": f"Bearer {api.world.token(TeamRole.WATCHER, holder='gpu-watch')}"}
    body = {
        "events": [
            {
                "source": {"name": "kernel-log", "session": "s1", "sequence": 1},
                "at_s": 1.0,
                "scope": {"kind": "device", "cluster": "east", "node": "east-0", "part": "GPU-1"},
                "check": "xid",
                "codes": ["79"],
                "fatal": True,
                "strategy": "act",
            }
        ]
    }
    assert api.http.post("/v1/health/events", json=body, headers=headers).json() == {"taken": 1, "repeated": 0}
    assert api.http.post("/v1/health/events", json=body, headers=headers).json() == {"taken": 0, "repeated": 1}
    for path in (
        "/v1/jobs",
        "/v1/clusters",
        "/v1/health/events",
        "/v1/closures",
        "/v1/tokens",
        "/v1/audit",
        "/metrics",
    ):
        assert api.http.get(path, headers=headers).status_code == 403, path
    nonsense: tuple[Any, ...] = (
        {},
        {"events": []},
        {"events": [{}]},
        {"events": body["events"] * 501},
        [],
        "x",
        {"events": "x"},
    )
    for garbage in nonsense:
        assert api.http.post("/v1/health/events", json=garbage, headers=headers).status_code == 400
    bad = {"events": [{**body["events"][0], "scope": {"kind": "node", "cluster": "east", "node": "../etc"}}]}
    assert api.http.post("/v1/health/events", json=bad, headers=headers).status_code == 400


def test_batch_of_many_events_waits_for_its_turn_over_http_and_one_of_few_does_not(world: World) -> None:
    world.tick()
    app, headers = create_app(world.control), {"Authorization": f"Bearer {world.token(TeamRole.WATCHER)}"}

    def tell(count: int, message: str = "") -> int:
        events = tuple(replace(fault("east-0", at_s=1.0), message=message) for _ in range(count))
        answer = http.post("/v1/health/events", content=encode(HealthBatch(events=events)), headers=headers)
        return int(answer.status_code)

    with TestClient(app) as http, ThreadPoolExecutor(1) as others:
        assert http.portal is not None
        turns, holders = app.state.telling, range(int(app.state.telling.total_tokens))
        for holder in holders:
            http.portal.call(turns.acquire_on_behalf_of, holder)
        few = others.submit(tell, FEW, "word " * 100)
        wait([few], timeout=60.0)
        passed_by = few.done()
        many = others.submit(tell, FEW + 1)
        while not wait([many], timeout=0.01).done and not turns.statistics().tasks_waiting:
            pass
        waited = not many.done()
        for holder in holders:
            http.portal.call(turns.release_on_behalf_of, holder)
        assert (passed_by, waited, few.result(), many.result()) == (True, True, 200, 200)


def test_a_closed_node_is_shown_and_opened_with_a_reason(world: World) -> None:
    world.tick()
    care = world.control.care
    made = care.close("east", "east-0", NewClosure(kind=ClosureKind.CORDON, reason="a fan"), OPS)
    assert care.close("east", "east-0", NewClosure(kind=ClosureKind.CORDON, reason="a fan"), OPS) == made
    care.close("east", "east-0", NewClosure(kind=ClosureKind.QUARANTINE, reason="odd", hours=2.0), OPS)
    shown = care.node("east", "east-0")
    assert [(one.kind.value, one.reason) for one in shown.closures] == [("cordon", "a fan"), ("quarantine", "odd")]
    assert shown.closures[1].until_s == pytest.approx(world.clock.now_s() + 7_200.0)
    assert (shown.node.condition.value, shown.node.condition_owner) == ("cordoned", "olga")
    assert [len(one.closures) for one in world.control.questions.nodes("east")] == [2, 0]
    opened = care.open("east", "east-0", OPS, kind=ClosureKind.QUARANTINE, reason="it was the cable")
    assert [(one.kind.value, one.ended_by, one.ended_reason) for one in opened] == [
        ("quarantine", "olga", "it was the cable")
    ]
    assert [one.kind.value for one in care.closures()] == ["cordon"]
    assert len(care.closures(past=True)) == 2
    with pytest.raises(InvalidInput, match="why"):
        care.open("east", "east-0", OPS, reason=" ")
    assert care.open("east", "east-1", OPS, reason="well") == ()
    history = [(one.what, one.by) for one in care.history("east", "east-0")]
    assert ("quarantine ended", "olga") in history
    assert ("cordon", "olga") in history
    assert history[-1] == ("ready", "")


def test_what_is_not_there_cannot_be_closed(world: World) -> None:
    world.tick()
    asked = NewClosure(kind=ClosureKind.DRAIN, reason="a fan")
    with pytest.raises(NotFound, match="east-1"):
        world.control.care.close("east", "east-11", asked, OPS)
    with pytest.raises(NotFound, match="east"):
        world.control.care.close("eats", "east-1", asked, OPS)
    with pytest.raises(NotFound):
        world.control.care.history("east", "east-11")
    with pytest.raises(InvalidInput, match="hours"):
        NewClosure(kind=ClosureKind.DRAIN, reason="a fan", hours=0.0)
    with pytest.raises(NotAllowed):
        world.control.care.close("east", "east-1", asked, Caller(role=TeamRole.MEMBER, team=LAB, holder="bo"))
    assert world.control.care.closures() == ()


def test_only_rules_that_find_nodes_failed_may_act(world: World) -> None:
    care = world.control.care
    assert {one.strategy.value for one in care.rules()} == {"shadow"}
    with pytest.raises(NotFound, match="fatal"):
        care.promote("fatle", _reason(), OPS)
    with pytest.raises(Conflict, match="suspect"):
        care.promote("lemon", _reason(), OPS)
    made = care.promote("fatal", _reason(), OPS)
    assert (made.strategy.value, made.by, made.reason) == ("act", "olga", "precision 1.0 of 40")
    assert [line.action for line in world.control.people.audit()][-1] == "promote a rule"
    assert care.demote("fatal", OPS, reason="wrong twice").strategy.value == "shadow"
    with pytest.raises(InvalidInput):
        care.demote("fatal", OPS, reason="")
    with pytest.raises(NotFound):
        care.reset_breaker("eats", OPS, reason="looked")
    world.tick()
    assert care.reset_breaker("east", OPS, reason="looked") == ()
    assert ClusterName("east") in world.clusters


def _reason() -> Reason:
    return Reason(reason="precision 1.0 of 40")
