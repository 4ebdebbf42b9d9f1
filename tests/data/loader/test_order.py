from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.data.loader.order import PERIOD, Blocks, Order, Runs
from mainspring.domain.errors import InvalidInput

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=30)
GOLDEN = [54, 69, 17, 5, 28, 36, 50, 63]


def runs_of(lengths: list[int], *, gaps: int = 0) -> Runs:
    """Runs behind each other, or with so many rows between them that a filter left out."""
    sizes = np.array(lengths, np.int64)
    starts = np.cumsum([0, *(sizes[:-1] + gaps)]).astype(np.int64)
    return Runs(starts=starts, lengths=sizes, phases=np.zeros(len(sizes), np.int64))


def order_of(lengths: list[int], size: int, *, seed: int = 0, lanes: int = 6) -> Order:
    return Order([Blocks(runs_of(lengths), size)], ["view"], [1.0], seed=seed, lanes=lanes)


def rows_of(order: Order, first: int, count: int) -> list[int]:
    rows: list[int] = order.samples(np.arange(first, first + count, dtype=np.int64)).row.tolist()
    return rows


@given(LENGTHS, st.integers(1, 12), st.integers(0, 9))
def test_blocks_of_an_epoch_hold_every_row_and_fewer_than_a_block_twice(
    lengths: list[int], size: int, gaps: int
) -> None:
    runs = runs_of(lengths, gaps=gaps)
    blocks = Blocks(runs, size)
    number, inside = np.divmod(np.arange(blocks.count * size, dtype=np.int64), size)
    rows = blocks.at(number, inside)
    wanted = {
        row for start, length in zip(runs.starts, runs.lengths, strict=True) for row in range(start, start + length)
    }
    assert set(rows.tolist()) == wanted
    assert len(rows) - blocks.rows < size


@given(LENGTHS, st.integers(2, 12), st.data())
def test_blocks_of_runs_that_begin_inside_a_group_keep_whole_groups_whole(
    lengths: list[int], size: int, data: st.DataObject
) -> None:
    runs = runs_of(lengths)
    phases = np.array([data.draw(st.integers(0, size - 1)) for _ in lengths], np.int64)
    blocks = Blocks(Runs(starts=runs.starts, lengths=runs.lengths, phases=phases), size)
    number, inside = np.divmod(np.arange(blocks.count * size, dtype=np.int64), size)
    rows = blocks.at(number, inside).reshape(-1, size)
    whole = sum(
        max(0, (length - -phase % size) // size) for length, phase in zip(lengths, phases.tolist(), strict=True)
    )
    consecutive = rows[:whole]
    assert (np.diff(consecutive, axis=1) == 1).all()
    run = np.searchsorted(runs.starts, consecutive[:, 0], side="right") - 1
    assert ((consecutive[:, 0] - runs.starts[run] + phases[run]) % size == 0).all()
    assert set(rows.ravel().tolist()) == set(range(sum(lengths)))


@given(LENGTHS, st.integers(1, 8), st.integers(1, 9), st.integers(0, 3))
def test_order_gives_each_block_of_an_epoch_once(lengths: list[int], size: int, lanes: int, seed: int) -> None:
    order = order_of(lengths, size, seed=seed, lanes=lanes)
    count = Blocks(runs_of(lengths), size).count
    for epoch in range(2):
        number = np.repeat(np.arange(epoch * count, (epoch + 1) * count), size)
        rows = order.samples_of(number, np.tile(np.arange(size), count)).row
        assert set(rows.tolist()) == set(range(sum(lengths)))
        assert len(rows) - sum(lengths) < size


@given(st.integers(1, 8), st.integers(0, 10**15))
def test_order_at_any_position_is_what_reading_up_to_it_gives(size: int, first: int) -> None:
    order = order_of([31, 7, 12], size)
    assert rows_of(order, first, 40) == [rows_of(order, first + step, 1)[0] for step in range(40)]


def test_order_of_lanes_owned_by_ranks_decodes_each_block_on_one_rank() -> None:
    order = order_of([40] * 20, 10, lanes=12)
    for world_size in (1, 2, 3, 4, 6, 12):
        turn, lane = np.divmod(np.arange(12 * 10 * 5), 12)
        owners: dict[int, set[int]] = {}
        for position, number in enumerate((turn // order.block_size * 12 + lane).tolist()):
            owners.setdefault(number, set()).add(position % world_size)
        assert all(len(owner) == 1 for owner in owners.values())


def test_mixture_meets_its_weights_in_every_period_and_reads_each_component_in_its_own_order() -> None:
    parts = [Blocks(runs_of([30] * 40), 10), Blocks(runs_of([20] * 7), 10)]
    order = Order(parts, ["large", "small"], [3.0, 1.0], seed=5, lanes=8)
    number = np.arange(2 * PERIOD, dtype=np.int64)
    samples = order.samples_of(number, np.zeros_like(number))
    assert np.bincount(samples.component).tolist() == [PERIOD * 3 // 2, PERIOD // 2]
    window = samples.component[:4_000].mean()
    assert 0.22 < window < 0.28  # Mixed throughout, not one after the other.
    alone = Order(parts[1:], ["small"], [1.0], seed=5, lanes=8)
    mixed_blocks = samples.row[samples.component == 1][:200] // 10
    assert mixed_blocks.tolist() == (alone.samples_of(number[:200], np.zeros(200, np.int64)).row // 10).tolist()


def test_order_of_another_seed_is_another() -> None:
    assert rows_of(order_of([50, 50], 5, seed=1), 0, 50) != rows_of(order_of([50, 50], 5, seed=2), 0, 50)


def test_order_never_changes_between_releases() -> None:
    assert rows_of(order_of([50, 23, 17], 10, seed=7), 0, 8) == GOLDEN


def test_mixture_of_blocks_of_two_sizes_is_refused_with_what_to_do() -> None:
    parts = [Blocks(runs_of([30]), 10), Blocks(runs_of([30]), 5)]
    with pytest.raises(InvalidInput, match="same gop"):
        Order(parts, ["a", "b"], [1.0, 1.0], seed=0)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf"), 1e-9])
def test_mixture_with_a_weight_that_cannot_be_met_is_refused(weight: float) -> None:
    parts = [Blocks(runs_of([30]), 5)] * 2
    with pytest.raises(InvalidInput, match="weights"):
        Order(parts, ["a", "b"], [1.0, weight], seed=0)
