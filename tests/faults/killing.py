"""What strikes a whole lab at random, what starts its controller again, and what of it still lives."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from contextlib import suppress
from enum import Enum
from pathlib import Path

from mainspring.app.sdk.lab import Lab
from mainspring.app.server import daemon
from mainspring.domain import codec
from mainspring.domain.errors import MainspringError
from mainspring.domain.fleet import AgentOrder
from mainspring.domain.ids import AttemptId
from mainspring.testing.postgres import PostgresServer

RUN_VARIABLE = "KILLS_RUN"  # Everything that a lab starts, and what that starts, inherits it.
# A third rank killed without a step beyond the furthest would be held against the program (`failures.ALIKE_MAX`).
RANKS_MAX = 2
KEEP_S = 0.2  # How soon a service manager sees that a controller is gone.
LOOK_S = 0.1


class Kind(Enum):
    CONTROLLER = "controller"
    AGENT = "agent"
    READY = "agent without an order"
    RANK = "rank"
    DATABASE = "database"
    OTHER = "other"


# What strikes draw from without putting back, so that every kind has its turn: ranks die more often than machines.
BAG = (*[Kind.RANK] * 5, *[Kind.AGENT] * 3, Kind.CONTROLLER)


def living(run: str) -> dict[int, Kind]:
    """Returns every process of a run but this one, by number."""
    mark = f"{RUN_VARIABLE}={run}".encode()
    found = {}
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        with suppress(OSError):
            if pid != os.getpid() and mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found[pid] = _kind(pid)
    return found


def named(pid: int) -> str:
    """Returns the command of a process, for people."""
    with suppress(OSError):
        return b" ".join(_words(pid)).decode(errors="replace")[:200]
    return "gone"


def _words(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def _stat(pid: int) -> list[str]:
    """Returns what proc(5) says of a process, from its state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _kind(pid: int) -> Kind:
    words = set(_words(pid))
    if int(_stat(pid)[3]) != pid:  # Such as what is forked off and has not become a program of its own yet.
        return Kind.OTHER
    if b"tests.faults.counted" in words:
        return Kind.RANK
    if {b"mainspring", b"agent"} <= words:
        return Kind.AGENT if _order(pid).exists() else Kind.READY
    return Kind.CONTROLLER if {b"mainspring", b"server"} <= words else Kind.OTHER


def _order(agent: int) -> Path:
    """Returns where the order of an agent is: it works in the folder of its own."""
    return Path(f"/proc/{agent}/cwd").readlink() / "order.json"


def _attempt(rank: int) -> AttemptId:
    """Returns the attempt of a rank, from the order of the agent that started it."""
    return codec.decode(AgentOrder, _order(int(_stat(rank)[1])).read_bytes()).attempt


class Keeper:
    """A service manager: starts the controller whenever it is gone."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self.failures: list[str] = []  # Starts that did not work, as when the controller was killed meanwhile.

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _keep(self) -> None:
        while not self._stopping.wait(KEEP_S):
            record = self._lab.home.server()
            if record is None or not daemon.running(record, self._lab.home):
                try:
                    self._lab.up()
                except MainspringError as error:
                    self.failures.append(str(error))


class Killer:
    """Kills one process of the run after the other, until it is stopped.

    Args:
        run: Whose.
        pause_s: The longest pause between two.
        database: That of the run, which is killed and started anew as often as its controller is; None to let it be.
    """

    def __init__(self, run: str, *, seed: int, pause_s: float, database: PostgresServer | None = None) -> None:
        self._run = run
        self._database = database
        self._bag = BAG if database is None else (*BAG, Kind.DATABASE)
        self._dice = random.Random(seed)
        self._pause_s = pause_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._strike_on, daemon=True)
        self._ranks: Counter[AttemptId] = Counter()
        self.killed: Counter[Kind] = Counter()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    @property
    def done(self) -> bool:
        """Returns whether every kind had its turn."""
        return set(self.killed) == set(self._bag)

    @property
    def told(self) -> str:
        """Returns how many were killed, for people."""
        return ", ".join(f"{count} of kind {kind.value}" for kind, count in self.killed.items()) or "none"

    def _strike_on(self) -> None:
        bag: list[Kind] = []
        while not self._stopping.wait(self._dice.uniform(0.0, self._pause_s)):
            bag = bag or self._dice.sample(self._bag, len(self._bag))
            kind = bag.pop()
            while not self._struck(kind) and not self._stopping.wait(LOOK_S):
                pass

    def _struck(self, kind: Kind) -> bool:
        if kind is Kind.DATABASE:
            assert self._database is not None
            self._database.kill()
            self._database.serve()
            self.killed[kind] += 1
            return True
        victims = [pid for pid, each in living(self._run).items() if each is kind and self._may(pid, kind)]
        if not victims:
            return False
        victim = self._dice.choice(victims)
        with suppress(OSError, ValueError):  # It ended by itself, or its agent has.
            if kind is Kind.RANK:
                self._ranks[_attempt(victim)] += 1
            os.kill(victim, signal.SIGKILL)
            self.killed[kind] += 1
        return True

    def _may(self, pid: int, kind: Kind) -> bool:
        with suppress(OSError, ValueError):
            return kind is not Kind.RANK or self._ranks[_attempt(pid)] < RANKS_MAX
        return False
