"""Checkpoints as the ranks of a job would save them, and stores that fail as real ones do."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from mainspring.checkpoint import (
    Claim,
    Lineage,
    Manifest,
    Sealed,
    ShareEntry,
    commit,
    seal,
    share_file,
    write_share,
)
from mainspring.domain.errors import Unavailable
from mainspring.domain.ids import AttemptId, JobId
from mainspring.domain.wire import Part, Shard
from mainspring.objects import Data, ObjectSeen, ObjectStore, aligned_buffer

JOB = JobId("job-1")
CLAIM = Claim(number=1, epoch=1)
ALIGNMENT = 64  # As in an arena.
SEGMENT_BYTES = 8192

Arrays = Mapping[str, NDArray[Any]]
Cuts = Sequence[Sequence[int]]  # For each axis, the indices where blocks begin and where the last one ends.


def arrays_at(step: int) -> Arrays:
    return {
        "params/w": np.arange(96 * 64, dtype=np.float32).reshape(96, 64) * step,
        "params/b": (np.arange(5) * step).astype(ml_dtypes.bfloat16),
        "opt/m": np.random.default_rng(step).normal(size=(24, 130)).astype(np.float64),
        "n": np.array(step, dtype=np.int64),
        "none": np.zeros((0, 3), dtype=np.float32),
    }


def row_cuts(shape: Sequence[int], ranks: int) -> Cuts:
    """Cuts the first axis evenly."""
    return [
        sorted({size * rank // ranks for rank in range(ranks + 1)}) if axis == 0 and size else [0, size]
        for axis, size in enumerate(shape)
    ]


def snapshots(arrays: Arrays, cuts: Mapping[str, Cuts], ranks: int) -> list[tuple[NDArray[np.uint8], Sealed]]:
    """Returns each rank's sealed snapshot: blocks dealt out in turn, those to store first, then a copy of another's."""
    dealt: list[list[tuple[Shard, NDArray[Any]]]] = [[] for _ in range(ranks)]
    turn = 0
    for path, array in arrays.items():
        for block in itertools.product(*(list(itertools.pairwise(cut)) for cut in cuts[path])):
            data = np.array(array[tuple(slice(low, high) for low, high in block)], order="C")
            shard = Shard(
                path=path,
                dtype=array.dtype.name,
                global_shape=array.shape,
                start=tuple(low for low, _ in block),
                shape=data.shape,
                offset=0,
                size_bytes=data.nbytes,
                part=Part.OPTIMIZER if path.startswith("opt") else Part.WEIGHTS,
            )
            dealt[turn % ranks].append((shard, data))
            turn += 1
    made = []
    for rank in range(ranks):
        copies = [(shard, data) for shard, data in dealt[(rank + 1) % ranks][:1]] if ranks > 1 else []
        made.append(snapshot_of(dealt[rank], copies))
    return made


def snapshot_of(
    once: Sequence[tuple[Shard, NDArray[Any]]], copies: Sequence[tuple[Shard, NDArray[Any]]] = ()
) -> tuple[NDArray[np.uint8], Sealed]:
    shards, offset = [], 0
    blocks = [(shard, data, True) for shard, data in once] + [(shard, data, False) for shard, data in copies]
    for shard, _, is_once in blocks:
        fields = {name: getattr(shard, name) for name in ("path", "dtype", "global_shape", "start", "shape", "part")}
        shards.append(Shard(**fields, offset=offset, size_bytes=shard.size_bytes, once=is_once))
        offset += shard.size_bytes + -shard.size_bytes % ALIGNMENT
    memory = np.frombuffer(aligned_buffer(max(offset, 1)), dtype=np.uint8)
    memory[:] = 0xA5  # What lies between shards is whatever was there before.
    for shard, (_, data, _) in zip(shards, blocks, strict=True):
        memory[shard.offset : shard.offset + shard.size_bytes] = data.reshape(-1).view(np.uint8)
    return memory, seal(memory, shards)


def save_shares(
    store: ObjectStore,
    step: int,
    arrays: Arrays,
    cuts: Mapping[str, Cuts],
    *,
    ranks: int,
    claim: Claim = CLAIM,
    segment_bytes: int = SEGMENT_BYTES,
) -> tuple[ShareEntry, ...]:
    """Stores each rank's share, in small segments, so that every test crosses from one to the next."""
    return tuple(
        write_share(
            store,
            job=JOB,
            step=step,
            file=share_file(claim, generation=1, rank=rank),
            rank=rank,
            data=memory,
            shards=sealed.shards,
            sealed=partial(replace, sealed),
            state={"rank": rank},
            segment_bytes=segment_bytes,
        )
        for rank, (memory, sealed) in enumerate(snapshots(arrays, cuts, ranks))
    )


def manifest_of(step: int, shares: tuple[ShareEntry, ...], *, attempt: str = "attempt-1") -> Manifest:
    return Manifest(
        job=JOB,
        attempt=AttemptId(attempt),
        step=step,
        created_s=1.0,
        shares=shares,
        state={"cursor": step, "loss": 0.5},
        lineage=Lineage(code="abc", commit="def", inputs=("data@1",), ranks=len(shares), parent="job-0@5"),
    )


def save(store: ObjectStore, step: int, *, ranks: int = 2, replace: bool = False, claim: Claim = CLAIM) -> Manifest:
    arrays = arrays_at(step)
    cuts = {path: row_cuts(array.shape, ranks) for path, array in arrays.items()}
    manifest = manifest_of(step, save_shares(store, step, arrays, cuts, ranks=ranks, claim=claim))
    commit(store, manifest, replace=replace)
    return manifest


class BreakingStore:
    """A store whose line breaks once so many bytes were put, as an uplink does; `mend` gives it more."""

    def __init__(self, store: ObjectStore, bytes_until_break: int) -> None:
        self._store = store
        self._left = bytes_until_break
        self._lock = threading.Lock()
        self.put_bytes = 0

    def mend(self, bytes_until_break: int = 1 << 60) -> None:
        self._left, self.put_bytes = bytes_until_break, 0

    def _send(self, data: Data) -> None:
        size_bytes = memoryview(data).nbytes
        with self._lock:
            broken = size_bytes > self._left
            self.put_bytes += min(size_bytes, self._left)
            self._left = 0 if broken else self._left - size_bytes
        if broken:
            raise Unavailable("store an object", got="a broken line")

    def put(self, key: str, data: Data) -> None:
        self._send(data)
        self._store.put(key, data)

    def put_if_absent(self, key: str, data: Data) -> bool:
        self._send(data)
        return self._store.put_if_absent(key, data)

    def put_file(self, key: str, path: Path) -> None:
        self._store.put_file(key, path)

    def get(self, key: str) -> bytes:
        return self._store.get(key)

    def get_range(self, key: str, *, offset: int, size_bytes: int) -> bytes:
        return self._store.get_range(key, offset=offset, size_bytes=size_bytes)

    def get_into(self, key: str, *, offset: int, into: memoryview) -> None:
        self._store.get_into(key, offset=offset, into=into)

    def fetch_file(self, key: str, path: Path) -> None:
        self._store.fetch_file(key, path)

    def size(self, key: str) -> int | None:
        return self._store.size(key)

    def list(self, prefix: str) -> tuple[ObjectSeen, ...]:
        return self._store.list(prefix)

    def delete(self, key: str) -> None:
        self._store.delete(key)
