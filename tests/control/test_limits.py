"""Limits on what waits: of a person in all teams, of a team with those below it, of the lab."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from mainspring.control import Caller, Settings
from mainspring.control.store.records import JOB_LIVE
from mainspring.control.store.schema import jobs, tallies
from mainspring.control.store.tallies import counts_of_arrays
from mainspring.domain.answers import RecordingClaim, Submit, SubmitBatch
from mainspring.domain.errors import LimitReached, MainspringError, NotAllowed
from mainspring.domain.ids import JobId, TeamName
from mainspring.domain.job import LAB
from mainspring.domain.life import AttemptState
from mainspring.domain.team import Team, TeamRole, WaitingLimits

if TYPE_CHECKING:
    from tests.control.conftest import World

ARMS, GRASP, VISION = TeamName("arms"), TeamName("grasp"), TeamName("vision")


@pytest.fixture
def teams(world: World) -> World:
    """Arms with a team below it may have four jobs; anybody five; any other team seven."""
    world.restart(settings=Settings(limits=WaitingLimits(person_jobs=5, person_bytes=100, team_jobs=7, team_bytes=150)))
    world.control.people.set_team(Team(name=TeamName(LAB)))
    world.control.people.set_team(Team(name=ARMS, parent=TeamName(LAB), jobs_max=4, bytes_max=120))
    world.control.people.set_team(Team(name=GRASP, parent=ARMS))
    world.control.people.set_team(Team(name=VISION, parent=TeamName(LAB)))
    return world


def person(name: str, team: TeamName = LAB) -> Caller:
    return Caller(role=TeamRole.MEMBER, team=team, holder=name)


def send(world: World, caller: Caller, team: TeamName, count: int = 1, *, key: str = "", word: str = "") -> str:
    spec = world.spec()
    role = replace(spec.roles[0], environment={"WORD": word})
    return world.control.submit(Submit(spec=replace(spec, team=team, roles=(role,)), count=count, key=key), caller).id


def refused(world: World, caller: Caller, team: TeamName, count: int = 1, *, word: str = "") -> MainspringError:
    with pytest.raises(LimitReached) as caught:
        send(world, caller, team, count, word=word)
    return caught.value


def test_person_at_the_limit_is_told_whose_it_is_and_may_go_on_once_a_job_has_ended(teams: World) -> None:
    ada = person("ada")
    first = send(teams, ada, VISION)
    send(teams, ada, ARMS, 3)
    send(teams, ada, VISION, key="last")
    error = refused(teams, ada, TeamName(LAB))
    assert (error.on, error.wanted) == ("person 'ada'", "at most 5")
    assert error.got == "1 more beside 5 jobs that have not ended"
    assert "limits in the server's config.yaml" in error.next_step
    assert send(teams, ada, VISION, key="last")  # Made before: it is no more.
    send(teams, person("bo"), VISION)
    teams.control.steering.stop(first)
    send(teams, ada, VISION)
    refused(teams, ada, VISION)


def test_team_at_the_limit_takes_no_more_from_anybody_below_it_either(teams: World) -> None:
    send(teams, person("ada"), GRASP, 2)
    send(teams, person("bo"), ARMS, 2)
    for caller, team in ((person("cy"), GRASP), (person("cy"), ARMS), (person("cy", GRASP), GRASP)):
        error = refused(teams, caller, team)
        assert error.on == "team 'arms' and those below it"
        assert "ms team set arms --jobs-max" in error.next_step
    send(teams, person("cy"), VISION, 5)
    send(teams, person("di"), VISION, 2)
    assert refused(teams, person("di"), VISION).wanted == "at most 7"  # The lab's default.
    send(teams, person("di"), TeamName(LAB), 2)  # The top has none.


def test_batch_beyond_a_limit_is_refused_whole(teams: World) -> None:
    submits = [Submit(spec=replace(teams.spec(f"job-{index}"), team=VISION)) for index in range(6)]
    with pytest.raises(LimitReached, match="6 more beside 0"):
        teams.control.submit_batch(SubmitBatch(submits=tuple(submits)), person("ada"))
    assert not teams.control.jobs()
    teams.control.submit_batch(SubmitBatch(submits=tuple(submits[:5])), person("ada"))


def test_specs_that_are_long_beyond_measure_count_too(teams: World) -> None:
    long = "x" * 30_000
    for _ in range(2):
        send(teams, person("ada"), VISION, word=long)
    error = refused(teams, person("ada"), VISION, word=long)
    assert "letters of their specs" in error.got


def test_what_no_person_submits_has_the_limits_of_its_team_alone(teams: World) -> None:
    nobody = Caller(role=TeamRole.ADMIN, team=TeamName(LAB))
    send(teams, nobody, VISION, 6)
    refused(teams, nobody, VISION, 2)


def test_admin_of_a_team_sets_limits_below_it_and_not_its_own(teams: World) -> None:
    admin = Caller(role=TeamRole.ADMIN, team=ARMS, holder="ada")
    with pytest.raises(NotAllowed):
        teams.control.people.set_team(Team(name=ARMS, parent=TeamName(LAB), jobs_max=1_000), admin)
    teams.control.people.set_team(Team(name=GRASP, parent=ARMS, jobs_max=1), admin)
    send(teams, admin, GRASP)
    assert refused(teams, admin, GRASP).on == "team 'grasp' and those below it"


def test_tallies_are_what_counting_finds_whatever_jobs_go_through(teams: World) -> None:
    def agrees() -> None:
        with teams.control.store.read() as connection:
            counted = (jobs.c.owner, jobs.c.team, sa.func.count(), sa.func.sum(sa.func.length(jobs.c.spec)))
            live = sa.select(*counted).where(jobs.c.state.in_(JOB_LIVE)).group_by(jobs.c.owner, jobs.c.team)
            held = (tallies.c.owner, tallies.c.team, tallies.c.jobs, tallies.c.letters)
            kept = sa.select(*held).where(sa.or_(tallies.c.jobs != 0, tallies.c.letters != 0))
            assert sorted(map(tuple, connection.execute(kept))) == sorted(map(tuple, connection.execute(live)))
            for column, some in ((jobs.c.owner, ("", "ada", "bo")), (jobs.c.team, (ARMS, VISION, LAB))):
                for one in some:
                    told = teams.control.job_counts(**{column.name: one}).states  # type: ignore[arg-type]
                    assert told == states_of(connection, column == one)
            first = JobId(array)
            assert counts_of_arrays(connection, [first])[first] == states_of(connection, jobs.c.array_id == first)

    def states_of(connection: sa.Connection, which: sa.ColumnElement[bool]) -> dict[str, int]:
        query = sa.select(jobs.c.state, sa.func.count().label("size")).where(which).group_by(jobs.c.state)
        return {row.state: row.size for row in connection.execute(query)}

    ada, bo = person("ada"), person("bo")
    ends = teams.submit()
    array = send(teams, ada, ARMS, 3)
    other = send(teams, bo, VISION, word="\u00e9\u4e2d\U0001f600")
    agrees()
    teams.tick(2)
    teams.register(ends)
    teams.beat(ends, outcome=AttemptState.SUCCEEDED)
    teams.tick(4)
    assert teams.job(ends).ended_s is not None
    agrees()
    teams.control.steering.stop(array, array=True)
    teams.control.steering.stop(other)
    teams.tick(4, seconds=60)
    agrees()


def test_teams_and_people_see_what_they_have_waiting(teams: World) -> None:
    ada = person("ada")
    send(teams, ada, GRASP, 2)
    claimed = [
        RecordingClaim(holder="ada", team=GRASP, size_bytes=30),
        RecordingClaim(holder="bo", team=ARMS, size_bytes=5),
    ]
    seen = {view.team.name: view.waiting for view in teams.control.people.teams(claimed=claimed)}
    told = {name: (one.jobs, one.jobs_max, one.bytes, one.bytes_max) for name, one in seen.items() if one is not None}
    assert told == {
        LAB: (2, None, 35, None),
        ARMS: (2, 4, 35, 120),
        GRASP: (2, 7, 30, 150),
        VISION: (0, 7, 0, 150),
    }
    own = teams.control.people.whoami(ada, claimed=claimed).waiting
    assert own is not None
    assert (own.jobs, own.jobs_max, own.bytes, own.bytes_max) == (2, 5, 30, 100)


def test_recordings_beyond_the_bytes_of_a_person_or_a_team_are_refused(teams: World) -> None:
    def admit(caller: Caller, size_bytes: int) -> None:
        teams.control.people.admit(caller, claimed, size_bytes)

    claimed = [
        RecordingClaim(holder="ada", team=GRASP, size_bytes=90),
        RecordingClaim(holder="bo", team=VISION, size_bytes=60),
    ]
    admit(person("ada", ARMS), 10)
    with pytest.raises(LimitReached, match="person 'ada'"):
        admit(person("ada", ARMS), 11)
    with pytest.raises(LimitReached, match="team 'arms' and those below it"):
        admit(person("cy", GRASP), 31)
    admit(person("cy", GRASP), 30)
    with pytest.raises(LimitReached, match="ms team set vision --bytes-max"):
        admit(person("cy", VISION), 91)
