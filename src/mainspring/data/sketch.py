"""Value sketches: mergeable counts from which quantiles and shares follow.

Each value is counted in a bucket: its sign, its binary exponent and the first bits of its fraction. Buckets are whole
numbers taken from the bits of a double, so nothing is rounded anywhere: the sketch of many rows is the same whatever
parts it was merged from, in any order, on any machine. Zero has a bucket of its own.

Source: C. Masson, J. E. Rim, H. K. Lee, "DDSketch", VLDB 2019, with buckets that are linear between powers of two, as
in G. Tene's HdrHistogram.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mainspring.domain.errors import DamagedData, InvalidInput

FRACTION_BITS = 7
ERROR = 2.0 ** -(FRACTION_BITS + 1)  # How far a quantile may be from the value it stands for, as a share of it: 0.4 %.
DIMS_MAX = 1 << 20
_SHIFT = 52 - FRACTION_BITS  # A double has 52 bits of fraction.
_MAGNITUDE = np.int64((1 << 63) - 1)
_HALF = np.int64(1 << (_SHIFT - 1))
_SPAN = 1 << 20  # Buckets of one dimension: magnitudes end at 2^18 (11 bits of exponent, 7 of fraction), twice.
_MIDDLE = _SPAN // 2
_HEADER = struct.Struct("<4sIqq")  # Magic, dimensions, rows, buckets.
_MAGIC = b"MSK1"
_BUCKETS_MAX = 1 << 26  # A gigabyte unpacked; a thousand dimensions of the widest columns seen have 2^23.

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sketch:
    """Counts of the values of D dimensions.

    Args:
        dims: D.
        rows: How many rows were counted.
        buckets: Every bucket that is not empty, in order: the dimension times 2^20, plus where its values lie.
        counts: How many values each holds.
    """

    dims: int
    rows: int
    buckets: Integers
    counts: Integers

    @staticmethod
    def of(values: NDArray[Any]) -> Sketch:
        """Returns the sketch of rows.

        Args:
            values: [T, D], finite.

        Raises:
            InvalidInput: A value is infinite or not a number.
        """
        rows, dims = values.shape
        assert dims <= DIMS_MAX
        buckets, counts = np.unique(_places(values) + np.arange(dims) * _SPAN, return_counts=True)
        return Sketch(dims=dims, rows=rows, buckets=buckets, counts=counts.astype(np.int64))

    def merged(self, other: Sketch) -> Sketch:
        """Returns the sketch of both sets of rows.

        Args:
            other: Of the other rows; as many dimensions.
        """
        assert self.dims == other.dims
        buckets, inverse = np.unique(np.concatenate([self.buckets, other.buckets]), return_inverse=True)
        counts = np.zeros(len(buckets), np.int64)
        np.add.at(counts, inverse, np.concatenate([self.counts, other.counts]))
        return Sketch(dims=self.dims, rows=self.rows + other.rows, buckets=buckets, counts=counts)

    def quantiles(self, shares: NDArray[Any] | tuple[float, ...]) -> Floats:
        """Returns values below which shares of the rows lie: [Q, D].

        Each differs by at most `ERROR` of itself from the value at place floor(q (rows - 1)) of the sorted ones, which
        is `numpy.quantile(..., method="lower")`.

        Args:
            shares: [Q] from 0 to 1.

        Raises:
            InvalidInput: There are no rows, or a share is out of its range.
        """
        wanted = np.asarray(shares, np.float64)
        if self.rows == 0 or not ((wanted >= 0.0) & (wanted <= 1.0)).all():
            raise InvalidInput("find quantiles", got=f"{self.rows} rows, shares {wanted}", wanted="rows, and 0 to 1")
        places = np.floor(wanted * (self.rows - 1)).astype(np.int64)
        before = np.arange(self.dims) * self.rows  # Each dimension counts every row once.
        found = np.searchsorted(np.cumsum(self.counts), before + places[:, None], side="right")
        return _values(self.buckets[found] % _SPAN)

    def fractions(self, edges: NDArray[Any]) -> Floats:
        """Returns the share of rows that are at most each edge, or in the same bucket: [E, D].

        Args:
            edges: [E, D], or [E] for the same edges in every dimension; infinities are fine.

        Raises:
            InvalidInput: There are no rows, or an edge is not a number.
        """
        if self.rows == 0 or np.isnan(edges).any():
            raise InvalidInput("find shares", got=f"{self.rows} rows, edges {edges}"[:300], wanted="rows, and numbers")
        limit = np.finfo(np.float64).max
        finite = np.clip(np.asarray(edges, np.float64), -limit, limit)
        finite = np.broadcast_to(finite[:, None] if finite.ndim == 1 else finite, (len(finite), self.dims))
        dims = np.arange(self.dims)
        found = np.searchsorted(self.buckets, _places(finite) + dims * _SPAN, side="right")
        totals = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.counts)])
        shares: Floats = (totals[found] - dims * self.rows) / self.rows
        return shares


def sketch_to_bytes(sketch: Sketch) -> bytes:
    """Returns a sketch as bytes; the same for equal sketches and the same zlib.

    Args:
        sketch: The sketch.
    """
    steps = np.diff(sketch.buckets, prepend=np.int64(0)).astype("<i8")
    packed = zlib.compress(steps.tobytes() + sketch.counts.astype("<i8").tobytes())
    return _HEADER.pack(_MAGIC, sketch.dims, sketch.rows, len(steps)) + packed


def sketch_from_bytes(data: bytes) -> Sketch:
    """Returns what `sketch_to_bytes` wrote.

    Args:
        data: The bytes.

    Raises:
        DamagedData: They are something else.
    """
    try:
        magic, dims, rows, count = _HEADER.unpack_from(data)
        if magic != _MAGIC or dims > DIMS_MAX or not 0 <= count <= _BUCKETS_MAX:
            raise DamagedData("read a sketch", got=f"{count} buckets of {dims} dimensions", wanted="a sketch's header")
        unpacking = zlib.decompressobj()
        packed = unpacking.decompress(memoryview(data)[_HEADER.size :], 16 * count + 1)
    except (struct.error, zlib.error) as error:
        raise DamagedData("read a sketch", got=str(error)[:200]) from error
    if len(packed) != 16 * count or not unpacking.eof:
        raise DamagedData("read a sketch", got=f"{len(packed)} bytes", wanted=f"{count} buckets of {dims} dimensions")
    steps, counts = np.frombuffer(packed, "<i8").astype(np.int64).reshape(2, count)
    buckets = np.cumsum(steps)
    outside = len(buckets) and not (buckets[0] >= 0 and buckets[-1] < dims * _SPAN)
    if (steps[1:] <= 0).any() or (counts <= 0).any() or outside:
        raise DamagedData("read a sketch", got="buckets out of order, or empty ones")
    held = np.zeros(dims, np.int64)
    np.add.at(held, buckets // _SPAN, counts)
    if (held != rows).any():
        raise DamagedData("read a sketch", got="counts that do not add up", wanted=f"{rows} for each of {dims}")
    return Sketch(dims=dims, rows=rows, buckets=buckets, counts=counts)


def _places(values: NDArray[Any]) -> Integers:
    """Returns the bucket of each value inside its dimension; in the order of the values."""
    doubles = np.ascontiguousarray(values, np.float64)
    if not np.isfinite(doubles).all():
        raise InvalidInput("count values", got="infinite ones, or not numbers", wanted="finite numbers")
    bits = doubles.view(np.int64)
    magnitude = ((bits & _MAGNITUDE) >> _SHIFT) + 1
    place: Integers = np.where(doubles == 0.0, 0, np.where(bits < 0, -magnitude, magnitude)) + _MIDDLE
    return place


def _values(places: Integers) -> Floats:
    """Returns the middle of each bucket."""
    signed = places - _MIDDLE
    middles = (((np.abs(signed) - 1) << _SHIFT) | _HALF).view(np.float64)
    found: Floats = np.where(signed == 0, 0.0, np.copysign(middles, signed))
    return found
