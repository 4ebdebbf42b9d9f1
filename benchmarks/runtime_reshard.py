"""A checkpoint of 4 ranks restored on 1, 2, 3 and 8: bytes read over bytes needed, and speed beside the plain disk's.

Run as `python -m benchmarks.runtime_reshard [--quick] [--folder FOLDER]`. Each rank opens the checkpoint and reads its
rows of every array; every byte it reads is compared with what was saved. Bytes are counted at the store, and include
the manifest and the indices. Restores of everything by one rank take turns with a plain O_DIRECT read of as many bytes
into the same memory; nothing comes from the page cache, for neither uses it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mainspring.checkpoint import (
    Claim,
    Manifest,
    ShareEntry,
    commit,
    load,
    open_checkpoint,
    seal,
    share_file,
    write_share,
)
from mainspring.domain.ids import AttemptId, JobId
from mainspring.domain.shards import sources
from mainspring.domain.wire import Part, Piece, Shard
from mainspring.objects import Data, ObjectSeen, ObjectStore, aligned_buffer, open_store

SAVED_ON = 4
RESTORED_ON = (1, 2, 3, 8)
RUNS = 5
WIDTH = 744  # 24 x 31: divisible by every number of ranks, and by no page.
LAYERS = 13
ALIGNMENT = 64
LARGE_BYTES = 512 << 10
PLAIN_READ_BYTES = 16 << 20
PLAIN_THREADS = 2
JOB = JobId("reshard")


class CountingStore:
    """Passes everything on, and counts the bytes that are read."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.ranges: list[int] = []  # Lengths: appending is safe from many threads.

    def put(self, key: str, data: Data) -> None:
        self._store.put(key, data)

    def put_if_absent(self, key: str, data: Data) -> bool:
        return self._store.put_if_absent(key, data)

    def put_file(self, key: str, path: Path) -> None:
        self._store.put_file(key, path)

    def get(self, key: str) -> bytes:
        data = self._store.get(key)
        self.ranges.append(len(data))
        return data

    def get_range(self, key: str, *, offset: int, size_bytes: int) -> bytes:
        self.ranges.append(size_bytes)
        return self._store.get_range(key, offset=offset, size_bytes=size_bytes)

    def get_into(self, key: str, *, offset: int, into: memoryview) -> None:
        self.ranges.append(len(into))
        self._store.get_into(key, offset=offset, into=into)

    def fetch_file(self, key: str, path: Path) -> None:
        raise AssertionError("a restore reads ranges")

    def size(self, key: str) -> int | None:
        return self._store.size(key)

    def list(self, prefix: str) -> tuple[ObjectSeen, ...]:
        return self._store.list(prefix)

    def delete(self, key: str) -> None:
        self._store.delete(key)


def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    """Returns a transformer's parameters with Adam's two moments: 45 arrays a layer, from 3 KB to 9 MB."""
    width = WIDTH
    layer: dict[str, tuple[int, ...]] = {
        "attention/qkv": (width, 3 * width),
        "attention/out": (width, width),
        "mlp/up": (width, 4 * width),
        "mlp/down": (4 * width, width),
        "attention/qkv_bias": (3 * width,),
        "mlp/up_bias": (4 * width,),
        **dict.fromkeys(("out_bias", "down_bias", "norm1", "norm1_bias", "norm2", "norm2_bias"), (width,)),
        **dict.fromkeys(("query_scale", "key_scale", "layer_scale"), (width,)),
    }
    return {
        f"{kind}/layer{number:02d}/{name}": shape
        for kind in ("params", "opt/mu", "opt/nu")
        for number in range(layers)
        for name, shape in layer.items()
    }


def rows_of(shape: tuple[int, ...], rank: int, ranks: int) -> tuple[int, int]:
    return shape[0] * rank // ranks, shape[0] * (rank + 1) // ranks


def save(store: ObjectStore, arrays: dict[str, NDArray[Any]]) -> float:
    """Saves each array cut along its rows over the ranks; returns seconds of the slowest part, writing the shares."""
    entries: list[ShareEntry] = []
    seconds = 0.0
    for rank in range(SAVED_ON):
        shards: list[Shard] = []
        offset = 0
        for path, array in arrays.items():
            low, high = rows_of(array.shape, rank, SAVED_ON)
            size_bytes = array[low:high].nbytes
            alignment = 4096 if size_bytes >= LARGE_BYTES else ALIGNMENT
            offset += -offset % alignment
            shards.append(
                Shard(
                    path=path,
                    dtype=array.dtype.name,
                    global_shape=array.shape,
                    start=(low,) + (0,) * (array.ndim - 1),
                    shape=(high - low, *array.shape[1:]),
                    offset=offset,
                    size_bytes=size_bytes,
                    part=Part.OPTIMIZER if path.startswith("opt") else Part.WEIGHTS,
                )
            )
            offset += size_bytes
        data = np.frombuffer(aligned_buffer(offset), dtype=np.uint8)
        for shard in shards:
            block = arrays[shard.path][shard.start[0] : shard.start[0] + shard.shape[0]]
            data[shard.offset : shard.offset + shard.size_bytes] = block.reshape(-1).view(np.uint8)
        start = time.perf_counter()
        entries.append(
            write_share(
                store,
                job=JOB,
                step=1,
                file=share_file(Claim(number=1, epoch=1), generation=1, rank=rank),
                rank=rank,
                data=data,
                shards=shards,
                sealed=partial(seal, data, shards),
                state={},
            )
        )
        seconds += time.perf_counter() - start
    manifest = Manifest(job=JOB, attempt=AttemptId("attempt-1"), step=1, created_s=0.0, shares=tuple(entries))
    assert commit(store, manifest, replace=False)
    return seconds


def restore_rank(store: ObjectStore, rank: int, ranks: int, room: memoryview) -> list[tuple[str, int, memoryview]]:
    """Reads one rank's rows of every array into `room`; returns path, first row and bytes of each."""
    checkpoint = open_checkpoint(store, JOB, 1)
    pieces: list[Piece] = []
    views: list[memoryview] = []
    found: list[tuple[str, int, memoryview]] = []
    end = 0
    for path, numbered in checkpoint.paths.items():
        shape = numbered[0][1].global_shape
        low, high = rows_of(shape, rank, ranks)
        parts = sources(numbered, (low,) + (0,) * (len(shape) - 1), (high - low, *shape[1:]))
        assert parts is not None
        size_bytes = sum(part.run.size_bytes for part in parts)
        end += -end % (4096 if size_bytes >= LARGE_BYTES else ALIGNMENT)
        found.append((path, low, room[end : end + size_bytes]))
        for part in parts:  # Rows of row-major shards: run after run, they are the region.
            pieces.append(Piece(shard=part.shard, offset=part.run.offset, size_bytes=part.run.size_bytes))
            views.append(room[end : end + part.run.size_bytes])
            end += part.run.size_bytes
    checkpoint.read(pieces, views)
    return found


def plain_read(paths: list[Path], room: memoryview) -> None:
    """Reads files past the page cache, with nothing else to do."""
    end = 0
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        size_bytes = path.stat().st_size
        base = end

        def read(at: int, descriptor: int = descriptor, base: int = base) -> None:
            os.preadv(descriptor, [room[base + at : base + at + PLAIN_READ_BYTES]], at)

        with ThreadPoolExecutor(PLAIN_THREADS) as threads:
            list(threads.map(read, range(0, size_bytes, PLAIN_READ_BYTES)))
        os.close(descriptor)
        end += size_bytes + -size_bytes % 4096


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(store: ObjectStore, folder: Path, arrays: dict[str, NDArray[Any]]) -> dict[str, float]:
    total_bytes = sum(array.nbytes for array in arrays.values())
    room = aligned_buffer(total_bytes + (16 << 20))
    room[:] = bytes(len(room))
    figures: dict[str, float] = {}
    worst = 0.0
    for ranks in RESTORED_ON:
        ratios = []
        read_bytes = 0
        for rank in range(ranks):
            counted = CountingStore(store)
            found = restore_rank(counted, rank, ranks, room)
            needed = sum(len(data) for _, _, data in found)
            for path, low, data in found:
                array = arrays[path]
                block = array[low : low + len(data) * len(array) // array.nbytes]
                assert np.array_equal(np.frombuffer(data, dtype=np.uint8), block.reshape(-1).view(np.uint8)), path
            ratios.append(sum(counted.ranges) / needed)
            read_bytes += sum(counted.ranges)
        figures[f"ratio_{ranks}"] = read_bytes / total_bytes
        worst = max(worst, *ratios)
        print(f"on {ranks} ranks: {read_bytes / total_bytes:.4f} in all, worst rank {max(ratios):.4f}", flush=True)
    shares = sorted((folder / "checkpoints" / JOB / "shares").rglob("*.0*"))
    seconds: dict[str, list[float]] = {"plain": [], "restore": [], "load": []}
    for _ in range(RUNS):
        seconds["plain"].append(timed(lambda: plain_read(shares, room)))
        seconds["restore"].append(timed(lambda: restore_rank(store, 0, 1, room)))
        seconds["load"].append(timed(lambda: load(store, JOB)))
    for name, values in seconds.items():
        figures[f"{name}_gb_per_s"] = total_bytes / 1e9 / statistics.median(values)
    figures["restore_of_disk"] = figures["restore_gb_per_s"] / figures["plain_gb_per_s"]
    return {"ratio": worst, **figures}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where the disk is")
    arguments = parser.parse_args()
    dice = np.random.default_rng(0)
    arrays: dict[str, NDArray[Any]] = {
        path: dice.standard_normal(shape, dtype=np.float32)
        for path, shape in shapes(1 if arguments.quick else LAYERS).items()
    }
    total_bytes = sum(array.nbytes for array in arrays.values())
    print(f"{len(arrays)} arrays, {total_bytes / 1e9:.3f} GB, saved on {SAVED_ON} ranks", flush=True)
    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        store = open_store(str(folder))
        seconds = save(store, arrays)
        figures = measure(store, folder, arrays)
    finally:
        shutil.rmtree(folder)
    figures["save_gb_per_s"] = total_bytes / 1e9 / seconds
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
