"""How a snapshot lies in the arena: each block at a 64-byte aligned offset, put there by plain memory copy."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mainspring.domain.errors import Unavailable
from mainspring.domain.wire import Shard
from mainspring.session.blocks import Block

ALIGNMENT_BYTES = 64  # A cache line, and what XLA wants of a buffer it may use without a copy.


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where each block goes.

    Args:
        shards: A shard a block, in the blocks' order.
        size_bytes: Room the whole needs.
    """

    shards: tuple[Shard, ...]
    size_bytes: int


def lay_out(blocks: Sequence[Block]) -> Layout:
    """Returns where each block goes: those marked `once` first, so that one contiguous range holds what must last.

    Args:
        blocks: What is to be laid out.
    """
    offsets: dict[int, int] = {}
    end = 0
    for index in sorted(range(len(blocks)), key=lambda index: not blocks[index].once):
        offsets[index] = end
        end += -(-blocks[index].data.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    shards = tuple(
        Shard(
            path=block.path,
            dtype=block.data.dtype.name,
            global_shape=block.global_shape,
            start=block.start,
            shape=block.data.shape,
            offset=offsets[index],
            size_bytes=block.data.nbytes,
            once=block.once,
        )
        for index, block in enumerate(blocks)
    )
    return Layout(shards=shards, size_bytes=max(end, ALIGNMENT_BYTES))


class ArenaMap:
    """A rank's mapping of its arena, widened when the agent has made the arena larger.

    Args:
        path: The arena's path, from the agent's welcome.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._map: mmap.mmap | None = None

    def write(self, blocks: Sequence[Block], layout: Layout, offset: int) -> None:
        """Copies the blocks into the slot at `offset`.

        Args:
            blocks: What to copy.
            layout: Where each goes inside the slot.
            offset: The slot's place in the arena.

        Raises:
            Unavailable: The arena cannot be mapped.
        """
        end = offset + layout.size_bytes
        if self._map is None or len(self._map) < end:
            try:
                with open(self._path, "r+b") as file:
                    self._map = mmap.mmap(file.fileno(), 0)
            except (OSError, ValueError) as error:
                raise Unavailable("map the arena", on=self._path, got=str(error)) from error
        for block, shard in zip(blocks, layout.shards, strict=True):
            target: NDArray[np.generic] = np.ndarray(
                shard.shape, dtype=block.data.dtype, buffer=self._map, offset=offset + shard.offset
            )
            np.copyto(target, block.data)


def map_bytes(path: str) -> NDArray[np.uint8]:
    """Returns a file's bytes as a read-only mapped array.

    Args:
        path: An absolute path from a restore plan.

    Raises:
        Unavailable: The file cannot be mapped.
    """
    try:
        if Path(path).stat().st_size == 0:
            return np.empty(0, dtype=np.uint8)
        with open(path, "rb") as file:
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8)
    except (OSError, ValueError) as error:
        raise Unavailable("map saved state", on=path, got=str(error)) from error
