"""Policies to serve, and a server for a test."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import numpy as np
from websockets.asyncio.client import ClientConnection, connect

from mainspring.robots.serving.policy import Asked, FloatArray, PolicyFacts
from mainspring.robots.serving.server import PolicyServer
from mainspring.robots.serving.wire import pack, unpack

HORIZON, DIMS = 10, 3


class RealClock:
    def now_s(self) -> float:
        return time.time()

    def monotonic_s(self) -> float:
        return time.monotonic()


class CountingDice:
    def __init__(self) -> None:
        self.drawn = 0

    def bits(self, count: int) -> int:
        self.drawn += 1
        return self.drawn


@dataclass
class Toy:
    """A policy whose chunk is the state's first number, and the seed at its end; it can be made to wait and to err."""

    value: float = 0.0
    batch_max: int = 4
    horizon: int = HORIZON
    guided: bool = False
    chunk: Callable[[Asked], Any] | None = None
    gate: Event | None = None  # Each batch waits for it.
    batches: list[int] = field(default_factory=list)
    begun: Event = field(default_factory=Event)

    @property
    def facts(self) -> PolicyFacts:
        return PolicyFacts(
            name=f"toy {self.value:g}",
            batch_max=self.batch_max,
            horizon=self.horizon,
            action_dim=DIMS,
            guided=self.guided,
            metadata={"robot": "toy"},
        )

    def infer(self, asked: Sequence[Asked]) -> FloatArray:
        self.batches.append(len(asked))
        self.begun.set()
        if self.gate is not None:
            assert self.gate.wait(60)
        return np.stack([self._one(each) for each in asked])

    def _one(self, asked: Asked) -> Any:
        if self.chunk is not None:
            return self.chunk(asked)
        chunk = np.full((self.horizon, DIMS), self.value + float(asked.observation["state"][0]), np.float32)
        chunk[:, -1] = asked.seed
        return chunk


@asynccontextmanager
async def served(
    policy: Any, *, tls: ssl.SSLContext | None = None, **given: Any
) -> AsyncIterator[tuple[PolicyServer, str]]:
    """Yields a server on loopback, and its address."""
    server = PolicyServer(policy, clock=RealClock(), dice=CountingDice(), **given)
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    await server.start(listening, ssl=tls)
    try:
        yield server, f"{'wss' if tls else 'ws'}://127.0.0.1:{server.port}"
    finally:
        await server.stop(drain_s=5)


def seen(state: float = 0.0, **ours: Any) -> dict[str, Any]:
    """Returns an observation."""
    observation: dict[str, Any] = {"state": np.full(DIMS, state, np.float32)}
    return {**observation, "mainspring": ours} if ours else observation


@asynccontextmanager
async def robot(url: str, **given: Any) -> AsyncIterator[ClientConnection]:
    """Yields a robot's connection that has been greeted."""
    async with connect(url, compression=None, **given) as line:
        assert isinstance(await line.recv(), bytes)
        yield line


async def ask(line: ClientConnection, observation: Mapping[str, Any]) -> Any:
    """Returns the answer: what a chunk's message holds, or the words of a refusal."""
    await line.send(pack(observation))
    answer = await line.recv()
    return answer if isinstance(answer, str) else unpack(answer)


async def until(holds: Callable[[], bool], *, limit_s: float = 60.0) -> None:
    """Waits until something holds."""
    async with asyncio.timeout(limit_s):
        while not holds():  # noqa: ASYNC110 # Many things hold or not, in a server that tells nobody.
            await asyncio.sleep(0.002)
