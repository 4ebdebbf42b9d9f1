"""What one step does on each device: operations, bytes over the axes of a mesh, bytes between it and its memory.

Source: Kaplan et al., "Scaling Laws for Neural Language Models", 2020, section 2.1 (operations); Korthikanti et al.,
2022 (recomputation); Thakur, Rabenseifner and Gropp, 2005 (a ring sends (n - 1) / n of an array, twice to add).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mainspring.train.models.shapes import DATA, REPLICA, SEQUENCE, TENSOR, Remat
from mainspring.train.plan.formulas.anatomy import Stack
from mainspring.train.plan.formulas.sharing import FLOAT32, ArrayShare, DeviceShare

CHANNELS = 3
LAST = ("/down", "/narrow/kernel")  # What a block ends with is not needed to differentiate it.
SCRATCH = 0.15  # Times a core's own memory: of a block's arrays that are as large, half are read and written there.
WEIGHTS = 24  # How often a block's weights and their gradients are read or written, gathered and cast among them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """How often arrays of a block's tokens are read or written in a step, by a number of each kind.

    Many times what a formula would have: norms, softmax and activations pass memory in pieces, in float32 too.
    Source: what the compiler of libtpu 0.0.52 made of four blocks of `vla_small`, in bfloat16.

    Args:
        features: Of the width, and of the heads.
        hidden: Of each array of hidden features.
    """

    scores: float
    features: float
    hidden: float


TOUCHED = {
    Remat.NONE: Touched(scores=42, features=80, hidden=22),
    Remat.DOTS: Touched(scores=31, features=54, hidden=11),
    Remat.FULL: Touched(scores=32, features=67, hidden=0),
}


def _outside(share: DeviceShare, *, learned_alone: bool = False) -> float:
    arrays, uses = share.of_none(), share.anatomy.uses
    used = (array for array in arrays if array.path in uses and (array.learned or not learned_alone))
    return sum(2.0 * uses[array.path] * math.prod(array.shape) for array in used)


def _weighted(share: DeviceShare, stack: Stack, *, but: tuple[str, ...] = (), learned_alone: bool = False) -> float:
    """Returns the operations of one sample's products with a stack's weights; a product and its sum are two."""
    total = 0.0
    for array in share.of_stack(stack):
        path, shape = array.path, array.shape
        if path.endswith(("bias", "scale", *but)) or (learned_alone and not array.learned):
            continue
        where = next(number for number, each in enumerate(stack.where) if path.startswith(each))
        stream, seen = stack.streams[where], "/cross/key" in path or "/cross/value" in path
        tokens = 1 if "norm/kernel" in path else (stack.streams[-1].tokens if seen else stream.tokens)
        total += 2.0 * tokens * stack.copies * math.prod(shape)
    return total


def _attended(stack: Stack) -> float:
    return 4.0 * stack.layers * stack.copies * stack.asked * stack.seen * stack.heads * stack.head_dim


def model_flops(share: DeviceShare) -> float:
    """Returns the operations of a step over all devices that learning needs: forward and backward, nothing twice.

    The backward pass does two products for each, by its inputs and by its weights, the second where these are learned.
    """
    stacks = share.anatomy.stacks
    learned = _outside(share, learned_alone=True) + sum(_weighted(share, each, learned_alone=True) for each in stacks)
    weighted = _outside(share) + sum(_weighted(share, each) for each in stacks)
    return share.recipe.batch_size * (2 * weighted + learned + 3 * sum(map(_attended, stacks)))


def flops_of(share: DeviceShare) -> float:
    """Returns the operations that each device does in a step, those done again among them."""
    anatomy = share.anatomy
    again = sum(2.0 * anatomy.uses[path] * math.prod(anatomy.weights[path]) for path in anatomy.told)  # Always.
    for stack in anatomy.stacks:
        match anatomy.compute.remat:
            case Remat.FULL:
                again += _weighted(share, stack, but=LAST) + _attended(stack)
            case Remat.DOTS:
                again += _attended(stack)
            case Remat.NONE:
                pass
    return (model_flops(share) + share.recipe.batch_size * again) / share.devices + _scaled(share)


def _scaled(share: DeviceShare) -> float:
    """Returns the operations of bringing a device's images to size, which `tensor` and `sequence` do not share."""
    pixels = share.anatomy.pixels
    if pixels is None or not pixels.scaled:
        return 0.0
    size, height, width = pixels.size, pixels.height, pixels.width
    image = CHANNELS * size * width * (height + size)  # Rows first, then columns.
    return 2.0 * share.rows * (pixels.views * image + size * (height**2 + width**2))


def bytes_by_axis(share: DeviceShare) -> dict[str, float]:
    """Returns the bytes that each device sends over each axis of the mesh; axes without traffic are absent."""
    found = dict.fromkeys((REPLICA, DATA, SEQUENCE, TENSOR), 0.0)
    parts, sizes = share.recipe.accumulate, share.sizes
    ring = {axis: (size - 1) / size for axis, size in sizes.items()}
    for array in share.arrays:
        # A block's weights are cast before they travel, and so are their gradients: but for one message of all.
        size = share.itemsize if share.is_stacked(array) and not share.whole else FLOAT32
        if DATA in array.over:
            found[DATA] += parts * ring[DATA] * _shared_bytes(share, array, size)
        if not array.learned:
            continue
        # What a device has of a gradient is summed axis by axis, the innermost first, so that outer ones have less to
        # send; of each part of a batch, but for one message of all.
        left = 2.0 * array.count * size * (1 if share.whole else parts) * (2 if array.path in share.anatomy.told else 1)
        for axis in (SEQUENCE, DATA, REPLICA):
            if axis not in array.over:
                found[axis] += ring[axis] * left
                left /= sizes[axis]
    full = share.anatomy.compute.remat is Remat.FULL
    gathers = 1 if share.anatomy.compute.remat is Remat.NONE else 2
    for stack in share.anatomy.stacks:
        for stream in stack.streams:
            tokens = share.tokens(stack, stream) * stack.layers * parts
            # Attention and MLP each end in a sum, forwards and backwards; attention's is done again.
            found[TENSOR] += 2 * ring[TENSOR] * tokens * stream.width * share.itemsize * (5 if full else 4)
            seen = tokens * sizes[SEQUENCE] * share.features(stack.kv_heads) * stack.head_dim
            found[SEQUENCE] += ring[SEQUENCE] * seen * _key_and_value_bytes(share, stack, gathers)
    return {axis: count for axis, count in found.items() if count}


def _key_and_value_bytes(share: DeviceShare, stack: Stack, gathers: int) -> int:
    """Returns the bytes that one feature of a key, and of its value, and their gradients, send along `sequence`.

    Gradients are scattered, but of several streams summed, and then cut. Keys that are turned by their place are
    gathered before they are cast, and the gradients of keys are summed before.
    """
    several, cast = len(stack.streams) > 1, share.itemsize != FLOAT32
    key = FLOAT32 if stack.turned else share.itemsize
    summed = 2 if several else 1
    return gathers * (key + share.itemsize) + FLOAT32 * (2 if cast else summed) + share.itemsize * summed


def _shared_bytes(share: DeviceShare, array: ArrayShare, size: int) -> float:
    """Returns what of an array that `data` splits its devices gather and scatter in one pass over a part of a batch."""
    rows = share.anatomy.looked_up.get(array.path)
    if rows is None:  # Gathered for each pass, and its gradient scattered.
        return array.count * share.sizes[DATA] * size * (3 if array.learned else 2)
    # Of a table the rows of all are looked up where they lie, and their gradients go there.
    numbers = rows * share.rows_at_once * share.sizes[DATA] * array.shape[-1] / share.sizes[SEQUENCE]
    words = numbers * FLOAT32 / share.sizes[TENSOR] * (2 if array.learned else 1)
    # All tokens come to each share of the words that are told, for both passes, and their gradients go back.
    return words + (numbers * (2 * share.itemsize + FLOAT32) if array.path in share.anatomy.told else 0)


def half_way_bytes(share: DeviceShare) -> float:
    """Returns the bytes of a view whose rows are brought to size and whose columns are not yet."""
    pixels = share.anatomy.pixels
    assert pixels is not None
    return share.token_bytes(CHANNELS * pixels.size, pixels.width, FLOAT32)


def memory_traffic(share: DeviceShare) -> float:
    """Returns the bytes that each device reads of its memory and writes there in a step."""
    parts, total, touched = share.recipe.accumulate, 0.0, TOUCHED[share.anatomy.compute.remat]
    for array in share.arrays:
        data = share.sizes[DATA] if DATA in array.over else 1
        if share.is_stacked(array):
            total += WEIGHTS * parts * array.count * data * share.itemsize
        if array.learned:  # Weight and two moments are read and written, the gradient too.
            total += 8 * FLOAT32 * array.count
    for stack in share.anatomy.stacks:
        scores = share.rows_at_once * stack.copies * share.features(stack.heads) * stack.asked * stack.seen
        once = scores / share.sizes[SEQUENCE]
        numbers = touched.scores * once
        for stream in stack.streams:
            tokens, features = share.tokens(stack, stream), stream.width + share.features(stack.heads) * stack.head_dim
            hidden = stream.hidden * share.features(stream.mlp) if stream.mlp else 0
            once += tokens * (features + hidden)
            numbers += tokens * (touched.features * features + touched.hidden * hidden)
        far = once / (once + SCRATCH * share.chip.scratch / share.itemsize)
        total += far * parts * stack.layers * numbers * share.itemsize
    return total + _image_traffic(share)


def _image_traffic(share: DeviceShare) -> float:
    """Returns what images that are moved and tinted take: as bytes, and as they are half-way to their size."""
    pixels = share.anatomy.pixels
    if pixels is None:
        return 0.0
    if not pixels.scaled:
        return 2 * (share.image_bytes(1) + share.image_bytes(FLOAT32))
    return 4 * share.image_bytes(1) + 2 * share.rows * pixels.views * half_way_bytes(share)
