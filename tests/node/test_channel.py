"""What agents say once they know each other: closed to who carries it, and to who stands in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from mainspring.domain import wire
from mainspring.domain.errors import MainspringError
from mainspring.node.net.connection import Connection, address_of, host_port
from mainspring.node.net.handshake import Credentials, Exchange, Listener, call
from mainspring.node.net.pipes import PART_BYTES, Pipe, sealed_frame

from .agents import SECRET, credentials, until
from .strangers import JOIN, LIMIT_S, PEER

WORD = "one word that nobody else may read"
WELCOME_BYTES = len(sealed_frame(wire.AgentWelcome(proof="0" * 64)))
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def closed(purpose: str) -> Credentials:
    """Returns what an agent has whose connections are closed though they stay on this machine, as tests' do."""
    return replace(credentials(purpose), open_here=False)


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, into: bytearray) -> None:
    while data := await reader.read(1 << 16):
        into += data
        writer.write(data)
    writer.close()


@asynccontextmanager
async def called(
    own: Credentials, middle: Callable[[Ends, Ends], Awaitable[None]]
) -> AsyncIterator[tuple[str, list[Pipe]]]:
    """An agent that is called through somebody in the middle, by the address that others know it by."""
    admitted: list[Pipe] = []

    async def serve(pipe: Pipe, use: wire.LineUse) -> None:
        admitted.append(pipe)

    listener = Listener(serve)
    listener.credentials = own
    await listener.listen("127.0.0.1")
    behind = host_port(listener.address)

    async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await middle((reader, writer), await asyncio.open_connection(*behind))

    server = await asyncio.start_server(between, "127.0.0.1", 0)
    listener.address = address_of("127.0.0.1", server.sockets[0].getsockname()[1])
    try:
        async with asyncio.timeout(LIMIT_S):
            yield listener.address, admitted
    finally:
        server.close()
        listener.close()
        for pipe in admitted:
            pipe.close()


@pytest.mark.parametrize("open_here", [True, False])
def test_what_agents_say_cannot_be_read_on_the_way_unless_it_stays_on_the_machine(open_here: bool) -> None:
    carried = bytearray()

    async def listens(left: Ends, right: Ends) -> None:
        await asyncio.gather(carry(left[0], right[1], carried), carry(right[0], left[1], carried))

    async def scenario() -> None:
        own = replace(credentials("called"), open_here=open_here)
        async with called(own, listens) as (address, admitted):
            pipe = await call(address, JOIN, replace(credentials("caller"), open_here=open_here))
            await until(lambda: bool(admitted))
            line, other = Connection.over(pipe.release()), admitted[0]
            line.send(wire.AgentProof(nonce=WORD, proof="", use=JOIN))
            back = Connection.over(other.release())
            assert (await back.receive(wire.AgentProof, LIMIT_S)) == wire.AgentProof(nonce=WORD, proof="", use=JOIN)
            back.send(wire.AgentWelcome(proof=WORD))
            await back.flush(LIMIT_S)
            assert await line.receive(wire.AgentWelcome, LIMIT_S) == wire.AgentWelcome(proof=WORD)
            line.close()
            back.close()

    asyncio.run(scenario())
    assert (WORD.encode() in carried) is open_here
    assert SECRET.encode() not in carried


def test_bytes_of_a_file_arrive_as_they_are_through_a_closed_connection(tmp_path: Path) -> None:
    said = os.urandom(PART_BYTES + 12_345)
    (tmp_path / "state").write_bytes(said)
    got = bytearray(len(said))

    async def passes(left: Ends, right: Ends) -> None:
        await asyncio.gather(carry(left[0], right[1], bytearray()), carry(right[0], left[1], bytearray()))

    async def scenario() -> None:
        async with called(closed("called"), passes) as (address, admitted):
            pipe = await call(address, PEER, closed("caller"))
            await until(lambda: bool(admitted))
            with (tmp_path / "state").open("rb") as file:
                taking = asyncio.create_task(admitted[0].receive_into(memoryview(got)))
                await pipe.send_part(file.fileno(), 0, PART_BYTES)
                await pipe.send_part(file.fileno(), PART_BYTES, len(said) - PART_BYTES)
                await taking
            pipe.close()

    asyncio.run(scenario())
    assert got == said


def test_one_in_the_middle_who_carries_the_proof_can_end_tls_for_neither() -> None:
    async def ends(left: Ends, right: Ends) -> None:
        right_said = await right[0].read(1 << 16)  # The nonce of who is called,
        left[1].write(right_said)
        right[1].write(await left[0].read(1 << 16))  # the caller's proof,
        left[1].write(await right[0].readexactly(WELCOME_BYTES))  # and the answer; then he would end TLS.
        about = Exchange(use=JOIN, address="127.0.0.1:1", called="0" * 64, caller="1" * 64)
        own = Credentials(secret="of nobody", dice=credentials("middle").dice, open_here=False)
        context = own.context(about, called=True)
        assert context is not None
        with pytest.raises((ssl.SSLError, OSError)):
            await left[1].start_tls(context)
        refused.append("caller")
        toward = own.context(about, called=False)
        assert toward is not None
        toward.verify_mode = ssl.CERT_NONE
        with contextlib.suppress(OSError):  # TLS 1.3: whom a server refuses may learn of it when he reads.
            await right[1].start_tls(toward)
            assert await right[0].read(1) == b""
        refused.append("called")

    refused: list[str] = []

    async def scenario() -> None:
        async with called(closed("called"), ends) as (address, admitted):
            with pytest.raises(MainspringError):
                await call(address, JOIN, closed("caller"))
            await until(lambda: len(refused) == 2)
            assert not admitted

    asyncio.run(scenario())


def test_connections_cannot_be_led_into_each_other_after_the_proof() -> None:
    """Two agents call the same one; who carries both leads the first's TLS to where the second proved itself."""
    waiting: list[tuple[Ends, Ends]] = []

    async def swaps(left: Ends, right: Ends) -> None:
        left[1].write(await right[0].read(1 << 16))
        right[1].write(await left[0].read(1 << 16))
        left[1].write(await right[0].readexactly(WELCOME_BYTES))
        waiting.append((left, right))
        if len(waiting) == 2:
            (first, second), (third, fourth) = waiting
            pairs = ((first, fourth), (third, second))
            for one, other in pairs:
                asyncio.create_task(carry(one[0], other[1], bytearray()))  # noqa: RUF006 - ends with its connection.
                asyncio.create_task(carry(other[0], one[1], bytearray()))  # noqa: RUF006

    async def scenario() -> None:
        async with called(closed("called"), swaps) as (address, admitted):
            both = await asyncio.gather(
                *(call(address, JOIN, closed(f"caller {index}")) for index in range(2)), return_exceptions=True
            )
            assert all(isinstance(one, MainspringError) for one in both), both
            assert not admitted

    asyncio.run(scenario())
