"""Gemma as a language model: words in, the logits of the next words out.

Source: Gemma Team, "Gemma", 2024.

Legend of shape suffixes:
    B batch   T token   D features of a token   V word
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import optax

from mainspring.train.models.arrays import Weights, fresh_dense
from mainspring.train.models.attention import block_causal
from mainspring.train.models.shapes import ComputeRecipe, FloatKind, GemmaRecipe
from mainspring.train.models.transformer import decode, fresh_blocks


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
    embedded_BTD = jnp.asarray(weights["embedding"])[tokens_BT].astype(jnp.float32)
    return (embedded_BTD * math.sqrt(embedded_BTD.shape[-1])).astype(numbers.value)


def next_word_logits(weights: Weights, tokens_BT: jax.Array, compute: ComputeRecipe) -> jax.Array:
    """Returns for each word the logits of the one after it, [B,T,V], float32.

    Args:
        weights: As `fresh_gemma` says.
        tokens_BT: Whole numbers below the vocabulary's size, no padding.
        compute: How it is computed.
    """
    x_BTD = embed(weights, tokens_BT, compute.numbers)
    count = tokens_BT.shape[1]
    sight = block_causal(jnp.ones(tokens_BT.shape, bool), [True] * count)
    position = jnp.broadcast_to(jnp.arange(count), tokens_BT.shape)
    (x_BTD,), _ = decode([weights], [x_BTD], position_BT=position, sight=sight, conditions=[None], compute=compute)
    words = weights["embedding"].astype(x_BTD.dtype)
    logits: jax.Array = jnp.einsum("BTD,VD->BTV", x_BTD, words, preferred_element_type=jnp.float32)
    return logits


def language_loss(weights: Weights, tokens_BT: jax.Array, compute: ComputeRecipe) -> jax.Array:
    """Returns the mean cross entropy of each word given those before it.

    Args:
        weights: As `fresh_gemma` says.
        tokens_BT: Whole numbers below the vocabulary's size, no padding.
        compute: How it is computed.
    """
    logits_BTV = next_word_logits(weights, tokens_BT, compute)[:, :-1]
    loss: jax.Array = optax.softmax_cross_entropy_with_integer_labels(logits_BTV, tokens_BT[:, 1:]).mean()
    return loss
