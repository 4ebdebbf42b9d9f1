"""Rollouts to robots with the shipping agent: rings, going back by itself, faults in the middle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from mainspring.control.service.robots.membership import LOOKED_MAX, KnownRollouts, RolloutHistory
from mainspring.control.service.robots.rollouts import Rollouts
from mainspring.control.store.robots.tables import rollout_events, rollouts
from mainspring.control.store.rows import text_of
from mainspring.domain.answers import (
    NewInstallation,
    NewRobot,
    NewRollout,
    RobotStanding,
    RobotTally,
    RolloutRules,
    RolloutState,
    RolloutWord,
)
from mainspring.domain.answers.policies.robots import POLL_S
from mainspring.domain.answers.policies.rollouts import RolloutEvent, RolloutEventKind
from mainspring.domain.errors import Conflict, InvalidInput, NotFound
from tests.robots.fleet_world import FleetWorld

RULES = RolloutRules(hours=0.0, unhealthy=2, watch_s=0.0)


class Rolling(FleetWorld):
    """Robots that run arm@1: one of group `lab`, four others."""

    def __init__(self, folder: Path, *, count: int = 5) -> None:
        super().__init__(folder)
        for number in range(count):
            self.robot(f"arm-{number}", group="" if number else "lab")
        self.publish(b"first")
        self.start(("all",), yes=True)
        self.turn(3)
        assert {robot.target for robot in self.robots.values()} == {"releases/arm.1.json"}

    @property
    def rollouts(self) -> Rollouts:
        return self.control.rollouts

    def start(self, rings: tuple[str, ...] = ("lab", "all"), *, yes: bool = False, rules: RolloutRules = RULES) -> str:
        number = str(self.rollouts.start(NewRollout(release="arm", rings=rings, rules=rules)).number)
        self.rollouts.step()
        if yes:
            self.rollouts.approve(number, RolloutWord())
        return number

    def turn(self, count: int = 1) -> None:
        for _ in range(count):
            for robot in self.robots.values():
                robot.go()
            self.rollouts.step()

    def state(self, number: str) -> RolloutState:
        return self.rollouts.show(number).state

    def runs(self) -> list[str]:
        return [robot.target.removeprefix("releases/arm.").removesuffix(".json") for robot in self.robots.values()]


@pytest.fixture
def fleet(tmp_path: Path) -> Rolling:
    return Rolling(tmp_path)


@pytest.mark.slow
def test_rings_follow_one_another_as_success_is_counted(fleet: Rolling) -> None:
    for robot in fleet.robots.values():
        robot.tallies = (RobotTally(target="releases/arm.1.json", episodes=200, successes=180),)
    fleet.turn()
    fleet.publish(b"second")
    number = fleet.start()
    fleet.turn(3)
    view = fleet.rollouts.show(number)
    assert fleet.runs() == ["2", "1", "1", "1", "1"]
    assert "more episodes" in view.rings[0].waits
    assert view.rings[0].missing
    lab = fleet.robots["arm-0"]
    lab.tallies = (*lab.tallies, RobotTally(target="releases/arm.2.json", episodes=900, successes=820))
    fleet.turn(4)
    assert (fleet.runs(), fleet.state(number)) == (["2"] * 5, RolloutState.DONE)


@pytest.mark.slow
def test_bad_release_goes_back_by_itself_before_others_have_it(fleet: Rolling) -> None:
    fleet.publish(b"bad")
    number = fleet.start(("all",))
    fleet.turn(3)
    assert (fleet.runs(), fleet.state(number)) == (["1"] * 5, RolloutState.WENT_BACK)
    assert "not healthy" in fleet.rollouts.show(number).why


@pytest.mark.slow
def test_release_that_sickens_later_is_taken_back_also_from_those_that_run_it(fleet: Rolling) -> None:
    fleet.publish(b"second")
    number = fleet.start(("60%", "all"))
    fleet.turn(3)
    new = [robot for robot in fleet.robots.values() if robot.target.endswith("2.json")]
    assert len(new) == 3
    for robot in new[:2]:
        robot.sick = True
    fleet.turn()
    for robot in new:
        robot.sick = False
    fleet.turn(3)
    assert (fleet.runs(), fleet.state(number)) == (["1"] * 5, RolloutState.WENT_BACK)


@pytest.mark.slow
def test_robot_that_fails_as_it_goes_back_is_asked_again_and_in_the_end_left(fleet: Rolling) -> None:
    """Whoever is sick whatever it runs cannot prove what it is to go back to."""
    fleet.publish(b"second")
    number = fleet.start(("all",))
    fleet.turn(3)
    once, never, *_ = fleet.robots.values()
    fleet.rollouts.roll_back(number, RolloutWord(reason="it drops cups"))
    once.arm.broken = never.arm.broken = True
    fleet.turn(2)
    once.arm.broken = False
    fleet.turn(2)
    assert fleet.runs() == ["1", "2", "1", "1", "1"]
    assert fleet.state(number) is RolloutState.GOING_BACK
    fleet.turn(5)
    assert fleet.state(number) is RolloutState.WENT_BACK
    assert [never.name] == [each.name for each in fleet.control.robots.ls() if each.runs == "arm@2"]


@pytest.mark.slow
def test_person_pauses_resumes_and_takes_back(fleet: Rolling) -> None:
    fleet.publish(b"second")
    number = fleet.start(("all",))
    fleet.rollouts.pause(number, RolloutWord(reason="lunch"))
    fleet.turn(2)
    assert fleet.runs() == ["1"] * 5
    fleet.rollouts.resume(number, RolloutWord())
    fleet.turn(3)
    assert (fleet.runs(), fleet.state(number)) == (["2"] * 5, RolloutState.DONE)
    fleet.rollouts.roll_back(number, RolloutWord(reason="it drops cups"))
    fleet.turn(3)
    assert (fleet.runs(), fleet.state(number)) == (["1"] * 5, RolloutState.WENT_BACK)
    with pytest.raises(Conflict, match="one that is went back"):
        fleet.rollouts.abort(number, RolloutWord())


@pytest.mark.slow
def test_server_that_is_killed_in_mid_rollout_goes_on_from_its_store(fleet: Rolling) -> None:
    fleet.publish(b"second")
    number = fleet.start(("lab", "all"), yes=True)
    for turn in range(8):
        fleet.world.control.store.close()
        fleet.world.restart()
        fleet.wire.control = fleet.world.control
        fleet.wire.away = turn == 1
        fleet.turn()
    assert (fleet.runs(), fleet.state(number)) == (["2"] * 5, RolloutState.DONE)


@pytest.mark.slow
def test_robot_that_is_away_is_not_waited_for_and_gets_it_when_it_is_back_after_a_year(fleet: Rolling) -> None:
    away = fleet.robots.pop("arm-4")
    fleet.publish(b"second")
    fleet.world.clock.advance(7_200.0)
    number = fleet.start(("lab", "all"), yes=True)
    fleet.turn(4)
    assert (fleet.runs(), fleet.state(number)) == (["2"] * 4, RolloutState.DONE)
    fleet.world.clock.advance(364 * 86_400.0)
    fleet.people.sign(*(fleet.control.releases.show(f"arm@{version}") for version in (1, 2)))
    away.go(visits=3)
    assert away.target == "releases/arm.2.json"


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["done", "cancelled"])
def test_robot_that_is_busy_as_its_ring_opens_gets_the_release_once_it_is_not(fleet: Rolling, ends: str) -> None:
    fleet.publish(b"second")
    fleet.control.robots.install("arm-0", NewInstallation(release="arm@1"))
    number = fleet.start(("lab", "all"), yes=True)
    assert fleet.rollouts.show(number).rings[0].waits == "1 robots"
    if ends == "cancelled":
        fleet.control.robots.cancel("arm-0")
    fleet.turn(7)
    assert (fleet.runs(), fleet.state(number)) == (["2"] * 5, RolloutState.DONE)
    offers = [action for action in fleet.control.robots.actions("arm-0") if action.release == "arm@2"]
    assert len(offers) == 1


@pytest.mark.slow
def test_robots_are_in_one_rollout_at_a_time_and_fit_what_they_get(fleet: Rolling) -> None:
    fleet.publish(b"second")
    number = fleet.start()
    with pytest.raises(Conflict, match=f"that rollout {number} of arm@2 has"):
        fleet.start(("all",))
    fleet.rollouts.abort(number, RolloutWord())
    fleet.publish(b"third", runtime="9.0.0")
    with pytest.raises(InvalidInput, match="5 robots that it does not fit"):
        fleet.start()
    with pytest.raises(NotFound, match="labb"):
        fleet.start(("labb",))
    fleet.control.robots.invite(NewRobot(name="plain", plain=True))
    with pytest.raises(InvalidInput, match="no robot"):
        fleet.rollouts.start(NewRollout(release="arm", rings=("all",), where="site=nowhere"))


@pytest.mark.slow
def test_robots_of_the_oldest_of_many_live_rollouts_show_their_ring(tmp_path: Path) -> None:
    fleet, groups = FleetWorld(tmp_path), [f"group-{number}" for number in range(LOOKED_MAX + 2)]
    for group in groups:
        fleet.robot(f"arm-{group}", group=group)
    fleet.publish(b"first")
    for group in groups:
        fleet.control.rollouts.start(NewRollout(release="arm", rings=(group,), rules=RULES))
    assert sorted(robot.ring for robot in fleet.control.robots.ls()) == sorted(groups)


@pytest.mark.slow
def test_rollout_is_refused_where_robots_that_call_seldom_would_count_as_away(fleet: Rolling) -> None:
    fleet.publish(b"second")
    rules = replace(RULES, offline_s=3 * POLL_S - 1)
    with pytest.raises(InvalidInput, match=r"--offline 180"):
        fleet.start(rules=rules)
    fleet.start(rules=replace(rules, offline_s=3 * POLL_S))


@pytest.mark.slow
def test_rollout_that_was_taken_back_is_not_remembered(fleet: Rolling) -> None:
    fleet.publish(b"second")

    def lost() -> None:
        with fleet.control.store.joined():
            fleet.start(("lab",))
            raise ConnectionError

    with pytest.raises(ConnectionError):
        lost()
    number = fleet.start(("all",))
    assert [ring.name for ring in fleet.rollouts.show(number).rings] == ["all"]


@pytest.mark.slow
def test_history_is_read_once_and_misses_nothing_that_was_kept_late(fleet: Rolling) -> None:
    known, store = KnownRollouts(), fleet.control.store
    fleet.publish(b"second")
    number = int(fleet.start(("all",)))

    def history() -> RolloutHistory:
        with store.read() as connection:
            rows = connection.execute(sa.select(rollouts).where(rollouts.c.number == number)).all()
            return known.histories(connection, rows)[number]

    def add(sequence: int, robot: str) -> None:
        event = RolloutEvent(kind=RolloutEventKind.COMMITTED, at_s=float(sequence), robot=robot)
        with store.write() as connection:
            row = {"sequence": sequence, "rollout": number, "event": text_of(event)}
            connection.execute(sa.insert(rollout_events), [row])

    first = history()
    assert history() is first
    add(1_002, "arm-1")
    second = history()
    assert (second.fold.standing["arm-1"], first.fold.standing["arm-1"]) == (
        RobotStanding.COMMITTED,
        RobotStanding.OFFERED,
    )
    add(1_001, "arm-2")  # It drew its number before.
    third = history()
    assert third.fold.standing["arm-2"] is RobotStanding.COMMITTED
    assert [event.robot for event in third.newest[-2:]] == ["arm-2", "arm-1"]
    add(1_003, "arm-3")
    assert history().newest == (*third.newest, history().newest[-1])


@pytest.mark.slow
def test_robots_of_a_rollout_are_told_with_their_ring_what_they_run_and_why_they_failed(fleet: Rolling) -> None:
    fleet.publish(b"bad")
    number = fleet.start(("lab", "all"))
    before = fleet.rollouts.robots(number)
    assert [(one.robot, one.ring, one.standing) for one in before][:2] == [
        ("arm-0", "lab", RobotStanding.OFFERED),
        ("arm-1", "all", RobotStanding.AHEAD),
    ]
    fleet.turn(2)
    (lab,) = fleet.rollouts.robots(number, ring="lab")
    assert (lab.standing, lab.runs, lab.before) == (RobotStanding.UNHEALTHY, "arm@1", "arm@1")
    assert "while proving" in lab.failure
    assert lab.failed_s is not None
    assert fleet.rollouts.robots(number, standing=RobotStanding.UNHEALTHY) == (lab,)
    pages = [fleet.rollouts.robots(number, limit=2)]
    while pages[-1]:
        pages.append(fleet.rollouts.robots(number, after=pages[-1][-1].robot, limit=2))
    assert [one.robot for page in pages for one in page] == sorted(fleet.robots)
    with pytest.raises(NotFound):
        fleet.rollouts.robots(number, ring="labb")
    with pytest.raises(NotFound):
        fleet.rollouts.robots(number, after="nobody")
    fleet.world.clock.advance(7_200.0)
    assert all(one.away for one in fleet.rollouts.robots(number))
