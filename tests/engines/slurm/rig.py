"""A real Slurm with agents that do as their orders' folder says, for the tests of the engine."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mainspring.domain.fleet import AllocationPhase, AllocationSeen, LaunchOrder
from mainspring.domain.ids import AllocationId, AttemptId, ChipName, ClusterName, NodeName, RoleName
from mainspring.engines.slurm.cluster.config import SlurmCluster
from mainspring.engines.slurm.engine import SlurmEngine
from mainspring.testing import FakeClock
from mainspring.testing.slurm import SlurmServer

# An agent that says what it was given, and ends when asked to unless it is deaf.
AGENT = """
import json, os, signal, sys
with open(sys.argv[sys.argv.index("--order") + 1]) as file:
    order = json.load(file)
os.chdir(order["report_dir"])
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
found = {"order": order, "environment": dict(os.environ), "pid": os.getpid(), "work": os.getcwd()}
with open("draft", "w") as file:
    json.dump(found, file)
os.rename("draft", "found.json")
with open(os.environ["STARTS"], "a") as file:
    file.write(order["node"] + "\\n")
while True:
    signal.sigwait([signal.SIGTERM])
    with open("asked", "a") as file:
        file.write(open("grace").read())
    if os.environ["DEAF"] != "yes":
        break
with open("exit.json", "w") as file:
    json.dump({"exit_code": 0, "reason": "stopped by its engine"}, file)
"""
WAITS_MAX = 8_000
WAIT_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one agent said it was given."""

    order: Mapping[str, object]
    environment: Mapping[str, str]
    pid: int


class Rig:
    """One shared folder on one cluster.

    Args:
        root: A folder of the test's own.
        server: The cluster.
        fields: What differs from the usual description.
        environment: Variables the agents get besides.
    """

    def __init__(
        self,
        root: Path,
        server: SlurmServer,
        fields: Mapping[str, object] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.server = server
        self.clock = FakeClock()
        self.shared = root / "shared"
        self.scratch = root / "scratch"
        self.scratch.mkdir()
        self._starts = root / "starts"
        self._program = root / "agent.py"
        self._program.write_text(AGENT)
        usual: dict[str, object] = {
            "name": ClusterName("alpha"),
            "partitions": ("main",),
            "shared": str(self.shared),
            "scratch": str(self.scratch),
            "chips": {"h100": ChipName("h100")},
            "command_s_max": 60.0,
            "refresh_s": 0.0,
        }
        self.cluster = SlurmCluster(**{**usual, **(fields or {})})  # type: ignore[arg-type]
        self._environment = {**os.environ, **server.environment, "STARTS": str(self._starts), "DEAF": "no"}
        self._environment |= environment or {}
        self.engine = self.another()

    def another(self, *, before_path: Path | None = None) -> SlurmEngine:
        """Returns one more engine on the same cluster and folder.

        Args:
            before_path: A folder whose programs are found before Slurm's own.
        """
        environment = dict(self._environment)
        if before_path is not None:
            environment["PATH"] = f"{before_path}:{environment['PATH']}"
        command = (sys.executable, "-S", "-E", str(self._program))
        return SlurmEngine(self.cluster, agent_command=command, environment=environment, clock=self.clock)

    def starts(self) -> int:
        """Returns how many agents have ever been started."""
        return len(self._starts.read_text().splitlines()) if self._starts.exists() else 0

    def seen(self, name: str = "allocation-1", engine: SlurmEngine | None = None) -> AllocationSeen | None:
        """Returns an allocation as it is shown now."""
        shown = (engine or self.engine).observe()
        return next((allocation for allocation in shown if allocation.allocation == name), None)

    def until(self, condition: Callable[[], bool], *, step_s: float = WAIT_S) -> None:
        """Lets time pass, the engine's `step_s` a look, until a condition holds."""
        pause = threading.Event()
        for _ in range(WAITS_MAX):
            if condition():
                return
            pause.wait(WAIT_S)
            self.clock.advance(step_s)
        raise AssertionError(f"waited too long; last seen: {self.engine.observe()}")

    def until_phase(self, phase: AllocationPhase, name: str = "allocation-1", step_s: float = WAIT_S) -> AllocationSeen:
        """Lets time pass until an allocation is in a phase; returns how it is shown then."""
        found: list[AllocationSeen] = []

        def reached() -> bool:
            seen = self.seen(name)
            if seen is not None and seen.phase is phase:
                found.append(seen)
            return bool(found)

        self.until(reached, step_s=step_s)
        return found[0]

    def found(self, index: int, name: str = "allocation-1") -> Found:
        """Returns what an agent was given, once it has started."""
        path = self.shared / name / f"node-{index}" / "found.json"
        self.until(path.exists)
        said = json.loads(path.read_text())
        return Found(order=said["order"], environment=said["environment"], pid=said["pid"])

    def running(self, order: LaunchOrder) -> None:
        """Launches an order, and waits until all of its agents run."""
        self.engine.launch(order)
        for index in range(len(order.nodes)):
            self.found(index, order.allocation)
        self.until_phase(AllocationPhase.RUNNING, order.allocation)

    def slurm(self, *words: str) -> str:
        """Returns what a command of Slurm's wrote, as its operator."""
        done = self.server.run(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def jobs(self, name: str = "allocation-1", *, states: str = "PENDING,RUNNING,COMPLETING") -> list[str]:
        """Returns the numbers of an allocation's jobs in these states."""
        return self.slurm("squeue", "-h", f"--name=mainspring.{name}", f"--states={states}", "-o", "%A").split()

    def clear(self) -> None:
        """Ends everything by force, deaf agents and Slurm's own jobs included."""
        self.server.run("scancel", f"--partition={self.cluster.partitions[0]}")
        for path in self.shared.glob("*/node-*/found.json"):
            try:
                os.kill(json.loads(path.read_text())["pid"], signal.SIGKILL)
            except ProcessLookupError:
                continue
        for path in self.shared.glob("allocation-*"):
            self.engine.stop(AllocationId(path.name), grace_s=0.0)
        self.until(lambda: all(one.phase is AllocationPhase.ENDED for one in self.engine.observe()), step_s=1.0)
        self.until(lambda: not self.slurm("squeue", "-h", "-o", "%A"))


def order(
    *nodes: str,
    name: str = "allocation-1",
    chip_milli: int = 4_000,
    job: str = "",
    cpu_milli: tuple[int, ...] = (),
    memory_mib: tuple[int, ...] = (),
) -> LaunchOrder:
    """Returns an order for these nodes."""
    return LaunchOrder(
        allocation=AllocationId(name),
        attempt=AttemptId("attempt-1"),
        role=RoleName("main"),
        nodes=tuple(NodeName(node) for node in nodes),
        chip_milli=(chip_milli,) * len(nodes),
        cpu_milli=cpu_milli,
        memory_mib=memory_mib,
        controller="http://127.0.0.1:1",
        token="a-secret",
        job=job,
    )
