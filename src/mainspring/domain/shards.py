"""Where two blocks of one array meet: the geometry every restore onto another layout is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
