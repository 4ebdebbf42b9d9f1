"""Real agents as processes, with a server on a socket, killed as they enter the states of their journal."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

import uvicorn

from mainspring.app.edge.http import UrlHttp
from mainspring.control import create_app, listen
from mainspring.domain.answers import ActionState, NewInstallation, NewRobot, RobotReport
from mainspring.domain.codec import decode
from mainspring.domain.release import RELEASE
from mainspring.robots.edge.agent import JOURNAL, EdgeAgent, SlotFiles
from mainspring.robots.edge.ddi import DdiClient
from mainspring.robots.edge.device import SignedCalls, boot_of, device_key, enrol
from mainspring.robots.edge.folder import FolderDisk
from mainspring.robots.edge.machine import SLOTS, Journal, Phase
from mainspring.robots.edge.source import ByteBudget, SignedSource
from mainspring.testing import FakeClock
from tests.robots.edge_world import LIMITS
from tests.robots.fleet_world import HAND, FleetWorld
from tests.robots.test_edge_signed import Still

WAIT_S = 180.0
FIRST, SECOND = "releases/arm.1.json", "releases/arm.2.json"
# The agent on a disk that kills its process, as `kill -9` does, just before or after a journal gets its name.
DYING = """
import json, os, signal, sys
from pathlib import Path
from mainspring.app.edge import main
from mainspring.robots.edge.folder import FolderDisk

PHASE, BEFORE, COMMITTED = sys.argv.pop(1), sys.argv.pop(1) == "before", sys.argv.pop(1)

class Dying:
    def __init__(self, folder):
        self._disk = FolderDisk(folder)

    def __getattr__(self, name):
        return getattr(self._disk, name)

    def rename(self, name, to):
        entered = json.loads(self._disk.read(name)) if to == "journal.json" else {}
        wanted = entered and entered.get("phase", "idle") == PHASE and entered.get("committed", "") != COMMITTED
        if wanted and BEFORE:
            os.kill(os.getpid(), signal.SIGKILL)
        self._disk.rename(name, to)
        if wanted:
            os.kill(os.getpid(), signal.SIGKILL)

main.FolderDisk = Dying
sys.exit(main.main())
"""
RUN = "import sys; from mainspring.app.edge.main import main; sys.exit(main())"


class Served(FleetWorld):
    """The same server on a socket."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, now_s=time.time())
        self.socket = listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        config = uvicorn.Config(create_app(self.control), log_level="error", ws="none", lifespan="off")
        self.server = uvicorn.Server(config)
        self.thread = Thread(target=self.server.run, kwargs={"sockets": [self.socket]}, daemon=True)
        self.thread.start()

    def wait(self, robot: str, wanted: ActionState, seconds: float = 60.0) -> None:
        until = time.monotonic() + seconds
        while self.control.robots.actions(robot, limit=1)[0].state is not wanted:
            assert time.monotonic() < until, self.control.robots.actions(robot, limit=1)
            Event().wait(0.1)

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join(120.0)
        self.socket.close()


class Robot:
    """One robot with a folder of its own, on which arm@1 is committed."""

    def __init__(self, served: Served, folder: Path, name: str) -> None:
        self.served, self.folder, self.name = served, folder, name
        token = served.control.robots.invite(NewRobot(name=name)).secret
        disk, http, clock = FolderDisk(folder), UrlHttp(served.url), FakeClock()
        clock.jump(served.world.clock.now_s() - clock.now_s())
        found = enrol(disk, http, served.url, token)
        client = DdiClient(SignedCalls(http, found, device_key(disk), boot_of(1)))
        source = SignedSource(
            found.root.encode(), client.metadata, client.piece, robot=HAND, budget=ByteBudget(clock, None)
        )
        agent = EdgeAgent(disk, source, Still(), clock, limits=LIMITS)
        agent.ask(FIRST)
        while agent.journal.phase is not Phase.IDLE:
            agent.step()
            clock.advance(1.0)
        assert agent.journal.committed == "a"
        client.report(RobotReport(fits=HAND, runtime=RELEASE, runs=FIRST))
        config = {
            "command": ["/bin/sleep", "600"],
            "limits": {"healthy_s": 0.2},
            "fits": {"action": [{"name": "hand", "unit": "m"}]},
        }
        (folder / "edge.json").write_text(json.dumps(config))

    def start(self, code: str, *words: str) -> subprocess.Popen[bytes]:
        told = [sys.executable, "-c", code, *words, "--folder", str(self.folder), "run"]
        return subprocess.Popen(told, stdout=subprocess.DEVNULL, stderr=(self.folder / "agent.log").open("ab"))

    def dies(self, kill: Kill) -> subprocess.Popen[bytes]:
        """An agent that is killed as it enters a phase; of idle, as it commits another slot than it has."""
        committed = json.loads((self.folder / JOURNAL).read_bytes())["committed"]
        return self.start(DYING, kill.phase.value, kill.when, committed if kill.phase is Phase.IDLE else "-")

    @property
    def journal(self) -> Journal:
        return decode(Journal, (self.folder / JOURNAL).read_bytes())

    def has_a_slot_that_runs(self) -> bool:
        """Whether every byte of the slot that its journal says is to run is there, or of what is committed."""
        disk, journal = FolderDisk(self.folder), self.journal
        files = {slot: decode(SlotFiles, disk.read(f"slot-{slot}.json") or b"{}").files for slot in SLOTS}
        return any(
            bool(files[slot]) and all(disk.sha256(f"file-{file.sha256}") == file.sha256 for file in files[slot])
            for slot in {journal.runs, journal.committed} - {""}
        )

    @property
    def action(self) -> ActionState:
        """What the server was told of what it asked for."""
        return self.served.control.robots.actions(self.name, limit=1)[0].state

    @property
    def has_arrived(self) -> bool:
        """Whether it runs the new release, has the old one to go back to, and told so."""
        journal = self.journal
        told = self.action is ActionState.DONE and journal.phase is Phase.IDLE
        slots = (journal.slots.get(journal.committed), journal.slots.get(journal.spare))
        return told and slots == (SECOND, FIRST)

    @property
    def log(self) -> str:
        return (self.folder / "agent.log").read_text()[-2_000:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """When an agent is killed: just before, or after, a state of its journal is written."""

    phase: Phase
    when: str = "after"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lived:
    """What became of agents that were killed: how often in all, and what went wrong, with the robots' own words."""

    agents: int
    kills: int
    bricked: tuple[str, ...] = ()  # Had no slot that runs, at some time.
    wrong: tuple[str, ...] = ()  # Does not run the new release at the end, with the old one in its other slot.


def each_state() -> list[list[Kill]]:
    """A kill at each state, each of a robot of its own."""
    return [[Kill(phase=phase)] for phase in Phase]


def again_and_again(count: int) -> list[list[Kill]]:
    """Kills of each robot before and after its state is written, in a later state, and as it commits."""
    phases, whens = list(Phase), ("before", "after")
    found = []
    for number in range(count):
        early, late = sorted((phases.index(Phase.DOWNLOADING) + number % 3, phases.index(Phase.WAITING) + number % 3))
        own = [Kill(phase=phases[early], when=when) for when in whens]
        last = [Kill(phase=phases[late], when=whens[number % 2])]
        end = [Kill(phase=Phase.IDLE, when=whens[number // 4 % 2])] if number % 4 == 0 else []
        found.append([*own, *last, *end])
    return found


def lives(served: Served, folder: Path, kills: Sequence[Sequence[Kill]]) -> Lived:
    """Has each robot of a list install arm@2, killed at each of its states in turn, all robots at a time."""
    served.publish(b"first", b"base")
    robots = [Robot(served, folder / f"robot-{number}", f"robot-{number}") for number in range(len(kills))]
    served.publish(b"second" * 1_000, b"base")
    for robot in robots:
        served.control.robots.install(robot.name, NewInstallation(release="arm@2"))
    bricked: dict[str, str] = {}
    for turn in range(max(map(len, kills))):
        dying = [(robot, own[turn]) for robot, own in zip(robots, kills, strict=True) if turn < len(own)]
        agents = [robot.dies(kill) for robot, kill in dying]
        _end([robot for robot, _ in dying], agents)
        for robot, kill in dying:
            if not robot.has_a_slot_that_runs():
                bricked[robot.name] = f"{robot.name}: {kill}: {robot.log}"
            assert kill.when == "before" or robot.journal.phase is kill.phase
    _come_through(robots)
    for robot in robots:
        if not robot.has_a_slot_that_runs():
            bricked[robot.name] = f"{robot.name}: at the end: {robot.log}"
    wrong = tuple(f"{robot.name}: {robot.journal}: {robot.log}" for robot in robots if not robot.has_arrived)
    count = sum(map(len, kills))
    return Lived(agents=len(robots), kills=count, bricked=tuple(bricked.values()), wrong=wrong)


def _end(robots: Sequence[Robot], agents: Sequence[subprocess.Popen[bytes]]) -> None:
    """Waits until every agent was killed by itself."""
    until = time.monotonic() + WAIT_S
    try:
        for robot, agent in zip(robots, agents, strict=True):
            assert agent.wait(max(0.1, until - time.monotonic())) == -9, robot.log
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()


def _come_through(robots: Sequence[Robot]) -> None:
    """Starts every agent anew, and waits until the server was told of all that they have ended what was asked."""
    agents = [robot.start(RUN) for robot in robots]
    try:
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until and any(robot.action is ActionState.OPEN for robot in robots):
            Event().wait(0.1)
    finally:
        for agent in agents:
            agent.terminate()
        for agent in agents:
            with suppress(subprocess.TimeoutExpired):
                agent.wait(30.0)
            agent.kill()
            agent.wait()
