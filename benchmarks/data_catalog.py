"""The catalog at a million episodes: filter to a version, difference, dry run of a collection, commit of a hundred.

Run as `python -m benchmarks.data_catalog [--quick]`. Every episode has a raw file of its own, whose blob its row names,
and a video of its own; columns and video indexes lie in packs, as an ingest leaves them. A stated number of the raw
blobs exist as objects in a folder, so that the collection has files to list and garbage to find; the rest are named but
absent, which changes nothing for it. Peaks of memory are those of a fresh process for each question. The peer answers
the same questions over the same rows in one plain Parquet file: DuckDB for the filter and the difference, with the rows
written out again, as there is nothing else to freeze a version with.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3

from mainspring.data.catalog.choose.compare import diff
from mainspring.data.catalog.choose.selections import select
from mainspring.data.catalog.collect import gc
from mainspring.data.catalog.fragments import ROWS
from mainspring.data.catalog.versions import extend, resolve
from mainspring.data.features import Column, Features
from mainspring.objects import open_store

RUNS = 3
ADDED = 100
PACK_ROWS = 10_000  # Columns of about six kilobytes each fill a pack of 64 MiB.
OLD_S = 30 * 86_400.0
GRACE_S = 14 * 86_400.0
WHERE = "success and seconds > 5 and metadata['site'] <> 'site 7'"
FEATURES = Features(columns=(Column(name="action", names=("grip",)), Column(name="state", names=("x", "y"))))


class WallClock:
    """The machine's own time."""

    def now_s(self) -> float:
        return time.time()

    def monotonic_s(self) -> float:
        return time.perf_counter()


def hexadecimal(draws: np.random.Generator, count: int, letters: int) -> pa.StringArray:
    """Returns random ids."""
    text = draws.bytes(count * letters // 2).hex().encode()
    offsets = np.arange(0, (count + 1) * letters, letters, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text))


def structs(**fields: pa.Array) -> pa.StructArray:
    return pa.StructArray.from_arrays(list(fields.values()), names=list(fields))


def lists_of_one(values: pa.Array) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(np.arange(len(values) + 1, dtype=np.int32)), values)


def words(draws: np.random.Generator, word: str, kinds: int, count: int) -> pa.Array:
    """Returns one of a few words for each row."""
    return pa.array([f"{word} {kind}" for kind in range(kinds)]).take(pa.array(draws.integers(0, kinds, count)))


def pieces(draws: np.random.Generator, count: int, size_bytes: int) -> pa.StructArray:
    """Returns pieces that lie in packs."""
    packs = -(-count // PACK_ROWS)
    pack = pa.array(np.arange(count) // PACK_ROWS)
    blob = structs(
        id=hexadecimal(draws, packs, 64).take(pack), size_bytes=pa.array(np.full(count, PACK_ROWS * size_bytes))
    )
    return structs(
        blob=blob,
        offset=pa.array(np.arange(count) % PACK_ROWS * size_bytes),
        size_bytes=pa.array(np.full(count, size_bytes)),
        check=hexadecimal(draws, count, 16),
    )


def rows_of(count: int, seed: int, raw: pa.StringArray | None = None) -> pa.Table:
    """Returns a million episodes' rows as columns."""
    draws = np.random.default_rng(seed)
    frames = draws.integers(100, 1_500, count)
    sizes = pa.array(draws.integers(1 << 20, 1 << 28, count))
    source = pa.array([f"2026-07/robot-{number % 40}/{number:08d}.mcap" for number in range(count)])
    raw_blob = structs(id=raw or hexadecimal(draws, count, 64), size_bytes=sizes)
    video = structs(
        camera=words(draws, "front", 1, count),
        blob=structs(id=hexadecimal(draws, count, 64), size_bytes=sizes),
        index=pieces(draws, count, 900),
    )
    metadata = pa.MapArray.from_arrays(
        pa.array(np.arange(0, 3 * count + 1, 3, dtype=np.int32)),
        pa.array(["operator", "session", "site"] * count),
        words(draws, "site", 50, 3 * count),
    )
    columns = {
        "id": hexadecimal(draws, count, 32),
        "source": source,
        "task": words(draws, "task", 80, count),
        "robot": words(draws, "arm", 4, count),
        "success": pa.array(draws.random(count) > 0.2),
        "rate_hz": pa.array(np.full(count, 50.0)),
        "frames": pa.array(frames),
        "seconds": pa.array(frames / 50.0),
        "started_ns": pa.array(draws.integers(0, 1 << 60, count)),
        "arrived_ns": pa.array(draws.integers(0, 1 << 60, count)),
        "metadata": metadata,
        "columns": pieces(draws, count, 6_000),
        "videos": lists_of_one(video),
        "raw": lists_of_one(structs(name=source, blob=raw_blob)),
    }
    return pa.Table.from_arrays(
        [pa.array(columns[name]).cast(ROWS.field(name).type) for name in ROWS.names], schema=ROWS
    )


def write_objects(folder: Path, count: int) -> pa.StringArray:
    """Writes old blobs straight into a store's folder, which is quicker than through it; returns their ids."""
    ids = []
    old_s = time.time() - OLD_S
    for first in range(256):
        (folder / "blobs" / f"{first:02x}").mkdir(parents=True, exist_ok=True)
    for number in range(count):
        data = b"raw file of %d" % number
        id = blake3(data).hexdigest()
        path = folder / "blobs" / id[:2] / id
        path.write_bytes(data)
        os.utime(path, (old_s, old_s))
        ids.append(id)
    return pa.array(ids)


def make(folder: Path, count: int, objects: int) -> None:
    """Makes a dataset of `count` episodes, one that shares half of them in other fragments, and blobs to collect."""
    there = write_objects(folder / "store", objects)
    draws = np.random.default_rng(0)
    named = there.slice(0, objects // 2)  # The other half is garbage.
    raw = pa.concat_arrays([named, hexadecimal(draws, count - len(named), 64)])
    rows = rows_of(count, 1, raw)
    store = open_store(str(folder / "store"))
    extend(store, "robots", rows, FEATURES)
    pair = open_store(str(folder / "pair"))  # Apart, so that the collection has a million episodes to look at, no more.
    extend(pair, "robots", rows, FEATURES)
    other = pa.concat_tables([rows.slice(count // 2), rows_of(count // 2, 2)])
    extend(pair, "others", other, FEATURES)
    pq.write_table(rows, folder / "rows.parquet", compression="zstd")
    pq.write_table(other, folder / "others.parquet", compression="zstd")


class Watch:
    """Tells the seconds and the processor's seconds since it was made."""

    def __init__(self) -> None:
        self._wall_s, self._cpu_s = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        return {"seconds": time.perf_counter() - self._wall_s, "cpu_s": time.process_time() - self._cpu_s}


def ours_filter(folder: Path) -> dict[str, float]:
    """Freezes what a condition leaves; each run into a dataset of its own, so that none finds it done."""
    store = open_store(str(folder / "store"))
    version = resolve(store, "robots")
    watch = Watch()
    chosen = select(store, version, WHERE, dataset=f"good-{time.time_ns()}")
    return {**watch.read(), "found": chosen.episodes}


def ours_diff(folder: Path) -> dict[str, float]:
    store = open_store(str(folder / "pair"))
    before, after = resolve(store, "robots"), resolve(store, "others")
    watch = Watch()
    found = diff(store, before, after)
    return {**watch.read(), "found": found.added.num_rows + found.removed.num_rows}


def ours_gc(folder: Path) -> dict[str, float]:
    store = open_store(str(folder / "store"))
    watch = Watch()
    report = gc(store, clock=WallClock(), grace_s=GRACE_S, dry_run=True)
    took = watch.read()
    return {
        **took,
        "found": report.garbage.objects,
        "listed": report.garbage.objects + report.alive.objects,
    }


def ours_commit(folder: Path) -> dict[str, float]:
    """Adds a hundred episodes to all the others; says how many bytes that wrote."""
    store = open_store(str(folder / "store"))
    rows = rows_of(ADDED, time.time_ns() % 2**32)
    before = set(resolve(store, "robots").fragments)
    watch = Watch()
    version = extend(store, "robots", rows, FEATURES)
    took = watch.read()
    written = sum(part.table.size_bytes for part in set(version.fragments) - before)
    return {**took, "found": version.episodes, "written": written}


def peer_filter(folder: Path) -> dict[str, float]:
    watch = Watch()
    out = folder / "filtered.parquet"
    with duckdb.connect() as database:
        chosen = f"SELECT * FROM read_parquet('{folder / 'rows.parquet'}') WHERE {WHERE}"
        database.execute(f"COPY ({chosen}) TO '{out}' (FORMAT parquet, COMPRESSION zstd)")
    took = watch.read()
    return {**took, "found": pq.ParquetFile(out).metadata.num_rows}


def peer_diff(folder: Path) -> dict[str, float]:
    watch = Watch()
    before, after = (f"'{folder / name}'" for name in ("rows.parquet", "others.parquet"))
    shown = "id, source, task, success, frames, seconds"
    with duckdb.connect() as database:
        found = [
            database.sql(f"SELECT {shown} FROM {one} ANTI JOIN {other} USING (id) ORDER BY id").to_arrow_table()
            for one, other in ((before, after), (after, before))
        ]
    return {**watch.read(), "found": sum(table.num_rows for table in found)}


WORKS: dict[str, Callable[[Path], dict[str, float]]] = {
    "filter": ours_filter,
    "peer_filter": peer_filter,
    "diff": ours_diff,
    "peer_diff": peer_diff,
    "gc": ours_gc,
    "commit": ours_commit,
}


def peak_gib() -> float:
    """Returns this program's own peak; what `getrusage` tells is also its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) / 2**20


def asked(work: str, folder: Path) -> dict[str, float]:
    """Answers one question in a process of its own, and says its peak of memory too."""
    words = [sys.executable, "-m", "benchmarks.data_catalog", "--work", work, "--folder", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=600)
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def measured(folder: Path, count: int, objects: int) -> dict[str, float]:
    answers: dict[str, list[dict[str, float]]] = {work: [] for work in WORKS}
    for run in range(RUNS):
        for work in WORKS:
            answers[work].append(asked(work, folder))
            print(f"run {run + 1} {work:12} {json.dumps({k: round(v, 3) for k, v in answers[work][-1].items()})}")
    for mine, peer in (("filter", "peer_filter"), ("diff", "peer_diff")):
        assert answers[mine][0]["found"] == answers[peer][0]["found"], f"{mine} and its peer disagree"

    def median(work: str, what: str = "seconds") -> float:
        return statistics.median(answer[what] for answer in answers[work])

    ours = ("filter", "diff", "gc", "commit")
    return {
        "filter_s": median("filter"),
        "diff_s": median("diff"),
        "gc_s": median("gc"),
        "rss_gib": max(answer["rss_gib"] for work in ours for answer in answers[work]),
        "episodes": count,
        "objects": objects,
        "garbage": median("gc", "found"),
        "commit_s": median("commit"),
        "commit_written_mib": median("commit", "written") / 2**20,
        "filter_cpu_s": median("filter", "cpu_s"),
        "diff_cpu_s": median("diff", "cpu_s"),
        "gc_cpu_s": median("gc", "cpu_s"),
        "peer_filter_s": median("peer_filter"),
        "peer_diff_s": median("peer_diff"),
        "ratio_filter": median("peer_filter") / median("filter"),
        "ratio_diff": median("peer_diff") / median("diff"),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--work", choices=WORKS)
    parser.add_argument("--folder", type=Path)
    words = parser.parse_args()
    if words.work:
        duckdb.connect().close()  # Both libraries load parts of themselves, and of others, when they are first used.
        pa.array([""])
        answer = WORKS[words.work](words.folder)
        print(json.dumps({**answer, "rss_gib": peak_gib()}))
        return
    count, objects = (100_000, 10_000) if words.quick else (1_000_000, 100_000)
    with tempfile.TemporaryDirectory(prefix="data-catalog-") as name:
        print(f"making {count} episodes and {objects} objects")
        make(Path(name), count, objects)
        figures = measured(Path(name), count, objects)
    print(json.dumps({key: round(value, 4) for key, value in figures.items()}))


if __name__ == "__main__":
    main()
