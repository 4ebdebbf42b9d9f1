"""What one step does on each device: operations, bytes over the axes of a mesh, bytes between it and its memory.

Source: Kaplan et al., "Scaling Laws for Neural Language Models", 2020, section 2.1 (operations); Korthikanti et al.,
2022 (recomputation); Thakur, Rabenseifner and Gropp, 2005 (a ring sends (n - 1) / n of an array, twice to add).
"""

from __future__ import annotations

import math

from mainspring.train.models.shapes import DATA, REPLICA, SEQUENCE, TENSOR, Remat
from mainspring.train.plan.formulas.anatomy import Anatomy, Stack
from mainspring.train.plan.formulas.sharing import FLOAT32, DeviceShare

BACKWARD = 2  # Of a product the backward pass does two: by its inputs and by its weights.
# How often a block's arrays are written and read: as they are made, made again, and differentiated.
TOUCHED = {Remat.NONE: 2, Remat.DOTS: 3, Remat.FULL: 3}


def forward_flops(anatomy: Anatomy) -> float:
    """Returns the operations of one sample's forward pass; a product and its sum are two."""
    return _outside(anatomy) + sum(_weighted(anatomy, stack) + _attended(stack) for stack in anatomy.stacks)


def _outside(anatomy: Anatomy) -> float:
    return sum(2.0 * tokens * math.prod(anatomy.weights[path]) for path, tokens in anatomy.uses.items())


def _weighted(anatomy: Anatomy, stack: Stack) -> float:
    total = 0.0
    for path, shape in anatomy.weights.items():
        if not path.startswith(stack.where) or path.endswith(("bias", "scale")):
            continue
        where = next(number for number, each in enumerate(stack.where) if path.startswith(each))
        stream, seen = stack.streams[where], "/cross/key" in path or "/cross/value" in path
        tokens = 1 if "norm/kernel" in path else (stack.streams[-1].tokens if seen else stream.tokens)
        total += 2.0 * tokens * stack.copies * math.prod(shape)
    return total


def _attended(stack: Stack) -> float:
    return 4.0 * stack.layers * stack.copies * stack.asked * stack.seen * stack.heads * stack.head_dim


def model_flops(share: DeviceShare) -> float:
    """Returns the operations of a step over all devices that learning needs: forward and backward, nothing twice."""
    return share.recipe.batch_size * forward_flops(share.anatomy) * (1 + BACKWARD)


def flops_of(share: DeviceShare) -> float:
    """Returns the operations that each device does in a step, those done again among them."""
    anatomy, again = share.anatomy, 0.0
    for stack in anatomy.stacks:
        match anatomy.compute.remat:
            case Remat.FULL:
                again += _weighted(anatomy, stack) + _attended(stack)
            case Remat.DOTS:
                again += _attended(stack)
            case Remat.NONE:
                pass
    return (model_flops(share) + share.recipe.batch_size * again) / share.devices


def bytes_by_axis(share: DeviceShare) -> dict[str, float]:
    """Returns the bytes that each device sends over each axis of the mesh; axes without traffic are absent."""
    found = dict.fromkeys((REPLICA, DATA, SEQUENCE, TENSOR), 0.0)
    parts, sizes = share.recipe.accumulate, share.sizes
    ring = {axis: (size - 1) / size for axis, size in sizes.items()}
    for array in share.arrays:
        data = sizes[DATA] if DATA in array.over else 1
        if data > 1:  # Gathered for each pass, and its gradient scattered.
            found[DATA] += parts * ring[DATA] * array.count * data * 2 * share.itemsize
        if not array.learned:
            continue
        found[DATA] += ring[DATA] * array.count * data * FLOAT32 * (parts if data > 1 else 2)
        found[REPLICA] += 2 * ring[REPLICA] * array.count * FLOAT32
        found[SEQUENCE] += 2 * ring[SEQUENCE] * array.count * FLOAT32 * parts
    full = share.anatomy.compute.remat is Remat.FULL
    passes = 2 if share.anatomy.compute.remat is Remat.NONE else 3
    for stack in share.anatomy.stacks:
        for stream in stack.streams:
            tokens = share.tokens(stack, stream) * stack.layers * parts * share.itemsize
            # Attention and MLP each end in a sum, forwards and backwards; attention's is done again.
            found[TENSOR] += 2 * ring[TENSOR] * tokens * stream.width * (5 if full else 4)
            seen = tokens * sizes[SEQUENCE] * 2 * share.features(stack.kv_heads) * stack.head_dim
            found[SEQUENCE] += ring[SEQUENCE] * seen * passes
    return {axis: count for axis, count in found.items() if count}


def memory_traffic(share: DeviceShare) -> float:
    """Returns the bytes that each device reads of its memory and writes there in a step."""
    parts, total, touched = share.recipe.accumulate, 0.0, TOUCHED[share.anatomy.compute.remat]
    for array in share.arrays:
        data = share.sizes[DATA] if DATA in array.over else 1
        total += touched * parts * array.count * data * share.itemsize
        if array.learned:  # Weight and two moments are read and written, the gradient too.
            total += 8 * FLOAT32 * array.count
    for stack in share.anatomy.stacks:
        scores = share.rows_at_once * stack.copies * share.features(stack.heads) * stack.asked * stack.seen
        arrays = scores * (FLOAT32 + share.itemsize) / share.sizes[SEQUENCE]
        for stream in stack.streams:
            features = 4 * stream.width + 4 * share.features(stack.heads) * stack.head_dim
            features += 2 * stream.hidden * share.features(stream.mlp) if stream.mlp else 0
            arrays += share.tokens(stack, stream) * features * share.itemsize
        total += 2 * touched * parts * stack.layers * arrays
    return total + 2 * share.image_bytes(FLOAT32)
