"""A profile is asked for of ranks that run, and told to their lead while the wish is fresh."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mainspring.control.service.agents import PROFILE_FRESH_S
from mainspring.control.store.tokens import Caller
from mainspring.domain.answers import NewProfile
from mainspring.domain.errors import Conflict, InvalidInput, NotAllowed, NotFound
from mainspring.domain.job import LAB
from mainspring.domain.team import TeamRole

if TYPE_CHECKING:
    from tests.control.conftest import World


def test_lead_is_told_of_a_profile_that_is_wanted_until_the_wish_is_old(world: World) -> None:
    job = world.submit()
    with pytest.raises(Conflict, match="one that runs"):
        world.control.profiling.ask(job, NewProfile())
    world.run(job)
    assert world.beat(job).profile is None
    asked = world.control.profiling.ask(job, NewProfile(steps=3))
    told = world.beat(job).profile
    assert told is not None
    assert (told.id, told.steps, told.ranks) == (asked.id, 3, (0,))
    assert world.beat(job).profile == told
    world.clock.advance(PROFILE_FRESH_S)
    assert world.beat(job).profile is None


def test_profile_of_a_rank_that_is_not_there_or_of_somebody_elses_job_is_refused(world: World) -> None:
    job = world.submit()
    world.run(job)
    with pytest.raises(NotFound, match="rank 7"):
        world.control.profiling.ask(job, NewProfile(ranks=(7,)))
    other = Caller(role=TeamRole.MEMBER, team=LAB, holder="ben")
    with pytest.raises(NotAllowed):
        world.control.profiling.ask(job, NewProfile(), other)


@pytest.mark.parametrize("fields", [{"steps": 0}, {"steps": 1_001}, {"ranks": ()}, {"ranks": (0, 0)}])
def test_profile_out_of_range_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        NewProfile(**fields)  # type: ignore[arg-type]
