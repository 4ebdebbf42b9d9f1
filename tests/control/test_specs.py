"""How often a spec's text is read: once by the API, which passes on what it read, and once for an agent's orders."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from tests.control.living import ask

from mainspring.control.service.submits import SPEC_BYTES_MAX
from mainspring.control.store.records import text_of
from mainspring.control.store.schema import jobs
from mainspring.domain import codec
from mainspring.domain.answers import Submit
from mainspring.domain.errors import Conflict, InvalidInput
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


def test_spec_is_read_once_at_most_for_an_agents_orders(world: World) -> None:
    job = world.submit(world.spec(replicas=2))
    world.tick(2)
    ((name, order),) = world.orders_of(job).items()
    for node in (*order.nodes, *order.nodes):
        assert specs_made(partial(ask, world, name, order, node)) <= 1  # None where it was read before.


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


def test_spec_of_more_than_a_mebibyte_is_refused_and_nothing_is_kept(world: World) -> None:
    spec = world.spec()
    large = replace(spec, roles=tuple(replace(role, environment={"X": "x" * SPEC_BYTES_MAX}) for role in spec.roles))
    with pytest.raises(InvalidInput, match="at most 1048576"):
        world.control.submit(Submit(spec=large))
    assert world.control.jobs() == ()


def test_list_of_large_specs_is_small_and_a_look_at_one_job_shows_all_of_it(world: World) -> None:
    spec = world.spec()
    wide = replace(
        spec,
        roles=tuple(
            replace(role, command=("train", "x" * 60_000), environment={"X": "x" * 900_000}) for role in spec.roles
        ),
        inputs=("recordings",),
    )
    ids = [world.submit(wide) for _ in range(20)]
    listed = world.control.jobs()
    assert [view.id for view in listed] == ids[::-1]
    assert len(codec.encode(listed)) < 100_000
    assert listed[0].spec.roles[0].options == wide.roles[0].options
    assert listed[0].spec.roles[0].command == ("train",)
    assert world.control.job(ids[0]).spec == wide
