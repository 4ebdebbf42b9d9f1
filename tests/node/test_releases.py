"""Agents, leads and sessions of other releases: who is too far is named at both ends, and new words do no harm."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from pathlib import Path

import pytest

from mainspring.domain import codec, wire
from mainspring.domain.errors import OtherRelease, Unavailable
from mainspring.domain.ids import NodeName
from mainspring.domain.release import RELEASE, Unknown
from mainspring.node.lead import effects
from mainspring.node.lead.lead import Lead
from mainspring.node.lead.outbox import UNKNOWN_TOLD_MAX
from mainspring.node.net.connection import UNKNOWN_LOGGED_MAX, Connection
from mainspring.node.net.handshake import Listener, call
from mainspring.node.net.pipes import Pipe
from mainspring.session.line import AgentConnection
from tests.domain.test_release import BEYOND, NEWER, NewWord
from tests.node.lead_agents import orders

from .agents import credentials
from .strangers import JOIN, LIMIT_S, PEER, sealed

TOO_FAR = f"got Mainspring {BEYOND}; wanted Mainspring {RELEASE}"
OTHERS = 5


def far(message: object, release: str = BEYOND) -> bytes:
    """Returns a message in a pipe, as a peer of that release says it."""
    return sealed(codec.frame(message, release=release)[codec.FRAME_HEADER_BYTES :])


@pytest.mark.parametrize("use", [JOIN, PEER])
def test_agents_too_far_apart_are_named_at_both_ends(use: wire.LineUse, caplog: pytest.LogCaptureFixture) -> None:
    async def serve(pipe: Pipe, use: wire.LineUse) -> None:
        raise AssertionError("it was let in")

    async def challenge(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(far(wire.AgentChallenge(nonce="f" * 64)))
        await reader.read()
        writer.close()

    async def scenario() -> None:
        listener = Listener(serve)
        listener.credentials = credentials("called")
        await listener.listen("127.0.0.1")
        pipe = await Pipe.open(listener.address)
        await pipe.receive(wire.AgentChallenge, LIMIT_S)
        pipe.send_bytes(far(wire.AgentProof(nonce="f" * 64, proof="f" * 64, use=use)))
        with pytest.raises(Unavailable):
            await pipe.receive(wire.AgentWelcome, LIMIT_S)
        listener.close()
        server = await asyncio.start_server(challenge, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        with pytest.raises(OtherRelease, match=TOO_FAR):
            await call(f"{host}:{port}", use, credentials("caller"))
        server.close()

    asyncio.run(scenario())
    assert TOO_FAR in caplog.text


def test_session_too_far_from_its_agent_is_named_by_the_agent_and_told_a_word_that_names_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> bytes:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            assert await Connection(reader, writer).receive(wire.Hello, LIMIT_S) is None

        server = await asyncio.start_unix_server(serve, tmp_path / "rank")
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "rank"))
        writer.write(codec.frame(wire.Hello(pid=1), release=BEYOND))
        async with asyncio.timeout(LIMIT_S):
            heard = await reader.read()
        writer.close()
        server.close()
        return heard

    assert asyncio.run(scenario()) == codec.frame(wire.Done())
    assert TOO_FAR in caplog.text


def test_agent_too_far_from_a_session_is_named_by_the_session(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(tmp_path / "rank"))
        server.listen()

        def answer() -> None:
            with server.accept()[0] as line:
                line.recv(1 << 16)
                line.sendall(codec.frame(wire.Done(), release=BEYOND))

        answering = threading.Thread(target=answer)
        answering.start()
        line = AgentConnection(str(tmp_path / "rank"))
        with pytest.raises(OtherRelease, match=TOO_FAR):
            line.ask(wire.Hello(pid=1), wire.Welcome)
        line.close()
        answering.join()


def test_new_words_of_a_newer_lead_are_logged_a_few_times_and_the_line_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> list[object]:
        ours, theirs = socket.socketpair()
        line = Connection(*await asyncio.open_unix_connection(sock=ours))
        _, writer = await asyncio.open_unix_connection(sock=theirs)
        said = [NewWord(words="dance")] * (UNKNOWN_LOGGED_MAX + OTHERS) + [wire.SnapshotPace(every=3)]
        writer.write(b"".join(codec.frame(each, release=NEWER) for each in said))
        writer.close()
        return [message async for message in line.messages(wire.LeadToAgent, LIMIT_S)]

    with caplog.at_level(logging.WARNING):
        heard = asyncio.run(scenario())
    assert heard[-1] == wire.SnapshotPace(every=3)
    assert caplog.text.count("dance") == UNKNOWN_LOGGED_MAX


def test_lead_tells_each_new_word_of_a_newer_agent_once_and_goes_on_as_if_it_had_said_nothing() -> None:
    now = effects.Instant(now_s=1.0, monotonic_s=1.0)
    lead = Lead(orders(2), now)
    lead.handle(effects.Joined(agent=1, node=NodeName("n1"), address="n1:7"), now)
    before = lead.phase
    for number in range(UNKNOWN_TOLD_MAX + OTHERS):
        for _ in range(2):
            said = effects.Said(agent=1, message=Unknown(kind=f"Word{number}", words="dance"))
            assert lead.handle(said, now) == ()
    assert [event.detail["word"] for event in lead.events] == [f"Word{number}" for number in range(UNKNOWN_TOLD_MAX)]
    assert {event.kind for event in lead.events} == {"unknown"}
    assert lead.phase is before
