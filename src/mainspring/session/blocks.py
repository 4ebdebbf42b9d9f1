"""Blocks of arrays as a program hands them over and gets them back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mainspring.domain.errors import DamagedData, InvalidInput, NotFound
from mainspring.domain.shards import overlap
from mainspring.domain.wire import Detail, Shard

AXES_MAX = 32  # JAX and NumPy stop there or shortly after.
_PLAIN_KINDS = "biufc"  # NumPy's letters for bool, integers, floats and complex numbers.


def dtype_named(name: str) -> np.dtype[Any]:
    """Returns the dtype of plain numbers called `name`; the small float types of machine learning included.

    Args:
        name: NumPy's or ml_dtypes' name ("float32", "bfloat16", "float8_e4m3fn").

    Raises:
        DamagedData: No such type of numbers.
    """
    try:
        dtype = np.dtype(name)
    except TypeError:
        import ml_dtypes  # Only where such an array exists: it comes with JAX, not with every install.

        kind = getattr(ml_dtypes, name, None)
        if not isinstance(kind, type):
            raise DamagedData("read an array", got=f"dtype {name[:80]!r}", wanted="a type of numbers") from None
        return np.dtype(kind)
    if dtype.name != name or not (dtype.kind in _PLAIN_KINDS or dtype.isbuiltin == 2):
        raise DamagedData("read an array", got=f"dtype {name[:80]!r}", wanted="a type of numbers")
    return dtype


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """One block of one array.

    Args:
        path: The array's place in the program's tree ("params/dense/kernel"); unique in the program.
        data: The block's numbers. Not copied: it may be a view, and must stay unchanged while it is handed over.
        global_shape: Shape of the whole array.
        start: Index of the block's first element in the whole array.
        once: Whether this copy is the one to make durable; replicas on other ranks say False.
    """

    path: str
    data: NDArray[Any]
    global_shape: tuple[int, ...]
    start: tuple[int, ...]
    once: bool = True

    def __post_init__(self) -> None:
        """Checks that the block lies inside its array and holds plain numbers in native byte order.

        Raises:
            InvalidInput: It does not.
        """
        inside = (
            len(self.global_shape) == len(self.start) == self.data.ndim <= AXES_MAX
            and all(at >= 0 for at in self.start)
            and all(
                at + size <= whole
                for at, size, whole in zip(self.start, self.data.shape, self.global_shape, strict=True)
            )
        )
        if not inside:
            raise InvalidInput(
                "accept a block",
                on=self.path,
                got=f"shape {self.data.shape} at {self.start}",
                wanted=f"a block inside shape {self.global_shape}",
            )
        plain = self.data.dtype.kind in _PLAIN_KINDS or self.data.dtype.isbuiltin == 2
        if not plain or not self.data.dtype.isnative:
            raise InvalidInput(
                "accept a block", on=self.path, got=f"dtype {self.data.dtype}", wanted="numbers in native byte order"
            )

    @classmethod
    def whole(cls, path: str, data: NDArray[Any], *, once: bool = True) -> Block:
        """Returns a block that is its whole array.

        Args:
            path: See `Block`.
            data: See `Block`.
            once: See `Block`.
        """
        return cls(path=path, data=data, global_shape=data.shape, start=(0,) * data.ndim, once=once)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Restored:
    """The state a generation resumes from.

    Args:
        step: The step it was taken at.
        state: The program's own small facts.
        source: Where it came from ("arena" or "store"), for people.
        blocks: Read-only views into shared memory, good until the next snapshot; `array` gives a copy.
    """

    step: int
    state: Detail
    source: str
    blocks: tuple[Block, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """Returns the paths of all arrays, in order."""
        return tuple(sorted({block.path for block in self.blocks}))

    def array(self, path: str, start: Sequence[int] = (), shape: Sequence[int] | None = None) -> NDArray[Any]:
        """Returns a fresh copy of an array, or of one region of it, put together from the blocks.

        Args:
            path: The array's place in the program's tree.
            start: The region's first element; () with no shape means the whole array.
            shape: The region's shape.

        Raises:
            NotFound: There is no such array.
            DamagedData: The blocks do not cover the region.
        """
        blocks = {(block.start, block.data.shape): block for block in self.blocks if block.path == path}
        if not blocks:
            raise NotFound("restore an array", on=path, wanted=f"one of {', '.join(self.paths[:20])}")
        first = next(iter(blocks.values()))
        if shape is None:
            start, shape = (0,) * len(first.global_shape), first.global_shape
        region = np.empty(tuple(shape), dtype=first.data.dtype)
        covered = 0
        for block in blocks.values():
            common = overlap(start, shape, block.start, block.data.shape)
            if common is not None:
                region[common.first] = block.data[common.second]
                covered += common.items
        if covered != math.prod(shape):
            raise DamagedData(
                "restore an array",
                on=path,
                got=f"{covered} elements in blocks",
                wanted=f"{math.prod(shape)} for shape {tuple(shape)} at {tuple(start)}",
            )
        return region


def block_in(shard: Shard, data: NDArray[np.uint8]) -> Block:
    """Returns the block a shard describes, as a view into `data`.

    Args:
        shard: Its place and type; `offset` counts from the start of `data`.
        data: The bytes of the slot or file.

    Raises:
        DamagedData: The shard lies outside `data`, or its size and shape disagree.
    """
    dtype = dtype_named(shard.dtype)
    size_bytes = math.prod(shard.shape) * dtype.itemsize
    if min((0, *shard.shape)) < 0 or size_bytes != shard.size_bytes or not 0 <= shard.offset <= len(data) - size_bytes:
        raise DamagedData(
            "read a shard",
            on=shard.path,
            got=f"{shard.size_bytes} bytes at {shard.offset}",
            wanted=f"{size_bytes} bytes within {len(data)}",
        )
    view = data[shard.offset : shard.offset + size_bytes].view(dtype).reshape(shard.shape)
    return Block(path=shard.path, data=view, global_shape=shard.global_shape, start=shard.start, once=shard.once)
