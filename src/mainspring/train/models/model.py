"""The door between the trainer and a model: three functions of arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax

from mainspring.train.models.arrays import Arrays, Weights
from mainspring.train.models.matching import Guidance
from mainspring.train.models.shapes import Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """All that the trainer and evaluation know of a model. It meets normalised states and actions only.

    A batch has `state` [B,S], `images` [B,V,H,W,3] (brightness, 0 to 255) where the model reads them, and for the loss
    `actions` [B,T,A] and `valid` [B,T]; that of a language model, which gives no sample, has `tokens` [B,T] and `valid`
    [B,T]. All functions can be compiled and are pure.

    Args:
        initial_weights: From a random key and a signature to fresh weights.
        loss: From weights, a batch and a random key for each of its rows to the sum of the loss over all valid steps. A
            row draws by its own key alone: the sum of a batch is that of its parts.
        sample: From weights, a batch, a random key for each of its rows and perhaps guidance to chunks of actions
            [B,T,A]; a model of more action dimensions than the robot has gives all of its own.
        guided: Whether `sample` heeds guidance.
    """

    initial_weights: Callable[[jax.Array, Signature], Weights]
    loss: Callable[[Weights, Arrays, jax.Array], jax.Array]
    sample: Callable[[Weights, Arrays, jax.Array, Guidance | None], jax.Array]
    guided: bool = False


def sum_of_valid(error_BT: jax.Array, valid_BT: jax.Array) -> jax.Array:
    """Returns the sum of an error over valid steps."""
    return (valid_BT.astype(error_BT.dtype) * error_BT).sum()
