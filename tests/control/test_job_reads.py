"""Jobs that read checkpoints of others, as replicas and evaluations do: who may, and what their ranks get for it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from mainspring.control import Caller
from mainspring.control.service.evaluations.carrying import spec_of
from mainspring.control.service.stored.access import granted
from mainspring.domain.answers import EvaluationRuleView, NewEvaluationRule, NewScale, NewService, Submit
from mainspring.domain.answers.jobs import CHECKPOINT
from mainspring.domain.errors import InvalidInput, NotAllowed, NotFound
from mainspring.domain.ids import JobId, TeamName
from mainspring.domain.job import LAB, JobKind, JobSpec
from mainspring.domain.team import Team, TeamRole
from mainspring.domain.wire import StoreCredentials, ViewCredentialsWanted
from mainspring.objects import Access

if TYPE_CHECKING:
    from tests.control.conftest import World

VISION, ARMS = TeamName("vision"), TeamName("arms")
RELEASE = f"release:{'a' * 64}"


class _Given:
    """Gives credentials to everybody, and keeps what for."""

    def __init__(self) -> None:
        self.asked: list[Access] = []

    def grant(self, access: Access, *, holder: str) -> StoreCredentials:
        self.asked.append(access)
        return StoreCredentials(access_key_id="a", secret_access_key="b", session_token="c", lasts_s=60.0)


@pytest.fixture
def teams(world: World) -> World:
    for name, parent in ((TeamName(LAB), None), (VISION, LAB), (ARMS, LAB)):
        world.control.people.set_team(Team(name=name, parent=parent))
    return world


def _caller(world: World, team: str, role: TeamRole = TeamRole.MEMBER) -> Caller:
    return world.control.people.caller(world.token(role, team=team, holder=f"{role.value}-{team}"))


def _ranks_get(world: World, spec: JobSpec, grants: _Given) -> Access:
    """Runs a job and asks for what its ranks may do, as its agent does for them."""
    job = world.submit(spec)
    world.run(job)
    order = next(iter(world.orders_of(job).values()))
    caller = world.control.entered(order.token, attempt=order.attempt)
    wanted = ViewCredentialsWanted(allocation=order.allocation, view="")
    granted(world.control.store, wanted, caller, grants=grants, owners=world.control.datasets.owners)
    return grants.asked[-1]


def test_ranks_get_what_their_spec_names_to_read_and_never_what_their_agent_may_write(teams: World) -> None:
    grants, trained = _Given(), teams.submit(teams.spec("trained", team=ARMS, views=("a-view",)))
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
    for named in ({"reads": (theirs,)}, {"reads": (f"{theirs}@7",)}, {"evaluates": f"{theirs}@7"}):
        spec = replace(teams.spec("mine", team=ARMS), **named)
        with pytest.raises(NotFound, match="reads"):
            control.submit(Submit(spec=spec), arms)
        served = replace(spec, kind=JobKind.SERVICE)
        with pytest.raises(NotFound):
            control.services.make(NewService(spec=served, scale=NewScale(replicas=1)), arms)
        with pytest.raises(NotAllowed, match="people of team 'arms' may not"):
            control.submit(Submit(spec=spec), lab)
    control.people.set_team(Team(name=VISION, parent=TeamName(LAB), open=True))
    for named in ({"reads": (theirs,)}, {"evaluates": f"{theirs}@7"}):
        control.submit(Submit(spec=replace(teams.spec("mine", team=ARMS), **named)), arms)
    with pytest.raises(NotAllowed, match="may not add to"):  # Its report would be kept with another team's checkpoint.
        _ranks_get(teams, teams.spec("mine", team=ARMS, evaluates=f"{theirs}@7"), _Given())


def test_a_team_that_is_open_no_more_is_read_no_more(teams: World) -> None:
    control, grants = teams.control, _Given()
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
