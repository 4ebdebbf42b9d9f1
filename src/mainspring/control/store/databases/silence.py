"""Connections to PostgreSQL that give up on a server which keeps them open and says nothing: one whose disk hangs.

Its own limits do not help then, and no probe of the network finds anything. Source: psycopg 3, `Connection.wait`,
through which every operation waits for the server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import psycopg
import sqlalchemy as sa
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus
from psycopg.waiting import Ready

SILENCE_S = 75.0  # Longer than the server lets a statement take, which it then tells by itself.
_LOOK_S = 0.1
Value = TypeVar("Value")


class HeardConnection(psycopg.Connection[Any]):
    """A connection whose every wait ends, after `silence_s` without a word at the latest; it is then closed."""

    silence_s = SILENCE_S

    def wait(self, gen: PQGen[Value], interval: float = _LOOK_S, *args: Any, **words: Any) -> Value:
        """Returns what an operation does."""
        try:
            return super().wait(_heard(gen, self.silence_s / interval), interval, *args, **words)
        except psycopg.OperationalError:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:  # Nothing more can be said on it.
                self.pgconn.finish()
            raise


def hear(engine: sa.Engine) -> None:
    """Has an engine's connections give up on a silent server."""

    def connect(_dialect: object, _record: object, args: list[Any], words: dict[str, Any]) -> Any:
        return HeardConnection.connect(*args, **words)

    sa.event.listen(engine, "do_connect", connect)


def be_patient(connection: sa.Connection) -> None:
    """Has a connection wait for as long as it takes; it serves nobody else afterwards."""
    cast(HeardConnection, connection.connection.driver_connection).silence_s = float("inf")
    connection.detach()


def _heard(operation: PQGen[Value], looks_max: float) -> PQGen[Value]:
    """Returns the same operation, with an end to its waiting: whoever waits sends `NONE` after each look in vain."""
    looks, send = 0, cast("Callable[[Any], Any]", operation.send)
    try:
        wanted = next(operation)
        while True:
            ready = yield wanted
            looks = looks + 1 if ready == Ready.NONE else 0
            if looks > looks_max:
                raise psycopg.OperationalError("the server keeps the connection and says nothing")
            wanted = send(ready)
    except StopIteration as over:
        return cast(Value, over.value)
