"""Nodes that the autoscalers of a cluster would add: as the operator names them, and as Karpenter's NodePools tell.

A NodePool that says which chips its nodes have is an offer by itself, where the operator lets NodePools be; where an
offer names one by label, its limits, its taints and its state count too.
Source: karpenter.sh/v1, "NodePools"; labels of its provider for AWS.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mainspring.domain.fleet import CHIPS_MAX, NODES_MAX
from mainspring.domain.ids import ChipName, checked_name
from mainspring.domain.job import CHIP_MEMORY_GIB_MAX
from mainspring.engines.kubernetes.cluster.amounts import number
from mainspring.engines.kubernetes.cluster.chips import NVIDIA, find_chips

if TYPE_CHECKING:
    from mainspring.engines.kubernetes.cluster.config import KubernetesCluster

NODE_POOL = "karpenter.sh/nodepool"  # The label that tells a node's pool.
LEAD_TIME_S = 300.0  # From a pod that waits to a node with its drivers, where nobody says: clouds take 2 to 10 minutes.
FOUND_MAX = 64  # Nodes that a pool gives, where neither its limits nor the operator say.
LABELS_MAX = 16
_CAPACITY, _SPOT = "karpenter.sh/capacity-type", "spot"
_COUNT = "karpenter.k8s.aws/instance-gpu-count"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOffer:
    """Nodes, all alike, that an autoscaler adds for pods which find no room.

    Args:
        chip: Our name of their chips, as they will be known by.
        chips: How many each has.
        labels: What they bear, and so what pods ask for that shall get one: {"cloud.google.com/gke-nodepool": "a3"}.
        resource: The extended resource that counts their chips.
        nodes_max: How many there may be at once.
        lead_time_s: From the order until one takes jobs, its drivers included.
        dollars_per_chip_hour: Price; None for what the cluster says of that chip.
        spot: Whether they can be taken back at any time.
        chip_memory_gib: Memory of each chip; None for what the cluster says of that chip.
    """

    chip: ChipName
    chips: int
    labels: Mapping[str, str] = field(default_factory=dict)
    resource: str = NVIDIA
    nodes_max: int = FOUND_MAX
    lead_time_s: float = LEAD_TIME_S
    dollars_per_chip_hour: float | None = None
    spot: bool = False
    chip_memory_gib: float | None = None

    def wrong(self) -> str:
        """Returns which field is wrong, and what it should be; "" for none."""
        checked_name(self.chip, "chip")
        rules = {
            "chips": (not 0 < self.chips <= CHIPS_MAX, "over 0"),
            "labels": (not 0 < len(self.labels) <= LABELS_MAX, "what tells these nodes from others"),
            "resource": ("/" not in self.resource, "an extended resource, such as nvidia.com/gpu"),
            "nodes_max": (not 0 < self.nodes_max <= NODES_MAX, f"1 to {NODES_MAX}"),
            "lead_time_s": (not 0 < self.lead_time_s <= 86_400, "over 0, up to a day"),
            "chip_memory_gib": (not 0 <= (self.chip_memory_gib or 0.0) <= CHIP_MEMORY_GIB_MAX, "0 to 1e5"),
            "dollars_per_chip_hour": (not 0 <= (self.dollars_per_chip_hour or 0.0) <= 1e6, "0 to 1e6"),
        }
        return next((f"{name}: {wanted}" for name, (bad, wanted) in rules.items() if bad), "")


def bearing(cluster: KubernetesCluster, labels: Mapping[str, str]) -> str:
    """Returns the offer that a node came from, or could have come from, by its labels; "" for none."""
    named = (name for name, offer in cluster.offers.items() if offer.labels.items() <= labels.items())
    return next(named, labels.get(NODE_POOL, "") if cluster.karpenter else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePool:
    """A NodePool of Karpenter.

    Args:
        told: The labels that all its nodes will bear.
        limits: The most that it may have, by resource; "nodes" counts nodes.
        used: What it has of these.
        shut: Why it gives none that our pods could use, "" where it does.
        spot: Whether it may take machines that can be taken back.
    """

    name: str
    told: Mapping[str, str]
    limits: Mapping[str, float]
    used: Mapping[str, float]
    shut: str
    spot: bool

    def nodes_left(self, offer: NodeOffer) -> int:
        """Returns how many nodes it may still add."""
        each = {"nodes": 1, offer.resource: offer.chips}
        left = (
            int((self.limits[name] - self.used.get(name, 0.0)) // amount)
            for name, amount in each.items()
            if name in self.limits
        )
        return max(0, min(left, default=NODES_MAX))

    def as_offer(self, chips: Mapping[str, ChipName]) -> NodeOffer | None:
        """Returns what it offers by itself; None where it does not say which chips its nodes have.

        Args:
            chips: What the operator calls them, by product.
        """
        count = self.told.get(_COUNT, "")
        if not count.isdigit() or not int(count):
            return None
        found = find_chips({NVIDIA: int(count)}, self.told, chips)
        if not found.telling:
            return None
        return NodeOffer(
            chip=found.chip,
            chips=found.count,
            labels={NODE_POOL: self.name},
            spot=self.spot,
            chip_memory_gib=found.memory_gib,
        )


def read_pool(found: Mapping[str, Any], cluster: KubernetesCluster) -> NodePool:
    """Returns what a NodePool's object says.

    Raises:
        KeyError, TypeError, ValueError: It cannot be read.
    """
    template, status = found["spec"]["template"], found.get("status") or {}
    values = {one["key"]: one["values"] for one in template["spec"]["requirements"] if one["operator"] == "In"}
    labels = (template.get("metadata") or {}).get("labels") or {}
    used = {name: number(str(amount)) for name, amount in (status.get("resources") or {}).items()}
    limits = found["spec"].get("limits") or {}
    return NodePool(
        name=found["metadata"]["name"],
        told={**labels, **{key: one[0] for key, one in values.items() if len(one) == 1}},
        limits={name: number(str(amount)) for name, amount in limits.items()},
        used={**used, "nodes": float(status.get("nodes") or 0)},
        shut=_shut(template["spec"], status.get("conditions") or (), {*cluster.tolerated, *cluster.chips}),
        spot=_SPOT in values.get(_CAPACITY, ()),
    )


def _shut(spec: Mapping[str, Any], conditions: Iterable[Mapping[str, Any]], tolerated: set[str]) -> str:
    for one in conditions:
        if one.get("type") == "Ready" and one.get("status") == "False":
            return f"its NodePool is not ready: {one.get('message') or one.get('reason') or 'it does not say why'}"
    for taint in spec.get("taints") or ():
        if taint.get("effect") in ("NoSchedule", "NoExecute") and taint["key"] not in (*tolerated, NVIDIA):
            return f"its nodes have the taint {taint['key']}, which is not in tolerated"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledOffer:
    """An offer, and the NodePool that it comes from, if that is known."""

    name: str
    offer: NodeOffer
    pool: NodePool | None


def every_offer(cluster: KubernetesCluster, pools: Mapping[str, NodePool]) -> Iterator[PooledOffer]:
    """Yields what the operator names, and NodePools that say enough by themselves, in order of name."""
    offers = dict(cluster.offers)
    named = {offer.labels.get(NODE_POOL, "") for offer in offers.values()}
    for pool in pools.values() if cluster.karpenter else ():
        found = None if pool.name in named or pool.name in offers else pool.as_offer(cluster.chips)
        if found is not None:
            offers[pool.name] = found
    for name in sorted(offers):
        yield PooledOffer(name=name, offer=offers[name], pool=pools.get(offers[name].labels.get(NODE_POOL, "")))
