"""A server and robots with the shipping agent, in one process: calls go to the server's own code, time is virtual."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from mainspring.control import Control
from mainspring.control.service.robots.devices import DeviceCall
from mainspring.domain.answers import NewRobot, ReleaseView, RobotClaim
from mainspring.domain.answers.policies.releases import Embodiment, RobotChannel
from mainspring.domain.answers.policies.robots import DEVICE_HEADER, RobotReport, RobotTally
from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import MainspringError, NotAllowed, NotFound, Unavailable
from mainspring.robots.edge.agent import EdgeAgent
from mainspring.robots.edge.ddi import DdiClient
from mainspring.robots.edge.device import SignedCalls, boot_of, device_key, enrol
from mainspring.robots.edge.machine import Phase
from mainspring.robots.edge.ports import EdgeAnswer
from mainspring.robots.edge.source import ByteBudget, SignedSource
from mainspring.robots.edge.visits import EdgeVisits
from mainspring.testing import FakeClock
from tests.control.conftest import World
from tests.control.releasing import People, new_release
from tests.robots.edge_world import LIMITS, Arm, LossyDisk

HAND = Embodiment(action=(RobotChannel(name="hand", unit="m"),))


class Wire:
    """Calls of a robot, straight to the server's code; away, or losing every second one, when a test says so."""

    def __init__(self, control: Control) -> None:
        self.control = control
        self.away = self.loses = False
        self.calls = 0

    def call(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> EdgeAnswer:
        self.calls += 1
        if self.away or (self.loses and self.calls % 2):
            raise Unavailable("call the server", got="no line")
        try:
            return EdgeAnswer(status=200, body=self._answer(method, path, headers, body))
        except NotFound as error:
            return EdgeAnswer(status=404, body=json.dumps({"detail": str(error)}).encode())
        except NotAllowed as error:
            return EdgeAnswer(status=401, body=json.dumps({"detail": str(error)}).encode())
        except MainspringError as error:
            return EdgeAnswer(status=409, body=json.dumps({"detail": str(error)}).encode())

    def _answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
        if path == "/v1/robot-claims":
            return encode(self.control.robots.claim(decode(RobotClaim, body)))
        _, tenant, _, _, robot, *rest = path.split("/")
        call = DeviceCall(
            robot=robot,
            method=method,
            path=path,
            authorization=headers.get("Authorization", ""),
            device=headers.get(DEVICE_HEADER, ""),
            address="127.0.0.1",
            base=f"http://server/{tenant}/controller/v1/{robot}",
        )
        devices = self.control.devices
        match rest:
            case []:
                return json.dumps(devices.poll(call)).encode()
            case ["configData"]:
                devices.configure(call, body)
            case ["deploymentBase", action]:
                return json.dumps(devices.deployment(call, action)).encode()
            case ["deploymentBase" | "cancelAction" as what, action, "feedback"]:
                devices.feedback(call, action, body, of_cancel=what == "cancelAction")
            case ["confirmationBase", action, "feedback"]:
                devices.confirm(call, action, body)
            case ["trust", file]:
                devices.enter(call, counted=False)
                return self.control.releases.metadata(file)
            case ["targets", folder, name]:
                devices.enter(call, counted=False)
                begin, _, end = headers["Range"].removeprefix("bytes=").partition("-")
                return self.control.releases.piece(folder, name, offset=int(begin), limit=int(end) - int(begin) + 1)
            case _:
                raise AssertionError(path)
        return b""


class EdgeRobot:
    """One robot: a disk that loses what was not synced, an arm, and the shipping agent."""

    def __init__(self, wire: Wire, clock: FakeClock, name: str, token: str, *, seed: int = 0) -> None:
        self.name, self.wire, self.clock = name, wire, clock
        self.disk, self.starts, self.sick = LossyDisk(seed), 0, False
        self.arm = Arm(self.disk)
        self.tallies: tuple[RobotTally, ...] = ()
        self.found = enrol(self.disk, wire, "http://server", token)
        self.boot()

    def boot(self) -> None:
        """Power comes back, perhaps to go again."""
        self.starts += 1
        self.arm.runs = ()
        calls = SignedCalls(
            self.wire, self.found, device_key(self.disk), boot_of(self.starts * 7 + self.disk.dice.bits(64))
        )
        self.client = DdiClient(calls)
        budget = ByteBudget(self.clock, None)
        source = SignedSource(
            self.found.root.encode(),
            self.client.metadata,
            self.client.piece,
            robot=HAND,
            budget=budget,
        )
        self.agent = EdgeAgent(self.disk, source, self.arm, self.clock, limits=LIMITS)
        self.visits = EdgeVisits(self.agent, self.client, self.report)

    def report(self) -> RobotReport:
        journal = self.agent.journal
        slot = journal.committed
        healthy = not self.sick and (not slot or self.agent.journal.trial != "" or self.arm.healthy(slot))
        return RobotReport(
            fits=HAND,
            runtime="0.3.0",
            runs=journal.slots.get(slot, ""),
            before=journal.slots[journal.spare],
            healthy=healthy,
            tallies=self.tallies,
        )

    @property
    def target(self) -> str:
        """What is committed."""
        return self.agent.journal.slots.get(self.agent.journal.committed, "")

    def go(self, *, visits: int = 1, steps: int = 200) -> None:
        """Calls the server, and does what came of it, so many times."""
        for _ in range(visits):
            self.visits.visit()
            for _ in range(steps):
                if self.agent.journal.phase is Phase.IDLE:
                    break
                self.agent.step()
                self.clock.advance(1.0)
            self.clock.advance(60.0)


class FleetWorld:
    """A server, people who sign, and robots."""

    def __init__(self, folder: Path, *, now_s: float | None = None, url: str = "") -> None:
        self.world = World(folder, url=url)
        if now_s is not None:  # For robots whose clock is the machine's own.
            self.world.clock.advance(now_s - self.world.clock.now_s())
        self.people = People(self.world.control)
        self.wire = Wire(self.world.control)
        self.robots: dict[str, EdgeRobot] = {}

    @property
    def control(self) -> Control:
        return self.world.control

    def robot(self, name: str, *, group: str = "") -> EdgeRobot:
        """A robot that is enrolled, and has told what it is."""
        token = self.control.robots.invite(NewRobot(name=name, group=group)).secret
        made = self.robots[name] = EdgeRobot(self.wire, self.world.clock, name, token, seed=len(self.robots))
        made.visits.visit()
        return made

    def publish(self, *contents: bytes, **fields: object) -> ReleaseView:
        given = {"fits": HAND, **fields}
        made = self.control.releases.create(new_release(f"file://{self.world.objects}", *contents, **given))
        live = [view for view in self.control.releases.ls() if view.state.value == "published"]
        self.people.sign(*(self.control.releases.show(view.release.reference) for view in live), made)
        return self.control.releases.show(made.release.reference)
