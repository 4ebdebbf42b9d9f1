from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mainspring.train.models.act import chunk_of, style_of
from mainspring.train.models.shapes import ActRecipe, ComputeRecipe, ConvolutionRecipe, FloatKind, Remat
from mainspring.train.policy import measure_statistics, model_of, policy_loss, sample_actions, signature_of
from mainspring.train.recipe import OptimizerRecipe
from mainspring.train.trainer import make_optimizer

pytestmark = pytest.mark.slow
HORIZON, DIM, STEPS = 3, 2, 100
POLICY = ActRecipe(
    width=16,
    mlp=32,
    heads=2,
    encoder_layers=2,
    decoder_layers=1,
    style_layers=2,
    style_dim=4,
    horizon=HORIZON,
    image=ConvolutionRecipe(channels=(4, 8), shift_pixels=0, tint=0.0),
    compute=ComputeRecipe(numbers=FloatKind.FLOAT32, remat=Remat.NONE),
)


def batch() -> dict[str, Any]:
    numbers = np.random.default_rng(0)
    return {
        "state": np.float32(numbers.normal(size=(6, DIM))),
        "actions": np.float32(3 + numbers.normal(size=(6, HORIZON, DIM))),
        "valid": np.ones((6, HORIZON), bool),
        "images": numbers.integers(0, 256, (6, 2, 8, 12, 3)).astype(np.uint8),
    }


def lively() -> Any:
    """Returns weights of which none is zero."""
    weights = model_of(POLICY).initial_weights(jax.random.key(0), signature_of(batch(), POLICY))
    return jax.tree.map(lambda leaf: leaf + 0.1 * np.cos(np.arange(leaf.size)).reshape(leaf.shape), weights)


def test_act_trained_on_a_few_rows_learns_them_by_heart() -> None:
    rows = batch()
    statistics = measure_statistics([rows], POLICY)
    optimizer = make_optimizer(OptimizerRecipe(learning_rate=1e-2, warmup_steps=10, weight_decay=0.0), STEPS)
    weights = model_of(POLICY).initial_weights(jax.random.key(0), signature_of(rows, POLICY))

    @jax.jit
    def update(weights: Any, state: Any, step: Any) -> Any:
        key = jax.random.fold_in(jax.random.key(3), step)
        gradient = jax.grad(policy_loss)(weights, statistics, POLICY, rows, key)
        changes, state = optimizer.update(gradient, state, weights)
        return jax.tree.map(jnp.add, weights, changes), state

    @jax.jit
    def error(weights: Any) -> jax.Array:
        return jnp.abs(sample_actions(weights, statistics, POLICY, rows, jax.random.key(9)) - rows["actions"]).mean()

    before, state = float(error(weights)), optimizer.init(weights)
    for step in range(STEPS):
        weights, state = update(weights, state, step)
    assert float(error(weights)) < 0.4 * before


def test_style_looks_at_the_actions_of_the_episode_and_at_none_beyond_it() -> None:
    rows, weights = batch(), lively()
    rows["valid"][:, 2:] = False
    style = jax.jit(lambda rows: style_of(weights, POLICY, rows))
    here = np.asarray(style(rows))
    beyond, within = (np.array(rows["actions"]) for _ in range(2))
    beyond[:, 2], within[:, 1] = 1e3, 1e3
    assert here.shape == (6, 2 * POLICY.style_dim)
    assert (here == np.asarray(style({**rows, "actions": beyond}))).all()
    assert (here != np.asarray(style({**rows, "actions": within}))).any()


def test_chunk_follows_state_images_and_style_and_differs_from_step_to_step() -> None:
    rows, weights = batch(), lively()
    chunk = jax.jit(lambda rows, style: chunk_of(weights, POLICY, rows, style))
    none = jnp.zeros((6, POLICY.style_dim))
    plain = np.asarray(chunk(rows, none))
    assert plain.shape == (6, HORIZON, DIM)
    for changed, style in (
        ({**rows, "state": rows["state"] + 1}, none),
        ({**rows, "images": 255 - rows["images"]}, none),
        ({**rows, "images": rows["images"][:, :, :, ::-1]}, none),
        (rows, none + 1),
    ):
        assert np.abs(np.asarray(chunk(changed, style)) - plain).max() > 1e-4
    assert np.abs(plain[:, 0] - plain[:, 1]).max() > 1e-4


def test_loss_grows_with_the_distance_of_styles_from_noise() -> None:
    rows, weights = batch(), lively()
    statistics = measure_statistics([rows], POLICY)

    @jax.jit
    def loss(bias: float) -> jax.Array:
        leave = {**weights["style_encoder"]["leave"], "bias": jnp.full(2 * POLICY.style_dim, bias)}
        moved = {**weights, "style_encoder": {**weights["style_encoder"], "leave": leave}}
        return policy_loss(moved, statistics, POLICY, rows, jax.random.key(0))

    assert float(loss(2.0)) > float(loss(0.0)) + 10.0
