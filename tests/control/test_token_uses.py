"""When tokens were last used: no call waits until it is written, and it is written."""

from __future__ import annotations

from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest
from sqlalchemy.exc import DBAPIError

from mainspring.control.store.tokens import people_tokens, write_uses
from mainspring.domain.answers import NewToken
from mainspring.domain.errors import Busy

if TYPE_CHECKING:
    from tests.control.conftest import World


def test_a_caller_is_let_in_while_somebody_else_writes_and_the_use_is_written_after_it(world: World) -> None:
    people, store = world.control.people, world.control.store
    made = people.new_token(NewToken(holder="ada"))
    let_in = Event()

    def enter() -> None:
        people.caller(made.secret)
        let_in.set()

    with store.write():
        Thread(target=enter, daemon=True).start()
        assert let_in.wait(60.0), "a look waits for whoever writes"
    assert _used_s(world, made.token.id) is None
    people.write_uses()
    assert _used_s(world, made.token.id) == world.clock.now_s()


def test_uses_that_the_store_does_not_take_are_written_the_next_time(world: World) -> None:
    people = world.control.people
    made = people.new_token(NewToken(holder="ada"))
    people.caller(made.secret)
    used_s = world.clock.now_s()
    with world.control.store.write() as connection:
        connection.exec_driver_sql("ALTER TABLE tokens RENAME TO gone")
    with pytest.raises((DBAPIError, Busy)):  # As either database has it.
        people.write_uses()
    with world.control.store.write() as connection:
        connection.exec_driver_sql("ALTER TABLE gone RENAME TO tokens")
    assert people.tokens()[0].used_s == used_s
    people.write_uses()
    assert _used_s(world, made.token.id) == used_s


def test_use_that_another_server_wrote_since_is_kept(world: World) -> None:
    people = world.control.people
    made = people.new_token(NewToken(holder="ada"))
    people.caller(made.secret)
    later_s = world.clock.now_s() + 5.0
    with world.control.store.write() as connection:
        write_uses(connection, {made.token.id: later_s})
    people.write_uses()
    assert _used_s(world, made.token.id) == later_s


def _used_s(world: World, token: str) -> float | None:
    """Returns what the store says, whatever a server knows beside it."""
    with world.control.store.read() as connection:
        return next(one.used_s for one in people_tokens(connection) if one.id == token)
