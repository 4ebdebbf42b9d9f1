"""What models are made of: fresh arrays, dense layers, norms; how arrays are named, and rows split and drawn.

Legend of shape suffixes:
    B batch   T token   D features in   E features out
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from mainspring.domain.errors import InvalidInput, nearest
from mainspring.train.models.shapes import BATCH_AXES, DATA, REPLICA, SEQUENCE, TENSOR

Weights = dict[str, Any]
Arrays = Mapping[str, Any]
Tree = TypeVar("Tree")

LARGE = 1 << 22  # Numbers: 16 MB, so that all small arrays of the largest model are some 100 MB together.
LAYER_NORM_EPSILON = 1e-6  # Source: Flax, `LayerNorm`, which SigLIP was trained with.


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """An array to be: normal numbers of this mean and deviation."""

    shape: tuple[int, ...]
    deviation: float = 0.0
    mean: float = 0.0


def fresh_dense(*shape: int, inputs: int = 1, scale: float = 1.0) -> Fresh:
    """Returns a kernel to be, whose outputs have the deviation of its inputs, times `scale`.

    Args:
        shape: Of the kernel.
        inputs: How many of its leading axes, after those of a stack, are summed over: their sizes' product.
        scale: Of the outputs' deviation.
    """
    return Fresh(shape=shape, deviation=scale / math.sqrt(inputs))


def fresh_layer(inputs: int, outputs: int, *stack: int, scale: float = 1.0) -> Weights:
    """Returns a dense layer to be, with a bias of zero.

    Args:
        stack: Leading axes, where many such layers are stacked.
        scale: As for `fresh_dense`.
    """
    kernel = fresh_dense(*stack, inputs, outputs, inputs=inputs, scale=scale)
    return {"kernel": kernel, "bias": Fresh(shape=(*stack, outputs))}


def fresh_convolution(size: int, inputs: int, outputs: int) -> Weights:
    """Returns a convolution to be, with a bias of zero.

    Args:
        size: Height and width of its kernel.
    """
    kernel = fresh_dense(size, size, inputs, outputs, inputs=size * size * inputs)
    return {"kernel": kernel, "bias": Fresh(shape=(outputs,))}


def fresh_norm(width: int, *stack: int) -> Weights:
    """Returns a layer norm to be, which changes nothing beyond normalising.

    Args:
        stack: Leading axes, where many such norms are stacked.
    """
    return {"scale": Fresh(shape=(*stack, width), mean=1.0), "bias": Fresh(shape=(*stack, width))}


def drawn(key: jax.Array, plan: Any) -> Weights:
    """Returns fresh weights.

    Small arrays are drawn at once, for a draw for each takes XLA seconds to compile; large ones each by itself, so that
    none of another shape is ever held; what has no deviation is not drawn.

    Args:
        plan: A tree of `Fresh`.
    """
    fresh, structure = jax.tree.flatten(plan)
    small = [number for number, each in enumerate(fresh) if each.deviation and math.prod(each.shape) < LARGE]
    ends = np.cumsum([0, *(math.prod(fresh[number].shape) for number in small)])
    drawn_at_once = _placed(jax.random.normal(key, (ends[-1],)))  # Whole: to cut what is split would be to gather it.
    parts = dict(zip(small, jnp.split(drawn_at_once, ends[1:-1]), strict=False))

    def array(number: int, each: Fresh) -> jax.Array:
        if not each.deviation:
            return jnp.full(each.shape, each.mean, jnp.float32)
        if number in parts:
            normal = parts[number].reshape(each.shape)
        else:
            normal = jax.random.normal(jax.random.fold_in(key, number), each.shape)
        return each.mean + each.deviation * normal

    weights: Weights = jax.tree.unflatten(structure, [array(number, each) for number, each in enumerate(fresh)])
    return weights


def flattened(tree: Any) -> dict[str, Any]:
    """Returns a tree's leaves by their paths, segments joined by "/".

    Args:
        tree: Of arrays, or of their shapes.
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def with_given(tree: Tree, given: Arrays) -> Tree:
    """Returns a tree with some of its leaves replaced.

    Args:
        given: By paths, as `flattened` has them.
    """
    leaves = {**flattened(tree), **given}
    result: Tree = jax.tree.unflatten(jax.tree.structure(tree), leaves.values())
    return result


def over_devices(x: jax.Array, *, tensor_dim: int | None = None, whole_tokens: bool = False) -> jax.Array:
    """Returns tokens, split as the mesh that a program is traced for has it; as they are where there is none.

    What is computed of them is told where it lies, too: left to itself, XLA may split it as the weights lie, and then
    it is activations that travel. What `sequence` does not divide XLA pads, and its sums leave the padding out: pi0's
    expert has 51 tokens. Fewer tokens than devices, as the one of a state, stay whole.

    Args:
        x: [B,T,...]: rows go along `replica` and `data`, tokens along `sequence`.
        tensor_dim: The dim that goes along `tensor` where it divides: heads, or hidden features.
        whole_tokens: Whether each device gets all tokens of its rows: keys and values.
    """
    sizes = jax.sharding.get_abstract_mesh().shape
    axes: list[Any] = [BATCH_AXES, None if whole_tokens or x.shape[1] < sizes.get(SEQUENCE, 1) else SEQUENCE]
    axes += [None] * (x.ndim - len(axes))
    if tensor_dim is not None and x.shape[tensor_dim] % sizes.get(TENSOR, 1) == 0:
        axes[tensor_dim] = TENSOR
    return _placed(x, *axes)


def by_shares(function: Callable[..., jax.Array], whole: Any, arrays: Any) -> jax.Array:
    """Returns what a function gives for all tokens, each device of `replica` and `sequence` for its own share of them.

    What it learns of `whole` is summed over these once, however often the function uses it. `data` and `tensor` are
    left to XLA: there `over_devices` and `over_words` say what lies where.

    Args:
        function: Of `whole` and of some tokens of some rows.
        whole: What all tokens meet.
        arrays: Each [B,T,...], where `sequence` divides T.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.are_all_axes_manual or mesh.shape[REPLICA] * mesh.shape[SEQUENCE] == 1:
        return function(whole, arrays)
    spec: Any = jax.sharding.PartitionSpec
    shares, names = spec(REPLICA, SEQUENCE), {REPLICA, SEQUENCE}
    places = {"in_specs": (spec(), shares), "out_specs": shares}
    over: Callable[..., jax.Array] = jax.shard_map(function, mesh=mesh, axis_names=names, check_vma=False, **places)
    return over(whole, arrays)


def over_words(x: jax.Array, words_dim: int | None = None) -> jax.Array:
    """Returns what is set against a vocabulary, inside of `by_shares`: each device has its share of the words.

    Args:
        x: Of tokens, those of all devices that share words; or what has words.
        words_dim: The dim that is words, which goes along `data` and `tensor`; None where there is none.
    """
    return _placed(x, *((DATA, TENSOR) if dim == words_dim else None for dim in range(x.ndim)))


@jax.custom_vjp
def before_words(x_BTD: jax.Array) -> jax.Array:
    """Returns the tokens of all devices that share words, as `over_words`; each gets its own gradients alone."""
    return over_words(x_BTD)


before_words.defvjp(lambda x_BTD: (over_words(x_BTD), None), lambda _, change_BTD: (over_devices(change_BTD),))


def _placed(x: jax.Array, *axes: Any) -> jax.Array:
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.are_all_axes_manual:
        return x
    if mesh.manual_axes:  # Of these a device sees its own share alone.
        several = [axis if isinstance(axis, tuple) else (axis,) for axis in axes]
        axes = tuple(tuple(name for name in names if name not in (None, *mesh.manual_axes)) for names in several)
    spec: Any = jax.sharding.PartitionSpec(*axes)  # type: ignore[no-untyped-call]
    placed: jax.Array = jax.lax.with_sharding_constraint(x, spec)  # type: ignore[no-untyped-call]
    return placed


def split_rows(keys_B: jax.Array, count: int) -> jax.Array:
    """Returns several random keys for each row, [count,B].

    Args:
        keys_B: One for each.
    """
    return jax.vmap(lambda key: jax.random.split(key, count), out_axes=1)(keys_B)


def normal_rows(keys_B: jax.Array, like_BX: jax.Array) -> jax.Array:
    """Returns normal numbers that each row draws by its own key, so that they are the same however rows are shared out.

    Args:
        like_BX: Their shape.
    """
    return jax.vmap(lambda key, like: jax.random.normal(key, like.shape))(keys_B, like_BX)


def matching(patterns: Iterable[str], paths: Collection[str], action: str) -> set[str]:
    """Returns the paths that match one of the patterns.

    Args:
        patterns: Regular expressions, each of whole paths.
        paths: As `flattened` has them.
        action: What they are for, in words.

    Raises:
        InvalidInput: A pattern is no regular expression, or matches nothing.
    """
    found: set[str] = set()
    for pattern in patterns:
        try:
            some = {path for path in paths if re.fullmatch(pattern, path)}
        except re.error as error:
            raise InvalidInput(action, on=repr(pattern), got=str(error), wanted="a regular expression") from error
        if not some:
            raise InvalidInput(action, on=repr(pattern), got="no array of that path", wanted=nearest(pattern, paths))
        found |= some
    return found


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Adapted:
    """A weight that acts as `base + scale a b`, which nobody makes: see `lora.py`.

    To go through `a` and `b` costs about rank / width of what the weight costs. To make their sum in every step would
    need the gradient of the whole weight to learn by: a fourth more operations with remat, and its memory.

    Args:
        base: [.., inputs, outputs].
        a: [.., inputs, rank].
        b: [.., rank, outputs].
        scale: One number.
    """

    base: Any
    a: Any
    b: Any
    scale: float = field(metadata={"static": True})


def product(x: jax.Array, weight: Any, inputs: int = 1) -> jax.Array:
    """Returns `x` times a weight, in the numbers of `x`.

    Args:
        x: Its last axes are summed over.
        weight: An array, whose first axes are; or an adapted one.
        inputs: How many axes are summed over.
    """
    if isinstance(weight, Adapted):
        beside = product(product(x, weight.a, inputs), weight.b)
        return product(x, weight.base, inputs) + jnp.asarray(weight.scale, x.dtype) * beside
    last_first = (tuple(range(-1, -inputs - 1, -1)), tuple(range(inputs - 1, -1, -1)))
    result: jax.Array = jnp.tensordot(x, weight.astype(x.dtype), last_first)
    return result


def dense(weights: Weights, x: jax.Array) -> jax.Array:
    """Returns `x` through a layer with kernel [D,E] and bias [E], in the numbers of `x`.

    Args:
        x: [..., D].
    """
    result: jax.Array = product(x, weights["kernel"]) + weights["bias"].astype(x.dtype)
    return result


def layer_norm(weights: Weights, x: jax.Array) -> jax.Array:
    """Returns `x` with mean zero and deviation one over its last axis, scaled and shifted; computed in float32.

    Args:
        x: [..., D].
    """
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    normed = centred * jax.lax.rsqrt((centred**2).mean(axis=-1, keepdims=True) + LAYER_NORM_EPSILON)
    result: jax.Array = (normed * weights["scale"] + weights["bias"]).astype(x.dtype)
    return result
