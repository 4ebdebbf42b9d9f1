"""Health events over HTTP, durably, while rules look at them: how many a second, how late rules are, what is lost.

Run as `python -m benchmarks.health_ingest [--quick] [--store sqlite|postgresql]`; without a store, both, and the worse
counts. 64 watchers on kept connections each tell batches of 500 events of a node of their own for 5 minutes to a server
on this machine, and tell again what was not acknowledged; events are warnings of 20 checks, and one in 1,000 is fatal.
In mid-burst the server is killed by SIGKILL and started anew. `per_s` is what was acknowledged over the whole time,
`lost` what was acknowledged and cannot be read from the store afterwards. Every few seconds one more watcher, whose
token is its own, tells something fatal of a node, and asks until a rule has found it: `behind_s` is the longest that
took, `behind_p50_s` the median, both but for the time in which the server was started anew, which `again_s` tells.
NVSentinel's platform connector broke at 4,200 events a second (its own load test, 2025). `loop_s` is the time of
6,000,000 turns of `total += i * i % 7`, by which bounds scale (0.20 s is the reference).
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any
from urllib.parse import urlsplit

import sqlalchemy as sa
from benchmarks.control_submit import loop_s

from mainspring.app.base.client import Client
from mainspring.app.sdk.lab import Lab
from mainspring.control.store.schema import health_events
from mainspring.domain.answers import NewToken
from mainspring.domain.codec import encode
from mainspring.domain.errors import MainspringError
from mainspring.domain.hardware.health import HealthEvent, HealthSource, Repair, Scope, ScopeKind, Strategy
from mainspring.domain.ids import ChipName, ClusterName, NodeName
from mainspring.domain.job import LAB
from mainspring.domain.team import TeamRole
from mainspring.domain.wire import HEALTH_BATCH_MAX, HealthBatch
from mainspring.engines.local.config import LocalCluster
from mainspring.testing.postgres import PostgresServer

WATCHERS = 64
PROCESSES = 2
SECONDS, QUICK_S = 300.0, 30.0
MARK_EVERY_S = 3.0
HALL = ClusterName("hall")
SAFE = {"fsync": "on", "synchronous_commit": "on", "max_wal_size": "4GB"}
SEQUENCE, AT_S = 123_456_789, 987_654_321.0  # Stand in a text for what each event has of its own.


def seen(node: int, session: str, sequence: int, at_s: float, check: int, *, fatal: bool) -> HealthEvent:
    return HealthEvent(
        source=HealthSource(name="watcher", session=session, sequence=sequence),
        at_s=at_s,
        scope=Scope(kind=ScopeKind.DEVICE, cluster=HALL, node=NodeName(f"hall-{node}"), part=f"GPU-{check % 8}"),
        check=f"check-{check}",
        codes=(str(check),),
        fatal=fatal,
        message="a counter of corrected errors has grown by more than it does in an hour",
        repair=Repair.RESTART_NODE if fatal else Repair.NONE,
        strategy=Strategy.ACT,
    )


def pieces(node: int, session: str) -> list[tuple[bytes, bytes, bytes]]:
    """Returns texts of events but for number and time: what watchers spend on them is taken from the server here."""
    found = []
    for place in range(HEALTH_BATCH_MAX):
        event = seen(node, session, SEQUENCE, AT_S, place % 20, fatal=place == 0 and node % 2 == 0)
        before, _, rest = encode(event).partition(str(SEQUENCE).encode())
        between, _, after = rest.partition(str(AT_S).encode())
        found.append((before, between, after))
    return found


def watch(home: str, first: int, count: int, until_s: float) -> dict[str, int]:
    """Tells from some threads until a time; returns how many events of each session were acknowledged."""
    lab = Lab(home)
    token, acknowledged, lock = lab.home.token(), dict[str, int](), Lock()

    def watcher(node: int) -> None:
        session = f"s{node}"
        told, texts, connection = 0, pieces(node, session), None
        while time.time() < until_s:
            at_s = str(time.time()).encode()
            events = (b"%b%d%b%b%b" % (a, told + place, b, at_s, c) for place, (a, b, c) in enumerate(texts))
            body = b'{"events":[%b]}' % b",".join(events)
            try:
                if connection is None:
                    record = lab.home.server()
                    parts = urlsplit(record.url if record else "http://127.0.0.1:9")
                    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=30)
                headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
                connection.request("POST", "/v1/health/events", body=body, headers=headers)
                answer = connection.getresponse()
                text = answer.read()
            except (OSError, http.client.HTTPException):
                connection = None
                time.sleep(0.2)
                continue
            if answer.status != 200:
                assert answer.status in (429, 503), text[:500]
                time.sleep(0.2)
                continue
            told += HEALTH_BATCH_MAX
            with lock:
                acknowledged[session] = told

    with ThreadPoolExecutor(count) as threads:
        list(threads.map(watcher, range(first, first + count)))
    return acknowledged


class Marks:
    """Tells something fatal now and then, and how long it takes a rule to find it."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        # The watchers' token has as many calls open as one may have, and waits.
        self._token = lab.new_token(NewToken(holder="marks", team=LAB, role=TeamRole.ADMIN)).secret
        self._ended = Event()
        self.taken_s: list[tuple[float, float]] = []  # When each was told, and how long it took.
        self._thread = Thread(target=self._run)
        self._thread.start()

    def end(self) -> list[tuple[float, float]]:
        self._ended.set()
        self._thread.join()
        return self.taken_s

    def _run(self) -> None:
        number = 0
        while not self._ended.wait(MARK_EVERY_S):
            number += 1
            begun_s = time.time()
            try:
                mark = seen(WATCHERS, "marks", number, begun_s, number % 20, fatal=True)
                record = self._lab.home.server()
                with Client(record.url if record else "http://127.0.0.1:9", self._token) as client:
                    client.tell_health(HealthBatch(events=(mark,)))
                    while not self._ended.is_set() and not _found(client, number):
                        time.sleep(0.05)
            except MainspringError:
                pass
            if not self._ended.is_set():
                self.taken_s.append((begun_s, time.time() - begun_s))


def _found(client: Client, number: int) -> bool:
    health = client.node(HALL, f"hall-{WATCHERS}").health
    found = health.findings if health is not None else ()
    return any(each.sequence >= number for one in found for each in one.evidence if each.session == "marks")


def measure(folder: Path, seconds: float, database: str) -> dict[str, float]:
    lab = Lab(folder / "home")
    nodes = LocalCluster(
        name=HALL, chip=ChipName("h100"), chips_per_node=8, nodes=WATCHERS + 1, dollars_per_chip_hour=2.0
    )
    lab.home.write_config(replace(lab.home.config(), clusters=(nodes,), database=database))
    lab.up(port=0)
    while not lab.fleet():
        time.sleep(0.1)
    try:
        marks, begun_s = Marks(lab), time.time()
        with ProcessPoolExecutor(PROCESSES) as pool:
            share, until_s = WATCHERS // PROCESSES, begun_s + seconds
            parts = [
                pool.submit(watch, str(folder / "home"), number * share, share, until_s) for number in range(PROCESSES)
            ]
            time.sleep(seconds / 2)
            killed_s = time.time()
            record = lab.home.server()
            assert record is not None
            os.kill(record.pid, signal.SIGKILL)
            os.waitpid(record.pid, 0)
            lab.up(port=0)
            up_s = time.time()
            acknowledged: dict[str, int] = {}
            for part in parts:
                acknowledged |= part.result()
        took_s = time.time() - begun_s
        taken = marks.end()
        lost = missing(lab.home.database_url(lab.home.config()), acknowledged)
    finally:
        lab.down()
    around = [took for at_s, took in taken if at_s + took >= killed_s and at_s <= up_s + 30.0]
    usual = [took for at_s, took in taken if at_s + took < killed_s or at_s > up_s + 30.0]
    return {
        "per_s": sum(acknowledged.values()) / took_s,
        "lost": lost,
        "behind_s": max(usual, default=-1.0),
        "behind_p50_s": statistics.median(usual) if usual else -1.0,
        "again_s": max(around, default=-1.0),
    }


def missing(url: str, acknowledged: Mapping[str, int]) -> int:
    """Returns how many of what was acknowledged the store does not have."""
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        lost = 0
        for session, told in acknowledged.items():
            own = (health_events.c.session == session, health_events.c.sequence < told)
            query = sa.select(sa.func.count()).select_from(health_events).where(*own)
            lost += told - connection.execute(query).scalar_one()
    engine.dispose()
    return lost


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--quick", action="store_true")
    asked.add_argument("--store", choices=("sqlite", "postgresql"))
    given = asked.parse_args()
    seconds = QUICK_S if given.quick else SECONDS
    found: dict[str, dict[str, Any]] = {}
    for store in [given.store] if given.store else ["sqlite", "postgresql"]:
        folder = Path(tempfile.mkdtemp(prefix="health-ingest-"))
        try:
            if store == "sqlite":
                found[store] = measure(folder, seconds, "")
            else:
                with PostgresServer(**SAFE) as server:
                    found[store] = measure(folder, seconds, server.new_database())
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        print(store, json.dumps({name: round(value, 3) for name, value in found[store].items()}), flush=True)
    worst = {
        "per_s": min(one["per_s"] for one in found.values()),
        "lost": max(one["lost"] for one in found.values()),
        "behind_s": max(one["behind_s"] for one in found.values()),
    }
    print(
        json.dumps({**{name: round(value, 3) for name, value in worst.items()}, **found, "loop_s": round(loop_s(), 3)})
    )


if __name__ == "__main__":
    main()
