"""A checkpoint of 580 leaves, 1.05 GB, of one host: ours and Orbax's, in turns.

Run as `python -m benchmarks.runtime_checkpoint [--quick]`. Lost is the time by which the 20 steps from the save on take
longer than the 20 before it; durable is until all is fsynced (for Orbax, by this benchmark), beside a plain write of as
many bytes past the page cache with nothing else running: what the disk can do. Restore reads from a cold disk and uses
every byte, beside a plain read of as many bytes past the page cache. Ours is a rank under a real agent.
Orbax runs at its default (zstd) and uncompressed, both asynchronously; the ratios are to its best.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.runtime_work import PEERS, ROOT
from tests.node.rig import Rig

from mainspring.domain.ids import AttemptId

KINDS = ("ours", *PEERS)
REST_S_MIN = 12.0  # The lead starts no save within 10 s of the last, nor before three times as long as that took.
REST_PARTS = 4.0
LIMIT_S = 300.0
CHUNK_BYTES = 32 << 20
Result = Mapping[str, float]


def command(*words: str) -> tuple[str, ...]:
    paths = f"PYTHONPATH={ROOT / 'src'}:{ROOT}"
    return ("env", paths, "JAX_PLATFORMS=cpu", sys.executable, "-m", "benchmarks.runtime_work", *words)


def wait_for(path: Path, alive: Callable[[], None]) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not path.exists():
        assert time.monotonic() < until_s, f"{path} never came"
        alive()
        time.sleep(0.01)


class Rank:
    """One process of one kind, that takes turns."""

    def __init__(self, folder: Path, what: str, kind: str, size: str, *, attempt: int = 1) -> None:
        self.folder = folder / f"{what}-{kind}-{attempt}"
        self.folder.mkdir()
        self._turns = 0
        self._rig: Rig | None = None
        self._process: subprocess.Popen[bytes] | None = None
        words = command(what, str(self.folder), size, kind)
        if kind == "ours":
            name = AttemptId(f"attempt-{attempt}")
            self._rig = Rig(folder=folder, command=words, agents=1, attempt=name, number=attempt, hang_s=600.0)
            self._rig.start()
        else:
            with (self.folder / "log").open("wb") as log:
                self._process = subprocess.Popen(words, stdout=log, stderr=log)
        try:
            wait_for(self.folder / "ready", self._alive)
        except BaseException:
            self.close()
            raise

    def turn(self) -> Result:
        number, self._turns = self._turns, self._turns + 1
        (self.folder / f"turn-{number}").touch()
        wait_for(self.folder / f"done-{number}", self._alive)
        result: Result = json.loads((self.folder / f"done-{number}").read_text())
        return result

    @property
    def agent_pid(self) -> int:
        assert self._rig is not None
        return self._rig.processes[0].pid

    def _alive(self) -> None:
        if self._process is not None:
            assert self._process.poll() is None, (self.folder / "log").read_text()[-3000:]
        if self._rig is not None:
            assert self._rig.processes[0].poll() is None, self._rig.story()

    def close(self) -> None:
        if self._rig is not None:
            self._rig.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextmanager
def open_ranks(folder: Path, what: str, size: str, kinds: tuple[str, ...]) -> Iterator[dict[str, Rank]]:
    ranks: dict[str, Rank] = {}
    try:
        for kind in kinds:
            ranks[kind] = Rank(folder, what, kind, size)
        yield ranks
    finally:
        for rank in ranks.values():
            rank.close()


def drop_caches() -> None:
    """Makes the disk cold: everything for root, else what this benchmark wrote stays as warm as it is for all."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def plain_read(path: Path) -> float:
    """Returns how long a file takes to read past the page cache, in one thread."""
    buffer = mmap.mmap(-1, CHUNK_BYTES)
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    started_s = time.perf_counter()
    at = 0
    while count := os.preadv(file, [buffer], at):
        at += count
    elapsed_s = time.perf_counter() - started_s
    os.close(file)
    return elapsed_s


def plain_write(path: Path, size_bytes: int) -> float:
    """Returns how long so many bytes take to be written past the page cache, in one thread, and made durable."""
    buffer = mmap.mmap(-1, CHUNK_BYTES)
    buffer[:] = os.urandom(CHUNK_BYTES)
    started_s = time.perf_counter()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
    os.posix_fallocate(file, 0, size_bytes)
    for at in range(0, size_bytes - size_bytes % mmap.PAGESIZE, CHUNK_BYTES):
        left_bytes = size_bytes - size_bytes % mmap.PAGESIZE - at
        os.pwrite(file, memoryview(buffer)[:left_bytes], at)
    os.fsync(file)
    elapsed_s = time.perf_counter() - started_s
    os.close(file)
    path.unlink()
    return elapsed_s


def write_plain(path: Path, size_bytes: int) -> None:
    noise = os.urandom(CHUNK_BYTES)
    with path.open("wb") as file:
        for at in range(0, size_bytes, CHUNK_BYTES):
            file.write(noise[: size_bytes - at])
        os.fsync(file.fileno())


def measure_saves(folder: Path, size: str, rounds: int) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {kind: [] for kind in (*KINDS, "plain")}
    ended_s, durable_s, size_bytes = 0.0, 0.0, 0
    with open_ranks(folder, "save", size, KINDS) as ranks:
        for number in range(rounds + 1):
            for kind, rank in ranks.items():
                if kind == "ours":
                    if number:
                        found["plain"].append({"durable_s": plain_write(folder / "plain", size_bytes)})
                    time.sleep(max(0.0, ended_s + max(REST_S_MIN, REST_PARTS * durable_s) - time.monotonic()))
                result = rank.turn()
                if kind == "ours":
                    ended_s, durable_s = time.monotonic(), result["durable_s"]
                    size_bytes = int(result["bytes"])
                shown = " ".join(f"{name} {value:.3f}" for name, value in result.items() if name != "bytes")
                shown += f"; plain write {found['plain'][-1]['durable_s']:.3f}" if kind == "ours" and number else ""
                print(f"save {number} {kind:14} {shown}{'' if number else ' (not counted)'}", flush=True)
                if number:  # The first one touches fresh memory and starts threads, in all of them.
                    found[kind].append(result)
    return found


def measure_restores(folder: Path, size: str, rounds: int, size_bytes: int) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {kind: [] for kind in (*KINDS, "plain")}
    write_plain(folder / "plain", size_bytes)
    for number in range(rounds):
        drop_caches()
        plain_s = plain_read(folder / "plain")
        found["plain"].append({"restore_s": plain_s})
        for kind in KINDS:
            rank = Rank(folder, "restore", kind, size, attempt=number + 2)
            try:
                drop_caches()
                found[kind].append(rank.turn())
            finally:
                rank.close()
            shown = " ".join(f"{name} {value:.3f}" for name, value in found[kind][-1].items())
            print(f"restore {number} {kind:14} {shown}; plain read {plain_s:.3f}", flush=True)
    return found


def middle(results: list[Result], name: str) -> float:
    return statistics.median(result[name] for result in results)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a sixteenth of the state")
    size = "quick" if parser.parse_args().quick else "whole"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # So that what it started ends with it.
    folder = Path(tempfile.mkdtemp(prefix="runtime-checkpoint-"))
    try:
        saved = measure_saves(folder, size, 3)
        size_bytes = int(saved["ours"][0]["bytes"])
        restored = measure_restores(folder, size, 3, size_bytes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    figures: dict[str, Any] = {"bytes": size_bytes}
    for name in ("lost_s", "durable_s", "blocked_s", "quiet_s"):
        figures |= {f"{kind}_{name}": middle(saved[kind], name) for kind in KINDS}
    figures["plain_durable_s"] = middle(saved["plain"], "durable_s")
    figures["durable_of_disk"] = figures["plain_durable_s"] / figures["ours_durable_s"]
    figures |= {f"{kind}_restore_s": middle(results, "restore_s") for kind, results in restored.items()}
    for name in ("lost", "durable", "restore"):
        best_s = min(figures[f"{kind}_{name}_s"] for kind in PEERS)
        figures[f"orbax_{name}_s"] = best_s
        figures[f"ratio_{name}"] = best_s / max(figures[f"ours_{name}_s"], 1e-3)
    figures["restore_of_disk"] = figures["plain_restore_s"] / figures["ours_restore_s"]
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
