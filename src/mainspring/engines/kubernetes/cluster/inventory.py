"""Inventory of a Kubernetes cluster, from copies of its nodes and of the pods that are bound to them.

Of an object only what counts is kept: some hundred bytes of a pod. What the pods of a node hold is added up as they
come and go, and a node whose object, use and cordon are as they were is shown as the same value again.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from threading import Lock
from typing import Any

from mainspring.domain.errors import NotFound, nearest
from mainspring.domain.fleet import CHIPS_MAX, Inventory, Node, NodeCondition, NodeSign
from mainspring.domain.ids import ChipName, NodeName
from mainspring.domain.job import MILLI
from mainspring.domain.ports import Clock
from mainspring.engines.common.names import our_name
from mainspring.engines.kubernetes.api.client import Api
from mainspring.engines.kubernetes.cluster.amounts import CPU, MEMORY, MIB, asked_by
from mainspring.engines.kubernetes.cluster.chips import MIB_PER_GIB
from mainspring.engines.kubernetes.cluster.config import ALLOCATION, ORDER, KubernetesCluster
from mainspring.engines.kubernetes.cluster.devices import DeviceWatch, Published
from mainspring.engines.kubernetes.cluster.machines import OWNER, KubernetesMachine, read_machine
from mainspring.engines.kubernetes.cluster.mirror import Mirror
from mainspring.engines.kubernetes.cluster.queues import QueueWatch
from mainspring.engines.kubernetes.cluster.slots import QueueHolding, Slot, make_slots

_NOTHING: Mapping[str, int] = {}
# Pods that wait hold nothing, and pods that are over hold nothing any more.
_HOLDING = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodUse:
    """What a pod of others holds of its node, in thousandths by resource."""

    node: str
    milli: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """A node as it was shown, and what it was made of."""

    node: Node
    made_of: tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Equipped:
    """A node with the chips that its driver publishes, and what it was made of."""

    machine: KubernetesMachine
    bare: KubernetesMachine
    found: Published


class _Machines:
    """Nodes by the cluster's name of them."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self.known: dict[str, KubernetesMachine] = {}

    def replace(self, records: dict[str, KubernetesMachine]) -> None:
        """Takes these for all there is."""
        with self._lock:
            self.known = records

    def put(self, key: str, record: KubernetesMachine) -> None:
        """Takes one that is new or has changed."""
        with self._lock:
            self.known[key] = record

    def drop(self, key: str) -> None:
        """Forgets one."""
        with self._lock:
            self.known.pop(key, None)


class _Uses:
    """What pods of others hold, each and by node."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._pods: dict[str, PodUse] = {}
        self.by_node: dict[str, Mapping[str, int]] = {}

    def replace(self, records: dict[str, PodUse]) -> None:
        """Takes these for all there is."""
        with self._lock:
            self._pods = records
            self.by_node.clear()
            for use in records.values():
                self._add(use, 1)

    def put(self, key: str, record: PodUse) -> None:
        """Takes one that is new or has changed."""
        with self._lock:
            old = self._pods.get(key)
            if old == record:
                return
            self._pods[key] = record
            if old is not None:
                self._add(old, -1)
            self._add(record, 1)

    def drop(self, key: str) -> None:
        """Forgets one."""
        with self._lock:
            if (old := self._pods.pop(key, None)) is not None:
                self._add(old, -1)

    def _add(self, use: PodUse, sign: int) -> None:
        # Kept as a new value, so that who was shown the old one can tell.
        held = dict(self.by_node.pop(use.node, _NOTHING))
        for name, milli in use.milli:
            held[name] = held.get(name, 0) + sign * milli
        if any(held.values()):
            self.by_node[use.node] = held


class NodeStock:
    """Reads the nodes of a cluster, and what others hold of them.

    Args:
        cluster: Its settings.
    """

    def __init__(self, cluster: KubernetesCluster, api: Api, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._lock = Lock()  # Of what the mirrors' threads write.
        self._looking = Lock()
        self._machines = _Machines(self._lock)
        self._uses = _Uses(self._lock)
        self._known: Mapping[NodeName, KubernetesMachine] = {}
        self._shown: dict[str, _Shown] = {}
        self._leaving_s: dict[str, float] = {}
        self._equipped: dict[str, _Equipped] = {}
        self._devices = DeviceWatch(cluster, api, clock)
        self._queues = QueueWatch(cluster, api, clock) if cluster.delegated else None
        self._nodes = Mirror(
            api,
            clock,
            path="/api/v1/nodes",
            query={"labelSelector": cluster.nodes} if cluster.nodes else {},
            key="name",
            read=lambda found: read_machine(found, cluster),
            keeps=self._machines,
        )
        self._pods = Mirror(
            api,
            clock,
            path="/api/v1/pods",
            query={"fieldSelector": _HOLDING},
            key="uid",
            read=self._read_pod,
            keeps=self._uses,
        )

    def look(self, held: Sequence[QueueHolding] = ()) -> Inventory:
        """Returns the cluster as it is now.

        Args:
            held: Of a delegated cluster: the slots that are ours.

        Raises:
            Unavailable: The API does not answer, and has not for some while.
        """
        self._pods.begin()  # Both are listed at once.
        for mirror in (self._nodes, self._pods):
            mirror.check(self._cluster.call_s_max)
        self._devices.check()
        if self._queues is not None:
            self._queues.check()
        with self._looking:
            found = self._look()
            if self._queues is not None:
                found = self._slots(found, self._queues, held)
            self._known = {slot.node.name: slot.machine for slot in found}
        return Inventory(
            cluster=self._cluster.name,
            engine=OWNER,
            simulated=self._cluster.simulated,
            dollars_per_chip_hour=self._cluster.dollars_per_chip_hour,
            nodes=tuple(sorted((slot.node for slot in found), key=lambda node: node.name)),
            delegated=self._cluster.delegated,
            losses_per_node_hour=self._cluster.losses_per_node_hour,
            signs=() if self._cluster.delegated else _signs(found),
        )

    def machine(self, node: NodeName) -> KubernetesMachine:
        """Returns what stands behind a node, with the cordon that was heard of last; looks when it never has.

        Raises:
            NotFound: There is none of that name.
            Unavailable: The API does not answer.
        """
        if node not in self._known:
            self.look()
        if node not in self._known:
            raise NotFound(
                "use a node of Kubernetes", on=self._cluster.name, got=node, wanted=nearest(node, self._known)
            )
        machine = self._known[node]
        heard = self._machines.known.get(machine.name, machine)
        return replace(machine, cordon=heard.cordon)

    def heard(self, found: dict[str, Any]) -> None:
        """Takes a node's object as a change of ours has left it: the watch tells of it a moment later."""
        self._machines.put(found["metadata"]["name"], read_machine(found, self._cluster))

    def known(self) -> Mapping[NodeName, KubernetesMachine]:
        """Returns what stands behind the nodes that it showed last."""
        return self._known

    def close(self) -> None:
        """Ends its threads, once the API lets go of them."""
        self._nodes.close()
        self._pods.close()
        self._devices.close()
        if self._queues is not None:
            self._queues.close()

    def topology_of(self, machine: KubernetesMachine) -> str:
        """Returns the name of the Topology by which Kueue places pods on slots like this one, "" for none.

        Args:
            machine: Of a slot.
        """
        flavors = self._queues.flavors() if self._queues is not None else {}
        return flavors[machine.name].topology if machine.name in flavors else ""

    def _slots(self, nodes: Iterable[Slot], queues: QueueWatch, held: Sequence[QueueHolding]) -> list[Slot]:
        """Returns slots in place of nodes."""
        return make_slots(
            nodes,
            queues.flavors(),
            queues.left(),
            held,
            queued=self._cluster.queued_nodes_max,
            closed=queues.closed(),
        )

    def _look(self) -> list[Slot]:
        with self._lock:
            known, uses = dict(self._machines.known), dict(self._uses.by_node)
        self._equipped = {one.machine.name: one for one in self._equip(known)}
        for theirs, one in self._equipped.items():
            known[theirs] = one.machine
            uses[theirs] = {**uses.get(theirs, _NOTHING), one.found.driver: one.found.held * MILLI}
        machines = {name: known[theirs] for name, theirs in _names(known).items()}
        shut = {**_shut_slices(machines), **_shut_kinds(machines)}
        for gone in self._shown.keys() - known.keys():
            del self._shown[gone]
            self._leaving_s.pop(gone, None)
        return [
            Slot(
                node=self._node(name, each, uses.get(each.name, _NOTHING), shut.get(name, "")),
                machine=each,
            )
            for name, each in machines.items()
        ]

    def _equip(self, known: Mapping[str, KubernetesMachine]) -> Iterator[_Equipped]:
        """Yields nodes with what their drivers publish: the same value as before, where nothing of it has changed."""
        for theirs, found in self._devices.by_node(known).items():
            bare, before = known.get(theirs), self._equipped.get(theirs)
            if before is not None and before.bare == bare and before.found == found:
                yield before
            elif bare is not None:
                yield _Equipped(bare=bare, found=found, machine=bare.with_published(found, self._cluster))

    def _read_pod(self, found: dict[str, Any]) -> PodUse | None:
        meta, spec = found["metadata"], found["spec"]
        if meta["namespace"] == self._cluster.namespace and not {ALLOCATION, ORDER}.isdisjoint(
            meta.get("labels") or {}
        ):
            return None
        return PodUse(
            node=sys.intern(spec["nodeName"]),
            milli=_same(tuple((sys.intern(name), round(amount * MILLI)) for name, amount in asked_by(spec).items())),
        )

    def _node(self, name: NodeName, machine: KubernetesMachine, held: Mapping[str, int], shut: str) -> Node:
        """Returns a node as the planner knows it: the same value as before, where nothing about it has changed.

        Args:
            held: What others hold of it.
            shut: Why it takes nothing though it could; "" where it does.
        """
        if machine.leaving:
            leaves_s: float | None = self._leaving_s.setdefault(machine.name, self._clock.now_s())
        else:
            leaves_s = machine.leaves_s
            self._leaving_s.pop(machine.name, None)
        made_of = (name, machine, held, shut, leaves_s)
        known = self._shown.get(machine.name)
        if known is None or known.made_of != made_of:
            known = _Shown(node=_make_node(*made_of), made_of=made_of)
            self._shown[machine.name] = known
        return known.node


def _make_node(
    name: NodeName,
    machine: KubernetesMachine,
    held: Mapping[str, int],
    shut: str,
    leaves_s: float | None,
) -> Node:
    condition, words = machine.condition, machine.words
    owner, cordon = OWNER if condition is NodeCondition.CORDONED else "", machine.cordon.ours
    if condition is NodeCondition.READY and (cordon or shut):
        condition = NodeCondition.CORDONED
        owner, words = (cordon.owner, cordon.reason) if cordon else (OWNER, shut)
    chips = min(machine.chips, CHIPS_MAX)
    return Node(
        name=name,
        chip=machine.chip,
        chips=chips,
        domains=machine.place.domains,
        condition=condition,
        condition_owner=owner,
        condition_reason=words,
        foreign_chip_milli=min(chips * MILLI, held.get(machine.counted_by, 0)),
        cpus=machine.cpus,
        memory_gib=machine.memory_mib / MIB_PER_GIB,
        foreign_cpus=min(machine.cpus, held.get(CPU, 0) / MILLI),
        foreign_memory_gib=held.get(MEMORY, 0) / MILLI / MIB / MIB_PER_GIB,
        taints=machine.taints,
        slice=machine.place.slice,
        leaves_s=leaves_s,
        divides=False,
        features=machine.features,
        chip_memory_gib=machine.chip_memory_gib,
    )


def _signs(found: Iterable[Slot]) -> tuple[NodeSign, ...]:
    """Returns what others say of nodes, in order of node and check."""
    signs = [
        NodeSign(
            node=slot.node.name,
            check=seen.known.check,
            code=seen.known.type,
            message=seen.message,
            repair=seen.repair,
            stands=seen.stands,
        )
        for slot in found
        for seen in slot.machine.conditions
    ]
    return tuple(sorted(signs, key=lambda sign: (sign.node, sign.check)))


def _names(machines: Iterable[str]) -> dict[NodeName, str]:
    """Returns the cluster's names of its nodes by ours."""
    names: dict[NodeName, str] = {}
    for theirs in sorted(machines):
        names[NodeName(our_name(theirs, names))] = theirs
    return names


def _shut_slices(machines: Mapping[NodeName, KubernetesMachine]) -> Mapping[NodeName, str]:
    """Returns why nodes of slices of several hosts take nothing: a host of theirs does not, or is not there."""
    slices: dict[str, list[NodeName]] = defaultdict(list)
    for name, machine in machines.items():
        if machine.place.slice_hosts > 1:
            slices[machine.place.slice_name].append(name)
    found: dict[NodeName, str] = {}
    for names in slices.values():
        count = machines[names[-1]].place.slice_hosts
        open_ = (one for one in map(machines.__getitem__, names) if one.cordon.ours is None)
        ready = sum(one.condition is NodeCondition.READY for one in open_)
        if ready < count:
            found |= dict.fromkeys(names, f"its slice has {ready} of {count} hosts ready")
    return found


def _shut_kinds(machines: Mapping[NodeName, KubernetesMachine]) -> Mapping[NodeName, str]:
    """Returns why nodes take nothing whose chips are counted otherwise than most of their type.

    All pods of a gang ask for chips in the same way, so no gang could be on both.
    """
    kinds: dict[ChipName, Counter[str]] = defaultdict(Counter)
    for machine in machines.values():
        if machine.chips:
            kinds[machine.chip][machine.counted_by] += 1
    most = {chip: max(sorted(counts), key=lambda one: counts[one]) for chip, counts in kinds.items() if len(counts) > 1}
    return {
        name: f"{machine.counted_by} counts its {machine.chip}, and {most[machine.chip]} most: no gang is on both, "
        f"so name them apart: --chip {machine.counted_by}=NAME"
        for name, machine in machines.items()
        if machine.counted_by != most.get(machine.chip, machine.counted_by)
    }


@lru_cache(maxsize=8_192)
def _same(milli: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """Returns one value for all that are equal: the pods of a cluster ask for few different amounts."""
    return milli
