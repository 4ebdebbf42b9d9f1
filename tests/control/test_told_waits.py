"""Why jobs wait is written some at a time, and what fails half-way is told again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from mainspring.control.store.schema import whys
from mainspring.domain.errors import Unavailable

if TYPE_CHECKING:
    from tests.control.conftest import World

JOBS, SOME = 1_200, 100


def _told(connection: sa.Connection) -> int:
    return int(connection.execute(sa.select(sa.func.count()).select_from(whys)).scalar_one())


@contextmanager
def _grown(world: World, *, fails_at: int = 0) -> Iterator[list[int]]:
    """Yields how many jobs each transaction told why they wait; one of them fails, counted from 1."""
    sizes: list[int] = []
    with world.control.store.read() as connection:
        known = _told(connection)

    def note(connection: sa.Connection) -> None:
        nonlocal known
        grown = _told(connection) - known
        if grown <= 0:
            return
        sizes.append(grown)
        if len(sizes) == fails_at:
            raise Unavailable("write the store", got="a cable that was cut")
        known += grown

    sa.event.listen(world.control.store.engine, "commit", note)
    yield sizes
    sa.event.remove(world.control.store.engine, "commit", note)


@pytest.mark.slow
def test_why_many_jobs_wait_is_told_in_transactions_of_some(world: World) -> None:
    world.submit(world.spec("wide", replicas=9), count=JOBS)
    with _grown(world) as sizes:
        world.tick()
    assert (sum(sizes), max(sizes)) == (JOBS, SOME)


@pytest.mark.slow
def test_what_was_not_told_for_a_failure_is_told_by_the_next_plan(world: World) -> None:
    world.submit(world.spec("wide", replicas=9), count=JOBS)
    with _grown(world, fails_at=2), pytest.raises(Unavailable):
        world.tick()
    with _grown(world) as sizes:
        world.tick(2)
    assert sum(sizes) == JOBS - SOME
    with world.control.store.read() as connection:
        assert _told(connection) == JOBS
