"""The memory that batches are made in: one array a field, its samples written in any order, taken in one.

Sample q of a rank lies at slot q % capacity. A batch is consecutive samples, and the capacity a multiple of a batch:
so each batch is a slice, and goes from whoever decodes it to whoever trains on it without a copy.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mainspring.domain.errors import InvalidInput

BYTES_MAX = 1 << 40
_ALIGNED = 4_096  # Fields begin on pages, so that they may be moved to devices without another copy.

Batch: TypeAlias = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a sample: its shape, and NumPy's name of its type."""

    shape: tuple[int, ...]
    dtype: str


class Ring:
    """Arrays of `capacity` samples each.

    Args:
        fields: By name.
        capacity: Samples.
        shared: Another process's ring of the same shape to look into, "/proc/PID/fd/N"; "" makes one.
        alone: Whether no other process will look into it. Such memory comes in large pages: its first use, which
            zeroes it, costs a third or less, and later ones a little less.

    Raises:
        InvalidInput: It would take more than `BYTES_MAX`.
    """

    def __init__(self, fields: Mapping[str, Field], capacity: int, shared: str = "", *, alone: bool = False) -> None:
        places, size_bytes = {}, 0
        for name, field in sorted(fields.items()):
            places[name] = size_bytes
            count = capacity * math.prod(field.shape) * np.dtype(field.dtype).itemsize
            size_bytes += -(-count // _ALIGNED) * _ALIGNED
        if size_bytes > BYTES_MAX:
            raise InvalidInput(
                "make room for batches",
                got=f"{size_bytes / 2**30:.0f} GiB for {capacity} samples",
                wanted="less",
                next_step="ask for fewer lanes",
            )
        if alone:
            self._file = -1
        elif shared:
            self._file = os.open(shared, os.O_RDWR)
        else:
            self._file = os.memfd_create("batches")  # Gone with its last process, however that ends.
            os.ftruncate(self._file, max(size_bytes, 1))
        memory = mmap.mmap(self._file, max(size_bytes, 1), mmap.MAP_PRIVATE if alone else mmap.MAP_SHARED)
        with contextlib.suppress(OSError):  # Of a kernel without them.
            memory.madvise(mmap.MADV_HUGEPAGE)
        self.capacity = capacity
        self.size_bytes = size_bytes
        self.arrays: Batch = {
            name: np.ndarray((capacity, *field.shape), field.dtype, buffer=memory, offset=places[name])
            for name, field in fields.items()
        }

    @property
    def place(self) -> str:
        """Returns where another process of this machine finds it."""
        assert self._file >= 0, "it was made to be looked into"
        return f"/proc/{os.getpid()}/fd/{self._file}"

    def slot(self, sample: int) -> int:
        """Returns where a sample lies.

        Args:
            sample: Its number.
        """
        return sample % self.capacity

    def batch(self, first: int, count: int) -> Batch:
        """Returns consecutive samples, as they lie.

        Args:
            first: Number of the first; a multiple of `count`.
            count: How many.
        """
        at = self.slot(first)
        return {name: array[at : at + count] for name, array in self.arrays.items()}

    def close(self) -> None:
        """Lets go of the file; the memory goes with the last array that looks into it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
