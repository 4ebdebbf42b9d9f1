"""Shared-memory arena: one rank's snapshots, in memory that outlives the rank and dies with the agent.

The memory is a file without a name, reached by ranks through this process's descriptor, so that no crash of anybody
leaves it behind. Three slots: one being written, the newest whole snapshot, the one before. The first snapshot tells
how large they are; the other two are made ready while training goes on, so that no later snapshot waits for memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from mainspring.checkpoint import Sealed, intact, seal
from mainspring.domain.wire import Detail, Holding, Shard, SnapshotCommit, SnapshotSlot

SLOTS = 3
SLOT_ROUND_BYTES = 2 << 20  # A huge page.
SLOT_WAIT_S = 5.0  # Checksums of 60 GB, or a peer that is given up; longer is what skipping a snapshot is for.
MEMORY_SHARE = 0.5  # Of what the kernel calls available; the program needs the rest.
TOUCH_BYTES = 16 << 20  # 15 ms of work at most; after each part it is asked whether the slot is still wanted.
TOUCH_NICENESS = 10  # A tenth of a core where training wants all of it; idle cores give more.
GROWTHS_MAX = 64  # Resharding settles after a few sizes; a state that keeps growing is a leak in the program.


def memory_file(name: str) -> int:
    """Returns a descriptor of an empty file in memory that vanishes with its last user.

    Args:
        name: For people who look into /proc.
    """
    return os.memfd_create(name)


def path_of(file: int) -> str:
    """Returns the path under which other processes of this user open one of this process's files."""
    return f"/proc/{os.getpid()}/fd/{file}"


def file_of(path: str) -> int | None:
    """Returns which of this process's files a path of `path_of` leads to: one without a name, as all snapshots are.

    Args:
        path: Any text; None is returned for whatever else this process has open, and for nothing.
    """
    number = path.rpartition("/")[2]
    if not (number.isdecimal() and number.isascii() and path == path_of(int(number))):
        return None
    try:
        found = os.fstat(int(number))
    except (OSError, OverflowError):
        return None
    return int(number) if stat.S_ISREG(found.st_mode) and found.st_nlink == 0 else None


@dataclass(slots=True, eq=False)
class Slot:
    """Room for one snapshot: a range of a file, mapped here.

    Args:
        offset: Where the range begins, a multiple of the page size.
        on_free: Called when the last who held it lets go.
    """

    file: int
    offset: int
    size_bytes: int
    on_free: Callable[[], None]
    holding: Holding | None = None
    shards: tuple[Shard, ...] = ()
    state: Detail = field(default_factory=dict)
    sequence: int = 0
    pins: int = 0
    wanted: bool = False
    wants_memory: bool = True
    touching: threading.Lock = field(default_factory=threading.Lock)
    room: mmap.mmap = field(init=False)
    data: NDArray[np.uint8] = field(init=False)
    sealing: threading.Lock = field(default_factory=threading.Lock)
    sealed: Sealed | None = None

    def __post_init__(self) -> None:
        """Maps the range."""
        self.room = mmap.mmap(self.file, self.size_bytes, offset=self.offset)
        self.data = np.frombuffer(self.room, dtype=np.uint8)

    def fill(self, holding: Holding, shards: tuple[Shard, ...], state: Detail, sequence: int) -> None:
        """Says what the bytes are, now that they are whole."""
        self.holding, self.shards, self.state, self.sequence = holding, shards, state, sequence

    def front(self, size_bytes: int) -> memoryview:
        """Returns the first bytes, to be written."""
        return memoryview(self.room)[:size_bytes]

    def clear(self) -> None:
        """Forgets what the bytes were."""
        self.holding, self.shards, self.state, self.sealed, self.wanted = None, (), {}, None, False

    def touch(self) -> None:
        """Has the system make the memory now; slow, for a thread of its own. It only reads: anybody may write."""
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), TOUCH_NICENESS)
        for start in range(0, self.size_bytes, TOUCH_BYTES):
            with self.touching:
                if not self.wants_memory:
                    return
                self.data[start : start + TOUCH_BYTES : mmap.PAGESIZE].max()  # Lets other threads run meanwhile.

    def free_memory(self) -> None:
        """Gives the memory back to the system, where its kind of file can; the file keeps its length."""
        with self.touching, contextlib.suppress(OSError):
            self.wants_memory = False
            self.room.madvise(mmap.MADV_REMOVE)


@final
class Held:
    """A whole snapshot nobody may overwrite until it is released."""

    def __init__(self, slot: Slot) -> None:
        assert slot.holding is not None
        self._slot = slot
        self._released = False
        self.holding = slot.holding
        self.shards = slot.shards
        self.state = slot.state
        slot.pins += 1

    @property
    def current(self) -> bool:
        """Returns whether the attempt still counts on it: it was neither given up nor replaced since it was held."""
        return self._slot.holding is self.holding

    @property
    def wanted(self) -> bool:
        """Returns whether training waits for its slot: whoever can do without should let go."""
        return self._slot.wanted

    @property
    def file(self) -> int:
        """Returns the descriptor of the file it lies in."""
        return self._slot.file

    @property
    def path(self) -> str:
        """Returns the path under which ranks open that file."""
        return path_of(self._slot.file)

    @property
    def offset(self) -> int:
        """Returns where its bytes begin in the file."""
        return self._slot.offset

    @property
    def data(self) -> NDArray[np.uint8]:
        """Returns its bytes, and what room is left after them."""
        return self._slot.data

    def part(self, shard: Shard) -> memoryview:
        """Returns one block's bytes."""
        return memoryview(self._slot.room)[shard.offset : shard.offset + shard.size_bytes]

    def sealed(self) -> Sealed:
        """Returns its checksums, computed the first time: slow, for a worker thread."""
        with self._slot.sealing:
            if self._slot.sealed is None:
                self._slot.sealed = seal(self.data, self.shards)
            return self._slot.sealed

    def intact(self) -> bool:
        """Returns whether the bytes still match checksums computed earlier: slow, for a worker thread."""
        return intact(self.data, self.sealed())

    def release(self) -> None:
        """Lets the slot be overwritten. On the event loop's thread; a second call does nothing."""
        if not self._released:
            self._released = True
            self._slot.pins -= 1
            if not self._slot.pins:
                self._slot.on_free()


@final
class Arena:
    """One rank's slots. For the event loop's thread; what `hold` returns may be read in another.

    Args:
        folder: Where the file lies when memory has no room for it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = memory_file("mainspring-arena")
        self._slots: list[Slot] = []
        self._size_bytes = 0
        self._growths = 0
        self._sequence = 0
        self._in_memory = True
        self._beginning = asyncio.Lock()
        self._ahead: asyncio.Task[None] | None = None
        self._freed = asyncio.Event()

    @property
    def path(self) -> str:
        """Returns the path under which ranks open the arena."""
        return path_of(self._file)

    @property
    def holdings(self) -> tuple[Holding, ...]:
        """Returns what it holds, oldest first."""
        return tuple(slot.holding for slot in self._whole() if slot.holding is not None)

    async def begin(self, size_bytes: int) -> SnapshotSlot:
        """Returns a slot to write into; what it held is given up. Takes long while memory is reserved the first times.

        Where every slot is held it waits up to `SLOT_WAIT_S`, and lets copies that are under way know.
        """
        async with self._beginning:
            slot = self._free()
            if slot is None and len(self._slots) == SLOTS:
                slot = await self._wait_free()
                if slot is None:
                    return SnapshotSlot(offset=-1, reason="every slot is being stored, copied or restored")
            if slot is not None and (slot.holding is None or len(self._slots) == SLOTS):
                slot.clear()
                if slot.size_bytes >= size_bytes:
                    return SnapshotSlot(offset=slot.offset)
                self._slots.remove(slot)
                slot.free_memory()
            return await self._grow(size_bytes)

    def commit(self, snapshot: SnapshotCommit, holding: Holding) -> bool:
        """Keeps what was written; returns whether the slot is ours and its shards lie inside it."""
        mine = (slot for slot in self._slots if slot.offset == snapshot.offset and slot.holding is None)
        slot = next((slot for slot in mine if not slot.pins), None)
        if slot is None or snapshot.step < 0 or holding.step != snapshot.step:
            return False
        if not all_inside(snapshot.shards, slot.size_bytes):
            return False
        for other in self._slots:
            if other.holding is not None and _key(other.holding) == _key(holding):
                other.clear()  # The same step saved again: the newer one counts.
        self._sequence += 1
        slot.fill(holding, snapshot.shards, snapshot.state, self._sequence)
        if self._ahead is None:
            self._ahead = asyncio.create_task(self._make_ready(slot.size_bytes))
        return True

    def discard_after(self, step: int) -> None:
        """Gives up snapshots newer than `step`: the attempt goes on from there."""
        for slot in self._whole():
            if slot.holding is not None and slot.holding.step > step:
                slot.clear()

    def discard(self, held: Held) -> None:
        """Gives up one snapshot: its bytes are not what they were."""
        for slot in self._slots:
            if slot.holding is held.holding:
                slot.clear()

    def hold(self, step: int, taken_in: int) -> Held | None:
        """Returns a snapshot, kept from being overwritten until released; None when it is not there."""
        for slot in self._whole():
            if slot.holding is not None and _key(slot.holding) == (step, taken_in):
                return Held(slot)
        return None

    def close(self) -> None:
        """Lets the memory go, once nobody maps it any more."""
        if self._ahead is not None:
            self._ahead.cancel()
            self._ahead = None
        for slot in self._slots:
            slot.wants_memory = False
        self._slots.clear()
        os.close(self._file)

    def _whole(self) -> list[Slot]:
        return sorted((slot for slot in self._slots if slot.holding is not None), key=lambda slot: slot.sequence)

    def _free(self) -> Slot | None:
        """Returns the slot to write next: an empty one, else the oldest; never the newest, nor one that is held."""
        newest = self._whole()[-1:]
        free = [slot for slot in self._slots if not slot.pins and slot not in newest]
        return min(free, key=lambda slot: (slot.holding is not None, slot.sequence), default=None)

    async def _wait_free(self) -> Slot | None:
        for slot in self._slots:
            slot.wanted = True
        try:
            async with asyncio.timeout(SLOT_WAIT_S):
                while (free := self._free()) is None:
                    self._freed.clear()
                    await self._freed.wait()
                return free
        except TimeoutError:
            return None
        finally:
            for slot in self._slots:
                slot.wanted = False

    async def _make_ready(self, size_bytes: int) -> None:
        """Adds the slots that are yet to come, and has their memory made. When that fails, `begin` tries again."""
        toucher = ThreadPoolExecutor(1, "mainspring-touch")  # Its thread is slow for good.
        try:
            while True:
                async with self._beginning:
                    if len(self._slots) == SLOTS or (await self._grow(size_bytes)).offset < 0:
                        return
                    slot = self._slots[-1]
                if self._in_memory:
                    try:
                        await asyncio.get_running_loop().run_in_executor(toucher, slot.touch)
                    finally:
                        slot.wants_memory = False
        finally:
            toucher.shutdown(wait=False)

    async def _grow(self, size_bytes: int) -> SnapshotSlot:
        if self._growths >= GROWTHS_MAX:
            return SnapshotSlot(offset=-1, reason=f"the arena has grown {GROWTHS_MAX} times already")
        rounded = max(1, -(-size_bytes // SLOT_ROUND_BYTES)) * SLOT_ROUND_BYTES
        if self._size_bytes == 0 and SLOTS * rounded > MEMORY_SHARE * memory_available_bytes():
            on_disk = os.open(self._folder, os.O_TMPFILE | os.O_RDWR, 0o600)
            os.dup2(on_disk, self._file)  # Ranks know the arena by this descriptor's number.
            os.close(on_disk)
            self._in_memory = False
        try:
            await asyncio.to_thread(os.posix_fallocate, self._file, self._size_bytes, rounded)
        except OSError as error:
            return SnapshotSlot(offset=-1, reason=f"no room for {rounded} bytes: {error.strerror}")
        self._growths += 1
        slot = Slot(file=self._file, offset=self._size_bytes, size_bytes=rounded, on_free=self._freed.set)
        self._slots.append(slot)
        self._size_bytes += rounded
        return SnapshotSlot(offset=slot.offset)


def all_inside(shards: tuple[Shard, ...], size_bytes: int) -> bool:
    """Returns whether every shard lies inside that many bytes.

    Args:
        shards: Shards with offsets from the first byte.
        size_bytes: How many there are.
    """
    return all(shard.size_bytes >= 0 and 0 <= shard.offset <= size_bytes - shard.size_bytes for shard in shards)


def memory_available_bytes() -> int:
    """Returns how much memory the kernel could still give.

    Source: proc(5), /proc/meminfo, MemAvailable.
    """
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def _key(holding: Holding) -> tuple[int, int]:
    return holding.step, holding.generation
