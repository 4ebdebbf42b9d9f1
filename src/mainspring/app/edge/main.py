"""`ms-edge`: enrols a robot, runs its agent, tells how it is, goes back to the release before.

Only the standard library, python-tuf with what that brings, and words of `domain`: a test measures what is imported.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import final

from mainspring.app.edge.config import EdgeConfig, read_config
from mainspring.app.edge.http import UrlHttp
from mainspring.app.edge.policy import PolicyProcess
from mainspring.domain.answers.policies.robots import TALLIES_MAX, RobotReport, RobotTally
from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import Conflict, MainspringError, NotFound, Unavailable
from mainspring.domain.release import RELEASE
from mainspring.robots.edge.agent import JOURNAL, EdgeAgent
from mainspring.robots.edge.ddi import DdiClient
from mainspring.robots.edge.device import BOOT_BITS, SignedCalls, boot_of, device_key, enrol, identity
from mainspring.robots.edge.folder import FolderDisk
from mainspring.robots.edge.machine import Journal, Phase
from mainspring.robots.edge.ports import EdgeLook
from mainspring.robots.edge.source import ByteBudget, SignedSource
from mainspring.robots.edge.visits import EdgeVisits

FOLDER = "/var/lib/mainspring-edge"
_PAUSE_S = 1.0  # Between two looks at what somebody at the robot wants, and between two of a phase that waits.
_TALLIES, _BACK, _CONFIRMED, _LOCK = "tallies.json", "back.wanted", "confirmed.wanted", "agent.lock"
_log = logging.getLogger("ms-edge")


@final
class RobotClock:
    """The robot's own time, whatever it says."""

    def now_s(self) -> float:
        """Returns seconds since the Unix epoch."""
        return time.time()

    def monotonic_s(self) -> float:
        """Returns seconds that never go back."""
        return time.monotonic()


@final
class Tallies:
    """What was counted on the robot, release by release, in a file of its own."""

    def __init__(self, disk: FolderDisk) -> None:
        self._disk = disk

    def read(self) -> tuple[RobotTally, ...]:
        """Returns all of it; what cannot be read counts as nothing."""
        try:
            return decode(tuple[RobotTally, ...], self._disk.read(_TALLIES) or b"[]")
        except MainspringError:
            return ()

    def add(self, tally: RobotTally, most: int) -> None:
        """Adds to what was counted of a release, and forgets the oldest releases beyond so many."""
        known = {each.target: each for each in self.read()}
        before = known.pop(tally.target, RobotTally(target=tally.target))
        kept = [*known.values(), before.plus(tally)][-most:]
        self._disk.remove(f"{_TALLIES}.new")
        self._disk.append(f"{_TALLIES}.new", encode(tuple(kept)))
        self._disk.sync(f"{_TALLIES}.new")
        self._disk.rename(f"{_TALLIES}.new", _TALLIES)


def main() -> int:
    """Does what the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(prog="ms-edge", description="The agent on a robot.")
    parser.add_argument("--folder", type=Path, default=Path(os.environ.get("MS_EDGE_FOLDER", FOLDER)), help="its own")
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("enrol", help="make this robot's key, and enrol it by a one-time token")
    one.add_argument("url", help="the server")
    one.add_argument("token", help="from: ms robot enrol NAME")
    one.add_argument("--certificate", default="", help="file of the authority of the server's certificate")
    verbs.add_parser("run", help="keep the policy server running, and install what is rolled out")
    verbs.add_parser("status", help="tell what runs and what is being installed, as JSON")
    verbs.add_parser("back", help="go back to the release before, without network")
    confirm = verbs.add_parser("confirm", help="confirm what waits to be installed")
    confirm.add_argument("action", help="its number")
    tally = verbs.add_parser("tally", help="count an episode of the release that runs")
    tally.add_argument("--success", choices=("yes", "no"), required=True)
    tally.add_argument("--missed-deadlines", type=int, default=0)
    tally.add_argument("--safety-stops", type=int, default=0)
    words = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    try:
        return _did(words)
    except MainspringError as error:
        print(f"ms-edge: {error}", file=sys.stderr)
        return error.exit_code


def _did(words: argparse.Namespace) -> int:
    disk = FolderDisk(words.folder)
    match words.verb:
        case "enrol":
            os.chmod(words.folder, 0o700)
            found = enrol(disk, UrlHttp(words.url, words.certificate), words.url, words.token)
            print(f"This is robot {found.robot} of {found.url}. Next: ms-edge run")
        case "run":
            with _locked(words.folder / _LOCK, wait=False):
                _run(words.folder, disk)
        case "status":
            print(json.dumps(_status(disk), indent=2))
        case "back":
            _back(words.folder, disk)
        case "confirm":
            disk.append(_CONFIRMED, f"{words.action}\n".encode())
        case "tally":
            counted = RobotTally(
                target="",
                episodes=1,
                successes=int(words.success == "yes"),
                missed_deadlines=words.missed_deadlines,
                safety_stops=words.safety_stops,
            )
            count(words.folder, counted)
        case _:
            raise AssertionError(words.verb)
    return 0


def count(folder: Path, counted: RobotTally) -> None:
    """Counts episodes of the release that runs, as `ms-edge tally` does.

    Args:
        folder: The agent's own.
        counted: Of any target.

    Raises:
        NotFound: No release runs.
    """
    disk = FolderDisk(folder)
    runs = read_journal(disk)
    target = runs.slots.get(runs.committed, "")
    if not target:
        raise NotFound("count an episode", got="no release that runs")
    with _locked(folder / f"{_TALLIES}.lock"):
        Tallies(disk).add(replace(counted, target=target), TALLIES_MAX)


@contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise Conflict("run the agent", on=str(path.parent), got="one that runs") from error
        yield


def read_journal(disk: FolderDisk) -> Journal:
    """Returns what the agent wrote last."""
    try:
        return decode(Journal, disk.read(JOURNAL) or b"{}")
    except MainspringError:
        return Journal()


def _status(disk: FolderDisk) -> dict[str, object]:
    journal, found = read_journal(disk), identity(disk)
    return {
        "robot": "" if found is None else found.robot,
        "server": "" if found is None else found.url,
        "runs": journal.slots.get(journal.committed, ""),
        "before": journal.slots[journal.spare],
        "phase": journal.phase.value,
        "installs": journal.wanted,
        "counted": [{name: getattr(each, name) for name in each.__slots__} for each in Tallies(disk).read()],
    }


class _NoSource:
    """Where nothing comes from: what is done by hand wants no network."""

    def look(self, target: str, *, now_s: float, floor: object, kept: bytes) -> EdgeLook:
        raise Unavailable("look for a release", got="a robot that is not asked to")

    def fetch(self, file: object, offset: int, size_bytes: int) -> bytes:
        raise Unavailable("fetch a release", got="a robot that is not asked to")


class _NoRobot:
    """A policy server that nobody started."""

    def unsafe(self) -> str:
        return ""

    def start(self, slot: str, files: object) -> None:
        pass

    def healthy(self, slot: str) -> bool:
        return True


def _back(folder: Path, disk: FolderDisk) -> None:
    """Goes back to the release before: by the agent that runs, or here where none does."""
    try:
        with _locked(folder / _LOCK, wait=False):
            agent = EdgeAgent(disk, _NoSource(), _NoRobot(), RobotClock())
            before = agent.journal.runs
            agent.roll_back()
            told = agent.journal.slots.get(agent.journal.committed, "")
            done = agent.journal.runs != before
            print(f"{'Next to run' if done else 'There is nothing before'}: {told or 'nothing'}")
    except Conflict:
        disk.append(_BACK, b"back")
        print("The agent goes back now: ms-edge status")


def _run(folder: Path, disk: FolderDisk) -> None:
    """Keeps the policy server running and calls the server, until told to end."""
    found = identity(disk)
    if found is None:
        raise NotFound("run the agent", on=str(folder), got="a robot that is not enrolled", next_step="ms-edge enrol")
    config = read_config(folder)
    clock, robot = RobotClock(), PolicyProcess(config, folder)
    boot = boot_of(secrets.randbits(BOOT_BITS))
    client = DdiClient(SignedCalls(UrlHttp(found.url, config.certificate), found, device_key(disk), boot))
    source = SignedSource(
        found.root.encode(),
        client.metadata,
        client.piece,
        robot=config.fits,
        budget=ByteBudget(clock, config.bytes_per_s),
    )
    agent = EdgeAgent(disk, source, robot, clock, limits=config.limits, slot_bytes_max=config.slot_bytes_max)
    reporter = _Reporter(config, agent, robot, Tallies(disk))
    visits = EdgeVisits(agent, client, reporter.report, confirmed=lambda action: _take(disk, _CONFIRMED, action))
    ending = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ending.set())
    try:
        _loop(agent, visits, robot, disk, ending)
    finally:
        robot.end()


def _loop(agent: EdgeAgent, visits: EdgeVisits, robot: PolicyProcess, disk: FolderDisk, ending: Event) -> None:
    clock, next_s = RobotClock(), 0.0
    told = ""
    while not ending.is_set():
        before, moved = agent.journal, False
        try:
            if _take(disk, _BACK, "back"):
                _log.info("going back to the release before: by hand")
                agent.roll_back()
                next_s = 0.0
            moved = _stepped(agent, robot, disk)
        except Unavailable as error:  # Tried again; the lab is called all the same.
            _log.warning("%s", error)
        now = agent.journal
        if now.phase is not before.phase:
            _log.info("%s %s", now.phase.value, now.wanted or now.slots.get(now.committed, ""))
            next_s = 0.0 if now.phase is Phase.IDLE else next_s
        if clock.monotonic_s() >= next_s:
            next_s = clock.monotonic_s() + visits.visit()
            if visits.why and visits.why != told:
                _log.warning("%s", visits.why)
            told = visits.why
            continue
        if not moved:
            ending.wait(_PAUSE_S)


def _stepped(agent: EdgeAgent, robot: PolicyProcess, disk: FolderDisk) -> bool:
    """Does a piece of what is to be done, and keeps the policy server running; returns whether anything moved."""

    def stands() -> tuple[Phase, int]:
        return agent.journal.phase, sum(disk.size(name) for name in disk.names() if name.startswith("part-"))

    before = stands()
    agent.step()
    now = agent.journal
    if now.committed and not now.trial:
        robot.keep(now.committed, agent.files(now.committed))
    return stands() != before


def _take(disk: FolderDisk, name: str, word: str) -> bool:
    """Returns whether somebody at the robot wants something, once."""
    lines = (disk.read(name) or b"").decode(errors="replace").split()
    if word not in lines:
        return False
    disk.remove(name)
    return True


@final
class _Reporter:
    """What the agent tells of its robot."""

    def __init__(self, config: EdgeConfig, agent: EdgeAgent, robot: PolicyProcess, tallies: Tallies) -> None:
        self._config = config
        self._agent = agent
        self._robot = robot
        self._tallies = tallies

    def report(self) -> RobotReport:
        """Returns what is so now."""
        journal = self._agent.journal
        proved = journal.phase is not Phase.IDLE or not journal.committed
        healthy = proved or self._robot.healthy(journal.committed)
        return RobotReport(
            fits=self._config.fits,
            runtime=RELEASE,
            runs=journal.slots.get(journal.committed, ""),
            before=journal.slots[journal.spare],
            healthy=healthy,
            why="" if healthy else "the policy server does not answer as it should",
            tallies=self._tallies.read(),
        )


if __name__ == "__main__":
    sys.exit(main())
