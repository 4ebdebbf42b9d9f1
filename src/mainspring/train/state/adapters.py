"""What of a run is learned: all weights that are not frozen, or the adapters of LoRA; and the weights in use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from mainspring.domain.errors import InvalidInput
from mainspring.train.lora import LoraRecipe, thin_shapes
from mainspring.train.models.arrays import (
    Adapted,
    Fresh,
    Weights,
    drawn,
    flattened,
    fresh_dense,
    matching,
    with_given,
)
from mainspring.train.recipe import Recipe

ADAPTERS_KEY = 1 << 30  # Adapters are drawn by a key of their own: the weights are those of a run without.


def learned_weights(weights: Weights, recipe: Recipe) -> dict[str, Any]:
    """Returns the weights that are learned themselves, by path.

    Args:
        weights: All; or their shapes.

    Raises:
        InvalidInput: A pattern names none.
    """
    arrays = flattened(weights)
    frozen = matching(recipe.frozen, arrays, "freeze weights")
    if recipe.lora is not None:
        frozen |= set(arrays) - matching(recipe.lora.whole, arrays, "learn weights whole")
    return {path: array for path, array in arrays.items() if path not in frozen}


def kept_weights(weights: Weights, recipe: Recipe) -> Weights:
    """Returns the weights in the numbers that they are kept in.

    Args:
        weights: All, float32.
    """
    if recipe.lora is None:
        return weights
    learned, numbers = learned_weights(weights, recipe), recipe.lora.numbers.value
    kept = {path: array.astype(numbers) for path, array in flattened(weights).items() if path not in learned}
    return with_given(weights, kept)


def fresh_adapters(weights: Weights, recipe: Recipe) -> dict[str, jax.Array] | None:
    """Returns fresh adapters, which change nothing; None where none are wanted.

    They are named by their weight's path and `/a` or `/b`.

    Args:
        weights: What they are for.

    Raises:
        InvalidInput: A pattern names no weights, or one that cannot be adapted, or that is learned whole.
    """
    lora = recipe.lora
    if lora is None:
        return None
    arrays, whole = flattened(weights), learned_weights(weights, recipe)
    patterns = [pattern for adapter in lora.adapters for pattern in adapter.patterns]
    plan: dict[str, Fresh] = {}
    for path in sorted(matching(patterns, arrays, "adapt weights")):
        adapter = lora.adapter_of(path)
        assert adapter is not None
        if path in whole:
            raise InvalidInput(
                "adapt a weight", on=path, got="a weight that is learned whole", wanted="one or the other"
            )
        shapes = thin_shapes(path, arrays[path].shape, adapter.rank)
        plan |= {f"{path}/a": fresh_dense(*shapes.a, inputs=shapes.inputs), f"{path}/b": Fresh(shape=shapes.b)}
    return drawn(jax.random.fold_in(jax.random.key(recipe.seed), ADAPTERS_KEY), plan)


def weights_in_use(weights: Weights, learned: Mapping[str, Any], lora: LoraRecipe | None) -> Weights:
    """Returns the weights as a model takes them.

    Args:
        weights: All.
        learned: What of them has moved, by path, and adapters.
        lora: How these count.
    """
    arrays = flattened(weights)
    given = {path: array for path, array in learned.items() if path in arrays}
    for path, base in arrays.items():
        adapter = lora.adapter_of(path) if lora is not None else None
        if adapter is not None and f"{path}/a" in learned:
            given[path] = Adapted(base=base, a=learned[f"{path}/a"], b=learned[f"{path}/b"], scale=adapter.scale)
    return with_given(weights, given)
