"""Sources of a restore's bytes: memory here, a peer's, the object store. All hand out verified bytes.

Pieces are read in whole pages of checksums. What is wanted of a peer is put together into few large requests: a large
run of whole pages goes from the socket to where it is wanted, smaller ones pass through a buffer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, final

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from mainspring.checkpoint import Checkpoint
from mainspring.checkpoint.share import page_count, table_crc32c
from mainspring.domain.errors import DamagedData, MainspringError
from mainspring.domain.wire import BytesRequest, Detail, Holding, Piece, Shard
from mainspring.node.snapshots.arena import Held
from mainspring.node.snapshots.peers import Peers
from mainspring.node.snapshots.stores import Stores

READ_BYTES_MAX = 64 << 20  # Of one request to a peer: 5 ms of a 100 Gbit/s line, far above a round trip.
SMALL_BYTES_MAX = 1 << 20  # Windows up to here share requests, and a copy costs less than a request.
BUFFER_BYTES_MAX = 4 << 20  # What passes through a buffer; with every request under way, 128 MiB.
GAP_BYTES_MAX = 64 << 10  # Between small windows of one request.
REQUESTS_AT_ONCE = 2  # To one snapshot: while one travels, the other is verified.


@dataclass(slots=True, kw_only=True, eq=False)
class Want:
    """Bytes of one shard that are wanted.

    Args:
        shard: The shard's number in the source's own list.
        offset: The first byte, in the shard.
        into: Where they go, and how many.
        missing_bytes: How many are not there yet.
        error: Why they cannot be had from this source.
    """

    shard: int
    offset: int
    into: memoryview
    missing_bytes: int = field(init=False)
    error: MainspringError | None = None

    def __post_init__(self) -> None:
        """Nothing is there yet."""
        self.missing_bytes = len(self.into)

    def overlap(self, low: int, high: int) -> tuple[int, int]:
        """Returns the part of bytes `low` to `high` of the shard that is wanted."""
        return max(low, self.offset), min(high, self.offset + len(self.into))

    def copy_from(self, data: memoryview, offset: int) -> None:
        """Copies what `data`, the shard's bytes from `offset` on, has of the bytes. For any thread.

        Args:
            data: Verified bytes.
            offset: Of their first, in the shard.
        """
        low, high = self.overlap(offset, offset + len(data))
        target = np.frombuffer(self.into[low - self.offset : high - self.offset], dtype=np.uint8)
        np.copyto(target, np.frombuffer(data[low - offset : high - offset], dtype=np.uint8))


class ByteSource(Protocol):
    """One place to read from."""

    @property
    def shards(self) -> Mapping[int, Shard]:
        """Returns its shards by number, with their checksums, and paths as the role's program knows them."""

    @property
    def state(self) -> Detail:
        """Returns the program's facts."""

    async def read(self, wants: Sequence[Want]) -> None:
        """Fills what is wanted with verified bytes; notes the error of each want whose bytes are not what they were.

        Raises:
            Unavailable: The source is gone.
            InvalidMessage: It does not keep to the rules.
        """


@final
class HereSource:
    """A snapshot or copy in this agent's own memory, verified before anybody reads it."""

    def __init__(self, held: Held) -> None:
        self.held = held
        self.state = held.state
        self.shards: Mapping[int, Shard] = {}  # Until it is verified.
        self._verifying: asyncio.Task[bool] | None = None

    @property
    def holding(self) -> Holding:
        """Returns whose snapshot it is."""
        return self.held.holding

    async def verified(self) -> bool:
        """Returns whether its bytes are what they were, which is looked at once."""
        if self._verifying is None:
            self._verifying = asyncio.create_task(asyncio.to_thread(self._verify))
        return await asyncio.shield(self._verifying)

    def _verify(self) -> bool:
        intact = self.held.intact()
        self.shards = dict(enumerate(self.held.sealed().shards))
        return intact

    async def read(self, wants: Sequence[Want]) -> None:
        """See `ByteSource`."""

        def work() -> None:
            for want in wants:
                want.copy_from(self.held.part(self.shards[want.shard]), 0)

        await asyncio.to_thread(work)
        for want in wants:
            want.missing_bytes = 0


@final
class StoredSource:
    """A durable step.

    Args:
        prefix: What the role's paths and facts begin with there, "" for all.
    """

    def __init__(self, stores: Stores, checkpoint: Checkpoint, prefix: str) -> None:
        self._stores = stores
        self._checkpoint = checkpoint
        self.shards = {
            number: replace(shard, path=shard.path.removeprefix(prefix), file="")
            for number, shard in enumerate(checkpoint.shards)
            if shard.path.startswith(prefix)
        }
        facts = checkpoint.manifest.state.items()
        self.state = {name.removeprefix(prefix): value for name, value in facts if name.startswith(prefix)}

    async def read(self, wants: Sequence[Want]) -> None:
        """See `ByteSource`."""
        try:
            await self._read(wants)
        except DamagedData as error:
            if len(wants) == 1:
                wants[0].error = error
                return
            for want in wants:  # Something in it is damaged: what?
                await self.read([want])

    async def _read(self, wants: Sequence[Want]) -> None:
        pieces = [Piece(shard=want.shard, offset=want.offset, size_bytes=len(want.into)) for want in wants]
        await self._stores.read(self._checkpoint, pieces, [want.into for want in wants])
        for want in wants:
            want.missing_bytes = 0


@dataclass(slots=True, eq=False)
class _Window:
    """Whole pages of one shard, and who wants bytes of them."""

    number: int
    shard: Shard
    low: int
    high: int
    wants: list[Want]

    @property
    def in_place(self) -> bool:
        """Returns whether all its bytes are wanted by one, so that they can be read to their place."""
        first = self.wants[0]
        covered = first.offset <= self.low and self.high <= first.offset + len(first.into)
        return len(self.wants) == 1 and covered and self.high - self.low > SMALL_BYTES_MAX

    @property
    def begin(self) -> int:
        """Returns where it begins in the snapshot."""
        return self.shard.offset + self.low

    @property
    def end(self) -> int:
        """Returns where it ends in the snapshot."""
        return self.shard.offset + self.high


@final
class PeerSource:
    """A snapshot or copy in a peer's memory.

    Args:
        shards: All its shards, in the peer's order.
    """

    def __init__(self, peers: Peers, address: str, holding: Holding, shards: Sequence[Shard], state: Detail) -> None:
        self._peers = peers
        self.address = address
        self.holding = holding
        self.shards = dict(enumerate(shards))
        self.state = state
        self._table: asyncio.Task[NDArray[np.uint32]] | None = None
        self._first_page: list[int] = []
        pages = 0
        for shard in shards:
            self._first_page.append(pages)
            pages += page_count(shard)
        self._pages = pages
        self._turns = asyncio.Semaphore(REQUESTS_AT_ONCE)

    async def read(self, wants: Sequence[Want]) -> None:
        """See `ByteSource`."""
        if self._table is None:
            self._table = asyncio.create_task(self._fetch_table())
        table = await asyncio.shield(self._table)
        reads = [self._read(windows, table) for windows in _together(_windows(self.shards, wants))]
        ended = await asyncio.gather(*reads, return_exceptions=True)
        for error in ended:
            if error is not None:
                raise error

    async def _fetch_table(self) -> NDArray[np.uint32]:
        data = bytearray(4 * self._pages)
        if data:
            await self._peers.read(self.address, self._request(0, len(data), checksums=True), memoryview(data))
        return np.frombuffer(data, dtype="<u4").astype(np.uint32)

    async def _read(self, windows: Sequence[_Window], table: NDArray[np.uint32]) -> None:
        begin, end = windows[0].begin, windows[-1].end
        async with self._turns:
            first = windows[0]
            if first.in_place:
                at = first.low - first.wants[0].offset
                room = first.wants[0].into[at : at + end - begin]
            else:
                room = memoryview(bytearray(end - begin))
            await self._peers.read(self.address, self._request(begin, end - begin, checksums=False), room)
            errors = await asyncio.to_thread(self._deal_out, windows, room, table)
        for window, error in zip(windows, errors, strict=True):
            for want in window.wants:
                low, high = want.overlap(window.low, window.high)
                want.missing_bytes -= high - low
                want.error = want.error or error

    def _deal_out(
        self, windows: Sequence[_Window], room: memoryview, table: NDArray[np.uint32]
    ) -> list[DamagedData | None]:
        errors: list[DamagedData | None] = []
        for window in windows:
            data = room[window.begin - windows[0].begin : window.end - windows[0].begin]
            errors.append(self._difference(window, data, table))
            if not window.in_place and errors[-1] is None:
                for want in window.wants:
                    want.copy_from(data, window.low)
        return errors

    def _difference(self, window: _Window, data: memoryview, table: NDArray[np.uint32]) -> DamagedData | None:
        shard = window.shard
        page_bytes = shard.page_bytes or max(shard.size_bytes, 1)
        if shard.page_bytes:
            first = self._first_page[window.number]
            pages = table[first : first + page_count(shard)]
            if table_crc32c(pages) != shard.crc32c:
                return self._damaged(shard, "checksums of its pages that differ from their own")
        else:
            pages = np.array([shard.crc32c], dtype=np.uint32)
        found = np.frombuffer(data, dtype=np.uint8)
        for at in range(0, len(found), page_bytes):
            if google_crc32c.extend(0, found[at : at + page_bytes]) != pages[(window.low + at) // page_bytes]:
                return self._damaged(shard, f"a crc32c that differs in its page at {window.low + at}")
        return None

    def _damaged(self, shard: Shard, got: str) -> DamagedData:
        return DamagedData(f"read shard {shard.path} at {shard.start}", on=self.address, got=got)

    def _request(self, offset: int, size_bytes: int, *, checksums: bool) -> BytesRequest:
        return BytesRequest(
            step=self.holding.step,
            taken_in=self.holding.generation,
            rank=self.holding.rank,
            copied=self.holding.copied,
            offset=offset,
            size_bytes=size_bytes,
            checksums=checksums,
        )


def _windows(shards: Mapping[int, Shard], wants: Sequence[Want]) -> Iterator[_Window]:
    """Yields the pages wanted, in the order they lie in the snapshot; none twice, none larger than a request."""
    order = sorted(wants, key=lambda want: (shards[want.shard].offset, want.shard, want.offset))
    found: list[_Window] = []
    for want in order:
        shard = shards[want.shard]
        page_bytes = shard.page_bytes or max(shard.size_bytes, 1)
        low = want.offset - want.offset % page_bytes
        high = min(-(-(want.offset + len(want.into)) // page_bytes) * page_bytes, shard.size_bytes)
        if found and found[-1].number == want.shard and low < found[-1].high:
            found[-1].high = max(found[-1].high, high)
            found[-1].wants.append(want)
        elif low < high:
            found.append(_Window(want.shard, shard, low, high, [want]))
    for window in found:
        most = READ_BYTES_MAX if window.in_place else BUFFER_BYTES_MAX  # Both are whole pages of any shard.
        for low in range(window.low, window.high, most):
            high = min(low + most, window.high)
            touched = [want for want in window.wants if want.offset < high and low < want.offset + len(want.into)]
            if touched:
                yield _Window(window.number, window.shard, low, high, touched)


def _together(windows: Iterator[_Window]) -> Iterator[list[_Window]]:
    """Yields windows that travel in one request: neighbours that are small."""
    batch: list[_Window] = []
    for window in windows:
        near = batch and 0 <= window.begin - batch[-1].end <= GAP_BYTES_MAX
        small = batch and not (window.in_place or batch[0].in_place)
        if near and small and window.end - batch[0].begin <= BUFFER_BYTES_MAX:
            batch.append(window)
            continue
        if batch:
            yield batch
        batch = [window]
    if batch:
        yield batch
