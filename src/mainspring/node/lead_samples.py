"""Writes what a lead keeps of its ranks' samples to the object store, where it outlives lead, agents and nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import final

from mainspring.domain import wire
from mainspring.domain.errors import MainspringError
from mainspring.domain.ports import Clock
from mainspring.node.snapshots.stores import Stores
from mainspring.samples import PartName, Recorder, pack, part_key

WRITE_EVERY_S = 10.0  # What a lead that dies takes with it; how far behind a page may be.
YOUNG_S = 600.0  # People look at a run that has just begun.
WRITE_LATER_S = 30.0  # Of an older one: 1,000 jobs then write 33 objects a second.
LAST_LIMIT_S = 5.0  # What the end of an attempt waits for its last samples.


@final
class SampleWriter:
    """Samples of one lead. The newest part is written again as it grows, then the next one begins.

    Args:
        orders: The attempt's orders.
    """

    def __init__(self, orders: wire.Orders, stores: Stores, clock: Clock) -> None:
        self._orders = orders
        self._stores = stores
        self._clock = clock
        self._recorder = Recorder(orders.ranks, now_s=clock.now_s())
        self._part = 0
        self._written = 0

    def place(self, places: Iterable[wire.RankPlace]) -> None:
        """Takes note of places that an agent has brought."""
        self._recorder.place(places)

    def note(self, told: wire.RankProgress) -> None:
        """Takes a rank's step report."""
        self._recorder.note(told, self._clock.now_s())

    async def run(self) -> None:
        """Writes from time to time, for ever; a store that is away is tried again with more."""
        began_s = self._clock.monotonic_s()
        while True:
            young = self._clock.monotonic_s() - began_s < YOUNG_S
            await asyncio.sleep(WRITE_EVERY_S if young else WRITE_LATER_S)
            await self._write()

    async def last(self) -> None:
        """Writes what is left, within a bound."""
        try:
            async with asyncio.timeout(LAST_LIMIT_S):
                await self._write()
        except TimeoutError:
            return  # Samples are not worth an attempt's end.

    async def _write(self) -> None:
        recorder = self._recorder
        recorder.look(self._clock.now_s())
        revision = recorder.revision
        if revision == self._written:
            return
        name = PartName(number=self._orders.number, epoch=self._orders.epoch, part=self._part)
        part = recorder.part()
        try:
            await self._stores.put_samples(part_key(self._orders.job, name), partial(pack, part))
        except MainspringError:
            return
        self._written = revision
        if recorder.full:
            recorder.seal(part)
            self._part += 1
