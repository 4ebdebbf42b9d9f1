"""The kind of cluster that Slurm runs: its options, how its engine is hosted, checked and shown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from importlib.metadata import version

from mainspring.domain.codec import message
from mainspring.domain.ports import Engine
from mainspring.engines.common.kind import (
    AGENT_WORDS,
    CHIP_MEMORY,
    PRICES,
    AddOption,
    ClusterKind,
    EngineContext,
    Finding,
    Hosting,
    OptionForm,
    in_pairs,
)
from mainspring.engines.slurm.cluster.config import SlurmCluster
from mainspring.engines.slurm.setup.findings import STEPS, NodeAsk

LOOKS_PER_REFRESH = 4  # Allocations change sooner than nodes do; see `SlurmCluster.refresh_s`.
CALL_COMMANDS_MAX = 8  # Slurm commands in one call of its engine, at most: an inventory that refreshes all it knows.
STALE_COMMANDS = 3  # That many commands may run into their limit one after the other before a cluster counts as silent.
# Credentials of the account that Slurm's commands run under; agents, and so programs of users, get what the engine has.
_SECRETS = frozenset({"KRB5CCNAME", "SLURM_JWT"})


@message("OpenSlurm")
class OpenSlurm:
    """Makes a host serve a Slurm cluster. Its agents are to trust the certificate, PEM text, if there is one.

    Args:
        run_as: The users that jobs run as, by team; empty where they run under the account that submits them.
    """

    cluster: SlurmCluster
    certificate: str
    run_as: Mapping[str, str] = field(default_factory=dict)


def open_slurm(cluster: SlurmCluster, context: EngineContext) -> Engine:
    """Returns the engine of a Slurm cluster whose commands are on this machine.

    Args:
        context: Of its variables agents get only those that Slurm's commands need, and no credentials.
    """
    from mainspring.engines.slurm.cluster.commands import KEPT  # None but the host talks to Slurm.
    from mainspring.engines.slurm.engine import SlurmEngine

    python = cluster.python or sys.executable
    kept = context.for_agents(
        {name: value for name, value in context.environment.items() if name in KEPT - _SECRETS}, python
    )
    if cluster.simulated:
        kept["JAX_PLATFORMS"] = "cpu"
    return SlurmEngine(
        cluster,
        agent_command=(python, *AGENT_WORDS),
        environment=kept,
        clock=context.clock,
        users=context.users,
    )


def hosting(cluster: SlurmCluster) -> Hosting:
    """Returns how its engine is reached: here too, a shared folder may hang, which no thread survives."""
    return Hosting(
        ssh=cluster.ssh,
        python=cluster.python,
        call_s=CALL_COMMANDS_MAX * cluster.command_s_max,
        inventory_s=cluster.refresh_s,
        observe_s=cluster.refresh_s / LOOKS_PER_REFRESH,
        stale_s=2 * cluster.refresh_s + STALE_COMMANDS * cluster.command_s_max,
    )


def check(cluster: SlurmCluster, context: EngineContext, controller: str) -> Iterator[Finding]:
    """Returns what a look at its set-up finds, where Slurm's commands are.

    Args:
        context: Its variables, and what agents are to trust.
        controller: Where agents will call; "" while no server runs.
    """
    from mainspring.engines.slurm.cluster.commands import Commands  # Nothing but a check looks at a set-up.
    from mainspring.engines.slurm.setup.check import SetUp

    ask = NodeAsk(
        python=cluster.python or sys.executable,
        scratch=cluster.scratch,
        controller=controller,
        certificate=context.certificate,
        users=tuple(sorted(set(context.users.run_as.values()))) if context.users is not None else (),
    )
    commands = Commands(cluster, context.environment)
    return SetUp(cluster, commands, ask=ask, version=version("mainspring"), clock=context.clock).findings()


def facts(cluster: SlurmCluster, in_words: Callable[[float], str]) -> Mapping[str, str]:
    """Returns how a Slurm cluster is set up, and what limits it.

    Args:
        in_words: Puts a duration in words.
    """
    waiting = f"for up to {cluster.queued_nodes_max} nodes, {in_words(cluster.queue_wait_s_max)} at most"
    return {
        "partitions": ", ".join(cluster.partitions),
        "shared folder": cluster.shared,
        "commands": f"over SSH on {cluster.ssh}" if cluster.ssh else "on this machine",
        "interpreter": cluster.python,
        "tier to QOS": in_pairs(cluster.qos),
        "tier to partition": in_pairs(cluster.tier_partitions),
        "team to account": in_pairs(cluster.accounts),
        "GRES to chip": in_pairs(cluster.chips),
        "time limit": in_words(cluster.time_limit_s) if cluster.time_limit_s else "",
        "waiting there": waiting if cluster.delegated else "",
    }


KIND = ClusterKind(
    name=SlurmCluster.kind,
    settings=SlurmCluster,
    help="Add a Slurm cluster, after a look at its set-up: commands, partitions, folders, a job on one node.",
    options=(
        AddOption(
            field="partitions",
            flag="--partition",
            form=OptionForm.NAMES,
            help="Partition of Slurm's to use; repeat for more.",
            required=True,
        ),
        AddOption(
            field="shared",
            help="Folder that this machine and every node see alike; ours alone.",
            metavar="DIR",
            required=True,
        ),
        AddOption(
            field="delegated",
            form=OptionForm.FLAG,
            help="Others use it too: Slurm's queue decides where and when.",
        ),
        AddOption(
            field="ssh",
            help="Where Slurm's commands are, as ssh names it.",
            metavar="USER@HOST",
            shown_default="here",
        ),
        AddOption(
            field="python",
            help="Interpreter on the nodes that has Mainspring.",
            metavar="PATH",
            shown_default="this one",
        ),
        AddOption(field="scratch", help="Local folder on the nodes.", metavar="DIR", default="/tmp"),
        PRICES,
        AddOption(
            field="chips",
            flag="--chip",
            form=OptionForm.PAIRS,
            help="Our name for a type of GRES; repeat.",
            metavar="GRES=CHIP",
        ),
        CHIP_MEMORY,
        AddOption(field="qos", form=OptionForm.PAIRS, help="Slurm's QOS for a tier; repeat.", metavar="TIER=QOS"),
        AddOption(
            field="tier_partitions",
            flag="--tier-partition",
            form=OptionForm.PAIRS,
            help="Partition for a tier; repeat.",
            metavar="TIER=PARTITION",
        ),
        AddOption(
            field="accounts",
            flag="--account",
            form=OptionForm.PAIRS,
            help="Slurm's account for a team and those below it; repeat.",
            metavar="TEAM=ACCOUNT",
        ),
        AddOption(
            field="time_limit_s",
            flag="--time-limit",
            form=OptionForm.DURATION,
            help="Time to ask for each job",
            shown_default="the most there is",
        ),
    ),
    engine=open_slurm,
    hosting=hosting,
    opening=OpenSlurm,
    runs_as=True,
    steps=STEPS,
    check=check,
    facts=facts,
)
