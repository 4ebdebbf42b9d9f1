"""Restores: tells the ranks of a generation where their state lies, and brings the bytes they ask for.

Bytes come from the best source that has them (see `step_index`). A source that is gone is not asked again; bytes that
are not what they were are taken from the next one. Only when no source is left does a fetch fail.
"""

from __future__ import annotations

import asyncio
import mmap
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import final

from mainspring.domain.errors import DamagedData, InvalidMessage, MainspringError, NotFound, StorageFull, Unavailable
from mainspring.domain.ids import RoleName
from mainspring.domain.wire import (
    FetchFailed,
    FetchPieces,
    PiecesFetched,
    PrepareGeneration,
    RestorePlan,
    RestoreRequest,
    Shard,
)
from mainspring.node.snapshots.arena import MEMORY_SHARE, Arena, memory_available_bytes, memory_file, path_of
from mainspring.node.snapshots.copies import Copies
from mainspring.node.snapshots.peers import SHARDS_MAX, Peers, page_end
from mainspring.node.snapshots.sources import ByteSource, HereSource, PeerSource, Want
from mainspring.node.snapshots.step_index import Entry, StepIndexer
from mainspring.node.snapshots.stores import Stores

STAGINGS_A_RANK = 2  # A rank asks for the next bytes before it has mapped those before.
SOURCES_AT_ONCE = 16  # Read from at the same time.
PAGE_BYTES = 4096  # Where pieces begin, so that a disk's bytes can go straight there.
ALIGNMENT_BYTES = 64  # Where pieces smaller than a page begin.


@dataclass(slots=True, eq=False)
class _Piece:
    """Bytes of one block on their way: from which of its homes they come, and why not from those before."""

    entry: Entry
    offset: int
    into: memoryview
    home: int = 0
    error: MainspringError | None = None


@dataclass(slots=True, eq=False)
class _Staging:
    """Room for fetched bytes, in a file that a rank maps."""

    file: int
    offsets: tuple[int, ...]
    views: tuple[memoryview, ...]


@dataclass(slots=True, eq=False)
class _Generation:
    index: StepIndexer
    staged: dict[int, deque[int]] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)


@final
class Restores:
    """This agent's restores, one generation at a time. For the event loop's thread.

    Args:
        peers: The way to other agents.
        arenas: This agent's own snapshots, by place; places may be added.
        prefix: What a role's paths and facts are prefixed with in the store.
    """

    def __init__(
        self,
        *,
        agent: int,
        peers: Peers,
        stores: Stores,
        arenas: Mapping[int, Arena],
        copies: Copies,
        prefix: Callable[[RoleName], str],
    ) -> None:
        self._agent = agent
        self._peers = peers
        self._stores = stores
        self._arenas = arenas
        self._copies = copies
        self._prefix = prefix
        self._now: _Generation | None = None
        self._wanted: PrepareGeneration | None = None
        self._turns = asyncio.Semaphore(SOURCES_AT_ONCE)

    async def prepare(self, order: PrepareGeneration) -> None:
        """Makes a step ready to restore; nothing of it is read but what must be verified or listed.

        Args:
            order: What the lead wants; newer snapshots and copies are given up already.

        Raises:
            DamagedData: The step's bytes are not what they were, and nobody else has them.
            NotFound: The step is gone from the store.
            Unavailable: It cannot be had now.
        """
        self.release()
        self._wanted = order
        index = StepIndexer(
            order,
            agent=self._agent,
            peers=self._peers,
            stores=self._stores,
            arenas=self._arenas,
            copies=self._copies,
            prefix=self._prefix,
        )
        if order.step >= 0 or order.begins_from:
            try:
                await index.make_ready()
            except BaseException:
                index.let_go()
                raise
        if self._wanted is not order:
            index.let_go()
            raise Unavailable("restore the state", got="a newer generation meanwhile")
        self._now = _Generation(index)

    def release(self) -> None:
        """Gives up what is held and staged: every rank steps, or the generation is over. May be called again."""
        if self._now is not None:
            self._now.index.let_go()
            for files in self._now.staged.values():
                for file in files:
                    os.close(file)
            self._peers.hang_up()
            self._now = None

    async def plan(self, rank: int, request: RestoreRequest) -> RestorePlan:
        """Returns where a rank's state lies.

        Raises:
            NotFound: The rank has no part in this generation.
            DamagedData: Nobody has some of it as it was.
            Unavailable: Some of it cannot be had.
        """
        index = self._current().index
        if index.step < 0:
            return RestorePlan(step=-1)
        listing = await index.listing(rank, everywhere=request.everywhere)
        total = len(listing.entries) if request.everywhere else listing.near
        since = max(0, request.since)
        shards = [_as_told(entry) for entry in listing.entries[since : min(total, since + SHARDS_MAX)]]
        return RestorePlan(
            step=index.step,
            shards=tuple(shards[: page_end(shards)]),
            state=listing.state,
            source=index.order.source,
            total=total,
        )

    async def fetch(self, rank: int, request: FetchPieces) -> PiecesFetched | FetchFailed:
        """Returns where the bytes lie that a rank asks for, verified; the file lasts until the one after the next."""
        try:
            return await self._fetched(self._current(), rank, request)
        except MainspringError as error:
            return FetchFailed(reason=str(error), corrupt=isinstance(error, DamagedData | NotFound))

    # ------------------------------------------------------------ bytes

    def _current(self) -> _Generation:
        if self._now is None:
            raise Unavailable("restore the state", got="a generation whose ranks all step already")
        return self._now

    async def _fetched(self, now: _Generation, rank: int, request: FetchPieces) -> PiecesFetched:
        entries = (await now.index.listing(rank, everywhere=False)).entries
        for piece in request.pieces:
            size_bytes = entries[piece.shard].shard.size_bytes if 0 <= piece.shard < len(entries) else -1
            if not (piece.offset >= 0 and piece.size_bytes >= 0 and piece.offset + piece.size_bytes <= size_bytes):
                raise InvalidMessage("fetch pieces", got=f"{piece}", wanted="bytes inside a shard of the plan")
        staged = now.staged.setdefault(rank, deque())
        while len(staged) >= STAGINGS_A_RANK:
            os.close(staged.popleft())
        staging = await asyncio.to_thread(_stage, [piece.size_bytes for piece in request.pieces])
        if self._now is not now:
            os.close(staging.file)
            raise Unavailable("fetch pieces", got="a generation that is over")
        staged.append(staging.file)
        pairs = zip(request.pieces, staging.views, strict=True)
        await self._bring(now, [_Piece(entries[piece.shard], piece.offset, view) for piece, view in pairs])
        if self._now is not now:
            raise Unavailable("fetch pieces", got="a generation that is over")
        return PiecesFetched(file=path_of(staging.file), offsets=staging.offsets)

    async def _bring(self, now: _Generation, pieces: Sequence[_Piece]) -> None:
        """Fills every piece from the first of its homes that can; looks into the store when none is left."""
        missing = [piece for piece in pieces if piece.into]
        while missing:
            by_source: dict[ByteSource, list[_Piece]] = {}
            for piece in missing:
                source = await self._home(now, piece)
                by_source.setdefault(source, []).append(piece)
            left = await asyncio.gather(*(self._read(now, source, some) for source, some in by_source.items()))
            missing = [piece for some in left for piece in some]
            for piece in missing:
                piece.home += 1

    async def _home(self, now: _Generation, piece: _Piece) -> ByteSource:
        while True:
            for home, (source, _) in enumerate(piece.entry.homes[piece.home :], start=piece.home):
                if not (isinstance(source, PeerSource) and source.address in now.gone):
                    piece.home = home
                    return source
            piece.home = len(piece.entry.homes)
            await now.index.add_stored()
            if piece.home == len(piece.entry.homes):
                raise piece.error or Unavailable(
                    "restore the state", on=piece.entry.shard.path, got="nobody who still has it"
                )

    async def _read(self, now: _Generation, source: ByteSource, pieces: Sequence[_Piece]) -> list[_Piece]:
        """Returns the pieces that this source could not fill."""
        wants = [Want(shard=piece.entry.homes[piece.home][1], offset=piece.offset, into=piece.into) for piece in pieces]
        try:
            async with self._turns:
                await source.read(wants)
        except MainspringError as error:
            if isinstance(source, PeerSource):
                now.gone.add(source.address)
            for want in wants:
                want.error = want.error or (error if want.missing_bytes else None)
        left = []
        for piece, want in zip(pieces, wants, strict=True):
            if want.error is not None:
                if not isinstance(piece.error, DamagedData):
                    piece.error = want.error  # That bytes were damaged tells more than who did not answer.
                left.append(piece)
        return left


def _as_told(entry: Entry) -> Shard:
    """Returns a block as its rank is told: with the file to map when it is in memory here."""
    source, number = entry.homes[0]
    if not isinstance(source, HereSource):
        return entry.shard
    shard = source.shards[number]
    return replace(shard, file=source.held.path, offset=source.held.offset + shard.offset)


def _stage(sizes: Sequence[int]) -> _Staging:
    offsets, end = [], 0
    for size_bytes in sizes:
        alignment = PAGE_BYTES if size_bytes >= PAGE_BYTES else ALIGNMENT_BYTES
        end = -(-end // alignment) * alignment
        offsets.append(end)
        end += size_bytes
    end = max(end, PAGE_BYTES)
    if end > MEMORY_SHARE * memory_available_bytes():
        raise StorageFull("fetch pieces", got=f"{end} bytes", wanted="half of the memory available, or less")
    file = memory_file("mainspring-restore")
    try:
        os.ftruncate(file, end)  # The reads themselves make its pages, several at a time: reserving them first would
        room = memoryview(mmap.mmap(file, end))  # take a quarter of a second a gigabyte before the first byte comes.
    except OSError as error:
        os.close(file)
        raise StorageFull("fetch pieces", got=f"no room for {end} bytes: {error.strerror}") from error
    views = tuple(room[offset : offset + size] for offset, size in zip(offsets, sizes, strict=True))
    return _Staging(file, tuple(offsets), views)
