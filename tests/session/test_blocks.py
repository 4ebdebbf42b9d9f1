from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mainspring.domain.errors import DamagedData, InvalidInput, NotFound
from mainspring.domain.wire import Shard
from mainspring.session import Block, Restored
from mainspring.session.arena import ALIGNMENT_BYTES, lay_out
from mainspring.session.blocks import block_in


def restored(*blocks: Block) -> Restored:
    return Restored(step=1, state={}, source="arena", blocks=blocks)


def cut(path: str, whole: np.ndarray, at: int) -> tuple[Block, Block]:
    return (
        Block(path=path, data=whole[:at], global_shape=whole.shape, start=(0,) * whole.ndim),
        Block(path=path, data=whole[at:], global_shape=whole.shape, start=(at,) + (0,) * (whole.ndim - 1)),
    )


@settings(max_examples=40)
@given(whole=arrays(np.int16, st.tuples(st.integers(2, 9), st.integers(1, 9))), data=st.data())
def test_restored_any_region_of_a_cut_array_equals_the_region_of_the_whole(
    whole: np.ndarray, data: st.DataObject
) -> None:
    at = data.draw(st.integers(1, whole.shape[0] - 1))
    low = data.draw(st.integers(0, whole.shape[0] - 1))
    high = data.draw(st.integers(low, whole.shape[0]))
    state = restored(*cut("x", whole, at))
    np.testing.assert_array_equal(state.array("x"), whole)
    region = state.array("x", (low, 0), (high - low, whole.shape[1]))
    np.testing.assert_array_equal(region, whole[low:high])


def test_restored_array_with_a_block_missing_raises_damaged_data() -> None:
    whole = np.arange(10.0)
    with pytest.raises(DamagedData, match="4 elements"):
        restored(cut("x", whole, 4)[0]).array("x")


def test_restored_array_unknown_names_what_there_is() -> None:
    with pytest.raises(NotFound, match="params/w"):
        restored(Block.whole("params/w", np.zeros(2))).array("params/v")


def test_restored_array_is_a_copy_that_outlives_its_block() -> None:
    data = np.zeros(4)
    copy = restored(Block.whole("x", data)).array("x")
    data[:] = 7
    assert copy.sum() == 0


@pytest.mark.parametrize(
    "data", [np.array(["a"]), np.array([object()]), np.zeros(2, dtype=">f4"), np.zeros(2, dtype=[("a", "f4")])]
)
def test_block_of_anything_but_native_numbers_is_refused(data: np.ndarray) -> None:
    with pytest.raises(InvalidInput, match="native byte order"):
        Block.whole("x", data)


def test_block_outside_its_array_is_refused() -> None:
    with pytest.raises(InvalidInput, match="inside shape"):
        Block(path="x", data=np.zeros(3), global_shape=(4,), start=(2,))


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 300), st.booleans()), max_size=12))
def test_layout_is_aligned_without_overlap_and_puts_what_is_saved_once_first(sizes: list[tuple[int, bool]]) -> None:
    blocks = [Block.whole(f"x{i}", np.zeros(size, np.uint8), once=once) for i, (size, once) in enumerate(sizes)]
    layout = lay_out(blocks)
    placed = sorted((s for s in layout.shards if s.size_bytes), key=lambda shard: shard.offset)
    assert all(shard.offset % ALIGNMENT_BYTES == 0 for shard in layout.shards)
    assert all(a.offset + a.size_bytes <= b.offset for a, b in pairwise(placed))
    assert all(shard.offset + shard.size_bytes <= layout.size_bytes for shard in layout.shards)
    assert [shard.once for shard in placed] == sorted((shard.once for shard in placed), reverse=True)
    assert [shard.path for shard in layout.shards] == [block.path for block in blocks]


@pytest.mark.parametrize("dtype", [np.float32, np.bool_, np.complex64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_block_in_bytes_gives_back_every_type_of_number(dtype: type) -> None:
    data: np.ndarray[Any, Any] = np.arange(6).reshape(2, 3).astype(dtype)
    shard = lay_out([Block.whole("x", data)]).shards[0]
    back = block_in(shard, np.frombuffer(data.tobytes(), dtype=np.uint8))
    assert back.data.dtype == data.dtype
    assert back.data.tobytes() == data.tobytes()


@pytest.mark.parametrize(
    ("dtype", "offset", "size_bytes", "shape"),
    [
        ("float32", 0, 8, (3,)),
        ("float32", 96, 8, (2,)),
        ("object", 0, 8, (1,)),
        ("nonsense", 0, 8, (1,)),
        ("int8", -1, 1, (1,)),
    ],
)
def test_block_in_bytes_that_do_not_fit_its_shard_is_damaged(
    dtype: str, offset: int, size_bytes: int, shape: tuple[int, ...]
) -> None:
    shard = Shard(
        path="x", dtype=dtype, global_shape=shape, start=(0,), shape=shape, offset=offset, size_bytes=size_bytes
    )
    assert math.prod(shape) < 100
    with pytest.raises(DamagedData):
        block_in(shard, np.zeros(100, dtype=np.uint8))
