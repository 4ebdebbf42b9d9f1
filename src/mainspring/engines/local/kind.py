"""The kind of cluster that this machine pretends: its options, and what its agents get of the server's environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

from mainspring.domain.codec import decode
from mainspring.domain.errors import InvalidMessage
from mainspring.domain.ids import ChipName, ClusterName
from mainspring.domain.ports import Engine
from mainspring.engines.common.kind import (
    AGENT_WORDS,
    AddOption,
    CheckResult,
    ClusterKind,
    EngineContext,
    Finding,
    OptionForm,
)
from mainspring.engines.common.steps import as_advice
from mainspring.engines.local.config import LocalCluster

LOOK_S_MAX = 60.0  # A look at the network reads some hundred small files.


def open_local(cluster: LocalCluster, context: EngineContext) -> Engine:
    """Returns the engine of a cluster that this machine pretends to be.

    Args:
        cluster: The cluster; where chips are pretended, JAX runs on the processors.
        context: Its folder is below that of the context.
    """
    from mainspring.engines.local.engine import LocalEngine  # No command but the server's starts processes.

    assert context.folder is not None
    kept = context.for_agents(context.environment_but_ours(), sys.executable)
    if cluster.simulated or cluster.chip == "cpu":
        kept["JAX_PLATFORMS"] = "cpu"
        # Ranks share this machine's processors: XLA's threads (it reads NPROC) get each chip's share of them, no more.
        kept.setdefault("NPROC", str(max(1, (os.cpu_count() or 1) // (cluster.nodes * cluster.chips_per_node))))
    return LocalEngine(
        cluster,
        root=context.folder / cluster.name,
        agent_command=(sys.executable, *AGENT_WORDS),
        ready_command=(sys.executable, *AGENT_WORDS, "--wait"),
        environment=kept,
        clock=context.clock,
        users=context.users,
    )


def check_local(cluster: LocalCluster, context: EngineContext, controller: str) -> Iterator[Finding]:
    """Yields how this machine's network is set up for collectives; nothing of a machine that is pretended.

    Args:
        cluster: The cluster.
        context: Its environment is what ranks may have.
        controller: Of no matter here.
    """
    if cluster.simulated:
        return
    words = [sys.executable, "-P", "-m", "mainspring", "probes", "network", "--json"]
    try:
        environment = context.environment_but_ours()
        looked = subprocess.run(words, capture_output=True, timeout=LOOK_S_MAX, env=environment, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        found, fix = str(error), f"see what this says: {' '.join(words)}"
        yield Finding(name="network", standing=CheckResult.WARNING, found=found, fix=fix)
        return
    for line in looked.stdout.splitlines():
        with suppress(InvalidMessage):  # What is no finding is passed over.
            yield as_advice(decode(Finding, line))


def this_machine() -> tuple[LocalCluster, ...]:
    """Returns this machine as a cluster of one node whose chips are its processors."""
    return (
        LocalCluster(
            name=ClusterName("local"),
            chip=ChipName("cpu"),
            chips_per_node=os.cpu_count() or 1,
            nodes=1,
            dollars_per_chip_hour=0.0,
            simulated=False,
        ),
    )


KIND = ClusterKind(
    name=LocalCluster.kind,
    settings=LocalCluster,
    help="Add a cluster that this machine pretends, of any chips.",
    options=(
        AddOption(field="chip", help="Type of its chips.", required=True),
        AddOption(
            field="nodes",
            form=OptionForm.COUNT,
            help="Nodes; each agent is a process of this machine.",
            default=1,
            least=1,
        ),
        AddOption(field="chips_per_node", form=OptionForm.COUNT, help="Chips on each.", default=1, least=1),
        AddOption(
            field="dollars_per_chip_hour",
            flag="--price",
            form=OptionForm.NUMBER,
            help="Price of a chip for an hour.",
            metavar="DOLLARS",
            least=0,
        ),
        AddOption(
            field="racks",
            form=OptionForm.COUNT,
            help="Racks to spread the nodes over; 0 for none.",
            least=0,
        ),
    ),
    engine=open_local,
    steps=("adapters",),
    check=check_local,
    here=True,
    runs_as=True,
    found=this_machine,
)
