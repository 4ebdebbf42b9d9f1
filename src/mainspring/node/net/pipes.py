"""A connection between two agents: framed messages with checksums and raw bytes, each byte read only when asked for.

Raw bytes go from a file to the socket without passing through this process, and from the socket straight to their
place, so that terabytes move with no memory but where they come to lie. Inside TLS they pass through it piece by piece.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import struct
from collections.abc import Callable
from typing import BinaryIO, TypeVar, cast, final

import google_crc32c

from mainspring.domain import codec
from mainspring.domain.errors import InvalidMessage, NotAllowed, Unavailable
from mainspring.node.net.connection import Unframe, host_port

CONNECT_LIMIT_S = 4.0  # Two lost packets that open a connection (1 s, then 2 s more, by RFC 6298).
HANG_UP_LIMIT_S = 5.0  # For what is queued to leave, and for the other end of TLS to hang up too.
PART_BYTES = 16 << 20
_CRC = struct.Struct(">I")
PART_LIMIT_S = 4.0  # 4 MB/s: a line or a peer slower than that is as good as gone. Less than `arena.SLOT_WAIT_S`.

Message = TypeVar("Message")


def sealed_frame(message: object) -> bytes:
    """Returns a message as it travels in a pipe: its frame, then the frame's crc32c, big-endian.

    What lists of shards and small facts say is restored as it is told, so a bit that flips on the way must show.

    Raises:
        InvalidMessage: It is larger than a frame may be.
    """
    frame = codec.frame(message)
    return frame + _CRC.pack(google_crc32c.value(frame))


@final
class Pipe(asyncio.BufferedProtocol):
    """One end of a connection. For one user at a time; every wait has a bound, after which the connection is closed.

    Args:
        opened: Called with the pipe, once it is open.
    """

    def __init__(self, opened: Callable[[Pipe], None] | None = None) -> None:
        self.unframe: Unframe = codec.unframe
        """What reads the messages that come."""
        self._opened = opened
        self._transport: asyncio.Transport | None = None
        self._room = memoryview(b"")
        self._filled: asyncio.Future[None] | None = None

    @classmethod
    async def open(cls, address: str) -> Pipe:
        """Returns a pipe to an agent.

        Args:
            address: Its "host:port".

        Raises:
            Unavailable: Nobody answers there.
        """
        try:
            host, port = host_port(address)
            async with asyncio.timeout(CONNECT_LIMIT_S):
                _, pipe = await asyncio.get_running_loop().create_connection(cls, host, port)
        except (OSError, TimeoutError, InvalidMessage) as error:
            raise Unavailable("reach an agent", on=address, got=str(error) or "no answer") from error
        return pipe

    @property
    def is_open(self) -> bool:
        """Returns whether nothing is known to have ended it."""
        return self._transport is not None and not self._transport.is_closing()

    # ------------------------------------------------------------ what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`. Nothing is read until somebody asks for bytes."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.pause_reading()
        if self._opened is not None:
            self._opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`. TLS asks as soon as it is there, before it can be told to pause."""
        return self._room or memoryview(bytearray(1))

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""
        if not self._room:
            self.close()  # It spoke out of turn.
            return
        self._room = self._room[nbytes:]
        if not self._room and self._transport is not None:
            self._transport.pause_reading()
            if self._filled is not None and not self._filled.done():
                self._filled.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        self._transport = None
        if self._filled is not None and not self._filled.done():
            self._filled.set_exception(Unavailable("hear from an agent", got="a hang-up"))

    async def secure(self, context: ssl.SSLContext, *, called: bool) -> None:
        """Puts all that is said from now on inside TLS. The caller then speaks first only when it is told to.

        Args:
            called: Whether the other end has opened the connection.

        Raises:
            NotAllowed: The other end has another key.
            Unavailable: It hung up.
        """
        plain = self.release()
        try:
            inside = await asyncio.get_running_loop().start_tls(
                plain, self, context, server_side=called, ssl_shutdown_timeout=HANG_UP_LIMIT_S
            )
        except ssl.SSLError as error:
            raise NotAllowed("talk to an agent", got=str(error), wanted="an agent of the same attempt") from error
        except OSError as error:
            raise Unavailable("talk to an agent", got=str(error) or "a hang-up") from error
        if inside is None or plain.is_closing():
            raise Unavailable("talk to an agent", got="a hang-up")
        inside.pause_reading()
        self._transport = inside

    # ------------------------------------------------------------ messages

    def send(self, message: object) -> None:
        """Queues a message; nothing happens on a connection that is gone.

        Raises:
            InvalidMessage: It is larger than a frame may be.
        """
        self.send_bytes(sealed_frame(message))

    async def receive(
        self, kinds: codec.TypeForm[Message], limit_s: float, bytes_max: int = codec.MESSAGE_BYTES_MAX
    ) -> Message:
        """Returns the next message.

        Args:
            kinds: What may come: a message's class, or a union of several.
            limit_s: How long to wait.
            bytes_max: Of a larger one nothing is read but its length.

        Raises:
            Unavailable: The peer hung up or stayed silent.
            InvalidMessage: It said what may not come, or not what arrived.
        """
        header = bytearray(codec.FRAME_HEADER_BYTES)
        await self._read(memoryview(header), limit_s)
        body = bytearray(codec.frame_length(bytes(header), bytes_max) + _CRC.size)
        await self._read(memoryview(body), PART_LIMIT_S)
        frame = bytes(header + body[: -_CRC.size])
        if _CRC.unpack(body[-_CRC.size :]) != (google_crc32c.value(frame),):
            raise InvalidMessage("hear from an agent", got="a message that differs from its crc32c")
        return self.unframe(frame[codec.FRAME_HEADER_BYTES :], kinds)

    # ------------------------------------------------------------ raw bytes

    async def receive_into(self, room: memoryview) -> None:
        """Fills `room` with the next bytes.

        Raises:
            Unavailable: They did not come, or too slowly.
        """
        for start in range(0, len(room), PART_BYTES):
            await self._read(room[start : start + PART_BYTES], PART_LIMIT_S)

    async def send_part(self, file: int, offset: int, size_bytes: int) -> None:
        """Sends bytes of a file.

        Args:
            offset: The first byte.
            size_bytes: How many, at most `PART_BYTES`.

        Raises:
            Unavailable: They could not be sent, or too slowly.
        """
        if self._transport is None:
            raise Unavailable("send to an agent", got="a hang-up")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(PART_LIMIT_S):
                with os.fdopen(file, "rb", buffering=0, closefd=False) as source:
                    await loop.sendfile(self._transport, cast(BinaryIO, source), offset, size_bytes)
        except (OSError, RuntimeError, TimeoutError) as error:
            self.close()
            raise Unavailable("send to an agent", got=str(error) or "no progress") from error

    def send_bytes(self, data: bytes) -> None:
        """Queues bytes of this process; nothing happens on a connection that is gone.

        Args:
            data: A few megabytes at most.
        """
        if self._transport is not None:
            self._transport.write(data)

    def release(self) -> asyncio.Transport:
        """Returns what carries the bytes, for somebody else to read from: the pipe is not to be used again.

        Raises:
            Unavailable: The other end has hung up.
        """
        if self._transport is None:
            raise Unavailable("hear from an agent", got="a hang-up")
        return self._transport

    def close(self) -> None:
        """Hangs up at once. May be called again."""
        if self._transport is not None:
            self._transport.abort()

    async def _read(self, room: memoryview, limit_s: float) -> None:
        if not room:
            return
        if self._transport is None or not self.is_open:
            raise Unavailable("hear from an agent", got="a hang-up")
        self._room = room
        self._filled = asyncio.get_running_loop().create_future()
        self._transport.resume_reading()
        try:
            async with asyncio.timeout(limit_s):
                await self._filled
        except TimeoutError as error:
            raise Unavailable("hear from an agent", got=f"{len(self._room)} bytes missing for {limit_s:g} s") from error
        finally:
            if self._room:
                self.close()  # Half a message: nothing that follows would make sense.
            self._filled, self._room = None, memoryview(b"")
