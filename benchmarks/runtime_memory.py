"""The memory a save takes beyond the state itself: agent and rank together, against the arena's stated formula.

Run as `python -m benchmarks.runtime_memory [--quick]`. The agent of a node that keeps no copies of others holds three
snapshots of each of its ranks and nothing else of their size; memory is looked at from before the first save until all
saves are durable: what both processes have of their own, and every file in memory (memfd) that the agent holds.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.runtime_checkpoint import REST_S_MIN, Rank

SLOTS = 3  # Being written, newest, the one before: the arena's formula.
LOOK_EVERY_S = 0.02
SAVES = 3
BLOCK_BYTES = 512  # What `st_blocks` counts.


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    own_bytes: int
    files_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.own_bytes + self.files_bytes


def children(pid: int) -> list[int]:
    """Returns a process and all its descendants."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            found += [int(child) for child in task.read_text().split()]
    return found


def look(pids: list[int], agent_pid: int) -> Memory:
    own = 0
    for pid in pids:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        own += sum(int(line.split()[1]) << 10 for line in rollup.splitlines() if line.startswith("Pss_Anon:"))
    files: dict[int, int] = {}
    for path in Path(f"/proc/{agent_pid}/fd").iterdir():
        try:
            if str(path.readlink()).startswith("/memfd:"):
                status = path.stat()
                files[status.st_ino] = status.st_blocks * BLOCK_BYTES
        except FileNotFoundError:
            continue  # Closed in between.
    return Memory(own_bytes=own, files_bytes=sum(files.values()))


@contextmanager
def watched(rank: Rank) -> Iterator[list[Memory]]:
    """Looks at the memory of a rank and its agent until the block ends."""
    pids, seen, over = children(rank.agent_pid), [], threading.Event()

    def watch() -> None:
        while not over.wait(LOOK_EVERY_S):
            seen.append(look(pids, rank.agent_pid))

    thread = threading.Thread(target=watch)
    seen.append(look(pids, rank.agent_pid))
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a sixteenth of the state")
    size = "quick" if parser.parse_args().quick else "whole"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    folder = Path(tempfile.mkdtemp(prefix="runtime-memory-"))
    try:
        rank = Rank(folder, "memory", "ours", size)
        try:
            rank.turn()  # Quiet steps: what steps themselves need is there.
            state_bytes = 0
            with watched(rank) as seen:
                for number in range(SAVES):
                    state_bytes = int(rank.turn()["bytes"])
                    peak = max(seen, key=lambda memory: memory.total_bytes)
                    extra = (peak.total_bytes - seen[0].total_bytes) / state_bytes
                    print(f"save {number}: at most {extra:.3f} of the state", flush=True)
                    time.sleep(REST_S_MIN if number + 1 < SAVES else 0.0)
        finally:
            rank.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    before, peak = seen[0], max(seen, key=lambda memory: memory.total_bytes)
    extra_bytes, formula_bytes = peak.total_bytes - before.total_bytes, SLOTS * state_bytes
    figures = {
        "state_bytes": state_bytes,
        "extra_ratio": (extra_bytes - formula_bytes) / state_bytes,
        "formula_ratio": extra_bytes / formula_bytes,
        "files_of_state": peak.files_bytes / state_bytes,
        "own_before_of_state": before.own_bytes / state_bytes,
        "own_peak_of_state": max(memory.own_bytes for memory in seen) / state_bytes,
    }
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
