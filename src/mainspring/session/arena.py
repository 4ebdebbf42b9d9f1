"""Snapshots in the arena: each block at a 64-byte aligned offset, put there by plain memory copy.

What devices hold is copied there by a thread, while the program goes on.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from numpy.typing import NDArray

from mainspring.domain.errors import Unavailable
from mainspring.domain.wire import Shard
from mainspring.session.blocks import ALIGNMENT_BYTES, Block, OnDevice
from mainspring.session.copying import copy_brought, touch

PAGE_BYTES = 4_096  # What direct reads of a stored snapshot want, to need no copy.
PAGED_BYTES_MIN = 512 << 10  # Blocks this large begin on a page: it costs less than a hundredth of them.
Opened = Callable[[str, int], int]  # The path and flags of `os.open` to a descriptor.
SLOTS_MAPPED_MAX = 3  # The arena has no more slots in use; one it outgrew is unmapped when a fourth shows up.


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where each block goes.

    Args:
        shards: A shard a block, in the blocks' order.
    """

    shards: tuple[Shard, ...]
    size_bytes: int


def lay_out(blocks: Sequence[Block]) -> Layout:
    """Returns where each block goes.

    Those marked `once` come first, so that one contiguous range holds what must last; of these, those no other node
    holds come first, so that one contiguous range holds what a peer must copy.
    """
    offsets: dict[int, int] = {}
    end = 0
    for index in sorted(range(len(blocks)), key=lambda index: (not blocks[index].once, blocks[index].elsewhere)):
        size_bytes = blocks[index].data.nbytes
        aligned = PAGE_BYTES if size_bytes >= PAGED_BYTES_MIN else ALIGNMENT_BYTES
        offsets[index] = -(-end // aligned) * aligned
        end = offsets[index] + -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
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
            elsewhere=block.elsewhere,
            part=block.part,
        )
        for index, block in enumerate(blocks)
    )
    return Layout(shards=shards, size_bytes=max(end, ALIGNMENT_BYTES))


@final
class ArenaMap:
    """A rank's mapping of its arena, slot by slot. Pages are touched as a slot is mapped, so that copies run at once.

    Args:
        path: The arena's path, from the agent's welcome.
        opened: Opens a path, as `os.open` does.
    """

    def __init__(self, path: str, opened: Opened = os.open) -> None:
        self._path = path
        self._opened = opened
        self._slots: dict[int, mmap.mmap] = {}  # By offset, the one used longest ago first.

    def write(self, blocks: Sequence[Block], layout: Layout, offset: int) -> None:
        """Copies the blocks into the slot at `offset`.

        Args:
            blocks: What to copy.
            layout: Where each goes inside the slot.
            offset: The slot's place in the arena.

        Raises:
            Unavailable: The arena cannot be mapped.
        """
        slot = self._slots.pop(offset, None)
        inside = offset % mmap.ALLOCATIONGRANULARITY
        if slot is None or len(slot) < inside + layout.size_bytes:
            slot = self._map(offset - inside, inside + layout.size_bytes)
        self._slots[offset] = slot
        while len(self._slots) > SLOTS_MAPPED_MAX:
            del self._slots[next(iter(self._slots))]
        copy_brought(
            [
                (
                    np.ndarray(shard.shape, dtype=block.data.dtype, buffer=slot, offset=inside + shard.offset),
                    block.data,
                )
                for block, shard in zip(blocks, layout.shards, strict=True)
            ]
        )

    def _map(self, offset: int, size_bytes: int) -> mmap.mmap:
        try:
            with open(self._opened(self._path, os.O_RDWR), "r+b") as file:
                slot = mmap.mmap(file.fileno(), size_bytes, offset=offset)
        except (OSError, ValueError) as error:
            raise Unavailable("map the arena", on=self._path, got=str(error)) from error
        touch(np.frombuffer(slot, dtype=np.uint8))  # MAP_POPULATE does it in one thread, and holds up all others.
        return slot


@final
class SnapshotWriter:
    """Writes snapshots one at a time: at once, or in a thread where devices hold them."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "mainspring-snapshot")  # Starts none before there is something to do.
        self._under_way: Future[bool] | None = None

    def write(self, blocks: Sequence[Block], put: Callable[[Sequence[Block]], bool]) -> bool:
        """Has blocks put where they belong; returns what `put` does, True where a thread does it.

        Args:
            blocks: Those of host memory may change once this has returned.
            put: Copies blocks, and tells the agent.

        Raises:
            Unavailable: The agent does not answer; of a thread's work, at the next call.
        """
        self.wait()
        if not any(isinstance(block.data, OnDevice) for block in blocks):
            return put(blocks)
        still = [
            block if isinstance(block.data, OnDevice) else replace(block, data=block.data.copy()) for block in blocks
        ]
        self._under_way = self._thread.submit(put, still)
        return True

    def wait(self) -> None:
        """Waits for the snapshot under way.

        Raises:
            Unavailable: The agent does not answer.
        """
        if self._under_way is not None:
            under_way, self._under_way = self._under_way, None
            under_way.result()


def map_bytes(path: str, opened: Opened = os.open) -> NDArray[np.uint8]:
    """Returns a file's bytes as a read-only mapped array.

    Args:
        path: An absolute path from a restore plan.
        opened: Opens a path, as `os.open` does.

    Raises:
        Unavailable: The file cannot be mapped.
    """
    try:
        with open(opened(path, os.O_RDONLY), "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return np.empty(0, dtype=np.uint8)
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8)
    except (OSError, ValueError) as error:
        raise Unavailable("map saved state", on=path, got=str(error)) from error
