"""A checkpoint with adapters as one without: what leaves is a policy like any other. Without JAX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mainspring.checkpoint.format import dtype_named
from mainspring.checkpoint.interop import ArraySource, ArraySpec, Block, Facts, Region
from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import InvalidInput, InvalidMessage
from mainspring.train.lora import LoraRecipe, merged_weight, thin_regions
from mainspring.train.recipe import Recipe

ADAPTERS = "adapters"  # Where they lie in the trainer's state.
_LEFT_OUT = (ADAPTERS, "optimizer", "ema")  # Moments are of adapters; mean weights are made anew.


def merged_source(source: ArraySource) -> ArraySource:
    """Returns a checkpoint's arrays with adapters merged into weights and mean weights, float32.

    Args:
        source: A checkpoint of ours that reads any region; one without adapters, or of another program, is given back.
    """
    text = source.facts.state.get("recipe")
    try:
        recipe = decode(Recipe, text.encode()) if isinstance(text, str) else None
    except (InvalidMessage, InvalidInput):  # Somebody else's word.
        recipe = None
    return source if recipe is None or recipe.lora is None else _Merged(source, recipe, recipe.lora)


class _Merged:
    """What `merged_source` gives."""

    def __init__(self, source: ArraySource, recipe: Recipe, lora: LoraRecipe) -> None:
        self._source, self._lora = source, lora
        self._theirs = {array.path: array for array in source.arrays}
        facts = source.facts
        self.facts: Facts = replace(
            facts, state={**facts.state, "recipe": encode(replace(recipe, lora=None)).decode()}, parts={}
        )
        arrays = []
        for array in source.arrays:
            root, _, name = array.path.partition("/")
            if root == "weights":
                kinds = ("weights",) if recipe.ema_decay is None else ("ema", "weights")
                arrays += [replace(array, path=f"{kind}/{name}", dtype="float32") for kind in kinds]
            elif root not in _LEFT_OUT:
                arrays.append(array)
        self.arrays = tuple(sorted(arrays, key=lambda array: array.path))

    @property
    def name(self) -> str:
        """See `ArraySource.name`."""
        return self._source.name

    def read(self, blocks: Sequence[Block]) -> None:
        """See `ArraySource.read`."""
        for block in blocks:
            kind, _, name = block.array.path.partition("/")
            thin = ADAPTERS if kind == "weights" else kind
            if f"{thin}/{name}/a" in self._theirs:
                block.elements[...] = self._merged(name, thin, block.region)
            else:
                own = block.array.path if block.array.path in self._theirs else f"weights/{name}"
                block.elements[...] = self._region(self._theirs[own], block.region)

    def _merged(self, name: str, thin: str, region: Region) -> NDArray[np.float32]:
        adapter, base = self._lora.adapter_of(name), self._theirs[f"weights/{name}"]
        assert adapter is not None
        found = thin_regions(name, region, adapter.rank)
        a, b = (self._region(self._theirs[f"{thin}/{name}/{end}"], part) for end, part in zip("ab", found, strict=True))
        return merged_weight(name, self._region(base, region), a, b, adapter)

    def _region(self, array: ArraySpec, region: Region) -> NDArray[np.float32]:
        elements = np.empty(region.shape, dtype_named(array.dtype))
        self._source.read([Block(array=array, region=region, elements=elements)])
        return elements
