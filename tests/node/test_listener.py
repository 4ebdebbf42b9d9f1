"""An agent's listening socket: agents come in, whatever strangers do with it at the time."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from mainspring.domain import codec, wire
from mainspring.domain.errors import Unavailable
from mainspring.node.net.connection import host_port
from mainspring.node.net.handshake import HANDSHAKE_LIMIT_S, UNPROVED_MAX, call

from .agents import credentials, until
from .strangers import JOIN, LIMIT_S, ends, hung_up_on, listening, proof_frame


def test_strangers_that_push_large_frames_are_all_hung_up_on_while_an_agent_comes_in() -> None:
    async def scenario() -> None:
        async with listening() as door:
            guess = codec.frame(wire.AgentDrained(agent=1)) + bytes(2_400_000)
            large = [hung_up_on(door.address, (2_400_000).to_bytes(4, "big") + guess) for _ in range(25)]
            wrong = [hung_up_on(door.address, proof_frame() + guess) for _ in range(25)]
            strangers = [asyncio.create_task(one) for one in (*large, *wrong)]
            pipe = await call(door.address, JOIN, credentials("caller"))
            assert await pipe.receive(wire.Done, LIMIT_S) == wire.Done()
            await asyncio.gather(*strangers)
            assert len(door.admitted) == 1
            assert door.listener.unproved == 0
            pipe.close()

    asyncio.run(scenario())


def test_agent_that_does_not_know_its_secret_yet_hangs_up_and_lets_in_later() -> None:
    async def scenario() -> None:
        async with listening() as door:
            door.listener.credentials, known = None, door.listener.credentials
            with pytest.raises(Unavailable):
                await call(door.address, JOIN, credentials("caller"))
            door.listener.credentials = known
            (await call(door.address, JOIN, credentials("caller"))).close()

    asyncio.run(scenario())


@pytest.mark.slow
def test_agent_comes_in_past_as_many_silent_connections_as_are_held_and_more() -> None:
    async def scenario() -> None:
        async with listening() as door:
            silent = []
            for count in range(1, UNPROVED_MAX + 40):
                reader, writer = await asyncio.open_connection(*host_port(door.address))
                await reader.readexactly(codec.FRAME_HEADER_BYTES)  # It has been taken.
                silent.append((reader, writer))
                assert door.listener.unproved == min(count, UNPROVED_MAX)
            agents = await asyncio.gather(*(call(door.address, JOIN, credentials(f"agent {i}")) for i in range(20)))
            assert door.listener.unproved <= UNPROVED_MAX
            open_ones = [reader for reader, _ in silent if not await ends(reader)]
            assert 0 < len(open_ones) <= UNPROVED_MAX
            assert open_ones == [reader for reader, _ in silent[-len(open_ones) :]]  # The oldest had to go.
            for pipe in agents:
                assert await pipe.receive(wire.Done, LIMIT_S) == wire.Done()
                pipe.close()
            for _, writer in silent:
                writer.close()

    asyncio.run(scenario())


@pytest.mark.slow
def test_stranger_that_is_silent_or_slow_is_hung_up_on_in_time() -> None:
    async def scenario() -> None:
        async with listening() as door:
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            reader, writer = await asyncio.open_connection(*host_port(door.address))

            async def drip() -> None:
                with contextlib.suppress(OSError):
                    for byte in proof_frame():
                        writer.write(bytes([byte]))
                        await asyncio.sleep(0.1)

            dripping = asyncio.create_task(drip())
            await hung_up_on(door.address, b"")
            with contextlib.suppress(OSError):
                while await reader.read(1 << 16):
                    pass
            assert loop.time() - began_s < HANDSHAKE_LIMIT_S + 2.0
            assert door.listener.unproved == 0
            dripping.cancel()
            writer.close()

    asyncio.run(scenario())


def test_listener_that_closes_hangs_up_on_those_who_have_not_proved_themselves() -> None:
    async def scenario() -> None:
        async with listening() as door:
            reader, writer = await asyncio.open_connection(*host_port(door.address))
            await reader.read(1 << 16)
            door.listener.close()
            with contextlib.suppress(OSError):
                assert await reader.read(1 << 16) == b""
            await until(lambda: door.listener.unproved == 0)
            writer.close()

    asyncio.run(scenario())


def test_agent_listens_on_its_own_address_alone() -> None:
    async def scenario() -> None:
        async with listening(host="127.0.0.2") as door:
            host, port = host_port(door.address)
            assert host == "127.0.0.2"
            (await call(door.address, JOIN, credentials("caller"))).close()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)

    asyncio.run(scenario())
