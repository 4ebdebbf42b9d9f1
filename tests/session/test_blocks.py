from __future__ import annotations

from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.domain import wire
from mainspring.domain.errors import DamagedData, InvalidInput
from mainspring.session import Block
from mainspring.session.arena import lay_out
from mainspring.session.blocks import ALIGNMENT_BYTES, dtype_named
from mainspring.session.copying import PART_BYTES, THREADED_BYTES_MIN, copy_all


@pytest.mark.parametrize(
    "data", [np.array(["a"]), np.array([object()]), np.zeros(2, dtype=">f4"), np.zeros(2, dtype=[("a", "f4")])]
)
def test_block_of_anything_but_native_numbers_is_refused(data: np.ndarray) -> None:
    with pytest.raises(InvalidInput, match="native byte order"):
        Block.whole("x", data)


@pytest.mark.parametrize(("start", "global_shape"), [((2,), (4,)), ((-1,), (4,)), ((0, 0), (4, 4))])
def test_block_outside_its_array_is_refused(start: tuple[int, ...], global_shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match="inside shape"):
        Block(path="x", data=np.zeros(3), global_shape=global_shape, start=start)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 300), st.booleans(), st.booleans()), max_size=12))
def test_layout_is_aligned_without_overlap_and_puts_what_must_be_copied_then_saved_first(
    sizes: list[tuple[int, bool, bool]],
) -> None:
    blocks = [
        Block.whole(f"x{i}", np.zeros(size, np.uint8), once=once, elsewhere=elsewhere, part=wire.Part.WEIGHTS)
        for i, (size, once, elsewhere) in enumerate(sizes)
    ]
    layout = lay_out(blocks)
    placed = sorted((s for s in layout.shards if s.size_bytes), key=lambda shard: shard.offset)
    assert all(shard.offset % ALIGNMENT_BYTES == 0 for shard in layout.shards)
    assert all(a.offset + a.size_bytes <= b.offset for a, b in pairwise(placed))
    assert all(shard.offset + shard.size_bytes <= layout.size_bytes for shard in layout.shards)
    ranks = [(shard.once and not shard.elsewhere, shard.once) for shard in placed]
    assert ranks == sorted(ranks, reverse=True)
    assert [shard.path for shard in layout.shards] == [block.path for block in blocks]
    assert all(shard.part is wire.Part.WEIGHTS for shard in layout.shards)


@pytest.mark.parametrize("name", ["float32", "bool", "complex64", "bfloat16", "float8_e4m3fn", "uint8"])
def test_dtype_named_knows_every_type_of_number(name: str) -> None:
    assert dtype_named(name).name == name


@pytest.mark.parametrize("name", ["object", "nonsense", "str", ">f4", "__loader__", "M8", "f4"])
def test_dtype_named_anything_else_is_damaged(name: str) -> None:
    with pytest.raises(DamagedData, match="type of numbers"):
        dtype_named(name)


@pytest.mark.parametrize("dtype", [np.bool_, np.float64, np.complex128, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
def test_copy_all_copies_every_layout_of_every_type(dtype: Any) -> None:
    source: np.ndarray[Any, Any] = np.arange(24).reshape(4, 6).astype(dtype)
    sources = [source, source.T, source[::2, 1:5], source[0, 0], source[:0], np.asfortranarray(source)]
    targets = [np.full(source.shape, 1).astype(dtype) for source in sources]
    copy_all(zip(targets, sources, strict=True))
    for target, source in zip(targets, sources, strict=True):
        assert target.tobytes() == source.tobytes()


@pytest.mark.slow
def test_copy_all_with_threads_copies_every_byte() -> None:
    source = np.random.default_rng(0).integers(0, 256, THREADED_BYTES_MIN + PART_BYTES + 17, dtype=np.uint8)
    target = np.zeros_like(source)
    copy_all([(target[1:], source[1:]), (target[:1], source[:1])])
    np.testing.assert_array_equal(target, source)
