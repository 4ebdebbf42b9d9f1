"""Checkpoint comparison: how two of them differ, array by array, in bounded memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mainspring.checkpoint.format import dtype_named
from mainspring.checkpoint.interop import ArraySource, ArraySpec, Progress, batches

_CHUNK_ITEMS = 1 << 16  # As float64 and a few temporaries they stay in a processor's cache.


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """What is to know of one side's numbers.

    Args:
        norm: Euclidean norm of the finite elements.
        nans: How many are not a number.
        infinities: How many are infinite.
    """

    norm: float
    nans: int
    infinities: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How one array differs between two checkpoints.

    Args:
        path: The array's.
        left: What it is in the first, None when it has none.
        right: What it is in the second, None when it has none.
        same: Whether type, shape and every bit are equal.
        absolute: The largest difference of two finite elements; None where they cannot be compared one by one.
        relative: The largest such difference over the larger of the two magnitudes.
        norm: Euclidean norm of the difference.
        left_numbers: The first's numbers, None when they were not compared.
        right_numbers: The second's.
    """

    path: str
    left: ArraySpec | None
    right: ArraySpec | None
    same: bool = False
    absolute: float | None = None
    relative: float | None = None
    norm: float | None = None
    left_numbers: Numbers | None = None
    right_numbers: Numbers | None = None


def differences(
    left: ArraySource, right: ArraySource, *, progress: Progress = lambda done: None
) -> tuple[Difference, ...]:
    """Returns how each array of either checkpoint differs, in order of path.

    Args:
        left: The first.
        right: The second.
        progress: Told of bytes as those of the first are read.

    Raises:
        DamagedData: One of them does not hold together.
    """
    ours, theirs = ({array.path: array for array in source.arrays} for source in (left, right))
    pairs = [(ours[path], theirs[path]) for path in sorted(ours) if path in theirs]
    pairs = [pair for pair in pairs if pair[0].shape == pair[1].shape]
    tallies = {one.path: _Tally() for one, _ in pairs}
    like = [max(pair, key=lambda array: dtype_named(array.dtype).itemsize) for pair in pairs]
    in_step = zip(
        batches(left, [one for one, _ in pairs], like=like),
        batches(right, [other for _, other in pairs], like=like),
        strict=True,
    )
    with np.errstate(all="ignore"):  # Numbers too large for a square are told as the largest there is.
        for some, others in in_step:
            for one, other in zip(some, others, strict=True):
                tallies[one.array.path].add(one.elements.reshape(-1), other.elements.reshape(-1))
            progress(sum(each.elements.nbytes for each in some))
    return tuple(_told(ours.get(path), theirs.get(path), tallies.get(path)) for path in sorted({*ours, *theirs}))


class _Tally:
    """Sums up regions of a pair of arrays."""

    def __init__(self) -> None:
        self.same = True
        self.absolute = self.relative = self.squares = 0.0
        self.sides = ([0.0, 0, 0], [0.0, 0, 0])

    def add(self, left: NDArray[Any], right: NDArray[Any]) -> None:
        """Adds one region of both, one-dimensional."""
        self.same = (
            self.same and left.dtype == right.dtype and np.array_equal(left.view(np.uint8), right.view(np.uint8))
        )
        for low in range(0, len(left), _CHUNK_ITEMS):
            self._add_chunk(left[low : low + _CHUNK_ITEMS], right[low : low + _CHUNK_ITEMS])

    def _add_chunk(self, left: NDArray[Any], right: NDArray[Any]) -> None:
        wide = [_wide(left), _wide(right)]
        squares = [_squares(each) for each in wide]
        if not np.isfinite(squares).all():  # Some element is not: count those, and leave them out of the rest.
            finite = [np.isfinite(each) for each in wide]
            for side, numbers, sound in zip(self.sides, wide, finite, strict=True):
                nans = int(np.isnan(numbers).sum())
                side[1] += nans
                side[2] += numbers.size - int(sound.sum()) - nans
            squares = [_squares(each[sound]) for each, sound in zip(wide, finite, strict=True)]
            wide = [each[finite[0] & finite[1]] for each in wide]
        for side, more in zip(self.sides, squares, strict=True):
            side[0] += more
        one, other = wide
        apart = np.abs(one - other)
        self.squares += _squares(apart)
        self.absolute = max(self.absolute, float(apart.max(initial=0.0)))
        larger = np.maximum(np.abs(one), np.abs(other))
        np.divide(apart, larger, out=apart, where=larger > 0)  # Where it is 0, so is the difference.
        self.relative = max(self.relative, float(apart.max(initial=0.0)))


def _wide(array: NDArray[Any]) -> NDArray[Any]:
    """Returns elements as float64, or complex128: types of a few bits know no arithmetic of their own."""
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _squares(numbers: NDArray[Any]) -> float:
    """Returns the sum of squared magnitudes, by no dot product: BLAS would wake all its threads for each chunk."""
    return float(np.square(np.abs(numbers) if numbers.dtype.kind == "c" else numbers).sum())


def _told(one: ArraySpec | None, other: ArraySpec | None, tally: _Tally | None) -> Difference:
    known = one or other
    assert known is not None
    if one is None or other is None or tally is None:
        return Difference(path=known.path, left=one, right=other)
    sides = [Numbers(norm=_root(side[0]), nans=int(side[1]), infinities=int(side[2])) for side in tally.sides]
    return Difference(
        path=known.path,
        left=one,
        right=other,
        same=tally.same and one.dtype == other.dtype,
        absolute=_bounded(tally.absolute),
        relative=_bounded(tally.relative),
        norm=_root(tally.squares),
        left_numbers=sides[0],
        right_numbers=sides[1],
    )


def _root(squares: float) -> float:
    return _bounded(math.sqrt(squares))


def _bounded(number: float) -> float:
    """Returns a number that JSON can say: what passes float64 is told as its largest."""
    return min(number, float(np.finfo(np.float64).max))
