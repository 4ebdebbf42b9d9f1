"""Copies many arrays at once, at the speed of memory: several threads where there is much to copy."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

THREADS_MAX = 4  # Two to four cores use up a socket's memory bandwidth; the rest stay with the program.
PART_BYTES = 8 << 20  # Half a millisecond of copying: threads end together, and NumPy's own cost does not show.
THREADED_BYTES_MIN = 64 << 20  # Below, starting threads (0.1 ms each) costs what they save.
_PLAIN = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}

Pair = tuple[NDArray[Any], NDArray[Any]]


def copy_all(pairs: Iterable[Pair]) -> None:
    """Copies each second array over the first, of the same shape and type.

    Args:
        pairs: Targets and sources; no target overlaps another.
    """
    parts = [part for target, source in pairs for part in _parts(target, source)]
    threads = min(THREADS_MAX, os.cpu_count() or 1)
    if threads == 1 or sum(target.nbytes for target, _ in parts) < THREADED_BYTES_MIN:
        for part in parts:
            _copy(part)
        return
    with ThreadPoolExecutor(threads, "mainspring-copy") as pool:
        for _ in pool.map(_copy, parts):
            pass


def _copy(pair: Pair) -> None:
    np.copyto(*pair)  # Lets other threads run meanwhile.


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
