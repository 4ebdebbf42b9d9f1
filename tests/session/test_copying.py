from __future__ import annotations

import mmap

import ml_dtypes
import numpy as np

from mainspring.session.copying import PART_BYTES, THREADED_BYTES_MIN, copy_all, touch


def test_many_arrays_of_every_size_and_stride_are_copied_bit_by_bit() -> None:
    dice = np.random.default_rng(0)
    sizes = [0, 1, 1000, PART_BYTES // 4 + 3, 2 * PART_BYTES // 4, *([100_000] * 50)]
    sources = [dice.integers(0, 1 << 32, size, dtype=np.uint32).view(np.float32) for size in sizes]
    sources += [np.arange(1000).astype(ml_dtypes.bfloat16), sources[-1].reshape(100, 1000).T, sources[3][::3]]
    assert sum(source.nbytes for source in sources) > THREADED_BYTES_MIN
    targets = [np.empty(source.shape, source.dtype) for source in sources]
    copy_all(zip(targets, sources, strict=True))
    for target, source in zip(targets, sources, strict=True):
        assert target.tobytes() == source.tobytes()


def test_memory_that_was_touched_is_there_and_as_it_was() -> None:
    size_bytes = THREADED_BYTES_MIN + 4096 + 5
    room = mmap.mmap(-1, size_bytes)
    room[-3:] = b"end"
    data = np.frombuffer(room, dtype=np.uint8)
    touch(data)
    touch(data[:0])
    assert not data[:-3].any()
    assert bytes(data[-3:]) == b"end"
