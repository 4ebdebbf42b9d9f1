"""How soon another leads: servers and databases killed under a lab's load, PostgreSQL alone.

Run as `python -m benchmarks.control_failover [--quick]`. Two servers share one PostgreSQL, which has one synchronous
standby; engines answer from memory that both servers share, 12,500 nodes of 8 chips in 5 clusters. 2,000 attempts run,
whose leads are simulated by another process and report once in 10 s over real HTTP; 5 jobs a second are submitted, and
as many attempts end, so that every second brings a plan. Whoever calls knows both servers.

`leader_s`: from SIGKILL of the server that leads to the next plan that another one has committed; it is started again
after that. `database_s`: from SIGKILL of the primary, upon which the standby is promoted, to the next plan; the old
primary then becomes the new one's standby. The worst of 5 each. `false_changes`: how often the lead passed from one to
another in 10 minutes in which nobody was killed. `loop_s` is the time of 6,000,000 turns of `total += i * i % 7`
(0.20 s is the reference). `--quick` is a tenth of the load, 2 kills each, and 20 s.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import psycopg
from benchmarks.control_submit import loop_s
from benchmarks.fleet_load import HEARTBEAT_S, Line, Load, spec_of
from benchmarks.planner_scale import CLUSTERS, inventory

from mainspring.app.base.system import SystemClock, SystemDice, tune_for_serving
from mainspring.control import AgentAccess, Control, Settings, open_store
from mainspring.control.connections import listen
from mainspring.control.loop.loop import Loop, Step
from mainspring.control.server import Server
from mainspring.control.store.records import ACTIVE_MAX
from mainspring.domain.answers import NewToken, Submit
from mainspring.domain.codec import decode, encode
from mainspring.domain.fleet import AllocationSeen, LaunchOrder
from mainspring.domain.ids import AllocationId
from mainspring.domain.job import LAB
from mainspring.domain.team import Team, TeamRole, WaitingLimits
from mainspring.testing.fake_engine import FakeEngine
from mainspring.testing.postgres import PostgresServer

NODES, SUBMITS_PER_S, KILLS, CALM_S = 12_500, 5.0, 5, 600.0
QUICK_KILLS, QUICK_CALM_S = 2, 20.0
RUNNING_LEAST, SETTLE_S_MAX = 0.9, 60.0  # The share of nodes in use when measuring begins, or when it is late.
REST_S = 5.0  # Between kills.
NAMES = ("a", "b")
LINES, AGAIN_S, TRIES_MAX = 64, 0.1, 600
LOOK_S = 0.01
SEEN_SQL = "SELECT (SELECT coalesce(max(number), 0) FROM plans), holder, epoch FROM leases WHERE name = 'leader'"


# ---------------------------------------------------------------- servers


class Shared(FakeEngine):
    """A cluster in memory that is the same in every server: what each is told, all are, in one order."""

    def __init__(self, folder: Path, **given: Any) -> None:
        super().__init__(**given, obey_s=1.0)
        self.name = given["inventory"].cluster
        self._said = (folder / f"said-{self.name}").open("a+", encoding="utf-8")
        self._told = (folder / "launched").open("a", encoding="utf-8")
        self._at = 0

    def observe(self) -> tuple[AllocationSeen, ...]:
        with self._turn():
            return super().observe()

    def launch(self, order: LaunchOrder) -> None:
        with self._turn():
            if order.allocation in self._allocations:
                return
            self._say({"launch": encode(order).decode()})
            line = {"allocation": order.allocation, "attempt": order.attempt, "nodes": order.nodes}
            self._told.write(json.dumps(line | {"token": order.token}) + "\n")
            self._told.flush()

    def stop(self, allocation: AllocationId, *, grace_s: float) -> None:
        with self._turn():
            self._say({"stop": allocation, "grace_s": grace_s})

    def hear(self) -> None:
        with self._turn():
            pass

    @contextmanager
    def _turn(self) -> Iterator[None]:
        fcntl.flock(self._said, fcntl.LOCK_EX)
        try:
            self._hear()
            yield
        finally:
            fcntl.flock(self._said, fcntl.LOCK_UN)

    def _say(self, line: dict[str, Any]) -> None:
        self._said.write(json.dumps(line) + "\n")
        self._said.flush()
        self._hear()

    def _hear(self) -> None:
        self._said.seek(self._at)
        for text in self._said.read().splitlines():
            said = json.loads(text)
            if "launch" in said:
                super().launch(decode(LaunchOrder, said["launch"].encode()))
            else:
                super().stop(said["stop"], grace_s=said["grace_s"])
        self._at = self._said.tell()


class Named(Control):
    """A controller that tells when it leads."""

    def __init__(self, name: str, folder: Path, clusters: Sequence[Shared], **given: Any) -> None:
        super().__init__(**given, engines={one.name: one for one in clusters})
        self._name, self._file, self._clusters = name, folder / "leads", clusters

    def new_loop(self) -> Loop:
        loop, plain = super().new_loop(), Loop.steps

        def steps() -> Iterator[Step]:
            for step in plain(loop):
                if step is Step.LEADING:
                    self._file.write_text(self._name)
                if (
                    step is Step.FOLLOWING
                ):  # Clusters remember by themselves: whoever leads next has nothing to catch up.
                    for one in self._clusters:
                        one.hear()
                yield step

        loop.steps = steps  # type: ignore[method-assign]
        return loop


def serve(folder: Path, url: str, name: str, port: int, nodes: int) -> None:
    clock = SystemClock()
    shown = [inventory(index, nodes // CLUSTERS) for index in range(CLUSTERS)]
    control = Named(
        name,
        folder,
        [Shared(folder, inventory=one, clock=clock) for one in shown],
        store=open_store(url, owned_s=clock.now_s()),
        clock=clock,
        dice=SystemDice(),
        access=AgentAccess(controller_urls=(f"http://127.0.0.1:{port}",), objects_url="file:///nowhere", key="k" * 32),
        settings=Settings(
            heartbeat_s=HEARTBEAT_S,
            lease_s=6 * HEARTBEAT_S,
            leaderless_s=18 * HEARTBEAT_S,
            limits=WaitingLimits(person_jobs=ACTIVE_MAX, team_jobs=ACTIVE_MAX),
        ),
    )
    if not (folder / "token").exists():
        control.people.set_team(Team(name=LAB))
        asked = NewToken(holder="ada", team=LAB, role=TeamRole.ADMIN)
        (folder / "token").write_text(control.people.new_token(asked).secret)
    server = Server(control, listen("127.0.0.1", port))
    tune_for_serving()
    server.start()
    (folder / f"up-{name}").touch()
    try:
        server.wait()
    finally:
        server.stop()
        control.store.close()


# ---------------------------------------------------------------- who calls


class AnyLine(Line):
    """A connection to whichever server answers; who does not is passed over for the other."""

    def __init__(self, ports: tuple[int, ...]) -> None:
        super().__init__(ports[0])
        self._ports = ports

    async def call(self, method: str, path: str, token: str, body: bytes = b"") -> tuple[int, bytes]:
        status, told = 0, b""
        for _ in range(TRIES_MAX):
            with suppress(OSError, asyncio.IncompleteReadError):
                status, told = await super().call(method, path, token, body)
                if status not in (429, 502, 503, 504):
                    break
            self._reader = None
            self._ports = (*self._ports[1:], self._ports[0])
            self._port = self._ports[0]
            await asyncio.sleep(AGAIN_S)
        return status, told


@dataclass(kw_only=True)
class Submitting(Load):
    """Agents, leads, and people who submit."""

    nodes: int
    number: int = 0
    spec_dice: Random = field(default_factory=lambda: Random(7))

    async def submit_some(self) -> None:
        while True:
            self.number += 1
            spec = spec_of(f"job-{self.number}", self.spec_dice, LAB)
            body = encode(Submit(spec=spec, key=spec.name))
            self.go(self._submit(body))
            await asyncio.sleep(1 / SUBMITS_PER_S)

    async def _submit(self, body: bytes) -> None:
        await self.call("POST", "/v1/jobs", self.token, body)

    def used(self) -> int:
        return sum(len(lead.nodes) for lead in self.leads.values() if not lead.ends)

    async def end_many(self) -> None:
        while True:
            await asyncio.sleep(1 / SUBMITS_PER_S)
            if self.used() >= RUNNING_LEAST * self.nodes:
                self.leads[self.dice.choice(list(self.leads))].ends = True


# ---------------------------------------------------------------- measuring


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the store tells of who leads, and of the newest plan that was written."""

    plan: int
    holder: str
    epoch: int


class Fleet:
    """Two servers, two databases, and what is seen of them."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder, self._nodes = folder, nodes
        self.primary, self.standby = PostgresServer(max_wal_size="4GB"), PostgresServer(max_wal_size="4GB")
        self.primary.start()
        self._name = self.primary.new_database().partition("?")[0].rpartition("/")[2]
        self.standby.follow(self.primary)
        self._url = self.primary.url(self._name, self.standby)
        self.ports: dict[str, int] = {}
        for name in NAMES:
            with listen("127.0.0.1", 0) as free:
                self.ports[name] = free.getsockname()[1]
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        for name in NAMES:
            self.start(name)

    def start(self, name: str) -> None:
        up = self.folder / f"up-{name}"
        up.unlink(missing_ok=True)
        words = ["--serve", str(self.folder), "--url", self._url, "--name", name]
        words += ["--port", str(self.ports[name]), "--nodes", str(self._nodes)]
        server = self._servers[name] = subprocess.Popen([sys.executable, "-m", "benchmarks.control_failover", *words])
        while not up.exists():
            assert server.poll() is None, "the server ended"
            time.sleep(LOOK_S)

    def look(self) -> Seen:
        for _ in range(TRIES_MAX):
            with suppress(psycopg.OperationalError), psycopg.connect(self._url, connect_timeout=5) as connection:
                plan, holder, epoch = connection.execute(SEEN_SQL).fetchone() or (0, "", 0)
                return Seen(plan=plan, holder=holder, epoch=epoch)
            time.sleep(LOOK_S)
        raise TimeoutError("no database takes writes")

    def kill_leader(self) -> float:
        """Returns the time to the next plan, which another server commits."""
        leads, before = (self.folder / "leads").read_text(), self.look()
        begun_s = time.monotonic()
        self._servers[leads].kill()
        self._servers[leads].wait()
        last = self.look().plan
        while (seen := self.look()).holder in ("", before.holder) or seen.plan <= last:
            time.sleep(LOOK_S)
        spent_s = time.monotonic() - begun_s
        self.start(leads)
        return spent_s

    def kill_database(self) -> float:
        """Returns the time to the next plan, which the other database holds."""
        begun_s = time.monotonic()
        self.primary.kill()
        self.standby.promote()
        last = self.look().plan
        while self.look().plan <= last:
            time.sleep(LOOK_S)
        spent_s = time.monotonic() - begun_s
        self.primary, self.standby = self.standby, self.primary
        self.standby.follow(self.primary)
        return spent_s

    def false_changes(self, seconds: float) -> int:
        before = self.look().epoch
        time.sleep(seconds)
        return self.look().epoch - before

    def stop(self) -> None:
        for server in self._servers.values():
            server.kill()
            server.wait()
        self.standby.stop()
        self.primary.stop()


async def drive(fleet: Fleet, nodes: int, kills: int, calm_s: float) -> dict[str, float]:
    ports, token = tuple(fleet.ports.values()), (fleet.folder / "token").read_text()
    load = Submitting(folder=fleet.folder, port=ports[0], token=token, nodes=nodes)
    for number in range(LINES):
        load.lines.put_nowait(AnyLine(ports[number % 2 :] + ports[: number % 2]))
    load.go(load.play_agents())
    load.go(load.submit_some())
    begun_s, settled = time.monotonic(), False
    while not settled:
        await asyncio.sleep(1.0)
        settled = load.used() >= RUNNING_LEAST * nodes or time.monotonic() > begun_s + SETTLE_S_MAX
    load.go(load.end_many())
    print(f"{len(load.leads)} attempts run after {time.monotonic() - begun_s:.0f} s", file=sys.stderr, flush=True)
    beats, since_s = load.beats, time.monotonic()
    changes = await asyncio.to_thread(fleet.false_changes, calm_s)
    beats_per_s = (load.beats - beats) / (time.monotonic() - since_s)
    found: dict[str, list[float]] = {"leader_s": [], "database_s": []}
    for name, kill in (("leader_s", fleet.kill_leader), ("database_s", fleet.kill_database)):
        for _ in range(kills):
            await asyncio.sleep(REST_S)
            found[name].append(await asyncio.to_thread(kill))
            print(f"{name} {found[name][-1]:.2f}", file=sys.stderr, flush=True)
    assert not load.refused, load.refused[:3]
    attempts = len(load.leads)
    for task in list(load.tasks):
        task.cancel()
    worst: dict[str, float] = {name: max(times) for name, times in found.items()}
    return worst | {"false_changes": changes, "beats_per_s": beats_per_s, "attempts": attempts}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a tenth of the load, two kills each, a short calm")
    for name, kind in (("--serve", Path), ("--url", str), ("--name", str), ("--port", int), ("--nodes", int)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve, given.url, given.name, given.port, given.nodes)
        return
    nodes = NODES // 10 if given.quick else NODES
    folder = Path(tempfile.mkdtemp(prefix="control-failover-"))
    fleet = Fleet(folder, nodes)
    try:
        kills, calm_s = (QUICK_KILLS, QUICK_CALM_S) if given.quick else (KILLS, CALM_S)
        figures = asyncio.run(drive(fleet, nodes, kills, calm_s))
    finally:
        fleet.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({name: round(value, 3) for name, value in (figures | {"loop_s": loop_s()}).items()}))


if __name__ == "__main__":
    main()
