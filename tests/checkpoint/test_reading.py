"""Restores onto other layouts: what is read, and how much."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checkpoint.making import JOB, Arrays, Cuts, manifest_of, row_cuts, save_shares

from mainspring.checkpoint import Checkpoint, commit, open_checkpoint
from mainspring.domain.wire import Piece
from mainspring.objects import ObjectStore, aligned_buffer, open_store

RANKS = 3


def saved(store: ObjectStore, arrays: Arrays, cuts: dict[str, Cuts]) -> Checkpoint:
    commit(store, manifest_of(1, save_shares(store, 1, arrays, cuts, ranks=RANKS)), replace=False)
    return open_checkpoint(store, JOB, 1)


@st.composite
def regions(draw: st.DrawFn) -> tuple[tuple[int, ...], Cuts, tuple[int, ...], tuple[int, ...]]:
    """An array's shape, where it is cut, and a region of it."""
    whole = (*draw(st.lists(st.integers(1, 6), max_size=2)), draw(st.sampled_from([1, 7, 900, 5000])))
    cuts = [sorted({0, size, *draw(st.lists(st.integers(0, size), max_size=3))}) for size in whole]
    start = tuple(draw(st.integers(0, size - 1)) for size in whole)
    shape = tuple(draw(st.integers(0, size - low)) for size, low in zip(whole, start, strict=True))
    return whole, cuts, start, shape


@pytest.mark.slow
@settings(max_examples=150)
@given(regions(), st.sampled_from(["float32", "int64", "uint8"]))
def test_region_of_any_cut_of_any_array_restored_equals_the_region(
    case: tuple[tuple[int, ...], Cuts, tuple[int, ...], tuple[int, ...]], dtype: str
) -> None:
    whole, cuts, start, shape = case
    array = (np.arange(math.prod(whole)) % 251).reshape(whole).astype(dtype)
    checkpoint = saved(open_store("memory://"), {"x": array}, {"x": cuts})
    wanted = array[tuple(slice(low, low + size) for low, size in zip(start, shape, strict=True))]
    assert np.array_equal(checkpoint.array("x", start, shape), wanted)
    assert np.array_equal(checkpoint.array("x"), array)


def test_reader_that_rests_reads_the_same_and_rests_after_each_block_it_read(tmp_path: Path) -> None:
    arrays: Arrays = {"x": np.arange(3 << 20, dtype=np.float32), "y": np.arange(60, dtype=np.int64).reshape(6, 10)}
    store = open_store(f"file://{tmp_path}")
    saved(store, arrays, {"x": [[0, 1 << 20, 3 << 20]], "y": [range(7), [0, 5, 10]]})
    rests: list[int] = []
    got = open_checkpoint(store, JOB, 1, rest=lambda: rests.append(1)).arrays(arrays)
    assert all(np.array_equal(got[path], array) for path, array in arrays.items())
    assert len(rests) >= 2  # 12 MiB, of which a block has 8 at most.


@pytest.mark.slow
@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 1), st.floats(0, 1), st.integers(0, 1)), max_size=12))
def test_pieces_in_any_order_overlapping_or_not_are_the_bytes_of_their_shards(
    wanted: list[tuple[int, float, float, int]],
) -> None:
    array = np.random.default_rng(0).integers(0, 256, size=(6, 30_011), dtype=np.uint8)
    checkpoint = saved(open_store("memory://"), {"x": array}, {"x": [range(7), [0, array.shape[1]]]})
    pieces, views = [], []
    for number, low, high, shift in wanted:
        size_bytes = checkpoint.shards[number].size_bytes
        begin, end = sorted((int(low * size_bytes), int(high * size_bytes)))
        pieces.append(Piece(shard=number, offset=begin, size_bytes=end - begin))
        views.append(aligned_buffer(end - begin + shift)[shift:])
    checkpoint.read(pieces, views)
    for piece, view in zip(pieces, views, strict=True):
        row = array[checkpoint.shards[piece.shard].start[0]]
        assert bytes(view) == row[piece.offset : piece.offset + piece.size_bytes].tobytes()


@pytest.mark.slow
def test_large_arrays_are_read_in_blocks_straight_into_place_and_around(tmp_path: Path) -> None:
    array = np.random.default_rng(0).standard_normal((2_999, 1_001))  # 24 MB, more than a block of every rank's.
    checkpoint = saved(open_store(str(tmp_path / "store")), {"x": array}, {"x": row_cuts(array.shape, RANKS)})
    assert np.array_equal(checkpoint.array("x"), array)
    assert np.array_equal(checkpoint.array("x", (1, 1), (2_997, 999)), array[1:-1, 1:-1])
    assert np.array_equal(checkpoint.array("x", (10, 0), (2_000, 1_001)), array[10:2_010])
    checkpoint.verify()


def test_many_threads_may_read_one_checkpoint(tmp_path: Path) -> None:
    arrays = {f"x{i}": np.random.default_rng(i).standard_normal((30, 400)) for i in range(8)}
    store = open_store(str(tmp_path / "store"))
    checkpoint = saved(store, arrays, {path: row_cuts(array.shape, RANKS) for path, array in arrays.items()})
    with ThreadPoolExecutor(8) as threads:
        for path, array in threads.map(lambda path: (path, checkpoint.array(path)), list(arrays) * 3):
            assert np.array_equal(array, arrays[path])


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_restore_on_another_number_of_ranks_reads_little_more_than_is_needed(tmp_path: Path, ranks: int) -> None:
    array = np.random.default_rng(0).standard_normal((24 * 31, 24 * 13), dtype=np.float32)  # No page fits its rows.
    store = open_store(str(tmp_path / "store"))
    saved(store, {"x": array}, {"x": row_cuts(array.shape, 4)})
    for rank in range(ranks):
        low, high = len(array) * rank // ranks, len(array) * (rank + 1) // ranks
        checkpoint = open_checkpoint(store, JOB, 1)
        opened = checkpoint.bytes_read
        assert np.array_equal(checkpoint.array("x", (low, 0), (high - low, array.shape[1])), array[low:high])
        read = checkpoint.bytes_read - opened
        assert read <= array[low:high].nbytes * 1.01 + 4 * 2 * 8192  # A page and a block of the disk at each cut.


def test_restore_of_one_small_array_does_not_read_the_others(tmp_path: Path) -> None:
    arrays = {"small": np.arange(2_000.0), "large": np.zeros((300, 1_000))}
    cuts: dict[str, Cuts] = {path: row_cuts(array.shape, RANKS) for path, array in arrays.items()}
    checkpoint = saved(open_store(str(tmp_path / "store")), arrays, cuts)
    opened = checkpoint.bytes_read
    assert np.array_equal(checkpoint.array("small"), arrays["small"])
    assert checkpoint.bytes_read - opened < 100_000
