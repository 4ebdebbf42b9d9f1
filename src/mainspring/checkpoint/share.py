"""One rank's share of a step: its checksums, and how it is stored so that an upload that broke off goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from mainspring.checkpoint.format import (
    PAGE_BYTES_MAX,
    PAGE_BYTES_MIN,
    ShareEntry,
    index_bytes,
    segment_key,
    tail_key,
)
from mainspring.domain.errors import StorageFull
from mainspring.domain.ids import JobId
from mainspring.domain.wire import SEGMENT_BYTES, Detail, Shard
from mainspring.objects import ObjectStore

Item = TypeVar("Item")
_CRC_BYTES = 16 << 20  # The checksum holds the interpreter: 16 MiB keep it for about a millisecond at a time.
_PAGES = 128  # A region that ends inside a shard costs at most one page that was not needed: under 1 % of it.
_WRITES_AT_ONCE = 4  # One is enough for a local disk; an object store's streams are slower, and add up.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sealed:
    """Shards of a snapshot with their checksums.

    Args:
        shards: The shards, each with `crc32c` and `page_bytes`; `offset` counts in the snapshot's bytes.
        pages: The crc32c of every page, shard after shard; shards without pages (`page_bytes` 0) have none here.
    """

    shards: tuple[Shard, ...]
    pages: NDArray[np.uint32]


def page_bytes_of(size_bytes: int) -> int:
    """Returns how many bytes of a shard share a checksum; 0 when one is enough for all of it.

    Args:
        size_bytes: The shard's length.
    """
    if size_bytes <= PAGE_BYTES_MIN:
        return 0
    return min(PAGE_BYTES_MAX, max(PAGE_BYTES_MIN, 1 << ((size_bytes // _PAGES).bit_length() - 1)))


def page_count(shard: Shard) -> int:
    """Returns how many checksums of pages a shard has.

    Args:
        shard: A sealed shard.
    """
    return -(-shard.size_bytes // shard.page_bytes) if shard.page_bytes else 0


def crc32c_of(data: NDArray[np.uint8]) -> int:
    """Returns the crc32c of bytes.

    Args:
        data: One-dimensional and contiguous.

    Source: RFC 3720, appendix B.4 (Castagnoli).
    """
    crc = 0
    for start in range(0, len(data), _CRC_BYTES):
        crc = google_crc32c.extend(crc, data[start : start + _CRC_BYTES])
    return int(crc)


def table_crc32c(pages: NDArray[np.uint32]) -> int:
    """Returns the crc32c of a table of checksums.

    Args:
        pages: A shard's.
    """
    return crc32c_of(np.frombuffer(pages.astype("<u4", copy=False), dtype=np.uint8))


def seal(data: NDArray[np.uint8], shards: Sequence[Shard]) -> Sealed:
    """Returns shards with the checksums of their bytes.

    Args:
        data: The snapshot's bytes, which nobody changes meanwhile.
        shards: Its shards.
    """
    sealed: list[Shard] = []
    pages: list[int] = []
    for shard in shards:
        block = data[shard.offset : shard.offset + shard.size_bytes]
        page_bytes = page_bytes_of(shard.size_bytes)
        if page_bytes:
            sums = _page_sums(block, page_bytes)
            pages += sums
            crc32c = table_crc32c(np.array(sums, dtype=np.uint32))
        else:
            crc32c = crc32c_of(block)
        sealed.append(replace(shard, crc32c=crc32c, page_bytes=page_bytes))
    return Sealed(shards=tuple(sealed), pages=np.array(pages, dtype=np.uint32))


def _page_sums(block: NDArray[np.uint8], page_bytes: int) -> list[int]:
    """Returns the crc32c of every page. Pages are small: what Python does for each counts as much as the checksum."""
    sums: list[int] = []
    whole = len(block) - len(block) % page_bytes
    for start in range(0, whole, _CRC_BYTES):
        sums.extend(map(google_crc32c.value, block[start : min(start + _CRC_BYTES, whole)].reshape(-1, page_bytes)))
    if whole < len(block):
        sums.append(google_crc32c.value(block[whole:]))
    return sums


def intact(data: NDArray[np.uint8], sealed: Sealed) -> bool:
    """Returns whether a snapshot's bytes are what they were when it was sealed.

    Args:
        data: The snapshot's bytes.
        sealed: What `seal` returned for them.
    """
    now = seal(data, sealed.shards)
    return now.shards == sealed.shards and np.array_equal(now.pages, sealed.pages)


def write_share(
    store: ObjectStore,
    *,
    job: JobId,
    step: int,
    file: str,
    rank: int,
    data: NDArray[np.uint8],
    shards: Sequence[Shard],
    sealed: Callable[[], Sealed],
    state: Detail,
    segment_bytes: int = SEGMENT_BYTES,
) -> ShareEntry:
    """Stores the shards of a snapshot that are `once`, and returns what the manifest says of them.

    Checksums are computed while data is on its way, so that the disk does not wait for the processor. Called again
    after a failure, with the same name and bytes, it sends only what has not arrived.

    Args:
        store: The object store.
        job: The job.
        step: The step.
        file: The share's name, see `share_file`.
        rank: The place that took the snapshot.
        data: The snapshot's bytes; those of `once` shards lie at the front. Fastest at a page's address.
        shards: The snapshot's shards.
        sealed: Returns them with their checksums; another thread calls it, once or more.
        state: The rank's own small facts.
        segment_bytes: How much at most is sent again after a failure; a multiple of `DIRECT_BYTES`.

    Raises:
        StorageFull: No room; what was stored of this share is deleted again, because room is what is wanted.
        Unavailable: The store does not answer; another try may go on from here.
    """
    data_bytes = max((shard.offset + shard.size_bytes for shard in shards if shard.once), default=0)
    front = data[:data_bytes].data
    tails: list[_Tail] = []

    def put(key: str, data: bytes | memoryview) -> None:
        if store.size(key) != len(data):  # Objects appear whole, and this name is given to these bytes alone.
            store.put(key, data)

    def put_tail() -> None:
        tails.append(_tail_of(sealed(), state))
        put(tail_key(job, step, file), tails[0].data)

    def put_segment(start: int) -> None:
        put(segment_key(job, step, file, start // segment_bytes), front[start : start + segment_bytes])

    starts = range(0, data_bytes, segment_bytes)
    try:
        works: list[Callable[[], None]] = [put_tail, *(partial(put_segment, start) for start in starts)]
        each(lambda work: work(), works, threads=1 + _WRITES_AT_ONCE)
    except StorageFull:
        for start in starts:
            store.delete(segment_key(job, step, file, start // segment_bytes))
        store.delete(tail_key(job, step, file))
        raise
    (tail,) = tails
    return ShareEntry(
        rank=rank,
        file=file,
        size_bytes=data_bytes + len(tail.data),
        index_offset=data_bytes,
        index_bytes=tail.index_bytes,
        index_crc32c=google_crc32c.value(tail.data[: tail.index_bytes]),
        segment_bytes=segment_bytes,
    )


@dataclass(frozen=True, slots=True)
class _Tail:
    """An index, and after so many bytes the checksums of pages."""

    data: bytes
    index_bytes: int


def _tail_of(sealed: Sealed, state: Detail) -> _Tail:
    ends = np.cumsum([page_count(shard) for shard in sealed.shards], dtype=np.int64)
    kept = [(shard, end) for shard, end in zip(sealed.shards, ends.tolist(), strict=True) if shard.once]
    index = index_bytes([shard for shard, _ in kept], state)
    tables = [sealed.pages[end - page_count(shard) : end] for shard, end in kept]
    return _Tail(index + b"".join(table.astype("<u4", copy=False).tobytes() for table in tables), len(index))


def each(work: Callable[[Item], object], items: Iterable[Item], *, threads: int) -> None:
    """Does the work on every item, several at a time; after a failure begins no more, and raises it.

    Args:
        work: What to do.
        items: With what.
        threads: How many at a time.

    Raises:
        Exception: What the first that failed raised.
    """
    todo = list(items)
    if len(todo) <= 1:
        for item in todo:
            work(item)
        return
    with ThreadPoolExecutor(min(threads, len(todo))) as pool:
        done, rest = wait([pool.submit(work, item) for item in todo], return_when=FIRST_EXCEPTION)
        for future in rest:
            future.cancel()
    for future in done:
        future.result()
