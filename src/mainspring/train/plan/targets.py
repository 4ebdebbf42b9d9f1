"""Which chips a recipe could run on, as people name them: "v5p:8x8x4", "v6e:16x16", "h100:64".

What a chip can do is not decided here, only which there are and in which numbers and shapes they come.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mainspring.domain.errors import InvalidInput, NotFound, nearest

SLICES_MAX = 1024
GPUS_PER_NODE = 8  # Source: NVIDIA, "DGX A100", "DGX H100", "DGX H200" and "DGX B200" datasheets.
GPUS_MAX = 1 << 17
CUBE_EDGE = 4  # Chips: larger three-dimensional slices are made of cubes. Source: Google Cloud, "TPU v4", "TPU v5p".
SMALL_3D = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))  # Parts of one cube. Source: as for `CUBE_EDGE`.
FLAT = (
    (1, 1),
    (2, 2),
    (2, 4),
    (4, 4),
    (4, 8),
    (8, 8),
    (8, 16),
    (16, 16),
)  # Source: Google Cloud, "TPU v5e", "TPU v6e".


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipForms:
    """The shapes that a kind of chip comes in.

    Args:
        exists: Whether there is a topology of these edges.
        examples: What there is, in words.
        tpu: Whether it is a TPU, whose compiler needs no chip.
        devices_per_chip: Devices that JAX counts for a chip.
    """

    exists: Callable[[tuple[int, ...]], bool]
    examples: str
    tpu: bool = True
    devices_per_chip: int = 1


def _cubes(chips_max: int) -> Callable[[tuple[int, ...]], bool]:
    def exists(edges: tuple[int, ...]) -> bool:
        whole = len(edges) == 3 and not any(edge % CUBE_EDGE for edge in edges)
        return edges in SMALL_3D or (whole and math.prod(edges) <= chips_max)

    return exists


def _nodes(edges: tuple[int, ...]) -> bool:
    (count, *more) = edges
    return not more and count <= GPUS_MAX and (count in (1, 2, 4) or count % GPUS_PER_NODE == 0)


_CUBES = "2x2x1, 2x2x2, 2x2x4, 2x4x4, or AxBxC with edges that are multiples of 4, such as 4x4x8, of at most {} chips"
_GPUS = ChipForms(exists=_nodes, examples=f"1, 2, 4 or a multiple of {GPUS_PER_NODE}, such as 64", tpu=False)
_FLAT = ChipForms(exists=FLAT.__contains__, examples=", ".join("x".join(map(str, edges)) for edges in FLAT))

CHIPS: Mapping[str, ChipForms] = {  # The largest slices. Source: Google Cloud, "TPU v4", "TPU v5p", "TPU7x".
    "v4": ChipForms(exists=_cubes(4096), examples=_CUBES.format(4096)),
    "v5e": _FLAT,
    "v5p": ChipForms(exists=_cubes(6144), examples=_CUBES.format(6144)),
    "v6e": _FLAT,
    "tpu7x": ChipForms(exists=_cubes(9216), examples=_CUBES.format(9216), devices_per_chip=2),
    "a100": _GPUS,
    "a100-80gb": _GPUS,
    "h100": _GPUS,
    "h200": _GPUS,
    "b200": _GPUS,
    "l4": _GPUS,
    "rtx4090": _GPUS,
}
OTHER_NAMES = {"a100-80": "a100-80gb"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Some chips of one kind, wired together.

    Args:
        chip: A key of `CHIPS`.
        topology: Chips along each edge of a slice; of GPUs, their number.
        slices: How many such, which talk over the data centre's network.
    """

    chip: str
    topology: tuple[int, ...]
    slices: int = 1

    def __post_init__(self) -> None:
        """Checks that there are such chips.

        Raises:
            NotFound: Nobody knows the chip.
            InvalidInput: It does not come in this shape or number.
        """
        if self.chip not in CHIPS:
            known = f"name one of {', '.join(CHIPS)}"
            raise NotFound("plan for a chip", got=repr(self.chip), wanted=nearest(self.chip, CHIPS), next_step=known)
        forms = CHIPS[self.chip]
        if not self.topology or min(self.topology) < 1 or not forms.exists(self.topology):
            raise InvalidInput(
                "plan for a topology",
                on=self.chip,
                got=self.topology_name or "no topology",
                wanted=forms.examples,
            )
        if not 1 <= self.slices <= (SLICES_MAX if forms.tpu else 1):
            raise InvalidInput(
                "plan for slices",
                on=self.chip,
                got=str(self.slices),
                wanted=f"1 to {SLICES_MAX}" if forms.tpu else "1: GPUs come as a number",
            )

    @property
    def topology_name(self) -> str:
        """Returns the edges as people write them: "8x8x4"."""
        return "x".join(map(str, self.topology))

    @property
    def name(self) -> str:
        """Returns what `parsed_target` reads, for one slice: "v5p:8x8x4"."""
        return f"{self.chip}:{self.topology_name}"

    @property
    def devices(self) -> int:
        """Returns how many devices JAX counts, over all slices: chips, or their halves for TPU7x."""
        return math.prod(self.topology) * self.slices * CHIPS[self.chip].devices_per_chip


def parsed_target(text: str, *, slices: int = 1) -> Target:
    """Returns the target of a name such as "v5p:8x8x4", "v6e:16x16" or "h100:64".

    Args:
        text: A chip, or another name of one ("a100-80"), a colon, and edges or a number.
        slices: How many such.

    Raises:
        NotFound: Nobody knows the chip.
        InvalidInput: It does not come in this shape or number, or the name is none.
    """
    chip, _, edges = text.strip().lower().partition(":")
    chip = OTHER_NAMES.get(chip, chip)
    if chip in CHIPS and not re.fullmatch(r"[1-9]\d{0,5}(x[1-9]\d{0,5})*", edges):
        raise InvalidInput(
            "read a target",
            got=repr(text),
            wanted=f"{chip}: and {CHIPS[chip].examples}",
            next_step="name a chip and its topology, such as v5p:4x4x4, v6e:16x16 or h100:64",
        )
    topology = tuple(int(edge) for edge in edges.split("x")) if chip in CHIPS else ()
    return Target(chip=chip, topology=topology, slices=slices)
