"""Framed messages over asyncio streams, with bounds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from typing import Protocol, TypeVar, final

from mainspring.domain import codec
from mainspring.domain.errors import InvalidMessage, OtherRelease
from mainspring.domain.release import Unknown
from mainspring.domain.wire import Done

UNSENT_BYTES_MAX = 64 << 20  # Eight of the largest frames; a peer this far behind is as good as gone.
QUIET_PARTS = 5  # A line speaks at least this often in a lease, so that one lost packet is not a lost peer.
UNKNOWN_LOGGED_MAX = 10  # Of one connection: whoever says them says them again.
_log = logging.getLogger(__name__)

Message = TypeVar("Message")


class Unframe(Protocol):
    """What reads a frame's body, as `codec.unframe` does."""

    def __call__(self, body: bytes, kinds: codec.TypeForm[Message]) -> Message:
        """Returns the message; raises as `codec.unframe` does."""


@final
class Connection:
    """One connection that carries messages both ways."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, unframe: Unframe = codec.unframe
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._unframe = unframe
        self._unknown = 0

    @classmethod
    def over(cls, transport: asyncio.Transport) -> Connection:
        """Returns a connection over a transport that nobody else reads from any more."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        protocol.connection_made(transport)
        transport.set_protocol(protocol)
        transport.resume_reading()
        return cls(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    def send(self, message: object) -> None:
        """Queues a message. A line that is closed, or too far behind, drops it and closes."""
        if self._writer.is_closing():
            return
        self._writer.write(codec.frame(message))
        if self._writer.transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            self._writer.transport.abort()

    async def receive(self, kinds: codec.TypeForm[Message], limit_s: float | None = None) -> Message | None:
        """Returns the next message; None when the peer hung up, broke the rules, or stayed silent too long.

        Of a peer whose release is too far from this one the log tells; it is told a last word, by which it knows too.

        Args:
            kinds: What may come: a message's class, or a union of several.
            limit_s: How long to wait, None for ever.
        """
        try:
            async with asyncio.timeout(limit_s):
                header = await self._reader.readexactly(codec.FRAME_HEADER_BYTES)
                message = self._unframe(await self._reader.readexactly(codec.frame_length(header)), kinds)
            if isinstance(message, Unknown):
                self._log_unknown(message)
            return message
        except OtherRelease as error:
            _log.warning("%s", error)
            self.send(Done())
            self.close()
            return None
        except (asyncio.IncompleteReadError, OSError, TimeoutError, InvalidMessage):
            self.close()
            return None

    def _log_unknown(self, said: Unknown) -> None:
        self._unknown += 1
        if self._unknown <= UNKNOWN_LOGGED_MAX:
            _log.warning("a newer peer says %r, which this release does not know: %s", said.kind, said.words)

    async def messages(self, kinds: codec.TypeForm[Message], limit_s: float | None = None) -> AsyncIterator[Message]:
        """Yields messages until the line ends.

        Args:
            kinds: See `receive`.
            limit_s: The longest silence allowed.
        """
        while (message := await self.receive(kinds, limit_s)) is not None:
            yield message

    async def keep_alive(self, lease_s: float) -> None:
        """Speaks often enough for the peer to know that we live, until the line closes.

        Args:
            lease_s: Silence after which the peer gives us up.
        """
        while not self._writer.is_closing():
            self.send(Done())
            await asyncio.sleep(lease_s / QUIET_PARTS)

    async def flush(self, limit_s: float) -> None:
        """Waits until everything queued has left, or the limit."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(limit_s):
                # Not 0: with that asyncio's TLS waits for more than all to have left.
                self._writer.transport.set_write_buffer_limits(high=1)
                await self._writer.drain()

    def close(self) -> None:
        """Hangs up once what is queued has left. May be called again."""
        self._writer.close()


def own_address(peer: str) -> str:
    """Returns this machine's address on the way to a peer.

    Args:
        peer: A host name or address; loopback gives loopback.
    """
    try:
        family, _, _, _, target = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # Sends nothing: it only asks the kernel for the route.
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def free_port(host: str) -> int:
    """Returns a port nobody listens on just now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def host_port(address: str) -> tuple[str, int]:
    """Returns the parts of "host:port".

    Args:
        address: The address; an IPv6 host may stand in brackets.

    Raises:
        InvalidMessage: It is no such address.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise InvalidMessage("read an address", got=repr(address[:80]), wanted="host:port")
    return host.strip("[]"), int(port)


def address_of(host: str, port: int) -> str:
    """Returns "host:port", an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
