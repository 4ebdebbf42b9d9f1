"""A durable step opened for reading: any bytes of any shard, verified, and no more read than the pages they lie in.

Reading is planned in two passes. Each piece that is wanted is widened to whole pages of checksums and cut into blocks
(`_Cut`); neighbouring cuts are read in one go (`_Extent`), several extents at a time, so that the disk never waits for
the checksums. A large cut whose pages are all wanted is read straight into the caller's memory; the others pass
through a small buffer that stays warm.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from mainspring.checkpoint.format import (
    Manifest,
    ShareEntry,
    ShareIndex,
    dtype_named,
    index_from,
    manifest_from,
    manifest_key,
    segment_key,
    tail_key,
)
from mainspring.checkpoint.share import each, page_count, table_crc32c
from mainspring.domain.errors import DamagedData, InvalidInput, NotFound
from mainspring.domain.ids import JobId
from mainspring.domain.shards import by_path, sources
from mainspring.domain.wire import Detail, Piece, Shard
from mainspring.objects import DIRECT_BYTES, ObjectStore, aligned_buffer, is_aligned

READ_BYTES = 8 << 20  # Of one request: within 2 % of the fastest on local disks, and long for an object store.
READS_AT_ONCE = 4  # One or two fill a local disk, while others check what has come.
_IN_PLACE_BYTES_MIN = 512 << 10  # From here on, not copying is worth a request of its own.
_TABLE_GAP_BYTES = 64 << 10  # Tables of checksums are small: fewer requests count for more than fewer bytes.


@dataclass(frozen=True, slots=True)
class _Cut:
    """A part of a piece inside one block: bytes `low` to `high` of the share's data are the pages it touches."""

    share: int
    low: int
    high: int
    shard: int
    begin: int  # In the share's data: where the part begins.
    into: memoryview

    @property
    def in_place(self) -> bool:
        """Returns whether the pages can be read straight to where they are wanted."""
        return (
            len(self.into) == self.high - self.low >= _IN_PLACE_BYTES_MIN
            and self.low % DIRECT_BYTES == 0
            and is_aligned(self.into)
        )


@dataclass(frozen=True, slots=True)
class _Extent:
    low: int
    high: int
    cuts: tuple[_Cut, ...]


@dataclass(frozen=True, slots=True)
class _Copied:
    """A run whose bytes have to be put to their places one by one, once they are there."""

    target: NDArray[Any]
    found: NDArray[Any]


class Checkpoint:
    """One durable step. Every method may be called from many threads.

    Args:
        store: Where it lies.
        manifest: Its manifest.
        indices: What each share holds, in the order of the manifest.
        bytes_read: What reading these took.
        rest: Called after each block that is read, which are then read one by one: for a process that has others to
            serve meanwhile, and gets arrays in small pages. None to read as fast as the disk gives.

    Raises:
        DamagedData: Shards of one path belong to different arrays.
    """

    def __init__(
        self,
        store: ObjectStore,
        manifest: Manifest,
        indices: Sequence[ShareIndex],
        *,
        bytes_read: int,
        rest: Callable[[], object] | None = None,
    ) -> None:
        self.manifest = manifest
        self.shards = tuple(shard for index in indices for shard in index.shards)
        self.states: Mapping[int, Detail] = {
            share.rank: index.state for share, index in zip(manifest.shares, indices, strict=True)
        }
        self.paths = by_path(self.shards)
        for path, numbered in self.paths.items():
            kinds = {(shard.dtype, shard.global_shape, shard.part) for _, shard in numbered}
            if len(kinds) > 1:
                raise DamagedData("open a checkpoint", on=path, got=f"shards of {len(kinds)} different arrays")
        self._store = store
        self._rest = rest
        self.bytes_read = bytes_read
        self._share_of: list[int] = []  # By shard.
        self._table_at: list[int] = []  # By shard: where its table of checksums begins in the share's tail.
        for number, (share, index) in enumerate(zip(manifest.shares, indices, strict=True)):
            counts = [4 * page_count(shard) for shard in index.shards]
            self._share_of += [number] * len(counts)
            self._table_at += list(accumulate(counts, initial=share.index_bytes))[:-1]
            if share.index_offset + share.index_bytes + sum(counts) != share.size_bytes:
                raise DamagedData("open a checkpoint", on=share.file, got="checksums of more or fewer pages")
        self._tables: dict[int, NDArray[np.uint32]] = {}
        self._buffers: list[memoryview] = []
        self._lock = threading.Lock()

    def read(self, pieces: Sequence[Piece], into: Sequence[memoryview]) -> None:
        """Fills memory with runs of shards' bytes, verified. Fastest where that memory begins at a page's address.

        Args:
            pieces: What to read; `shard` is the number in `shards`.
            into: Where each piece goes, one-dimensional and exactly as long; holds anything after an error.

        Raises:
            InvalidInput: A piece lies outside its shard, or its memory has another length.
            DamagedData: Bytes are missing, or are not what was stored.
            Unavailable: The store does not answer.
        """
        cuts = sorted(self._cuts(pieces, into), key=lambda cut: (cut.share, cut.low, cut.high))
        self._load_tables(sorted({cut.shard for cut in cuts}))
        each(self._read_extent, _extents(cuts), threads=READS_AT_ONCE if self._rest is None else 1)

    def array(self, path: str, start: Sequence[int] = (), shape: Sequence[int] | None = None) -> NDArray[Any]:
        """Returns an array, or a region of it, in fresh memory.

        Args:
            path: Its path in the tree.
            start: Index of the region's first element; () for the array's own.
            shape: The region's shape; None for all that follows `start`.

        Raises:
            NotFound: No array has this path.
            InvalidInput: The region lies outside the array.
            DamagedData: Bytes are missing, or are not what was stored.
            Unavailable: The store does not answer.
        """
        return self._arrays([(path, tuple(start), shape)])[0]

    def arrays(self, paths: Iterable[str]) -> Mapping[str, NDArray[Any]]:
        """Returns whole arrays by path, read together.

        Args:
            paths: Their paths in the tree.

        Raises:
            NotFound: No array has such a path.
            DamagedData: Bytes are missing, or are not what was stored.
            Unavailable: The store does not answer.
        """
        wanted = tuple(paths)
        return dict(zip(wanted, self._arrays([(path, (), None) for path in wanted]), strict=True))

    def verify(self) -> None:
        """Reads every byte of every shard, and looks at the length of every object.

        Raises:
            DamagedData: Bytes are missing, or are not what was stored, or shards do not make up whole arrays.
            Unavailable: The store does not answer.
        """
        for path, numbered in self.paths.items():
            shape = numbered[0][1].global_shape
            if sources(numbered, (0,) * len(shape), shape) is None:
                raise _gap(path)
        each(self._check_lengths, self.manifest.shares, threads=READS_AT_ONCE)
        room = aligned_buffer(READ_BYTES * READS_AT_ONCE)
        for batch in _batches(self.shards, len(room)):
            ends = list(accumulate(_rounded(piece.size_bytes) for piece in batch))
            views = [room[end - _rounded(piece.size_bytes) :] for piece, end in zip(batch, ends, strict=True)]
            self.read(batch, [view[: piece.size_bytes] for piece, view in zip(batch, views, strict=True)])

    def _check_lengths(self, share: ShareEntry) -> None:
        job, step = self.manifest.job, self.manifest.step
        lengths = {tail_key(job, step, share.file): share.size_bytes - share.index_offset}
        for start in range(0, share.index_offset, share.segment_bytes):
            key = segment_key(job, step, share.file, start // share.segment_bytes)
            lengths[key] = min(share.segment_bytes, share.index_offset - start)
        for key, length in lengths.items():
            got = self._store.size(key)
            if got != length:
                raise DamagedData("verify a checkpoint", on=key, got=f"{got} bytes", wanted=f"{length}")

    def _arrays(self, regions: Sequence[tuple[str, tuple[int, ...], Sequence[int] | None]]) -> list[NDArray[Any]]:
        arrays: list[NDArray[Any]] = []
        pieces: list[Piece] = []
        views: list[memoryview] = []
        copied: list[_Copied] = []
        for path, start, shape in regions:
            numbered = self.paths.get(path)
            if not numbered:
                raise NotFound("read an array", on=path[:200], got="no such path in the checkpoint")
            whole = numbered[0][1].global_shape
            dtype = dtype_named(numbered[0][1].dtype)
            start = start or (0,) * len(whole)
            shape = tuple(size - low for size, low in zip(whole, start, strict=True)) if shape is None else tuple(shape)
            if not all(0 <= low <= low + size <= full for low, size, full in zip(start, shape, whole, strict=True)):
                raise InvalidInput("read an array", on=path, got=f"{shape} at {start}", wanted=f"inside {whole}")
            found = sources(numbered, start, shape)
            if found is None:
                raise _gap(path)
            array = np.frombuffer(self._room(math.prod(shape) * dtype.itemsize), dtype=dtype).reshape(shape)
            arrays.append(array)
            for source in found:
                run, shard = source.run, self.shards[source.shard]
                if shard.size_bytes != math.prod(shard.shape) * dtype.itemsize:
                    raise DamagedData("read an array", on=path, got=f"{shard.size_bytes} bytes", wanted=shard.dtype)
                place: Any = (..., *run.place)  # The ellipsis keeps an array without axes an array.
                target = array[place]
                if target.flags.c_contiguous and target.nbytes == run.size_bytes:
                    views.append(target.reshape(-1).view(np.uint8).data)
                else:
                    views.append(self._room(run.size_bytes))
                    strided: NDArray[Any] = np.ndarray(run.shape, dtype, buffer=views[-1], strides=run.strides)
                    copied.append(_Copied(target=target, found=strided))
                pieces.append(Piece(shard=source.shard, offset=run.offset, size_bytes=run.size_bytes))
        self.read(pieces, views)
        for copy in copied:
            copy.target[...] = copy.found
        return arrays

    def _cuts(self, pieces: Sequence[Piece], into: Sequence[memoryview]) -> Iterator[_Cut]:
        for piece, memory in zip(pieces, into, strict=True):
            shard = self.shards[piece.shard] if 0 <= piece.shard < len(self.shards) else None
            end = piece.offset + piece.size_bytes
            if shard is None or not 0 <= piece.offset <= end <= shard.size_bytes or len(memory) != piece.size_bytes:
                raise InvalidInput("read a checkpoint", on=shard.path if shard else "", got=f"{piece}"[:200])
            page_bytes = shard.page_bytes or max(shard.size_bytes, 1)
            block_bytes = max(READ_BYTES, page_bytes)  # Both powers of two where there are pages, so whole pages.
            at = piece.offset
            while at < end:
                stop = min(end, at - at % block_bytes + block_bytes)
                yield _Cut(
                    self._share_of[piece.shard],
                    shard.offset + at - at % page_bytes,
                    shard.offset + min(shard.size_bytes, stop + -stop % page_bytes),
                    piece.shard,
                    shard.offset + at,
                    memory[at - piece.offset : stop - piece.offset],
                )
                at = stop

    def _load_tables(self, numbers: Sequence[int]) -> None:
        missing = [number for number in numbers if self.shards[number].page_bytes and number not in self._tables]
        runs: list[list[int]] = []
        for number in missing:  # In order of share, and in a share of their tables.
            last = runs[-1][-1] if runs else None
            near = last is not None and self._share_of[last] == self._share_of[number]
            if last is not None and near and self._table_at[number] - self._table_at[last] <= _TABLE_GAP_BYTES:
                runs[-1].append(number)
            else:
                runs.append([number])
        each(self._read_tables, runs, threads=READS_AT_ONCE)

    def _read_tables(self, numbers: Sequence[int]) -> None:
        share = self.manifest.shares[self._share_of[numbers[0]]]
        key = tail_key(self.manifest.job, self.manifest.step, share.file)
        low = self._table_at[numbers[0]]
        room = memoryview(bytearray(self._table_at[numbers[-1]] + 4 * page_count(self.shards[numbers[-1]]) - low))
        self._get(key, low, room)
        for number in numbers:
            shard, at = self.shards[number], self._table_at[number] - low
            table = np.frombuffer(room[at : at + 4 * page_count(shard)], dtype="<u4").astype(np.uint32)
            if table_crc32c(table) != shard.crc32c:
                raise _differs(shard, key, "checksums of its pages that differ from their own")
            self._tables[number] = table

    def _read_extent(self, extent: _Extent) -> None:
        self._read_one(extent)
        if self._rest is not None:
            self._rest()

    def _read_one(self, extent: _Extent) -> None:
        first = extent.cuts[0]
        share = self.manifest.shares[first.share]
        if len(extent.cuts) == 1 and first.in_place:
            self._fill(share, extent.low, first.into)
            self._check(extent.cuts, first.into, extent.low)
            return
        low = extent.low - extent.low % DIRECT_BYTES
        high = min(_rounded(extent.high), share.index_offset)
        room = self._borrow(high - low)
        self._fill(share, low, room[: high - low])
        self._check(extent.cuts, room, low)
        source = np.frombuffer(room, dtype=np.uint8)
        for cut in extent.cuts:  # NumPy copies without the interpreter, so that others can check meanwhile.
            target = np.frombuffer(cut.into, dtype=np.uint8)
            np.copyto(target, source[cut.begin - low : cut.begin - low + len(target)])
        with self._lock:
            self._buffers.append(room)

    def _check(self, cuts: Sequence[_Cut], room: memoryview, base: int) -> None:
        """Checks every page of the cuts, whose bytes from `base` on lie in `room`."""
        data = np.frombuffer(room, dtype=np.uint8)
        checked_to = {cut.shard: 0 for cut in cuts}  # Several cuts may share pages.
        for cut in cuts:
            shard = self.shards[cut.shard]
            page_bytes = shard.page_bytes or shard.size_bytes
            low = max(cut.low, checked_to[cut.shard])
            block = data[low - base : max(cut.high, low) - base]
            got = [google_crc32c.extend(0, block[at : at + page_bytes]) for at in range(0, len(block), page_bytes)]
            first = (low - shard.offset) // page_bytes
            wanted = self._tables[cut.shard][first : first + len(got)].tolist() if shard.page_bytes else [shard.crc32c]
            if got and got != wanted:
                page = first + next(i for i, (one, other) in enumerate(zip(got, wanted, strict=True)) if one != other)
                raise _differs(shard, shard.file, f"a crc32c that differs in its page {page} of {page_bytes} bytes")
            checked_to[cut.shard] = max(checked_to[cut.shard], cut.high)

    def _borrow(self, size_bytes: int) -> memoryview:
        with self._lock:
            if size_bytes <= READ_BYTES + 2 * DIRECT_BYTES and self._buffers:
                return self._buffers.pop()
        return self._room(max(size_bytes, READ_BYTES + 2 * DIRECT_BYTES))

    def _room(self, size_bytes: int) -> memoryview:
        return aligned_buffer(size_bytes, huge=self._rest is None)

    def _fill(self, share: ShareEntry, low: int, into: memoryview) -> None:
        """Reads the share's data from `low` on, across its segments."""
        done = 0
        while done < len(into):
            segment, offset = divmod(low + done, share.segment_bytes)
            part = into[done : done + share.segment_bytes - offset]
            self._get(segment_key(self.manifest.job, self.manifest.step, share.file, segment), offset, part)
            done += len(part)

    def _get(self, key: str, offset: int, into: memoryview) -> None:
        try:
            self._store.get_into(key, offset=offset, into=into)
        except NotFound as error:
            raise DamagedData("read a checkpoint", on=key, got="no such object") from error
        with self._lock:
            self.bytes_read += len(into)


def read_manifest(store: ObjectStore, job: JobId, step: int) -> Manifest:
    """Returns a step's manifest.

    Args:
        store: The object store.
        job: The job.
        step: The step.

    Raises:
        NotFound: The step has none.
        DamagedData: It is not whole.
    """
    key = manifest_key(job, step)
    manifest = manifest_from(store.get(key), key)
    if manifest.job != job or manifest.step != step:
        raise DamagedData(
            "read a manifest", on=key, got=f"{manifest.job} step {manifest.step}", wanted=f"{job} step {step}"
        )
    return manifest


def open_checkpoint(
    store: ObjectStore, job: JobId, step: int, *, rest: Callable[[], object] | None = None
) -> Checkpoint:
    """Returns a durable step, its manifest and the indices of its shares read and verified.

    Args:
        store: The object store.
        job: The job.
        step: The step.
        rest: See `Checkpoint`.

    Raises:
        NotFound: The step has no manifest.
        DamagedData: The manifest or an index does not hold together.
        Unavailable: The store does not answer.
    """
    manifest = read_manifest(store, job, step)
    indices: dict[str, ShareIndex] = {}

    def read_index(share: ShareEntry) -> None:
        key = tail_key(job, step, share.file)
        try:
            data = store.get_range(key, offset=0, size_bytes=share.index_bytes)
        except NotFound as error:
            raise DamagedData("open a checkpoint", on=key, got="no such object") from error
        indices[share.file] = index_from(data, share, key)

    each(read_index, manifest.shares, threads=READS_AT_ONCE)
    return Checkpoint(
        store,
        manifest,
        [indices[share.file] for share in manifest.shares],
        bytes_read=(store.size(manifest_key(job, step)) or 0) + sum(share.index_bytes for share in manifest.shares),
        rest=rest,
    )


def _extents(cuts: Sequence[_Cut]) -> Iterator[_Extent]:
    """Yields sorted cuts joined where they touch, or nearly do, up to `READ_BYTES`."""
    joined: list[_Cut] = []
    high = 0
    for cut in cuts:
        fits = (
            joined
            and cut.share == joined[0].share
            and cut.low <= high + DIRECT_BYTES
            and max(high, cut.high) - joined[0].low <= READ_BYTES
            and not cut.in_place
        )
        if joined and not fits:
            yield _Extent(joined[0].low, high, tuple(joined))
            joined, high = [], 0
        joined.append(cut)
        high = max(high, cut.high)
        if cut.in_place:
            yield _Extent(cut.low, cut.high, (cut,))
            joined, high = [], 0
    if joined:
        yield _Extent(joined[0].low, high, tuple(joined))


def _batches(shards: Sequence[Shard], room_bytes: int) -> Iterator[list[Piece]]:
    """Yields pieces that cover every shard, as many at a time as fit into so much room."""
    batch: list[Piece] = []
    room = room_bytes
    for number, shard in enumerate(shards):
        for at in range(0, shard.size_bytes, READ_BYTES):
            piece = Piece(shard=number, offset=at, size_bytes=min(READ_BYTES, shard.size_bytes - at))
            if _rounded(piece.size_bytes) > room:
                yield batch
                batch, room = [], room_bytes
            batch.append(piece)
            room -= _rounded(piece.size_bytes)
    if batch:
        yield batch


def _rounded(size_bytes: int) -> int:
    return size_bytes + -size_bytes % DIRECT_BYTES


def _gap(path: str) -> DamagedData:
    return DamagedData("read an array", on=path, got="shards that leave parts of it out")


def _differs(shard: Shard, on: str, got: str) -> DamagedData:
    return DamagedData(f"read shard {shard.path} at {shard.start}", on=on, got=got)
