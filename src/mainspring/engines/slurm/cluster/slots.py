"""Slots of a delegated Slurm cluster: what stands for its machines while Slurm's queue decides which one it will be.

A bucket is a partition's machines with equally many chips of one type; it has one slot a machine. As many slots are
free as machines are, and some more for allocations that may wait in Slurm's queue, as far as Slurm's limits go. The
other slots are shown as used by others, as those machines are; the last ones stand for machines that are away.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from mainspring.domain.fleet import Node, NodeCondition
from mainspring.domain.ids import NAME_LENGTH_MAX, NodeName
from mainspring.domain.job import MILLI
from mainspring.engines.common.names import our_name
from mainspring.engines.slurm.cluster.hosts import CPU, OWNER, Host, HostState, Machine
from mainspring.engines.slurm.cluster.limits import JOBS, Room

MIB_PER_GIB = 1_024
_NUMBER_LETTERS = 7  # A dash and up to six digits: NODES_MAX.
_NUMBER = re.compile(r"(.*)-[0-9]{4,6}")
_READY = HostState(condition=NodeCondition.READY)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotHolding:
    """What one live allocation of ours holds on one of its nodes, as Slurm counts it.

    Args:
        node: The node, or slot, by our name.
        host: Slurm's name of the machine it holds; "" while it waits in Slurm's queue.
        chips: Chips; CPUs on nodes without GPUs.
    """

    node: NodeName
    host: str
    chips: int
    cpus: float
    memory_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """Chips, CPUs and memory of one machine."""

    chips: int = 0
    cpus: float = 0.0
    memory_mib: int = 0

    def less(self, other: Amount) -> Amount:
        """Returns what is left of it, nothing less than nothing.

        Args:
            other: What is taken from it.
        """
        return Amount(
            chips=max(0, self.chips - other.chips),
            cpus=max(0.0, self.cpus - other.cpus),
            memory_mib=max(0, self.memory_mib - other.memory_mib),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Machines that are alike.

    Args:
        name: What its slots' names begin with.
        machine: What each of them has at least; it has no name.
        hosts: The machines, ordered by name.
        held: Our live allocations' holdings of its slots.
    """

    name: str
    machine: Machine
    hosts: tuple[Host, ...]
    held: tuple[SlotHolding, ...]

    @property
    def free(self) -> int:
        """Returns how many machines nobody uses."""
        return sum(_is_free(host) for host in self.hosts)

    @property
    def waiting(self) -> int:
        """Returns how many of its slots wait in Slurm's queue."""
        begun = {holding.node for holding in self.held if holding.host}
        return len({holding.node for holding in self.held} - begun)

    def nodes(self, *, queued: int, room: Room, closed: str) -> list[Node]:
        """Returns its slots, ordered by name.

        Args:
            queued: How many slots may be free beyond the machines that are.
            room: What Slurm's limits leave.
            closed: Why its partition takes nothing now, "" when it does.
        """
        held = {holding.node for holding in self.held}
        hosts = {holding.host for holding in self.held}
        idle = sorted(set(self._names()) - held)
        others = [host for host in self.hosts if host.machine.name not in hosts]
        ready = [host for host in others if host.standing.condition is NodeCondition.READY]
        away = [host for host in others if host.standing.condition is not NodeCondition.READY][: len(idle)]
        ready_slots, away_slots = idle[: len(idle) - len(away)], idle[len(idle) - len(away) :]
        asked_for = max(0, self.free - self.waiting) + queued
        nodes = self._ours()
        foreign = _within(room, self.machine, _offered(self.machine, ready, asked_for, len(ready_slots)))
        nodes += [self._node(slot, _READY, used) for slot, used in zip(ready_slots, foreign, strict=True)]
        for slot, host in zip(away_slots, away, strict=True):
            gone = HostState(
                condition=host.standing.condition,
                words=f"{host.machine.name}: {host.standing.words}",
                owner=host.standing.owner,
            )
            nodes.append(self._node(slot, gone, Amount()))
        shut = HostState(condition=NodeCondition.CORDONED, words=closed, owner=OWNER)
        if closed:
            nodes = [self._node(node.name, shut, _foreign_of(node)) for node in nodes]
        return sorted(nodes, key=lambda node: node.name)

    def _names(self) -> Iterator[NodeName]:
        return (NodeName(f"{self.name}-{number:04}") for number in range(1, len(self.hosts) + 1))

    def _ours(self) -> list[Node]:
        """Returns the slots our live allocations hold."""
        host_of = {host.machine.name: host for host in self.hosts}
        amounts = by_node(self.held)
        behind = {holding.node: host_of[holding.host] for holding in self.held if holding.host in host_of}
        nodes: list[Node] = []
        seen: set[str] = set()
        for slot, ours in sorted(amounts.items()):
            host = behind.get(slot)
            if host is None:
                # Of a slot that waits, what it did not ask for may be asked for too: it is one machine in the queue.
                nodes.append(self._node(slot, _READY, Amount()))
                continue
            # Where Slurm put two slots on one machine, the first has its rest, and the other none.
            used = _whole(self.machine) if host.machine.name in seen else used_of(host)
            seen.add(host.machine.name)
            nodes.append(self._node(slot, host.standing, used.less(ours)))
        return nodes

    def _node(self, slot: NodeName, standing: HostState, foreign: Amount) -> Node:
        return make_node(slot, self.machine, standing, foreign, domains=())


def make_node(
    name: NodeName, machine: Machine, standing: HostState, foreign: Amount, *, domains: tuple[tuple[str, str], ...]
) -> Node:
    """Returns a node as the planner knows it.

    Args:
        name: Our name of it.
        standing: Whether new work may be placed on it.
    """
    return Node(
        name=name,
        chip=machine.chip,
        chips=machine.chips,
        domains=domains,
        condition=standing.condition,
        condition_owner=standing.owner,
        condition_reason=standing.words,
        foreign_chip_milli=min(machine.chips, foreign.chips) * MILLI,
        cpus=float(machine.cpus),
        memory_gib=machine.memory_mib / MIB_PER_GIB if machine.memory_mib else None,
        foreign_cpus=min(float(machine.cpus), foreign.cpus),
        foreign_memory_gib=foreign.memory_mib / MIB_PER_GIB,
        leaves_s=standing.leaves_s,
        divides=False,
        features=machine.features,
        chip_memory_gib=machine.chip_memory_gib,
    )


def make_buckets(hosts: Iterable[Host], holdings: Sequence[SlotHolding]) -> tuple[Bucket, ...]:
    """Returns machines by kind.

    Args:
        holdings: What of the slots is ours.
    """
    kinds: dict[tuple[str, str, str, int], list[Host]] = {}
    for host in hosts:
        machine = host.machine
        kinds.setdefault((machine.partition, machine.chip, machine.gres_type, machine.chips), []).append(host)
    held: dict[str, list[SlotHolding]] = {}
    for holding in holdings:
        if match := _NUMBER.fullmatch(holding.node):
            held.setdefault(match[1], []).append(holding)
    buckets: dict[str, Bucket] = {}
    for (partition, chip, gres_type, chips), alike in sorted(kinds.items()):
        name = our_name(f"{partition}-{chip}x{chips}", buckets, longest=NAME_LENGTH_MAX - _NUMBER_LETTERS)
        machine = Machine(
            name="",
            partition=partition,
            chip=alike[0].machine.chip,
            gres_type=gres_type,
            chips=chips,
            cpus=min(host.machine.cpus for host in alike),
            memory_mib=min(host.machine.memory_mib for host in alike),
            features=tuple(sorted(set.intersection(*(set(host.machine.features) for host in alike)))),
            chip_memory_gib=min(
                (known for host in alike if (known := host.machine.chip_memory_gib) is not None), default=None
            ),
        )
        buckets[name] = Bucket(
            name=name,
            machine=machine,
            hosts=tuple(sorted(alike, key=lambda host: host.machine.name)),
            held=tuple(held.get(name, ())),
        )
    return tuple(buckets.values())


def used_of(host: Host) -> Amount:
    """Returns what anybody uses of a machine."""
    return Amount(chips=host.used_chips, cpus=float(host.used_cpus), memory_mib=host.used_memory_mib)


def by_node(holdings: Iterable[SlotHolding]) -> dict[NodeName, Amount]:
    """Returns what is held of each node."""
    held: dict[NodeName, Amount] = {}
    for holding in holdings:
        known = held.get(holding.node, Amount())
        held[holding.node] = Amount(
            chips=known.chips + holding.chips,
            cpus=known.cpus + holding.cpus,
            memory_mib=known.memory_mib + holding.memory_mib,
        )
    return held


def _is_free(host: Host) -> bool:
    ready = host.standing.condition is NodeCondition.READY and not host.standing.planned
    return ready and not host.used_chips and not host.used_cpus


def _whole(machine: Machine) -> Amount:
    return Amount(chips=machine.chips, cpus=float(machine.cpus), memory_mib=machine.memory_mib)


def _foreign_of(node: Node) -> Amount:
    return Amount(
        chips=node.foreign_chip_milli // MILLI,
        cpus=node.foreign_cpus,
        memory_mib=round(node.foreign_memory_gib * MIB_PER_GIB),
    )


def _offered(machine: Machine, hosts: Sequence[Host], asked_for: int, count: int) -> list[Amount]:
    """Returns what is shown as used of `count` slots: first whole machines, then the rest of others, then none."""
    partly = [
        used_of(host)
        for host in hosts
        if not _is_free(host) and not host.standing.planned and host.used_chips < machine.chips
    ]
    offered = [Amount()] * asked_for + sorted(partly, key=lambda used: (used.chips, used.cpus))
    return (offered + [_whole(machine)] * count)[:count]


def _within(room: Room, machine: Machine, offered: Iterable[Amount]) -> list[Amount]:
    """Returns the same, with nothing offered beyond what Slurm's limits leave."""
    left = dict(room)
    kinds = ("cpu",) if machine.chip == CPU else ("gres/gpu", f"gres/gpu:{machine.gres_type}")
    shown: list[Amount] = []
    for used in offered:
        free = _whole(machine).less(used)
        chips = min([float(free.chips), *(left.get(kind, inf) for kind in kinds)])
        if chips < 1 or left.get(JOBS, inf) < 1 or left.get("node", inf) < 1:
            shown.append(_whole(machine))
            continue
        cpus = min(free.cpus, left.get("cpu", inf))
        memory_mib = min(free.memory_mib, left.get("mem", inf))
        shown.append(_whole(machine).less(Amount(chips=int(chips), cpus=cpus, memory_mib=int(memory_mib))))
        taken = {"cpu": cpus, "mem": memory_mib, "node": 1.0, JOBS: 1.0} | dict.fromkeys(kinds[-2:], chips)
        left = {name: amount - taken.get(name, 0.0) for name, amount in left.items()}
    return shown
