"""Settings of a Kubernetes cluster, as its operator gives them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from mainspring.domain.errors import InvalidSpec
from mainspring.domain.ids import ChipName, ClusterName, TeamName, checked_name
from mainspring.domain.job import CHIP_MEMORY_GIB_MAX, Tier
from mainspring.engines.kubernetes.cluster.offers import NodeOffer
from mainspring.engines.kubernetes.cluster.pods import ROOT, PodSettings

ALLOCATION = "mainspring/allocation"  # The label that all our objects bear,
ORDER = "mainspring/order"  # but those by which nodes are ordered.
CORDONED_BY, CORDONED_FOR = "mainspring/cordoned-by", "mainspring/cordoned-for"  # Annotations of nodes.
OFFERS_MAX = 256
LEVELS_MAX = 8
TIERS = frozenset(tier.value for tier in Tier)
TOLERATED_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesCluster:
    """A Kubernetes cluster, as its operator describes it.

    Args:
        kubeconfig: Absolute path of the file that says how it is reached; "" for the usual one, or, inside of a
            cluster, for the account of the pod.
        context: Which of that file's contexts; "" for its current one.
        namespace: Where our objects are; ours alone.
        nodes: Label selector of the nodes to use ("pool in (h100, h200), !reserved"); "" for all.
        chips: Chip type by the cluster's own word for it, where ours is another: a product ("NVIDIA-A100-SXM4-40GB"),
            an accelerator ("nvidia-l4"), or an extended resource ("habana.ai/gaudi") or a driver of devices
            ("tpu.example.org"), whose units then count as chips.
        chip_memory_gib: Memory of one chip by chip type, where no label tells it.
        levels: The topology as labels of nodes, by level, widest first ({"block": "lab/block", "rack": "lab/rack"});
            nothing for what the cluster's provider is known to set.
        tolerated: Keys of taints that all our pods tolerate, besides those named like a chip's resource.
        dollars_per_chip_hour: Price by chip type.
        image: What jobs run in; Mainspring is installed there, unless a bundle brings it.
        bundle: An image that has a bundle (`python -m mainspring bundle`), from which the agent then comes into every
            pod, whatever is in the image of jobs; "" where that has Mainspring.
        python: The interpreter of the image of jobs that has Mainspring; of no matter where a bundle brings it.
        user: The number of the user that agents, and so jobs, run as.
        grace_s: How long agents have to end in good order when the cluster takes their nodes back.
        priority_class: Of our pods; "" for the cluster's own.
        pull_secrets: Secrets of the namespace by which images are pulled.
        pods: What pods have besides.
        queue: Kueue's LocalQueue that jobs wait in, and which then decides where and when; "" where we name nodes.
        queues: LocalQueue by team, where one has its own; teams below share it.
        priorities: Kueue's WorkloadPriorityClass by tier ("critical", "standard", "opportunistic").
        queued_nodes_max: For how many nodes beyond the idle ones our allocations may wait in those queues.
        queue_wait_s_max: How long one may wait there before it is withdrawn and placed anew.
        offers: Nodes that the cluster's autoscaler would add, by name, such as those of node pools that begin at none.
        karpenter: Whether Karpenter's NodePools are offers too, as far as they say which chips their nodes have.
        provisioning_class: By which class of ProvisioningRequest nodes are ordered, all of an order or none
            ("best-effort-atomic-scale-up.autoscaling.x-k8s.io"); "" for pods that wait until an autoscaler sees them.
        call_s_max: How long one call of the API may take.
        simulated: Whether its chips are pretended.
        losses_per_node_hour: How often it takes a node back, on average.
    """

    kind: ClassVar[str] = "kubernetes"

    name: ClusterName
    kubeconfig: str = ""
    context: str = ""
    namespace: str = "mainspring"
    nodes: str = ""
    chips: Mapping[str, ChipName] = field(default_factory=dict)
    chip_memory_gib: Mapping[ChipName, float] = field(default_factory=dict)
    levels: Mapping[str, str] = field(default_factory=dict)
    tolerated: tuple[str, ...] = ()
    dollars_per_chip_hour: Mapping[ChipName, float] = field(default_factory=dict)
    image: str = ""
    bundle: str = ""
    python: str = "python3"
    user: int = 1_000
    grace_s: float = 60.0
    priority_class: str = ""
    pull_secrets: tuple[str, ...] = ()
    pods: PodSettings = field(default_factory=PodSettings)
    queue: str = ""
    queues: Mapping[TeamName, str] = field(default_factory=dict)
    priorities: Mapping[str, str] = field(default_factory=dict)
    queued_nodes_max: int = 8
    queue_wait_s_max: float = 6 * 3_600.0
    offers: Mapping[str, NodeOffer] = field(default_factory=dict)
    karpenter: bool = False
    provisioning_class: str = ""
    call_s_max: float = 10.0
    simulated: bool = False
    losses_per_node_hour: float = 0.0

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidSpec: A field is out of its range, or is not allowed.
        """
        checked_name(self.name, "cluster")
        checked_name(self.namespace, "namespace")
        wrong = {
            "kubeconfig": (
                bool(self.kubeconfig) and not self.kubeconfig.startswith("/"),
                "an absolute path, or nothing",
            ),
            "namespace": (not set(self.namespace).isdisjoint("._"), "the name of a namespace: a-z, 0-9 and '-'"),
            "chip_memory_gib": (
                any(not 0 <= memory <= CHIP_MEMORY_GIB_MAX for memory in self.chip_memory_gib.values()),
                "0 to 1e5",
            ),
            "levels": (
                len(self.levels) > LEVELS_MAX or not all(self.levels.values()),
                f"up to {LEVELS_MAX}, each with a label",
            ),
            "tolerated": (len(self.tolerated) > TOLERATED_MAX, f"up to {TOLERATED_MAX}"),
            "queue": (bool(self.queues or self.priorities) and not self.queue, "one for teams without their own"),
            "priorities": (not self.priorities.keys() <= TIERS, f"tiers out of {', '.join(sorted(TIERS))}"),
            "queued_nodes_max": (not 0 <= self.queued_nodes_max <= 100_000, "0 to 100000"),
            "queue_wait_s_max": (not 0 < self.queue_wait_s_max <= 366 * 86_400, "over 0, up to a year"),
            "offers": (len(self.offers) > OFFERS_MAX, f"up to {OFFERS_MAX}"),
            "provisioning_class": (
                self.orders_nodes and self.delegated,
                "no offers beside a queue: Kueue asks for nodes by itself",
            ),
            "user": (not 0 <= self.user < 1 << 31, "0 to 2147483647"),
            "grace_s": (not 0 < self.grace_s <= 3_600, "over 0, up to 3600"),
            "call_s_max": (not 0 < self.call_s_max <= 600, "over 0, up to 600"),
            "dollars_per_chip_hour": (
                any(not 0 <= price <= 1e6 for price in self.dollars_per_chip_hour.values()),
                "0 to 1e6",
            ),
            "losses_per_node_hour": (not 0 <= self.losses_per_node_hour <= 1e3, "0 to 1000"),
        }
        for name, (bad, wanted) in wrong.items():
            if bad:
                on, got = f"{self.name}, field {name!r}", repr(getattr(self, name))[:200]
                raise InvalidSpec("accept a Kubernetes cluster", on=on, got=got, wanted=wanted)
        for name, offer in self.offers.items():
            checked_name(name, "offer")
            field_name, _, asked = offer.wrong().partition(": ")
            if asked:
                on = f"{self.name}, field 'offers.{name}.{field_name}'"
                raise InvalidSpec("accept a Kubernetes cluster", on=on, got=str(offer)[:200], wanted=asked)
        self.pods.require_allowed(ROOT, "user", "0" if not self.user else "")
        for name in (*self.queues.values(), *self.priorities.values(), *filter(None, (self.queue,))):
            checked_name(name, "queue or priority class")
        for level in self.levels:
            checked_name(level, "level")
        for chip in (*self.chips.values(), *self.chip_memory_gib, *self.dollars_per_chip_hour):
            checked_name(chip, "chip")

    @property
    def delegated(self) -> bool:
        """Returns whether Kueue decides where and when."""
        return bool(self.queue)

    @property
    def orders_nodes(self) -> bool:
        """Returns whether nodes may be had that are not there yet."""
        return bool(self.offers or self.karpenter)

    @property
    def every_queue(self) -> tuple[str, ...]:
        """Returns the LocalQueues that jobs may wait in."""
        return tuple(dict.fromkeys((self.queue, *self.queues.values())))

    def queue_of(self, teams: Iterable[TeamName]) -> str:
        """Returns the LocalQueue that a job waits in.

        Args:
            teams: The team that is charged, and those above it, nearest first.
        """
        return next((self.queues[team] for team in teams if team in self.queues), self.queue)
