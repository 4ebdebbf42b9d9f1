"""Blocks of arrays as a program hands them over."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from mainspring.domain.errors import DamagedData, InvalidInput
from mainspring.domain.wire import Part

ALIGNMENT_BYTES = 64  # A cache line, and what XLA wants of a buffer it may use without a copy.
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


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OnDevice:
    """Numbers that a device holds, for good: nothing changes them until they have been brought to host memory.

    Args:
        bring: Begins to bring them, and returns what waits for them; both may be called in any thread, once.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    bring: Callable[[], Callable[[], NDArray[Any]]]

    @property
    def ndim(self) -> int:
        """Returns how many axes they have."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Returns how many bytes they are."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """One block of one array.

    Args:
        path: The array's place in the program's tree ("params/dense/kernel"); unique in the program.
        data: The block's numbers. Not copied here: it may be a view, which `Session.snapshot` copies before it returns;
            what is `OnDevice` is copied while the program goes on.
        global_shape: Shape of the whole array.
        start: Index of the block's first element in the whole array.
        once: Whether this copy is the one to make durable; replicas on other ranks say False.
        elsewhere: Whether a rank on another node hands over the same block, so that it needs no copy on a peer.
        part: What the array is for.
    """

    path: str
    data: NDArray[Any] | OnDevice
    global_shape: tuple[int, ...]
    start: tuple[int, ...]
    once: bool = True
    elsewhere: bool = False
    part: Part = Part.OTHER

    def __post_init__(self) -> None:
        """Checks that the block lies inside its array and holds plain numbers in native byte order.

        Raises:
            InvalidInput: It does not.
        """
        if not (
            len(self.global_shape) == len(self.start) == self.data.ndim <= AXES_MAX
            and all(at >= 0 for at in self.start)
            and all(
                at + size <= whole
                for at, size, whole in zip(self.start, self.data.shape, self.global_shape, strict=True)
            )
        ):
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
    def whole(
        cls, path: str, data: NDArray[Any], *, once: bool = True, elsewhere: bool = False, part: Part = Part.OTHER
    ) -> Block:
        """Returns a block that is its whole array.

        Args:
            path: See `Block`.
            data: See `Block`.
            once: See `Block`.
            elsewhere: See `Block`.
            part: See `Block`.
        """
        start = (0,) * data.ndim
        return cls(
            path=path, data=data, global_shape=data.shape, start=start, once=once, elsewhere=elsewhere, part=part
        )


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Returns a new array in memory that begins where a cache line does: JAX takes such memory as it is.

    Args:
        shape: Its shape.
        dtype: Its type.
    """
    size_bytes = math.prod(shape) * dtype.itemsize
    room = np.empty(size_bytes + ALIGNMENT_BYTES, dtype=np.uint8)
    begin = -room.ctypes.data % ALIGNMENT_BYTES
    return room[begin : begin + size_bytes].view(dtype).reshape(shape)
