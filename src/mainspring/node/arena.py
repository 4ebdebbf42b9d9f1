"""Keeps one rank's snapshots in shared memory that outlives the rank and dies with the agent.

The memory is a file without a name, reached by ranks through this process's descriptor, so that no crash of anybody
leaves it behind. Three slots: one being written, the newest whole snapshot, the one before.
"""

from __future__ import annotations

import asyncio
import mmap
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from mainspring.checkpoint import crc32c_of
from mainspring.domain.wire import Detail, Shard, SnapshotCommit, SnapshotSlot

SLOTS = 3
SLOT_ROUND_BYTES = 2 << 20  # A huge page.
MEMORY_SHARE = 0.5  # Of what the kernel calls available; the program needs the rest.
GROWTHS_MAX = 16  # A state that keeps growing is a leak in the program; slots it outgrew are not used again.


@dataclass(slots=True)
class _Slot:
    offset: int
    size_bytes: int
    step: int = -1
    pins: int = 0
    shards: tuple[Shard, ...] = ()
    state: Detail = field(default_factory=dict)
    sealed: bool = False


@final
class Held:
    """A whole snapshot nobody may overwrite until it is released. Its methods are slow: for a worker thread.

    Args:
        slot: The slot.
        data: Its bytes.
    """

    def __init__(self, slot: _Slot, data: NDArray[np.uint8]) -> None:
        self._slot = slot
        self._step = slot.step
        self._data = data

    @property
    def state(self) -> Detail:
        """Returns the program's facts."""
        return self._slot.state

    @property
    def current(self) -> bool:
        """Returns whether the attempt still counts on it: it was neither given up nor replaced since it was held."""
        return self._slot.step == self._step

    def sealed(self) -> tuple[Shard, ...]:
        """Returns the shards with their checksums, computed the first time."""
        if not self._slot.sealed:
            self._slot.shards = tuple(
                replace(shard, crc32c=crc32c_of(_part(self._data, shard))) for shard in self._slot.shards
            )
            self._slot.sealed = True
        return self._slot.shards

    def intact(self) -> bool:
        """Returns whether the bytes still match checksums computed earlier."""
        return all(crc32c_of(_part(self._data, shard)) == shard.crc32c for shard in self.sealed())

    def once_bytes(self) -> NDArray[np.uint8]:
        """Returns the bytes to make durable: ranks lay out what is saved once at the front of the slot."""
        end = max((shard.offset + shard.size_bytes for shard in self._slot.shards if shard.once), default=0)
        return self._data[:end]

    def release(self) -> None:
        """Lets the slot be overwritten. Called once, on the arena's own thread."""
        self._slot.pins -= 1


@final
class Arena:
    """One rank's slots. For one thread; what `hold` returns may be read in another.

    Args:
        folder: Where the file lies when memory has no room for it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = os.memfd_create("mainspring-arena")
        self._slots: list[_Slot] = []
        self._size_bytes = 0
        self._growths = 0
        self._newest = -1

    @property
    def path(self) -> str:
        """Returns the path under which ranks open the arena."""
        return f"/proc/{os.getpid()}/fd/{self._file}"

    @property
    def steps(self) -> tuple[int, ...]:
        """Returns the steps it holds, oldest first."""
        return tuple(sorted(slot.step for slot in self._slots if slot.step >= 0))

    async def begin(self, size_bytes: int) -> SnapshotSlot:
        """Returns a slot to write into; what it held is given up. Takes long while memory is reserved the first times.

        Args:
            size_bytes: Room the snapshot needs.
        """
        free = [slot for slot in self._slots if slot.pins == 0 and (slot.step < 0 or slot.step != self._newest)]
        slot = min(free, key=lambda slot: slot.step, default=None)
        if slot is not None and (slot.step < 0 or len(self._slots) == SLOTS):
            if slot.size_bytes >= size_bytes:
                slot.step, slot.shards, slot.state, slot.sealed = -1, (), {}, False
                return SnapshotSlot(offset=slot.offset)
            self._slots.remove(slot)
        elif len(self._slots) == SLOTS:
            return SnapshotSlot(offset=-1, reason="every slot is being stored or restored")
        return await self._grow(size_bytes)

    def commit(self, snapshot: SnapshotCommit) -> bool:
        """Keeps what was written; returns whether the slot is ours and its shards lie inside it.

        Args:
            snapshot: What the rank says it wrote.
        """
        slot = next((slot for slot in self._slots if slot.offset == snapshot.offset and slot.step < 0), None)
        if slot is None or snapshot.step < 0:
            return False
        for shard in snapshot.shards:
            if shard.size_bytes < 0 or not 0 <= shard.offset <= slot.size_bytes - shard.size_bytes:
                return False
        for other in self._slots:
            if other.step == snapshot.step:
                other.step = -1  # The same step saved again: the newer copy counts.
        slot.step, slot.shards, slot.state = snapshot.step, snapshot.shards, snapshot.state
        self._newest = snapshot.step
        return True

    def discard_after(self, step: int) -> None:
        """Gives up snapshots newer than `step`: the attempt goes on from there.

        Args:
            step: The newest to keep.
        """
        for slot in self._slots:
            if slot.step > step:
                slot.step = -1
        self._newest = max(self.steps, default=-1)

    def hold(self, step: int) -> Held | None:
        """Returns a step, kept from being overwritten until released; None when it is not there.

        Args:
            step: The step.
        """
        slot = next((slot for slot in self._slots if slot.step == step and step >= 0), None)
        if slot is None:
            return None
        slot.pins += 1
        whole = mmap.mmap(self._file, self._size_bytes, access=mmap.ACCESS_READ)
        data = np.frombuffer(whole, dtype=np.uint8)[slot.offset : slot.offset + slot.size_bytes]
        return Held(slot, data)

    def shards_in_file(self, step: int) -> tuple[Shard, ...]:
        """Returns a step's shards with offsets from the start of the arena's file.

        Args:
            step: A step it holds.
        """
        slot = next(slot for slot in self._slots if slot.step == step)
        return tuple(replace(shard, file=self.path, offset=slot.offset + shard.offset) for shard in slot.shards)

    async def _grow(self, size_bytes: int) -> SnapshotSlot:
        if self._growths >= GROWTHS_MAX:
            return SnapshotSlot(offset=-1, reason=f"the arena has grown {GROWTHS_MAX} times already")
        rounded = -(-size_bytes // SLOT_ROUND_BYTES) * SLOT_ROUND_BYTES
        if self._size_bytes == 0 and SLOTS * rounded > MEMORY_SHARE * _memory_available_bytes():
            on_disk = os.open(self._folder, os.O_TMPFILE | os.O_RDWR, 0o600)
            os.dup2(on_disk, self._file)  # Ranks know the arena by this descriptor's number.
            os.close(on_disk)
        try:
            await asyncio.to_thread(os.posix_fallocate, self._file, self._size_bytes, rounded)
        except OSError as error:
            return SnapshotSlot(offset=-1, reason=f"no room for {rounded} bytes: {error.strerror}")
        self._growths += 1
        slot = _Slot(offset=self._size_bytes, size_bytes=rounded)
        self._slots.append(slot)
        self._size_bytes += rounded
        return SnapshotSlot(offset=slot.offset)


def _part(data: NDArray[np.uint8], shard: Shard) -> NDArray[np.uint8]:
    return data[shard.offset : shard.offset + shard.size_bytes]


def _memory_available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0
