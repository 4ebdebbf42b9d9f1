"""Slots of a delegated cluster: what stands for its nodes while Kueue's queue decides which one it will be.

Nodes of one flavor with equally many chips of one type have one slot each. As many slots are free as such nodes are
and the quota lets us have, and some more for allocations that may wait in the queue. The other slots are shown as used
by others; the last ones stand for nodes that are away.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mainspring.domain.fleet import Node, NodeCondition
from mainspring.domain.ids import NAME_LENGTH_MAX, NodeName
from mainspring.domain.job import MILLI
from mainspring.engines.common.names import our_name
from mainspring.engines.kubernetes.cluster.amounts import CPU
from mainspring.engines.kubernetes.cluster.chips import MIB_PER_GIB
from mainspring.engines.kubernetes.cluster.machines import OWNER, KubernetesMachine
from mainspring.engines.kubernetes.cluster.places import NodeLocation
from mainspring.engines.kubernetes.cluster.queues import Amounts, Flavor

_NUMBER_LETTERS = 7  # A dash and up to six digits: NODES_MAX.
_NUMBER = re.compile(r"(.*)-[0-9]{4,6}")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueHolding:
    """What one live allocation of ours holds.

    Args:
        slot: One of its nodes, by our name.
        host: The cluster's name of the node it holds; "" while it waits in the queue.
    """

    slot: NodeName
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """What stands for some node of its kind.

    Args:
        machine: What a pod there asks for: its labels are those that choose such a node.
    """

    node: Node
    machine: KubernetesMachine


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """Nodes that are alike.

    Args:
        name: What its slots' names begin with.
    """

    name: str
    flavor: Flavor
    machine: KubernetesMachine
    nodes: tuple[Slot, ...]


def make_slots(
    nodes: Iterable[Slot],
    flavors: Mapping[str, Flavor],
    left: Amounts,
    holdings: Sequence[QueueHolding],
    *,
    queued: int,
    closed: str,
) -> list[Slot]:
    """Returns the slots of a cluster, ordered by name.

    Args:
        nodes: Its nodes, each with its machine.
        left: What our queues may still have.
        holdings: What is ours.
        queued: For how many slots beyond what is free allocations may wait in all.
        closed: Why the queues take nothing, "" where they do.
    """
    kinds = _kinds(nodes, [flavor for flavor in flavors.values() if any(name == flavor.name for name, _ in left)])
    held: dict[str, list[QueueHolding]] = {}
    for holding in holdings:
        if match := _NUMBER.fullmatch(holding.slot):
            held.setdefault(match[1], []).append(holding)
    waiting = sum(not holding.host for holding in holdings)
    found = [
        slot
        for kind in kinds
        for slot in _slots(kind, held.get(kind.name, []), left, queued=max(0, queued - waiting), closed=closed)
    ]
    return sorted(found, key=lambda slot: slot.node.name)


def _kinds(nodes: Iterable[Slot], flavors: Iterable[Flavor]) -> Iterator[_Kind]:
    """Yields nodes by what a workload can ask for; a node of several flavors counts as the most particular one's."""
    alike: dict[tuple[str, str, str, int], list[Slot]] = {}
    by_name = {flavor.name: flavor for flavor in sorted(flavors, key=lambda one: (-len(one.labels), one.name))}
    for one in nodes:
        labels = one.machine.labels
        fits = (flavor for flavor in by_name.values() if flavor.labels.items() <= labels.items())
        if flavor := next(fits, None):
            machine = one.machine
            alike.setdefault((flavor.name, machine.chip, machine.resource, machine.chips), []).append(one)
    names: dict[str, None] = {}
    for (of, chip, _, chips), same in sorted(alike.items()):
        flavor = by_name[of]
        name = our_name(f"{of}-{chip}x{chips}", names, longest=NAME_LENGTH_MAX - _NUMBER_LETTERS)
        names[name] = None
        # A taint that only some of them have is asked of all: Kueue may choose any.
        asked = {taint for one in same for taint in one.machine.taints}
        taints = {taint for taint in asked if taint.partition("=")[0] not in flavor.tolerated}
        machine = replace(
            same[0].machine,
            name=of,
            cpus=min(one.machine.cpus for one in same),
            memory_mib=min(one.machine.memory_mib for one in same),
            chip_memory_gib=min(
                (known for one in same if (known := one.machine.chip_memory_gib) is not None), default=None
            ),
            place=NodeLocation(),
            taints=tuple(sorted(taints | set(flavor.taints))),
            condition=NodeCondition.READY,
            words="",
            leaving=False,
            leaves_s=None,
            features=_common(one.machine.features for one in same),
            devices=_common(one.machine.devices for one in same),
            labels={**flavor.labels, **same[0].machine.telling},
        )
        yield _Kind(name=name, flavor=flavor, machine=machine, nodes=tuple(same))


def _common(words: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """Returns what all of several nodes have: a queue may choose any of them."""
    return tuple(sorted(set.intersection(*map(set, words))))


def _slots(kind: _Kind, held: Sequence[QueueHolding], left: Amounts, *, queued: int, closed: str) -> Iterator[Slot]:
    machine = kind.machine
    behind = {holding.slot: holding.host for holding in held}
    hosts = {one.machine.name: one.node for one in kind.nodes}
    for slot, host in sorted(behind.items()):
        yield _shown(kind, slot, hosts.get(host), closed)
    taken = set(behind.values())
    others = [one.node for one in kind.nodes if one.machine.name not in taken]
    ready = [node for node in others if node.condition is NodeCondition.READY]
    names = [name for number in range(1, len(kind.nodes) + 1) if (name := _name(kind, number)) not in behind]
    away = [node for node in others if node.condition is not NodeCondition.READY][: len(names)]
    room = left.get((kind.flavor.name, machine.resource or CPU), 0.0)
    waiting = sum(not host for host in behind.values())
    free = [node for node in ready if not node.foreign_chip_milli]
    partly = sorted((node for node in ready if node.foreign_chip_milli), key=lambda node: node.foreign_chip_milli)
    within = max(0, int(room // machine.chips) - waiting) if machine.chips else 0
    offered: list[Node | None] = [*free[: max(0, min(len(free) - waiting, within))]]
    offered += [None] * queued
    offered += partly[: max(0, within - len(free))]
    for name in names[: len(names) - len(away)]:
        one = offered.pop(0) if offered else _full(kind)
        yield _shown(kind, name, one, closed)
    for name, node in zip(names[len(names) - len(away) :], away, strict=True):
        yield _shown(kind, name, node, closed)


def _name(kind: _Kind, number: int) -> NodeName:
    return NodeName(f"{kind.name}-{number:04}")


def _full(kind: _Kind) -> Node:
    """Returns a node of a kind that others have whole."""
    node = kind.nodes[0].node
    return replace(node, condition=NodeCondition.READY, foreign_chip_milli=node.chips * MILLI)


def _shown(kind: _Kind, slot: NodeName, node: Node | None, closed: str) -> Slot:
    """Returns a slot behind which a node stands; None for one that waits, or may."""
    machine = kind.machine
    like = node or replace(kind.nodes[0].node, condition=NodeCondition.READY, condition_reason="", condition_owner="")
    words = f"{node.name}: {node.condition_reason}" if node is not None and node.condition_reason else ""
    shown = replace(
        like,
        name=slot,
        domains=(),
        slice="",
        leaves_s=None if node is None else node.leaves_s,
        condition_reason=words,
        foreign_chip_milli=0 if node is None else node.foreign_chip_milli,
        cpus=machine.cpus,
        memory_gib=machine.memory_mib / MIB_PER_GIB,
        chip_memory_gib=machine.chip_memory_gib,
        foreign_cpus=0.0 if node is None else min(machine.cpus, node.foreign_cpus),
        foreign_memory_gib=0.0 if node is None else node.foreign_memory_gib,
        taints=machine.taints,
        features=machine.features,
    )
    if closed and shown.condition is NodeCondition.READY:
        shown = replace(shown, condition=NodeCondition.CORDONED, condition_owner=OWNER, condition_reason=closed)
    return Slot(node=shown, machine=machine)
