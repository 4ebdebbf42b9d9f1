"""Sockets that listen, and connections that do not last for nothing: who begins a request and stops is hung up on.

`ms up` listens before there is a server: nothing of the API is imported here.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, cast, final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mainspring.domain.answers import PROBLEM_TYPE, problem_of
from mainspring.domain.codec import encode
from mainspring.domain.errors import Conflict, InvalidInput, InvalidMessage, NotAllowed
from mainspring.domain.wire.trust import is_loopback

BACKLOG = 2_048  # A thousand agents register within one second of a start.
HEAD_BYTES_MAX = 64 << 10  # As much as h11 and nginx take, near enough; the parser itself knows no bound.
FILES_PART = 2  # One open file in so many is a connection; of the rest, half may be accepted in one moment.
FILES_USUAL = 1_024  # Of a process, where nobody says otherwise.
BODY_BYTES_TAKEN = 256 << 10  # To come yet; less is not worth the change of who reads.
CONNECTION_KEY = "mainspring_connection"  # Of a scope: what serves it, for who takes a large body. See `take_body`.


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """What encrypts the API: PEM files.

    Args:
        certificate: The chain, the server's own first.
    """

    certificate: Path
    key: Path


def listen(host: str, port: int, *, tls: Tls | None = None) -> socket.socket:
    """Returns a socket that listens, so that the address is known before the controller is built.

    Args:
        host: Where; anything but a loopback address wants TLS.
        port: Which; 0 for any free one.
        tls: What will encrypt it.

    Raises:
        NotAllowed: A public address without TLS, or a port that needs privileges.
        Conflict: The port is in use.
        InvalidInput: No such host here, or a certificate and key that cannot be used.
    """
    where = f"{host}:{port}"
    if tls is None and not is_loopback(host):
        raise NotAllowed(
            "serve the API",
            on=where,
            got="a public address without TLS: tokens would travel in the clear",
            wanted="a loopback address, or a certificate and key",
            next_step="listen on 127.0.0.1, or give a certificate and its key",
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise Conflict(
                "serve the API",
                on=f"port {port} of {host}",
                got="a port that something else listens on",
                next_step=f"stop what uses port {port}, or choose another port",
            ) from error
        if error.errno == errno.EACCES:
            raise NotAllowed("serve the API", on=where, got=str(error), next_step="use a port over 1023") from error
        raise InvalidInput("serve the API", on=where, got=str(error), wanted="an address of this machine") from error
    if tls is not None:
        try:
            _check(tls)
        except InvalidInput:
            listener.close()
            raise
    return listener


def _check(tls: Tls) -> None:
    """Raises what uvicorn would find only in its thread; a key that asks for a password finds nobody to give it."""
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(tls.certificate, tls.key, password="")
    except (OSError, ValueError) as error:
        raise InvalidInput(
            "encrypt the API",
            on=f"{tls.certificate} with {tls.key}",
            got=str(error),
            wanted="PEM files of a certificate and its key, without a password",
        ) from error


class _Reading(Enum):
    """What the next bytes are expected to be of."""

    NOTHING = "nothing"
    HEAD = "head"
    BODY = "body"


class BoundedConnection(HttpToolsProtocol):
    """uvicorn's connection, with an end to its patience. Source: Slowloris (R. Hansen, 2009) is what it is against."""

    head_s_max = 10.0  # From a connection's first moment, or a request's first byte, until its head is there.
    body_s_max = (
        30.0  # For each `body_bytes_least` of a body, or its end, while somebody reads it; once it is answered.
    )
    body_bytes_least = 16 << 10
    answer_s_max = 60.0  # While the caller takes nothing of its answer.
    heads_max = 4_096  # Connections that wait for a head: twice the backlog, which may all be accepted in one moment.
    connections_max = FILES_USUAL // FILES_PART  # In all. See `bounded_by`.

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._reading = _Reading.NOTHING
        self._head_bytes = 0
        self._head: asyncio.TimerHandle | None = None
        self._body: asyncio.TimerHandle | None = None
        self._body_bytes = 0
        self._answer: asyncio.TimerHandle | None = None
        self._priming = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait for a request; where too many wait, or are, the one that waited longest gives way."""
        super().connection_made(transport)
        self._head = self.loop.call_later(self.head_s_max, self._hang_up)
        if len(self.connections) > min(self.heads_max, self.connections_max):
            every = [one for one in self.connections if isinstance(one, BoundedConnection)]
            waiting = [(one._head.when(), number) for number, one in enumerate(every) if one._head is not None]
            if len(waiting) > self.heads_max or len(every) > self.connections_max:
                every[min(waiting)[1]]._hang_up()

    def data_received(self, data: bytes) -> None:
        """Takes bytes; the time for a head does not begin anew with each of them, that for a body does with many."""
        before = self._reading
        super().data_received(data)
        serving = bool(self.cycle) and not self.cycle.response_complete
        if self._reading is _Reading.BODY or (self._reading is _Reading.NOTHING and serving):
            self._head, self._head_bytes = _instead_of(self._head), 0
        else:  # Of a head, or of nothing: bytes between requests keep no connection open.
            if before is not _Reading.BODY:  # Else most of them are the end of a body that was answered before.
                self._head_bytes += len(data)
            self._head = self._head or self.loop.call_later(self.head_s_max, self._hang_up)
        if self._head_bytes > HEAD_BYTES_MAX:
            self._hang_up()
        self.body_came(len(data))

    def body_came(self, size_bytes: int) -> None:
        """Begins anew to wait for a body, once enough of it came."""
        self._body_bytes += size_bytes
        if self._reading is not _Reading.BODY:
            self._body = _instead_of(self._body)
        elif self._body is None or (self._body_bytes >= self.body_bytes_least and not self.cycle.response_complete):
            self._body = _instead_of(self._body, self.loop.call_later(self.body_s_max, self._body_late))
            self._body_bytes = 0

    def on_message_begin(self) -> None:
        """Waits for the rest of a head."""
        if self._priming:
            return
        self._reading = _Reading.HEAD
        super().on_message_begin()
        cast("dict[str, object]", self.scope)[CONNECTION_KEY] = self

    def on_headers_complete(self) -> None:
        """Waits for a body."""
        if self._priming:
            return
        self._reading = _Reading.BODY
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Waits for nothing more."""
        if self._priming:
            return
        self._reading = _Reading.NOTHING
        super().on_message_complete()

    def take_body(self, scope: Any) -> BodyReader | None:
        """Returns what reads the body of a request from now on, of which nothing was asked for yet.

        None where there is nothing to gain: its length is not known, or most of it is here.

        Args:
            scope: The request's.
        """
        cycle, length = self.cycle, dict(scope["headers"]).get(b"content-length", b"")
        fits = cycle.scope is scope and cycle.more_body and not (cycle.disconnected or cycle.waiting_for_100_continue)
        if not fits or not length.isdigit() or int(length) - len(cycle.body) < BODY_BYTES_TAKEN:
            return None
        here, cycle.body = bytes(cycle.body), bytearray()
        self.flow.pause_reading()
        return BodyReader(self, here, int(length) - len(here))

    def give_body_back(self, left: int) -> None:
        """Goes on where a reader of a body stopped.

        Args:
            left: How much of the body has not come.
        """
        self.transport.set_protocol(self)
        if self.transport.is_closing():
            return
        # A new parser is brought to where the old one would be; what it tells meanwhile was told before.
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # As uvicorn does.
        headers, self.headers, self._priming = self.headers, [], True
        self.parser.feed_data(b"PUT / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % left)
        self.headers, self._priming = headers, False
        if not left:
            self.on_message_complete()
            self._body = _instead_of(self._body)

    def pause_writing(self) -> None:
        """Waits for the caller to take some of its answer."""
        super().pause_writing()
        self._answer = self.loop.call_later(self.answer_s_max, self._hang_up)

    def resume_writing(self) -> None:
        """Waits for that no more."""
        self._answer = _instead_of(self._answer)
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits for nothing more."""
        self._head, self._body = _instead_of(self._head), _instead_of(self._body)
        self._answer = _instead_of(self._answer)
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answers what is no request as any other error is, and hangs up.

        Args:
            msg: uvicorn's words.
        """
        error = InvalidMessage("read a request", got="bytes that are none", wanted="HTTP/1.1, RFC 9112")
        head = "HTTP/1.1 400 Bad Request\r\ncontent-type: %s\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        told = encode(problem_of(error, 400))
        self.transport.write((head % (PROBLEM_TYPE, len(told))).encode() + told)
        self.transport.close()

    def _body_late(self) -> None:
        if self.flow.read_paused:  # It is not the caller who is late.
            self._body = self.loop.call_later(self.body_s_max, self._body_late)
        else:
            self._hang_up()

    def _hang_up(self) -> None:
        self.transport.abort()  # What is still to be written nobody may ever take.


@final
class BodyReader(asyncio.BufferedProtocol):
    """Reads a large body into the buffers of who wants it, in place of a connection, which copies each byte five times.

    Nothing past the body is read, so that the connection goes on with whatever comes after it.

    Args:
        connection: Which stands back until `close`.
        here: What came already.
        left: How many bytes are to come.
    """

    def __init__(self, connection: BoundedConnection, here: bytes, left: int) -> None:
        self._connection = connection
        self._here = here
        self._left = left
        self._room = memoryview(b"")
        self._filled: asyncio.Future[None] | None = None
        self._lost = False
        connection.transport.set_protocol(self)

    async def fill(self, buffer: memoryview) -> int:
        """Fills a buffer, and returns how many bytes are in it: fewer at the end, and where the caller hung up."""
        begun = min(len(self._here), len(buffer))
        buffer[:begun], self._here = self._here[:begun], self._here[begun:]
        self._room = buffer[begun : begun + self._left]
        wanted = len(self._room)
        if self._room and not self._lost:
            self._filled = asyncio.get_running_loop().create_future()
            self._connection.flow.resume_reading()
            await self._filled
        return begun + wanted - len(self._room)

    def close(self) -> None:
        """Leaves the rest to the connection. Called once."""
        self._end()
        if not self._lost:
            self._connection.give_body_back(self._left)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns where the next bytes go."""
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        """Takes note of bytes."""
        self._room = self._room[nbytes:]
        self._left -= nbytes
        self._connection.body_came(nbytes)
        if not self._room:
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Takes note that nothing more comes."""
        self._lost = True
        self._end()
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        """See `BoundedConnection`."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """See `BoundedConnection`."""
        self._connection.resume_writing()

    def _end(self) -> None:
        if not self._lost:
            self._connection.flow.pause_reading()
        if self._filled is not None and not self._filled.done():
            self._filled.set_result(None)


def bounded_by(files: int) -> type[BoundedConnection]:
    """Returns what serves the connections of a process, with a bound on them that leaves files for its other work.

    Args:
        files: How many the process may have open.
    """
    return type("BoundedConnection", (BoundedConnection,), {"connections_max": max(1, files // FILES_PART)})


def _instead_of(
    timer: asyncio.TimerHandle | None, other: asyncio.TimerHandle | None = None
) -> asyncio.TimerHandle | None:
    """Cancels a timer, and returns what takes its place."""
    if timer is not None:
        timer.cancel()
    return other
