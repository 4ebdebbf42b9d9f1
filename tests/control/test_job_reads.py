"""Jobs that read checkpoints of others, as replicas and evaluations do: who may, and what their ranks get for it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.control.granting import Given

from mainspring.control import LAB_ITSELF, Caller, Settings
from mainspring.control.service.evaluations.carrying import spec_of
from mainspring.control.service.machines import KnownMachines
from mainspring.control.service.stored.access import granted
from mainspring.control.service.submits import SubmitChecks, Submits
from mainspring.control.store.secrets import SecretKeys
from mainspring.domain.answers import EvaluationRuleView, NewEvaluationRule, NewScale, NewService, Submit
from mainspring.domain.answers.jobs import CHECKPOINT
from mainspring.domain.errors import InvalidInput, NotAllowed, NotFound
from mainspring.domain.ids import JobId, TeamName
from mainspring.domain.job import LAB, JobKind, JobSpec
from mainspring.domain.life import AttemptState
from mainspring.domain.team import Team, TeamRole
from mainspring.domain.wire import CredentialsWanted, ViewCredentialsWanted
from mainspring.objects import Access
from mainspring.objects.sts import RoleSessions
from mainspring.testing import SeededDice

if TYPE_CHECKING:
    from tests.control.conftest import World

VISION, ARMS = TeamName("vision"), TeamName("arms")
RELEASE = f"release:{'a' * 64}"


@pytest.fixture
def teams(world: World) -> World:
    for name, parent in ((TeamName(LAB), None), (VISION, LAB), (ARMS, LAB)):
        world.control.people.set_team(Team(name=name, parent=parent))
    return world


def _caller(world: World, team: str, role: TeamRole = TeamRole.MEMBER) -> Caller:
    return world.control.people.caller(world.token(role, team=team, holder=f"{role.value}-{team}"))


def _ranks_get(world: World, spec: JobSpec, grants: Given) -> Access:
    """Runs a job and asks for what its ranks may do, as its agent does for them."""
    job = world.submit(spec)
    world.run(job)
    order = next(iter(world.orders_of(job).values()))
    caller = world.control.entered(order.token, attempt=order.attempt)
    wanted = ViewCredentialsWanted(allocation=order.allocation, view="")
    granted(world.control.store, wanted, caller, grants=grants, owners=world.control.datasets.owners)
    return grants.asked[-1]


def test_ranks_get_what_their_spec_names_to_read_and_never_what_their_agent_may_write(teams: World) -> None:
    grants, trained = Given(), teams.submit(teams.spec("trained", team=ARMS, views=("a-view",)))
    reads = _ranks_get(teams, teams.spec("serves", team=ARMS, reads=(f"{trained}@7", "imported", RELEASE)), grants)
    assert reads == Access(reads=(f"checkpoints/{trained}", "checkpoints/imported"), named=("artifacts",))
    evaluates = _ranks_get(teams, teams.spec("evaluates", team=ARMS, evaluates=f"{trained}@7"), grants)
    assert evaluates.writes == (f"checkpoints/{trained}/evaluations/7",)
    assert evaluates.reads == (f"checkpoints/{trained}", "golden/a-view")  # With what it learned from.
    assert evaluates.objects == ("views/a-view.json",)
    with pytest.raises(NotFound, match="names none"):
        _ranks_get(teams, teams.spec("plain", team=ARMS, views=("a-view",)), grants)
    assert len(grants.asked) == 2


def test_jobs_name_checkpoints_that_their_submitter_and_their_team_may_read(teams: World) -> None:
    control, arms, lab = teams.control, _caller(teams, ARMS), _caller(teams, LAB, TeamRole.ADMIN)
    theirs = teams.submit(teams.spec("theirs", team=VISION))
    every: tuple[dict[str, object], ...] = (
        {"reads": (theirs,)},
        {"reads": (f"{theirs}@7",)},
        {"evaluates": f"{theirs}@7"},
        {"begins_from": theirs},
        {"begins_from": f"{theirs}@7"},
    )
    for named in every:
        spec = replace(teams.spec("mine", team=ARMS), **named)  # type: ignore[arg-type]
        with pytest.raises(NotFound, match=f"field '{next(iter(named))}'"):
            control.submit(Submit(spec=spec), arms)
        served = replace(spec, kind=JobKind.SERVICE)
        with pytest.raises(NotFound):
            control.services.make(NewService(spec=served, scale=NewScale(replicas=1)), arms)
        with pytest.raises(NotAllowed, match="people of team 'arms' may not"):
            control.submit(Submit(spec=spec), lab)
    control.people.set_team(Team(name=VISION, parent=TeamName(LAB), open=True))
    for named in every:
        spec = replace(teams.spec("mine", team=ARMS), **named)  # type: ignore[arg-type]
        control.submit(Submit(spec=spec), arms)


def test_an_evaluation_of_an_open_teams_checkpoint_reads_it_and_keeps_nothing_with_it(teams: World) -> None:
    theirs = teams.submit(teams.spec("theirs", team=VISION))
    teams.control.people.set_team(Team(name=VISION, parent=TeamName(LAB), open=True))
    access = _ranks_get(teams, teams.spec("mine", team=ARMS, evaluates=f"{theirs}@7"), Given())
    assert access == Access(reads=(f"checkpoints/{theirs}",))


def test_a_team_that_is_open_no_more_is_read_no_more(teams: World) -> None:
    control, grants = teams.control, Given()
    theirs = teams.submit(teams.spec("theirs", team=VISION))
    control.people.set_team(Team(name=VISION, parent=TeamName(LAB), open=True))
    job = control.submit(Submit(spec=teams.spec("mine", team=ARMS, reads=(theirs,))), _caller(teams, ARMS)).id
    teams.run(job)
    order = next(iter(teams.orders_of(job).values()))
    caller = control.entered(order.token, attempt=order.attempt)
    wanted = ViewCredentialsWanted(allocation=order.allocation, view="")
    granted(control.store, wanted, caller, grants=grants, owners=control.datasets.owners)
    control.people.set_team(Team(name=VISION, parent=TeamName(LAB)))
    with pytest.raises(NotAllowed, match="may not read"):
        granted(control.store, wanted, caller, grants=grants, owners=control.datasets.owners)


def test_an_attempt_gets_sessions_of_the_store_while_it_stops_and_none_once_it_is_over(teams: World) -> None:
    control, trained = teams.control, teams.submit(teams.spec("trained", team=ARMS))
    job = teams.submit(teams.spec("mine", team=ARMS, reads=(trained,)))
    teams.run(job)
    order = next(iter(teams.orders_of(job).values()))
    caller = control.entered(order.token, attempt=order.attempt)
    wanted = (
        CredentialsWanted(allocation=order.allocation),
        ViewCredentialsWanted(allocation=order.allocation, view=""),
    )

    def ask(each: CredentialsWanted | ViewCredentialsWanted) -> None:
        granted(control.store, each, caller, grants=Given(), owners=control.datasets.owners)

    teams.beat(job, outcome=AttemptState.SUCCEEDED)
    assert teams.job(job).attempts[-1].state is AttemptState.STOPPING
    for each in wanted:
        ask(each)
    teams.tick(3)
    assert teams.job(job).attempts[-1].state is AttemptState.SUCCEEDED
    for each in wanted:
        with pytest.raises(NotAllowed, match="that is succeeded"):
            ask(each)


def test_a_job_begins_from_what_its_team_may_read_and_saves_on_where_it_may_no_more(teams: World) -> None:
    control, grants, open_team = teams.control, Given(), Team(name=VISION, parent=TeamName(LAB), open=True)
    theirs = teams.submit(teams.spec("theirs", team=VISION))
    control.people.set_team(open_team)
    spec = teams.spec("mine", team=ARMS, begins_from=f"{theirs}@7", views=("a-view",))
    job = control.submit(Submit(spec=spec), _caller(teams, ARMS)).id
    teams.tick(2)
    teams.register(job)
    order = next(iter(teams.orders_of(job).values()))
    caller = control.entered(order.token, attempt=order.attempt)
    wanted = (
        CredentialsWanted(allocation=order.allocation),
        ViewCredentialsWanted(allocation=order.allocation, view="a-view"),
    )

    def reads() -> list[tuple[str, ...]]:
        for each in wanted:
            granted(control.store, each, caller, grants=grants, owners=control.datasets.owners)
        return [access.reads for access in grants.asked[-2:]]

    golden = "golden/a-view"
    assert reads() == [(f"checkpoints/{theirs}",), (f"checkpoints/{theirs}", golden)]
    control.people.set_team(replace(open_team, open=False))
    with pytest.raises(NotAllowed, match="may not read"):
        reads()
    teams.beat(job, step=3)
    assert reads() == [(), (golden,)]
    assert grants.asked[-2].writes == (f"checkpoints/{job}",)


def test_more_than_one_session_can_be_for_is_refused_before_a_chip_is_held(world: World) -> None:
    control, dice = world.control, SeededDice(7, "submits")
    folder = (
        "a-long-folder-below-that-everybody-of-the-lab-knows-by-heart/and-another-one/and-a-third-one-too-after-all"
    )
    role = "arn:aws:iam::123456789012:role/mainspring-agents"
    grants = RoleSessions(f"s3://{'b' * 63}/{folder}", role=role, region="us-east-1", options={})
    checks = SubmitChecks(
        KnownMachines(control.fleet, world.clusters), SecretKeys(world.keys, dice), control.datasets.owners, grants
    )
    submits = Submits(control.store, checks, world.clock, dice, lambda: None, settings=Settings())
    named = tuple(f"imported-{letter * 50}" for letter in "abcd")
    many, few = (Submit(spec=world.spec("mine", reads=reads)) for reads in (named, named[:2]))
    with pytest.raises(NotAllowed, match=r"a policy of \d+ letters; wanted at most 2048"):
        submits.submit([many], LAB_ITSELF)
    assert submits.submit([few], LAB_ITSELF)
    with pytest.raises(NotAllowed, match="letters"):
        grants.grant(Access(reads=tuple(f"checkpoints/{name}" for name in named * 2)), holder="job-1.1.reads")


def test_evaluations_of_rules_name_what_they_evaluate(teams: World) -> None:
    spec = teams.spec("rule", team=ARMS)
    role = replace(spec.roles[0], command=("evaluate", CHECKPOINT))
    asked = NewEvaluationRule(job="trained", spec=replace(spec, roles=(role,)))
    rule = EvaluationRuleView(name="rule", team=ARMS, owner="ada", made_s=0.0, rule=asked)
    assert spec_of(rule, JobId("job-1"), 7, ("a-view",)).evaluates == "job-1@7"


@pytest.mark.parametrize(
    "named",
    [{"reads": ("a", "b", "c", "d", "e")}, {"reads": ("release:abc",)}, {"reads": ("../x",)}, {"evaluates": "job-1"}],
)
def test_what_cannot_be_read_is_refused_in_a_spec(teams: World, named: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match=r"reads|evaluates"):
        teams.spec(**named)  # type: ignore[arg-type]
