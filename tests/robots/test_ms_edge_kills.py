"""Real agents, killed as they enter each state of their journal: each has a slot that runs, and comes through."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event

import pytest

from mainspring.app.edge.http import UrlHttp
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
from tests.robots.fleet_world import HAND
from tests.robots.test_edge_signed import Still
from tests.robots.test_ms_edge import Served

WAIT_S = 180.0
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


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path / "server")
    yield made
    made.server.should_exit = True
    made.thread.join(10.0)
    made.socket.close()


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
        agent.ask("releases/arm.1.json")
        while agent.journal.phase is not Phase.IDLE:
            agent.step()
            clock.advance(1.0)
        assert agent.journal.committed == "a"
        client.report(RobotReport(fits=HAND, runtime=RELEASE, runs="releases/arm.1.json"))
        config = {
            "command": ["/bin/sleep", "600"],
            "limits": {"healthy_s": 0.2},
            "fits": {"action": [{"name": "hand", "unit": "m"}]},
        }
        (folder / "edge.json").write_text(json.dumps(config))

    def start(self, code: str, *words: str) -> subprocess.Popen[bytes]:
        told = [sys.executable, "-c", code, *words, "--folder", str(self.folder), "run"]
        return subprocess.Popen(told, stdout=subprocess.DEVNULL, stderr=(self.folder / "agent.log").open("ab"))

    def dies(self, phase: Phase, when: str) -> subprocess.Popen[bytes]:
        """An agent that is killed as it enters a phase; of idle, as it commits another slot than it has."""
        committed = json.loads((self.folder / JOURNAL).read_bytes())["committed"]
        return self.start(DYING, phase.value, when, committed if phase is Phase.IDLE else "-")

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
    def done(self) -> bool:
        newest = self.served.control.robots.actions(self.name, limit=1)[0]
        assert newest.state in (ActionState.OPEN, ActionState.DONE), (newest, self.log)
        return newest.state is ActionState.DONE

    @property
    def log(self) -> str:
        return (self.folder / "agent.log").read_text()[-2_000:]


def ends(robots: Sequence[Robot], agents: Sequence[subprocess.Popen[bytes]]) -> None:
    """Waits until every agent was killed by itself."""
    until = time.monotonic() + WAIT_S
    for robot, agent in zip(robots, agents, strict=True):
        assert agent.wait(max(0.1, until - time.monotonic())) == -9, robot.log


def comes_through(robots: Sequence[Robot]) -> None:
    """Starts every agent anew, and waits until the server was told that all have committed."""
    agents = [robot.start(RUN) for robot in robots]
    try:
        until = time.monotonic() + WAIT_S
        while not all(robot.done for robot in robots):
            assert time.monotonic() < until, [robot.log for robot in robots if not robot.done]
            Event().wait(0.1)
    finally:
        for agent in agents:
            agent.terminate()
        for agent in agents:
            with suppress(subprocess.TimeoutExpired):
                agent.wait(30.0)
            agent.kill()
            agent.wait()


def lives(served: Served, folder: Path, kills: Sequence[Sequence[tuple[Phase, str]]]) -> None:
    """Has one robot a list install arm@2, killed at each of its states in turn, all robots at a time."""
    served.publish(b"first", b"base")
    robots = [Robot(served, folder / f"robot-{number}", f"robot-{number}") for number in range(len(kills))]
    served.publish(b"second" * 1_000, b"base")
    for robot in robots:
        served.control.robots.install(robot.name, NewInstallation(release="arm@2"))
    for turn in range(max(map(len, kills))):
        dying = [(robot, own[turn]) for robot, own in zip(robots, kills, strict=True) if turn < len(own)]
        agents = [robot.dies(phase, when) for robot, (phase, when) in dying]
        ends([robot for robot, _ in dying], agents)
        for robot, (phase, when) in dying:
            assert robot.has_a_slot_that_runs(), (phase, when, robot.log)
            assert when == "before" or robot.journal.phase is phase
    comes_through(robots)
    for robot in robots:
        journal = robot.journal
        assert (journal.phase, journal.slots[journal.committed]) == (Phase.IDLE, "releases/arm.2.json")
        assert journal.slots[journal.spare] == "releases/arm.1.json"
        assert robot.has_a_slot_that_runs()


@pytest.mark.slow
def test_agents_killed_at_each_state_of_their_journal_have_a_slot_that_runs_and_come_through(
    served: Served, tmp_path: Path
) -> None:
    lives(served, tmp_path, [[(phase, "after")] for phase in Phase])


@pytest.mark.slow
def test_policy_server_that_cannot_be_started_is_told_and_started_once_it_can(served: Served, tmp_path: Path) -> None:
    served.publish(b"first")
    robot = Robot(served, tmp_path / "robot", "arm-1")
    config = json.loads((robot.folder / "edge.json").read_bytes())
    command = ["/bin/sh", "-c", f"touch {tmp_path}/runs; exec sleep 600"]
    (robot.folder / "edge.json").write_text(json.dumps({**config, "command": command}))
    (robot.folder / "slots").write_bytes(b"no folder")
    agent = robot.start(RUN)
    try:
        until = time.monotonic() + WAIT_S
        while (report := served.control.robots.show("arm-1").report) is None or report.healthy:
            assert agent.poll() is None, robot.log
            assert time.monotonic() < until, robot.log
            Event().wait(0.1)
        (robot.folder / "slots").unlink()
        while not (tmp_path / "runs").exists():
            assert agent.poll() is None, robot.log
            assert time.monotonic() < until, robot.log
            Event().wait(0.1)
    finally:
        agent.terminate()
        with suppress(subprocess.TimeoutExpired):
            agent.wait(60.0)
        agent.kill()
        agent.wait()


@pytest.mark.soak
def test_twenty_agents_killed_again_and_again_have_a_slot_that_runs_and_come_through(
    served: Served, tmp_path: Path
) -> None:
    """Each is killed three times: before and after its state is written, and in one of the other states."""
    phases = list(Phase)
    kills = []
    for number in range(20):
        early, late = sorted((phases.index(Phase.DOWNLOADING) + number % 3, phases.index(Phase.WAITING) + number % 3))
        kills.append(
            [(phases[early], "before"), (phases[early], "after"), (phases[late], ("before", "after")[number % 2])]
        )
    lives(served, tmp_path, kills)
