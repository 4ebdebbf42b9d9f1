"""Lists of jobs: filtered, in pages to the first job ever, counted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.control.conftest import World

from mainspring.control.store.tokens import Caller
from mainspring.domain.answers import JobView, Submit
from mainspring.domain.errors import NotFound
from mainspring.domain.ids import TeamName
from mainspring.domain.job import LAB
from mainspring.domain.life import JobState
from mainspring.domain.team import Team, TeamRole

ARMS = TeamName("arms")


def pages(world: World, size: int, *, state: JobState | None = None, array: str | None = None) -> Iterator[JobView]:
    after = None
    while page := world.control.jobs(state=state, array=array, after=after, limit=size):
        yield from page
        after = page[-1].id


@pytest.fixture
def listed(world: World) -> World:
    """Jobs and arrays, some of which run."""
    for index in range(4):
        world.submit(world.spec(f"one-{index}"))
        world.submit(world.spec(f"many-{index}", replicas=3), count=5)
    world.tick(3)
    return world


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize("state", [None, JobState.QUEUED, JobState.STARTING])
def test_list_in_pages_is_the_list_with_each_array_once(listed: World, size: int, state: JobState | None) -> None:
    whole = listed.control.jobs(state=state, limit=100)
    assert [job.id for job in pages(listed, size, state=state)] == [job.id for job in whole]
    arrays = [job.array.first for job in whole if job.array is not None]
    assert len(arrays) == len(set(arrays)) > 0
    assert len(whole) == 8 or state is not None


@pytest.mark.parametrize("size", [1, 2, 5])
def test_array_in_pages_is_every_job_of_it_in_order(listed: World, size: int) -> None:
    first = next(job.array.first for job in listed.control.jobs() if job.array is not None)
    assert [job.array and job.array.index for job in pages(listed, size, array=first)] == [0, 1, 2, 3, 4]


def test_list_goes_on_after_a_job_only_where_there_is_one(listed: World) -> None:
    with pytest.raises(NotFound):
        listed.control.jobs(after="nobody")


def test_jobs_are_listed_and_counted_by_who_submitted_them_and_whose_they_are(world: World) -> None:
    for team in (Team(name=LAB), Team(name=ARMS, parent=LAB)):
        world.control.people.set_team(team)
    ada, bo = (Caller(role=TeamRole.MEMBER, team=ARMS, holder=name) for name in ("ada", "bo"))
    stranger = Caller(role=TeamRole.VIEWER, team=TeamName("legs"), holder="eve")
    for caller, count in ((ada, 1), (bo, 3)):
        world.control.submit(Submit(spec=world.spec("own", team=ARMS), count=count), caller)
    world.submit()
    assert [job.owner for job in world.control.jobs(owner="ada")] == ["ada"]
    assert [job.owner for job in world.control.jobs(team=ARMS)] == ["bo", "ada"]
    assert world.control.job_counts().states == {"queued": 5}
    assert world.control.job_counts(owner="bo").states == {"queued": 3}
    assert world.control.job_counts(bo).states == {"queued": 4}
    assert world.control.job_counts(stranger).states == {}
    world.tick(3)
    assert sum(world.control.job_counts().states.values()) == 5
