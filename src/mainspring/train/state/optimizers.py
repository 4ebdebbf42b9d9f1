"""Optimizers: by one door, each a direction that a learning rate, decay and a limit on gradients are put around.

Their moments lie in trees like that of what is learned, so that `sharding.py` finds each moment's place by its path.
"""

from __future__ import annotations

import math
from typing import Any

import optax
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from mainspring.train.lora import axes_of, in_hidden_layer
from mainspring.train.models.arrays import flattened, with_given
from mainspring.train.recipe import OptimizerKind, OptimizerRecipe

FIRST_BETA = 0.9
MUON_RMS = 0.2  # Root mean square of a step, as AdamW's. Source: Liu et al., "Muon Is Scalable for LLM Training", 2025.


def make_optimizer(optimizer: OptimizerRecipe, steps: int) -> optax.GradientTransformation:
    """Returns the optimizer of a run: gradients are clipped, then it moves the weights, as `OptimizerRecipe` says.

    Args:
        optimizer: Which, and its rates.
        steps: Steps of the whole run, which the schedule of the learning rate spans.
    """
    return optax.chain(
        optax.clip_by_global_norm(optimizer.gradient_norm_max),
        optax.chain(
            _direction(optimizer),
            optax.add_decayed_weights(optimizer.weight_decay),
            optax.scale_by_learning_rate(learning_rate_at(optimizer, steps)),
        ),
    )


def learning_rate_at(optimizer: OptimizerRecipe, steps: int) -> optax.Schedule:
    """Returns the learning rate of each step of a run, by its number from 0.

    Args:
        optimizer: Its rates.
        steps: Steps of the whole run.
    """
    warmup = min(optimizer.warmup_steps, steps // 2)
    return optax.warmup_cosine_decay_schedule(
        0.0, optimizer.learning_rate, warmup, steps, end_value=optimizer.learning_rate_end
    )


def _direction(optimizer: OptimizerRecipe) -> optax.GradientTransformation:
    adam = optax.scale_by_adam(b1=FIRST_BETA, b2=optimizer.second_beta)
    match optimizer.kind:
        case OptimizerKind.ADAMW:
            return adam
        case OptimizerKind.ADAFACTOR:
            return optax.chain(optax.scale_by_factored_rms(), optax.clip_by_block_rms(1.0))
        case OptimizerKind.LION:
            return optax.scale_by_lion(b1=FIRST_BETA, b2=optimizer.second_beta)
        case OptimizerKind.SGD:
            return optax.trace(decay=FIRST_BETA, nesterov=True)
        case OptimizerKind.MUON:
            muon = optax.chain(scale_by_muon(weight_dimension_numbers=_axes), optax.stateless(_as_large_as_adam))
            return optax.partition({"muon": muon, "adam": adam}, _by_muon)


def _by_muon(learned: Any) -> Any:
    """Returns who moves each array, in such a tree: Muon what is multiplied by in hidden layers."""

    arrays = flattened(learned)
    who = {path: "muon" if in_hidden_layer(path, array.ndim) else "adam" for path, array in arrays.items()}
    return with_given(learned, who)


def _axes(learned: Any) -> Any:
    """Returns which axes of each array its inputs and outputs lie along; those before are of a stack."""

    def numbers(path: str) -> MuonDimensionNumbers:
        inputs, outputs = axes_of(path)
        first = tuple(range(-inputs - outputs, -outputs))
        return MuonDimensionNumbers(first, tuple(range(-outputs, 0)))

    return with_given(learned, {path: numbers(path) for path in flattened(learned)})


def _as_large_as_adam(moves: Any, learned: Any) -> Any:
    del learned
    scaled = {}
    for path, move in flattened(moves).items():
        inputs, outputs = axes_of(path)
        sides = math.prod(move.shape[-inputs - outputs : -outputs]), math.prod(move.shape[-outputs:])
        scaled[path] = MUON_RMS * math.sqrt(max(sides)) * move
    return with_given(moves, scaled)
