"""From a loader's batch to what a policy sees: the step before, no images that nobody looks at; words, for a language.

A view of texts has an episode for each, whose one action a step is the number of a word. `horizon` of them, from any
on, are a sequence.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from mainspring.data import Batch
from mainspring.domain.errors import InvalidInput
from mainspring.train.models.shapes import LanguageRecipe, Policy, Signature, VlaKind, VlaRecipe
from mainspring.train.robots import ONE_ROBOT, DataRecipe


def history_of(policy: Policy) -> int:
    """Returns how many steps of state a policy sees.

    Args:
        policy: Says what the policy sees.
    """
    return 2 if policy.motion else 1


def fitted(batch: Batch, policy: Policy) -> dict[str, NDArray[Any]]:
    """Returns a batch with what the policy sees, and nothing else.

    Args:
        batch: From the loader, or `gather`, with `history_of` steps of state.
        policy: Says what the policy sees.

    Raises:
        InvalidInput: A language model is to learn from what is no words of its own.
    """
    if isinstance(policy, LanguageRecipe):
        return _words(batch, policy)
    arrays = {name: batch[name] for name in ("state", "actions", "valid")}
    if policy.motion:  # An episode starts at rest: its first step is the one before it, too.
        arrays["before"], arrays["state"] = batch["state"][:, 0], batch["state"][:, 1]
    if policy.image is not None and "images" in batch:  # Whoever needs images says that there are none.
        arrays["images"] = batch["images"]
    arrays |= {name: batch[name] for name in ("prompt", "prompt_valid") if name in batch}
    return arrays


def _words(batch: Batch, policy: LanguageRecipe) -> dict[str, NDArray[Any]]:
    """Returns the sequences of a batch, and which of their words there are to learn: none is told the first."""
    word_BTA, words = batch["actions"], policy.language.vocabulary
    if word_BTA.shape[-1] != 1:
        raise InvalidInput(
            "learn a language",
            got=f"a view of {word_BTA.shape[-1]} action dimensions",
            wanted="1: the number of a word",
            next_step="build a view of texts, or train a recipe of a policy",
        )
    odd = ~((word_BTA >= 0) & (word_BTA < words) & (word_BTA == np.floor(word_BTA)))
    if odd.any():
        raise InvalidInput(
            "learn a language",
            got=f"a word {word_BTA[odd][0]:g}",
            wanted=f"whole numbers from 0 to {words - 1}",
            next_step="set policy.language.vocabulary as the tokenizer has it",
        )
    valid_BT = batch["valid"].copy()
    valid_BT[:, 0] = False
    return {"tokens": word_BTA[..., 0].astype(np.int32), "valid": valid_BT}


def shapes_fed(
    policy: Policy, signature: Signature, rows: int, data: DataRecipe = ONE_ROBOT
) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes and types of what a policy sees, before there is a view to read: for planning.

    Args:
        policy: Says what the policy sees.
        signature: The data's dimensions.
        rows: Of a batch.
        data: Says whether it is told tasks, robots and masks.
    """
    struct: Any = jax.ShapeDtypeStruct  # Untyped in JAX.
    if isinstance(policy, LanguageRecipe):
        sequences = (rows, policy.horizon)
        return {"tokens": struct(sequences, np.int32), "valid": struct(sequences, np.bool_)}
    shapes: dict[str, tuple[tuple[int, ...], Any]] = {
        "state": ((signature.state_dim,), np.float32),
        "actions": ((policy.horizon, signature.action_dim), np.float32),
        "valid": ((policy.horizon,), np.bool_),
    }
    if policy.motion:
        shapes["before"] = shapes["state"]
    if policy.image is not None:
        edges = (signature.image_views, signature.image_height, signature.image_width, 3)
        shapes["images"] = (edges, np.uint8)
    if len(data.robots) > 1:
        shapes["robot"] = ((), np.int32)
    if data.masked and policy.image is not None:
        shapes["image_valid"] = ((signature.image_views,), np.bool_)
    # The state of pi0.5 is told in its prompt alone.
    if isinstance(policy, VlaRecipe) and (policy.kind is VlaKind.PI05 or data.tokenizer):
        shapes["prompt"] = ((policy.prompt_length,), np.int32)
        shapes["prompt_valid"] = ((policy.prompt_length,), np.bool_)
    return {name: struct((rows, *shape), numbers) for name, (shape, numbers) in shapes.items()}
