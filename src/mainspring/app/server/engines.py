"""Engine wiring: which engine each configured cluster has, and what its agents get of the server's environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import final

from mainspring.app.base.home import Config, Home
from mainspring.app.base.system import SystemClock
from mainspring.domain.codec import message
from mainspring.domain.ids import ClusterName
from mainspring.domain.ports import Clock, Engine
from mainspring.domain.wire.trust import CERTIFICATE_VARIABLE
from mainspring.engines.common.nonblocking import NonBlockingEngine
from mainspring.engines.local.engine import LocalCluster, LocalEngine
from mainspring.engines.remote.engine import RemoteEngine, ssh_words
from mainspring.engines.slurm import SlurmCluster
from mainspring.engines.slurm.cluster.commands import KEPT
from mainspring.engines.slurm.engine import SlurmEngine

AGENT_WORDS = ("-m", "mainspring", "agent")
LOOKS_PER_REFRESH = 4  # Allocations change sooner than nodes do; see `SlurmCluster.refresh_s`.
CALL_COMMANDS_MAX = 8  # Slurm commands in one call of its engine, at most: an inventory that refreshes all it knows.
STALE_COMMANDS = 3  # That many commands may run into their limit one after the other before a cluster counts as silent.
# Credentials of the account that Slurm's commands run under; agents, and so programs of users, get what the engine has.
_SECRETS = frozenset({"KRB5CCNAME", "SLURM_JWT"})


@message("OpenSlurm")
class OpenSlurm:
    """Makes a host serve a Slurm cluster. Its agents are to trust the certificate, PEM text, if there is one."""

    cluster: SlurmCluster
    certificate: str


def open_engine(opening: OpenSlurm) -> Engine:
    """Returns the engine that an opening names, for another machine.

    Args:
        opening: The first message from there.
    """
    return slurm_engine(opening.cluster, certificate=opening.certificate, environment=os.environ, clock=SystemClock())


def slurm_engine(
    cluster: SlurmCluster, *, certificate: str, environment: Mapping[str, str], clock: Clock
) -> SlurmEngine:
    """Returns the engine of a Slurm cluster whose commands are on this machine.

    Args:
        cluster: The cluster.
        certificate: What its agents are to trust, as PEM text; "" for what its nodes trust.
        environment: This process's own.
        clock: Time.
    """
    python = cluster.python or sys.executable
    kept = {name: environment[name] for name in KEPT - _SECRETS if name in environment}
    kept["PATH"] = _path(python, kept)
    if certificate:
        kept[CERTIFICATE_VARIABLE] = certificate
    if cluster.simulated:
        kept["JAX_PLATFORMS"] = "cpu"
    return SlurmEngine(cluster, agent_command=(python, *AGENT_WORDS), environment=kept, clock=clock)


def local_engine(
    cluster: LocalCluster, *, root: Path, certificate: str, environment: Mapping[str, str], clock: Clock
) -> LocalEngine:
    """Returns the engine of a cluster that this machine pretends to be.

    Args:
        cluster: The cluster; where chips are pretended, JAX runs on the processors.
        root: Its folder.
        certificate: What its agents are to trust, as PEM text; "" for no TLS.
        environment: This process's own.
        clock: Time.
    """
    kept = {name: value for name, value in environment.items() if not name.startswith("MAINSPRING_")}
    kept["PATH"] = _path(sys.executable, kept)
    if certificate:
        kept[CERTIFICATE_VARIABLE] = certificate
    if cluster.simulated or cluster.chip == "cpu":
        kept["JAX_PLATFORMS"] = "cpu"
        # Ranks share this machine's processors: XLA's threads (it reads NPROC) get each chip's share of them, no more.
        chips = cluster.nodes * cluster.chips_per_node
        kept.setdefault("NPROC", str(max(1, (os.cpu_count() or 1) // chips)))
    command = (sys.executable, *AGENT_WORDS)
    return LocalEngine(cluster, root=root, agent_command=command, environment=kept, clock=clock)


@final
class Engines:
    """The engines of all configured clusters.

    Args:
        config: Names the clusters.
        home: Keeps what local ones remember.
        environment: This process's own.
        clock: Time.
    """

    def __init__(self, config: Config, home: Home, *, environment: Mapping[str, str], clock: Clock) -> None:
        self._far: list[RemoteEngine] = []
        self._behind: list[NonBlockingEngine] = []
        self.by_name: dict[ClusterName, Engine] = {}
        certificate = home.certificate(config)
        for local in config.clusters:
            root = home.engines / local.name
            self.by_name[local.name] = local_engine(
                local, root=root, certificate=certificate, environment=environment, clock=clock
            )
        for slurm in config.slurm:
            far = _slurm_far(slurm, certificate, environment, clock)
            behind = NonBlockingEngine(
                far,
                name=slurm.name,
                clock=clock,
                inventory_s=slurm.refresh_s,
                observe_s=slurm.refresh_s / LOOKS_PER_REFRESH,
                stale_s=2 * slurm.refresh_s + STALE_COMMANDS * slurm.command_s_max,
            )
            self._far.append(far)
            self._behind.append(behind)
            self.by_name[slurm.name] = behind

    def close(self) -> None:
        """Hangs up and ends all threads. What the engines have started goes on."""
        for far in self._far:
            far.close()
        for behind in self._behind:
            behind.close()


def _slurm_far(cluster: SlurmCluster, certificate: str, environment: Mapping[str, str], clock: Clock) -> RemoteEngine:
    """Returns an engine in a process of its own: here too, a shared folder may hang, which no thread survives."""
    words: tuple[str, ...] = (sys.executable, "-P", "-m", "mainspring", "engine-host")
    if cluster.ssh:
        words = ssh_words(cluster.ssh, cluster.python or sys.executable, "engine-host")
    return RemoteEngine(
        words,
        OpenSlurm(cluster=cluster, certificate=certificate),
        on=f"{cluster.name} over {cluster.ssh}" if cluster.ssh else cluster.name,
        environment={name: value for name, value in environment.items() if not name.startswith("MAINSPRING_")},
        clock=clock,
        call_s=CALL_COMMANDS_MAX * cluster.command_s_max,
    )


def _path(python: str, environment: Mapping[str, str]) -> str:
    """Returns a search path on which `python` is the one that runs Mainspring."""
    return os.pathsep.join([os.path.dirname(python), environment.get("PATH", os.defpath)])
