"""ACT: a transformer that turns what a robot sees into a chunk of actions at once, without a flow.

People do one thing in several ways, so in training a small encoder looks at the right actions too and finds their
style, kept close to unit Gaussian noise; in use the style is the mean of that noise, zero. Tokens of style, state and
images are encoded, and one query for each step of the chunk attends to them. Differs from the source in its images'
encoder, which is small and learned with the rest, and in having no dropout.
Source: Zhao et al., "Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware", 2023; LeRobot's `act`.

Legend of shape suffixes:
    B batch   V camera view   H row   W column   C channel   S token seen   T action of the chunk   A action
    D features of a token   Z style
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from mainspring.train.models.arrays import (
    Arrays,
    Fresh,
    Weights,
    dense,
    drawn,
    fresh_layer,
    fresh_norm,
    layer_norm,
    normal_rows,
    over_devices,
    split_rows,
)
from mainspring.train.models.attention import Sight, attention
from mainspring.train.models.images import convolved, fresh_convolutions, with_varied_images
from mainspring.train.models.model import Model, sum_of_valid
from mainspring.train.models.shapes import ActRecipe, ComputeRecipe, Signature
from mainspring.train.models.transformer import fresh_multi_head, multi_head, rematerialised

PERIOD_MAX = 10_000  # Source: Vaswani et al., "Attention Is All You Need", 2017, section 3.5.


def act_model(policy: ActRecipe) -> Model:
    """Returns the policy as the trainer knows it. A fresh one gives the mean action everywhere.

    Args:
        policy: The policy's shape.
    """
    return Model(
        initial_weights=lambda key, signature: drawn(key, _fresh_act(policy, signature)),
        loss=partial(_loss, policy),
        sample=lambda weights, batch, keys_B, guidance: chunk_of(
            weights, policy, batch, jnp.zeros((len(batch["state"]), policy.style_dim))
        ),
    )


def _fresh_act(policy: ActRecipe, signature: Signature) -> Weights:
    width = policy.width
    weights: Weights = {
        "state": fresh_layer(signature.state_dim, width),
        "style": fresh_layer(policy.style_dim, width),
        "seen_position": Fresh(shape=(2, width), deviation=1.0),  # Of style and state; an image's places are sines.
        "encoder": _fresh_blocks(policy, policy.encoder_layers, "attention"),
        "query": Fresh(shape=(policy.horizon, width), deviation=1.0),
        "decoder": _fresh_blocks(policy, policy.decoder_layers, "attention", "cross"),
        "norm": fresh_norm(width),
        "leave": fresh_layer(width, signature.action_dim, scale=0.0),
        "style_encoder": {
            "class": Fresh(shape=(1, width), deviation=1.0),
            "state": fresh_layer(signature.state_dim, width),
            "action": fresh_layer(signature.action_dim, width),
            "blocks": _fresh_blocks(policy, policy.style_layers, "attention"),
            "leave": fresh_layer(width, 2 * policy.style_dim, scale=0.0),
        },
    }
    if policy.image is not None:
        weights["image"] = fresh_convolutions(policy.image.channels)
        weights["image_token"] = fresh_layer(policy.image.channels[-1], width)
    return weights


def _fresh_blocks(policy: ActRecipe, layers: int, *attentions: str) -> Weights:
    width = policy.width
    blocks: Weights = {name: fresh_multi_head(width, policy.heads, layers) for name in attentions}
    norms = {f"{name}_norm": fresh_norm(width, layers) for name in (*attentions, "mlp")}
    return {
        **blocks,
        **norms,
        "widen": fresh_layer(width, policy.mlp, layers),
        "narrow": fresh_layer(policy.mlp, width, layers),
    }


def _loss(policy: ActRecipe, weights: Weights, batch: Arrays, keys_B: jax.Array) -> jax.Array:
    """Returns the absolute error of the chunks, summed over valid steps, each with its style's distance from noise."""
    style_keys, image_keys = split_rows(keys_B, 2)
    batch = with_varied_images(batch, policy.image, image_keys)
    mean_BZ, log_variance_BZ = jnp.split(style_of(weights, policy, batch), 2, axis=-1)
    style_BZ = mean_BZ + jnp.exp(log_variance_BZ / 2) * normal_rows(style_keys, mean_BZ)
    error_BTA = jnp.abs(chunk_of(weights, policy, batch, style_BZ) - batch["actions"])
    # Source: Kingma and Welling, "Auto-Encoding Variational Bayes", 2013, appendix B.
    distance_B = (mean_BZ**2 + jnp.exp(log_variance_BZ) - log_variance_BZ - 1).sum(axis=-1) / 2
    return sum_of_valid(error_BTA.mean(axis=-1) + policy.style_weight * distance_B[:, None], batch["valid"])


def style_of(weights: Weights, policy: ActRecipe, batch: Arrays) -> jax.Array:
    """Returns mean and logarithm of the variance of the styles that a batch's actions may have, [B,2Z].

    Args:
        weights: The policy's weights.
        policy: The policy's shape.
        batch: `state` [B,S], `actions` [B,T,A], `valid` [B,T].
    """
    own = weights["style_encoder"]
    count = len(batch["state"])
    class_B1D = jnp.broadcast_to(own["class"], (count, 1, policy.width))
    state_B1D, action_BTD = dense(own["state"], batch["state"])[:, None], dense(own["action"], batch["actions"])
    token_BSD = jnp.concatenate([class_B1D, state_B1D, action_BTD], axis=1)
    position_SD = _sines(token_BSD.shape[1], policy.width)
    valid_BS = jnp.concatenate([jnp.ones((count, 2), bool), batch["valid"]], axis=1)
    found_BSD = _encode(own["blocks"], token_BSD, position_SD, policy.compute, _whole_sight(valid_BS))
    return dense(own["leave"], found_BSD[:, 0].astype(jnp.float32))


def chunk_of(weights: Weights, policy: ActRecipe, batch: Arrays, style_BZ: jax.Array) -> jax.Array:
    """Returns the chunk of a given style for each observation, [B,T,A], normalised.

    Args:
        weights: The policy's weights.
        policy: The policy's shape.
        batch: `state` [B,S], normalised; `images` [B,V,H,W,3] if the policy reads them, and `image_valid` [B,V] where
            views are missing.
        style_BZ: Zero for the chunk that is likeliest.
    """
    count = len(batch["state"])
    tokens = [dense(weights["style"], style_BZ)[:, None], dense(weights["state"], batch["state"])[:, None]]
    positions = [weights["seen_position"]]
    valid_BS: jax.Array | None = None
    if policy.image is not None:
        views = batch["images"].shape[1]
        map_BHWC = convolved(weights["image"], batch["images"])
        tokens.append(dense(weights["image_token"], map_BHWC).reshape(count, -1, policy.width))
        positions.append(jnp.tile(_places(map_BHWC.shape[1], map_BHWC.shape[2], policy.width), (views, 1)))
        if "image_valid" in batch:
            image_valid_BS = jnp.repeat(batch["image_valid"], map_BHWC.shape[1] * map_BHWC.shape[2], axis=1)
            valid_BS = jnp.concatenate([jnp.ones((count, 2), bool), image_valid_BS], axis=1)
    position_SD = jnp.concatenate(positions)
    seen_BSD = _encode(
        weights["encoder"], jnp.concatenate(tokens, axis=1), position_SD, policy.compute, _whole_sight(valid_BS)
    )
    chunk_BTD = _decode(
        weights["decoder"],
        seen_BSD,
        position_SD,
        weights["query"],
        policy.compute,
        _whole_sight(valid_BS, queries=policy.horizon),
    )
    return dense(weights["leave"], layer_norm(weights["norm"], chunk_BTD).astype(jnp.float32))


def _whole_sight(valid_BS: jax.Array | None, queries: int | None = None) -> Sight | None:
    """Returns the sight of tokens all of which see every key that is valid; None where all are."""
    if valid_BS is None:
        return None
    count, keys = valid_BS.shape
    queries = keys if queries is None else queries
    asking = jnp.ones((count, queries), bool)
    return Sight(query_valid_BT=asking, key_valid_BS=valid_BS, query_blocks=(0,) * queries, key_blocks=(0,) * keys)


def _encode(
    blocks: Weights, x_BSD: jax.Array, position_SD: jax.Array, compute: ComputeRecipe, sight: Sight | None = None
) -> jax.Array:
    """Returns tokens after all blocks; positions are added anew to what attends and is attended to in each."""
    position_SD, attend = position_SD.astype(compute.numbers.value), attention(sight, compute.attention)

    def layer(x: jax.Array, block: Weights) -> tuple[jax.Array, None]:
        x = over_devices(x)
        placed = x + position_SD
        x = layer_norm(block["attention_norm"], x + multi_head(block["attention"], placed, placed, x, attend))
        return _mlp(block, x), None

    x_BSD, _ = jax.lax.scan(rematerialised(layer, compute.remat), x_BSD.astype(compute.numbers.value), blocks)
    return x_BSD


def _decode(
    blocks: Weights,
    seen_BSD: jax.Array,
    position_SD: jax.Array,
    query_TD: jax.Array,
    compute: ComputeRecipe,
    sight: Sight | None,
) -> jax.Array:
    """Returns the tokens of the chunk, which begin as zeros and know their step by their query alone."""
    query_TD, attend = query_TD.astype(seen_BSD.dtype), attention(None, compute.attention)
    look = attention(sight, compute.attention)
    placed_BSD = seen_BSD + position_SD.astype(seen_BSD.dtype)

    def layer(x: jax.Array, block: Weights) -> tuple[jax.Array, None]:
        asking = x + query_TD
        x = layer_norm(block["attention_norm"], x + multi_head(block["attention"], asking, asking, x, attend))
        x = layer_norm(block["cross_norm"], x + multi_head(block["cross"], x + query_TD, placed_BSD, seen_BSD, look))
        return _mlp(block, x), None

    x_BTD = jnp.zeros((len(seen_BSD), *query_TD.shape), seen_BSD.dtype)
    x_BTD, _ = jax.lax.scan(rematerialised(layer, compute.remat), x_BTD, blocks)
    return x_BTD


def _mlp(block: Weights, x: jax.Array) -> jax.Array:
    return layer_norm(block["mlp_norm"], x + dense(block["narrow"], jax.nn.relu(dense(block["widen"], x))))


def _places(height: int, width: int, features: int) -> jax.Array:
    """Returns the places of a map, [H * W, D]: half of the features tell the row, half the column."""
    row_HD, column_WD = _sines(height, features // 2), _sines(width, features // 2)
    both = [jnp.repeat(row_HD, width, axis=0), jnp.tile(column_WD, (height, 1))]
    return jnp.concatenate(both, axis=-1)


def _sines(count: int, features: int) -> jax.Array:
    """Returns sines and cosines of the first places at geometrically spaced periods, [S,D]."""
    angle_SD = np.arange(count)[:, None] / PERIOD_MAX ** (np.arange(features // 2) / (features // 2))
    return jnp.asarray(np.concatenate([np.sin(angle_SD), np.cos(angle_SD)], axis=-1), jnp.float32)
