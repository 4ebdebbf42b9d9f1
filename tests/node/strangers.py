"""An agent's door, for tests, and what strangers do at it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import google_crc32c

from mainspring.domain import codec, wire
from mainspring.node.net.connection import host_port
from mainspring.node.net.handshake import Listener
from mainspring.node.net.pipes import Pipe

from .agents import credentials

LIMIT_S = 120.0
JOIN, PEER = wire.LineUse.JOIN, wire.LineUse.PEER


@dataclass
class Door:
    """An agent that listens, and whom it let in."""

    listener: Listener
    admitted: list[Pipe] = field(default_factory=list)

    @property
    def address(self) -> str:
        return self.listener.address


@asynccontextmanager
async def listening(host: str = "127.0.0.1") -> AsyncIterator[Door]:
    async def serve(pipe: Pipe, use: wire.LineUse) -> None:
        door.admitted.append(pipe)
        pipe.send(wire.Done())

    door = Door(Listener(serve))
    door.listener.credentials = credentials("called")
    await door.listener.listen(host)
    try:
        async with asyncio.timeout(LIMIT_S):
            yield door
    finally:
        door.listener.close()
        for pipe in door.admitted:
            pipe.close()
        await asyncio.sleep(0)


async def hung_up_on(address: str, said: bytes) -> bytes:
    """Returns what a stranger hears that says something and waits until it is hung up on."""
    reader, writer = await asyncio.open_connection(*host_port(address))
    heard = b""
    with contextlib.suppress(OSError):
        writer.write(said)
        heard = await reader.read(1 << 16)
        await writer.drain()
        while more := await reader.read(1 << 16):
            heard += more
    writer.close()
    return heard


async def ends(reader: asyncio.StreamReader) -> bool:
    """Returns whether the other end has hung up, once it has said what it had to say."""
    try:
        async with asyncio.timeout(0.005):
            await reader.read(1 << 16)
            return await reader.read(1 << 16) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


async def challenged(pipe: Pipe) -> str:
    return (await pipe.receive(wire.AgentChallenge, LIMIT_S)).nonce


class FedTransport(asyncio.Transport):
    """A connection whose other end has much to say; counts how much of it is read, and hands over no more."""

    def __init__(self, said: bytes) -> None:
        super().__init__()
        self.left = memoryview(said)
        self.read_bytes = 0
        self.sent = b""
        self.closed = False
        self.pipe = Pipe()
        self.pipe.connection_made(self)

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False
        asyncio.get_running_loop().call_soon(self._feed)

    def _feed(self) -> None:
        if self.paused or self.closed or not self.left:
            return
        room = self.pipe.get_buffer(-1)
        size = min(len(room), len(self.left))
        room[:size], self.left = self.left[:size], self.left[size:]
        self.read_bytes += size
        self.pipe.buffer_updated(size)
        asyncio.get_running_loop().call_soon(self._feed)

    def write(self, data: Any) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True
        asyncio.get_running_loop().call_soon(self.pipe.connection_lost, None)


def proof_frame(**changes: Any) -> bytes:
    """Returns a proof as a stranger would write it, in the form that is wanted."""
    body = {"nonce": "0" * 64, "proof": "0" * 64, "use": "join"} | changes.pop("body", {})
    message = {"type": "AgentProof", "version": codec.MESSAGE_VERSION, "body": body} | changes
    return sealed(json.dumps(message).encode())


def sealed(body: bytes) -> bytes:
    """Returns any bytes as a frame that arrived whole."""
    frame = len(body).to_bytes(4, "big") + body
    return frame + int(google_crc32c.value(frame)).to_bytes(4, "big")
