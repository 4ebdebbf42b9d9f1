"""Replicas of other agents' snapshots, so that the loss of a node loses nothing.

Of every place that copies to this agent it keeps the newest two, in memory of its own that is used again: while one
is received, only one whole copy is there, so that there is never more than twice what a place sends.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import final

from mainspring.checkpoint import seal
from mainspring.domain.wire import CopyBegin, Holding
from mainspring.node.snapshots.arena import (
    MEMORY_SHARE,
    SLOT_ROUND_BYTES,
    Held,
    Slot,
    all_inside,
    memory_available_bytes,
    memory_file,
)
from mainspring.node.snapshots.work import SnapshotWork

COPIES_A_PLACE = 2
PLACES_MAX = 1_024  # An agent copies for one other agent, rarely two; none has that many ranks.


@final
class Copies:
    """One agent's copies. For the event loop's thread; what `hold` returns may be read in another."""

    def __init__(self) -> None:
        self._slots: dict[int, list[Slot]] = {}
        self._incoming: set[Slot] = set()
        self._sequence = 0
        self._generation = 0
        self._resumed = -1

    @property
    def holdings(self) -> tuple[Holding, ...]:
        """Returns what it holds, oldest first."""
        whole = sorted(self._whole(), key=lambda slot: slot.sequence)
        return tuple(slot.holding for slot in whole if slot.holding is not None)

    async def begin(self, offered: CopyBegin) -> Slot | None:
        """Returns room for a copy, until `keep` or `drop`; None when it is refused."""
        holding = offered.holding
        if not offered.size_bytes >= 0 or not all_inside(offered.shards, offered.size_bytes):
            return None
        if holding.step < 0 or self._is_stale(holding):
            return None
        if holding.rank not in self._slots and len(self._slots) >= PLACES_MAX:
            return None
        slots = self._slots.setdefault(holding.rank, [])
        size_bytes = max(1, -(-offered.size_bytes // SLOT_ROUND_BYTES)) * SLOT_ROUND_BYTES
        slot = self._free(slots)
        if slot is not None:
            slot.clear()
            if slot.size_bytes == size_bytes:
                self._incoming.add(slot)
                return slot
            self._remove(holding.rank, slot)
        if len(slots) >= COPIES_A_PLACE or offered.size_bytes > MEMORY_SHARE * memory_available_bytes():
            return None
        return await self._new(slots, size_bytes, offered.size_bytes)

    async def keep(self, slot: Slot, offered: CopyBegin, work: SnapshotWork) -> Holding | None:
        """Verifies a copy and keeps it; returns what is held now, None when its bytes are not what its owner had."""
        sealed = await asyncio.to_thread(work.computed, partial(seal, slot.data, offered.shards))
        self._incoming.discard(slot)
        holding = replace(offered.holding, copied=True)
        if sealed.shards != offered.shards or self._is_stale(holding):
            return None
        for other in self._slots[holding.rank]:
            if other.holding is not None and _key(other.holding) == _key(holding):
                other.clear()
        self._sequence += 1
        slot.fill(holding, sealed.shards, offered.state, self._sequence)
        slot.sealed = sealed
        self._forget_older(holding)
        return holding

    def drop(self, slot: Slot) -> None:
        """Takes back room that was not filled."""
        self._incoming.discard(slot)

    def hold(self, step: int, taken_in: int, rank: int) -> Held | None:
        """Returns a copy, kept from being overwritten until released; None when it is not there."""
        for slot in self._slots.get(rank, []):
            if slot.holding is not None and _key(slot.holding) == (step, taken_in):
                return Held(slot)
        return None

    def enter(self, generation: int, step: int) -> None:
        """Gives up copies newer than `step`, from which a generation goes on, and refuses such of older generations."""
        self._generation, self._resumed = generation, step
        for slot in self._whole():
            if slot.holding is not None and slot.holding.step > step:
                slot.clear()

    def discard(self, held: Held) -> None:
        """Gives up one copy: its bytes are not what they were."""
        for slot in self._whole():
            if slot.holding is held.holding:
                slot.clear()

    def close(self) -> None:
        """Lets the memory go."""
        for rank, slots in list(self._slots.items()):
            for slot in list(slots):
                self._remove(rank, slot)

    def _is_stale(self, holding: Holding) -> bool:
        """Returns whether it comes from an agent that does not know yet that the attempt went on without it."""
        return holding.generation < self._generation and holding.step > self._resumed

    def _whole(self) -> Iterator[Slot]:
        return (slot for slots in self._slots.values() for slot in slots if slot.holding is not None)

    def _free(self, slots: list[Slot]) -> Slot | None:
        """Returns the slot to fill next: an empty one, else the older; never the newest copy, nor one in use."""
        newest = max((slot for slot in slots if slot.holding is not None), key=lambda slot: slot.sequence, default=None)
        free = [slot for slot in slots if slot is not newest and not slot.pins and slot not in self._incoming]
        return min(free, key=lambda slot: (slot.holding is not None, slot.sequence), default=None)

    async def _new(self, slots: list[Slot], size_bytes: int, used_bytes: int) -> Slot | None:
        file = memory_file("mainspring-copy")
        os.ftruncate(file, size_bytes)
        slot = Slot(file=file, offset=0, size_bytes=size_bytes, on_free=_nothing)
        slots.append(slot)
        self._incoming.add(slot)
        try:
            if used_bytes:
                await asyncio.to_thread(os.posix_fallocate, file, 0, used_bytes)
        except OSError:
            self._incoming.discard(slot)
            slots.remove(slot)
            os.close(file)
            return None
        return slot

    def _forget_older(self, newest: Holding) -> None:
        """Frees what older generations left, once this one has saved twice: its first snapshot is whole by then."""
        mine = [slot.holding for slot in self._slots[newest.rank] if slot.holding is not None]
        if len(mine) < COPIES_A_PLACE or any(holding.generation < newest.generation for holding in mine):
            return
        for rank, slots in list(self._slots.items()):
            for slot in list(slots):
                old = slot.holding is None or slot.holding.generation < newest.generation
                if old and not slot.pins and slot not in self._incoming:
                    self._remove(rank, slot)

    def _remove(self, rank: int, slot: Slot) -> None:
        slot.clear()
        self._slots[rank].remove(slot)
        if not self._slots[rank]:
            del self._slots[rank]
        os.close(slot.file)


def _key(holding: Holding) -> tuple[int, int]:
    return holding.step, holding.generation


def _nothing() -> None:
    """A copy's slot: nobody waits for it."""
