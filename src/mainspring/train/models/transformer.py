"""Transformer blocks in which several streams of tokens attend to each other, each by weights of its own.

One stream is a plain Gemma decoder. Two are a language model and an action expert: every block projects each stream by
its own weights, attends over all of them together, and goes on with each apart. Block-causal masks say who sees whom,
and a cache holds the keys and values of streams that have gone before.
Source: Gemma Team, "Gemma", 2024; Black et al., "pi0", 2024, section IV (experts).

Legend of shape suffixes:
    B batch   T query token   S key token   D features of a token   C features of a condition
    N query head   K key and value head   H features of a head   F hidden features of the MLP   L layer
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mainspring.train.models.arrays import Fresh, Weights, dense, fresh_dense, fresh_layer, over_devices, product
from mainspring.train.models.attention import Attend, Sight, attention
from mainspring.train.models.shapes import ComputeRecipe, GemmaRecipe, Remat

RMS_EPSILON = 1e-6
ROTARY_PERIOD_MAX = 10_000  # Source: Su et al., "RoFormer", 2021, section 3.2; Gemma's own value.

_KEPT = {
    Remat.DOTS: jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    Remat.FULL: jax.checkpoint_policies.nothing_saveable,
}

Streams = list[jax.Array]
Cache = tuple[jax.Array, jax.Array]  # Keys and values, [L,B,S,K,H]; or of one layer, without L.


class Modulation(NamedTuple):
    """What an RMSNorm does beyond normalising, and how strongly what follows it counts; each [B,1,D], or one value."""

    scale: Any
    shift: Any
    gate: Any


def modulation_of(norm: Weights, condition_BC: jax.Array | None) -> Modulation:
    """Returns a norm's own scale, or what a condition makes of it where the norm is adaptive.

    Source of the adaptive norm: Peebles and Xie, "Scalable Diffusion Models with Transformers", 2022, section 3.2.

    Args:
        norm: `scale` [D]; or `kernel` [C,3D] and `bias` [3D].
        condition_BC: For an adaptive norm.
    """
    if condition_BC is None:
        return Modulation(norm["scale"].astype(jnp.float32), 0.0, 1.0)
    return Modulation(*jnp.split(dense(norm, condition_BC)[:, None, :], 3, axis=-1))


def rms_norm(x_BTD: jax.Array, modulation: Modulation) -> jax.Array:
    """Returns `x_BTD` with mean square one, scaled and shifted; computed in float32.

    Args:
        modulation: From `modulation_of`.
    """
    wide = x_BTD.astype(jnp.float32)
    normed = wide * jax.lax.rsqrt((wide**2).mean(axis=-1, keepdims=True) + RMS_EPSILON)
    result: jax.Array = (normed * (1 + modulation.scale) + modulation.shift).astype(x_BTD.dtype)
    return result


def rotated(x_BTNH: jax.Array, position_BT: jax.Array) -> jax.Array:
    """Returns heads turned by their token's position: pairs (h, h + H/2) by geometrically spaced frequencies.

    Args:
        x_BTNH: Queries, or keys.
        position_BT: Whole numbers from 0.
    """
    half = x_BTNH.shape[-1] // 2
    period = ROTARY_PERIOD_MAX ** (jnp.arange(half, dtype=jnp.float32) / half)
    angle = position_BT[:, :, None, None] / period
    sine, cosine = jnp.sin(angle), jnp.cos(angle)
    first, second = jnp.split(x_BTNH.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return turned.astype(x_BTNH.dtype)


def fresh_multi_head(width: int, heads: int, *stack: int) -> Weights:
    """Returns the weights to be of `multi_head`.

    Args:
        stack: Leading axes, where many such are stacked.
    """
    head = width // heads
    into = {
        "kernel": fresh_dense(*stack, width, heads, head, inputs=width),
        "bias": Fresh(shape=(*stack, heads, head)),
    }
    out = {"kernel": fresh_dense(*stack, heads, head, width, inputs=width), "bias": Fresh(shape=(*stack, width))}
    return {"query": into, "key": into, "value": into, "out": out}


def multi_head(
    weights: Weights,
    query_BTD: jax.Array,
    key_BSD: jax.Array,
    value_BSD: jax.Array,
    attend: Attend,
) -> jax.Array:
    """Returns plain multi-head attention with biases, [B,T,D], without positions of its own.

    Args:
        weights: As `fresh_multi_head` says.
        attend: From `attention`.
    """

    def projected(name: str, x_BTD: jax.Array) -> jax.Array:
        heads = product(x_BTD, weights[name]["kernel"]) + weights[name]["bias"].astype(x_BTD.dtype)
        return over_devices(heads, tensor_dim=2)

    query = projected("query", query_BTD)
    key, value = (
        over_devices(projected(name, x_BSD), tensor_dim=2, whole_tokens=True)
        for name, x_BSD in (("key", key_BSD), ("value", value_BSD))
    )
    attended = over_devices(attend(query, key, value), tensor_dim=2)
    bias = weights["out"]["bias"].astype(query_BTD.dtype)
    result: jax.Array = over_devices(product(attended, weights["out"]["kernel"], 2)) + bias
    return result


def fresh_blocks(shape: GemmaRecipe, *, condition: int = 0) -> Weights:
    """Returns a stream's weights to be: all its blocks, stacked, and the norm after them.

    Args:
        condition: Features of what the norms adapt to; 0 for plain norms.
    """
    layers, width, heads, kv_heads, head = shape.depth, shape.width, shape.heads, shape.kv_heads, shape.head_dim

    def norm(*stack: int) -> Weights:
        if condition:
            # All zero, gates too: a fresh block adds nothing, as in the source of the adaptive norm.
            return fresh_layer(condition, 3 * width, *stack, scale=0.0)
        return {"scale": Fresh(shape=(*stack, width))}

    return {
        "blocks": {
            "attention_norm": norm(layers),
            "query": fresh_dense(layers, width, heads, head, inputs=width),
            "key": fresh_dense(layers, width, kv_heads, head, inputs=width),
            "value": fresh_dense(layers, width, kv_heads, head, inputs=width),
            "out": fresh_dense(layers, heads, head, width, inputs=heads * head),
            "mlp_norm": norm(layers),
            "gate": fresh_dense(layers, width, shape.mlp, inputs=width),
            "up": fresh_dense(layers, width, shape.mlp, inputs=width),
            "down": fresh_dense(layers, shape.mlp, width, inputs=shape.mlp),
        },
        "norm": norm(),
    }


def unstacked(stack: Weights) -> Weights:
    """Returns a stream's weights with each block's apart, for `decode` to go through one by one.

    A stack is quick to compile, and right where a block is gone through once. Each time, though, a block's weights are
    taken out of it by a copy: where few tokens pass many times, as in sampling, that is most of what is read.

    Args:
        stack: As `fresh_blocks` says.
    """
    return {**stack, "blocks": layers_of(stack["blocks"])}


def layers_of(stacked: Any) -> tuple[Any, ...]:
    """Returns what a tree of stacked arrays has of each layer.

    Args:
        stacked: Arrays [L,...].
    """
    arrays, structure = jax.tree.flatten(stacked)
    return tuple(jax.tree.unflatten(structure, [array[layer] for array in arrays]) for layer in range(len(arrays[0])))


def decode(
    stacks: Sequence[Weights],
    streams: Streams,
    *,
    position_BT: jax.Array,
    sight: Sight,
    conditions: Sequence[jax.Array | None],
    compute: ComputeRecipe,
    cache: Cache | Sequence[Cache] | None = None,
) -> tuple[Streams, Any]:
    """Returns the streams after all blocks and their last norm, and the keys and values of their tokens, as a cache.

    Args:
        stacks: Each stream's weights; all `unstacked`, or none.
        streams: Each stream's tokens, [B,T,D]; T and D differ from stream to stream.
        position_BT: Of the tokens of all streams, one after the other.
        sight: Which token sees which: keys in the cache come first, then those of the streams.
        conditions: Each stream's condition, [B,C], None where its norms are plain.
        compute: How it is computed.
        cache: Of the tokens that went before; by layer, where the stacks are `unstacked`.
    """

    def layer(streams: Streams, inputs: Any) -> tuple[Streams, Cache]:
        blocks, before = inputs
        streams = [over_devices(x) for x in streams]
        return _block(blocks, streams, positions, attends, conditions, before)

    blocks = [stack["blocks"] for stack in stacks]
    streams = [over_devices(x) for x in streams]
    ends = np.cumsum([x.shape[1] for x in streams])[:-1]
    bounds = zip([0, *ends], [*ends, position_BT.shape[1]], strict=True)
    attends = [attention(sight.of_queries(*bound), compute.attention) for bound in bounds]
    positions = [over_devices(part) for part in jnp.split(position_BT, ends, axis=1)]
    if isinstance(blocks[0], tuple):
        streams, fresh = _one_by_one(layer, streams, blocks, cache)
    else:
        streams, fresh = jax.lax.scan(rematerialised(layer, compute.remat), streams, (blocks, cache))
    lasts = zip(streams, stacks, conditions, strict=True)
    return [rms_norm(x, modulation_of(stack["norm"], condition)) for x, stack, condition in lasts], fresh


def _one_by_one(
    layer: Callable[..., tuple[Streams, Cache]],
    streams: Streams,
    blocks: Sequence[tuple[Weights, ...]],
    cache: Any,
) -> tuple[Streams, tuple[Cache, ...]]:
    """Returns what a scan would, of blocks and caches that are no stacks."""
    fresh = []
    for number, own in enumerate(zip(*blocks, strict=True)):
        streams, kept = layer(streams, (own, None if cache is None else cache[number]))
        fresh.append(kept)
    return streams, tuple(fresh)


def rematerialised(layer: Callable[..., Any], remat: Remat) -> Callable[..., Any]:
    """Returns a layer that is computed again in the backward pass, as far as `remat` says.

    Args:
        layer: The body of a scan.
    """
    if remat is Remat.NONE:
        return layer
    # Inside a scan nothing could be merged with what came before.
    checkpointed: Callable[..., Any] = jax.checkpoint(layer, policy=_KEPT[remat], prevent_cse=False)
    return checkpointed


def _block(
    blocks: Sequence[Weights],
    streams: Streams,
    positions: Streams,
    attends: Sequence[Attend],
    conditions: Sequence[jax.Array | None],
    before: Cache | None,
) -> tuple[Streams, Cache]:
    queries, keys, values, gates = [], [], [], []
    for weights, x, position, condition in zip(blocks, streams, positions, conditions, strict=True):
        modulation = modulation_of(weights["attention_norm"], condition)
        gates.append(modulation.gate)
        normed = rms_norm(x, modulation)
        query, key, value = (
            over_devices(product(normed, weights[name]), tensor_dim=2) for name in ("query", "key", "value")
        )
        queries.append(over_devices(rotated(query, position), tensor_dim=2))
        keys.append(over_devices(rotated(key, position), tensor_dim=2, whole_tokens=True))
        values.append(over_devices(value, tensor_dim=2, whole_tokens=True))
    fresh = (jnp.concatenate(keys, axis=1), jnp.concatenate(values, axis=1))
    key, value = fresh
    if before is not None:
        key, value = (jnp.concatenate(both, axis=1) for both in zip(before, fresh, strict=True))
    # Each stream's queries by themselves: tokens that `sequence` splits would have to move to lie in one row.
    attended = [attend(query, key, value) for attend, query in zip(attends, queries, strict=True)]
    results = []
    for weights, x, gate, part, condition in zip(blocks, streams, gates, attended, conditions, strict=True):
        x = x + gate * over_devices(product(over_devices(part, tensor_dim=2), weights["out"], 2))
        modulation = modulation_of(weights["mlp_norm"], condition)
        results.append(over_devices(x + modulation.gate * _gated_mlp(weights, rms_norm(x, modulation))))
    return results, fresh


def _gated_mlp(weights: Weights, x_BTD: jax.Array) -> jax.Array:
    hidden_BTF = over_devices(
        jax.nn.gelu(product(x_BTD, weights["gate"])) * product(x_BTD, weights["up"]), tensor_dim=2
    )
    return product(hidden_BTF, weights["down"])
