"""A whole controller under a lab's load: 12,500 nodes, 2,000 attempts, 100,000 pending jobs, 5,000,000 that have ended.

Run as `python -m benchmarks.control_fleet [--quick] [--store sqlite|postgresql]`. One server in a process of its own,
with real HTTP, store, loop and planner; engines answer from memory (12,500 nodes of 8 chips in 5 clusters), and leads
are simulated by another process: every agent registers, and each attempt's lead reports once in 10 s. 200 readers
follow all events. One attempt a second ends, and its nodes go to jobs that wait; jobs are of 1 to 128 whole nodes, of
1,000 shapes, in 500 teams. The 5,000,000 jobs with 6 events each are written straight into tables, once: they are kept
under `--cache`, where `--make` only makes them, and copied for each run.

After all has settled, 3 windows of 120 s each, of which medians count: `tick_s`, the 95th percentile of whole ticks;
`cpu_cores`, the server's, and `rss_gib`, its proportional set size, both without the database and the load; `p99_ms`
of reads (`jobs`, one job, `why`, `events` of one) and submits while ticks run, 20 a second. Both stores in turn, and
the worse counts. `loop_s` is the time of 6,000,000 turns of `total += i * i % 7` (0.20 s is the reference). `--quick`
is a tenth of everything, and a window of 20 s.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.control_submit import loop_s
from benchmarks.fleet_load import HEARTBEAT_S, Line, Load, spec_of
from benchmarks.fleet_past import seed
from benchmarks.planner_scale import CLUSTERS, inventory

from mainspring.app.base.client import Client
from mainspring.app.base.system import SystemClock, SystemDice, tune_for_serving
from mainspring.control import AgentAccess, Control, Settings, open_store
from mainspring.control.connections import listen
from mainspring.control.loop.loop import Loop, Step
from mainspring.control.server import Server
from mainspring.control.store.records import ACTIVE_MAX
from mainspring.domain.answers import BATCH_MAX, NewToken, Submit, SubmitBatch
from mainspring.domain.fleet import LaunchOrder
from mainspring.domain.ids import NAME_LENGTH_MAX, TeamName
from mainspring.domain.job import LAB
from mainspring.domain.life import Retention
from mainspring.domain.team import Team, TeamRole, WaitingLimits
from mainspring.testing.fake_engine import FakeEngine
from mainspring.testing.postgres import PostgresServer

NODES, TEAMS, PENDING, ENDED, READERS = 12_500, 500, 100_000, 5_000_000, 200
WINDOWS, WINDOW_S, QUICK_S = 3, 120.0, 20.0
LINES = 24  # Connections of all leads: each has one open for as long as it speaks.
SETTLE_S_MAX = 900.0


# ---------------------------------------------------------------- the server


class Launching(FakeEngine):
    """A cluster in memory that tells who plays its agents of every launch."""

    def __init__(self, told: Path, **given: Any) -> None:
        super().__init__(**given, obey_s=1.0)
        self._told = told.open("a", encoding="utf-8")

    def launch(self, order: LaunchOrder) -> None:
        super().launch(order)
        line = {"allocation": order.allocation, "attempt": order.attempt, "nodes": order.nodes, "token": order.token}
        self._told.write(json.dumps(line) + "\n")
        self._told.flush()


class Timed(Control):
    """A controller that tells when each whole tick began and ended, and what it took until each of its steps."""

    def __init__(self, told: Path, **given: Any) -> None:
        super().__init__(**given)
        self._told = told.open("a", encoding="utf-8")

    def new_loop(self) -> Loop:
        loop, plain = super().new_loop(), Loop.steps

        def steps() -> Iterator[Step]:
            begun_s = at_s = time.time()
            step, spent_s = Step.FOLLOWING, defaultdict[str, float](float)
            for step in plain(loop):
                spent_s[step.value] += time.time() - at_s
                yield step
                at_s = time.time()
            if step is Step.RECORDED:
                self._told.write(json.dumps([begun_s, time.time(), spent_s]) + "\n")
                self._told.flush()

        loop.steps = steps  # type: ignore[method-assign]
        return loop


def serve(folder: Path, url: str, nodes: int) -> None:
    clock = SystemClock()
    listener = listen("127.0.0.1", 0)
    engines = {}
    for index in range(CLUSTERS):
        shown = inventory(index, nodes // CLUSTERS)
        engines[shown.cluster] = Launching(folder / "launched", inventory=shown, clock=clock)
    control = Timed(
        folder / "ticks",
        store=open_store(url, owned_s=clock.now_s()),
        engines=engines,
        clock=clock,
        dice=SystemDice(),
        access=AgentAccess(
            controller_urls=(f"http://127.0.0.1:{listener.getsockname()[1]}",),
            objects_url="file:///nowhere",
            key="k" * 32,
        ),
        settings=Settings(
            heartbeat_s=HEARTBEAT_S,
            lease_s=6 * HEARTBEAT_S,
            leaderless_s=18 * HEARTBEAT_S,
            limits=WaitingLimits(person_jobs=ACTIVE_MAX, team_jobs=ACTIVE_MAX),
            keep=Retention(jobs=2 * ENDED),
        ),
    )
    control.people.set_team(Team(name=LAB))
    token = control.people.new_token(NewToken(holder="ada", team=LAB, role=TeamRole.ADMIN)).secret
    server = Server(control, listener)
    tune_for_serving()
    server.start()
    (folder / "server.new").write_text(json.dumps({"port": listener.getsockname()[1], "token": token}))
    (folder / "server.new").rename(folder / "server.json")
    try:
        server.wait()
    finally:
        server.stop()
        control.store.close()


# ---------------------------------------------------------------- measuring


def cpu_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def pss_gib(pid: int) -> float:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(text.partition("\nPss:")[2].split()[0]) / (1 << 20)


def percentile(some: list[float], share: float) -> float:
    return sorted(some)[int(share * (len(some) - 1))]


def ticks_of(folder: Path, since_s: float) -> list[tuple[float, float, dict[str, float]]]:
    every = [json.loads(line) for line in (folder / "ticks").read_text().splitlines()]
    return [(begun_s, over_s, spent_s) for begun_s, over_s, spent_s in every if begun_s >= since_s]


async def window(load: Load, pid: int, seconds: float) -> dict[str, Any]:
    since_s, before_s, beats, heard = time.time(), cpu_s(pid), load.beats, load.heard
    load.calls.clear()
    await asyncio.sleep(seconds)
    spent_s = cpu_s(pid) - before_s
    ticks = ticks_of(load.folder, since_s)
    during: dict[str, list[float]] = {"GET": [], "POST": []}
    for method, begun_s, over_s in load.calls:
        if any(begun_s < tick[1] and over_s > tick[0] for tick in ticks):
            during[method].append(over_s - begun_s)
    every = during["GET"] + during["POST"]
    assert not load.refused, load.refused[:3]
    return {
        "tick_s": percentile([over_s - begun_s for begun_s, over_s, _ in ticks], 0.95),
        "tick_p50_s": percentile([over_s - begun_s for begun_s, over_s, _ in ticks], 0.5),
        "p50_s_until": {
            step.value: round(percentile([spent_s.get(step.value, 0.0) for _, _, spent_s in ticks], 0.5), 3)
            for step in Step
        },
        "cpu_cores": spent_s / seconds,
        "rss_gib": pss_gib(pid),
        "p99_ms": 1e3 * percentile(every, 0.99),
        "p50_ms": 1e3 * percentile(every, 0.5),
        "reads_p99_ms": 1e3 * percentile(during["GET"], 0.99),
        "submits_p99_ms": 1e3 * percentile(during["POST"], 0.99),
        "calls": len(every),
        "ticks": len(ticks),
        "beats_per_s": (load.beats - beats) / seconds,
        "heard_per_s": (load.heard - heard) / seconds,
        "attempts": len(load.leads),
    }


async def drive(folder: Path, pid: int, size: Mapping[str, int], windows: int, seconds: float) -> list[dict[str, Any]]:
    told = json.loads((folder / "server.json").read_text())
    load = Load(folder=folder, port=told["port"], token=told["token"])
    for _ in range(LINES):
        load.lines.put_nowait(Line(load.port))
    url = f"http://127.0.0.1:{load.port}"
    known = await asyncio.to_thread(submit_all, url, load.token, size)
    readers = await asyncio.to_thread(tokens, url, load.token, size["readers"])
    load.go(load.play_agents())
    with Client(url, load.token) as client:
        newest = client.all_events(limit=1, newest=True)[-1].sequence
    for each in readers:
        load.go(load.follow(each, newest))
    begun_s, before = time.monotonic(), -1
    while (len(load.leads) != before or not load.leads) and time.monotonic() - begun_s < SETTLE_S_MAX:
        before = len(load.leads)
        await asyncio.sleep(2 * HEARTBEAT_S)
        assert not load.refused, load.refused[:3]
        print(f"{len(load.leads)} attempts run after {time.monotonic() - begun_s:.0f} s", file=sys.stderr, flush=True)
    load.go(load.end_some())
    load.go(load.sample(known))
    await asyncio.sleep(HEARTBEAT_S)
    found = [await window(load, pid, seconds) for _ in range(windows)]
    for task in list(load.tasks):
        task.cancel()
    return found


def submit_all(url: str, token: str, size: Mapping[str, int]) -> list[str]:
    dice, made = Random(5), list[str]()
    with Client(url, token) as client:
        for number in range(size["teams"]):
            team = TeamName(f"team-{number}")
            client.put_team(team, Team(name=team, parent=LAB))
        count = size["pending"] + 4 * size["nodes"] // 25  # About as many more as run.
        for first in range(0, count, BATCH_MAX):
            names = [f"job-{number}" for number in range(first, min(first + BATCH_MAX, count))]
            specs = [spec_of(name, dice, TeamName(f"team-{dice.randrange(size['teams'])}")) for name in names]
            batch = SubmitBatch(submits=tuple(Submit(spec=spec, key=spec.name) for spec in specs))
            made.extend(client.submit_batch(batch).jobs)
    return made


def tokens(url: str, token: str, readers: int) -> list[str]:
    """Returns a token for every reader, of whom 20 have one together: one token has 32 requests open at most."""
    found = []
    with Client(url, token) as client:
        for number in range(-(-readers // 20)):
            asked = NewToken(holder=f"reader-{number}"[:NAME_LENGTH_MAX], team=LAB, role=TeamRole.VIEWER)
            found += [client.new_token(asked).secret] * 20
    return found[:readers]


# ---------------------------------------------------------------- stores


def sqlite_kept(cache: Path, size: Mapping[str, int]) -> Path:
    kept = cache / f"fleet-{size['ended']}.db"
    if not kept.exists():
        cache.mkdir(parents=True, exist_ok=True)
        new = kept.with_suffix(".new")
        new.unlink(missing_ok=True)
        seed(f"sqlite:///{new}", size["ended"], size["teams"])
        new.rename(kept)
    return kept


@contextmanager
def sqlite_copy(cache: Path, folder: Path, size: Mapping[str, int]) -> Iterator[str]:
    kept = sqlite_kept(cache, size)
    subprocess.run(["cp", "--reflink=auto", kept, folder / "store.db"], check=True)
    yield f"sqlite:///{folder / 'store.db'}"


@contextmanager
def postgres_copy(_: Path, __: Path, size: Mapping[str, int]) -> Iterator[str]:
    settings = {"shared_buffers": "512MB", "max_wal_size": "8GB", "fsync": "on", "synchronous_commit": "on"}
    with PostgresServer(**settings) as server:
        url = server.new_database()
        seed(url, size["ended"], size["teams"])
        yield url


STORES: Mapping[str, Callable[..., Any]] = {"sqlite": sqlite_copy, "postgresql": postgres_copy}


def measured(store: str, cache: Path, size: Mapping[str, int], windows: int, seconds: float) -> list[dict[str, Any]]:
    folder = Path(tempfile.mkdtemp(prefix="control-fleet-"))
    try:
        with STORES[store](cache, folder, size) as url:
            words = ["--serve", str(folder), "--url", url, "--nodes", str(size["nodes"])]
            server = subprocess.Popen([sys.executable, "-m", "benchmarks.control_fleet", *words])
            try:
                while not (folder / "server.json").exists():
                    assert server.poll() is None, "the server ended"
                    time.sleep(0.1)
                return asyncio.run(drive(folder, server.pid, size, windows, seconds))
            finally:
                server.send_signal(signal.SIGKILL)
                server.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a tenth of everything, one short window")
    parser.add_argument("--store", choices=STORES, action="append", help="only this one")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()), help="where ended jobs are kept")
    parser.add_argument("--ended", type=int, default=ENDED, help="ended jobs, where a disk has no room for all")
    parser.add_argument("--make", action="store_true", help="only make the SQLite store of ended jobs, under --cache")
    for name, kind in (("--serve", Path), ("--url", str), ("--nodes", int)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve, given.url, given.nodes)
        return
    share = 10 if given.quick else 1
    size = {"nodes": NODES, "teams": TEAMS, "pending": PENDING, "ended": given.ended, "readers": READERS}
    size = {name: count // share for name, count in size.items()}
    if given.make:
        print(sqlite_kept(given.cache, size))
        return
    windows, seconds = (1, QUICK_S) if given.quick else (WINDOWS, WINDOW_S)
    worst: dict[str, float] = {"loop_s": loop_s()}
    for store in given.store or STORES:
        found = measured(store, given.cache, size, windows, seconds)
        for figures in found:
            shown = {name: round(value, 3) if isinstance(value, float) else value for name, value in figures.items()}
            print(json.dumps({"store": store} | shown), flush=True)
        for name in ("tick_s", "cpu_cores", "rss_gib", "p99_ms"):
            worst[name] = max(worst.get(name, 0.0), statistics.median(figures[name] for figures in found))
    print(json.dumps({name: round(value, 3) for name, value in worst.items()} | size))


if __name__ == "__main__":
    main()
