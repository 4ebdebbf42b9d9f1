"""The small flow policy: a residual trunk that looks at state, noisy chunk, flow time and small images.

A chunk of actions is drawn by flow matching, conditioned on the robot's state and, when the recipe reads them, its
images.
Source: Black et al., "pi0", 2024 (action chunks).

Legend of shape suffixes:
    B batch   T step in the chunk   S state   A action   K trunk features   E encoded time
    V camera view   H image row   W image column   C channel
"""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp

from mainspring.train.models.arrays import Arrays, Weights, dense, drawn, fresh_layer, normal_rows, split_rows
from mainspring.train.models.images import convolved, fresh_convolutions, with_varied_images
from mainspring.train.models.matching import Guidance, encode_time, flowed, velocity_error
from mainspring.train.models.model import Model, sum_of_valid
from mainspring.train.models.shapes import ImageRecipe, PolicyRecipe, Signature

TIME_PERIOD_MAX = 1.0  # Flow time runs from 0 to 1.
TIME_PERIOD_MIN = 4e-3  # Source: pi0, appendix B.


def flow_model(policy: PolicyRecipe) -> Model:
    """Returns the small flow policy as the trainer knows it. A fresh one's velocity is zero everywhere.

    Args:
        policy: The policy's shape.
    """
    return Model(
        initial_weights=lambda key, signature: drawn(key, _fresh_weights(policy, signature)),
        loss=partial(_loss, policy),
        sample=partial(_sample, policy),
        guided=True,
    )


def _fresh_weights(policy: PolicyRecipe, signature: Signature) -> Weights:
    chunk = policy.horizon * signature.action_dim
    inputs = signature.state_dim * (2 if policy.motion else 1) + chunk + policy.time_features
    weights: Weights = {}
    if policy.image is not None:
        weights["image"] = _fresh_image(policy.image, signature)
        inputs += policy.image.features * signature.image_views
    weights["enter"] = fresh_layer(inputs, policy.width)
    narrow = 1.0 / math.sqrt(2 * policy.blocks)  # The sum over all blocks keeps its spread.
    weights["blocks"] = [
        {
            "widen": fresh_layer(policy.width, policy.width),
            "narrow": fresh_layer(policy.width, policy.width, scale=narrow),
        }
        for _ in range(policy.blocks)
    ]
    weights["leave"] = fresh_layer(policy.width, chunk, scale=0.0)
    return weights


def _fresh_image(image: ImageRecipe, signature: Signature) -> Weights:
    halvings = 2 ** len(image.channels)
    places = math.ceil(signature.image_height / halvings) * math.ceil(signature.image_width / halvings)
    leave = fresh_layer(places * image.channels[-1], image.features)
    return {"layers": fresh_convolutions(image.channels), "leave": leave}


def _normalised(x_BK: jax.Array) -> jax.Array:
    centred_BK = x_BK - x_BK.mean(axis=-1, keepdims=True)
    return centred_BK * jax.lax.rsqrt((centred_BK**2).mean(axis=-1, keepdims=True) + 1e-6)


def encode_images(weights: Weights, images_BVHWC: jax.Array) -> jax.Array:
    """Returns the features of all views side by side, [B, V * features].

    Args:
        weights: The image encoder's weights.
        images_BVHWC: Brightness, 0 to 255.
    """
    batch, views = images_BVHWC.shape[:2]
    map_BK = convolved(weights["layers"], images_BVHWC).reshape(batch * views, -1)
    return dense(weights["leave"], map_BK).reshape(batch, -1)


def observe(weights: Weights, policy: PolicyRecipe, batch: Arrays) -> jax.Array:
    """Returns what the policy sees, [B,K]: the state, and the images' features when it reads them.

    Args:
        weights: The policy's weights.
        policy: The policy's shape.
        batch: `state` [B,S], normalised; `images` [B,V,H,W,3] if the policy reads them, and `image_valid` [B,V] where
            views are missing: of these it sees zeros.
    """
    if policy.image is None:
        state_BS: jax.Array = batch["state"]
        return state_BS
    image_BK = encode_images(weights["image"], batch["images"])
    if "image_valid" in batch:
        image_BK = image_BK * jnp.repeat(batch["image_valid"], policy.image.features, axis=1)
    return jnp.concatenate([batch["state"], image_BK], axis=-1)


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
    time_BE = encode_time(time_B, policy.time_features, period_min=TIME_PERIOD_MIN, period_max=TIME_PERIOD_MAX)
    x_BK = dense(weights["enter"], jnp.concatenate([seen_BK, noisy_BTA.reshape(batch, -1), time_BE], axis=-1))
    for block in weights["blocks"]:
        x_BK = x_BK + dense(block["narrow"], jax.nn.relu(dense(block["widen"], _normalised(x_BK))))
    return dense(weights["leave"], _normalised(x_BK)).reshape(noisy_BTA.shape)


def _loss(policy: PolicyRecipe, weights: Weights, batch: Arrays, keys_B: jax.Array) -> jax.Array:
    """Returns the squared error of the velocity, summed over valid steps."""
    noise_keys, time_keys, image_keys = split_rows(keys_B, 3)
    batch = with_varied_images(batch, policy.image, image_keys)
    noise_BTA = normal_rows(noise_keys, batch["actions"])
    time_B = jax.vmap(jax.random.uniform)(time_keys)
    seen_BK = observe(weights, policy, batch)
    error_BT = velocity_error(partial(velocity, weights, policy, seen_BK), batch["actions"], noise_BTA, time_B)
    return sum_of_valid(error_BT, batch["valid"])


def _sample(
    policy: PolicyRecipe, weights: Weights, batch: Arrays, keys_B: jax.Array, guidance: Guidance | None
) -> jax.Array:
    seen_BK = observe(weights, policy, batch)
    chunk = (len(batch["state"]), policy.horizon, len(weights["leave"]["bias"]) // policy.horizon)
    noise_BTA = normal_rows(keys_B, jnp.zeros(chunk))
    return flowed(partial(velocity, weights, policy, seen_BK), noise_BTA, policy.flow_steps, guidance)
