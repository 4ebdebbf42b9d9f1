"""Gemma as a language model: words in, the logits of the next words out, and how surprising each word was.

Nothing keeps the logits of all words: of a vocabulary of 257,152 they are a MB a word. The words of a batch are looked
at in parts, whose logits are made again for the backward pass, and each device holds those of its share of the
vocabulary: it is tokens that travel, and never the table or its gradient.
Source: Gemma Team, "Gemma", 2024; Shoeybi et al., "Megatron-LM", 2019 (the vocabulary's shares).

Legend of shape suffixes:
    B batch   T token   D features of a token   V word
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from mainspring.domain.errors import InvalidInput
from mainspring.train.models.arrays import (
    Arrays,
    Weights,
    before_words,
    by_shares,
    drawn,
    fresh_dense,
    over_devices,
    over_words,
)
from mainspring.train.models.attention import block_causal
from mainspring.train.models.model import Model, sum_of_valid
from mainspring.train.models.shapes import (
    SEQUENCE,
    WORDS_AT_ONCE,
    ComputeRecipe,
    FloatKind,
    GemmaRecipe,
    LanguageRecipe,
)
from mainspring.train.models.transformer import decode, fresh_blocks


def language_model(policy: LanguageRecipe) -> Model:
    """Returns a language model as the trainer knows it.

    Args:
        policy: Its shape.
    """
    return Model(
        initial_weights=lambda key, _: drawn(key, fresh_gemma(policy.language)),
        loss=partial(_loss, policy),
        sample=_acted,
    )


def _loss(policy: LanguageRecipe, weights: Weights, batch: Arrays, _: jax.Array) -> jax.Array:
    return sum_of_valid(surprises(weights, batch["tokens"], policy.compute), batch["valid"])


def _acted(*_: object) -> jax.Array:
    raise InvalidInput("act", got="a language model", wanted="a policy: it has words and no actions")


def fresh_gemma(shape: GemmaRecipe) -> Weights:
    """Returns the language model's weights to be."""
    return {"embedding": fresh_dense(shape.vocabulary, shape.width, inputs=shape.width), **fresh_blocks(shape)}


def embed(weights: Weights, tokens_BT: jax.Array, numbers: FloatKind) -> jax.Array:
    """Returns the embedded words, [B,T,D], which Gemma scales by the root of their width.

    Args:
        weights: As `fresh_gemma` says.
        tokens_BT: Whole numbers below the vocabulary's size.
        numbers: What they are given in.
    """
    return _scaled(jnp.asarray(weights["embedding"])[tokens_BT], numbers)


def _scaled(embedded_BTD: jax.Array, numbers: FloatKind) -> jax.Array:
    wide_BTD = embedded_BTD.astype(jnp.float32)
    return (wide_BTD * math.sqrt(wide_BTD.shape[-1])).astype(numbers.value)


def next_word_logits(weights: Weights, tokens_BT: jax.Array, compute: ComputeRecipe) -> jax.Array:
    """Returns for each word the logits of the one after it, [B,T,V], float32.

    Args:
        weights: As `fresh_gemma` says.
        tokens_BT: Whole numbers below the vocabulary's size, no padding.
        compute: How it is computed.
    """
    return _logits(_read(weights, tokens_BT, compute), weights["embedding"])


def surprises(weights: Weights, tokens_BT: jax.Array, compute: ComputeRecipe) -> jax.Array:
    """Returns the cross entropy of each word given those before it, [B,T], float32; of the first word 0.

    Args:
        weights: As `fresh_gemma` says.
        tokens_BT: Whole numbers below the vocabulary's size; padding, if any, behind all words.
        compute: How it is computed.
    """

    def part(table_VD: jax.Array, both: tuple[jax.Array, jax.Array]) -> jax.Array:
        x_BTD, next_BT = both
        logits_BTV = over_words(_logits(before_words(over_devices(x_BTD)), table_VD), 2)
        own_BTV = next_BT[..., None] == jnp.arange(len(table_VD))
        surprise_BT: jax.Array = jax.nn.logsumexp(logits_BTV, axis=-1) - jnp.where(own_BTV, logits_BTV, 0).sum(axis=-1)
        return over_devices(surprise_BT)

    both = (_read(weights, tokens_BT, compute), jnp.roll(tokens_BT, -1, axis=1))
    next_BT = _by_parts(jax.checkpoint(part, prevent_cse=False), weights["embedding"], both)
    return jnp.pad(next_BT[:, :-1], ((0, 0), (1, 0)))


def _read(weights: Weights, tokens_BT: jax.Array, compute: ComputeRecipe) -> jax.Array:
    """Returns what the model makes of each word and those before it, [B,T,D]."""

    def part(table_VD: jax.Array, words_BT: jax.Array) -> jax.Array:
        return _scaled(over_devices(over_words(table_VD[over_words(words_BT)])), compute.numbers)

    x_BTD = _by_parts(part, weights["embedding"], tokens_BT)
    count = tokens_BT.shape[1]
    sight = block_causal(jnp.ones(tokens_BT.shape, bool), [True] * count)
    position = jnp.broadcast_to(jnp.arange(count), tokens_BT.shape)
    (x_BTD,), _ = decode([weights], [x_BTD], position_BT=position, sight=sight, conditions=[None], compute=compute)
    return x_BTD


def _by_parts(function: Callable[..., jax.Array], table_VD: jax.Array, arrays: Any) -> jax.Array:
    """Returns what a function gives of a table and some words of sequences, part after part; of arrays [B,T,...]."""
    count = jax.tree.leaves(arrays)[0].shape[1]
    devices = jax.sharding.get_abstract_mesh().shape.get(SEQUENCE, 1)
    parts = -(-count // (devices * WORDS_AT_ONCE))
    size = -(-count // (devices * parts))

    def whole(x: jax.Array) -> jax.Array:
        return jnp.pad(x, [(0, 0), (0, devices * parts * size - count), *[(0, 0)] * (x.ndim - 2)])

    def apart(x: jax.Array) -> jax.Array:
        return jnp.moveaxis(x.reshape(len(x), parts, size, *x.shape[2:]), 1, 0)

    def local(table_VD: jax.Array, arrays: Any) -> jax.Array:
        found = jax.lax.map(partial(function, over_words(jnp.asarray(table_VD), 0)), jax.tree.map(apart, arrays))
        return jnp.moveaxis(found, 0, 1).reshape(found.shape[1], parts * size, *found.shape[3:])

    return by_shares(local, table_VD, jax.tree.map(whole, arrays))[:, :count]


def _logits(x_BTD: jax.Array, table_VD: jax.Array) -> jax.Array:
    words = table_VD.astype(x_BTD.dtype)
    logits: jax.Array = jnp.einsum("BTD,VD->BTV", x_BTD, words, preferred_element_type=jnp.float32)
    return logits
