"""One node of a cluster as its object says: what it has, where it stands, and whether work may be placed on it.

Taints are of three kinds: Kubernetes' own words for a condition, notices that a node is about to go, and all others,
which a job has to tolerate. A node that its operators drain is leaving.
Source: "Well-Known Labels, Annotations and Taints"; cluster-autoscaler's `taints.go`; Karpenter "Disruption"; AWS Node
Termination Handler; GKE "Manage disruption in GPU and TPU nodes".
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mainspring.domain.fleet import NodeCondition
from mainspring.domain.hardware.chips import named_memory_gib
from mainspring.domain.ids import ChipName
from mainspring.engines.common.records import Cordon
from mainspring.engines.kubernetes.cluster.amounts import CPU, MEMORY, MIB, number
from mainspring.engines.kubernetes.cluster.chips import MIB_PER_GIB, find_chips, published_chip
from mainspring.engines.kubernetes.cluster.config import CORDONED_BY, CORDONED_FOR, KubernetesCluster
from mainspring.engines.kubernetes.cluster.devices import DRIVERS, HARD, Published
from mainspring.engines.kubernetes.cluster.offers import bearing
from mainspring.engines.kubernetes.cluster.places import NodeLocation, find_place
from mainspring.engines.kubernetes.conditions import ConditionSeen, read_conditions

OWNER = "kubernetes"  # Of conditions that the cluster, or who runs it, sets.
_OWN = "node.kubernetes.io/"
_DOWN = {
    f"{_OWN}not-ready": "not ready",
    f"{_OWN}unreachable": "its kubelet does not answer",
    f"{_OWN}out-of-service": "out of service",
    f"{_OWN}network-unavailable": "without a network",
    "node.cloudprovider.kubernetes.io/uninitialized": "not set up by its provider yet",
    "node.cloudprovider.kubernetes.io/shutdown": "shut down by its provider",
}
UNSCHEDULABLE = f"{_OWN}unschedulable"
_CLOSED = {
    UNSCHEDULABLE: "cordoned",
    f"{_OWN}memory-pressure": "short of memory",
    f"{_OWN}disk-pressure": "short of disk",
    f"{_OWN}pid-pressure": "short of process ids",
}
_LEAVING = {
    "ToBeDeletedByClusterAutoscaler": "taken away by the cluster's autoscaler",
    "karpenter.sh/disrupted": "taken away by Karpenter",
    "karpenter.sh/disruption": "taken away by Karpenter",  # Before Karpenter 1.0.
    "cloud.google.com/impending-node-termination": "taken back by Google",
    "aws-node-termination-handler/spot-itn": "taken back by AWS",
    "aws-node-termination-handler/scheduled-maintenance": "in maintenance by AWS",
    "aws-node-termination-handler/asg-lifecycle-termination": "taken away by its group in AWS",
    "aws-node-termination-handler/rebalance-recommendation": "likely to be taken back by AWS",
}
_MAINTENANCE = "cloud.google.com/scheduled-maintenance-time"  # Seconds since the epoch, days ahead.
_FEATURES = ("node.kubernetes.io/instance-type", "nvidia.com/gpu.product", "cloud.google.com/gke-accelerator")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCordon:
    """What a node's object says of cordons.

    Args:
        ours: The one that this namespace placed, None where it has none.
        shut: Whether the cluster puts nothing more there, whoever wanted that.
        version: Of the object; a newer one that says the same is equal.
    """

    ours: Cordon | None
    shut: bool
    version: str = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesMachine:
    """A node as the cluster tells of it.

    Args:
        name: The cluster's.
        resource: The extended resource that counts its chips; "" where those are its cores, or a driver's.
        cpus: Cores that pods may use.
        memory_mib: Memory that pods may use.
        taints: What a job has to tolerate, "key=value" or "key".
        words: Why no work may be placed on it.
        leaving: Whether it is being taken away, now.
        leaves_s: When it is, None when nobody said.
        features: For people.
        telling: The label that tells its chips' type, if any does.
        devices: Of those that the operator names, the ones it has.
        labels: All that it bears, where a queue chooses nodes by them; else none are kept.
        driver: The driver that publishes its chips, if one does.
        product: That driver's name of their type; "" where it tells none.
        offer: The offer that it may have come from, "" for none.
        chip_memory_gib: Memory of each of its chips, None where neither a label, a driver nor our settings tell it.
        cordon: What keeps new work off.
        conditions: What others say is wrong with it.
    """

    name: str
    chip: ChipName
    resource: str
    chips: int
    cpus: float
    memory_mib: float
    place: NodeLocation
    taints: tuple[str, ...]
    condition: NodeCondition
    words: str
    leaving: bool
    leaves_s: float | None
    features: tuple[str, ...]
    telling: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    driver: str = ""
    product: str = ""
    offer: str = ""
    chip_memory_gib: float | None = None
    cordon: NodeCordon
    conditions: tuple[ConditionSeen, ...] = ()

    @property
    def counted_by(self) -> str:
        """Returns what its chips are counted by: a resource, or a driver."""
        return self.driver or self.resource or CPU

    @property
    def tolerated(self) -> frozenset[str]:
        """Returns keys of taints that ask nothing of a job: pods for its chips tolerate what is named like these."""
        return frozenset(filter(None, (self.resource, self.driver, DRIVERS.get(self.driver))))

    def with_published(self, found: Published, cluster: KubernetesCluster) -> KubernetesMachine:
        """Returns it with the chips that a driver publishes there; a resource that counts chips has them for itself."""
        if self.resource and self.chips:
            return self
        condition, words = self.condition, self.words
        if words == _uncounted(self.resource):
            condition, words = NodeCondition.READY, ""
        if condition is NodeCondition.READY and not found.count:
            condition, words = NodeCondition.CORDONED, found.words
        if condition is NodeCondition.READY and cluster.delegated:
            condition, words = NodeCondition.CORDONED, f"its chips are those of {found.driver}: Kueue is asked for none"
        chip = published_chip(found.driver, found.product, cluster.chips)
        stated = cluster.chip_memory_gib.get(chip, named_memory_gib(found.product))
        made = replace(
            self,
            chip=chip,
            chips=found.count,
            resource="",
            driver=found.driver,
            product=found.product,
            chip_memory_gib=found.memory_mib / MIB_PER_GIB if found.memory_mib else stated,
            condition=condition,
            words=words,
        )
        return made.without_own_taints()

    def without_own_taints(self) -> KubernetesMachine:
        """Returns it without the taints that its own chips' pods tolerate."""
        return replace(self, taints=tuple(one for one in self.taints if one.partition("=")[0] not in self.tolerated))


def read_machine(found: Mapping[str, Any], cluster: KubernetesCluster) -> KubernetesMachine:
    """Returns what a node's object says.

    Raises:
        KeyError, TypeError, ValueError: It cannot be read.
    """
    meta, spec, status = found["metadata"], found.get("spec") or {}, found.get("status") or {}
    labels = meta.get("labels") or {}
    allocatable = {name: number(str(amount)) for name, amount in (status.get("allocatable") or {}).items()}
    chips = find_chips(allocatable, labels, cluster.chips)
    taints = [taint for taint in spec.get("taints") or () if taint.get("effect") in HARD]
    cordon = read_cordon(found, cluster.namespace)
    keys = {taint["key"] for taint in taints} - ({UNSCHEDULABLE} if cordon.ours else set())
    conditions, shut = status.get("conditions") or (), cordon.shut and cordon.ours is None
    condition, words, leaving = _state(conditions, keys, shut=shut)
    if condition is NodeCondition.READY and not chips.count:
        condition, words = NodeCondition.CORDONED, _uncounted(chips.resource)
    maintenance = labels.get(_MAINTENANCE, "")
    made = KubernetesMachine(
        name=meta["name"],
        chip=chips.chip,
        resource=chips.resource,
        chips=chips.count,
        cpus=allocatable.get(CPU, 0.0),
        memory_mib=allocatable.get(MEMORY, 0.0) / MIB,
        place=find_place(meta["name"], labels, chips, cluster.levels),
        taints=tuple(sorted(_word(taint) for taint in taints if not _known(taint["key"], cluster))),
        condition=condition,
        words=words,
        leaving=leaving,
        leaves_s=float(maintenance) if maintenance.isdigit() else None,
        features=tuple(sorted({sys.intern(labels[label]) for label in _FEATURES if labels.get(label)})),
        telling=chips.telling,
        devices=tuple(sorted(name for name in cluster.pods.devices if allocatable.get(name))),
        labels=labels if cluster.delegated else {},
        offer=bearing(cluster, labels),
        chip_memory_gib=cluster.chip_memory_gib.get(chips.chip) if chips.memory_gib is None else chips.memory_gib,
        cordon=cordon,
        conditions=read_conditions(conditions),
    )
    return made.without_own_taints()


def read_cordon(found: Mapping[str, Any], namespace: str) -> NodeCordon:
    """Returns what a node's object says of cordons; one of another lab of this cluster is somebody else's.

    Args:
        namespace: Ours.

    Raises:
        KeyError, TypeError: It cannot be read.
    """
    meta, spec = found["metadata"], found.get("spec") or {}
    notes = meta.get("annotations") or {}
    space, _, owner = notes.get(CORDONED_BY, "").partition("/")
    ours = Cordon(owner=owner, reason=notes.get(CORDONED_FOR, "")) if space == namespace and owner else None
    return NodeCordon(ours=ours, shut=bool(spec.get("unschedulable")), version=str(meta.get("resourceVersion", "")))


def _uncounted(resource: str) -> str:
    return f"its device plugin counts no {resource or CPU}"


def _state(conditions: Iterable[Mapping[str, Any]], taints: set[str], *, shut: bool) -> tuple[NodeCondition, str, bool]:
    """Returns whether work may be placed on a node, why not, and whether it is being taken away.

    Args:
        shut: Whether its operators have cordoned it.
    """
    ready = next((each for each in conditions if each.get("type") == "Ready"), None)
    going = next((words for key, words in _LEAVING.items() if key in taints), "")
    closed = next((words for key, words in _CLOSED.items() if key in taints), "")
    if shut:
        going, closed = going or _CLOSED[UNSCHEDULABLE], ""
    if ready is None or ready.get("status") != "True":
        said = (ready or {}).get("message") or "its kubelet has said nothing yet"
        return NodeCondition.DOWN, str(said), bool(going)
    if down := next((words for key, words in _DOWN.items() if key in taints), ""):
        return NodeCondition.DOWN, down, bool(going)
    if going or closed:
        return NodeCondition.CORDONED, going or closed, bool(going)
    return NodeCondition.READY, "", False


def _known(key: str, cluster: KubernetesCluster) -> bool:
    """Returns whether a taint asks nothing of a job: it is a condition, a notice, or tolerated by every pod of ours."""
    return key in _DOWN or key in _CLOSED or key in _LEAVING or key in cluster.tolerated


def _word(taint: Mapping[str, Any]) -> str:
    value = taint.get("value")
    return f"{taint['key']}={value}" if value else str(taint["key"])
