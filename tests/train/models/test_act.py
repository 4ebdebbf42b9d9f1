from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mainspring.train.models.act import chunk_of, style_of
from mainspring.train.models.shapes import ActRecipe, ComputeRecipe, ConvolutionRecipe, FloatKind, Remat
from mainspring.train.policy import measure_statistics, policy_loss, signature_of
from tests.train.making import error_left_by_heart, fresh_weights

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compiled_at_once")]
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


@cache
def lively() -> Any:
    """Returns weights of which none is zero."""
    weights = jax.device_get(fresh_weights(POLICY, signature_of(batch(), POLICY)))
    return jax.tree.map(lambda leaf: leaf + 0.1 * np.cos(np.arange(leaf.size)).reshape(leaf.shape), weights)


def test_act_trained_on_a_few_rows_learns_them_by_heart() -> None:
    assert error_left_by_heart(POLICY, batch(), steps=STEPS) < 0.4


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


def test_view_that_is_masked_has_no_part_in_the_chunk_and_none_of_its_own_is_lost() -> None:
    rows, weights = batch(), lively()
    style = jnp.zeros((6, POLICY.style_dim), jnp.float32)
    chunk = jax.jit(lambda rows: chunk_of(weights, POLICY, rows, style))
    rows["image_valid"] = np.tile([True, False], (6, 1))
    other = {**rows, "images": rows["images"].copy()}
    other["images"][:, 1] = 255 - other["images"][:, 1]
    assert np.array_equal(chunk(rows), chunk(other))
    all_seen = {**rows, "image_valid": np.ones((6, 2), bool)}
    assert not np.allclose(chunk(rows), chunk(all_seen))
    plain = {name: array for name, array in rows.items() if name != "image_valid"}
    assert np.allclose(chunk(all_seen), chunk(plain), atol=1e-5)
