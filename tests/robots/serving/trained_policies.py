"""Small trained policies of every kind, of weights that are zero nowhere: what they see changes what they do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np

from mainspring.robots.serving.policies.trained import CheckpointPolicy
from mainspring.train.evaluate import TrainedPolicy
from mainspring.train.models.shapes import ActRecipe, ComputeRecipe, FloatKind, ImageRecipe, PolicyRecipe, Signature
from mainspring.train.policy import model_of, unit_statistics
from mainspring.train.recipe import recipe_named

DIMS, VIEWS, EDGE = 3, 2, 16
SEEING = Signature(state_dim=DIMS, action_dim=DIMS, image_views=VIEWS, image_height=EDGE, image_width=EDGE)
BLIND = Signature(state_dim=DIMS, action_dim=DIMS)
PLAIN = PolicyRecipe(width=16, blocks=1, horizon=8, flow_steps=10)
VIDEO = replace(PLAIN, motion=True, relative_actions=True, image=ImageRecipe(channels=(4,), features=4))
ACT = ActRecipe(
    width=16,
    mlp=32,
    heads=2,
    encoder_layers=1,
    decoder_layers=1,
    style_layers=1,
    style_dim=4,
    horizon=8,
    compute=ComputeRecipe(numbers=FloatKind.FLOAT32),
)
VLA = replace(recipe_named("vla_tiny").policy, horizon=8)
KINDS: dict[str, tuple[Any, Signature]] = {
    "plain": (PLAIN, BLIND),
    "video": (VIDEO, SEEING),
    "act": (ACT, BLIND),
    "vla": (VLA, SEEING),
}


def trained_of(kind: str, *, key: int = 0) -> TrainedPolicy:
    """Returns what a checkpoint holds."""
    shape, signature = KINDS[kind]
    recipe = replace(recipe_named("arm"), policy=shape)
    fresh = jax.jit(lambda: model_of(shape).initial_weights(jax.random.key(key), signature))()
    leaves, tree = jax.tree.flatten(fresh)
    dice = np.random.default_rng(key)
    moved = [np.asarray(leaf) + dice.normal(scale=0.05, size=leaf.shape).astype(leaf.dtype) for leaf in leaves]
    return TrainedPolicy(
        recipe=recipe,
        signature=signature,
        weights=jax.tree.unflatten(tree, moved),
        statistics=unit_statistics(shape, signature),
    )


def policy_of(kind: str, *, key: int = 0, batch_max: int = 4, name: str = "job@1") -> CheckpointPolicy:
    """Returns the same as it is served."""
    return CheckpointPolicy(trained_of(kind, key=key), name=name, batch_max=batch_max)
