"""Packets in memory, for who hands them on without decoding them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Coded:
    """Packets one after the other.

    Args:
        data: Their bytes.
        ends: [rows] where each ends, from the first one's begin.
    """

    data: memoryview
    ends: NDArray[np.int64]
