"""Checkpoints of ours to take out, and a foreign source that is not a file, for tests of interoperation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from mainspring.checkpoint import Claim, Lineage, Manifest, commit, open_checkpoint, seal, share_file, write_share
from mainspring.checkpoint.exchange import StoredSource
from mainspring.checkpoint.format import dtype_named
from mainspring.checkpoint.interop import ArraySource, ArraySpec, Block, Facts, block, regions
from mainspring.domain.ids import AttemptId, JobId
from mainspring.domain.wire import Part, Shard
from mainspring.objects import ObjectStore

JOB = JobId("job-1")
Arrays = Mapping[str, NDArray[Any]]


def some_arrays(seed: int = 0) -> dict[str, NDArray[Any]]:
    """Returns arrays of every kind that both peers know, in a tree as training states have it."""
    dice = np.random.default_rng(seed)
    numbers = dice.standard_normal
    return {
        "params/dense/kernel": numbers((24, 16)).astype(np.float32),
        "params/dense/bias": numbers(16).astype(ml_dtypes.bfloat16),
        "params/quantised": numbers((4, 8)).astype(ml_dtypes.float8_e4m3fn),
        "params/gradient": numbers(12).astype(ml_dtypes.float8_e5m2),
        "params/half": numbers((2, 3, 4)).astype(np.float16),
        "params/nothing": np.empty((0, 3), dtype=np.float32),
        "params/odd": np.array([math.nan, -0.0, math.inf, 5e-324]),
        "opt_state/0/count": np.array(7, dtype=np.int32),
        "opt_state/0/mu": numbers((24, 16)).astype(np.float32),
        "opt_state/1/mask": dice.integers(0, 2, 9).astype(bool),
        "step": np.array(12, dtype=np.int64),
        "key": dice.integers(0, 2**32, 2, dtype=np.uint32),
        "spectrum": (numbers(5) + 1j * numbers(5)).astype(np.complex64),
        "bytes": dice.integers(0, 256, 7, dtype=np.uint8),
    }


def part_of(path: str) -> Part:
    return {"params": Part.WEIGHTS, "opt_state": Part.OPTIMIZER}.get(path.partition("/")[0], Part.OTHER)


def save(
    store: ObjectStore,
    arrays: Arrays,
    *,
    job: JobId = JOB,
    step: int = 12,
    ranks: int = 2,
    state: Mapping[str, str | int | float | bool] | None = None,
) -> Manifest:
    """Saves arrays cut along their last axis over ranks (so that shards are no runs of the array), as a job would."""
    claim, entries = Claim(number=1, epoch=1), []
    for rank in range(ranks):
        shards, data = [], bytearray()
        for path, array in arrays.items():
            columns = np.array_split(np.arange(array.shape[-1]), ranks)[rank] if array.ndim else np.arange(rank == 0)
            if not len(columns):
                continue
            block = array[..., columns[0] : columns[-1] + 1] if array.ndim else array
            shard = Shard(
                path=path,
                dtype=array.dtype.name,
                global_shape=array.shape,
                start=(0,) * (array.ndim - 1) + ((int(columns[0]),) if array.ndim else ()),
                shape=block.shape,
                offset=len(data),
                size_bytes=block.nbytes,
                part=part_of(path),
            )
            shards.append(shard)
            data += block.tobytes() + b"\0" * (-block.nbytes % 64)
        raw = np.frombuffer(data, dtype=np.uint8)
        entries.append(
            write_share(
                store,
                job=job,
                step=step,
                file=share_file(claim, generation=1, rank=rank),
                rank=rank,
                data=raw,
                shards=shards,
                sealed=partial(seal, raw, shards),
                state={},
            )
        )
    manifest = Manifest(
        job=job,
        attempt=AttemptId("attempt-1"),
        step=step,
        created_s=1e9,
        shares=tuple(entries),
        state={"cursor": 40, "loss": 0.5, "split": "train"} if state is None else state,
        lineage=Lineage(code="blake3:0123456789abcdef", commit="c0ffee", inputs=("pick@3",), ranks=ranks),
    )
    assert commit(store, manifest, replace=False)
    return manifest


def stored(store: ObjectStore, arrays: Arrays, **about: Any) -> StoredSource:
    manifest = save(store, arrays, **about)
    return StoredSource(open_checkpoint(store, manifest.job, manifest.step))


@dataclass(frozen=True)
class InMemory:
    """Arrays as a `ArraySource`. `broken` is a path whose reading fails."""

    held: Arrays
    facts: Facts = field(default_factory=Facts)
    broken: str = ""
    name: str = "memory"

    @property
    def arrays(self) -> tuple[ArraySpec, ...]:
        specs = [ArraySpec(path=path, dtype=each.dtype.name, shape=each.shape) for path, each in self.held.items()]
        return tuple(sorted((replace(spec, part=part_of(spec.path)) for spec in specs), key=lambda spec: spec.path))

    def read(self, blocks: Sequence[Block]) -> None:
        for each in blocks:
            if each.array.path == self.broken:
                raise OSError(28, "No space left on device")
            each.elements[...] = self.held[each.array.path][each.place]


def assert_same(got: Arrays, wanted: Arrays) -> None:
    """Bit for bit, NaN payloads and signs of zeros too."""
    assert sorted(got) == sorted(wanted)
    for path, array in wanted.items():
        found = np.asarray(got[path])
        assert (found.dtype, found.shape) == (array.dtype, array.shape), path
        assert found.tobytes() == array.tobytes(), path


def read_all(source: ArraySource) -> dict[str, NDArray[Any]]:
    """Reads a source in regions of a few elements."""
    found = {}
    for array in source.arrays:
        whole = np.empty(array.shape, dtype=dtype_named(array.dtype))
        for region in regions(array, 64):
            part = block(array, region, np.empty(64, dtype=np.uint8))
            source.read([part])
            whole[part.place] = part.elements
        found[array.path] = whole
    return found
