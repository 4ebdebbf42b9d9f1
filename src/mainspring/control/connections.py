"""Connections that do not last for nothing: who begins a request and does not go on with it is hung up on."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class BoundedConnection(H11Protocol):
    """uvicorn's connection, with an end to its patience. Source: Slowloris (R. Hansen, 2009) is what it is against."""

    head_s_max = 10.0  # From a connection's first moment, or a request's first byte, until its head is there.
    body_s_max = 30.0  # Between two pieces of a body, while somebody reads it.

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head: asyncio.TimerHandle | None = None
        self._body: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait for a request."""
        super().connection_made(transport)
        self._head = self.loop.call_later(self.head_s_max, self._hang_up)

    def data_received(self, data: bytes) -> None:
        """Takes bytes; the time for a head does not begin anew with each of them, that for a body does."""
        super().data_received(data)
        begun = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        if not begun:
            self._head = _instead_of(self._head)
        elif self._head is None:
            self._head = self.loop.call_later(self.head_s_max, self._hang_up)
        more = self.conn.their_state is h11.SEND_BODY
        self._body = _instead_of(self._body, self.loop.call_later(self.body_s_max, self._body_late) if more else None)

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
