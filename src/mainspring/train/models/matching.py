"""Flow matching, once for all policies that flow: what is learned between noise and actions, and how a chunk is drawn.

Flow time 0 is noise, 1 is an action; in between lies their mean, weighted by the time. What is learned is the velocity
along that line; a chunk is drawn by following the velocity from noise.
Source: Lipman et al., "Flow Matching for Generative Modeling", 2022. For chunks that go on from others: Black et al.,
"Real-Time Execution of Action Chunking Flow Policies", 2025.

Legend of shape suffixes:
    B batch   T step in the chunk   A action   E encoded time
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

Velocity = Callable[[jax.Array, jax.Array], jax.Array]  # From a noisy chunk [B,T,A] and a flow time [B] to [B,T,A].


GUIDANCE_MAX = 5.0  # Source: Black et al., 2025, section 4.1: above it few Euler steps overshoot.


class Guidance(NamedTuple):
    """What a chunk is to go on from: that of a robot that carries it out while the next is drawn.

    Args:
        chunk_BTA: What the robot would do at each step, normalised; anything finite where the weight is zero.
        weight_BT: How much a step is to be like that: 1 where it will be done before the new chunk comes, 0 where the
            new one is free.
    """

    chunk_BTA: Any
    weight_BT: Any


def velocity_error(velocity: Velocity, action_BTA: jax.Array, noise_BTA: jax.Array, time_B: jax.Array) -> jax.Array:
    """Returns the mean squared error of a velocity at each step of the chunk, [B,T].

    Args:
        velocity: What is learned.
        action_BTA: Where the flow leads, normalised.
        noise_BTA: Where it begins.
        time_B: Flow time, 0 to 1.
    """
    along_B11 = time_B[:, None, None]
    noisy_BTA = along_B11 * action_BTA + (1.0 - along_B11) * noise_BTA
    error: jax.Array = optax.squared_error(velocity(noisy_BTA, time_B), action_BTA - noise_BTA).mean(axis=-1)
    return error


def flowed(velocity: Velocity, noise_BTA: jax.Array, steps: int, guidance: Guidance | None = None) -> jax.Array:
    """Returns the chunks that noise flows to, [B,T,A], by Euler steps.

    Args:
        velocity: What was learned.
        noise_BTA: Where the flow begins.
        steps: How many.
        guidance: What the chunks are to go on from, None for nothing.
    """

    def euler(chunk_BTA: jax.Array, time: jax.Array) -> tuple[jax.Array, None]:
        if guidance is None:
            return chunk_BTA + velocity(chunk_BTA, jnp.full(len(chunk_BTA), time)) / steps, None
        return chunk_BTA + guided_velocity(velocity, chunk_BTA, time, guidance) / steps, None

    chunk_BTA, _ = jax.lax.scan(euler, noise_BTA, jnp.arange(steps) / steps)
    return chunk_BTA


def guided_velocity(velocity: Velocity, noisy_BTA: jax.Array, time: jax.Array, guidance: Guidance) -> jax.Array:
    """Returns a velocity that leads to chunks which go on from others, [B,T,A]: inpainting by the model's own gradient.

    Args:
        velocity: What was learned.
        noisy_BTA: The chunk at that flow time.
        time: Flow time, 0 to 1, the same for all.
        guidance: What to go on from.
    """

    def end_of(noisy: jax.Array) -> tuple[jax.Array, jax.Array]:
        along_BTA = velocity(noisy, jnp.full(len(noisy), time))
        return noisy + (1.0 - time) * along_BTA, along_BTA

    end_BTA, pull_back, along_BTA = jax.vjp(end_of, noisy_BTA, has_aux=True)
    (towards_BTA,) = pull_back(guidance.weight_BT[..., None] * (guidance.chunk_BTA - end_BTA))
    left = 1.0 - time
    strength = jnp.minimum(GUIDANCE_MAX, (left**2 + time**2) / jnp.maximum(time * left, 1e-6))
    guided_BTA: jax.Array = along_BTA + strength * towards_BTA
    return guided_BTA


def encode_time(time_B: jax.Array, features: int, *, period_min: float, period_max: float) -> jax.Array:
    """Returns sines and cosines of a time at geometrically spaced periods, [B,E].

    Args:
        time_B: 0 to 1.
        features: How many, sines first.
        period_min: The shortest.
        period_max: The longest.
    """
    # The shortest period makes 250 turns: rounded in another order than openpi's, its sine would differ by 1e-4.
    period_E = period_min * (period_max / period_min) ** jnp.linspace(0.0, 1.0, features // 2)
    angle_BE = time_B[:, None] * (1.0 / period_E * 2 * jnp.pi)
    return jnp.concatenate([jnp.sin(angle_BE), jnp.cos(angle_BE)], axis=-1)
