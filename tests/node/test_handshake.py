"""Who may talk to an agent: strangers of all kinds at its door, and what they cost it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.domain import codec, wire
from mainspring.domain.errors import InvalidMessage, MainspringError, NotAllowed, Unavailable
from mainspring.node.net.connection import host_port
from mainspring.node.net.handshake import (
    FRAME_BYTES_MAX,
    Listener,
    admit,
    call,
)
from mainspring.node.net.pipes import Pipe, sealed_frame

from .agents import SECRET, credentials, until
from .strangers import JOIN, LIMIT_S, PEER, Door, FedTransport, challenged, listening, proof_frame, sealed

ADDRESS = "10.0.0.1:7000"
WHOLE_FRAME_BYTES_MAX = codec.FRAME_HEADER_BYTES + FRAME_BYTES_MAX + 4  # With its length and its checksum.


async def refused(said: bytes) -> FedTransport:
    """Returns the connection of a stranger that was not let in."""
    there = FedTransport(said)
    with pytest.raises(MainspringError):
        await admit(there.pipe, ADDRESS, credentials("called"))
    return there


# ---------------------------------------------------------------- those who belong


@pytest.mark.parametrize("use", [JOIN, PEER])
def test_agents_of_one_attempt_know_each_other_and_what_the_line_is_for(use: wire.LineUse) -> None:
    async def scenario() -> None:
        uses = []

        async def serve(pipe: Pipe, use: wire.LineUse) -> None:
            uses.append(use)
            pipe.send(wire.AgentDrained(agent=7))

        listener = Listener(serve)
        listener.credentials = credentials("called")
        await listener.listen("127.0.0.1")
        pipe = await call(listener.address, use, credentials("caller"))
        assert await pipe.receive(wire.AgentDrained, LIMIT_S) == wire.AgentDrained(agent=7)
        assert uses == [use]
        assert listener.unproved == 0
        pipe.close()
        listener.close()

    asyncio.run(scenario())


def test_secret_and_nonces_of_other_connections_never_travel() -> None:
    async def scenario() -> None:
        nonces: set[str] = set()
        async with listening() as door:
            own = credentials("caller")
            for _ in range(5):
                reader, writer = await asyncio.open_connection(*host_port(door.address))
                heard = await reader.read(1 << 16)
                assert SECRET.encode() not in heard
                nonces.add(codec.unframe(heard[4:-4], wire.AgentChallenge).nonce)
                writer.close()
            nonces |= {own.nonce() for _ in range(5)}
        assert len(nonces) == 10
        assert all(len(bytes.fromhex(nonce)) == 32 for nonce in nonces)

    asyncio.run(scenario())


def test_largest_message_of_the_handshake_fits_its_bound() -> None:
    worst = wire.AgentProof(nonce="f" * 64, proof="f" * 64, use=JOIN)
    assert len(codec.frame(worst)) <= codec.FRAME_HEADER_BYTES + FRAME_BYTES_MAX


def test_secret_is_not_shown_where_its_holders_are_printed() -> None:
    orders = wire.Orders(
        **dict.fromkeys(wire.Orders.__dataclass_fields__) | {"peers_secret": SECRET}  # type: ignore[arg-type]
    )
    assert SECRET not in repr(credentials("x")) + repr(orders)


# ---------------------------------------------------------------- strangers


@pytest.mark.parametrize(
    "announced", [2_400_000, codec.MESSAGE_BYTES_MAX, 1 << 30, (1 << 32) - 1, FRAME_BYTES_MAX + 1, 0]
)
def test_of_a_strangers_large_frame_nothing_is_read_but_its_length(announced: int) -> None:
    async def scenario() -> None:
        stranger = await refused(announced.to_bytes(4, "big") + bytes(2_400_000))
        assert stranger.read_bytes == codec.FRAME_HEADER_BYTES

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "said",
    [
        proof_frame(),
        proof_frame(type="AgentJoin"),
        proof_frame(version=2),
        proof_frame(body={"use": "lead"}),
        proof_frame(body={"nonce": "0" * 63}),
        proof_frame(body={"nonce": "g" * 64}),
        proof_frame(body={"nonce": "\u0660" * 64}),
        proof_frame(body={"nonce": " 0" * 32}),
        proof_frame(body={"proof": "\u00e9" * 64}),
        proof_frame(body={"proof": ""}),
        proof_frame()[:-1] + b"?",
        sealed(b"[" * FRAME_BYTES_MAX),
        sealed(b"\xff" * FRAME_BYTES_MAX),
    ],
)
def test_stranger_is_told_a_nonce_and_nothing_else(said: bytes) -> None:
    async def scenario() -> None:
        stranger = await refused(said + bytes(1 << 20))
        assert stranger.read_bytes <= WHOLE_FRAME_BYTES_MAX
        assert isinstance(codec.unframe(stranger.sent[4:-4], wire.AgentChallenge), wire.AgentChallenge)

    asyncio.run(scenario())


NEARLY = st.fixed_dictionaries(
    {"type": st.sampled_from(["AgentProof", "AgentJoin", "AgentWelcome"]) | st.text(max_size=9)},
    optional={
        "version": st.integers(0, 3) | st.none(),
        "body": st.fixed_dictionaries(
            {},
            optional={
                "nonce": st.text(alphabet="0aF\u0660 g", min_size=62, max_size=66) | st.integers(),
                "proof": st.text(max_size=70) | st.none(),
                "use": st.sampled_from(["join", "peer", "lead", ""]),
                "more": st.recursive(st.none() | st.booleans(), lambda inner: st.lists(inner, max_size=3)),
            },
        ),
    },
)
FIRST_WORDS = (
    st.binary(max_size=1200)
    | st.binary(max_size=600).map(sealed)
    | NEARLY.map(lambda said: sealed(json.dumps(said).encode()))
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(FIRST_WORDS)
def test_whatever_a_stranger_says_first_little_is_read_and_it_is_not_let_in(said: bytes) -> None:
    async def scenario() -> None:
        there = FedTransport(said)
        admitting = asyncio.create_task(admit(there.pipe, ADDRESS, credentials("called")))
        await until(lambda: not there.left or admitting.done())
        there.abort()
        with pytest.raises(MainspringError):
            await admitting
        assert there.read_bytes <= WHOLE_FRAME_BYTES_MAX

    asyncio.run(scenario())


def test_agent_of_another_attempt_is_not_let_in() -> None:
    async def scenario() -> None:
        async with listening() as door:
            with pytest.raises(Unavailable):
                await call(door.address, JOIN, credentials("caller", "another attempt's"))
            assert door.admitted == []

    asyncio.run(scenario())


# ---------------------------------------------------------------- those who listen and repeat


@asynccontextmanager
async def mallory(answers: list[bytes], *, echo: bool = False) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Gives the address of one who says given things to who calls, or the caller's own proof; and what it heard."""
    heard: list[bytes] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answers[0])
        said = await reader.read(1 << 16)
        heard.append(said)
        if echo:
            shown = codec.unframe(said[4:-4], wire.AgentProof)
            writer.write(sealed_frame(wire.AgentWelcome(proof=shown.proof)))
        else:
            writer.writelines(answers[1:])
        heard.append(await reader.read(1 << 16))
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        async with asyncio.timeout(LIMIT_S):
            yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", heard
    finally:
        server.close()


def test_own_proof_said_back_to_the_caller_is_refused() -> None:
    async def scenario() -> None:
        challenge = sealed_frame(wire.AgentChallenge(nonce="ab" * 32))
        async with mallory([challenge], echo=True) as (address, heard):
            with pytest.raises(NotAllowed):
                await call(address, JOIN, credentials("caller"))
            await until(lambda: len(heard) == 2)
            assert heard[1] == b""  # Not a word to one who has not proved itself.

    asyncio.run(scenario())


def test_caller_tells_nothing_to_a_lead_that_does_not_know_the_secret() -> None:
    async def scenario() -> None:
        challenge = sealed_frame(wire.AgentChallenge(nonce="ab" * 32))
        welcome = sealed_frame(wire.AgentWelcome(proof="0" * 64))
        async with mallory([challenge, welcome]) as (address, heard):
            with pytest.raises(NotAllowed):
                await call(address, JOIN, credentials("caller"))
            await until(lambda: len(heard) == 2)
            assert SECRET.encode() not in heard[0]
            assert heard[1] == b""

    asyncio.run(scenario())


def test_caller_refuses_a_challenge_of_another_version_or_of_any_size() -> None:
    async def scenario() -> None:
        newer = sealed(json.dumps({"type": "AgentChallenge", "version": 2, "body": {"nonce": "ab" * 32}}).encode())
        odd = [sealed_frame(wire.AgentChallenge(nonce=nonce)) for nonce in ("ab", " a" * 32)]
        for said in (newer, *odd, (2_400_000).to_bytes(4, "big") + bytes(2_400_000)):
            async with mallory([said]) as (address, _):
                with pytest.raises(InvalidMessage):
                    await call(address, JOIN, credentials("caller"))

    asyncio.run(scenario())


async def recorded(door: Door) -> wire.AgentProof:
    """Returns what an agent said that was let in, as somebody on the line heard it."""
    said: list[bytes] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, here = await asyncio.open_connection(*host_port(own))
        writer.write(await there.read(1 << 16))
        said.append(await reader.read(1 << 16))
        here.write(said[0])
        writer.write(await there.read(1 << 16))
        here.close()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    own, door.listener.address = door.address, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    (await call(door.address, JOIN, credentials("caller"))).close()
    door.listener.address = own
    server.close()
    return codec.unframe(said[0][4:-4], wire.AgentProof)


def test_handshake_that_was_recorded_opens_nothing_later() -> None:
    async def scenario() -> None:
        async with listening() as door:
            heard = await recorded(door)
            assert len(door.admitted) == 1
            for said in (heard, replace(heard, use=PEER)):
                pipe = await Pipe.open(door.address)
                await challenged(pipe)
                pipe.send(said)
                with pytest.raises(Unavailable):
                    await pipe.receive(wire.AgentWelcome, LIMIT_S)
            assert len(door.admitted) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("use", [PEER, None])
def test_proof_that_was_meant_for_another_agent_or_use_is_refused(use: wire.LineUse | None) -> None:
    """One who is called by an agent asks another agent for its challenge, and shows it the caller's answer."""

    async def scenario() -> None:
        async with listening() as door:
            answers: list[bytes] = []
            async with mallory(answers) as (address, heard):
                own = door.address
                if use is not None:
                    door.listener.address = address  # As if it had the called agent's very address.
                victim = await Pipe.open(own)
                answers.append(sealed_frame(wire.AgentChallenge(nonce=await challenged(victim))))
                with pytest.raises(MainspringError):
                    await asyncio.gather(call(address, JOIN, credentials("caller")), until_said(heard, victim, use))
                await asyncio.sleep(0)
            assert door.admitted == []

    async def until_said(heard: list[bytes], victim: Pipe, use: wire.LineUse | None) -> None:
        await until(lambda: len(heard) > 0)
        shown = codec.unframe(heard[0][4:-4], wire.AgentProof)
        victim.send(replace(shown, use=use or shown.use))
        await victim.receive(wire.AgentWelcome, LIMIT_S)

    asyncio.run(scenario())
