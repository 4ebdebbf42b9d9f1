"""Shard geometry: where blocks of one array meet, as runs of bytes; every restore onto another layout is made of it.

A shard's elements lie in row-major order. A region that was cut otherwise than the shards is put together from runs of
their bytes: `sources` says which, and each `Run` how its bytes lie. With NumPy, a run's bytes go to their place by

    region[run.place] = numpy.ndarray(run.shape, dtype, buffer=the_bytes, strides=run.strides)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from mainspring.domain.errors import DamagedData
from mainspring.domain.wire import Shard

GAP_BYTES_MIN = 32 << 10  # What a disk of 1 GB/s and an object store's range request both cost about as much as.

Numbered = tuple[int, Shard]  # A shard, and its number in the list it came from.


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """The common part of two blocks.

    Args:
        first: Its place inside the first block, one slice an axis.
        second: Its place inside the second block.
        items: How many array elements it holds.
    """

    first: tuple[slice, ...]
    second: tuple[slice, ...]
    items: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Neighbouring bytes of a shard that a region needs. They may cover a few others: `strides` steps over those.

    Args:
        offset: Of the first byte, in the shard.
        size_bytes: How many bytes.
        shape: Of the elements inside that the region needs.
        strides: Bytes from one such element to the next, an entry an axis.
        place: Where these elements go in the region, a slice an axis.
    """

    offset: int
    size_bytes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    place: tuple[slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A run of one shard.

    Args:
        shard: The shard's number in its list.
        run: Which bytes, and where they go.
    """

    shard: int
    run: Run


def overlap(
    first_start: Sequence[int], first_shape: Sequence[int], second_start: Sequence[int], second_shape: Sequence[int]
) -> Overlap | None:
    """Returns the common part of two blocks of one array, or None when they do not meet.

    Args:
        first_start: Index of the first block's first element, an entry an axis.
        first_shape: Shape of the first block.
        second_start: As `first_start`, for the second block.
        second_shape: As `first_shape`, for the second block.
    """
    first, second, items = [], [], 1
    for start_a, size_a, start_b, size_b in zip(first_start, first_shape, second_start, second_shape, strict=True):
        low, high = max(start_a, start_b), min(start_a + size_a, start_b + size_b)
        if low >= high:
            return None
        first.append(slice(low - start_a, high - start_a))
        second.append(slice(low - start_b, high - start_b))
        items *= high - low
    return Overlap(first=tuple(first), second=tuple(second), items=items)


def runs(shard: Shard, start: Sequence[int], shape: Sequence[int]) -> tuple[Run, ...]:
    """Returns the runs of a shard's bytes that a region needs, in order; none when they do not meet.

    Gaps shorter than `GAP_BYTES_MIN` or a page of checksums are read along: leaving them out would save nothing.

    Args:
        shard: One block of the array.
        start: Index of the region's first element, an entry an axis.
        shape: Shape of the region.
    """
    common = overlap(shard.start, shard.shape, start, shape)
    if common is None:
        return ()
    item_bytes = shard.size_bytes // math.prod(shard.shape)
    strides: list[int] = []
    spans = [item_bytes]  # From the last axis up: bytes from the first element needed to the end of the last.
    stride, first = item_bytes, 0
    for size, cut in zip(reversed(shard.shape), reversed(common.first), strict=True):
        strides.append(stride)
        spans.append((cut.stop - cut.start - 1) * stride + spans[-1])
        first += cut.start * stride
        stride *= size
    strides.reverse()
    spans.reverse()
    extents = tuple(cut.stop - cut.start for cut in common.first)
    gap_bytes = max(GAP_BYTES_MIN, shard.page_bytes)
    cuts = 0  # Gaps only shrink from the first axis to the last, so the axes to cut come first.
    while cuts < len(extents) and (extents[cuts] == 1 or strides[cuts] - spans[cuts + 1] >= gap_bytes):
        cuts += 1
    found = []
    for outer in product(*(range(extent) for extent in extents[:cuts])):
        lows = [cut.start + i for cut, i in zip(common.second, outer, strict=False)]
        found.append(
            Run(
                offset=first + sum(i * stride for i, stride in zip(outer, strides, strict=False)),
                size_bytes=spans[cuts],
                shape=(1,) * cuts + extents[cuts:],
                strides=tuple(strides),
                place=tuple(slice(low, low + 1) for low in lows) + common.second[cuts:],
            )
        )
    return tuple(found)


def by_path(shards: Iterable[Shard]) -> Mapping[str, tuple[Numbered, ...]]:
    """Returns shards with their numbers, grouped by path, paths in order.

    Args:
        shards: The list they are numbered in.
    """
    found: dict[str, list[Numbered]] = {}
    for number, shard in enumerate(shards):
        found.setdefault(shard.path, []).append((number, shard))
    return {path: tuple(found[path]) for path in sorted(found)}


def sources(shards: Iterable[Numbered], start: Sequence[int], shape: Sequence[int]) -> tuple[Source, ...] | None:
    """Returns what to read for a region of one array, or None when the shards do not hold all of it.

    Of several copies of a block the first counts.

    Args:
        shards: The array's shards, with their numbers.
        start: Index of the region's first element, an entry an axis.
        shape: Shape of the region.

    Raises:
        DamagedData: Blocks overlap that are not copies of each other, or have another number of axes.
    """
    seen: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    found: list[Source] = []
    items = 0
    for number, shard in shards:
        block = (shard.start, shard.shape)
        if len(shard.start) != len(start):
            raise DamagedData("read an array", on=shard.path, got=f"a block at {shard.start}", wanted=f"at {start}")
        if block in seen:
            continue
        parts = runs(shard, start, shape)
        if parts:
            seen[block] = number
            items += sum(math.prod(run.shape) for run in parts)
            found.extend(Source(shard=number, run=run) for run in parts)
    if items < math.prod(shape):
        return None
    blocks = sorted(seen)
    for index, (low, size) in enumerate(blocks):
        for other_low, other_size in blocks[index + 1 :]:
            if other_low and other_low[0] >= low[0] + size[0]:
                break  # They are in order of the first axis.
            if overlap(low, size, other_low, other_size):
                raise DamagedData("read an array", got=f"blocks at {low} and {other_low} that overlap")
    return tuple(found)
