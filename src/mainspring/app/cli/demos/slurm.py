"""The clusters of `ms demo --engine slurm`: a real Slurm of this machine, and a pretended cluster beside it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mainspring.app.base.home import Config
from mainspring.app.cli.demos.job import Stage, v5e_beside
from mainspring.app.render.tables import ERRORS
from mainspring.domain.errors import Unavailable
from mainspring.domain.ids import ChipName, ClusterName
from mainspring.engines.slurm.cluster.config import SlurmCluster
from mainspring.testing.slurm import SlurmNodes, SlurmPartition, SlurmServer, slurm_missing

NODES = 4
PARTITION = "robots"


def check_slurm() -> None:
    """Sees that a Slurm can be started here.

    Raises:
        Unavailable: Something it needs is not installed; says what to install.
    """
    missing = slurm_missing()
    if missing:
        what, _, install = missing.partition("; ")
        raise Unavailable("run the demo on Slurm", got=what, next_step=install)


@contextmanager
def on_slurm(home: Path) -> Iterator[Stage]:
    """Gives a Slurm cluster with the better chip and a pretended one beside it; stops Slurm whatever happens.

    Args:
        home: The demo's home folder; what Slurm keeps is below it.

    Raises:
        Unavailable: Slurm does not start.
    """
    folder = home / "slurm"
    nodes = SlurmNodes(count=NODES, chip="h100", chips=1, cpus=16, memory_mib=64_000)
    shared = folder / "shared"
    shared.mkdir(mode=0o700, parents=True)
    cluster = SlurmCluster(
        name=ClusterName("slurm"),
        partitions=(PARTITION,),
        shared=str(shared),
        dollars_per_chip_hour={ChipName("h100"): 2.4},
        simulated=True,
    )
    before = dict(os.environ)
    with SlurmServer(folder / "server", nodes=[nodes], partitions=[SlurmPartition(name=PARTITION)]) as server:
        version = server.run("sinfo", "--version").stdout.strip()
        ERRORS.print(f"{version}: {NODES} nodes in partition {PARTITION}, on this machine", style="dim")
        os.environ.update(server.environment)  # For the Mainspring server, which is started from here.
        try:
            yield Stage(config=Config(clusters=(v5e_beside(), cluster)))
        finally:
            for name in server.environment:
                os.environ.pop(name)
            os.environ.update(before)
