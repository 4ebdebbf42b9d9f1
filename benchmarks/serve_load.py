"""Chunks for 20 and for 200 robots, one a second each, beside one asyncio loop that calls the same policy inline.

Run as `python -m benchmarks.serve_load [--quick]`. An observation is two pictures of 224 x 224 and 14 numbers, an
answer 50 actions of 14. Robots are in this process, each server in one of its own; robots ask at times of their own in
each second, and want their chunk 50 ms after they sent. A policy waits for its time as for an accelerator, either 1 ms
for one observation or 20 ms for up to 16; the peer is `websockets` with that policy called where it is asked for, as
openpi's server does. Rounds of ours and the peer's take turns, and figures are medians over three rounds.

`overhead_p99_ms`: at 20 robots and 1 ms, a round trip less what the policy took (wanted: <= 2). `proxy_p99_ms`: what
the proxy of services, in a process of its own before that replica, adds to it (wanted: <= 2). `missed`: of 200 robots
at 1 ms, chunks that came after 50 ms or not at all, of all rounds (wanted: 0). `ratio_1ms` and `ratio_20ms`: p99 of the
round trip at 200 robots, ours by the peer's (wanted: <= 1.2 and <= 0.5). `loop_s` is the time of 6,000,000 turns of
`total += i * i % 7` (0.20 s is the reference). `--quick` takes rounds of 5 s in place of 30.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from random import Random
from typing import Any

import numpy as np
from benchmarks.control_submit import loop_s
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as serve_websockets

from mainspring.app.base.system import SystemClock, SystemDice, tune_for_serving
from mainspring.robots.proxy.proxy import ServiceProxy
from mainspring.robots.proxy.routing import Target
from mainspring.robots.serving.policies.functions import FunctionPolicy
from mainspring.robots.serving.server import PolicyServer
from mainspring.robots.serving.wire import pack, unpack

ROUNDS, ROUND_S, QUICK_S = 3, 30.0, 5.0
DEADLINE_S = 0.05
WAIT_S = 30.0  # After which a robot gives a chunk up; the peer's come later than any deadline, and are still measured.
BATCH = 16
CHUNK = np.zeros((50, 14), np.float32)


class Near:
    """Where the one replica is, whoever asks."""

    def __init__(self, url: str) -> None:
        self.targets = (Target(address=url, ready=True),)

    async def replicas(self, service: str, token: str) -> Sequence[Target]:
        return self.targets


@dataclass(frozen=True)
class Case:
    """One policy under some robots."""

    policy_s: float
    robots: int


FEW, MANY, SLOW = Case(0.001, 20), Case(0.001, 200), Case(0.02, 200)


@dataclass
class Seen:
    """What robots saw in one round.

    Args:
        trips_s: Round trips, those of chunks that were given up at their longest.
        overheads_s: Round trips less the policy's time.
    """

    trips_s: list[float] = field(default_factory=list)
    overheads_s: list[float] = field(default_factory=list)
    missed: int = 0


def waiting(policy_s: float) -> Callable[[list[Any]], list[Any]]:
    """Returns the policy: some time passes, whatever and however many are seen."""

    def act(observations: list[Any]) -> list[Any]:
        time.sleep(policy_s)
        return [CHUNK] * len(observations)

    return act


def ours(told: Connection, policy_s: float) -> None:
    """Our server, until its process is ended."""

    async def run() -> None:
        batched = BATCH if policy_s > 0.01 else 1
        policy = FunctionPolicy(waiting(policy_s), name="waits", batch_max=batched)  # Which takes one in a list, too.
        server = PolicyServer(policy, clock=SystemClock(), dice=SystemDice())
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        tune_for_serving()
        await server.start(listening)
        told.send(server.port)
        await asyncio.Event().wait()

    asyncio.run(run())


def peer(told: Connection, policy_s: float) -> None:
    """The peer, until its process is ended. Source: openpi, `websocket_policy_server.py`."""
    act = waiting(policy_s)

    async def handle(line: ServerConnection) -> None:
        await line.send(pack({}))
        async for frame in line:
            observation = unpack(frame)  # type: ignore[arg-type]
            began_s = time.monotonic()
            (chunk,) = act([observation])
            took_ms = (time.monotonic() - began_s) * 1000
            await line.send(pack({"actions": chunk, "server_timing": {"infer_ms": took_ms}}))

    async def run() -> None:
        async with serve_websockets(handle, "127.0.0.1", 0, compression=None, max_size=None) as server:
            told.send(server.sockets[0].getsockname()[1])
            await asyncio.Event().wait()

    asyncio.run(run())


def proxy(told: Connection, url: str) -> None:
    """The proxy of services before one replica, until its process is ended."""

    async def run() -> None:
        tune_for_serving()
        made = ServiceProxy(Near(url), time.monotonic)
        await made.start(socket.create_server(("127.0.0.1", 0)))
        told.send(made.port)
        await asyncio.Event().wait()

    asyncio.run(run())


@contextmanager
def serving(which: Any, given: Any) -> Iterator[str]:
    """Yields the address of a server in a process of its own."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=which, args=(there, given), daemon=True)
    process.start()
    try:
        yield f"ws://127.0.0.1:{here.recv()}"
    finally:
        process.terminate()
        process.join()


@contextmanager
def called(which: Any, policy_s: float) -> Iterator[str]:
    """Yields where robots call a server, or the proxy before ours."""
    if which is not proxy:
        with serving(which, policy_s) as url:
            yield url
        return
    with serving(ours, policy_s) as url, serving(proxy, url) as front:
        yield f"{front}/v1/services/one"


def observation() -> bytes:
    """Returns a request with noise in it, as no link compresses it."""
    dice = np.random.default_rng(0)
    pictures = {name: dice.integers(0, 256, (224, 224, 3), np.uint8) for name in ("image", "wrist_image")}
    return pack({**pictures, "state": dice.normal(size=14).astype(np.float32), "prompt": "put the cup away"})


async def drive(url: str, robots: int, seconds: float, every_s: float = 1.0) -> Seen:
    """Returns what robots see that ask once in `every_s`, each at a time of its own."""
    seen, dice, request = Seen(), Random(1), observation()
    loop = asyncio.get_running_loop()

    async def robot(phase_s: float, ready: asyncio.Barrier) -> None:
        how: dict[str, Any] = {"compression": None, "max_size": None, "ping_interval": None, "open_timeout": 60}
        async with connect(url, additional_headers={"Authorization": "Api-Key any"}, **how) as line:
            await line.recv()
            await ready.wait()
            next_s = loop.time() + phase_s
            end_s = next_s - phase_s + seconds
            while next_s < end_s:
                await asyncio.sleep(max(0.0, next_s - loop.time()))
                began_s = loop.time()
                await line.send(request)
                try:
                    async with asyncio.timeout(WAIT_S):
                        answer = await line.recv()
                except TimeoutError:
                    seen.trips_s.append(WAIT_S)
                    seen.missed += 1
                    return
                trip_s = loop.time() - began_s
                seen.trips_s.append(trip_s)
                if isinstance(answer, str) or trip_s > DEADLINE_S:
                    seen.missed += 1
                if not isinstance(answer, str):
                    seen.overheads_s.append(trip_s - unpack(answer)["server_timing"]["infer_ms"] / 1000)
                next_s = max(next_s + every_s, loop.time())

    ready = asyncio.Barrier(robots)
    await asyncio.gather(*[robot(dice.random() * every_s, ready) for _ in range(robots)])
    return seen


def one_round(which: Any, case: Case, seconds: float) -> Seen:
    """Returns what robots saw of one server."""
    with called(which, case.policy_s) as url:
        asyncio.run(drive(url, case.robots, 1.0))  # What is slow once is not measured.
        return asyncio.run(drive(url, case.robots, seconds))


def p99(values: list[float]) -> float:
    """Returns the 99th percentile."""
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.99))]


def measure(seconds: float) -> Mapping[str, float]:
    """Returns the figures."""
    cases = [(ours, FEW), (proxy, FEW), (ours, MANY), (peer, MANY), (ours, SLOW), (peer, SLOW)]
    rounds: dict[tuple[Any, Case], list[Seen]] = {each: [] for each in cases}
    before_s = loop_s()
    for _ in range(ROUNDS):
        for each in cases:
            rounds[each].append(one_round(*each, seconds))

    def trip_ms(which: Any, case: Case) -> float:
        return statistics.median(p99(seen.trips_s) * 1000 for seen in rounds[which, case])

    def overhead_ms(which: Any) -> float:
        return statistics.median(p99(seen.overheads_s) * 1000 for seen in rounds[which, FEW])

    return {
        "overhead_p99_ms": overhead_ms(ours),
        "proxy_p99_ms": overhead_ms(proxy) - overhead_ms(ours),
        "missed": sum(seen.missed for seen in rounds[ours, MANY]),
        "missed_20": sum(seen.missed for seen in rounds[ours, FEW]),
        "p99_1ms_ms": trip_ms(ours, MANY),
        "peer_p99_1ms_ms": trip_ms(peer, MANY),
        "ratio_1ms": trip_ms(ours, MANY) / trip_ms(peer, MANY),
        "p99_20ms_ms": trip_ms(ours, SLOW),
        "peer_p99_20ms_ms": trip_ms(peer, SLOW),
        "ratio_20ms": trip_ms(ours, SLOW) / trip_ms(peer, SLOW),
        "chunks": sum(len(seen.trips_s) for some in rounds.values() for seen in some),
        "loop_s": (before_s + loop_s()) / 2,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help=f"rounds of {QUICK_S:g} s")
    given = parser.parse_args()
    figures = measure(QUICK_S if given.quick else ROUND_S)
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
