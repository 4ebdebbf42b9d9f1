"""Chips by their names: how much memory each has where nobody has measured it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from mainspring.domain.ids import ChipName

# GiB of one chip, the least that is sold under the name, by the makers' data sheets; NVIDIA's and AMD's GB of HBM are
# GiB. GDDR6 is less the sixteenth that ECC takes ("NVIDIA GPU Memory Error Management"). What a driver then shows is up
# to half a percent less: 79.6 GiB of an H100's 80. Cores have no memory of their own.
# Source: data sheets of NVIDIA's T4 to GB200 and AMD's MI210 to MI355X; Google's "TPU architecture" pages, v2 to TPU7x.
PUBLISHED_MEMORY_GIB: Mapping[ChipName, float] = {
    ChipName(chip): memory_gib
    for chip, memory_gib in {
        "t4": 15.0, "v100": 16.0, "a10": 22.5, "a10g": 22.5, "a30": 24.0, "a40": 45.0, "a100": 40.0, "a800": 40.0,
        "l4": 22.5, "l40": 45.0, "l40s": 45.0, "h20": 96.0, "h100": 80.0, "h800": 80.0, "h200": 141.0, "gh200": 96.0,
        "b200": 180.0, "gb200": 186.0, "mi210": 64.0, "mi300a": 128.0, "mi300x": 192.0, "mi325x": 256.0,
        "mi350x": 288.0, "mi355x": 288.0, "v2": 16.0, "v3": 32.0, "v4": 32.0, "v5e": 16.0, "v5p": 95.0, "v6e": 32.0,
        "v7x": 192.0, "rtx4090": 24.0, "cpu": 0.0,
    }.items()
}  # fmt: skip
# A size inside of a product's name: "NVIDIA-A100-SXM4-40GB", "nvidia_h100_80gb_hbm3"; of a part of a chip the last one
# is the part's: "a100-sxm4-40gb-mig-1g.5gb".
_SIZE = re.compile(r"(?<![0-9.])([1-9]\d{0,3})gb(?![a-z0-9])", re.IGNORECASE)

_WITH_HOST = re.compile("gh200", re.IGNORECASE)  # "NVIDIA GH200 480GB" tells the memory of the host that is beside it.


def named_memory_gib(product: str) -> float | None:
    """Returns the memory that a product's name tells of, None where it tells of none.

    Args:
        product: A maker's name of a chip or of a part of one, or a name made of that.
    """
    if _WITH_HOST.search(product):
        return None
    sizes = _SIZE.findall(product.replace("_", "-").replace("g.", "g-"))
    return float(sizes[-1]) if sizes else None


def published_memory_gib(chip: str) -> float | None:
    """Returns the memory of a chip by its name alone: what that tells, else what is published; None for a stranger.

    Args:
        chip: Chip type, as a fleet names it.
    """
    told = named_memory_gib(chip)
    return PUBLISHED_MEMORY_GIB.get(ChipName(chip)) if told is None else told


def known_memory_gib(stated: float | None, chip: str) -> float | None:
    """Returns the memory of a chip: as stated, else as its name alone tells; None where nobody knows.

    Args:
        stated: What its node or its offer says, None for nothing.
        chip: Chip type, as a fleet names it.
    """
    return published_memory_gib(chip) if stated is None else stated
