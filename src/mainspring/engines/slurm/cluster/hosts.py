"""One machine of a Slurm cluster: what it has, whether work may be placed on it, what of it is in use.

Slurm keeps a base state ("IDLE") and flags ("DRAIN", "NOT_RESPONDING"); `_DOWN`, `_CLOSED` and `_OPEN` together name
every one of them, and decide what each means here. A flag of a later Slurm changes nothing: what Slurm will not start
merely waits in its queue.
Source: node_states and node_state_flags in slurm_protocol_defs.c of Slurm 22.05 to 25.11; sinfo(1), NODE STATE CODES.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from mainspring.domain.fleet import NodeCondition
from mainspring.domain.hardware.chips import named_memory_gib
from mainspring.domain.ids import ChipName
from mainspring.engines.common.names import our_name
from mainspring.engines.slurm.cluster.text import gpus, node_fields, node_reason, told, tres

CPU = ChipName("cpu")  # Chip of nodes without GPUs; their chips are their CPUs.
OWNER = "slurm"  # Of conditions that the cluster's own operators set.
UNTYPED = ChipName("gpu")  # Chip of GPUs to which Slurm gives no type.
# Slurm's default for memory nobody configured is 1 MiB; then it does not count memory.
_MEMORY_UNKNOWN_MIB = 1
_NOTHING: Mapping[ChipName, float] = {}
_DOWN = {
    "NOT_RESPONDING": "does not answer Slurm",
    "DOWN": "down in Slurm",
    "INVALID_REG": "has less than Slurm's configuration says",
    "REBOOT_ISSUED": "reboots",
    "POWERING_DOWN": "powers down",
    "EXTERNAL": "has no slurmd",
    "FUTURE": "not there yet, says Slurm",
    "ERROR": "in error, says Slurm",
    "INVALID": "in no state Slurm knows",
    "UNKNOWN": "in a state Slurm does not know yet",
}
_CLOSED = {
    "DRAIN": "drained in Slurm",
    "FAIL": "expected to fail, says Slurm",
    "MAINTENANCE": "in a maintenance reservation of Slurm",
    "RESERVED": "in a reservation of Slurm",
    "POWER_DOWN": "powers down once it is idle",
    "POWER_DRAIN": "powers down once it is idle",
    "BLOCKED": "kept free by Slurm for a job that shares no block",
    "PERFCTRS": "its network counters are in use",
}
# A node that is powered down or up is started by the job that gets it; a reboot that was asked for waits for idleness.
_OPEN = {
    *("IDLE", "ALLOCATED", "MIXED", "COMPLETING", "PLANNED", "CLOUD", "DYNAMIC_NORM", "DYNAMIC_FUTURE"),
    *("POWERED_DOWN", "POWERING_UP", "POWER_UP", "REBOOT_REQUESTED", "REBOOT_CANCEL", "RESUME", "UNDRAIN"),
}
_LEAVING = frozenset({"DRAIN", "FAIL"})
# Short forms of the same, as `sinfo` and older releases print them.
_ALSO = {"DRAINED": "DRAIN", "DRAINING": "DRAIN", "FAILING": "FAIL", "MAINT": "MAINTENANCE", "INVAL": "INVALID_REG"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What to ask Slurm for when a node or slot is to be used.

    Args:
        name: Slurm's name of the node; "" for a slot.
        partition: The partition it is used through.
        chip: Its chip type here.
        gres_type: The type of its GPUs in Slurm; "" where they have none, or where there are none.
        chips: How many; CPUs on nodes without GPUs, whose chip is "cpu".
        cpus: CPUs that jobs may use.
        memory_mib: Memory that jobs may use; 0 where Slurm does not count it.
        features: Slurm's words for what it has, in order.
        chip_memory_gib: Memory of each of its chips, None where neither Slurm nor our settings tell it.
    """

    name: str
    partition: str
    chip: ChipName
    gres_type: str
    chips: int
    cpus: int
    memory_mib: int
    features: tuple[str, ...] = ()
    chip_memory_gib: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """What a node's state means.

    Args:
        condition: Whether new work may be placed on it.
        words: Why not, for people.
        owner: Who says so: "slurm" for its operators.
        leaving: Whether its operators take it away.
        planned: Whether Slurm keeps it for a job of its queue.
        leaves_s: When it goes away, None when nobody knows.
    """

    condition: NodeCondition
    words: str = ""
    owner: str = ""
    leaving: bool = False
    planned: bool = False
    leaves_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One machine as Slurm tells of it.

    Args:
        standing: What its state means.
        used_chips: Chips in use, by anybody.
    """

    machine: Machine
    standing: HostState
    used_chips: int
    used_cpus: int
    used_memory_mib: int


def read_host(
    line: str,
    partitions: tuple[str, ...],
    chips: Mapping[str, ChipName],
    chip_memory_gib: Mapping[ChipName, float] = _NOTHING,
) -> Host | None:
    """Returns what a node's record says; None for a node of none of the partitions, or one that is yet to come.

    Args:
        partitions: Those we use; the first that has the node is the one it is used through.
        chips: Chip type by the type of GRES.
        chip_memory_gib: Memory of one chip by chip type, where Slurm does not tell it.

    Raises:
        KeyError: A field is missing.
        ValueError: A number is none.
    """
    found = node_fields(line)
    allocated, state = tres(found["AllocTRES"]), found["State"]
    mine = found.get("Partitions", "").split(",")
    partition = next((name for name in partitions if name in mine), None)
    if partition is None or state.startswith("FUTURE"):
        return None
    cpus = int(found.get("CPUEfctv") or found["CPUTot"])
    memory_mib = int(found["RealMemory"]) - int(found.get("MemSpecLimit", 0))
    used_cpus = int(found["CPUAlloc"])
    counts = gpus(found["Gres"])
    gres_type = max(sorted(counts), key=lambda kind: counts[kind]) if counts else ""
    has_gpus = counts.get(gres_type, 0) > 0
    chip = chip_of(gres_type, chips) if has_gpus else CPU
    features = tuple(sorted({word for word in told(found.get("ActiveFeatures")).split(",") if word}))
    memory_gib = _chip_memory_gib(gres_type, features, chip) if has_gpus else None
    machine = Machine(
        name=found["NodeName"],
        partition=partition,
        chip=chip,
        gres_type=gres_type if has_gpus else "",
        chips=counts[gres_type] if has_gpus else cpus,
        cpus=cpus,
        memory_mib=memory_mib if memory_mib > _MEMORY_UNKNOWN_MIB else 0,
        features=features,
        chip_memory_gib=chip_memory_gib.get(chip) if memory_gib is None else memory_gib,
    )
    used_memory_mib = int(found["AllocMem"])
    used_chips = _used_gpus(gres_type, found.get("GresUsed"), allocated) if has_gpus else used_cpus
    # Every job needs a CPU and memory: where none is left (a whole node was granted), its chips are of no use.
    full = used_cpus >= cpus or 0 < machine.memory_mib <= used_memory_mib
    return Host(
        machine=machine,
        standing=_explained(stands(state), line),
        used_chips=machine.chips if full else used_chips,
        used_cpus=used_cpus,
        used_memory_mib=used_memory_mib,
    )


def _chip_memory_gib(gres_type: str, features: tuple[str, ...], chip: ChipName) -> float | None:
    """Returns the memory that the type of GRES tells ("a100_80gb"), else a feature in which the chip is named."""
    told_by = (gres_type, *(word for word in features if chip in word.lower()))
    return next((known for word in told_by if (known := named_memory_gib(word)) is not None), None)


def _explained(standing: HostState, line: str) -> HostState:
    """Returns the same, with what its operators said and when."""
    if standing.condition is NodeCondition.READY:
        return standing
    said, user, said_s = node_reason(line)
    said = f"{said} ({user})" if said and user else said
    return replace(
        standing,
        words=f"{standing.words}: {said}" if said and not standing.owner else said or standing.words,
        leaves_s=said_s if standing.leaving else None,
    )


def _used_gpus(gres_type: str, used: str | None, allocated: Mapping[str, float]) -> int:
    # AllocTRES tells of GPUs only where accounting was set up for them; the details always do.
    if told(used):
        counts = gpus(used or "")
        return counts.get(gres_type, counts.get("", 0))
    return int(allocated.get(f"gres/gpu:{gres_type}", allocated.get("gres/gpu", 0)))


@lru_cache(maxsize=1_024)  # Combinations of states seen in practice are dozens.
def stands(state: str) -> HostState:
    """Returns what a node's state means.

    Args:
        state: "IDLE+CLOUD+POWERED_DOWN", "DOWN*+DRAIN".
    """
    flags = {_ALSO.get(name, name) for name in state.upper().replace("*", "+NOT_RESPONDING").split("+")}
    if not flags & (_DOWN.keys() | _CLOSED.keys() | _OPEN):
        return HostState(condition=NodeCondition.DOWN, words=f"in a state that is not known here: {state[:80]}")
    leaving = bool(flags & _LEAVING)
    for condition, owner, table in ((NodeCondition.DOWN, "", _DOWN), (NodeCondition.CORDONED, OWNER, _CLOSED)):
        for flag, words in table.items():
            if flag in flags:
                return HostState(condition=condition, words=words, owner=owner, leaving=leaving)
    return HostState(condition=NodeCondition.READY, planned="PLANNED" in flags)


def chip_of(gres_type: str, chips: Mapping[str, ChipName]) -> ChipName:
    """Returns the chip type of GPUs.

    Args:
        gres_type: Their type in Slurm, "" for none.
        chips: What the operator calls them.
    """
    known = chips.get(gres_type) or chips.get(gres_type.lower())
    return known or (ChipName(our_name(gres_type)) if gres_type else chips.get("gpu", UNTYPED))
