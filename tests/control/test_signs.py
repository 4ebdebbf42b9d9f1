"""What others say of nodes through their clusters: told once, taken back, and nothing done of it by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.control.conftest import World
from tests.control.told_of_nodes import fault

from mainspring.control.health.lemons import lemon_score
from mainspring.control.health.nodes import HealthFold
from mainspring.control.health.rules import RULES, acting
from mainspring.control.loop.nodes.signs import SAID_AGAIN_S, TAKEN_MAX
from mainspring.domain.fleet import NodeRef, NodeSign
from mainspring.domain.hardware.health import CONDITIONS, HealthEvent, HealthState, Repair, Strategy
from mainspring.domain.ids import ClusterName, NodeName

DEADLOCK = NodeSign(
    node=NodeName("west-1"),
    check="kernel-deadlock",
    code="KernelDeadlock",
    message="KernelDeadlock: DockerHung: task docker:1 blocked for more than 120 seconds",
    repair=Repair.RESTART_NODE,
)


def told(world: World) -> list[HealthEvent]:
    """What was told of it, in order."""
    return [one.event for one in reversed(world.control.care.events()) if one.event.source.name == CONDITIONS]


def state(world: World, node: str) -> tuple[HealthState, str]:
    """How a node is, and whether anything is placed there."""
    seen = world.control.care.node(ClusterName("west"), NodeName(node))
    health = HealthState.SOUND if seen.health is None else seen.health.state
    return health, seen.node.condition.value


def test_sign_is_told_once_shown_in_shadow_and_taken_back(world: World) -> None:
    world.west.inner.say(DEADLOCK)
    world.tick(4)
    (seen,) = told(world)
    assert (seen.check, seen.codes, seen.fatal, seen.repair) == (
        "kernel-deadlock", ("KernelDeadlock",), False, Repair.RESTART_NODE,
    )  # fmt: skip
    assert (seen.scope.cluster, seen.scope.node, seen.message) == ("west", "west-1", DEADLOCK.message)
    assert state(world, "west-1") == (HealthState.FAILED, "ready"), "a rule in shadow closes nothing"
    assert state(world, "west-2") == (HealthState.SOUND, "ready")
    world.west.inner.say()
    world.tick(8)
    assert [one.healthy for one in told(world)] == [False, True]
    assert state(world, "west-1") == (HealthState.SOUND, "ready")


def test_sign_is_known_to_the_next_leader_and_what_went_meanwhile_is_taken_back(world: World) -> None:
    overlay = replace(DEADLOCK, node=NodeName("west-2"), check="overlay-corrupt", code="CorruptDockerOverlay2")
    world.west.inner.say(DEADLOCK, overlay)
    world.tick(3)
    assert len(told(world)) == 2
    world.west.inner.say(overlay)
    world.restart()
    world.tick(4)
    assert [(one.check, one.healthy) for one in told(world)] == [
        ("kernel-deadlock", False),
        ("overlay-corrupt", False),
        ("kernel-deadlock", True),
    ]


def test_sign_of_which_nobody_can_tell_now_neither_begins_nor_ends(world: World) -> None:
    unknown, other = replace(DEADLOCK, stands=False), replace(DEADLOCK, check="xfs-shutdown", stands=False)
    for signs in ((DEADLOCK,), (unknown, other), (DEADLOCK,)):
        world.west.inner.say(*signs)
        world.tick(3)
    assert [(one.check, one.healthy) for one in told(world)] == [("kernel-deadlock", False)]


def test_sign_that_stays_is_said_again_and_one_that_asks_for_more_at_once(world: World) -> None:
    world.west.inner.say(DEADLOCK)
    world.tick(3)
    world.tick(2, seconds=SAID_AGAIN_S / 2)
    world.tick(3)
    assert [one.healthy for one in told(world)] == [False, False]
    world.west.inner.say(replace(DEADLOCK, repair=Repair.CALL_PEOPLE))
    world.tick(2)
    assert [one.repair for one in told(world)] == [Repair.RESTART_NODE, Repair.RESTART_NODE, Repair.CALL_PEOPLE]


def test_signs_of_a_whole_fleet_come_over_several_ticks(world: World) -> None:
    many = tuple(replace(DEADLOCK, check=f"check-{number:04}") for number in range(TAKEN_MAX + 7))
    world.west.inner.say(*many)
    world.tick()
    first = len(told_all(world))
    world.tick(3)
    assert 0 < first <= TAKEN_MAX
    assert sorted(one.check for one in told_all(world)) == [one.check for one in many]


def told_all(world: World) -> list[HealthEvent]:
    """All that was told of it, page by page."""
    found, before = list[HealthEvent](), None
    while page := world.control.care.events(before=before):
        found += [one.event for one in page if one.event.source.name == CONDITIONS]
        before = page[-1].number
    return found


# ---------------------------------------------------------------- what rules make of it

AT = NodeRef(cluster=ClusterName("east"), node=NodeName("n1"))


def said(at_s: float, repair: Repair = Repair.RESTART_NODE) -> HealthEvent:
    """A sign, as it is told."""
    made = fault("n1", at_s=at_s, check="kernel-deadlock", fatal=False, repair=repair)
    return replace(made, source=replace(made.source, name=CONDITIONS))


@pytest.mark.parametrize("promoted", ["condition", "fatal", "asks-for-more"])
def test_only_its_own_rule_closes_a_node_for_what_others_say(promoted: str) -> None:
    fold = HealthFold(acting(RULES, [promoted]))
    fold.add(said(1_000.0))
    health = fold.of(AT, 1_060.0)
    assert [one.rule for one in health.findings] == ["condition", "asks-for-more"]
    assert any(one.state is HealthState.FAILED for one in health.acting) == (promoted == "condition")
    assert all(one.strategy is Strategy.SHADOW for one in health.findings if one.rule != promoted)


@pytest.mark.parametrize("repair", [Repair.NONE, Repair.RESET_DEVICE])
def test_what_asks_for_less_than_a_restart_fails_no_node(repair: Repair) -> None:
    fold = HealthFold()
    fold.add(said(1_000.0, repair))
    assert fold.of(AT, 1_060.0).state is (HealthState.SUSPECT if repair is Repair.RESET_DEVICE else HealthState.SOUND)


def test_what_others_say_once_more_makes_no_lemon() -> None:
    own = [fault("n1", at_s=day * 86_400.0, check="filesystem") for day in range(1, 3)]
    both = [*own, *(said(one.at_s + 90.0) for one in own)]
    assert lemon_score(own) == lemon_score(both) > 0
