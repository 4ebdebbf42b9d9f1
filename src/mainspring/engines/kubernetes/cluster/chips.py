"""Chips of a node: which extended resource counts them, which type they are, and how much memory each has.

Both are told by labels, which the makers' device plugins and the providers of clusters set each in a way of its own.
Source: labels of NVIDIA's GPU feature discovery, AMD's node labeller ("Resource Naming Strategy" of its device plugin),
GKE ("GPUs in GKE", "TPUs in GKE"), Karpenter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mainspring.domain.hardware.chips import named_memory_gib, published_memory_gib
from mainspring.domain.ids import ChipName
from mainspring.engines.common.names import our_name

MIB_PER_GIB = 1_024
CPU = ChipName("cpu")  # Chip of nodes without accelerators; their chips are their cores.
NVIDIA, AMD, TPU = "nvidia.com/gpu", "amd.com/gpu", "google.com/tpu"
AMD_WHOLE = "amd.com/spx_nps1"  # What AMD's plugin calls a chip that is not parted, where it names each kind of part.
# Where no label tells the type.
PLAIN = {NVIDIA: ChipName("gpu"), AMD: ChipName("gpu"), AMD_WHOLE: ChipName("gpu"), TPU: ChipName("tpu")}
_AMD_TYPES = ("amd.com/gpu.product-name", "amd.com/gpu.device-id")
_AMD_PART = "amd.com/compute-memory-partition"  # "cpx_nps4": how the chips of a node are parted, all alike.
_UNPARTED = "spx"  # What begins so is one part, the whole chip.
# How many parts a chip is in, by what the word for it begins with; an MI300A has six dies where others have eight.
_PARTS = {"dpx": 2, "tpx": 3, "qpx": 4, "cpx": 8}
_DIES_OF_MI300A = 6
# What tells the memory of each chip, in MiB, beside the label that is named like the resource, such as
# "nvidia.com/gpu.memory" or, of parts, "nvidia.com/mig-1g.10gb.memory"; and AMD's, in GiB: "192G".
_PROVIDERS_MIB = "karpenter.k8s.aws/instance-gpu-memory"
_AMD_GIB = re.compile(r"([0-9]{1,5})G")
_SHARED = ".shared"  # What the resource of a chip that is shared by turns may end with; its labels do not.
# Labels that tell the type, the most particular first.
_TYPES = {
    NVIDIA: (
        "nvidia.com/gpu.product",
        "cloud.google.com/gke-accelerator",
        "karpenter.k8s.aws/instance-gpu-name",
        "k8s.amazonaws.com/accelerator",
    ),
    AMD: _AMD_TYPES,
    AMD_WHOLE: _AMD_TYPES,
    TPU: ("cloud.google.com/gke-tpu-accelerator",),
}
_TPUS = {
    "tpu-v4-podslice": "v4",
    "tpu-v5-lite-device": "v5e",
    "tpu-v5-lite-podslice": "v5e",
    "tpu-v5p-slice": "v5p",
    "tpu-v6e-slice": "v6e",
    "tpu7x": "v7x",
}
# A model inside of a product's name: "NVIDIA-H100-80GB-HBM3", "nvidia-tesla-t4", "AMD_Instinct_MI300X_OAM".
_MODEL = re.compile(r"(?:^|[-_ ])(gb\d{3}|gh200|[abhlv]\d{2,3}[sg]?|l4|t4|p100|mi\d{3}[ax]?)(?:$|[-_ ])", re.IGNORECASE)
# A part of a chip, or one shared by turns, is another thing than the chip.
_PART = re.compile(r"shared|mig-|[cdqt]px_nps", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chips:
    """The chips of one node.

    Args:
        resource: The extended resource that counts them; "" for cores.
        telling: The labels that tell their type, and their values, if any do.
        memory_gib: Memory of each, None where no label tells it.
    """

    chip: ChipName
    resource: str
    telling: Mapping[str, str]
    count: int
    memory_gib: float | None = None


def find_chips(allocatable: Mapping[str, float], labels: Mapping[str, str], named: Mapping[str, ChipName]) -> Chips:
    """Returns the chips of a node: those of the resource that it has most of, or its cores.

    Args:
        allocatable: What pods may have of it, by resource.
        named: What the operator calls them, by product or resource.
    """
    counted = {name: allocatable[name] for name in (*_TYPES, *named) if name in allocatable}
    # Until its device plugin has counted them, only labels tell that there are any.
    counted = counted or {name: 0.0 for name, of in _TYPES.items() if any(labels.get(label) for label in of)}
    if not counted:
        return Chips(chip=CPU, resource="", telling={}, count=int(allocatable.get("cpu", 0)))
    resource = max(counted, key=lambda name: counted[name])
    telling = next(({label: labels[label]} for label in _TYPES.get(resource, ()) if labels.get(label)), {})
    words = list(telling.values())
    if resource == AMD and (parted := labels.get(_AMD_PART)):
        telling |= {_AMD_PART: parted}
        words += [] if parted.startswith(_UNPARTED) else [parted]
    chip = _chip(resource, "-".join(words), named)
    memory_gib = _memory_gib(resource, labels, words)
    return Chips(chip=chip, resource=resource, telling=telling, count=int(counted[resource]), memory_gib=memory_gib)


def _memory_gib(resource: str, labels: Mapping[str, str], words: Sequence[str]) -> float | None:
    """Returns the memory of each chip as it was measured, else as its product's name tells; None where neither is.

    One that is shared by turns has as much as falls to each who shares it, and so has a part of AMD's.

    Args:
        words: What tells the type.
    """
    if resource in (AMD, AMD_WHOLE):
        parts = next((count for start, count in _PARTS.items() if words[-1:] and words[-1].startswith(start)), 1)
        model = _model(words[0]) if words else PLAIN[AMD]
        whole = _AMD_GIB.fullmatch(labels.get("amd.com/gpu.vram", "")) if parts == 1 else None
        memory_gib = float(whole[1]) if whole else published_memory_gib(model)
        if model == "mi300a" and parts == _PARTS["cpx"]:
            parts = _DIES_OF_MI300A
        return None if memory_gib is None else memory_gib / parts
    named = resource.removesuffix(_SHARED)
    measured = labels.get(f"{named}.memory", "") or (labels.get(_PROVIDERS_MIB, "") if named == NVIDIA else "")
    sharing = labels.get(f"{named}.replicas", "")
    if measured.isdigit() and int(measured):
        memory_gib = int(measured) / MIB_PER_GIB
    else:
        memory_gib = named_memory_gib(words[0] if words else named)
    return memory_gib if memory_gib is None or not sharing.isdigit() else memory_gib / max(1, int(sharing))


def published_chip(driver: str, product: str, named: Mapping[str, ChipName]) -> ChipName:
    """Returns the type of chips that a driver publishes.

    Args:
        product: The driver's name of it, "" where it tells none.
        named: What the operator calls them, by product or driver.
    """
    if known := named.get(product) or named.get(driver):
        return known
    return _model(product) if product else PLAIN[NVIDIA]


def _chip(resource: str, product: str, named: Mapping[str, ChipName]) -> ChipName:
    if known := named.get(product) or named.get(resource):
        return known
    if not product:
        return PLAIN[resource]
    if resource == TPU:
        return ChipName(_TPUS.get(product) or our_name(product))
    return _model(product)


def _model(product: str) -> ChipName:
    model = None if _PART.search(product) else _MODEL.search(product)
    return ChipName(model[1].lower() if model else our_name(product))
