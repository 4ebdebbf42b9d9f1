"""All arrays of a checkpoint of any format, in memory, by path: what tables read from."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mainspring.checkpoint.format import dtype_named
from mainspring.checkpoint.interop import ArraySource, Block, Region


def read_arrays(source: ArraySource) -> dict[str, NDArray[Any]]:
    """Returns every array of a checkpoint, whole.

    Args:
        source: The checkpoint, as `checkpoint.orbax` or `checkpoint.safetensors` open it.

    Raises:
        DamagedData: The bytes are missing, or not what they should be.
        Unavailable: The store or disk does not answer.
    """
    blocks = [
        Block(
            array=array,
            region=Region(start=(0,) * len(array.shape), shape=array.shape),
            elements=np.empty(array.shape, dtype_named(array.dtype)),
        )
        for array in source.arrays
    ]
    source.read(blocks)
    return {block.array.path: block.elements for block in blocks}
