"""Takes a tree of JAX arrays apart into blocks, and puts one together again on any sharding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import jax
import numpy as np

from mainspring.domain.errors import InvalidInput
from mainspring.session.blocks import Block, Restored
from mainspring.session.session import Session

Tree = TypeVar("Tree")


def blocks_of(tree: object, session: Session) -> tuple[Block, ...]:
    """Returns this rank's blocks of every array in a tree, without copying where the arrays lie in host memory.

    Replicas are all included, and exactly one rank's copy of each is marked `once`: the rank with the fewest bytes so
    far. Every rank computes the same answer, because it rests only on what all ranks know of the shardings. An array
    that lives on one process's devices alone, and anything that is not a JAX array, counts as replicated on all ranks.

    Args:
        tree: Arrays in any nesting of containers; numbers are taken as arrays.
        session: The rank's session.

    Raises:
        InvalidInput: An array does not hold plain numbers (typed random keys: save `jax.random.key_data`).
    """
    bytes_by_rank = [0] * session.world_size
    blocks: list[Block] = []
    for key, leaf in jax.tree_util.tree_leaves_with_path(tree):
        path = _path(key)
        for start, holders, data, size_bytes in _parts(path, leaf, session):
            saver = min(holders, key=lambda rank: (bytes_by_rank[rank], rank))
            bytes_by_rank[saver] += size_bytes
            if data is not None:
                blocks.append(
                    Block(
                        path=path,
                        data=np.asarray(data),
                        global_shape=np.shape(leaf),
                        start=start,
                        once=saver == session.rank,
                    )
                )
    return tuple(blocks)


def tree_from(restored: Restored, like: Tree) -> Tree:
    """Returns a tree of `like`'s structure, types and shardings, filled with restored state.

    Args:
        restored: What `Session.restore` gave.
        like: Arrays, `jax.ShapeDtypeStruct`s (with a sharding, or for the default device) or numbers.

    Raises:
        InvalidInput: An array was saved with another shape or dtype.
        NotFound: An array was not saved.
        DamagedData: The saved blocks do not cover an array.
    """

    def leaf_from(key: Any, leaf: Any) -> Any:
        path = _path(key)
        if isinstance(leaf, (bool, int, float)):
            return type(leaf)(restored.array(path).item())
        saved = next(((block.global_shape, block.data.dtype) for block in restored.blocks if block.path == path), None)
        if saved is not None and saved != (leaf.shape, leaf.dtype):
            raise InvalidInput(
                "restore an array", on=path, got=f"{saved[1]} {saved[0]}", wanted=f"{leaf.dtype} {leaf.shape}"
            )
        if isinstance(leaf, np.ndarray):
            return restored.array(path)
        sharding = leaf.sharding
        if sharding is None:
            return jax.numpy.asarray(restored.array(path))

        def region(index: tuple[slice, ...] | None) -> np.ndarray[Any, Any]:
            assert index is not None  # JAX passes None for tokens only.
            bounds = [part.indices(size) for part, size in zip(index, leaf.shape, strict=True)]
            return restored.array(path, [low for low, _, _ in bounds], [high - low for low, high, _ in bounds])

        return jax.make_array_from_callback(leaf.shape, sharding, region)

    filled: Tree = jax.tree_util.tree_map_with_path(leaf_from, like)
    return filled


def _path(key: Any) -> str:
    return jax.tree_util.keystr(key, simple=True, separator="/")


def _parts(path: str, leaf: Any, session: Session) -> list[tuple[tuple[int, ...], list[int], Any, int]]:
    """Returns (start, ranks that hold it, the data where this rank does, bytes) of each part, in one order for all."""
    everywhere = list(range(session.world_size))
    if not isinstance(leaf, jax.Array):
        data = np.asarray(leaf)
        return [((0,) * data.ndim, everywhere, data, data.nbytes)]
    if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.extended):
        raise InvalidInput("save an array", on=path, got=str(leaf.dtype), wanted="plain numbers: jax.random.key_data")
    devices: Any = leaf.sharding.device_set
    if len({device.process_index for device in devices}) == 1:
        if leaf.is_fully_replicated:
            data = leaf.addressable_shards[0].data
            return [((0,) * leaf.ndim, everywhere, data, leaf.nbytes)]
        holders_of: Mapping[tuple[int, ...], list[int]] = dict.fromkeys(_starts(leaf), everywhere)
    else:
        holders_of = _starts(leaf)
    local: dict[tuple[int, ...], Any] = {}
    for shard in leaf.addressable_shards:
        local.setdefault(_start(shard.index), shard.data)
    item_bytes = leaf.dtype.itemsize * int(np.prod(leaf.sharding.shard_shape(leaf.shape)))
    return [(start, holders_of[start], local.get(start), item_bytes) for start in sorted(holders_of)]


def _starts(leaf: jax.Array) -> Mapping[tuple[int, ...], list[int]]:
    holders: dict[tuple[int, ...], set[int]] = {}
    places: Mapping[Any, Any] = leaf.sharding.devices_indices_map(leaf.shape)
    for device, index in places.items():
        holders.setdefault(_start(index), set()).add(device.process_index)
    return {start: sorted(ranks) for start, ranks in holders.items()}


def _start(index: Any) -> tuple[int, ...]:
    return tuple(part.start or 0 for part in index)
