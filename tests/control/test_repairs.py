"""Repairs in the loop: hooks of a site are called one after the other, and a node comes back by a burn-in it passed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from tests.control.told_of_nodes import fault
from tests.receivers import posts

from mainspring.app.server.leading.repairs import HookThreads
from mainspring.control import Settings
from mainspring.control.service.nodes.repairing import HookCall, Hooks, HookSaid, Repairs
from mainspring.domain import codec
from mainspring.domain.answers import ClosureKind, NewClosure, NewMaintenance, NewVerdict, Reason, RepairOutcome
from mainspring.domain.errors import Conflict, InvalidInput, NotFound
from mainspring.domain.fleet import Node
from mainspring.domain.hardware.care import BreakerLimits, BurnIn, CareRules, RepairHook, Rung
from mainspring.domain.hardware.health import Repair
from mainspring.domain.ids import ChipName, ClusterName, JobId, NodeName
from mainspring.domain.life import AttemptState, JobState
from mainspring.domain.wire import HealthBatch

if TYPE_CHECKING:
    from tests.control.conftest import World

DONE, FAILED = RepairOutcome.DONE, RepairOutcome.FAILED
HOOKS = {Rung.RESET: RepairHook(command=("reset",), limit_s=60.0), Rung.REBOOT: RepairHook(url="https://ops/reboot")}
TRIAL = BurnIn(minutes=1.0, limit_minutes=10.0, command=("burn-in", "{node}"))


def placed(world: World, job: JobId) -> set[NodeName]:
    """Where a job's newest attempt is, while it lives."""
    attempts = world.job(job).attempts
    live = bool(attempts) and attempts[-1].state in (AttemptState.GRANTED, AttemptState.RUNNING)
    return {node for order in world.orders_of(job).values() for node in order.nodes} if live else set()


class Called:
    """Hooks that say what a test wants them to."""

    def __init__(self) -> None:
        self.calls: list[HookCall] = []
        self.told: dict[int, HookSaid] = {}

    def call(self, call: HookCall) -> None:
        self.calls.append(call)

    def said(self) -> Mapping[int, HookSaid]:
        return self.told

    def says(self, outcome: RepairOutcome, words: str = "") -> None:
        self.told[self.calls[-1].number] = HookSaid(outcome=outcome, words=words)


class Ward:
    """A world in which nodes are repaired."""

    def __init__(self, world: World, rules: CareRules, hooks: Hooks | None = None) -> None:
        self.world, self.hooks = world, Called()
        world.restart(settings=Settings(care=rules))
        control = world.control

        @contextmanager
        def write() -> Iterator[Any]:
            with control.store.write() as connection:
                yield connection

        self.repairs = Repairs(
            control.store, control.fleet, world.clock, control.dice, rules, hooks or self.hooks, write
        )
        world.tick(2)
        control.care.promote("fatal", Reason(reason="measured"))

    def fail(self, node: str = "west-0") -> None:
        told = fault(node, cluster="west", at_s=self.world.clock.now_s(), repair=Repair.RESET_DEVICE)
        self.world.control.care.tell(HealthBatch(events=(told,)))
        self.turn()

    def turn(self, count: int = 1, *, seconds: float = 1.0) -> None:
        for _ in range(count):
            self.world.tick(seconds=seconds)
            self.repairs.step()

    def until_tried(self) -> None:
        """Until the time of its quarantine is over, and there is a burn-in."""
        for _ in range(60):
            if not self.burn_ins():
                self.turn(seconds=3_600.0)

    @property
    def closed(self) -> list[str]:
        return [one.node for one in self.world.control.care.closures()]

    def steps(self, node: str = "west-0") -> list[str]:
        return [one.what for one in self.world.control.care.history("west", node)][::-1]

    def burn_ins(self) -> list[Any]:
        return [one for one in self.world.control.jobs() if one.spec.name.startswith("burn-in-")]


@pytest.mark.slow
def test_no_key_that_somebody_chose_keeps_a_burn_in_from_beginning(world: World) -> None:
    ward = Ward(world, CareRules(burn_in=TRIAL))
    ward.fail()
    for closure in range(3):
        world.submit(world.spec("mine"), key=f"burn-in {closure} 0")
    ward.until_tried()
    assert len(ward.burn_ins()) == 1


def test_a_node_is_reset_then_started_anew_and_comes_back_by_a_burn_in_that_it_passed(world: World) -> None:
    ward = Ward(world, CareRules(repairs=HOOKS, burn_in=TRIAL))
    ward.fail()
    ward.turn(2)
    (call,) = ward.hooks.calls
    assert (call.rung, call.cluster, call.node, call.hook.command) == (Rung.RESET, "west", "west-0", ("reset",))
    told = codec.decode(dict[str, Any], call.body)
    assert (told["node"], told["step"], told["rule"]) == ("west-0", "reset", "fatal")
    ward.hooks.says(FAILED, "exit code 3")
    ward.turn(2)
    assert [one.rung for one in ward.hooks.calls] == [Rung.RESET, Rung.REBOOT]
    ward.hooks.says(DONE, "HTTP 200")
    ward.turn(3)
    (job,) = ward.burn_ins()
    world.run(job.id)
    (order,) = world.orders_of(job.id).values()
    assert order.nodes == (NodeName("west-0"),)
    ward.turn(5)
    assert world.job(job.id).state is JobState.RUNNING, "the quarantine drains all but its burn-in"
    assert ward.closed == ["west-0"]
    world.succeed(job.id)
    ward.turn(3)
    assert ward.closed == []
    assert [one for one in ward.steps() if one not in ("ready", "cordoned")] == [
        "quarantine", "reset begun", "reset failed", "reboot begun", "reboot done", "burn-in begun", "burn-in done",
        "quarantine ended",
    ]  # fmt: skip
    world.tick(5, seconds=10.0)
    assert ward.closed == [], "what was seen before is held against it no more"
    rule = next(one for one in world.control.care.rules() if one.name == "fatal")
    assert (rule.right, rule.wrong, rule.unjudged) == (1, 0, 0), "it was repaired"
    kinds = [event.kind for event in world.control.events()]
    assert kinds.count("node_repair_begun") == kinds.count("node_repair_ended") == 3
    assert len([one for one in world.control.people.audit() if one.action == "repair a node"]) == 3


def test_a_hook_s_server_is_posted_to_and_one_that_says_no_leads_to_the_next(world: World) -> None:
    with posts(status=503) as resets, posts() as reboots:
        hooks = {
            Rung.RESET: RepairHook(url=f"http://127.0.0.1:{resets.port}/reset"),
            Rung.REBOOT: RepairHook(url=f"http://127.0.0.1:{reboots.port}/reboot"),
        }
        ward = Ward(world, CareRules(repairs=hooks, burn_in=TRIAL), HookThreads())
        ward.fail()
        for _ in range(6_000):
            if "reboot done" in ward.steps():
                break
            Event().wait(0.01)
            ward.turn(seconds=0.1)
        assert [one for one in ward.steps() if one.startswith("re")][1:] == [
            "reset begun", "reset failed", "reboot begun", "reboot done",
        ]  # fmt: skip
        assert (resets.paths, reboots.paths) == (["/reset"], ["/reboot"])
        ((headers, body),) = reboots.taken
    told = codec.decode(dict[str, Any], body)
    assert (told["cluster"], told["node"], told["step"], told["rule"]) == ("west", "west-0", "reboot", "fatal")
    assert headers["Idempotency-Key"] == str(told["id"])


def test_a_node_that_fails_its_burn_in_stays_closed_when_nothing_is_left_to_try(world: World) -> None:
    ward = Ward(world, CareRules(burn_in=TRIAL))
    ward.fail()
    ward.turn(3)
    assert ward.burn_ins() == [], "its watcher says that it is of no use"
    ward.until_tried()
    (job,) = ward.burn_ins()
    world.run(job.id)
    world.end_agents(job.id, exit_code=1)
    ward.turn(4)
    ward.turn(20, seconds=3_600.0)
    assert ward.closed == ["west-0"]
    assert "burn-in failed" in ward.steps()
    assert len(ward.burn_ins()) == 1
    rule = next(one for one in world.control.care.rules() if one.name == "fatal")
    assert (rule.right, rule.wrong, rule.unjudged) == (1, 0, 0), "its node failed its burn-in"


def test_a_hook_that_nobody_hears_of_again_is_late_at_its_limit(world: World) -> None:
    ward = Ward(world, CareRules(repairs=HOOKS))
    ward.fail()
    ward.turn(2)
    ward.hooks = Called()  # Another leader, who knows nothing of the call.
    ward.repairs._hooks = ward.hooks
    ward.turn(2, seconds=29.0)
    assert ward.hooks.calls == []
    ward.turn(2, seconds=10.0)
    assert "reset late" in ward.steps()
    assert [one.rung for one in ward.hooks.calls] == [Rung.REBOOT]


def test_a_burn_in_runs_nowhere_else_and_nothing_else_runs_with_it(world: World) -> None:
    ward = Ward(world, CareRules(burn_in=TRIAL))
    ward.fail()
    world.control.care.close("west", "west-1", NewClosure(kind=ClosureKind.CORDON, reason="a fan"))
    ward.until_tried()
    others = [world.submit(world.spec(replicas=1)) for _ in range(6)]
    ward.turn(3)
    (job,) = ward.burn_ins()
    at = {node for one in [*others, job.id] for order in world.orders_of(one).values() for node in order.nodes}
    (order,) = world.orders_of(job.id).values()
    assert order.nodes == (NodeName("west-0"),)
    assert "west-1" not in at
    assert all(NodeName("west-0") not in order.nodes for one in others for order in world.orders_of(one).values())


def test_nothing_is_repaired_that_people_closed_or_that_is_busy(world: World) -> None:
    ward = Ward(world, CareRules(repairs=HOOKS, burn_in=TRIAL))
    world.control.care.close("west", "west-1", NewClosure(kind=ClosureKind.QUARANTINE, reason="hers"))
    world.control.care.close("west", "west-0", NewClosure(kind=ClosureKind.CORDON, reason="his"))
    ward.fail()
    ward.turn(5)
    assert ward.hooks.calls == []
    assert ward.burn_ins() == []


def test_limits_of_a_cluster_s_breaker_are_its_own(world: World) -> None:
    ward = Ward(world, CareRules(breakers={ClusterName("west"): BreakerLimits(least=1)}))
    ward.fail("west-0")
    ward.fail("west-1")
    ward.turn(2)
    assert ward.closed == ["west-0"]
    assert world.control.care.open_breakers() == {
        "west": "2 of 4 nodes in 5 minutes; at most 1 are closed so",
    }


@pytest.mark.parametrize("new_nodes", [True, False])
def test_nodes_that_come_new_are_closed_until_they_passed(world: World, *, new_nodes: bool) -> None:
    ward = Ward(world, CareRules(burn_in=BurnIn(new_nodes=new_nodes, command=("burn-in",))))
    ward.turn(3)
    assert ward.closed == [], "a cluster that comes is not closed"
    ward.turn(seconds=7_200.0)
    world.west.inner.add_node(Node(name=NodeName("west-9"), chip=ChipName("gpu"), chips=1))
    ward.turn(4)
    assert ward.closed == (["west-9"] if new_nodes else [])
    assert [one.spec.name for one in ward.burn_ins()] == (["burn-in-west-9"] if new_nodes else [])


def test_a_rule_that_was_wrong_too_often_is_not_promoted_until_its_verdicts_say_otherwise(world: World) -> None:
    ward, care = Ward(world, CareRules()), world.control.care
    care.demote("fatal", reason="to be measured")
    for number in range(4):
        ward.fail(f"west-{number}")
    for number in range(1, 4):
        care.judging.judge("fatal", "west", f"west-{number}", NewVerdict(right=True, reason="looked"))
    seen = care.judging.judge("fatal", "west", "west-0", NewVerdict(right=False, reason="looked"))
    assert (seen.right, seen.wrong, seen.unjudged) == (3, 1, 0)
    care.promote("fatal", Reason(reason="four are few"))
    care.demote("fatal", reason="to be measured")
    for node in ("east-0",):
        care.tell(HealthBatch(events=(fault(node, at_s=world.clock.now_s()),)))
        ward.turn(2)
        care.judging.judge("fatal", "east", node, NewVerdict(right=False, reason="a cable that somebody pulled"))
    with pytest.raises(Conflict, match="right 3 of 5 times"):
        care.promote("fatal", Reason(reason="why not"))
    with pytest.raises(NotFound, match="never held there"):
        care.judging.judge("slow", "west", "west-0", NewVerdict(right=True, reason="looked"))


def test_nothing_starts_on_nodes_shortly_before_their_maintenance_and_what_runs_moves(world: World) -> None:
    world.tick(2)
    begins_s = world.clock.now_s() + 7_200.0
    asked = NewMaintenance(nodes=(NodeName("west-0"), NodeName("west-1")), from_s=begins_s, hours=1.0, reason="a fan")
    window = world.control.care.announcing.announce("west", asked)
    early = [world.submit(world.spec(replicas=1)) for _ in range(8)]
    world.tick(3)
    on = {node: one for one in early for node in placed(world, one)}
    assert "west-0" in on, "two hours before it anything may start"
    first = on[NodeName("west-0")]
    world.register(first)
    world.beat(first)
    world.tick(seconds=3_700.0)
    for one in early:
        if one != first:
            world.control.steering.stop(one)
    world.tick(4)
    late = [world.submit(world.spec(replicas=1)) for _ in range(8)]
    world.tick(3)
    held = {node for one in late for node in placed(world, one)}
    assert held >= {"west-2", "west-3"}
    assert not held & {"west-0", "west-1"}
    assert world.job(first).state is JobState.RUNNING
    world.tick(seconds=3_400.0)
    world.tick(2)
    assert "maintenance, announced by" in str([event.detail for event in world.control.events()])
    assert "west-0" not in placed(world, first)
    assert [one.number for one in world.control.care.announcing.windows()] == [window.number]
    world.tick(2, seconds=4_000.0)
    assert world.control.care.announcing.windows() == ()
    with pytest.raises(InvalidInput, match="over"):
        world.control.care.announcing.announce("west", asked)
    with pytest.raises(NotFound, match="west-77"):
        world.control.care.announcing.announce("west", replace(asked, nodes=(NodeName("west-77"),)))
