"""Settings of a Slurm cluster, as its operator gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from mainspring.domain.errors import InvalidSpec
from mainspring.domain.ids import ChipName, ClusterName, checked_name
from mainspring.domain.job import CHIP_MEMORY_GIB_MAX

PARTITIONS_MAX = 64
_WEEK_S = 7 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmCluster:
    """A Slurm cluster, as its operator describes it.

    Args:
        partitions: Slurm's partitions to use. Of a pinned cluster they are ours alone; of a delegated one others use
            them too.
        shared: Absolute folder that every node and the machine of the commands see alike; ours alone.
        delegated: Whether Slurm's queue decides where and when (a cluster shared with others); else we name nodes.
        python: The interpreter on the nodes that has Mainspring installed; "" for the one that runs the engine.
        scratch: Folder on each node for sockets, code and state: fast, local, need not outlive a job.
        ssh: Where the commands are run, as ssh names it ("ada@login.lab"); "" for this machine.
        chips: Chip type by the type of GRES, where the two differ ({"nvidia_h100_80gb_hbm3": "h100"}).
        chip_memory_gib: Memory of one chip by chip type, where neither the type of GRES nor a feature tells it.
        dollars_per_chip_hour: Price by chip type; Slurm knows none.
        accounts: Slurm account by team; teams below one share its account; others run under the user's own.
        qos: Slurm QOS by tier ("critical", "standard", "opportunistic"); the default one where none is named.
        tier_partitions: Partition by tier, where tiers are partitions; must be among `partitions`.
        time_limit_s: Time asked for each job; 0 for the most the partition gives.
        notice_s: How long before Slurm takes an allocation back for time its agents are told.
        queued_nodes_max: Delegated: for how many nodes beyond the idle ones our allocations may wait in Slurm's queue.
        queue_wait_s_max: Delegated: how long one may wait there before it is withdrawn and placed anew.
        command_s_max: How long one of Slurm's commands may take.
        refresh_s: How old what is known of nodes may be; allocations are looked at four times as often.
        simulated: Whether its chips are pretended.
        losses_per_node_hour: How often it takes a node back, on average.
    """

    kind: ClassVar[str] = "slurm"

    name: ClusterName
    partitions: tuple[str, ...]
    shared: str
    delegated: bool = False
    python: str = ""
    scratch: str = "/tmp"
    ssh: str = ""
    chips: Mapping[str, ChipName] = field(default_factory=dict)
    chip_memory_gib: Mapping[ChipName, float] = field(default_factory=dict)
    dollars_per_chip_hour: Mapping[ChipName, float] = field(default_factory=dict)
    accounts: Mapping[str, str] = field(default_factory=dict)
    qos: Mapping[str, str] = field(default_factory=dict)
    tier_partitions: Mapping[str, str] = field(default_factory=dict)
    time_limit_s: float = 0.0
    notice_s: float = 60.0
    queued_nodes_max: int = 8
    queue_wait_s_max: float = 6 * 3_600.0
    command_s_max: float = 10.0
    refresh_s: float = 8.0
    simulated: bool = False
    losses_per_node_hour: float = 0.0

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidSpec: A field is out of its range.
        """
        checked_name(self.name, "cluster")
        tiers = ("critical", "standard", "opportunistic")
        words = (*self.partitions, *self.accounts.values(), *self.qos.values(), *self.tier_partitions.values())
        wrong = {
            "partitions": (not 0 < len(self.partitions) <= PARTITIONS_MAX, f"1 to {PARTITIONS_MAX} partitions"),
            "shared": (not self.shared.startswith("/"), "an absolute folder"),
            "scratch": (not self.scratch.startswith("/"), "an absolute folder"),
            "python": (bool(self.python) and not self.python.startswith("/"), "an absolute path, or nothing"),
            "ssh": (self.ssh.startswith("-") or bool(set(self.ssh) & set(" \t\n")), "user@host"),
            "qos": (not set(self.qos) <= set(tiers), f"tiers out of {', '.join(tiers)}"),
            "tier_partitions": (
                not (
                    set(self.tier_partitions) <= set(tiers)
                    and set(self.tier_partitions.values()) <= set(self.partitions)
                ),
                f"tiers out of {', '.join(tiers)}, each with one of the partitions",
            ),
            "time_limit_s": (not 0 <= self.time_limit_s <= 52 * _WEEK_S, "0 to a year"),
            "notice_s": (not 0 <= self.notice_s <= 65_535, "0 to 65535, the most sbatch --signal takes"),
            "queued_nodes_max": (not 0 <= self.queued_nodes_max <= 100_000, "0 to 100000"),
            "queue_wait_s_max": (not 0 < self.queue_wait_s_max <= 52 * _WEEK_S, "over 0, up to a year"),
            "command_s_max": (not 0 < self.command_s_max <= 600, "over 0, up to 600"),
            "refresh_s": (not 0 <= self.refresh_s <= 3_600, "0 to 3600"),
            "chip_memory_gib": (
                any(not 0 <= memory <= CHIP_MEMORY_GIB_MAX for memory in self.chip_memory_gib.values()),
                "0 to 1e5",
            ),
            "dollars_per_chip_hour": (
                any(not 0 <= price <= 1e6 for price in self.dollars_per_chip_hour.values()),
                "0 to 1e6",
            ),
            "losses_per_node_hour": (not 0 <= self.losses_per_node_hour <= 1e3, "0 to 1000"),
        }
        for name, (bad, wanted) in wrong.items():
            if bad:
                raise InvalidSpec(
                    "accept a Slurm cluster",
                    on=f"{self.name}, field {name!r}",
                    got=repr(getattr(self, name))[:200],
                    wanted=wanted,
                )
        for word in words:
            if not word or word.startswith("-") or any(not letter.isalnum() and letter not in "._-" for letter in word):
                raise InvalidSpec(
                    "accept a Slurm cluster", on=self.name, got=repr(word)[:200], wanted="a name in Slurm"
                )
        for chip in (*self.chips.values(), *self.chip_memory_gib, *self.dollars_per_chip_hour):
            checked_name(chip, "chip")
