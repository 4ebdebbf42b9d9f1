"""Parallel memory copies: many arrays at once, with several threads where there is much to copy.

What devices hold is brought to host memory a group at a time, while the group before is copied on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mainspring.session.blocks import OnDevice

THREADS_MAX = 4  # Two to four cores use up a socket's memory bandwidth; the rest stay with the program.
PART_BYTES = 32 << 20  # Two milliseconds of copying: threads end together, and a task's own 30 us do not show.
PAGE_BYTES = 4_096  # Of memory; where pages are larger, some reads find what is there.
THREADED_BYTES_MIN = 64 << 20  # Below, starting threads (0.1 ms each) costs what they save.
GROUP_BYTES = (
    512 << 20
)  # Of two such groups: what host memory devices' arrays take on their way, 20 ms of a PCIe 5 link.
_PLAIN = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}

Pair = tuple[NDArray[Any], NDArray[Any]]
Item = TypeVar("Item")


def copy_brought(pairs: Sequence[tuple[NDArray[Any], NDArray[Any] | OnDevice]], group_bytes: int = GROUP_BYTES) -> None:
    """Copies as `copy_all` does, with sources that devices hold.

    Args:
        pairs: Targets and sources; no target overlaps another.
        group_bytes: How much is brought at once; while one group is copied on, the next is under way.
    """
    copy_all((target, source) for target, source in pairs if not isinstance(source, OnDevice))
    groups = _groups([(target, source) for target, source in pairs if isinstance(source, OnDevice)], group_bytes)
    before: list[tuple[NDArray[Any], Callable[[], NDArray[Any]]]] = []
    for group in [*groups, []]:
        begun = [(target, source.bring()) for target, source in group]
        copy_all([(target, wait()) for target, wait in before])
        before = begun


def _groups(
    pairs: Sequence[tuple[NDArray[Any], OnDevice]], group_bytes: int
) -> list[list[tuple[NDArray[Any], OnDevice]]]:
    groups: list[list[tuple[NDArray[Any], OnDevice]]] = []
    room = 0
    for target, source in pairs:
        if room <= 0:
            groups.append([])
            room = group_bytes
        groups[-1].append((target, source))
        room -= source.nbytes
    return groups


def copy_all(pairs: Iterable[Pair]) -> None:
    """Copies each second array over the first, of the same shape and type.

    Args:
        pairs: Targets and sources; no target overlaps another.
    """
    parts = [part for target, source in pairs for part in _parts(target, source)]
    _share_out(_copy, _batches(parts), sum(target.nbytes for target, _ in parts))


def touch(data: NDArray[np.uint8]) -> None:
    """Has the system find or make the memory of every page now, so that copying there does not wait for it later.

    Args:
        data: Mapped bytes. They are only read: another process may write them meanwhile.
    """
    parts = [data[start : start + PART_BYTES : PAGE_BYTES] for start in range(0, len(data), PART_BYTES)]
    _share_out(_read, parts, len(data))


def _share_out(work: Callable[[Item], None], items: Sequence[Item], size_bytes: int) -> None:
    threads = min(THREADS_MAX, os.cpu_count() or 1)
    if threads == 1 or size_bytes < THREADED_BYTES_MIN:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(threads, "mainspring-copy") as pool:
        for _ in pool.map(work, items):
            pass


def _copy(pairs: Sequence[Pair]) -> None:
    for pair in pairs:
        np.copyto(*pair)  # Lets other threads run meanwhile.


def _read(data: NDArray[np.uint8]) -> None:
    data.max()  # As `_copy`.


def _batches(parts: Sequence[Pair]) -> list[list[Pair]]:
    batches: list[list[Pair]] = []
    room = 0
    for target, source in parts:
        if room <= 0:
            batches.append([])
            room = PART_BYTES
        batches[-1].append((target, source))
        room -= target.nbytes
    return batches


def _parts(target: NDArray[Any], source: NDArray[Any]) -> Iterator[Pair]:
    plain = _PLAIN.get(source.itemsize)
    if plain is not None:
        target, source = target.view(plain), source.view(plain)  # Types of ml_dtypes are copied one by one otherwise.
    if not (target.flags.c_contiguous and source.flags.c_contiguous):
        yield target, source
        return
    target, source = target.reshape(-1), source.reshape(-1)
    count = max(PART_BYTES // source.itemsize, 1)
    for low in range(0, source.size, count):
        yield target[low : low + count], source[low : low + count]
