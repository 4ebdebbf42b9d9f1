"""How many bytes an array takes of a device's memory: on a TPU its last two axes are filled up to whole tiles.

Source: OpenXLA, "Tiled layout"; which two axes are last, and the height of a tile, are as the TPU compiler of libtpu
0.0.52 lays out arguments: those that waste least, and 2, 4 or 8 rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

LANES = 128
ROWS = (2, 4, 8)


def array_bytes(shape: Sequence[int], itemsize: int, *, tiled: bool) -> int:
    """Returns the bytes of an array.

    Args:
        itemsize: Bytes of a number.
        tiled: Whether it lies on a TPU.
    """
    count = math.prod(shape)
    if not tiled or not count:
        return count * itemsize
    if len(shape) < 2:
        return _filled(count, LANES) * itemsize
    return (
        min(
            count // (shape[lane] * shape[row]) * _filled(shape[lane], LANES) * _rows(shape[row])
            for lane in range(len(shape))
            for row in range(len(shape))
            if row != lane
        )
        * itemsize
    )


def _rows(size: int) -> int:
    return next((rows for rows in ROWS if size <= rows), _filled(size, ROWS[-1]))


def _filled(size: int, tile: int) -> int:
    return -(-size // tile) * tile


def token_bytes(count: float, features: int, itemsize: int, *, tiled: bool) -> float:
    """Returns the bytes of many tokens that a program computes: their features are the last axis.

    Args:
        itemsize: Bytes of a number.
        tiled: Whether they lie on a TPU.
    """
    return count * (_filled(features, LANES) if tiled else features) * itemsize
