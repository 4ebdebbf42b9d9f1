"""Robots with the shipping agent against the server's own code: enrolled, told what to install, and noticed."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from mainspring.control.service.robots.devices import DeviceCall, sleep_text
from mainspring.control.store.robots.records import change_action
from mainspring.control.store.settings import Settings
from mainspring.domain.answers import ActionState, NewInstallation, NewRobot, Revocation, RobotState
from mainspring.domain.errors import Conflict, InvalidInput, NotAllowed, TooManyRequests
from mainspring.robots.edge.device import IDENTITY, enrol
from mainspring.robots.edge.visits import RETRY_S
from tests.robots.edge_world import LossyDisk
from tests.robots.fleet_world import EdgeRobot, FleetWorld


@pytest.fixture
def fleet(tmp_path: Path) -> FleetWorld:
    return FleetWorld(tmp_path)


def install(fleet: FleetWorld, robot: str, release: str = "arm", **words: bool) -> int:
    return fleet.control.robots.install(robot, NewInstallation(release=release, **words)).number


def plain_call(robot: str, secret: str) -> DeviceCall:
    """As who knows of a robot no more than a token calls."""
    told = f"TargetToken {secret}"
    return DeviceCall(
        robot=robot, method="GET", path="/", authorization=told, device="", address="127.0.0.1", base="http://server"
    )


def state(fleet: FleetWorld, robot: str) -> ActionState:
    return fleet.control.robots.actions(robot, limit=1)[0].state


def test_robot_is_enrolled_once_and_told_what_it_is(fleet: FleetWorld) -> None:
    token = fleet.control.robots.invite(NewRobot(name="arm-1", group="lab", labels={"site": "b"})).secret
    robot = EdgeRobot(fleet.wire, fleet.world.clock, "arm-1", token)
    robot.visits.visit()
    view = fleet.control.robots.show("arm-1")
    assert (view.group, view.labels, view.state) == ("lab", {"site": "b"}, RobotState.ACTIVE)
    assert view.report is not None
    assert view.report.runtime == "0.3.0"
    with pytest.raises(NotAllowed, match="a token that was used"):
        enrol(LossyDisk(1), fleet.wire, "http://server", token)
    again = enrol(robot.disk, fleet.wire, "http://server", token)  # The answer was lost: the same key asks again.
    assert again.token != robot.found.token


@pytest.mark.parametrize(("poll_s", "told"), [(60.0, "00:01:00"), (2.4, "00:00:02"), (43_200.0, "12:00:00")])
def test_robots_call_as_often_as_the_server_is_set_to(tmp_path: Path, poll_s: float, told: str) -> None:
    fleet = FleetWorld(tmp_path)
    fleet.world.restart(settings=Settings(robot_poll_s=poll_s))
    fleet.wire.control = fleet.control
    robot = fleet.robot("arm-1")
    answer = robot.client.poll()
    assert (robot.found.poll_s, answer.sleep_s) == (poll_s, float(round(poll_s)))
    assert sleep_text(poll_s) == told
    assert robot.visits.visit() == round(poll_s)


def test_one_time_token_ends(fleet: FleetWorld) -> None:
    token = fleet.control.robots.invite(NewRobot(name="arm-1", hours=1.0)).secret
    fleet.world.clock.advance(3_601.0)
    with pytest.raises(NotAllowed, match="has ended"):
        enrol(LossyDisk(), fleet.wire, "http://server", token)


def test_release_goes_from_the_server_to_a_healthy_commit(fleet: FleetWorld) -> None:
    robot = fleet.robot("arm-1")
    view = fleet.publish(b"weights", b"more")
    install(fleet, "arm-1")
    robot.go()
    robot.go()
    assert robot.target == view.release.target
    assert robot.arm.contents()[1:] == (b"weights", b"more")
    assert state(fleet, "arm-1") is ActionState.DONE
    assert fleet.control.robots.show("arm-1").runs == "arm@1"


def test_release_that_is_not_healthy_is_a_failure_with_its_words(fleet: FleetWorld) -> None:
    robot = fleet.robot("arm-1")
    fleet.publish(b"good")
    install(fleet, "arm-1")
    robot.go(visits=2)
    fleet.publish(b"bad")
    install(fleet, "arm-1")
    robot.go(visits=2)
    assert (robot.target, state(fleet, "arm-1")) == ("releases/arm.1.json", ActionState.FAILED)
    assert "while proving" in fleet.control.robots.actions("arm-1")[0].words


def test_cancelled_installation_leaves_what_ran(fleet: FleetWorld) -> None:
    robot = fleet.robot("arm-1")
    fleet.publish(b"good")
    install(fleet, "arm-1")
    robot.arm.busy = "it moves"
    robot.go(steps=30)
    assert state(fleet, "arm-1") is ActionState.OPEN
    fleet.control.robots.cancel("arm-1")
    robot.go()
    assert (robot.target, state(fleet, "arm-1")) == ("", ActionState.CANCELLED)


def test_installation_that_is_cancelled_or_replaced_restarts_no_robot_that_moves(fleet: FleetWorld) -> None:
    robot = fleet.robot("arm-1")
    fleet.publish(b"good")
    install(fleet, "arm-1")
    robot.go(visits=2)
    robot.arm.busy, starts = "it moves", robot.arm.starts
    fleet.publish(b"second")
    install(fleet, "arm-1", "arm@2")
    robot.go(steps=3)
    fleet.control.robots.cancel("arm-1")
    robot.go(steps=3)
    assert state(fleet, "arm-1") is ActionState.CANCELLED
    number = install(fleet, "arm-1", "arm@2")
    robot.go(steps=3)
    with fleet.control.store.write() as connection:  # The server has forgotten, as after a restore.
        change_action(connection, number, state=ActionState.CANCELLED)
    fleet.publish(b"third")
    install(fleet, "arm-1", "arm@3")
    robot.go(steps=3)
    assert robot.agent.journal.wanted == "releases/arm.3.json"
    assert (robot.arm.starts, robot.target) == (starts, "releases/arm.1.json")


def test_disk_that_is_full_cuts_no_robot_off_from_what_it_is_told(fleet: FleetWorld) -> None:
    robot = fleet.robot("arm-1")
    fleet.publish(b"good")
    install(fleet, "arm-1")
    robot.go(visits=2)
    fleet.publish(b"second")
    install(fleet, "arm-1", "arm@2")
    robot.go(steps=1)
    left, robot.disk.free = robot.disk.free, 0
    robot.agent.step()
    assert len(robot.agent.journal.told) == 1  # It was given up for want of room.
    assert (robot.visits.visit(), state(fleet, "arm-1")) == (60.0, ActionState.FAILED)
    calls = fleet.wire.calls
    robot.visits.visit()
    assert (robot.visits.why, fleet.wire.calls) == ("", calls + 1)  # It asks, and says nothing twice.
    robot.disk.free = left
    robot.agent.step()
    robot.boot()
    assert not robot.agent.journal.told


def test_cancel_that_comes_too_late_is_answered_with_the_commit(fleet: FleetWorld) -> None:
    robot = fleet.robot("arm-1")
    fleet.publish(b"good")
    install(fleet, "arm-1")
    robot.go()
    fleet.wire.away = True
    robot.go()
    fleet.control.robots.cancel("arm-1")
    fleet.wire.away = False
    robot.go()
    assert (robot.target, state(fleet, "arm-1")) == ("releases/arm.1.json", ActionState.DONE)


def test_installation_waits_until_somebody_at_the_robot_confirms_it(fleet: FleetWorld) -> None:
    robot = fleet.robot("arm-1")
    fleet.publish(b"good")
    number = install(fleet, "arm-1", confirm=True)
    robot.go(visits=2)
    assert (robot.target, state(fleet, "arm-1")) == ("", ActionState.UNCONFIRMED)
    robot.client.confirmed(str(number), "by ada")
    robot.go(visits=2)
    assert (robot.target, state(fleet, "arm-1")) == ("releases/arm.1.json", ActionState.DONE)


def test_release_that_does_not_fit_or_is_not_signed_is_refused(fleet: FleetWorld) -> None:
    fleet.robot("arm-1")
    fleet.publish(b"good", runtime="9.0.0")
    with pytest.raises(InvalidInput, match=r"wants 9\.0\.0"):
        install(fleet, "arm-1")
    fleet.control.robots.invite(NewRobot(name="arm-2", plain=True))
    fleet.control.releases.revoke("arm@1", Revocation(reason="a test"))
    with pytest.raises(Conflict, match="revoked"):
        install(fleet, "arm-2", "arm@1")


def test_two_devices_with_one_key_are_noticed(fleet: FleetWorld) -> None:
    robot = fleet.robot("arm-1")
    first = robot.visits
    robot.boot()  # The copy of its disk starts; then the first one calls again.
    robot.visits.visit()
    assert fleet.control.robots.show("arm-1").clash_s is None
    first.visit()
    assert fleet.control.robots.show("arm-1").clash_s == fleet.world.clock.now_s()
    token = fleet.control.robots.invite(NewRobot(name="arm-2")).secret
    with pytest.raises(Conflict, match="the key of robot arm-1"):
        enrol(robot.disk, fleet.wire, "http://server", token)


def test_token_without_the_key_lets_nobody_in(fleet: FleetWorld) -> None:
    robot = fleet.robot("arm-1")
    thief = LossyDisk(5)
    kept = robot.disk.read(IDENTITY)
    assert kept is not None
    thief.append(IDENTITY, kept)
    stolen = EdgeRobot.__new__(EdgeRobot)
    stolen.name, stolen.wire, stolen.clock, stolen.disk = "arm-1", fleet.wire, fleet.world.clock, thief
    stolen.arm, stolen.tallies, stolen.starts, stolen.sick, stolen.found = robot.arm, (), 9, False, robot.found
    stolen.boot()
    stolen.visits.visit()
    assert "no signature of its key" in stolen.visits.why


def test_revoked_robot_goes_on_with_what_it_runs(fleet: FleetWorld) -> None:
    robot = fleet.robot("arm-1")
    fleet.publish(b"good")
    install(fleet, "arm-1")
    robot.go(visits=2)
    fleet.control.robots.revoke("arm-1", reason="sold")
    robot.go()
    assert "its TargetToken" in robot.visits.why
    assert robot.target == "releases/arm.1.json"


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_revoked_robot_comes_back_by_a_token_made_afterwards_alone(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    fleet = FleetWorld(tmp_path, url="" if kind == "sqlite" else request.getfixturevalue("postgres_url"))
    robots, disk = fleet.control.robots, LossyDisk(1)
    used = robots.invite(NewRobot(name="arm-1")).secret
    enrol(disk, fleet.wire, "http://server", used)
    robots.revoke("arm-1", reason="stolen")
    with pytest.raises(NotAllowed, match="a token that was used"):
        enrol(disk, fleet.wire, "http://server", used)
    unused = robots.invite(NewRobot(name="arm-1")).secret
    robots.revoke("arm-1")
    with pytest.raises(NotAllowed, match="a token that was used"):
        enrol(disk, fleet.wire, "http://server", unused)
    assert robots.show("arm-1").state is RobotState.REVOKED
    enrol(disk, fleet.wire, "http://server", robots.invite(NewRobot(name="arm-1")).secret)
    assert robots.show("arm-1").state is RobotState.ACTIVE
    fleet.control.store.close()


def test_robot_that_tells_how_far_it_is_as_it_is_cancelled_is_asked_to_give_up(fleet: FleetWorld) -> None:
    control = fleet.control
    secret = control.robots.invite(NewRobot(name="panel", plain=True)).secret
    fleet.publish(b"good")
    action = str(install(fleet, "panel"))
    call = plain_call("panel", secret)
    control.devices.deployment(call, action)

    cancelled: list[str] = []

    def cancel(connection: sa.Connection, cursor: object, statement: str, *_: object) -> None:
        """Somebody cancels it once it was read, before anything of it is written."""
        if not cancelled and "FROM robot_actions" in statement and not connection.get_execution_options().get("writes"):
            cancelled.append(statement)
            control.robots.cancel("panel")

    sa.event.listen(control.store.engine, "after_cursor_execute", cancel)
    assert control.devices.feedback(call, action, b'{"status": {"execution": "proceeding", "details": ["50 %"]}}')
    assert cancelled
    shown = control.robots.actions("panel")[0]
    assert (shown.state, shown.words) == (ActionState.CANCELLING, "50 %")
    assert "cancelAction" in control.devices.poll(call)["_links"]


def test_server_that_forgot_is_told_again_what_was_done(fleet: FleetWorld) -> None:
    robot = fleet.robot("arm-1")
    fleet.publish(b"good")
    number = install(fleet, "arm-1")
    robot.go()
    with fleet.control.store.write() as connection:
        change_action(connection, number, state=ActionState.OPEN)
    starts = robot.arm.runs
    robot.go()
    assert (state(fleet, "arm-1"), robot.arm.runs) == (ActionState.DONE, starts)


def test_robot_that_calls_one_upon_another_is_held_back_alone(fleet: FleetWorld) -> None:
    robot, other = fleet.robot("arm-1"), fleet.robot("arm-2")
    for _ in range(130):
        robot.visits.visit()
    assert "one upon another" in robot.visits.why
    other.visits.visit()
    assert other.visits.why == ""
    fleet.world.clock.advance(60.0)
    robot.visits.visit()
    assert robot.visits.why == ""


@pytest.mark.parametrize(("address", "shown"), [("192.0.2.7", ""), ("127.0.0.1", "a guess"), ("192.0.2.7", "its own")])
def test_stranger_that_calls_as_a_robot_uses_up_none_of_its_calls(fleet: FleetWorld, address: str, shown: str) -> None:
    robot = fleet.robot("arm-1")
    secret = {"its own": robot.found.token}.get(shown, shown)
    stranger = replace(plain_call("arm-1", secret), address=address)
    for _ in range(130):
        with suppress(NotAllowed, TooManyRequests):
            fleet.control.devices.poll(stranger)
    with pytest.raises(TooManyRequests, match="one upon another"):
        fleet.control.devices.poll(stranger)
    robot.visits.visit()
    assert robot.visits.why == ""


def test_line_that_loses_every_second_call_costs_no_visit(fleet: FleetWorld) -> None:
    robot = fleet.robot("arm-1")
    robot.sick = True  # So that there is something to report.
    fleet.wire.calls, fleet.wire.loses = 0, True
    assert robot.visits.visit() > RETRY_S
    assert (robot.visits.why, fleet.wire.calls) == ("", 4)
    fleet.wire.away = True
    assert robot.visits.visit() == RETRY_S
    assert "no line" in robot.visits.why
