"""In which order samples come: a pure function of what there is, a seed and the position.

Rows that are decoded together (a group of pictures) form a block. Blocks come in the order of a permutation that needs
no memory, and `lanes` of them are read side by side: position p belongs to lane p % lanes, and each lane gives its
block's rows, shuffled, one a turn. So consecutive samples come from as many places as there are lanes, every frame is
decoded once, and any position is found in a few searches. With blocks of one row the order is a permutation of rows.

Ranks take positions by modulo of their number; where the number of ranks divides the lanes, each lane has one owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from mainspring.data.loader.permutation import Permutation
from mainspring.domain.errors import InvalidInput

LANES = 96  # Divided by 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48 ranks; beyond, ask for a multiple of the ranks.
LANES_MAX = 1 << 20
BLOCK_MAX = 1_024
PERIOD = 1 << 16  # Blocks after which a mixture's pattern repeats: a weight is met within 1 in 65,536.
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # SplitMix64's; see `permutation`.
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))

Integers: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Runs:
    """Consecutive rows of a view: its episodes, or what a filter leaves of them.

    Args:
        starts: [R] first rows, in order.
        lengths: [R] how many rows, each over 0.
        phases: [R] how far into its group of pictures each begins; 0 where an episode begins.
    """

    starts: Integers
    lengths: Integers
    phases: Integers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Samples:
    """N samples: for each the component of the mixture it is of, and its row there."""

    component: Integers
    row: Integers


class Blocks:
    """Runs cut into blocks of one size.

    Whole groups of pictures are blocks of their own. What is left at the ends of runs is put together, in order, into
    more blocks; the last of these is filled up with its own first rows again, fewer than a block of them.

    Args:
        runs: What there is.
        size: Rows of a block: the view's group of pictures, or 1.

    Raises:
        InvalidInput: There are no rows, or the size is out of range.
    """

    def __init__(self, runs: Runs, size: int) -> None:
        if not 1 <= size <= BLOCK_MAX or len(runs.lengths) == 0 or runs.lengths.min() < 1:
            raise InvalidInput("order samples", got=f"{len(runs.lengths)} runs, blocks of {size}", wanted="some rows")
        self.size = size
        heads = np.minimum(-runs.phases % size, runs.lengths)
        whole = (runs.lengths - heads) // size
        tails = runs.lengths - heads - whole * size
        self._first = runs.starts + heads  # Row of each run's first whole block.
        self._whole_ends = np.cumsum(whole)
        rests = np.stack([heads, tails], axis=1).ravel()
        rest_rows = np.stack([runs.starts, self._first + whole * size], axis=1).ravel()
        used = rests > 0
        self._rest_rows, self._rest_ends = rest_rows[used], np.cumsum(rests[used])
        self._whole = int(self._whole_ends[-1])
        self._rest = int(self._rest_ends[-1]) if len(self._rest_ends) else 0
        self.rows = int(runs.lengths.sum())
        self.count = self._whole + -(-self._rest // size)

    def at(self, block: Integers, inside: Integers) -> Integers:
        """Returns rows of the view.

        Args:
            block: [N] numbers below `count`.
            inside: [N] numbers below `size`.
        """
        out = np.empty(len(block), np.int64)
        whole = block < self._whole
        run = np.searchsorted(self._whole_ends, block[whole], side="right")
        before = np.where(run > 0, self._whole_ends[run - 1], 0)
        out[whole] = self._first[run] + (block[whole] - before) * self.size + inside[whole]
        if not whole.all():
            place = ((block[~whole] - self._whole) * self.size + inside[~whole]) % self._rest
            rest = np.searchsorted(self._rest_ends, place, side="right")
            before = np.where(rest > 0, self._rest_ends[rest - 1], 0)
            out[~whole] = self._rest_rows[rest] + place - before
        return out


class Order:
    """The endless order of samples of one or several components.

    Args:
        components: What is mixed; blocks of one size.
        names: One for each; they, the seed and the epoch choose the order of a component's blocks.
        weights: How often a sample is of each; any scale.
        seed: Chooses the order.
        lanes: Blocks read side by side.

    Raises:
        InvalidInput: A number is out of its range, or the components' blocks differ.
    """

    def __init__(
        self,
        components: Sequence[Blocks],
        names: Sequence[str],
        weights: Sequence[float],
        *,
        seed: int,
        lanes: int = LANES,
    ) -> None:
        sizes = sorted({blocks.size for blocks in components})
        if len(sizes) != 1 or not 1 <= lanes <= LANES_MAX or not len(components) == len(names) == len(weights):
            raise InvalidInput(
                "order samples",
                got=f"{lanes} lanes, blocks of {', '.join(map(str, sizes)) or 'nothing'}",
                wanted=f"1 to {LANES_MAX} lanes, and blocks of one size",
                next_step="make the views of a mixture with the same gop",
            )
        self.block_size = sizes[0]
        self.lanes = lanes
        self._components = tuple(components)
        self._names = tuple(names)
        self._seed = seed
        self._key = np.frombuffer(blake3("\0".join([*names, str(seed)]).encode()).digest(length=8), "<u8")[0]
        self._pattern, self._quotas, self._counts = _pattern(weights, self._key)

    def samples(self, positions: Integers) -> Samples:
        """Returns which samples stand at positions.

        Args:
            positions: [N] from 0, in any order.
        """
        turn, lane = positions // self.lanes, positions % self.lanes
        return self.samples_of(turn // self.block_size * self.lanes + lane, turn % self.block_size)

    def samples_of(self, number: Integers, turn: Integers) -> Samples:
        """Returns the samples that blocks of the stream give.

        Args:
            number: [N] numbers of blocks in the stream, from 0.
            turn: [N] which of each block's samples, in the order they are given.
        """
        component = self._pattern[number % PERIOD].astype(np.int64)
        own = number // PERIOD * self._quotas[component] + self._counts[component, number % PERIOD]
        inside = self._shuffled(number, turn)
        row = np.empty(len(number), np.int64)
        for each in np.unique(component):
            here = component == each
            row[here] = self._components[each].at(self._block(int(each), own[here]), inside[here])
        return Samples(component=component, row=row)

    def _block(self, component: int, own: Integers) -> Integers:
        """Returns the blocks that stand at places of a component's own endless order, a permutation an epoch."""
        count = self._components[component].count
        epochs = own // count
        out = np.empty(len(own), np.int64)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            order = Permutation(count, self._names[component], self._seed, int(epoch))
            out[here] = order(own[here] - epoch * count)
        return out

    def _shuffled(self, number: Integers, turn: Integers) -> Integers:
        """Returns each block's `turn`-th row in an order of its own: its rows by the hash of (block, row)."""
        if self.block_size == 1:
            return np.zeros(len(number), np.int64)
        known, place = np.unique(number, return_inverse=True)
        words = known.astype(np.uint64)[:, None] * np.uint64(self.block_size)
        words = _mixed(words + np.arange(self.block_size, dtype=np.uint64) ^ self._key)
        shuffled: Integers = np.argsort(words, axis=1, kind="stable")[place, turn]
        return shuffled


def _pattern(weights: Sequence[float], key: np.uint64) -> tuple[NDArray[np.int32], Integers, NDArray[np.int32]]:
    """Returns the component of each of `PERIOD` blocks, how many each has, and how many it has before each block."""
    share = np.asarray(weights, np.float64)
    if not np.isfinite(share).all() or share.min() <= 0.0:
        raise InvalidInput("mix views", got=f"weights {list(weights)}"[:200], wanted="finite numbers over 0")
    exact = share / share.sum() * PERIOD
    quotas = np.floor(exact).astype(np.int64)
    quotas[np.argsort(quotas - exact, kind="stable")[: PERIOD - int(quotas.sum())]] += 1
    if quotas.min() < 1:
        raise InvalidInput("mix views", got=f"weights {list(weights)}"[:200], wanted=f"each over 1/{PERIOD} of all")
    ordered = np.repeat(np.arange(len(share), dtype=np.int32), quotas)
    pattern = ordered[np.argsort(_mixed(np.arange(PERIOD, dtype=np.uint64) ^ key), kind="stable")]
    counts = np.zeros((len(share), PERIOD), np.int32)
    for component in range(len(share)):
        counts[component, 1:] = np.cumsum(pattern == component)[:-1]
    return pattern, quotas, counts


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Returns words that look drawn: the finaliser of SplitMix64."""
    words = (words ^ (words >> _SHIFTS[0])) * _MULTIPLIERS[0]
    words = (words ^ (words >> _SHIFTS[1])) * _MULTIPLIERS[1]
    return words ^ (words >> _SHIFTS[2])
