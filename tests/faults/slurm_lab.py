"""A real lab on a real Slurm, with a pretended cluster beside it: what its tests have in common.

Slurm's nodes n1 to n3 have h100 and are ours alone; m1 and m2 have a100, which others use too and first: "urgent" jobs
preempt ours. The pretended cluster has two v5e.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from mainspring.app.base.home import Config
from mainspring.app.sdk.lab import Lab, job
from mainspring.domain.answers import JobView
from mainspring.domain.fleet import NodeCondition
from mainspring.domain.ids import ChipName, ClusterName
from mainspring.domain.job import JobSpec
from mainspring.domain.life import JobState, ended
from mainspring.domain.wire.events.leads import GenerationResumedEvent
from mainspring.engines.local.config import LocalCluster
from mainspring.engines.slurm.cluster.config import SlurmCluster
from mainspring.testing.slurm import SlurmNodes, SlurmPartition, SlurmServer
from tests.app.conftest import COUNTER
from tests.faults.slurm_rig import until, variables, wrapped

GRACE_S = 10.0
PINNED, DELEGATED, BESIDE = ClusterName("pinned"), ClusterName("delegated"), ClusterName("beside")
NODES = (
    SlurmNodes(prefix="n", count=3, chip="h100", chips=1, cpus=16, memory_mib=64_000),
    SlurmNodes(prefix="m", count=2, chip="a100", chips=1, cpus=16, memory_mib=64_000),
)
PARTITIONS = (
    SlurmPartition(name="robots", nodes="n[1-3]"),
    SlurmPartition(name="shared", nodes="m[1-2]", extra=f"PriorityTier=1 PreemptMode=REQUEUE GraceTime={GRACE_S:g}"),
    SlurmPartition(name="urgent", nodes="m[1-2]", extra="PriorityTier=10 PreemptMode=OFF"),
)
RANKS = 2
STEPS = 600  # Three seconds: word of a stop takes a part of one.


class SlurmLab:
    """The lab, its Slurm, and what tests ask of both."""

    def __init__(self, lab: Lab, server: SlurmServer, folder: Path) -> None:
        self.lab = lab
        self.server = server
        self.folder = folder
        self.fault = folder / "fault"  # What it holds is done by a shell before each of Slurm's commands.

    def counting(self, name: str, on: list[str], *halts: int, steps: int = STEPS, every: int = 7) -> JobSpec:
        """Returns a job of two ranks, each a chain of numbers, that halts after the steps named."""
        (self.folder / name).mkdir()
        words = [sys.executable, str(COUNTER), str(steps), str(every), str(self.folder / name), *map(str, halts)]
        return job(name, words, on=on, replicas=RANKS)

    def open(self, name: str, step: int) -> None:
        """Lets a job go on that halted after a step."""
        (self.folder / name / f"go-{step}").touch()

    def halted(self, name: str, step: int) -> JobView:
        """Waits until both ranks halt after a step, and the controller knows it; returns the job as it is then."""
        gate = self.folder / name
        until(lambda: all((gate / f"at-{step}-{rank}").exists() for rank in range(RANKS)), f"ranks at step {step}")
        until(lambda: self.lab.status(name).step == step, "the controller to know the step")
        until(lambda: len(self.pids(name)) == RANKS, "the controller to know every rank's process")
        return self.lab.status(name)

    def pids(self, name: str) -> list[int]:
        """Returns the processes of a job's ranks."""
        view = self.lab.status(name)
        return [rank.pid for rank in view.attempts[-1].ranks if rank.alive and rank.pid > 0] if view.attempts else []

    def resumed(self, name: str) -> list[int]:
        """Returns the step that each generation of a job began with."""
        events = self.lab.events(name)
        return [int(event.detail["step"]) for event in events if event.kind == GenerationResumedEvent.kind]

    def story(self, name: str) -> str:
        """Returns what happened to a job, for messages."""
        return "\n".join(f"{event.time_s:.2f} {event.kind} {event.detail}" for event in self.lab.events(name))

    def check(self, name: str, steps: int = STEPS, *, wait_s: float = 90.0) -> JobView:
        """Waits for a job to succeed, and sees that no step of it was lost or doubled; returns it."""
        view = self.lab.wait(name, timeout_s=wait_s)
        assert view.state is JobState.SUCCEEDED, view.reason
        for rank in range(RANKS):
            number = np.array([float(rank + 1)])
            for step in range(1, steps + 1):
                number = np.sin(number * 3.0 + step)
            assert view.result[f"number_{rank}"] == float(number[0])
        return view

    def free(self, cluster: ClusterName) -> float:
        """Returns how many chips of a cluster nobody uses, as far as the controller knows."""
        (view,) = (view for view in self.lab.fleet() if view.inventory.cluster == cluster)
        nodes = [node for node in view.inventory.nodes if node.condition is NodeCondition.READY]
        used = sum(node.foreign_chip_milli + view.used_chip_milli.get(node.name, 0) for node in nodes)
        return sum(node.chips for node in nodes) - used / 1_000

    def idle(self) -> bool:
        """Returns whether nothing of Slurm is left running."""
        return not self.server.run("squeue", "-h").stdout.strip()


@contextmanager
def slurm_lab(folder: Path) -> Iterator[SlurmLab]:
    """Gives a lab; ends its jobs and all processes whatever happens."""
    trouble = f'[ ! -e {folder}/fault ] || . {folder}/fault\nexec REAL "$@"'
    path = wrapped(folder / "commands", dict.fromkeys(("sbatch", "scancel", "scontrol", "squeue"), trouble))
    with (
        SlurmServer(folder / "server", nodes=NODES, partitions=PARTITIONS) as server,
        variables({**server.environment, "PATH": path}),
    ):
        lab = Lab(folder / "home")
        lab.home.write_config(_config(folder))
        lab.up(port=0)
        try:
            until(lambda: len(lab.fleet()) == 3 and all(view.inventory.nodes for view in lab.fleet()), "all clusters")
            yield SlurmLab(lab, server, folder)
        finally:
            for view in lab.ps():
                if not ended(view.state):
                    lab.stop(view.id)
            with suppress(AssertionError):
                until(lambda: all(ended(view.state) for view in lab.ps()), "jobs to end", wait_s=20)
            lab.down()


def _config(folder: Path) -> Config:
    def cluster(name: ClusterName, partition: str, *, delegated: bool, dollars: float) -> SlurmCluster:
        shared = folder / f"{name} of 'us'"
        shared.mkdir(mode=0o700)
        return SlurmCluster(
            name=name,
            partitions=(partition,),
            shared=str(shared),
            delegated=delegated,
            dollars_per_chip_hour={ChipName("h100" if name == PINNED else "a100"): dollars},
            refresh_s=2.0,
            simulated=True,
        )

    beside = LocalCluster(name=BESIDE, chip=ChipName("v5e"), chips_per_node=1, nodes=RANKS, dollars_per_chip_hour=1.2)
    return Config(
        clusters=(
            beside,
            cluster(PINNED, "robots", delegated=False, dollars=2.4),
            cluster(DELEGATED, "shared", delegated=True, dollars=1.8),
        ),
    )
