"""Slurm: from a submit to a rank's first line, ours and plain sbatch; and what a look at a large cluster costs.

Run as `python -m benchmarks.slurm_launch [--quick]`. The Slurm is a real one on this machine. `sbatch_s`: from the call
of sbatch, for a script whose one line is `srun date`, to the time which that date tells. `ours_s`: from the SDK's call
that submits a job whose program is that date, through a server, the planner, Slurm and an agent. Both in turn, on idle
nodes. `observe_s`: one look at 500 allocations among 5,000 jobs; 64 of them run, the rest wait in Slurm's queue, and
the other jobs are somebody else's. `commands`: how many of Slurm's commands that took at most, counted by wrappers that
come first in PATH. `inventory_s`: every node of 64, again; `inventory_first_s`: for the first time. All are medians.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults.slurm_rig import ARRAY_CONF, crowd, until, variables, wrapped

from mainspring.app.base.home import Config
from mainspring.app.base.system import SystemClock
from mainspring.app.sdk.lab import Lab, job
from mainspring.domain.fleet import AllocationPhase, LaunchOrder
from mainspring.domain.ids import AllocationId, AttemptId, ClusterName, NodeName, RoleName
from mainspring.engines.slurm.cluster.config import SlurmCluster
from mainspring.engines.slurm.engine import SlurmEngine
from mainspring.testing.slurm import SlurmNodes, SlurmServer

LAUNCHES = 7
QUICK_LAUNCHES = 5
LAUNCH_NODES = 2
NODES = 64
ALLOCATIONS = 500
JOBS = 5_000
LOOKS = 5
LIMIT_S = 60.0
DATE = ("date", "+%s.%N")
COMMANDS = ("sacct", "sacctmgr", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")


def launches(folder: Path, count: int) -> dict[str, float]:
    """Measures both ways to a first line, in turn."""
    ours, theirs = [], []
    with (
        SlurmServer(folder / "server", nodes=[SlurmNodes(count=LAUNCH_NODES)]) as server,
        lab_on(server, folder) as lab,
    ):
        for number in range(count + 1):  # The first fills caches.
            theirs.append(sbatched(server, folder / f"said-{number}"))
            server.wait_idle()
            ours.append(submitted(lab, number))
            server.wait_idle()
            print(f"first line: ours {ours[-1]:.2f} s, sbatch {theirs[-1]:.2f} s", flush=True)
    found = {"ours_s": statistics.median(ours[1:]), "sbatch_s": statistics.median(theirs[1:])}
    return found | {"overhead_s": found["ours_s"] - found["sbatch_s"]}


@contextmanager
def lab_on(server: SlurmServer, folder: Path) -> Iterator[Lab]:
    """Gives a lab whose one cluster is that server; stops it whatever happens."""
    lab = Lab(folder / "home")
    lab.home.write_config(Config(clusters=(cluster_on(server, folder / "shared"),)))
    with variables(server.environment):
        lab.up(port=0)
    try:
        until(lambda: any(view.inventory.nodes for view in lab.fleet()), "the cluster's nodes")
        yield lab
    finally:
        lab.down()


def cluster_on(server: SlurmServer, shared: Path) -> SlurmCluster:
    shared.mkdir(mode=0o700)
    partitions = tuple(partition.name for partition in server.partitions)
    return SlurmCluster(name=ClusterName("slurm"), partitions=partitions, shared=str(shared), simulated=True)


def sbatched(server: SlurmServer, said: Path) -> float:
    script = said.with_suffix(".sh")
    script.write_text(f"#!/bin/sh\nsrun {' '.join(DATE)}\n")
    begun_s = time.time()
    done = server.run("sbatch", "--gres=gpu:h100:1", f"--output={said}", str(script))
    assert done.returncode == 0, done.stderr
    until(lambda: said.exists() and said.read_text().endswith("\n"), "the job's line", wait_s=LIMIT_S)
    return float(said.read_text()) - begun_s


def submitted(lab: Lab, number: int) -> float:
    spec = job(f"date-{number}", DATE, on="h100:1")
    begun_s = time.time()
    view = lab.run(spec)
    lab.wait(view.id, timeout_s=LIMIT_S)
    return float(b"".join(lab.logs(view.id))) - begun_s


def looks(folder: Path) -> dict[str, float]:
    """Measures looks at a large cluster: at its nodes, then at our allocations among everybody's jobs."""
    nodes = SlurmNodes(count=NODES, chips=1)  # One allocation a node; agents of 500 at once are too many for a laptop.
    with SlurmServer(folder / "server", nodes=[nodes], extra_conf=[ARRAY_CONF]) as server:
        cluster, counted = cluster_on(server, folder / "shared"), folder / "counted"
        count = dict.fromkeys(COMMANDS, f'echo >> {counted}\nexec REAL "$@"')
        ours, counting = (
            SlurmEngine(
                cluster,
                agent_command=("/bin/sh", "-c", "exec sleep 1000", "agent"),
                environment={**os.environ, **server.environment, **more},
                clock=SystemClock(),
            )
            for more in ({}, {"PATH": wrapped(folder / "wrapped", count)})
        )
        figures = {"inventory_first_s": timed(ours.inventory)}
        figures["inventory_s"] = statistics.median(timed(ours.inventory) for _ in range(LOOKS))
        print(f"inventory of {NODES}: {figures}", flush=True)
        crowd(server, JOBS - ALLOCATIONS)
        fill(ours, server)
        found = []
        most = 0
        for _ in range(LOOKS):
            found.append(timed(ours.observe))
            counted.write_text("")
            counting.observe()
            most = max(most, len(counted.read_text().splitlines()))
            print(f"observe: {found[-1]:.3f} s, {most} commands", flush=True)
        figures["crowded_inventory_s"] = statistics.median(timed(ours.inventory) for _ in range(LOOKS))
        check(ours, server)
    return figures | {"observe_s": statistics.median(found), "commands": most}


def fill(engine: SlurmEngine, server: SlurmServer) -> None:
    """Launches all allocations, one a chip and many for each."""
    nodes = engine.inventory().nodes
    begun_s = time.monotonic()
    for number in range(ALLOCATIONS):
        engine.launch(
            LaunchOrder(
                allocation=AllocationId(f"allocation-{number:04}"),
                attempt=AttemptId(f"attempt-{number:04}"),
                role=RoleName("main"),
                nodes=(NodeName(nodes[number % NODES].name),),
                chip_milli=(1_000,),
                controller="http://127.0.0.1:1",
                token="none",
            )
        )
    print(f"{ALLOCATIONS} launches: {time.monotonic() - begun_s:.1f} s", flush=True)
    until(lambda: running(engine) == NODES, f"{NODES} allocations to run", wait_s=2 * LIMIT_S)


def running(engine: SlurmEngine) -> int:
    return sum(one.phase is AllocationPhase.RUNNING for one in engine.observe())


def check(engine: SlurmEngine, server: SlurmServer) -> None:
    """Sees that what was measured is what was meant."""
    phases = [one.phase for one in engine.observe()]
    assert len(phases) == ALLOCATIONS
    assert phases.count(AllocationPhase.PENDING) == ALLOCATIONS - NODES
    rows = server.run("squeue", "-h", "-o", "%A").stdout.split()
    assert len(rows) == JOBS, len(rows)


def timed(ask: Callable[[], object]) -> float:
    begun_s = time.monotonic()
    ask()
    return time.monotonic() - begun_s


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK_LAUNCHES} launches of each kind in place of {LAUNCHES}"
    )
    count = QUICK_LAUNCHES if parser.parse_args().quick else LAUNCHES
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    folder = Path(tempfile.mkdtemp(prefix="slurm-launch-"))
    try:
        for name in ("launches", "looks"):
            (folder / name).mkdir()
        figures = launches(folder / "launches", count) | looks(folder / "looks")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
