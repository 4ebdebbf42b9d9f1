"""Chunks that go on from others: guidance of a flow whose velocity is known in closed form."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mainspring.train.models.matching import Guidance, flowed

pytestmark = pytest.mark.usefixtures("compiled_at_once")

ROWS, STEPS, EULER = 32, 16, 20


def two_ways(noisy_BTA: jax.Array, time_B: jax.Array) -> jax.Array:
    """The velocity of data that is -1 or +1 in all of a chunk: a robot passes left or right of a thing."""
    time_B11 = jnp.minimum(time_B, 0.999)[:, None, None]
    sum_B11 = noisy_BTA.sum(axis=(1, 2), keepdims=True)
    expected = jnp.tanh(time_B11 * sum_B11 / (1.0 - time_B11) ** 2)
    return (expected - noisy_BTA) / (1.0 - time_B11)


@pytest.mark.slow
def test_a_guided_chunk_goes_the_way_of_the_chunk_before_and_begins_where_that_is() -> None:
    noise = jax.random.normal(jax.random.key(0), (ROWS, STEPS, 1))
    free = np.asarray(jax.jit(lambda: flowed(two_ways, noise, EULER))())
    ways = np.sign(free.mean(axis=(1, 2)))
    assert 4 < (ways > 0).sum() < ROWS - 4  # Both ways are drawn.
    delay, horizon = 3, 8
    weight = np.zeros((ROWS, STEPS), np.float32)
    weight[:, :delay] = 1.0
    weight[:, delay:horizon] = np.linspace(1, 0, horizon - delay + 1)[1:]
    left_over = np.zeros((ROWS, STEPS, 1), np.float32)
    left_over[:, :horizon] = 1.0
    guided = np.asarray(jax.jit(lambda: flowed(two_ways, noise, EULER, Guidance(left_over, weight)))())
    same_way = (guided.mean(axis=(1, 2)) > 0.9).mean()
    near = (np.abs(guided[:, delay] - left_over[:, delay]) < 0.1).mean()
    assert min(same_way, near) > 0.9  # It is a pull and no law: one in many noises still leads the other way.
    assert (np.abs(free[:, delay] - left_over[:, delay]) > 1.9).mean() > 0.2


@pytest.mark.slow
def test_guidance_without_weight_changes_nothing() -> None:
    noise = jax.random.normal(jax.random.key(1), (4, STEPS, 1))
    nothing = Guidance(jnp.full((4, STEPS, 1), 7.0), jnp.zeros((4, STEPS)))
    free, guided = jax.jit(lambda: (flowed(two_ways, noise, EULER), flowed(two_ways, noise, EULER, nothing)))()
    np.testing.assert_allclose(free, guided, rtol=1e-4, atol=1e-5)
