"""A server that is killed in mid-rollout, and begun again on the same store: the rollout goes on, and nothing twice."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from mainspring.app.base.client import Client
from mainspring.app.base.home import Config
from mainspring.app.base.system import SystemClock
from mainspring.app.edge.http import UrlHttp
from mainspring.app.sdk.lab import Lab
from mainspring.app.server.daemon import running
from mainspring.control import Control
from mainspring.domain.answers import NewRobot, NewRollout, RolloutRules, RolloutState, RolloutView, RolloutWord
from mainspring.domain.answers.policies.rollouts import RolloutEventKind
from mainspring.robots.edge.ports import EdgeAnswer
from mainspring.testing import FakeClock
from tests.app.conftest import clusters, until
from tests.control.releasing import People, new_release
from tests.robots.fleet_world import HAND, EdgeRobot, Wire

WAIT_S = 180.0
RULES = RolloutRules(hours=0.0, watch_s=0.0)


class Line:
    """A robot's line to whichever server of the lab runs now."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def call(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> EdgeAnswer:
        server = self.lab.home.server()
        return UrlHttp(server.url if server is not None else "http://127.0.0.1:1").call(method, path, headers, body)


class Fleet:
    """A lab with a server that is killed, people who sign, and three robots, one of them of group `lab`."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.clock = lab, FakeClock()
        self.clock.jump(SystemClock().now_s() - self.clock.now_s())
        with lab.client() as client:
            self.people = self.signers(client)
            self.robots = [self.robot(client, number) for number in range(3)]

    def robot(self, client: Client, number: int) -> EdgeRobot:
        asked = NewRobot(name=f"arm-{number}", group="" if number else "lab")
        token = client.enrol_robot(asked).secret
        made = EdgeRobot(cast(Wire, Line(self.lab)), self.clock, asked.name, token, seed=number)
        made.go()
        return made

    def signers(self, client: Client, keys: People | None = None) -> People:
        """People, at a server over HTTP."""
        trust = SimpleNamespace(
            trust=client.trust,
            metadata=client.trust_metadata,
            put_root=client.set_root,
            put_targets=client.set_targets,
        )
        control = cast(Control, SimpleNamespace(releases=trust, clock=SystemClock()))
        if keys is None:
            return People(control)
        keys.control = control
        return keys

    def publish(self, *contents: bytes) -> None:
        with self.lab.client() as client:
            objects = self.lab.home.objects_url(self.lab.home.config())
            client.create_release(new_release(objects, *contents, fits=HAND))
            whole = [client.release(view.release.reference) for view in client.releases()]
            self.signers(client, self.people).sign(*whole)

    def roll(self, *rings: str) -> str:
        with self.lab.client() as client:
            number = str(client.start_rollout(NewRollout(release="arm", rings=rings, rules=RULES)).number)
        self.opened(number, 1)
        with self.lab.client() as client:
            client.approve_rollout(number, RolloutWord(reason="a test"))
        return number

    def view(self, number: str) -> RolloutView:
        with self.lab.client() as client:
            return client.rollout(number)

    def opened(self, number: str, count: int) -> None:
        """Waits until the server that leads has opened so many rings."""
        until(
            lambda: sum(ring.opened_s is not None for ring in self.view(number).rings) >= count,
            f"{count} rings to be open",
            wait_s=WAIT_S,
        )

    def kill(self) -> None:
        server = self.lab.home.server()
        assert server is not None
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: not running(server, self.lab.home), "the server to be gone", wait_s=WAIT_S)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    url = "" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    lab = Lab(tmp_path / "home")
    lab.home.write_config(Config(clusters=clusters(), database=url))
    lab.up(port=0)
    try:
        yield Fleet(lab)
    finally:
        lab.up()
        lab.down()


@pytest.mark.slow
def test_rollout_goes_on_through_servers_that_are_killed_and_does_nothing_twice(fleet: Fleet) -> None:
    first, *others = fleet.robots
    fleet.publish(b"one")
    number = fleet.roll("lab", "all")
    fleet.kill()  # The ring is open, and its robot has heard of nothing.
    first.go()
    assert first.target == ""
    fleet.lab.up()
    first.go()
    assert first.target == "releases/arm.1.json"
    fleet.kill()  # It has committed, and could not tell.
    first.go()
    fleet.lab.up()
    first.go()
    fleet.opened(number, 2)
    for robot in others:
        robot.go(visits=2)
    until(lambda: fleet.view(number).state is RolloutState.DONE, "the rollout to end", wait_s=WAIT_S)
    view = fleet.view(number)
    assert {robot.target for robot in fleet.robots} == {"releases/arm.1.json"}
    assert [(ring.committed, ring.failed, ring.unhealthy) for ring in view.rings] == [(1, 0, 0), (2, 0, 0)]
    counts = Counter(event.kind for event in view.events)
    assert (counts[RolloutEventKind.OPENED], counts[RolloutEventKind.COMMITTED]) == (2, 3)
    assert counts[RolloutEventKind.FINISHED] == 1
    with fleet.lab.client() as client:
        assert [len(client.robot_actions(robot.name)) for robot in fleet.robots] == [1, 1, 1]
