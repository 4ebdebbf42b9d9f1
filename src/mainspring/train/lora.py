"""LoRA: weights that stay as they are, each with two thin arrays beside it that are learned in their place.

A weight W acts as W + scale x A B, where A leads from its inputs to `rank` features and B from these to its outputs.
A begins at random and B at zero, so a run begins as its base is. Here is what that means, and a checkpoint merged, all
without JAX; `state/adapters.py` has the arrays of a run.
Source: Hu et al., "LoRA", 2021; Kalajdzievski, "A Rank Stabilization Scaling Factor", 2023 (`stabilised`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mainspring.checkpoint.interop import Region
from mainspring.domain.errors import InvalidInput
from mainspring.train.models.shapes import WIDTH_MAX, FloatKind, require

HEADED = r"(^|.*/)(query|key|value|out)(/kernel)?"  # Arrays with an axis for heads and one for a head's features.
PRODUCTS = rf"{HEADED}|(^|.*/)(gate|up|down|kernel)"  # Arrays that something is multiplied by.


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterRecipe:
    """What is learned beside some weights.

    Args:
        stack: Where they lie, such as `language/blocks`: a regular expression.
        rank: Features between A and B.
        alpha: How much they count: A B is scaled by `alpha / rank`.
        targets: Which, below `stack`: regular expressions, of whole paths; attention and MLP of a decoder by default.
        stabilised: Whether the scale is `alpha` over the root of the rank, for high ranks.
    """

    stack: str
    rank: int
    alpha: float
    targets: tuple[str, ...] = ("query|key|value|out", "gate|up|down")
    stabilised: bool = False

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidInput: A field is out of its range.
        """
        require("adapters", self, rank=(1, WIDTH_MAX), alpha=(0.0, 1e6))

    @property
    def scale(self) -> float:
        """Returns what A B is multiplied by."""
        return self.alpha / (math.sqrt(self.rank) if self.stabilised else self.rank)

    @property
    def patterns(self) -> tuple[str, ...]:
        """Returns its targets as patterns of whole paths."""
        return tuple(f"{self.stack}/({target})" for target in self.targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraRecipe:
    """Which weights have adapters; all weights stay as they are, but for those that are learned whole.

    Args:
        adapters: The first that names a weight counts.
        whole: Weights that are learned themselves, beside the adapters: regular expressions, of whole paths.
        numbers: In which all other weights are kept: bfloat16 takes half the memory.
    """

    adapters: tuple[AdapterRecipe, ...]
    whole: tuple[str, ...] = ()
    numbers: FloatKind = FloatKind.FLOAT32

    def adapter_of(self, path: str) -> AdapterRecipe | None:
        """Returns what is learned beside a weight, None for nothing.

        Args:
            path: The weight's.
        """
        for adapter in self.adapters:
            if any(re.fullmatch(pattern, path) for pattern in adapter.patterns):
                return adapter
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinShapes:
    """Shapes of A and B beside a weight."""

    a: tuple[int, ...]
    b: tuple[int, ...]
    inputs: int


def thin_shapes(path: str, shape: Sequence[int], rank: int) -> ThinShapes:
    """Returns the shapes of what is learned beside a weight of many stacked layers, or of one.

    Args:
        path: Says which of its axes are summed over: two of `out`, one of others.
        shape: The weight's.
        rank: Features between A and B.

    Raises:
        InvalidInput: Nothing is multiplied by such an array.
    """
    inputs, outputs = axes_of(path)
    stack = len(shape) - inputs - outputs
    if not re.fullmatch(PRODUCTS, path) or not 0 <= stack <= 1:
        raise InvalidInput(
            "adapt a weight",
            on=path,
            got=f"an array of shape {tuple(shape)}",
            wanted="a kernel of a dense layer, or of attention",
            next_step="name others in lora.adapters, or learn this one by lora.whole",
        )
    cut = stack + inputs
    size = math.prod(shape[stack:cut])
    return ThinShapes(a=(*shape[:cut], rank), b=(*shape[:stack], rank, *shape[cut:]), inputs=size)


def axes_of(path: str) -> tuple[int, int]:
    """Returns how many of a weight's last axes are of its inputs, and how many after them of its outputs.

    Args:
        path: The weight's.
    """
    found = re.fullmatch(HEADED, path)
    if found is None:
        return 1, 1
    return (2, 1) if found[2] == "out" else (1, 2)


def in_hidden_layer(path: str, dims: int) -> bool:
    """Returns whether something is multiplied by an array in hidden layers: in one, or in each of a stack.

    Args:
        path: The array's.
        dims: How many it has.
    """
    one_of_several = re.search(r"(^|/)blocks/\d+/", path) is not None
    return bool(re.fullmatch(PRODUCTS, path)) and dims - sum(axes_of(path)) == (0 if one_of_several else 1)


def thin_regions(path: str, region: Region, rank: int) -> tuple[Region, Region]:
    """Returns which regions of A and of B a region of a weight comes from.

    Args:
        path: The weight's.
        region: Of it.
        rank: Features between A and B.
    """
    inputs, outputs = axes_of(path)
    cut = len(region.shape) - outputs
    stack = cut - inputs
    a = Region(start=(*region.start[:cut], 0), shape=(*region.shape[:cut], rank))
    return a, Region(
        start=(*region.start[:stack], 0, *region.start[cut:]), shape=(*region.shape[:stack], rank, *region.shape[cut:])
    )


def merged_weight(
    path: str, base: NDArray[Any], a: NDArray[Any], b: NDArray[Any], adapter: AdapterRecipe
) -> NDArray[np.float32]:
    """Returns W + scale x A B, float32; of regions, where all three are of the same one.

    Args:
        path: The weight's.
        base: It.
        a: What leads from its inputs, [.., inputs, rank].
        b: What leads to its outputs, [.., rank, outputs].
        adapter: Says the scale.
    """
    inputs, outputs = axes_of(path)
    stack = base.shape[: base.ndim - inputs - outputs]
    thin = [np.asarray(a, np.float32).reshape(*stack, -1, a.shape[-1])]
    thin.append(np.asarray(b, np.float32).reshape(*stack, a.shape[-1], -1))
    both: NDArray[np.float32] = np.matmul(*thin).reshape(base.shape)
    return np.asarray(base, np.float32) + np.float32(adapter.scale) * both


def merged_arrays(arrays: Mapping[str, NDArray[Any]], lora: LoraRecipe) -> dict[str, NDArray[Any]]:
    """Returns a checkpoint's arrays as those of a run without adapters, weights and mean weights in float32.

    Args:
        arrays: By path in the trainer's state; mean weights are of what was learned alone.
        lora: Of the run.
    """
    merged: dict[str, NDArray[Any]] = {}
    for path, array in arrays.items():
        root, _, name = path.partition("/")
        if root != "weights":
            merged |= {} if root in ("adapters", "ema") else {path: array}
            continue
        for kind, thin in (("weights", "adapters"), ("ema", "ema")):
            if kind == "weights" or any(other.startswith("ema/") for other in arrays):
                merged[f"{kind}/{name}"] = _merged(name, array, kind, thin, arrays, lora)
    return merged


def _merged(
    name: str, base: NDArray[Any], kind: str, thin: str, arrays: Mapping[str, NDArray[Any]], lora: LoraRecipe
) -> NDArray[Any]:
    adapter, a = lora.adapter_of(name), arrays.get(f"{thin}/{name}/a")
    if adapter is None or a is None:
        return np.asarray(arrays.get(f"{kind}/{name}", base), np.float32)
    return merged_weight(name, base, a, arrays[f"{thin}/{name}/b"], adapter)
