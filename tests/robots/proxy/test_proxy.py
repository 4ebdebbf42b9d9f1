"""Robots behind the proxy, whatever becomes of replicas, of tokens, and of the server that knows of both."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus

from mainspring.domain.errors import NotAllowed, NotFound, Unavailable
from mainspring.node.net.certificates import load_key, self_signed
from mainspring.robots.proxy.asking import calling
from mainspring.robots.proxy.proxy import ServiceProxy
from mainspring.robots.proxy.routing import Replicas, Target
from mainspring.robots.serving.wire import pack
from tests.robots.serving.served import Toy, ask, robot, seen, served, until

TOKEN = {"Authorization": "Api-Key good"}


class Known:
    """What a server would say of services."""

    def __init__(self, *urls: str) -> None:
        self.targets = [Target(address=url, ready=True) for url in urls]
        self.tokens = {"good"}
        self.away = False

    async def replicas(self, service: str, token: str) -> Sequence[Target]:
        if self.away:
            raise Unavailable("reach the server")
        if token not in self.tokens:
            raise NotAllowed("enter", got="a token nobody holds")
        if service != "pick":
            raise NotFound("find a service", on=service)
        return self.targets


@asynccontextmanager
async def proxied(known: Known) -> AsyncIterator[str]:
    """Yields where a service is called."""
    proxy = ServiceProxy(known, time.monotonic)
    await proxy.start(socket.create_server(("127.0.0.1", 0)))
    try:
        yield f"ws://127.0.0.1:{proxy.port}/v1/services/pick"
    finally:
        await proxy.stop()


@asynccontextmanager
async def broken(handle: Any) -> AsyncIterator[str]:
    """Yields the address of a replica that greets and then does what a test has it do."""

    async def serve_robot(line: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            await line.send(pack({}))
            async for frame in line:
                await handle(line, frame)

    async with serve(serve_robot, "127.0.0.1", 0, compression=None, max_size=None, close_timeout=0.1) as server:
        yield f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"


async def _hangs(line: ServerConnection, frame: bytes) -> None:
    await line.wait_closed()


async def _dies(line: ServerConnection, frame: bytes) -> None:
    line.transport.abort()


async def _drains(line: ServerConnection, frame: bytes) -> None:
    await line.send("draining: the server ends; ask another")


def test_a_robot_gets_its_chunk_and_the_replicas_own_metadata_through_the_proxy() -> None:
    async def scene() -> None:
        async with (
            served(Toy()) as (_, url),
            proxied(Known(url)) as proxy,
            robot(proxy, additional_headers=TOKEN) as line,
        ):
            answer = await ask(line, seen(3.0, deadline_ms=60_000))
            assert answer["actions"][0, 0] == 3.0
            assert answer["mainspring"]["policy_version"] == 1
            assert (await ask(line, {"state": "nothing"})).startswith("policy_failed"), "all replicas say so"
            assert (await ask(line, seen(4.0)))["actions"][0, 0] == 4.0

    asyncio.run(scene())


@pytest.mark.slow
@pytest.mark.parametrize("fault", [_hangs, _dies, _drains])
def test_a_request_that_a_replica_does_not_answer_goes_to_another_within_its_deadline(fault: Any) -> None:
    async def scene() -> None:
        async with contextlib.AsyncExitStack() as stack:
            bad = await stack.enter_async_context(broken(fault))
            _, good = await stack.enter_async_context(served(Toy()))
            proxy = await stack.enter_async_context(proxied(Known(bad, good)))
            lines = [await stack.enter_async_context(robot(proxy, additional_headers=TOKEN)) for _ in range(4)]
            for number in range(3):
                asked = (ask(line, seen(float(number), deadline_ms=4_000)) for line in lines)
                assert [one["actions"][0, 0] for one in await asyncio.gather(*asked)] == [float(number)] * 4

    asyncio.run(scene())


@pytest.mark.slow
def test_a_robot_whose_only_replica_is_gone_stays_connected_and_is_answered_by_the_next() -> None:
    async def scene() -> None:
        known = Known()
        async with contextlib.AsyncExitStack() as stack:
            first, url = await stack.enter_async_context(served(Toy(1.0)))
            known.targets = [Target(address=url, ready=True)]
            proxy = await stack.enter_async_context(proxied(known))
            line = await stack.enter_async_context(robot(proxy, additional_headers=TOKEN))
            assert (await ask(line, seen()))["actions"][0, 0] == 1.0
            await first.stop(drain_s=1.0)
            known.targets = []
            assert (await ask(line, seen(deadline_ms=100))).startswith("deadline_missed: no replica")
            _, url = await stack.enter_async_context(served(Toy(2.0)))
            asked = asyncio.create_task(ask(line, seen(deadline_ms=60_000)))
            known.targets = [Target(address=url, ready=True)]
            assert (await asked)["actions"][0, 0] == 2.0

    asyncio.run(scene())


@pytest.mark.slow
def test_a_policy_that_is_slower_than_its_deadline_is_a_refusal_in_time_and_the_next_answer_is_its_own() -> None:
    async def scene() -> None:
        gate = Event()
        async with (
            served(Toy(gate=gate)) as (_, url),
            proxied(Known(url)) as proxy,
            robot(proxy, additional_headers=TOKEN) as line,
        ):
            assert (await ask(line, seen(1.0, deadline_ms=200))).startswith("deadline_missed")
            gate.set()
            assert (await ask(line, seen(2.0, deadline_ms=60_000)))["actions"][0, 0] == 2.0

    asyncio.run(scene())


def test_a_replica_elsewhere_is_shown_its_ticket_over_tls_and_another_in_its_place_is_told_nothing() -> None:
    async def scene() -> None:
        heard: list[str] = []

        def admits(shown: Sequence[str]) -> bool:
            heard.extend(shown)
            return list(shown) == ["Api-Key its ticket"]

        own, others = (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) for _ in range(2))
        keys = [Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in range(2)]
        told = self_signed(keys[0], "a replica")
        load_key(own, keys[0], told)
        load_key(others, keys[1], self_signed(keys[1], "a replica"))
        admission: Any = SimpleNamespace(admits=admits)
        async with (
            served(Toy(1.0), tls=own, admission=admission) as (_, good),
            served(Toy(2.0), tls=others, admission=admission) as (_, bad),
            proxied(known := Known()) as proxy,
        ):
            known.targets = [Target(address=good, ready=True, ticket="its ticket", certificate=told)]
            async with robot(proxy, additional_headers=TOKEN) as line:
                assert (await ask(line, seen(deadline_ms=60_000)))["actions"][0, 0] == 1.0
                assert heard == ["Api-Key its ticket"]
                known.targets = [Target(address=bad, ready=True, ticket="its ticket", certificate=told)]
                async with connect(proxy, additional_headers=TOKEN):  # It has the proxy ask anew.
                    pass
                assert (await ask(line, seen(deadline_ms=500))).startswith("deadline_missed")
                assert heard == ["Api-Key its ticket"]

    asyncio.run(scene())


def test_no_ticket_is_shown_in_the_clear_beyond_this_machine() -> None:
    replicas = Replicas()
    near, far, safe = "ws://127.0.0.1:1", "ws://192.0.2.1:1", "wss://192.0.2.1:1"
    replicas.learn([Target(address=each, ready=True, ticket="its ticket") for each in (near, far, safe)])
    shown = {each: "additional_headers" in calling(replicas, each) for each in (near, far, safe)}
    assert shown == {near: True, far: False, safe: True}


def test_who_may_not_come_in_is_told_why_before_it_is_connected() -> None:
    async def scene() -> None:
        async with served(Toy()) as (_, url), proxied(Known(url)) as proxy:
            for path, headers, status in (
                ("", {}, 401),
                ("", {"Authorization": "Api-Key bad"}, 403),
                ("/more", TOKEN, 404),
                ("x", TOKEN, 404),
            ):
                with pytest.raises(InvalidStatus) as refused:
                    async with robot(proxy + path, additional_headers=headers):
                        pass
                assert refused.value.response.status_code == status

    asyncio.run(scene())


@pytest.mark.slow
def test_robots_go_on_while_the_server_is_away_and_leave_when_their_token_is_good_no_more() -> None:
    async def scene() -> None:
        async with (
            served(Toy()) as (_, url),
            proxied(known := Known(url)) as proxy,
            robot(proxy, additional_headers=TOKEN) as line,
            robot(proxy, additional_headers=TOKEN) as other,
        ):
            known.away = True
            assert (await ask(line, seen(1.0)))["actions"][0, 0] == 1.0
            async with robot(proxy, additional_headers=TOKEN) as third:
                assert (await ask(third, seen(2.0)))["actions"][0, 0] == 2.0
            with pytest.raises(InvalidStatus):
                async with robot(proxy, additional_headers={"Authorization": "Api-Key new"}):
                    pass
            known.away, known.tokens = False, set()
            await until(lambda: line.close_code is not None and other.close_code is not None)
            assert (line.close_code, other.close_code) == (1008, 1008)

    asyncio.run(scene())


@pytest.mark.slow
def test_a_robot_that_hangs_up_in_the_middle_leaves_nothing_under_way() -> None:
    async def scene() -> None:
        known = Known()
        async with broken(_hangs) as bad:
            known.targets = [Target(address=bad, ready=True)]
            proxy = ServiceProxy(known, time.monotonic)
            await proxy.start(socket.create_server(("127.0.0.1", 0)))
            async with robot(f"ws://127.0.0.1:{proxy.port}/v1/services/pick", additional_headers=TOKEN) as line:
                await line.send(pack(seen(deadline_ms=500)))
                line.transport.abort()
            await until(lambda: proxy.in_flight == 0 and proxy.connections == 0)
            await proxy.stop()

    asyncio.run(scene())
