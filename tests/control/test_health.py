"""What probes are told: the truth about the loop, the lead, the store and every cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.control.loop.loop import Step
from mainspring.control.service.health import HUNG_S, LATE_S
from mainspring.control.store.store import Lease
from mainspring.domain.answers import HealthStatus
from mainspring.domain.errors import Busy, StorageFull, Unavailable

if TYPE_CHECKING:
    from tests.control.conftest import World


def _bad(world: World) -> dict[str, str]:
    return {check.name: check.words for check in world.control.health().checks if check.words}


def _alive(world: World) -> bool:
    return world.control.pulse.alive


def _led(world: World) -> None:
    world.tick()
    for step in (Step.LEADING, Step.RECORDED):
        world.control.pulse.stepped(step)


def test_a_controller_that_leads_and_hears_every_cluster_is_ok(world: World) -> None:
    assert _bad(world)["loop"] == "has not begun"
    _led(world)
    assert world.control.health().status is HealthStatus.OK
    assert {check.name for check in world.control.health().checks} >= {"loop", "lead", "store", "cluster west"}


def test_a_loop_that_does_not_move_is_no_longer_alive(world: World) -> None:
    _led(world)
    world.clock.advance(HUNG_S)
    assert _alive(world)
    world.clock.advance(1.0)
    assert not _alive(world)
    assert _bad(world)["loop"] == "has not moved for 91 s"
    assert world.control.health().status is HealthStatus.FAILING
    world.control.pulse.stepped(Step.OBSERVED)
    assert _alive(world)


def test_an_error_of_a_tick_is_told_until_one_ends_well(world: World) -> None:
    _led(world)
    world.control.pulse.failed(StorageFull("write", got="no room"))
    world.control.pulse.stepped(Step.LEADING)
    assert "no room" in _bad(world)["store"]
    assert world.control.health().status is HealthStatus.FAILING
    world.control.pulse.stepped(Step.RECORDED)
    assert _bad(world) == {}


def test_a_controller_that_follows_is_as_well_as_the_lease_that_it_follows(world: World) -> None:
    _led(world)
    world.control.pulse.stepped(Step.FOLLOWING)
    assert _bad(world) == {}
    world.clock.advance(world.control.settings.leader_lease_s + LATE_S)
    assert "which this controller follows, ran out" in _bad(world)["lead"]
    world.loop.resign()
    assert _bad(world) == {"lead": "nobody leads"}


def test_a_leader_that_ends_is_not_ready_and_those_that_follow_it_are(world: World) -> None:
    _led(world)
    world.loop.resign()
    assert _bad(world) == {}
    world.control.pulse.ending = True
    assert _bad(world) == {"server": "it ends, and gives up the lead"}
    with pytest.raises(Busy, match="ends"):
        world.control.pulse.require_staying("follow events")


def test_a_controller_whose_lease_ran_out_long_ago_says_so(world: World) -> None:
    _led(world)
    world.clock.advance(world.control.settings.leader_lease_s + LATE_S - 2.0)
    assert _bad(world) == {}
    world.clock.advance(2.0)
    assert _bad(world) == {"lead": "its lease ran out 31 s ago"}


def test_a_silent_cluster_degrades_the_controller_and_says_for_how_long(world: World) -> None:
    world.west.inner.answering = False
    _led(world)
    assert _bad(world)["cluster west"] == "has never answered this controller"
    world.west.inner.answering = True
    _led(world)
    world.west.inner.answering = False
    world.clock.advance(38.0)
    _led(world)
    assert _bad(world)["cluster west"] == "has not answered for 40 s"
    assert world.control.health().status is HealthStatus.DEGRADED


def test_a_store_that_does_not_answer_makes_the_controller_unready_and_not_dead(world: World) -> None:
    _led(world)

    def silent() -> Lease:
        raise Unavailable("read the store", got="no answer")

    health = world.control.pulse.health(silent, world.control.restores.waiting, world.control.care.open_breakers)
    assert {check.name: check.words for check in health.checks if check.words} == {
        "lead": "its lease cannot be read",
        "store": "could not read the store; got no answer",
    }
    assert health.status is HealthStatus.FAILING
    assert _alive(world)
