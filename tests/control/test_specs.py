"""How often a spec's text is read: once by the API, which passes on what it read, and once for an agent's orders."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from tests.control.living import ask

from mainspring.control.store.records import text_of
from mainspring.control.store.schema import jobs
from mainspring.domain import codec
from mainspring.domain.answers import Submit
from mainspring.domain.errors import Conflict
from mainspring.domain.job import JobSpec

if TYPE_CHECKING:
    from tests.control.conftest import World


def specs_made(act: Callable[[], object]) -> int:
    """How many specs are made, by reading or copying one, while something is done."""
    made = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal made
        made += event == "call" and frame.f_code is JobSpec.__post_init__.__code__

    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(None)
    return made


def test_spec_of_a_submit_is_read_once(world: World) -> None:
    body = codec.encode(Submit(spec=world.spec(), key="mine"))

    def submit() -> None:
        world.control.submit(codec.decode(Submit, body), world.admin)

    assert specs_made(submit) == 1
    assert specs_made(submit) == 1  # The key made a job already, of the same spec.


def test_spec_is_read_once_for_an_agents_orders(world: World) -> None:
    job = world.submit(world.spec(replicas=2))
    world.tick(2)
    ((name, order),) = world.orders_of(job).items()
    for node in (*order.nodes, *order.nodes):
        assert specs_made(partial(ask, world, name, order, node)) == 1


def test_key_of_a_spec_that_an_older_version_wrote_otherwise_finds_its_job(world: World) -> None:
    spec = world.spec()
    job = world.submit(spec, key="mine")
    plain = codec.to_plain(spec)
    del plain["begins_from"]
    with world.control.store.write() as connection:
        connection.execute(sa.update(jobs).values(spec=text_of(plain)))
    assert world.submit(spec, key="mine") == job
    with pytest.raises(Conflict):
        world.submit(world.spec("other"), key="mine")
