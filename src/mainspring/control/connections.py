"""Connections that do not last for nothing: who begins a request and does not go on with it is hung up on."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES_MAX = 64 << 10  # As much as h11 and nginx take, near enough; the parser itself knows no bound.


class _Reading(Enum):
    """What the next bytes are expected to be of."""

    NOTHING = "nothing"
    HEAD = "head"
    BODY = "body"


class BoundedConnection(HttpToolsProtocol):
    """uvicorn's connection, with an end to its patience. Source: Slowloris (R. Hansen, 2009) is what it is against."""

    head_s_max = 10.0  # From a connection's first moment, or a request's first byte, until its head is there.
    body_s_max = 30.0  # Between two pieces of a body, while somebody reads it.

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._reading = _Reading.NOTHING
        self._head_bytes = 0
        self._head: asyncio.TimerHandle | None = None
        self._body: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait for a request."""
        super().connection_made(transport)
        self._head = self.loop.call_later(self.head_s_max, self._hang_up)

    def data_received(self, data: bytes) -> None:
        """Takes bytes; the time for a head does not begin anew with each of them, that for a body does."""
        super().data_received(data)
        serving = bool(self.cycle) and not self.cycle.response_complete
        if self._reading is _Reading.BODY or (self._reading is _Reading.NOTHING and serving):
            self._head, self._head_bytes = _instead_of(self._head), 0
        else:  # Of a head, or of nothing: bytes between requests keep no connection open.
            self._head_bytes += len(data)
            self._head = self._head or self.loop.call_later(self.head_s_max, self._hang_up)
        if self._head_bytes > HEAD_BYTES_MAX:
            self._hang_up()
        more = self._reading is _Reading.BODY
        self._body = _instead_of(self._body, self.loop.call_later(self.body_s_max, self._body_late) if more else None)

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

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits for nothing more."""
        self._head, self._body = _instead_of(self._head), _instead_of(self._body)
        super().connection_lost(exc)

    def _body_late(self) -> None:
        if self.flow.read_paused:  # It is not the caller who is late.
            self._body = self.loop.call_later(self.body_s_max, self._body_late)
        else:
            self._hang_up()

    def _hang_up(self) -> None:
        self.transport.close()


def _instead_of(
    timer: asyncio.TimerHandle | None, other: asyncio.TimerHandle | None = None
) -> asyncio.TimerHandle | None:
    """Cancels a timer, and returns what takes its place."""
    if timer is not None:
        timer.cancel()
    return other
