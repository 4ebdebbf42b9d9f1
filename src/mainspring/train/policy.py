"""The policy: flow matching over chunks of actions, as pytrees of arrays and pure functions.

A chunk of actions is drawn by following a learned velocity field from Gaussian noise (flow time 0) to an action
(flow time 1), conditioned on the robot's state and, when the recipe reads them, its images.
Source: Lipman et al., "Flow Matching for Generative Modeling", 2022; Black et al., "pi0", 2024 (action chunks).

Legend of shape suffixes:
    B batch   T step in the chunk   S state   A action   K trunk features   E encoded time
    V camera view   H image row   W image column   C channel
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mainspring.domain.errors import InvalidInput
from mainspring.train.recipe import ImageRecipe, PolicyRecipe

Weights = dict[str, Any]
Statistics = dict[str, Any]
Arrays = Mapping[str, Any]

TIME_PERIOD_MAX = 1.0  # Flow time runs from 0 to 1.
TIME_PERIOD_MIN = 4e-3  # Source: pi0, appendix B.
DEVIATION_MIN = 1e-3  # A dimension that hardly moves must not turn its noise into signal.
NORMALISED_MAX = 10.0  # Inputs beyond ten deviations are clipped: one broken sensor must not blow up the trunk.


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What the data decides about a policy: its inputs' and outputs' dimensions; no views when it reads no images."""

    state_dim: int
    action_dim: int
    image_views: int = 0
    image_height: int = 0
    image_width: int = 0


def signature_of(batch: Arrays, policy: PolicyRecipe) -> Signature:
    """Returns the signature of the data a batch was drawn from.

    Args:
        batch: `state` [B,S], `actions` [B,T,A], and `images` [B,V,H,W,3] where the data has them.
        policy: The policy that is to learn from it.

    Raises:
        InvalidInput: The policy wants images or relative actions that this data cannot give.
    """
    state_dim, action_dim = batch["state"].shape[-1], batch["actions"].shape[-1]
    if policy.relative_actions and state_dim != action_dim:
        raise InvalidInput(
            "learn relative actions",
            got=f"{state_dim} state and {action_dim} action dimensions",
            wanted="equal dimensions",
            next_step="set policy.relative_actions to false",
        )
    if policy.image is None:
        return Signature(state_dim=state_dim, action_dim=action_dim)
    if "images" not in batch:
        raise InvalidInput(
            "learn from images", got="a view without images", next_step="use a recipe without policy.image"
        )
    _, views, height, width, _ = batch["images"].shape
    return Signature(
        state_dim=state_dim, action_dim=action_dim, image_views=views, image_height=height, image_width=width
    )


def measure_statistics(batches: Iterable[Arrays], policy: PolicyRecipe) -> Statistics:
    """Returns mean and deviation of what the policy sees and of what it learns, in the data's own units.

    Args:
        batches: Some batches of numpy arrays; the same ones on every rank.
        policy: Says what the policy sees, and whether actions are learned relative to the state.
    """
    seen, targets, valids = [], [], []
    for batch in batches:
        seen.append(np.asarray(_state_BK(batch, policy), np.float64))
        targets.append(np.asarray(batch["actions"] - _origin_BTA(batch, policy), np.float64))
        valids.append(np.asarray(batch["valid"], np.float64)[..., None])
    seen_BK, target_BTA, valid_BT1 = np.concatenate(seen), np.concatenate(targets), np.concatenate(valids)
    count_T1 = np.maximum(valid_BT1.sum(axis=0), 1.0)
    mean_TA = (target_BTA * valid_BT1).sum(axis=0) / count_T1
    deviation_TA = np.sqrt((((target_BTA - mean_TA) ** 2) * valid_BT1).sum(axis=0) / count_T1)
    return {
        "state_mean": np.float32(seen_BK.mean(axis=0)),
        "state_deviation": np.float32(np.maximum(seen_BK.std(axis=0), DEVIATION_MIN)),
        "target_mean": np.float32(mean_TA),
        "target_deviation": np.float32(np.maximum(deviation_TA, DEVIATION_MIN)),
    }


def unit_statistics(policy: PolicyRecipe, signature: Signature) -> Statistics:
    """Returns statistics that change nothing: means of zero and deviations of one.

    Args:
        policy: The policy's shape.
        signature: The data's dimensions.
    """
    chunk = (policy.horizon, signature.action_dim)
    seen = _state_features(policy, signature)
    return {
        "state_mean": np.zeros(seen, np.float32),
        "state_deviation": np.ones(seen, np.float32),
        "target_mean": np.zeros(chunk, np.float32),
        "target_deviation": np.ones(chunk, np.float32),
    }


def _origin_BTA(batch: Arrays, policy: PolicyRecipe) -> Any:
    """Returns what the chunk is measured from: the state it starts at, or zero."""
    return batch["state"][:, None, :] if policy.relative_actions else np.float32(0.0)


def _state_BK(batch: Arrays, policy: PolicyRecipe) -> Any:
    """Returns the state, and side by side with it its change since the step before where the policy sees that."""
    if not policy.motion:
        return batch["state"]
    numbers = np if isinstance(batch["state"], np.ndarray) else jnp
    return numbers.concatenate([batch["state"], batch["state"] - batch["before"]], axis=-1)


def _state_features(policy: PolicyRecipe, signature: Signature) -> int:
    return signature.state_dim * (2 if policy.motion else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fresh:
    """An array to be: normal numbers of this deviation."""

    shape: tuple[int, ...]
    deviation: float


def initial_weights(key: jax.Array, policy: PolicyRecipe, signature: Signature) -> Weights:
    """Returns fresh weights. The velocity starts at zero everywhere.

    Args:
        policy: The policy's shape.
        signature: The data's dimensions.
    """
    plan, structure = jax.tree.flatten(_fresh_weights(policy, signature))
    ends = np.cumsum([math.prod(fresh.shape) for fresh in plan])
    # Drawn at once: a draw for each array takes XLA seconds to compile.
    parts = jnp.split(jax.random.normal(key, (ends[-1],)), ends[:-1])
    arrays = [fresh.deviation * part.reshape(fresh.shape) for fresh, part in zip(plan, parts, strict=True)]
    weights: Weights = jax.tree.unflatten(structure, arrays)
    return weights


def _fresh_weights(policy: PolicyRecipe, signature: Signature) -> Weights:
    chunk = policy.horizon * signature.action_dim
    inputs = _state_features(policy, signature) + chunk + policy.time_features
    weights: Weights = {}
    if policy.image is not None:
        weights["image"] = _fresh_image(policy.image, signature)
        inputs += policy.image.features * signature.image_views
    weights["enter"] = _dense(inputs, policy.width)
    narrow = 1.0 / math.sqrt(2 * policy.blocks)  # The sum over all blocks keeps its spread.
    weights["blocks"] = [
        {"widen": _dense(policy.width, policy.width), "narrow": _dense(policy.width, policy.width, scale=narrow)}
        for _ in range(policy.blocks)
    ]
    weights["leave"] = _dense(policy.width, chunk, scale=0.0)
    return weights


def _dense(inputs: int, outputs: int, *, scale: float = 1.0) -> Weights:
    kernel = _Fresh(shape=(inputs, outputs), deviation=scale / math.sqrt(inputs))
    return {"kernel": kernel, "bias": _Fresh(shape=(outputs,), deviation=0.0)}


def _fresh_image(image: ImageRecipe, signature: Signature) -> Weights:
    height, width, before = signature.image_height, signature.image_width, 3
    layers = []
    for channels in image.channels:
        kernel = _Fresh(shape=(3, 3, before, channels), deviation=1.0 / math.sqrt(9 * before))
        layers.append({"kernel": kernel, "bias": _Fresh(shape=(channels,), deviation=0.0)})
        height, width, before = -(-height // 2), -(-width // 2), channels
    return {"layers": layers, "leave": _dense(height * width * before, image.features)}


def _applied(dense: Weights, x_BK: jax.Array) -> jax.Array:
    applied_BK: jax.Array = x_BK @ dense["kernel"] + dense["bias"]
    return applied_BK


def _normalised(x_BK: jax.Array) -> jax.Array:
    centred_BK = x_BK - x_BK.mean(axis=-1, keepdims=True)
    return centred_BK * jax.lax.rsqrt((centred_BK**2).mean(axis=-1, keepdims=True) + 1e-6)


def encode_time(time_B: jax.Array, features: int) -> jax.Array:
    """Returns sines and cosines of the flow time at geometrically spaced periods, [B,E].

    Args:
        time_B: Flow time, 0 to 1.
    """
    period_E = jnp.geomspace(TIME_PERIOD_MIN, TIME_PERIOD_MAX, features // 2)
    angle_BE = 2 * jnp.pi * time_B[:, None] / period_E
    return jnp.concatenate([jnp.sin(angle_BE), jnp.cos(angle_BE)], axis=-1)


def varied_images(images_BVHWC: jax.Array, image: ImageRecipe, key: jax.Array) -> jax.Array:
    """Returns the images of each row moved and tinted at random, all its views alike.

    Args:
        images_BVHWC: Bytes, 0 to 255.
        image: Says by how much.
    """
    shift_key, tint_key = jax.random.split(key)
    pad = image.shift_pixels
    padded = jnp.pad(images_BVHWC, ((0, 0), (0, 0), (pad, pad), (pad, pad), (0, 0)), mode="edge")
    shift_B2 = jax.random.randint(shift_key, (len(padded), 2), 0, 2 * pad + 1)
    moved_BVHWC = jax.vmap(
        lambda views, shift: jax.lax.dynamic_slice(views, (0, shift[0], shift[1], 0), images_BVHWC.shape[1:])
    )(padded, shift_B2)
    tint_BVHWC = 1.0 + image.tint * jax.random.normal(tint_key, (len(padded), 1, 1, 1, 3))
    return jnp.clip((moved_BVHWC - 127.5) * tint_BVHWC + 127.5, 0.0, 255.0)


def encode_images(weights: Weights, images_BVHWC: jax.Array) -> jax.Array:
    """Returns the features of all views side by side, [B, V * features].

    Args:
        weights: The image encoder's weights.
        images_BVHWC: Brightness, 0 to 255.
    """
    batch, views = images_BVHWC.shape[:2]
    x = images_BVHWC.reshape(batch * views, *images_BVHWC.shape[2:]).astype(jnp.float32) / 127.5 - 1.0
    for layer in weights["layers"]:
        x = jax.lax.conv_general_dilated(x, layer["kernel"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(x + layer["bias"])
    return _applied(weights["leave"], x.reshape(batch * views, -1)).reshape(batch, -1)


def observe(weights: Weights, statistics: Statistics, policy: PolicyRecipe, batch: Arrays) -> jax.Array:
    """Returns what the policy sees, [B,K]: the normalised state, and the images' features when it reads them.

    Args:
        weights: The policy's weights.
        statistics: From `measure_statistics`.
        policy: The policy's shape.
        batch: `state` [B,S]; `before` [B,S] if the policy sees motion; `images` [B,V,H,W,3] if it reads them.
    """
    state_BK = (_state_BK(batch, policy) - statistics["state_mean"]) / statistics["state_deviation"]
    state_BK = jnp.clip(state_BK, -NORMALISED_MAX, NORMALISED_MAX)
    if policy.image is None:
        return state_BK
    return jnp.concatenate([state_BK, encode_images(weights["image"], batch["images"])], axis=-1)


def velocity(
    weights: Weights, policy: PolicyRecipe, seen_BK: jax.Array, noisy_BTA: jax.Array, time_B: jax.Array
) -> jax.Array:
    """Returns the velocity that carries the noisy chunk towards an action, [B,T,A].

    Args:
        weights: The policy's weights.
        policy: The policy's shape.
        seen_BK: From `observe`.
        noisy_BTA: The chunk at that flow time, normalised.
        time_B: Flow time, 0 to 1.
    """
    batch = noisy_BTA.shape[0]
    time_BE = encode_time(time_B, policy.time_features)
    x_BK = _applied(weights["enter"], jnp.concatenate([seen_BK, noisy_BTA.reshape(batch, -1), time_BE], axis=-1))
    for block in weights["blocks"]:
        x_BK = x_BK + _applied(block["narrow"], jax.nn.relu(_applied(block["widen"], _normalised(x_BK))))
    return _applied(weights["leave"], _normalised(x_BK)).reshape(noisy_BTA.shape)


def flow_loss(
    weights: Weights, statistics: Statistics, policy: PolicyRecipe, batch: Arrays, key: jax.Array
) -> jax.Array:
    """Returns the mean squared error of the velocity over the valid actions of a batch.

    Args:
        weights: The policy's weights.
        statistics: From `measure_statistics`.
        policy: The policy's shape.
        batch: As for `observe`, and `actions` [B,T,A], `valid` [B,T].
        key: Random key of the noise, the flow times and the variation of images.
    """
    noise_key, time_key, image_key = jax.random.split(key, 3)
    if policy.image is not None:
        batch = {**batch, "images": varied_images(batch["images"], policy.image, image_key)}
    target_BTA = batch["actions"] - _origin_BTA(batch, policy)
    target_BTA = (target_BTA - statistics["target_mean"]) / statistics["target_deviation"]
    noise_BTA = jax.random.normal(noise_key, target_BTA.shape)
    time_B = jax.random.uniform(time_key, target_BTA.shape[:1])
    along_B11 = time_B[:, None, None]
    noisy_BTA = along_B11 * target_BTA + (1.0 - along_B11) * noise_BTA
    seen_BK = observe(weights, statistics, policy, batch)
    error_BTA = velocity(weights, policy, seen_BK, noisy_BTA, time_B) - (target_BTA - noise_BTA)
    valid_BT1 = batch["valid"][..., None].astype(error_BTA.dtype)
    count = jnp.maximum(valid_BT1.sum() * error_BTA.shape[-1], 1.0)
    loss: jax.Array = (valid_BT1 * error_BTA**2).sum() / count
    return loss


def sample_actions(
    weights: Weights, statistics: Statistics, policy: PolicyRecipe, batch: Arrays, key: jax.Array
) -> jax.Array:
    """Returns one chunk of actions for each observation, [B,T,A] in the robot's own units.

    Args:
        weights: The policy's weights.
        statistics: From `measure_statistics`.
        policy: The policy's shape.
        batch: As for `observe`.
        key: Random key of the starting noise.
    """
    count = batch["state"].shape[0]
    seen_BK = observe(weights, statistics, policy, batch)
    noise_BTA = jax.random.normal(key, (count, *statistics["target_mean"].shape))

    def euler(chunk_BTA: jax.Array, time: jax.Array) -> tuple[jax.Array, None]:
        moved_BTA = velocity(weights, policy, seen_BK, chunk_BTA, jnp.full(count, time)) / policy.flow_steps
        return chunk_BTA + moved_BTA, None

    chunk_BTA, _ = jax.lax.scan(euler, noise_BTA, jnp.arange(policy.flow_steps) / policy.flow_steps)
    target_BTA = chunk_BTA * statistics["target_deviation"] + statistics["target_mean"]
    action_BTA: jax.Array = target_BTA + _origin_BTA(batch, policy)
    return action_BTA
