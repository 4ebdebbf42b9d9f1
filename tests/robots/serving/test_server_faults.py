"""What strangers and broken robots do to a policy server, while one good robot goes on."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Callable, Coroutine
from threading import Event
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from mainspring.robots.serving import batching
from mainspring.robots.serving.policies.functions import FunctionPolicy
from mainspring.robots.serving.server import SPARE_CONNECTIONS, PolicyServer, ServeLimits
from mainspring.robots.serving.wire import pack
from tests.robots.serving.served import DIMS, HORIZON, RealClock, Toy, ask, robot, seen, served, until

MIB = 1 << 20


def beside_a_good_robot(
    trouble: Callable[[PolicyServer, str], Coroutine[Any, Any, None]], policy: Any = None, **given: Any
) -> PolicyServer:
    """Returns a server that was troubled while a robot asked it for chunks, each of which came."""

    async def scene() -> PolicyServer:
        async with served(policy or Toy(), **given) as (server, url), robot(url) as good:
            troubled = asyncio.create_task(trouble(server, url))
            while not troubled.done():
                answer = await ask(good, seen(1.0))
                assert not isinstance(answer, str), answer
                await asyncio.sleep(0.02)
            await troubled
            assert (await ask(good, seen(1.0)))["actions"][0, 0] == 1.0
            return server

    return asyncio.run(scene())


def test_garbage_is_refused_by_name_and_its_connection_closed() -> None:
    async def trouble(server: PolicyServer, url: str) -> None:
        for garbage in (b"", b"\xc1", os.urandom(1000), b"\xdd\xff\xff\xff\xff", b"\x93" * 2000, "a text"):
            async with robot(url) as line:
                await line.send(garbage)
                refused = await line.recv()
                assert isinstance(refused, str)
                assert refused.startswith("bad_request: ")
                assert "Traceback" not in refused
                with pytest.raises(ConnectionClosed) as closed:
                    await line.recv()
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == 1003

    beside_a_good_robot(trouble)


def test_what_is_not_even_a_websocket_is_hung_up_on() -> None:
    async def trouble(server: PolicyServer, url: str) -> None:
        host, port = url.removeprefix("ws://").split(":")
        for garbage in (b"\x16\x03\x01" + os.urandom(300), b"GET / HTTP/1.1\r\n\r\n", b"x" * 100_000, b"\n" * 5_000):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(garbage)
            async with asyncio.timeout(30):
                while await reader.read(65_536):
                    pass
            writer.close()

    beside_a_good_robot(trouble, limits=ServeLimits(handshake_s=0.5))


def test_a_message_of_a_gigabyte_is_refused_before_it_is_read() -> None:
    async def trouble(server: PolicyServer, url: str) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        part = bytes(MIB)

        async def gigabyte() -> Any:
            for _ in range(1024):
                yield part

        async with robot(url) as line:
            with pytest.raises(ConnectionClosed) as closed:
                await _sent_and_read(line, gigabyte())  # In parts.
            assert closed.value.rcvd is None or closed.value.rcvd.code == 1009
        async with robot(url) as line:
            # In one: its head says so.
            line.transport.write(b"\x82\xff" + (1 << 30).to_bytes(8, "big") + b"\0\0\0\0" + bytes(1000))
            with pytest.raises(ConnectionClosed) as closed:
                await line.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1009
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown_kib < 200 * 1024

    beside_a_good_robot(trouble)


def test_a_robot_that_never_reads_is_hung_up_on() -> None:
    policy = FunctionPolicy(lambda seen: np.full((HORIZON, DIMS if seen["state"][0] < 2 else 1024), 1.0), name="wide")

    async def trouble(server: PolicyServer, url: str) -> None:
        host, port = url.removeprefix("ws://").split(":")
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await asyncio.to_thread(deaf.connect, (host, int(port)))
        async with robot(url, sock=deaf) as line:
            line.transport.pause_reading()
            await until(lambda: server.serving.in_flight == 0)
            with pytest.raises((ConnectionClosed, TimeoutError)):
                await _ask_on_and_on(line)
        await until(lambda: server.metrics.registry.get_sample_value("mainspring_serving_connections") == 1)

    beside_a_good_robot(trouble, policy, limits=ServeLimits(send_s=0.2, requests_per_s=1e6, burst=1_000_000))


async def _sent_and_read(line: ClientConnection, message: Any) -> Any:
    await line.send(message)
    return await line.recv()


async def _ask_on_and_on(line: ClientConnection) -> None:
    async with asyncio.timeout(30):
        while True:
            await line.send(pack(seen(2.0)))
            await asyncio.sleep(0.001)


@pytest.mark.slow
def test_ten_thousand_connections_leave_a_good_robot_its_chunks() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 12_000:
        pytest.skip(f"this machine lets a process open {hard} files; raise `ulimit -Hn`")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    limits = ServeLimits(connections=50)
    most = 0

    async def trouble(server: PolicyServer, url: str) -> None:
        nonlocal most
        host, port = url.removeprefix("ws://").split(":")
        at_once, held = asyncio.Semaphore(100), []

        async def open_one() -> None:
            nonlocal most
            async with at_once:
                try:
                    held.append(await asyncio.open_connection(host, int(port)))
                except OSError:
                    return
                most = max(most, server.connections)

        await asyncio.gather(*[open_one() for _ in range(10_000)])
        assert len(held) > 9_000
        for _, writer in held:
            writer.transport.abort()
        await until(lambda: server.connections == 1)
        async with robot(url) as line:
            assert not isinstance(await ask(line, seen(1.0)), str)

    try:
        beside_a_good_robot(trouble, limits=limits)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert most <= limits.connections + SPARE_CONNECTIONS + 1


def test_more_robots_than_a_server_takes_are_told_so_and_health_still_answers() -> None:
    async def scene() -> None:
        async with served(Toy(), limits=ServeLimits(connections=2)) as (_, url), robot(url), robot(url):
            with pytest.raises(InvalidStatus) as refused:
                async with robot(url):
                    pass
            assert refused.value.response.status_code == 503
            async with httpx.AsyncClient() as http:
                assert (await http.get(f"{url.replace('ws', 'http', 1)}/healthz")).text == "OK\n"

    asyncio.run(scene())


@pytest.mark.slow
def test_a_policy_slower_than_its_deadline_holds_up_nothing_else() -> None:
    pause = Event()

    def slow(observation: Any) -> Any:
        pause.wait(0.3)
        return np.zeros((HORIZON, DIMS))

    async def scene() -> tuple[list[Any], list[float], Any]:
        async with served(FunctionPolicy(slow, name="slow")) as (server, url):
            health: list[float] = []

            async def watch() -> None:
                loop = asyncio.get_running_loop()
                async with httpx.AsyncClient() as http:
                    while True:
                        began = loop.time()
                        assert (await http.get(f"{url.replace('ws', 'http', 1)}/healthz")).text == "OK\n"
                        health.append(loop.time() - began)

            async def drive() -> list[Any]:
                async with robot(url) as line:
                    return [await ask(line, seen(1.0, deadline_ms=30.0)) for _ in range(4)]

            watching = asyncio.create_task(watch())
            answers = await asyncio.gather(*[drive() for _ in range(4)])
            watching.cancel()
            return [each for some in answers for each in some], health, server.serving

    answers, health, serving = asyncio.run(scene())
    late = [each for each in answers if not isinstance(each, str)]
    refused = [each for each in answers if isinstance(each, str)]
    assert late
    assert all(each["mainspring"]["late_ms"] > 0 for each in late)
    assert all(each.startswith("deadline_missed: ") for each in refused)
    assert serving.missed == len(answers) == 16
    assert sorted(health)[len(health) // 2] < 0.15


def test_a_policy_that_hangs_is_told_by_health_and_its_requests_are_answered() -> None:
    gate, policy = Event(), Toy()
    policy.gate = gate

    class Later(RealClock):
        """A clock that can be set forward."""

        ahead_s = 0.0

        def monotonic_s(self) -> float:
            return super().monotonic_s() + self.ahead_s

    clock = Later()

    async def scene() -> None:
        server = PolicyServer(policy, clock=clock, dice=_Zero())
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        await server.start(listening)
        url = f"ws://127.0.0.1:{server.port}"
        async with robot(url) as a, robot(url) as b:
            hung = asyncio.create_task(ask(a, seen(1.0)))
            await asyncio.to_thread(policy.begun.wait, 30)
            before = server.serving
            clock.ahead_s += batching.HANG_S + 1
            assert [before.ready, server.serving.ready] == [True, False]
            assert (await ask(b, seen(1.0))).startswith("policy_failed: ")
            gate.set()
            await hung
            assert server.serving.ready
        await server.stop(drain_s=1)

    asyncio.run(scene())


class _Zero:
    def bits(self, count: int) -> int:
        return 0
