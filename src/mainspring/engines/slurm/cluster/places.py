"""Partitions, topology and reservations of a Slurm cluster: where its machines belong, and until when they are there.

Source: slurm_sprint_partition_info, slurm_sprint_reservation_info, topology_tree.c and topology_block.c of Slurm 22.05
to 25.11; topology.conf(5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

from mainspring.domain.fleet import NodeCondition
from mainspring.engines.slurm.cluster.hosts import OWNER, Host, HostState
from mainspring.engines.slurm.cluster.text import (
    QUOTED_MAX,
    duration_s,
    expand_hosts,
    fields,
    records,
    time_s,
    told,
    unreadable,
    whole_number,
)

Place = tuple[tuple[str, str], ...]  # A node's domains, from the widest level down.

# By the level of a switch: a leaf joins the nodes of a rack. What joins spines joins everything.
_LEVELS = ("rack", "block", "spine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition of Slurm.

    Args:
        state: "UP"; else it takes or starts no jobs.
        nodes_max: The most nodes one job may have.
        time_max_s: The longest a job may take.
        grace_s: What it gives jobs that it takes back; 0 for nothing of its own.
        qos: The QOS all its jobs are held to, "" for none.
    """

    name: str
    state: str
    hosts: tuple[str, ...]
    nodes_max: float
    time_max_s: float
    grace_s: float
    qos: str

    @property
    def closed(self) -> str:
        """Returns why it takes nothing now, "" when it does."""
        return "" if self.state == "UP" else f"Slurm's partition {self.name} is {self.state}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """What reservations keep, by machine: whoever they are for, jobs must name them, and ours do not.

    Args:
        now: The reservation that has it.
        from_s: When the next one begins.
    """

    now: Mapping[str, str] = field(default_factory=dict)
    from_s: Mapping[str, float] = field(default_factory=dict)

    def standing(self, host: Host) -> HostState:
        """Returns what a machine's state means, reservations included."""
        name, known = host.machine.name, host.standing
        if name in self.now and known.condition is not NodeCondition.DOWN and not known.leaving:
            known = replace(
                known, condition=NodeCondition.CORDONED, owner=OWNER, words=f"reserved in Slurm: {self.now[name]}"
            )
        if name in self.from_s:
            known = replace(known, leaves_s=min(self.from_s[name], inf if known.leaves_s is None else known.leaves_s))
        return known


def read_partitions(text: str, *, on: str) -> dict[str, Partition]:
    """Returns every partition, by name.

    Args:
        text: What `scontrol --oneliner show partition` wrote.
        on: Which cluster, for messages.

    Raises:
        Unavailable: It wrote something else.
    """
    attempted = "read the partitions of Slurm"
    partitions: dict[str, Partition] = {}
    for line in records(text, "PartitionName", attempted=attempted, on=on):
        found = fields(line)
        try:
            longest = duration_s(found["MaxTime"])
            partitions[found["PartitionName"]] = Partition(
                name=found["PartitionName"],
                state=found["State"],
                hosts=tuple(expand_hosts(found["Nodes"])),
                nodes_max=whole_number(found["MaxNodes"]),
                time_max_s=inf if longest is None else longest,
                grace_s=duration_s(found["GraceTime"]) or 0.0,
                qos=told(found["QoS"]),
            )
        except (KeyError, ValueError) as error:
            raise unreadable(attempted, got=line, wanted=f"a whole record ({error!r})", on=on) from error
    return partitions


def read_places(text: str, *, on: str) -> dict[str, Place]:
    """Returns the place of every machine in the network, by its name; nothing where Slurm knows of none.

    Args:
        text: What `scontrol show topology` wrote: of topology/tree or topology/block.
        on: Which cluster, for messages.

    Raises:
        Unavailable: It wrote something else.
    """
    attempted = "read the topology of Slurm"
    levels: dict[str, dict[str, str]] = {level: {} for level in reversed(_LEVELS)}
    for line in text.splitlines():
        # An AggregatedBlock is several blocks in a row: Slurm's way to count, not a place of its own.
        if not line.strip() or line.startswith("AggregatedBlock="):
            continue
        found = fields(line)
        try:
            depth = 1 if "BlockName" in found else int(found["Level"])
            name = found["BlockName"] if "BlockName" in found else found["SwitchName"]
            hosts = expand_hosts(found.get("Nodes", "")) if depth < len(_LEVELS) else []
        except (KeyError, ValueError) as error:
            raise unreadable(attempted, got=line, wanted=f"a switch or block ({error!r})", on=on) from error
        if depth < len(_LEVELS):
            # A machine at two leaf switches is in the rack of the first.
            levels[_LEVELS[depth]] = dict.fromkeys(hosts, name) | levels[_LEVELS[depth]]
    machines = sorted({host for of in levels.values() for host in of})
    return {host: tuple((level, of[host]) for level, of in levels.items() if host in of) for host in machines}


def read_reserved(text: str, *, now_s: float, on: str) -> Reserved:
    """Returns what reservations keep.

    Args:
        text: What `scontrol --oneliner show reservation` wrote.
        on: Which cluster, for messages.

    Raises:
        Unavailable: It wrote something else.
    """
    attempted = "read the reservations of Slurm"
    present: dict[str, str] = {}
    coming: dict[str, float] = {}
    for line in records(text, "ReservationName", attempted=attempted, on=on):
        found = fields(line)
        try:
            name, hosts = found["ReservationName"], expand_hosts(found["Nodes"])
            begin_s, end_s = time_s(found["StartTime"]), time_s(found["EndTime"])
        except (KeyError, ValueError) as error:
            raise unreadable(attempted, got=line[:QUOTED_MAX], wanted=f"a whole record ({error!r})", on=on) from error
        if begin_s is None or (end_s is not None and end_s <= now_s and found.get("State") != "ACTIVE"):
            continue
        for host in hosts:
            if begin_s <= now_s or found.get("State") == "ACTIVE":
                present.setdefault(host, name)
            else:
                coming[host] = min(begin_s, coming.get(host, inf))
    return Reserved(now=present, from_s=coming)
