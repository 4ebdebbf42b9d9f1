"""A stream ends as streams do, whatever its server cannot read, and tells what it says in pieces."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from mainspring.control.api_streams import PIECE_BYTES_MAX, Followers, followed_events, followed_output
from mainspring.control.store.ledger import StateWriter
from mainspring.control.store.schema import REASON_LENGTH_MAX
from mainspring.control.store.tokens import Caller
from mainspring.domain.fleet import NodeRef
from mainspring.domain.ids import ClusterName, NodeName
from mainspring.domain.routes import LIST_MAX
from mainspring.domain.team import TeamRole
from mainspring.domain.wire.events.nodes import NodeOpenedEvent

if TYPE_CHECKING:
    from tests.control.conftest import World

WAIT_S = 120.0  # The longest that a slow machine is waited for.


@contextmanager
def not_answering(world: World, asked: str, *, once: Event | None = None) -> Iterator[None]:
    """A database that ends the connection whenever it is asked for something; or the first time alone."""

    def refuse(_: object, __: object, statement: str, *___: object) -> None:
        if asked in statement and not (once is not None and once.is_set()):
            if once is not None:
                once.set()
            raise sa.exc.OperationalError(statement, {}, Exception("the server closed the connection"))

    with listening(world, refuse):
        yield


@contextmanager
def listening(world: World, listen: Callable[..., None]) -> Iterator[None]:
    engine = world.control.store.engine
    sa.event.listen(engine, "before_cursor_execute", listen)
    try:
        yield
    finally:
        sa.event.remove(engine, "before_cursor_execute", listen)


class Heard(logging.Handler):
    """Says when the look at the store for all streams has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.over = Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "cut short" in record.getMessage():
            self.over.set()


async def next_of(stream: AsyncIterator[bytes]) -> bytes:
    """Returns what a stream tells next, b"" once it is over."""
    async with asyncio.timeout(WAIT_S):
        return await anext(stream, b"")


def reader(world: World) -> Caller:
    return world.control.people.caller(world.token(TeamRole.VIEWER))


@pytest.fixture
def heard() -> Iterator[Heard]:
    log, handler = logging.getLogger("mainspring.control.api_streams"), Heard()
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


def test_stream_ends_whose_first_look_fails_before_it_is_known_who_reads_it(world: World, heard: Heard) -> None:
    looked = Event()

    def wait(_: object, __: object, statement: str, *___: object) -> None:
        if "FROM tokens" in statement and not looked.is_set():
            looked.set()
            assert heard.over.wait(WAIT_S)

    caller, followers = reader(world), Followers(quiet_s=0.05)

    async def follow() -> bytes:
        return await next_of(followed_events(world.control, followers, None, caller, since=0))

    with listening(world, wait), not_answering(world, "FROM events", once=Event()):
        assert asyncio.run(follow()) == b""
    assert looked.is_set()
    assert followers.count == 0


@pytest.mark.parametrize("output", [False, True], ids=["events", "output"])
def test_stream_ends_without_a_fault_when_the_database_goes_away(world: World, output: bool) -> None:
    job, caller = world.submit(), reader(world)
    followers = Followers(quiet_s=0.05)

    async def follow() -> tuple[bytes, bytes]:
        if output:
            stream = followed_output(world.control, followers, job, caller, rank=0, since=0, attempt=None)
        else:
            stream = followed_events(world.control, followers, job, caller, since=0)
        first = await next_of(stream)
        with not_answering(world, "FROM jobs"):
            while last := await next_of(stream):
                pass
        return first, last

    first, last = asyncio.run(follow())
    assert (first != b"", last) == (True, b"")
    assert (followers.count, followers.outputs) == (0, 0)


def test_reader_who_is_behind_is_told_much_in_pieces_that_go_on_where_they_end(world: World) -> None:
    words = "x" * REASON_LENGTH_MAX  # As long as any that an event keeps.
    count = 3 * PIECE_BYTES_MAX // len(words)
    assert count < LIST_MAX, "they are read at once"
    world.submit()
    since, caller = world.newest(), reader(world)
    with world.control.store.write() as connection:
        writer = StateWriter(connection, world.clock.now_s())
        for number in range(count):
            at = NodeRef(cluster=ClusterName("east"), node=NodeName(f"n{number}"))
            opened = NodeOpenedEvent(cluster=at.cluster, node=at.node, closure="cordon", by="ada", reason=words)
            writer.event(opened, job=None)

    async def follow() -> list[bytes]:
        followers = Followers(quiet_s=0.05, kept_max=1)
        stream = followed_events(world.control, followers, None, caller, since=since)
        pieces: list[bytes] = []
        while b"".join(pieces).count(b"data: ") < count:
            pieces.append(await next_of(stream))
        return pieces

    told = [piece for piece in asyncio.run(follow()) if b"data: " in piece]
    assert max(map(len, told)) < PIECE_BYTES_MAX + 2 * len(words)
    assert [f'"n{number}"'.encode() in b"".join(told) for number in range(count)] == [True] * count
    assert b"".join(told).count(b"data: ") == count
