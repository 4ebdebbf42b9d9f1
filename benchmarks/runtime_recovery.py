"""From kill -9 until every rank steps again, with 3 ranks: ours, and a full restart of all from Orbax.

Run as `python -m benchmarks.runtime_recovery [--quick]`. Replace: a rank is killed, and a process that stood by takes
its place while the others reconnect. Shrink: an agent is killed with its rank, and two ranks go on; the engine sees it
end, and the lead hears of that with the controller's next answer. Where no engine sees it (a machine that is gone), the
lead must wait 1.5 leases (`lease_s`) more. Each shrink is the first that its cache of compiled programs sees: two ranks
find theirs since it was compiled ahead; late, they compile it then, as where programs do not ask for that. Restart: the
launcher sees the death at once, ends all processes and starts them anew, with a warm cache. The toy is a few thousand
numbers; the big model has 100 M parameters, cut among the ranks with Adam's moments: 1.2 GB of state in all.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.runtime_checkpoint import command, wait_for
from tests.node.rig import Rig

from mainspring.node.net.connection import free_port

RANKS = 3
LIMIT_S = 120.0
LEASE_S = 5.0  # A loaded machine keeps an agent from its lead for half a second now and then.
SETTLE_S = 1.0  # After the last spare process has begun to wait: for its agent to have heard of it.


def newest(folder: Path) -> int:
    """Returns the newest generation of which a rank has stepped."""
    return max((int(path.name.split("-")[1]) for path in folder.glob("stepped-*")), default=0)


def wait_stepped(folder: Path, after: int, ranks: int, rig: Rig | None = None) -> float:
    """Returns when the last rank had done its first step of a generation later than `after`."""
    until_s = time.monotonic() + LIMIT_S
    while True:
        paths = [folder / f"stepped-{newest(folder)}-{rank}" for rank in range(ranks)]
        if newest(folder) > after and all(path.exists() for path in paths):
            return max(float(path.read_text()) for path in paths)
        assert time.monotonic() < until_s, "the ranks never stepped"
        if rig is not None and rig.heartbeats[-1:]:
            assert rig.heartbeats[-1].outcome is None, rig.story()
        time.sleep(0.01)


def wait_spares(folder: Path, count: int) -> None:
    """Waits until so many live processes stand by."""
    until_s = time.monotonic() + LIMIT_S
    while True:
        waiting = {path.name.partition("-")[2] for path in folder.glob("waiting-*")}
        started = {path.name.partition("-")[2] for path in folder.glob("started-*")}
        if sum(Path(f"/proc/{pid}").exists() for pid in waiting - started) >= count:
            time.sleep(SETTLE_S)
            return
        assert time.monotonic() < until_s, "no process stands by"
        time.sleep(0.05)


def start_ours(folder: Path, size: str, *words: str, compiled: Path) -> tuple[Rig, Path]:
    home = folder / f"ours-{size}-{len(list(folder.iterdir()))}"
    notes = home / "notes"
    notes.mkdir(parents=True)
    compiled.mkdir(exist_ok=True)
    (home / "compiled").symlink_to(compiled)
    rig = Rig(
        folder=home,
        command=command("stepping", str(notes), size, *words),
        agents=RANKS,
        ranks_min=2,
        lease_s=LEASE_S,
        sees=True,
        hang_s=600.0,
        restarts_max=1_000,
    )
    rig.start()
    try:
        wait_stepped(notes, 0, RANKS, rig)
    except BaseException:
        rig.close()
        raise
    return rig, notes


def replaces(folder: Path, size: str, count: int) -> list[float]:
    rig, notes = start_ours(folder, size, compiled=folder / "compiled")
    found = []
    try:
        for number in range(count + 1):  # The first fills the cache of compiled programs.
            wait_spares(notes, RANKS)
            before = newest(notes)
            killed_s = time.monotonic()
            rig.signal_rank(number % RANKS, signal.SIGKILL)
            found.append(wait_stepped(notes, before, RANKS, rig) - killed_s)
            print(f"replace {size:9} {found[-1]:.3f} s", flush=True)
    finally:
        rig.close()
    return found[1:]


def shrinks(folder: Path, size: str, count: int, *, late: bool = False) -> list[float]:
    found = []
    for _ in range(count):
        compiled = folder / f"compiled-{len(list(folder.iterdir()))}"
        rig, notes = start_ours(folder, size, *(["late"] * late), compiled=compiled)
        try:
            wait_spares(notes, RANKS)
            for rank in range(0 if late else RANKS):
                wait_for(notes / f"compiled-1-{rank}", lambda: None)
            killed_s = time.monotonic()
            rig.signal_agent(RANKS - 1, signal.SIGKILL)
            found.append(wait_stepped(notes, 1, RANKS - 1, rig) - killed_s)
            print(f"shrink  {size:9} {found[-1]:.3f} s{' late' * late}", flush=True)
        finally:
            rig.close()
    return found


def restarts(folder: Path, size: str, count: int) -> list[float]:
    notes = folder / f"orbax-{size}" / "notes"
    notes.mkdir(parents=True)
    processes: list[subprocess.Popen[bytes]] = []
    found = []

    def start(generation: int) -> None:
        address = f"127.0.0.1:{free_port('127.0.0.1')}"
        with (notes / "log").open("ab") as log:
            for rank in range(RANKS):
                words = (address, str(rank), str(RANKS), str(generation))
                processes.append(
                    subprocess.Popen(command("restarting", str(notes), size, *words), stdout=log, stderr=log)
                )

    try:
        start(1)
        wait_for(notes / "saved", lambda: None)
        for generation in range(2, count + 3):
            killed_s = time.monotonic()
            processes[1].kill()
            for process in processes:
                process.kill()
                process.wait()
            processes.clear()
            start(generation)
            found.append(wait_stepped(notes, generation - 1, RANKS) - killed_s)
            print(f"restart {size:9} {found[-1]:.3f} s", flush=True)
            time.sleep(SETTLE_S)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return found[1:]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="11 M parameters in place of 100 M")
    big = "quick-big" if parser.parse_args().quick else "big"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    folder = Path(tempfile.mkdtemp(prefix="runtime-recovery-"))
    os.mkdir(folder / "compiled")
    seconds: dict[str, list[float]] = {}
    try:
        for name, measure, size in (
            ("replace_s", replaces, "toy"),
            ("restart_s", restarts, "toy"),
            ("shrink_s", shrinks, "toy"),
            ("big_replace_s", replaces, big),
            ("big_restart_s", restarts, big),
            ("big_shrink_s", shrinks, big),
            ("big_late_shrink_s", partial(shrinks, late=True), big),
        ):
            seconds[name] = measure(folder, size, 3)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    figures = {name: statistics.median(values) for name, values in seconds.items()}
    for name in ("replace", "shrink", "late_shrink"):
        figures[f"big_{name}_ratio"] = figures[f"big_{name}_s"] / figures["big_restart_s"]
    figures["ahead_ratio"] = figures["big_shrink_s"] / figures["big_late_shrink_s"]
    figures["big_ratio"] = max(figures["big_replace_ratio"], figures["big_shrink_ratio"])
    figures["lease_s"] = LEASE_S
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
