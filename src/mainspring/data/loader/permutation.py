"""A shuffle of 0 .. count-1 that needs no memory: any element of the order is computed from its position.

A Feistel network over the bits of the position permutes the next power of two; positions that land outside the count
are sent through again until they land inside (cycle walking), which keeps it a permutation.
Source: M. Luby and C. Rackoff, SIAM J. Comput. 17 (1988); J. Black and P. Rogaway, "Ciphers with Arbitrary Finite
Domains", CT-RSA 2002. The mixing step is the finaliser of SplitMix64 (Steele et al., OOPSLA 2014).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from mainspring.domain.errors import InvalidInput

COUNT_MAX = 1 << 62
ROUNDS = 6  # Four make a strong permutation of wide words; narrow words (small counts) need the margin.
_WALKS_MAX = 256  # Each walk leaves fewer than half outside; 64 bits are exhausted long before.
_BLOCK = 1 << 14  # Positions worked on at once: 128 KiB a temporary, so that all of them stay in cache.
_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9)
_SHIFT = np.uint64(31)

Words: TypeAlias = NDArray[np.uint64]


class Permutation:
    """One order of `count` things.

    Args:
        count: How many.
        key: Chooses the order; any words, such as a content id, a seed and an epoch.

    Raises:
        InvalidInput: The count is out of range.
    """

    def __init__(self, count: int, *key: str | int) -> None:
        if not 1 <= count <= COUNT_MAX:
            raise InvalidInput("shuffle", got=f"{count} things", wanted=f"1 to {COUNT_MAX}")
        self.count = count
        bits = max(2, (count - 1).bit_length())
        self._widths = (bits // 2, bits - bits // 2)
        digest = blake3("\0".join(map(str, key)).encode()).digest(length=8 * ROUNDS)
        self._keys = np.frombuffer(digest, dtype="<u8")

    def __call__(self, positions: NDArray[Any]) -> NDArray[np.int64]:
        """Returns which thing stands at each position.

        Args:
            positions: Whole numbers from 0 to count - 1, in any order.
        """
        out = np.empty(len(positions), dtype=np.int64)
        for start in range(0, len(positions), _BLOCK):
            block = np.asarray(positions[start : start + _BLOCK], dtype=np.uint64)
            assert len(block) == 0 or int(block.max()) < self.count
            out[start : start + _BLOCK] = self._walked(block)
        return out

    def _walked(self, positions: Words) -> Words:
        out = self._network(positions)
        for _ in range(_WALKS_MAX):
            outside = np.flatnonzero(out >= np.uint64(self.count))
            if len(outside) == 0:
                return out
            out[outside] = self._network(out[outside])
        raise AssertionError("a walk did not end")

    def _network(self, words: Words) -> Words:
        low_bits, high_bits = self._widths
        low = words & np.uint64((1 << low_bits) - 1)
        high = words >> np.uint64(low_bits)
        mixed = np.empty_like(words)
        shifted = np.empty_like(words)
        for key in self._keys:
            np.add(low, key, out=mixed)
            np.right_shift(mixed, _SHIFT, out=shifted)
            np.bitwise_xor(mixed, shifted, out=mixed)
            np.multiply(mixed, _MULTIPLIER, out=mixed)
            np.right_shift(mixed, np.uint64(64 - high_bits), out=mixed)  # The highest bits are the best mixed.
            np.bitwise_xor(high, mixed, out=high)
            low, high = high, low
            low_bits, high_bits = high_bits, low_bits
        whole: Words = (high << np.uint64(low_bits)) | low
        return whole
