"""Published figures of chips: what a plan reckons with where nothing has been measured.

All figures are of one device as JAX counts them: a whole chip, but half of a TPU7x. Bandwidths are those one way.

Source:
    TPU: docs.cloud.google.com/tpu/docs, pages v4, v5e, v5p, v6e and tpu7x (FLOP/s, memory and its bandwidth, ICI); the
    usable memory is what libtpu 0.0.52 itself says is available when a program needs more. ICI pages tell both ways
    together over all links of a chip; a v4 has six of 45 GB/s each way, by "How to Scale Your Model", part 2.
    Scratch memory is as JAX 0.10.2 has it (`tpu_info.py`).
    GPU: NVIDIA's data sheets of A100, H100, H200 and HGX B200 (dense FLOP/s without sparsity, NVLink); the network is
    one adapter for each GPU, as in DGX A100 (HDR, 200 Gb/s) and DGX H100, H200 and B200 (NDR, 400 Gb/s). L4: its data
    sheet; RTX 4090: "NVIDIA Ada GPU architecture", appendix A (products added up in float32); both PCIe 4.0 x16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from mainspring.domain.errors import NotFound, nearest
from mainspring.domain.hardware.chips import published_memory_gib

GIB = 1 << 30
PREALLOCATED = 0.75  # Share of a GPU's memory that JAX takes. Source: JAX docs, "GPU memory allocation".


class Link(str, Enum):
    """What carries bytes between devices, the fastest first."""

    ICI = "ici"
    NVLINK = "nvlink"
    PCIE = "pcie"
    NETWORK = "network"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipFigures:
    """What one device can do at most.

    Args:
        flops: Dense products of bfloat16 numbers, FLOP/s.
        usable: Bytes that a program may fill.
        memory_bandwidth: Bytes/s.
        near: Bytes/s, each way and over all links together, to devices of the same slice, or of the same node.
        far: Bytes/s each way to other slices or nodes.
        link: What `near` goes over.
        devices: Devices of a chip.
        cores: Of a device; each has its own copy of a program.
        scratch: Bytes of a core's own fast memory (VMEM), where a program keeps what it soon needs again.
    """

    name: str
    flops: float
    usable: int
    memory_bandwidth: float
    near: float
    far: float
    link: Link
    devices: int = 1
    cores: int = 1
    scratch: int = 0

    @property
    def is_tpu(self) -> bool:
        """Returns whether it is a TPU, whose arrays lie in tiles."""
        return self.link is Link.ICI


def _tpu(
    name: str,
    *,
    teraflops: float,
    usable_gib: float,
    gb_s: float,
    ici: float,
    far: float,
    vmem_mib: int,
    devices: int = 1,
    cores: int = 1,
) -> ChipFigures:
    """Returns a TPU's figures, given those of a whole chip, and its usable memory of one device."""
    return ChipFigures(
        name=name,
        flops=teraflops * 1e12 / devices,
        usable=int(usable_gib * GIB),
        memory_bandwidth=gb_s * 1e9 / devices,
        near=ici * 1e9 / devices,
        far=far * 1e9 / devices,
        link=Link.ICI,
        devices=devices,
        cores=cores,
        scratch=vmem_mib << 20,
    )


def _gpu(
    name: str, *, teraflops: float, gb_s: float, far: float, nvlink: float = 0.0, pcie: float = 0.0
) -> ChipFigures:
    memory_gib = published_memory_gib(name)
    assert memory_gib is not None, name
    return ChipFigures(
        name=name,
        flops=teraflops * 1e12,
        usable=int(memory_gib * GIB * PREALLOCATED),
        memory_bandwidth=gb_s * 1e9,
        near=(nvlink or pcie) * 1e9,
        far=far * 1e9,
        link=Link.NVLINK if nvlink else Link.PCIE,
    )


CHIPS: Mapping[str, ChipFigures] = {
    chip.name: chip
    for chip in (
        # Of v4 two cores are one device; what then is usable is twice what libtpu says of a core. DCN of v4 is not
        # published: as v5p, whose hosts have four chips too.
        _tpu("v4", teraflops=275, usable_gib=30.5, gb_s=1200, ici=270, far=6.25, vmem_mib=16, cores=2),
        _tpu("v5e", teraflops=197, usable_gib=15.75, gb_s=819, ici=200, far=3.125, vmem_mib=128),
        _tpu("v5p", teraflops=459, usable_gib=95.73, gb_s=2765, ici=600, far=6.25, vmem_mib=64, cores=2),
        _tpu("v6e", teraflops=918, usable_gib=31.24, gb_s=1638, ici=400, far=12.5, vmem_mib=128),
        _tpu("tpu7x", teraflops=2307, usable_gib=94.74, gb_s=7380, ici=600, far=12.5, vmem_mib=64, devices=2),
        _gpu("a100", teraflops=312, gb_s=1555, nvlink=300, far=25),
        _gpu("a100-80gb", teraflops=312, gb_s=2039, nvlink=300, far=25),
        _gpu("h100", teraflops=989, gb_s=3350, nvlink=450, far=50),
        _gpu("h200", teraflops=989, gb_s=4800, nvlink=450, far=50),
        _gpu("b200", teraflops=2250, gb_s=7700, nvlink=900, far=50),
        # Cards of 24 GB, alone in most machines; far is the 100 Gb/s of an instance with four L4.
        _gpu("l4", teraflops=121, gb_s=300, pcie=32, far=12.5),
        _gpu("rtx4090", teraflops=165, gb_s=1008, pcie=32, far=12.5),
    )
}
ALIASES = {"v7x": "tpu7x", "a100-40gb": "a100"}


def figures_of(chip: str) -> ChipFigures:
    """Returns what is published of a chip.

    Args:
        chip: As a fleet names it.

    Raises:
        NotFound: Nothing is known of it.
    """
    name = ALIASES.get(chip, chip)
    if name not in CHIPS:
        raise NotFound("find a chip's figures", on=chip, got="no figures of it", wanted=nearest(chip, CHIPS))
    return CHIPS[name]
