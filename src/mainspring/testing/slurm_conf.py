"""The text of the files that make up a Slurm of one machine, for `mainspring.testing.slurm`.

Source: slurm.conf(5), gres.conf(5), slurmdbd.conf(5) of Slurm 22.05.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CHIP_FILES = 16  # The most chips a node can have here (the largest machines sold have 16); all nodes share the files.


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmNodes:
    """A group of equal nodes, named by a prefix and a number from 1.

    Args:
        prefix: The front of their names.
        chip: The type of their chips ("h100"); empty: none.
        cpus: Cores on each, an even number: two sockets.
        features: Slurm's features (constraints) of each.
    """

    count: int
    prefix: str = "n"
    chip: str = "h100"
    chips: int = 8
    cpus: int = 64
    memory_mib: int = 512_000
    features: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuses what no slurm.conf can say."""
        assert self.count >= 1
        assert self.cpus >= 2
        assert self.cpus % 2 == 0
        assert self.chips <= CHIP_FILES

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the nodes' names, in order."""
        return tuple(f"{self.prefix}{number}" for number in range(1, self.count + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmPartition:
    """A partition; the first one given is the default one.

    Args:
        nodes: Slurm's expression for its nodes ("n[1-4]").
        extra: What else slurm.conf shall say of it ("PriorityTier=10 PreemptMode=REQUEUE GraceTime=10").
    """

    name: str
    nodes: str = "ALL"
    extra: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmPlace:
    """Where the daemons of one server live.

    Args:
        host: This machine's short name.
        address: What it resolves to.
        owner: The user who runs the daemons.
        public: The folder all users reach: sockets, spools, configuration.
        folder: The folder of logs and state.
        port: The controller's.
        node_ports: Each slurmd's, by node.
        database_port: slurmdbd's; 0: no accounting.
    """

    host: str
    address: str
    owner: str
    public: Path
    folder: Path
    port: int
    node_ports: Mapping[str, int]
    database_port: int


def slurm_conf(
    place: SlurmPlace,
    *,
    nodes: Sequence[SlurmNodes],
    partitions: Sequence[SlurmPartition],
    tree: bool,
    extra: Sequence[str],
) -> str:
    """Returns slurm.conf.

    Args:
        place: Where the daemons live.
        partitions: The partitions, the default one first.
        tree: Whether there is a topology.conf.
        extra: Lines "Key=Value" that win over the ones made here.
    """
    # A job that does not say how much memory it wants gets its cores' share: otherwise it would get all of a node's.
    settings = _settings(place) | {
        "DefMemPerCPU": str(max(1, min(group.memory_mib // group.cpus for group in nodes))),
        "TopologyPlugin": f"topology/{'tree' if tree else 'none'}",
    }
    if any(group.chip for group in nodes):
        settings["GresTypes"] = "gpu"
    if place.database_port:
        settings |= {
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AccountingStorageHost": place.address,
            "AccountingStoragePort": str(place.database_port),
            "AccountingStoragePass": f"{place.public}/munge.socket",
            "AccountingStorageEnforce": "associations,limits,qos",
            "AccountingStorageTRES": "gres/gpu",
        }
    lines = [f"{key}={value}" for key, value in settings.items() if key not in {line.split("=")[0] for line in extra}]
    lines += extra
    for group in nodes:
        for name in group.names:
            words = [f"NodeName={name} NodeHostname={place.host} NodeAddr={place.address}"]
            words += [f"Port={place.node_ports[name]} CPUs={group.cpus} Sockets=2 CoresPerSocket={group.cpus // 2}"]
            words += [f"ThreadsPerCore=1 RealMemory={group.memory_mib} State=UNKNOWN"]
            words += [f"Gres=gpu:{group.chip}:{group.chips}"] if group.chip else []
            words += [f"Feature={','.join(group.features)}"] if group.features else []
            lines.append(" ".join(words))
    for index, partition in enumerate(partitions):
        given = {word.split("=")[0] for word in partition.extra.split()}
        usual = {"Default": "NO" if index else "YES", "MaxTime": "INFINITE", "State": "UP"}
        words = [f"PartitionName={partition.name} Nodes={partition.nodes}"]
        words += [f"{key}={value}" for key, value in usual.items() if key not in given]
        lines.append(" ".join([*words, partition.extra]).rstrip())
    return "\n".join(lines) + "\n"


def _settings(place: SlurmPlace) -> dict[str, str]:
    return {
        "ClusterName": "bench",
        "SlurmctldHost": f"{place.host}({place.address})",
        "SlurmctldPort": str(place.port),
        "SlurmUser": place.owner,
        "SlurmdUser": place.owner,
        # Listening on the host name's own address, so on loopback where the name means that.
        "CommunicationParameters": "NoInAddrAny,NoCtldInAddrAny",
        "AuthType": "auth/munge",
        # A requeued job waits until its old credential has expired: 120 s otherwise.
        "AuthInfo": f"socket={place.public}/munge.socket,cred_expire=5",
        "StateSaveLocation": f"{place.folder}/state",
        "SlurmdSpoolDir": f"{place.public}/spool/%n",
        "SlurmctldPidFile": f"{place.folder}/slurmctld.pid",
        "SlurmdPidFile": f"{place.folder}/slurmd-%n.pid",
        "SlurmdLogFile": f"{place.folder}/slurmd-%n.steps.log",
        # Nodes claim chips, cores and memory this machine lacks.
        "SlurmdParameters": "config_overrides",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "MpiDefault": "none",
        "MailProg": "/bin/true",
        "ReturnToService": "2",
        "SlurmdTimeout": "5",
        "MessageTimeout": "10",
        "KillWait": "5",
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": "REQUEUE",
        "MaxJobCount": "30000",
        # Jobs start when submitted; backfill, which alone sees to those behind one that waits, looks every second.
        "SchedulerParameters": "batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1",
    }


def slurmdbd_conf(place: SlurmPlace) -> str:
    """Returns slurmdbd.conf; the database's own socket comes from MYSQL_UNIX_PORT.

    Args:
        place: Where the daemons live.
    """
    settings = {
        "DbdHost": place.host,
        "DbdAddr": place.address,
        "DbdPort": str(place.database_port),
        "SlurmUser": place.owner,
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={place.public}/munge.socket",
        "PidFile": f"{place.folder}/slurmdbd.pid",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "localhost",
        "StorageUser": "root",
        "StorageLoc": "slurm",
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def gres_conf(place: SlurmPlace, nodes: Sequence[SlurmNodes]) -> str:
    """Returns gres.conf.

    Args:
        place: Where the daemons live.
    """
    lines = []
    for group in nodes:
        if group.chip:
            files = f"{place.public}/nvidia[0-{group.chips - 1}]"
            lines.append(f"NodeName={','.join(group.names)} Name=gpu Type={group.chip} File={files}")
    return "\n".join(lines) + "\n"
