"""Everybody who calls the server of `control_fleet`: agents, leads, readers of events, and people."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.planner_scale import CHIPS_PER_NODE, H100

from mainspring.domain.answers import Submit
from mainspring.domain.codec import decode, encode
from mainspring.domain.ids import AllocationId, NodeName, TeamName
from mainspring.domain.job import JobSpec, Option, Role
from mainspring.domain.life import AttemptState
from mainspring.domain.wire import Heartbeat, HeartbeatReply, Orders, RankStatus, Register

SHAPES = 1_000
SIZES = ((1, 0.45), (2, 0.25), (4, 0.15), (16, 0.075), (32, 0.05), (64, 0.02), (128, 0.005))  # Nodes, and how many.
HEARTBEAT_S, ENDS_PER_S, CALLS_PER_S = 10.0, 1.0, 20.0


def spec_of(name: str, dice: Random, team: TeamName) -> JobSpec:
    shape = dice.randrange(SHAPES)  # Of its own dice, so that equal numbers are equal shapes.
    own = Random(shape)
    nodes = own.choices([size for size, _ in SIZES], [share for _, share in SIZES])[0]
    option = Option(
        chip=H100,
        chips=CHIPS_PER_NODE,
        cpus=32.0 + own.randrange(64),
        memory_gib=256.0 + 8 * own.randrange(128),
        replicas=nodes,
        within="block" if nodes >= 16 else None,
    )
    role = Role(command=("train", "--shape", str(shape)), options=(option,))
    return JobSpec(name=name, team=team, roles=(role,), duration_s=3_600.0 * own.randrange(1, 48))


class Line:
    """A kept connection, with just enough of HTTP."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._fresh = True

    async def call(self, method: str, path: str, token: str, body: bytes = b"") -> tuple[int, bytes]:
        """Asks anew where a kept connection was closed as the question was on its way, as every HTTP client does."""
        asked = head(method, path, token, len(body)) + body
        try:
            return await self._ask(asked)
        except (OSError, asyncio.IncompleteReadError):
            if self._fresh:
                raise
            self._writer = None
            return await self._ask(asked)

    async def _ask(self, asked: bytes) -> tuple[int, bytes]:
        self._fresh = self._reader is None or self._writer is None or self._reader.at_eof()
        if self._reader is None or self._writer is None or self._fresh:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 24)
        self._writer.write(asked)
        told = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(told.partition("content-length:")[2].partition("\r\n")[0])
        return int(told.split(" ", 2)[1]), await self._reader.readexactly(length)


def head(method: str, path: str, token: str, length: int) -> bytes:
    said = f"{method} {path} HTTP/1.1\r\nHost: server\r\nAuthorization: Bearer {token}\r\n"
    return f"{said}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n".encode()


@dataclass(kw_only=True)
class Lead:
    """An attempt under way, as its lead reports it."""

    token: str
    orders: Orders
    nodes: tuple[str, ...]
    step: int = 0
    ends: bool = False

    def beat(self) -> Heartbeat:
        self.step += 10
        ranks = tuple(
            RankStatus(rank=rank, node=NodeName(node), pid=1_000 + rank, alive=not self.ends, step=self.step)
            for rank, node in enumerate(self.nodes)
        )
        return Heartbeat(
            attempt=self.orders.attempt,
            epoch=self.orders.epoch,
            generation=1,
            step=self.step,
            metrics={"loss": 1.0 / self.step, "steps_per_s": 1.0},
            ranks=ranks,
            events=(),
            outcome=AttemptState.SUCCEEDED if self.ends else None,
            seconds={"productive": float(self.step * len(self.nodes))},
        )


@dataclass(kw_only=True)
class Load:
    """Everybody who calls the server."""

    folder: Path
    port: int
    token: str
    dice: Random = field(default_factory=lambda: Random(3))
    leads: dict[str, Lead] = field(default_factory=dict)
    calls: list[tuple[str, float, float]] = field(default_factory=list)
    heard: int = 0
    beats: int = 0
    refused: list[str] = field(default_factory=list)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    lines: asyncio.Queue[Line] = field(default_factory=asyncio.Queue)

    def go(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.refused.append(repr(task.exception())[:300])

    async def call(self, method: str, path: str, token: str, body: bytes = b"") -> bytes:
        line = await self.lines.get()
        try:
            status, told = await line.call(method, path, token, body)
        except (OSError, asyncio.IncompleteReadError):
            line = Line(self.port)
            raise
        finally:
            self.lines.put_nowait(line)
        assert status == 200, f"{method} {path}: {status} {told[:200]!r}"
        return told

    async def play_agents(self) -> None:
        """Starts the agents of every launch, as the engines tell of them."""
        at = 0
        while True:
            text = (self.folder / "launched").read_text() if (self.folder / "launched").exists() else ""
            whole = text[at : text.rfind("\n") + 1]
            at += len(whole)
            for line in whole.splitlines():
                self.go(self._play(json.loads(line)))
            await asyncio.sleep(0.5)

    async def _play(self, told: Mapping[str, Any]) -> None:
        nodes, token, own = tuple(told["nodes"]), told["token"], AllocationId(told["allocation"])

        async def register(node: str) -> Orders:
            body = encode(Register(allocation=own, node=NodeName(node), address=f"{node}:1"))
            return decode(Orders, await self.call("POST", "/v1/agents/register", token, body))

        for node in nodes[1:]:
            await register(node)
        orders = await register(nodes[0])  # The first leads.
        while not orders.ready:
            await asyncio.sleep(0.5)
            orders = await register(nodes[0])
        lead = Lead(token=token, orders=orders, nodes=nodes)
        self.leads[orders.attempt] = lead
        await self._lead(lead)

    async def _lead(self, lead: Lead) -> None:
        begun_s = time.monotonic() + self.dice.random() * HEARTBEAT_S
        await self._beat(lead)
        while not lead.ends:
            await asyncio.sleep(begun_s - time.monotonic())
            begun_s = max(begun_s + HEARTBEAT_S, time.monotonic())
            if (await self._beat(lead)).fenced:
                break
        self.leads.pop(lead.orders.attempt, None)

    async def _beat(self, lead: Lead) -> HeartbeatReply:
        told = await self.call("POST", "/v1/agents/heartbeat", lead.token, encode(lead.beat()))
        self.beats += 1
        return decode(HeartbeatReply, told)

    async def end_some(self) -> None:
        while True:
            await asyncio.sleep(1 / ENDS_PER_S)
            if self.leads:
                self.leads[self.dice.choice(list(self.leads))].ends = True

    async def follow(self, token: str, since: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)
        writer.write(head("GET", f"/v1/events?follow=true&since={since}", token, 0))
        assert b" 200 " in await reader.readline()
        while line := await reader.readline():
            self.heard += line.startswith(b"data:")

    async def sample(self, known: list[str]) -> None:
        """Reads and submits, each on a connection that is nobody else's, at a pace that does not wait for answers."""
        number = 0
        free = [Line(self.port) for _ in range(8)]
        while True:
            number += 1
            reads = (
                "/v1/jobs?limit=50",
                f"/v1/jobs/{self.dice.choice(known)}",
                f"/v1/jobs/{self.dice.choice(known)}/why",
                f"/v1/jobs/{self.dice.choice(known)}/events",
            )
            if number % 5:
                self.go(self._timed(free, "GET", reads[number % 4], b""))
            else:
                spec = spec_of(f"late-{number}", self.dice, TeamName("team-1"))
                self.go(self._timed(free, "POST", "/v1/jobs", encode(Submit(spec=spec, key=f"late-{number}"))))
            await asyncio.sleep(1 / CALLS_PER_S)

    async def _timed(self, free: list[Line], method: str, path: str, body: bytes) -> None:
        line = free.pop() if free else Line(self.port)
        begun_s = time.time()
        status, told = await line.call(method, path, self.token, body)
        self.calls.append((method, begun_s, time.time()))
        free.append(line)
        assert status == 200, f"{method} {path}: {status} {told[:200]!r}"
