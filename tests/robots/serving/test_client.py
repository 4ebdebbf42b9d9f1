"""What a robot does by its client: follows, goes over from chunk to chunk, holds, stops; and what the client needs."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from websockets.asyncio.server import serve

from mainspring.domain.errors import InvalidInput
from mainspring.robots.serving import client as client_module
from mainspring.robots.serving.client import Command, Doing, RobotClient
from mainspring.robots.serving.policy import Asked
from mainspring.robots.serving.wire import pack, unpack
from tests.robots.serving.served import DIMS, HORIZON, Toy, seen, served, until


def client_of(url: str, **given: Any) -> RobotClient:
    return RobotClient(url, **{"period_ms": 20.0, "ask_every": 4, "hold_steps": 3, **given})


def counting(asked: Asked) -> Any:
    """A chunk whose actions are the numbers of the steps they are meant for: the state tells the first."""
    return np.arange(HORIZON)[:, None] + np.full((HORIZON, DIMS), asked.observation["state"][0])


async def steps(client: RobotClient, first: int, count: int, *, settle: bool = True) -> list[Command]:
    """Takes steps, each of which sees its own number; lets what is on its way come in between."""
    taken = []
    for number in range(first, first + count):
        taken.append(client.step(seen(float(number))))
        if settle:
            await until(lambda: not client.asking)
    return taken


def test_a_robot_follows_chunks_and_asks_for_the_next_before_one_ends() -> None:
    requests: list[Asked] = []

    def chunk(asked: Asked) -> Any:
        requests.append(asked)
        return counting(asked)

    async def scene() -> list[Command]:
        async with served(Toy(chunk=chunk, guided=True)) as (_, url), client_of(url) as client:
            await client.connected.wait()
            return await steps(client, 0, 30)

    taken = asyncio.run(scene())
    assert taken[0].doing is Doing.HOLD  # Nothing has come yet.
    assert all(each.doing is Doing.FOLLOW for each in taken[1:])
    values = [float(each.action[0]) for each in taken[1:] if each.action is not None]
    assert values == [float(number) for number in range(1, 30)]  # Each action is the one meant for its step.
    assert [float(each.observation["state"][0]) for each in requests] == [0.0, *range(4, 30, 4)]
    assert requests[0].guide is None
    for each in requests[1:]:
        assert each.guide is not None
        assert (len(each.guide.left_over_TA), each.guide.delay, each.guide.horizon) == (6, 1, 6)
        assert each.guide.left_over_TA[0, 0] == each.observation["state"][0]  # What it would do now, first.


def test_a_robot_ends_its_chunk_then_holds_then_stops_until_it_is_reset() -> None:
    gate, policy = Event(), Toy(chunk=counting)
    gate.set()
    policy.gate = gate

    async def scene() -> None:
        async with served(policy) as (_, url), client_of(url) as client:
            await client.connected.wait()
            await steps(client, 0, 2)
            gate.clear()  # From now on no chunk comes.
            taken = await steps(client, 2, HORIZON + 4, settle=False)
            following, holding = taken[: HORIZON - 2], taken[HORIZON - 2 : HORIZON + 1]
            assert [each.doing for each in following] == [Doing.FOLLOW] * (HORIZON - 2)
            assert [each.doing for each in holding] == [Doing.HOLD] * 3
            assert all(each.action is not None and each.action[0] == HORIZON - 1 for each in holding)  # The last.
            assert [each.doing for each in taken[HORIZON + 1 :]] == [Doing.STOP] * 3
            assert all(each.action is None for each in taken[HORIZON + 1 :])
            gate.set()
            await until(lambda: not client.asking)
            after = await steps(client, HORIZON + 6, 4)
            assert [each.doing for each in after] == [Doing.STOP] * 4  # A chunk does not end a stop; a person does.
            client.reset()
            assert [each.doing for each in await steps(client, 50, 3)] == [Doing.HOLD, Doing.FOLLOW, Doing.FOLLOW]

    asyncio.run(scene())


def test_a_robot_of_velocities_holds_by_its_own_action() -> None:
    still = np.zeros(DIMS, np.float32)

    async def scene() -> Command:
        async with client_of("ws://127.0.0.1:1", hold=still) as client:
            return client.step(seen())

    held = asyncio.run(scene())
    assert (held.doing, held.action) == (Doing.HOLD, still)


def test_an_unsafe_chunk_is_refused_and_the_robot_goes_on_with_the_last_safe_one() -> None:
    def chunk(asked: Asked) -> Any:
        return counting(asked) if asked.observation["state"][0] < 4 else np.full((HORIZON, DIMS), np.nan)

    async def scene() -> None:
        async with served(Toy(chunk=chunk)) as (_, url), client_of(url) as client:
            await client.connected.wait()
            taken = await steps(client, 0, HORIZON + 2)
            assert [each.doing for each in taken[1:HORIZON]] == [Doing.FOLLOW] * (HORIZON - 1)
            assert [each.doing for each in taken[HORIZON:]] == [Doing.HOLD] * 2
            assert client.trouble.startswith("unsafe_action: ")

    asyncio.run(scene())


ODD_ANSWERS = [
    pack({"actions": np.full((4, DIMS), np.nan)}),
    pack({"actions": np.zeros(3)}),
    pack({"actions": np.array([["a", "b"]])}),
    pack({"actions": [[1.0]]}),
    pack([1]),
    pack({"actions": np.zeros((0, DIMS)), "mainspring": 3}),
    b"\xc1",
]


@pytest.mark.parametrize("answer", ODD_ANSWERS, ids=[str(index) for index in range(len(ODD_ANSWERS))])
def test_what_is_no_chunk_is_not_followed_whoever_sent_it(answer: bytes) -> None:
    async def odd(line: Any) -> None:
        await line.send(pack({}))
        async for _ in line:
            await line.send(answer)

    async def scene() -> None:
        async with serve(odd, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with client_of(f"ws://127.0.0.1:{port}") as client:
                await client.connected.wait()
                taken = await steps(client, 0, 6)
                assert [each.doing for each in taken] == [Doing.HOLD] * 3 + [Doing.STOP] * 3
                await until(lambda: client.trouble != "")

    asyncio.run(scene())


def test_a_chunk_that_comes_late_is_followed_from_the_step_that_is_next() -> None:
    gate, policy = Event(), Toy(chunk=counting)
    policy.gate = gate

    async def scene() -> None:
        async with served(policy) as (_, url), client_of(url, hold_steps=20) as client:
            await client.connected.wait()
            await steps(client, 0, 5, settle=False)
            await asyncio.to_thread(policy.begun.wait, 30)
            gate.set()
            await until(lambda: not client.asking)
            taken = await steps(client, 5, 2)
            assert [float(each.action[0]) for each in taken if each.action is not None] == [5.0, 6.0]

    asyncio.run(scene())


def test_a_client_finds_a_server_that_comes_back() -> None:
    async def scene() -> None:
        with socket.socket() as place:
            place.bind(("127.0.0.1", 0))
            port = place.getsockname()[1]
        async with client_of(f"ws://127.0.0.1:{port}", hold_steps=10_000) as client:
            assert client.step(seen()).doing is Doing.HOLD
            await until(lambda: "refused" in client.trouble.lower() or "Connect" in client.trouble)

            async def one(line: Any) -> None:
                await line.send(pack({"robot": "toy"}))
                async for request in line:
                    state = unpack(request)["state"][0]
                    await line.send(pack({"actions": np.full((HORIZON, DIMS), state)}))

            for _ in range(2):  # It starts, and starts anew.
                client.connected.clear()
                async with serve(one, "127.0.0.1", port):
                    await client.connected.wait()
                    client.reset()
                    await steps(client, 7, 2)
                    assert client.step(seen()).doing is Doing.FOLLOW
                    assert client.metadata == {"robot": "toy"}

    asyncio.run(scene())


def test_a_client_that_says_nonsense_is_refused() -> None:
    async def scene() -> None:
        for odd in ({"period_ms": 0.0}, {"ask_every": 0}, {"hold_steps": -1}):
            with pytest.raises(InvalidInput):
                client_of("ws://127.0.0.1:1", **odd)

    asyncio.run(scene())


def test_a_robot_needs_numpy_msgpack_and_websockets_alone_and_two_hundred_lines() -> None:
    assert len(Path(client_module.__file__).read_text().splitlines()) <= 200
    script = (
        "import sys, mainspring.robots.serving.client;"
        "print(*sorted({name.partition('.')[0] for name in sys.modules"
        " if 'site-packages' in str(getattr(sys.modules[name], '__file__', ''))}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert {name for name in done.stdout.split() if name[0] != "_"} == {"numpy", "msgpack", "websockets"}
