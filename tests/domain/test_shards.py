from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain.errors import DamagedData
from mainspring.domain.shards import GAP_BYTES_MIN, by_path, runs, sources
from mainspring.domain.wire import Shard

ITEM_BYTES = 4


def shard_at(
    start: Sequence[int], shape: Sequence[int], whole: Sequence[int], *, path: str = "a", item_bytes: int = ITEM_BYTES
) -> Shard:
    return Shard(
        path=path,
        dtype="int32",
        global_shape=tuple(whole),
        start=tuple(start),
        shape=tuple(shape),
        offset=0,
        size_bytes=math.prod(shape) * item_bytes,
    )


@st.composite
def cut_arrays(draw: st.DrawFn) -> tuple[tuple[int, ...], list[list[int]], tuple[int, ...], tuple[int, ...]]:
    """An array's shape, where each axis is cut, and a region inside it."""
    whole = tuple(draw(st.lists(st.integers(1, 5), max_size=3)))
    cuts = [sorted({0, size, *draw(st.lists(st.integers(0, size), max_size=3))}) for size in whole]
    start = tuple(draw(st.integers(0, size - 1)) for size in whole)
    shape = tuple(draw(st.integers(0, size - low)) for size, low in zip(whole, start, strict=True))
    return whole, cuts, start, shape


@given(cut_arrays(), st.sampled_from([ITEM_BYTES, GAP_BYTES_MIN // 4, GAP_BYTES_MIN]))
def test_region_put_together_from_runs_equals_the_region_whatever_the_cuts(
    case: tuple[tuple[int, ...], list[list[int]], tuple[int, ...], tuple[int, ...]], item_bytes: int
) -> None:
    whole, cuts, start, shape = case
    dtype = np.dtype([("number", "<i4"), ("rest", f"V{item_bytes - ITEM_BYTES}")])  # Large items, as rows would be.
    array = np.zeros(whole, dtype)
    array["number"] = np.arange(math.prod(whole)).reshape(whole)
    shards, datas = [], []
    for block in itertools.product(*(list(itertools.pairwise(cut)) for cut in cuts)):
        data = np.array(array[tuple(slice(low, high) for low, high in block)], order="C")
        shards.append(shard_at([low for low, _ in block], data.shape, whole, item_bytes=item_bytes))
        datas.append(data.tobytes())
    found = sources(enumerate(shards), start, shape)
    assert found is not None
    region = np.zeros(shape, dtype)
    region["number"] = -1
    for source in found:
        run = source.run
        found_bytes = datas[source.shard][run.offset : run.offset + run.size_bytes]
        assert len(found_bytes) == run.size_bytes
        region[run.place] = np.ndarray(run.shape, dtype, buffer=found_bytes, strides=run.strides)
    wanted = array[tuple(slice(low, low + size) for low, size in zip(start, shape, strict=True))]
    assert np.array_equal(region["number"], wanted["number"])


@given(cut_arrays(), st.data())
def test_region_with_a_block_left_out_is_not_covered(
    case: tuple[tuple[int, ...], list[list[int]], tuple[int, ...], tuple[int, ...]], data: st.DataObject
) -> None:
    whole, cuts, _, _ = case
    blocks = list(itertools.product(*(list(itertools.pairwise(cut)) for cut in cuts)))
    left_out = data.draw(st.integers(0, len(blocks) - 1))
    shards = [
        (number, shard_at([low for low, _ in block], [high - low for low, high in block], whole))
        for number, block in enumerate(blocks)
        if number != left_out
    ]
    assert sources(shards, (0,) * len(whole), whole) is None


def test_runs_of_contiguous_rows_are_one_run_without_any_other_bytes() -> None:
    shard = shard_at((10, 0), (10, 1000), (30, 1000))
    (run,) = runs(shard, (12, 0), (3, 1000))
    assert (run.offset, run.size_bytes) == (2 * 4000, 3 * 4000)


def test_runs_skip_gaps_worth_skipping_and_read_along_those_that_are_not() -> None:
    row_bytes = 4 * GAP_BYTES_MIN
    wide = shard_at((0, 0), (8, row_bytes // ITEM_BYTES), (8, row_bytes // ITEM_BYTES))
    half = row_bytes // ITEM_BYTES // 2
    parts = runs(wide, (0, half), (8, half))
    assert [part.size_bytes for part in parts] == [row_bytes // 2] * 8
    assert [part.offset for part in parts] == [row * row_bytes + row_bytes // 2 for row in range(8)]
    narrow = shard_at((0, 0), (8, 100), (8, 100))
    (run,) = runs(narrow, (0, 50), (8, 50))
    assert run.size_bytes == 7 * 400 + 200


def test_sources_take_the_first_of_several_copies() -> None:
    shards = by_path([shard_at((0,), (4,), (8,)), shard_at((0,), (4,), (8,)), shard_at((4,), (4,), (8,))])
    found = sources(shards["a"], (0,), (8,))
    assert found is not None
    assert [source.shard for source in found] == [0, 2]


def test_sources_with_blocks_that_overlap_are_damage_not_a_guess() -> None:
    shards = [shard_at((0,), (5,), (8,)), shard_at((4,), (3,), (8,))]
    with pytest.raises(DamagedData, match="overlap"):
        sources(enumerate(shards), (0,), (8,))


def test_sources_with_another_number_of_axes_are_damage() -> None:
    with pytest.raises(DamagedData):
        sources([(0, shard_at((0,), (8,), (8,)))], (0, 0), (4, 2))


def test_shards_by_path_keep_their_numbers_and_come_in_order_of_path() -> None:
    shards = [shard_at((), (), (), path=path) for path in ("b", "a", "b")]
    assert [(path, [number for number, _ in numbered]) for path, numbered in by_path(shards).items()] == [
        ("a", [1]),
        ("b", [0, 2]),
    ]
