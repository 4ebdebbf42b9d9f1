"""Where a node stands: labels of providers, or of the operator, as levels of our topology.

Levels bear the same names on every cluster, so that "in one rack" means the same wherever a job goes.
Source: GKE "Topology-aware scheduling" (`gce-topology-*`), EKS "Amazon EC2 instance topology" (layer 1 is the widest),
NVIDIA's GPU feature discovery (`gpu.clique`: what one NVLink fabric joins), GKE "TPUs in GKE".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from mainspring.engines.kubernetes.cluster.chips import TPU, Chips

SLICE = "slice"
# Level and label, the widest first. A provider sets its own; what is not set is no level.
_PRESETS = (
    ("zone", "topology.kubernetes.io/zone"),
    ("spine", "topology.k8s.aws/network-node-layer-1"),
    ("block", "cloud.google.com/gce-topology-block"),
    ("block", "topology.k8s.aws/network-node-layer-2"),
    ("rack", "cloud.google.com/gce-topology-subblock"),
    ("rack", "topology.k8s.aws/network-node-layer-3"),
    ("nvlink", "nvidia.com/gpu.clique"),
)
_TOPOLOGY = "cloud.google.com/gke-tpu-topology"  # "4x4x4": chips of the whole slice.
_POOL = "cloud.google.com/gke-nodepool"  # The hosts of one slice are one node pool.


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLocation:
    """The place of a node.

    Args:
        domains: From the widest level down.
        slice: Shape of the TPU slice that it is a host of, "" for none.
        slice_name: That slice among all.
        slice_hosts: How many hosts it has.
    """

    domains: tuple[tuple[str, str], ...] = ()
    slice: str = ""
    slice_name: str = ""
    slice_hosts: int = 0


def find_place(name: str, labels: Mapping[str, str], chips: Chips, levels: Mapping[str, str]) -> NodeLocation:
    """Returns where a node stands.

    Args:
        name: The node's.
        levels: Label by level, the widest first, in place of what providers set.
    """
    known = levels.items() if levels else _PRESETS
    domains = {level: labels[label] for level, label in known if labels.get(label)}
    shape = labels.get(_TOPOLOGY, "") if chips.resource == TPU else ""
    sides = [int(side) for side in shape.split("x") if side.isdigit()]
    if not shape or not sides or len(sides) != shape.count("x") + 1:
        return NodeLocation(domains=tuple(domains.items()))
    hosts = max(1, prod(sides) // max(1, chips.count))
    # A pool of slices that are one host each has as many slices as hosts.
    domains[SLICE] = labels.get(_POOL, name) if hosts > 1 else name
    return NodeLocation(domains=tuple(domains.items()), slice=shape, slice_name=domains[SLICE], slice_hosts=hosts)
