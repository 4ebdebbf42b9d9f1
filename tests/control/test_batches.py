"""Batches of submits: all or nothing, each key once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.control.conftest import ADMIN, World

from mainspring.control.service.machines import KnownMachines
from mainspring.control.service.submits import SubmitChecks, Submits
from mainspring.control.store.records import jobs_by_id
from mainspring.control.store.secrets import SecretKeys
from mainspring.control.store.settings import Settings
from mainspring.control.store.tokens import Caller
from mainspring.domain.answers import BATCH_MAX, JobView, Submit, SubmitBatch
from mainspring.domain.errors import Conflict, ImpossibleJob, InvalidInput, MainspringError, NotAllowed, NotFound
from mainspring.domain.ids import JobId, TeamName
from mainspring.domain.job import LAB
from mainspring.domain.life import JobState
from mainspring.domain.team import Team, TeamRole
from mainspring.testing import SeededDice


def sent(world: World, *submits: Submit, caller: Caller = ADMIN) -> Sequence[JobId]:
    return world.control.submit_batch(SubmitBatch(submits=submits), caller).jobs


def names(world: World) -> list[str]:
    return sorted(job.spec.name for job in world.control.jobs(limit=1_000))


def test_batch_makes_its_jobs_and_arrays_in_order(world: World) -> None:
    first, array, last = sent(
        world,
        Submit(spec=world.spec("first"), key="a"),
        Submit(spec=world.spec("many"), key="b", count=11),
        Submit(spec=world.spec("last")),
    )
    assert [world.job(job).spec.name for job in (first, array, last)] == ["first", "many-0", "last"]
    members = world.control.jobs(array=array)
    assert [job.spec.name for job in members] == [f"many-{index}" for index in range(11)]
    assert [world.job(job).array is None for job in (first, array, last)] == [True, False, True]
    assert {event.kind for event in world.control.events(members[7].id)} == {"job_submitted"}


def test_batch_sent_again_makes_what_is_new_alone(world: World) -> None:
    a, b = (Submit(spec=world.spec(name), key=name) for name in "ab")
    (made,) = sent(world, a)
    again = sent(world, b, a)
    assert again[1] == made
    assert sent(world, b, a) == again
    assert names(world) == ["a", "b"]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"spec": {"team": TeamName("nobody")}}, NotFound),
        ({"spec": {"after": (JobId("job-none"),)}}, NotFound),
        ({"key": "first"}, Conflict),
        ({"key": "k" * 300}, InvalidInput),
        ({"key": "k\0"}, InvalidInput),
        ({"huge": 5_000}, ImpossibleJob),
    ],
)
def test_batch_with_one_submit_that_cannot_be_is_refused_whole(
    world: World, change: dict[str, object], error: type[MainspringError]
) -> None:
    world.tick()
    spec = world.spec("second", replicas=int(str(change.get("huge", 1))))
    spec = replace(spec, **change.get("spec", {}))  # type: ignore[arg-type]
    bad = Submit(spec=spec, key=str(change.get("key", "second")))
    with pytest.raises(error):
        sent(world, Submit(spec=world.spec("first"), key="first"), bad)
    assert names(world) == []


@pytest.mark.parametrize("odd", ["\0", "\n", "\u202e"])
def test_submit_under_a_key_that_cannot_be_shown_is_refused_alone(world: World, odd: str) -> None:
    submits = [Submit(spec=world.spec(name), key=key) for name, key in (("a", "a"), ("b", f"b{odd}"), ("c", "é c"))]
    first, bad, last = world.control.submit_each([(submit, ADMIN) for submit in submits])
    assert isinstance(bad, InvalidInput)
    assert "printable" in str(bad)
    assert isinstance(first, JobView)
    assert isinstance(last, JobView)
    assert names(world) == ["a", "c"]


def test_submit_that_names_what_no_database_can_hold_is_refused_alone(world: World) -> None:
    bad = replace(world.spec("b"), after=(JobId("job-\0"),))
    submits = [Submit(spec=spec) for spec in (world.spec("a"), bad, world.spec("c"))]
    told = world.control.submit_each([(submit, ADMIN) for submit in submits])
    assert isinstance(told[1], InvalidInput | NotFound)
    assert names(world) == ["a", "c"]


def test_batch_of_a_team_that_is_not_the_callers_is_refused_whole(world: World) -> None:
    world.control.people.set_team(Team(name=LAB))
    for name in ("vision", "control"):
        world.control.people.set_team(Team(name=TeamName(name), parent=LAB))
    caller = world.control.people.caller(world.token(TeamRole.MEMBER, team="vision"))
    with pytest.raises(NotAllowed):
        sent(
            world,
            *(Submit(spec=world.spec(name, team=TeamName(name))) for name in ("vision", "control")),
            caller=caller,
        )
    assert names(world) == []


@pytest.mark.parametrize("count", [0, BATCH_MAX + 1])
def test_batch_of_nothing_or_too_much_is_refused(world: World, count: int) -> None:
    with pytest.raises(InvalidInput, match=str(count)):
        SubmitBatch(submits=(Submit(spec=world.spec()),) * count)


def test_jobs_are_passed_on_to_the_loop_as_the_store_has_them(world: World) -> None:
    control, dice = world.control, SeededDice(7, "submits")
    machines, keys = KnownMachines(control.fleet, world.clusters), SecretKeys(world.keys, dice)
    checks = SubmitChecks(machines, keys, control.datasets.owners)
    submits = Submits(control.store, checks, world.clock, dice, lambda: None, settings=Settings())
    several = [Submit(spec=world.spec(name), key=name, count=3 if name == "b" else 1) for name in "abc"]
    made = [one.id for one in submits.submit(several, ADMIN)]
    made += [one.id for one in submits.submit([*several, Submit(spec=world.spec("d"))], ADMIN)][3:]
    fresh = submits.fresh.jobs.take(made)
    with control.store.read() as connection:
        stored = jobs_by_id(connection, made)
    assert [fresh[job].record for job in made] == [None if stored[job].array else stored[job] for job in made]
    assert [fresh[job].spec.name for job in made] == list("abcd")
    assert not submits.fresh.jobs.take(made)


def test_jobs_stopped_before_the_loop_has_seen_them_are_not_planned(world: World) -> None:
    world.tick()
    stopped, waits = world.submit(world.spec(replicas=3)), world.submit(world.spec(replicas=3))
    world.control.steering.stop(str(stopped), ADMIN)
    world.tick()
    newest = world.control.pictures.newest
    assert newest is not None
    assert [start.job for start in newest.plan.starts] == [waits]
    assert world.job(stopped).state is JobState.CANCELLED
