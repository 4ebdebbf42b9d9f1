"""A Slurm that says what it is told to say, in the words of its releases.

The forms are those of `slurm_sprint_node_table` and its like at the tags 22.05.9, 23.11.11, 24.05.8, 24.11.7, 25.11.7.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mainspring.domain.fleet import Inventory, Node
from mainspring.engines.slurm.cluster.config import SlurmCluster
from mainspring.engines.slurm.cluster.inventory import Ours, Stock
from mainspring.testing import FakeClock

NOW_S = 1_700_000_000.0  # 2023-11-14T22:13:20 UTC


def node(
    name: str,
    *,
    release: str = "24.05.8",
    state: str = "IDLE",
    gres: str = "gpu:h100:8(S:0-1)",
    gres_used: str = "gpu:h100:0(IDX:N/A)",
    cpus: int = 64,
    used_cpus: int = 0,
    memory_mib: int = 512_000,
    used_memory_mib: int = 0,
    allocated: str = "",
    partitions: str = "main",
    after: str = "",
    spec_mib: int = 0,
) -> str:
    """Returns a node's record, without the end of its line."""
    year = tuple(int(part) for part in release.split(".")[:2])
    spec = f"CoreSpecCount=2 CPUSpecList=0-1 MemSpecLimit={spec_mib} " if spec_mib else ""
    old = " CapWatts=n/a" if year < (24, 5) else ""
    sensors = " ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s" if year < (24, 11) else ""
    resume = " ResumeAfterTime=None" if year >= (23, 2) else ""
    details = f"GresDrain=N/A GresUsed={gres_used} " if gres_used else ""
    return (
        f"NodeName={name} Arch=x86_64 CoresPerSocket={cpus // 2}  CPUAlloc={used_cpus} CPUEfctv={cpus} CPUTot={cpus} "
        f"CPULoad=1.93 AvailableFeatures=ib,h100 ActiveFeatures=ib,h100 Gres={gres} {details}NodeAddr={name} "
        f"NodeHostName={name} Version={release} OS=Linux 6.1.0 #1 SMP PREEMPT_DYNAMIC State=UP 6.1  "
        f"RealMemory={memory_mib} AllocMem={used_memory_mib} FreeMem=N/A Sockets=2 Boards=1 {spec}State={state} "
        f"ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions={partitions}  "
        f"BootTime=2023-11-01T00:00:00 SlurmdStartTime=2023-11-01T00:00:00 LastBusyTime=2023-11-01T00:00:00{resume} "
        f"CfgTRES=cpu={cpus},mem={memory_mib}M,billing={cpus} AllocTRES={allocated}{old} CurrentWatts=0 AveWatts=0"
        f"{sensors}{after}"
    )


def partition(name: str, nodes: str, *, state: str = "UP", nodes_max: str = "UNLIMITED", more: str = "") -> str:
    """Returns a partition's record, without the end of its line."""
    values = {"GraceTime": "0", "MaxTime": "UNLIMITED", "QoS": "N/A"} | dict(word.split("=") for word in more.split())
    return (
        f"PartitionName={name} AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=YES "
        f"QoS={values['QoS']} DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO GraceTime={values['GraceTime']} "
        f"Hidden=NO MaxNodes={nodes_max} MaxTime={values['MaxTime']} MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED "
        f"Nodes={nodes} PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe=NO OverTimeLimit=NONE "
        f"PreemptMode=REQUEUE State={state} TotalCPUs=384 TotalNodes=6 SelectTypeParameters=NONE JobDefaults=(null) "
        "DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED TRES=cpu=384,mem=3000G,node=6"
    )


def config(**values: str) -> str:
    """Returns settings."""
    known = {"AccountingStorageType": "(null)", "KillWait": "30 sec", "SLURM_VERSION": "24.05.8"} | values
    lines = "".join(f"{name:23} = {value}\n" for name, value in known.items())
    return f"Configuration data as of 2023-11-14T22:13:20\n{lines}\nSlurmctld(primary) at head is UP\n"


@dataclass
class Telling:
    """What Slurm says to each command, by what is asked about, and what it was asked."""

    answers: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, ...]] = field(default_factory=list)
    error: Exception | None = None

    def run(self, *words: str, attempted: str) -> str:
        """Answers."""
        assert attempted
        self.asked.append(words)
        if self.error and words[0] == "sacctmgr":
            raise self.error
        return self.answers[words[words.index("show") + 1]]


CLUSTER = SlurmCluster(name="ada", partitions=("main",), shared="/shared")  # type: ignore[arg-type]


def slurm(*nodes: str, partitions: tuple[str, ...] = ()) -> Telling:
    """Returns a Slurm of these nodes, all in the partition "main" unless told otherwise."""
    names = ",".join(line.split()[0].partition("=")[2] for line in nodes)
    return Telling(
        answers={
            "config": config(),
            "topology": "",
            "partition": "".join(f"{line}\n" for line in partitions or (partition("main", names),)),
            "node": "".join(f"{line}\n" for line in nodes),
            "reservation": "No reservations in the system\n",
        }
    )


def stock(commands: Telling, cluster: SlurmCluster = CLUSTER, clock: FakeClock | None = None) -> Stock:
    """Returns the stock of such a Slurm."""
    return Stock(cluster, commands, clock or FakeClock(NOW_S))


def look(commands: Telling, ours: Ours | None = None, *, delegated: bool = False, queued: int = 0) -> Inventory:
    """Returns one look at such a Slurm."""
    cluster = replace(CLUSTER, delegated=delegated, queued_nodes_max=queued)
    return stock(commands, cluster).look(ours or Ours())


def only(inventory: Inventory) -> Node:
    """Returns the one node there is."""
    (node,) = inventory.nodes
    return node
