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
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mainspring.domain.answers import PROBLEM_TYPE, problem_of
from mainspring.domain.codec import encode
from mainspring.domain.errors import Conflict, InvalidInput, InvalidMessage, NotAllowed
from mainspring.domain.wire.trust import is_loopback

BACKLOG = 2_048  # A thousand agents register within one second of a start.
HEAD_BYTES_MAX = 64 << 10  # As much as h11 and nginx take, near enough; the parser itself knows no bound.
FILES_PART = 2  # One open file in so many is a connection; of the rest, half may be accepted in one moment.
FILES_USUAL = 1_024  # Of a process, where nobody says otherwise.


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
        super().data_received(data)
        serving = bool(self.cycle) and not self.cycle.response_complete
        if self._reading is _Reading.BODY or (self._reading is _Reading.NOTHING and serving):
            self._head, self._head_bytes = _instead_of(self._head), 0
        else:  # Of a head, or of nothing: bytes between requests keep no connection open.
            self._head_bytes += len(data)
            self._head = self._head or self.loop.call_later(self.head_s_max, self._hang_up)
        if self._head_bytes > HEAD_BYTES_MAX:
            self._hang_up()
        self._body_bytes += len(data)
        if self._reading is not _Reading.BODY:
            self._body = _instead_of(self._body)
        elif self._body is None or (self._body_bytes >= self.body_bytes_least and not self.cycle.response_complete):
            self._body = _instead_of(self._body, self.loop.call_later(self.body_s_max, self._body_late))
            self._body_bytes = 0

    def on_message_begin(self) -> None:
        """Waits for the rest of a head."""
        self._reading = _Reading.HEAD
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Waits for a body."""
        self._reading = _Reading.BODY
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Waits for nothing more."""
        self._reading = _Reading.NOTHING
        super().on_message_complete()

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
