"""Who may do what: every row of the table of rights, walls between teams, and tokens from the first to the last use."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.control.releasing import new_release
from tests.control.told_of_nodes import fault

from mainspring.control import Caller, Control
from mainspring.control.api_metrics import Metrics
from mainspring.control.service.people import REFUSED_S, People
from mainspring.control.store.secrets import SecretKeys
from mainspring.control.store.settings import Settings
from mainspring.domain.answers import (
    ClosureKind,
    NewClosure,
    NewDatasetTeam,
    NewHold,
    NewNoticePlace,
    NewPriority,
    NewRobot,
    NewScale,
    NewSecret,
    NewService,
    NewSize,
    NewToken,
    QueuePlace,
    Reason,
    Revocation,
    SignedText,
    Submit,
)
from mainspring.domain.errors import Conflict, InvalidInput, NotAllowed, NotFound
from mainspring.domain.ids import RoleName, SecretName, TeamName
from mainspring.domain.job import LAB, JobKind
from mainspring.domain.team import LAB_WIDE, RIGHTS, Right, Team, TeamRole, Whose
from mainspring.domain.wire import HealthBatch
from mainspring.testing import SeededDice

if TYPE_CHECKING:
    from tests.control.conftest import World

VISION, ARMS, GRASP = TeamName("vision"), TeamName("arms"), TeamName("grasp")
PEOPLE = [role for role in TeamRole if role is not TeamRole.ATTEMPT]
# Who may do what is decided in Python: four hundred rows of it on the other database are for soak.
RIGHTS_ARE_NO_SQL = pytest.mark.parametrize(
    "url", ["sqlite", pytest.param("postgresql", marks=[pytest.mark.slow, pytest.mark.soak])], indirect=True
)


def keep_secret(world: World, team: str) -> SecretName:
    world.control.people.secrets.keep(team, "HF_TOKEN", NewSecret(value="hf_0123456789"))
    return SecretName("HF_TOKEN")


@pytest.fixture
def teams(world: World) -> World:
    """Two teams of a lab, of which one has another below it."""
    for name, parent in ((TeamName(LAB), None), (VISION, LAB), (ARMS, LAB), (GRASP, ARMS)):
        world.control.people.set_team(Team(name=name, parent=parent))
    return world


def _caller(world: World, role: TeamRole, team: str = ARMS, holder: str = "ada") -> Caller:
    secret = world.token(role, team=LAB if role in LAB_WIDE else team, holder=holder)
    return world.control.people.caller(secret)


def _try_fleet(control: Control, caller: Caller, right: Right) -> None:
    """Does all that a right to the fleet is for."""
    if right is Right.HOLD_FLEET:
        control.pauses.pause_cluster("east", NewHold(), caller)
        control.pauses.drain("east", "east-0", NewHold(), caller)
        control.pauses.undrain("east", "east-0", caller)
        control.pauses.resume_cluster("east", caller)
        control.care.close("east", "east-0", NewClosure(kind=ClosureKind.CORDON, reason="a test"), caller)
        control.care.open("east", "east-0", caller, reason="a test")
    elif right is Right.TELL_HEALTH:
        control.care.tell(HealthBatch(events=(fault("east-0"),)), caller)
    else:
        control.care.promote("fatal", Reason(reason="a test"), caller)
        control.care.demote("fatal", caller, reason="a test")
        control.care.reset_breaker("east", caller, reason="a test")


def _try_releases(world: World, caller: Caller, right: Right, team: TeamName) -> None:
    """Does what a right to releases is for: what is refused for its content was not refused for its caller."""
    control = world.control
    if right is Right.READ_RELEASES:
        control.releases.ls(caller)
        control.releases.trust(caller)
    elif right is Right.SET_TRUST:
        with pytest.raises(InvalidInput):
            control.releases.put_root(SignedText(text="{}"), caller)
    else:
        made = control.releases.create(new_release(f"file://{world.objects}", team=team), caller)
        control.releases.revoke(made.release.reference, Revocation(reason="a test"), caller)


def _try_robots(world: World, caller: Caller, right: Right, team: TeamName) -> None:
    """Does what a right to robots is for."""
    robots, asked = world.control.robots, NewRobot(name="arm-1", team=team, plain=True)
    if right is Right.READ_ROBOTS:
        robots.ls(caller)
        world.control.rollouts.ls(caller)
    elif right is Right.MANAGE_ROBOTS:
        robots.invite(asked, caller)
        robots.revoke("arm-1", caller, reason="a test")
    else:
        robots.invite(asked)
        with pytest.raises(NotFound, match="wanted one that goes on"):
            robots.cancel("arm-1", caller)


def _try_datasets(control: Control, caller: Caller, right: Right, team: TeamName) -> None:
    """Does what a right to data is for."""
    owners = control.datasets.owners
    owners.begin("theirs", Caller(role=TeamRole.MEMBER, team=team))
    if right is Right.GIVE_DATASETS:
        owners.give("theirs", NewDatasetTeam(), caller)
    else:
        (owners.of if right is Right.READ_RECORDINGS else owners.begin)("theirs", caller)


def _try(world: World, caller: Caller, right: Right, whose: Whose) -> None:
    """Does something that takes a right, to something of somebody."""
    control = world.control
    team = VISION if whose is Whose.ANY else GRASP if caller.team == ARMS else ARMS
    owner = caller.holder if whose is Whose.OWN else "bob"
    other = Caller(role=TeamRole.ADMIN, team=TeamName(LAB), holder=owner)
    job = control.submit(Submit(spec=world.spec("theirs", team=team)), other).id
    caller.require_some(right)  # As the API does, whatever is called.
    match right:
        case Right.READ_LAB:
            control.clusters(caller)
            control.people.teams(caller)
        case Right.READ_JOBS:
            control.job(job, caller)
        case Right.SUBMIT_JOBS:
            control.submit(Submit(spec=world.spec(team=team)), caller)
        case Right.STOP_JOBS:
            control.steering.stop(job, caller)
        case Right.STEER_JOBS:
            control.steering.pause(job, NewHold(), caller)
            control.steering.resume(job, caller)
            control.steering.resize(job, NewSize(role=RoleName("role-0"), least=1, most=1), caller)
            control.steering.requeue(job, caller)
        case Right.CALL_SERVICES:
            served = replace(world.spec("served", team=team), kind=JobKind.SERVICE)
            control.services.make(NewService(spec=served, scale=NewScale(replicas=1)), other)
            control.services.replicas("served", caller)
        case Right.RANK_JOBS:
            control.steering.rank(job, NewPriority(place=QueuePlace.FIRST), caller)
        case Right.HOLD_TEAMS:
            control.pauses.pause_team(team, NewHold(), caller)
            control.pauses.resume_team(team, caller)
        case Right.HOLD_FLEET | Right.TELL_HEALTH | Right.RULE_HEALTH:
            world.tick()  # Until a cluster has answered there is none.
            _try_fleet(control, caller, right)
        case Right.SET_TEAMS:
            control.people.set_team(Team(name=TeamName("new"), parent=team), caller)
        case Right.USE_SECRETS:
            secret = keep_secret(world, team)
            role = replace(world.spec().roles[0], secrets=(secret,))
            control.submit(Submit(spec=replace(world.spec(team=team), roles=(role,))), caller)
        case Right.LIST_SECRETS:
            keep_secret(world, team)
            if team not in {one.team for one in control.people.secrets.known(caller)}:
                raise NotFound("see a team's secrets")
        case Right.MANAGE_SECRETS:
            control.people.secrets.remove(team, keep_secret(world, team), caller)
        case Right.MANAGE_NOTICES:
            control.people.secrets.keep(team, "NOTICES_KEY", NewSecret(value="0123456789"))
            control.people.notices.place(team, NewNoticePlace(url="https://chat.lab/x"), caller)
            control.people.notices.remove(team, caller)
        case Right.MANAGE_TOKENS:
            own = control.people.new_token(NewToken(holder=owner, team=team, role=TeamRole.VIEWER)).token
            control.people.remove_token(own.id, caller)
        case Right.MAKE_TOKENS:
            control.people.new_token(NewToken(holder=owner, team=team), caller)
        case Right.READ_METRICS:
            Metrics(control).read(caller, "")
        case Right.KEEP_STORE:
            control.retention.collect(caller, dry_run=True)
        case Right.READ_AUDIT:
            seen = {line.team for line in control.people.audit(caller)}
            if not {team} <= seen:
                raise NotFound("see what a team did")
        case Right.READ_RECORDINGS | Right.SEND_RECORDINGS | Right.GIVE_DATASETS:
            _try_datasets(control, caller, right, team)
        case Right.READ_RELEASES | Right.MAKE_RELEASES | Right.SET_TRUST:
            _try_releases(world, caller, right, team)
        case Right.READ_ROBOTS | Right.MANAGE_ROBOTS | Right.ROLL_OUT:
            _try_robots(world, caller, right, team)


@RIGHTS_ARE_NO_SQL
@pytest.mark.parametrize(("right", "whose"), RIGHTS, ids=lambda each: each.name.lower())
@pytest.mark.parametrize("role", PEOPLE, ids=lambda role: role.value)
def test_every_role_may_do_what_the_table_of_rights_says(
    teams: World, role: TeamRole, right: Right, whose: Whose
) -> None:
    caller = _caller(teams, role, team=LAB if whose is Whose.LAB else ARMS)
    wider = whose is Whose.OWN and role in RIGHTS.get((right, Whose.TEAM), ())
    if role in RIGHTS[right, whose] or wider:
        _try(teams, caller, right, whose)
    else:
        with pytest.raises((NotAllowed, NotFound)):
            _try(teams, caller, right, whose)


@RIGHTS_ARE_NO_SQL
@pytest.mark.parametrize("right", Right, ids=lambda right: right.name.lower())
@pytest.mark.parametrize("role", PEOPLE, ids=lambda role: role.value)
def test_nobody_has_a_right_of_a_team_in_another(teams: World, role: TeamRole, right: Right) -> None:
    if role in LAB_WIDE or (right, Whose.ANY) in RIGHTS:
        return
    stranger = _caller(teams, role, team=VISION, holder="bob")  # Of the same name as the owner.
    with pytest.raises((NotAllowed, NotFound)):
        _try(teams, stranger, right, Whose.TEAM)


def test_an_admin_of_a_team_cannot_raise_its_own_limits_and_can_those_below(teams: World) -> None:
    admin = _caller(teams, TeamRole.ADMIN)
    with pytest.raises(NotAllowed, match="role admin in team lab"):
        teams.control.people.set_team(Team(name=ARMS, parent=TeamName(LAB), chips_max=1e6), admin)
    teams.control.people.set_team(Team(name=GRASP, parent=ARMS, chips_max=4.0), admin)
    with pytest.raises(NotAllowed):  # It is not theirs to take.
        teams.control.people.set_team(Team(name=VISION, parent=ARMS), admin)
    with pytest.raises(NotAllowed):
        teams.control.people.set_team(Team(name=GRASP, parent=VISION), admin)


def test_a_team_sees_its_own_jobs_and_those_below_alone(teams: World) -> None:
    ids = {team: teams.submit(teams.spec("train", team=team)) for team in (GRASP, ARMS, VISION)}
    reader, below = _caller(teams, TeamRole.VIEWER), _caller(teams, TeamRole.VIEWER, team=GRASP)
    control = teams.control
    assert {view.id for view in control.jobs(reader)} == {ids[ARMS], ids[GRASP]}
    assert {view.id for view in control.jobs(below)} == {ids[GRASP]}
    assert control.job("train", below).id == ids[GRASP]  # The newest of that name is a stranger's.
    assert {event.job for event in control.events(None, reader)} == {ids[ARMS], ids[GRASP]}
    for read in (control.job, control.events, control.logs, control.accounts.of_job, control.questions.why):
        with pytest.raises(NotFound):
            read(ids[VISION], reader)
    teams.submit(teams.spec("codename", team=VISION))
    with pytest.raises(NotFound, match="codenam") as refused:
        control.job("codenam", reader)
    assert "codename" not in str(refused.value)
    with pytest.raises(NotFound):
        control.submit(Submit(spec=teams.spec(team=GRASP, after=(ids[VISION],))), _caller(teams, TeamRole.MEMBER))
    assert len(control.jobs(_caller(teams, TeamRole.AUDITOR))) == 4


@pytest.mark.parametrize("step", ["", "@7"])
def test_a_job_begins_from_no_checkpoint_of_a_job_that_its_submitter_may_not_read(teams: World, step: str) -> None:
    hidden, own = (teams.submit(teams.spec("train", team=team)) for team in (VISION, GRASP))
    member = _caller(teams, TeamRole.MEMBER)

    def begin(source: str) -> object:
        spec = teams.spec(team=GRASP, begins_from=f"{source}{step}")
        return teams.control.submit(Submit(spec=spec), member).spec.begins_from

    with pytest.raises(NotFound, match="no checkpoint of"):
        begin(hidden)
    assert begin(own) == f"{own}{step}"
    assert begin("imported-by-somebody") == f"imported-by-somebody{step}"
    teams.control.people.set_team(Team(name=VISION, parent=TeamName(LAB), open=True))
    assert begin(hidden) == f"{hidden}{step}"


def test_an_open_team_is_read_by_everybody_and_changed_by_nobody_else(teams: World) -> None:
    job = teams.submit(teams.spec(team=VISION))
    member = _caller(teams, TeamRole.MEMBER)
    teams.control.people.set_team(Team(name=VISION, parent=TeamName(LAB), open=True))
    assert teams.control.job(job, member).id == job
    assert [view.id for view in teams.control.jobs(member)] == [job]
    with pytest.raises(NotAllowed):
        teams.control.steering.stop(job, member)
    with pytest.raises(NotAllowed):
        teams.control.submit(Submit(spec=teams.spec(team=VISION)), member)


def test_a_job_tells_who_submitted_it_and_who_ended_it(teams: World) -> None:
    job = teams.control.submit(Submit(spec=teams.spec(team=ARMS)), _caller(teams, TeamRole.MEMBER)).id
    assert teams.control.job(job).owner == "ada"
    with pytest.raises(NotAllowed, match="role admin or operator in team arms"):
        teams.control.steering.stop(job, _caller(teams, TeamRole.MEMBER, holder="bob"))
    assert "cancelled by ada" in teams.control.steering.stop(job, _caller(teams, TeamRole.MEMBER)).reason


# ---------------------------------------------------------------- tokens


def test_a_token_lets_in_until_it_ends_or_is_removed(world: World) -> None:
    people = world.control.people
    made = people.new_token(NewToken(holder="ada", days=2.0))
    caller = people.caller(made.secret, address="10.0.0.7")
    assert (caller.holder, caller.team, caller.role, caller.address) == ("ada", LAB, TeamRole.MEMBER, "10.0.0.7")
    world.clock.advance(2 * 86_400.0 - 1.0)
    assert people.caller(made.secret).holder == "ada"
    world.clock.advance(1.0)
    with pytest.raises(NotAllowed, match=r"ended 0\.0 days ago"):
        people.caller(made.secret)
    other = people.new_token(NewToken(holder="ada"))
    assert people.remove_token(other.token.id).holder == "ada"
    with pytest.raises(NotAllowed, match="nobody holds"):
        people.caller(other.secret)
    with pytest.raises(NotFound):
        people.remove_token(other.token.id)


def test_tokens_are_listed_without_their_secrets_and_with_their_last_use(world: World) -> None:
    people = world.control.people
    made = people.new_token(NewToken(holder="ada"))
    (listed,) = people.tokens()
    assert (listed.id, listed.used_s, listed.maker) == (made.token.id, None, "admin of team lab")
    people.caller(made.secret)
    first_s = world.clock.now_s()
    world.clock.advance(30.0)
    people.caller(made.secret)
    assert people.tokens()[0].used_s == first_s
    world.clock.advance(30.0)
    people.caller(made.secret)
    assert people.tokens()[0].used_s == first_s + 60.0
    with world.control.store.read() as connection:
        kept = str(connection.exec_driver_sql("SELECT * FROM tokens").all())
    assert made.secret not in kept
    assert made.secret.removeprefix("ms_") not in kept


def test_tokens_of_agents_are_nobodys_to_list(world: World) -> None:
    job = world.submit()
    world.tick()
    assert world.orders_of(job)
    assert world.control.people.tokens() == ()


def test_an_admin_makes_tokens_for_its_team_and_below_and_sees_no_others(teams: World) -> None:
    admin, people = _caller(teams, TeamRole.ADMIN), teams.control.people
    below = people.new_token(NewToken(holder="eve", team=GRASP, role=TeamRole.ADMIN), admin).token
    assert below.maker == "ada"
    strange = people.new_token(NewToken(holder="eve", team=VISION)).token
    assert {token.team for token in people.tokens(admin)} == {ARMS, GRASP}
    for asked in (NewToken(holder="eve", team=VISION), NewToken(holder="eve", role=TeamRole.OPERATOR)):
        with pytest.raises(NotAllowed):
            people.new_token(asked, admin)
    with pytest.raises(NotFound):
        people.remove_token(strange.id, admin)
    with pytest.raises(NotFound, match="ms team set nobody"):
        people.new_token(NewToken(holder="eve", team=TeamName("nobody")))


@pytest.mark.parametrize(
    "asked",
    [
        {"holder": ""},
        {"holder": "Ada Lovelace"},
        {"holder": "ada", "days": 0.0},
        {"holder": "ada", "days": float("nan")},
        {"holder": "ada", "days": 1e9},
        {"holder": "ada", "role": TeamRole.ATTEMPT},
        {"holder": "ada", "role": TeamRole.AUDITOR, "team": "vision"},
    ],
)
def test_a_token_that_cannot_be_is_refused(asked: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        NewToken(**asked)  # type: ignore[arg-type]


@pytest.fixture
def walled(teams: World) -> People:
    """Gives the people of a server whose jobs run under one account."""
    control = teams.control
    dice = SeededDice(3)
    keys = SecretKeys(None, dice)
    return People(
        control.store, control.pictures, teams.clock, dice, keys, lambda: None, settings=Settings(one_line=True)
    )


def test_where_jobs_share_an_account_no_second_team_gets_people_who_submit(walled: People, teams: World) -> None:
    walled.new_token(NewToken(holder="root", role=TeamRole.ADMIN))
    walled.new_token(NewToken(holder="ada", team=ARMS, role=TeamRole.ADMIN))
    walled.new_token(NewToken(holder="bo", team=GRASP))
    for role in (TeamRole.MEMBER, TeamRole.ADMIN):
        with pytest.raises(Conflict, match="--shared-account"):
            walled.new_token(NewToken(holder="eve", team=VISION, role=role))
    assert {token.holder for token in walled.tokens()} == {"root", "ada", "bo"}
    walled.new_token(NewToken(holder="eve", team=VISION, role=TeamRole.VIEWER))
    teams.control.people.new_token(NewToken(holder="eve", team=VISION))


def test_where_jobs_share_an_account_a_team_that_left_makes_room_for_another(walled: People, teams: World) -> None:
    made = walled.new_token(NewToken(holder="ada", team=ARMS)).token
    walled.new_token(NewToken(holder="bo", team=ARMS, days=1.0))
    walled.remove_token(made.id)
    with pytest.raises(Conflict):
        walled.new_token(NewToken(holder="eve", team=VISION))
    teams.clock.advance(2 * 86_400.0)
    walled.new_token(NewToken(holder="eve", team=VISION))


def test_where_jobs_share_an_account_a_team_with_people_is_not_moved_beside_another(walled: People) -> None:
    walled.new_token(NewToken(holder="ada", team=ARMS))
    walled.new_token(NewToken(holder="bo", team=GRASP))
    with pytest.raises(Conflict, match="move a team"):
        walled.set_team(Team(name=GRASP, parent=LAB))
    assert {view.team.name: view.team.parent for view in walled.teams()}[GRASP] == ARMS
    walled.set_team(Team(name=GRASP, parent=ARMS, weight=3.0))
    walled.set_team(Team(name=VISION, parent=ARMS))


def test_teams_whose_jobs_run_as_different_users_both_have_people_and_those_of_one_user_have_not(teams: World) -> None:
    control, dice = teams.control, SeededDice(3)

    def people(**run_as: str) -> People:
        settings = Settings(one_line=True, run_as=run_as)
        keys = SecretKeys(None, dice)
        return People(control.store, control.pictures, teams.clock, dice, keys, lambda: None, settings=settings)

    people(arms="ua").new_token(NewToken(holder="ada", team=ARMS))
    with pytest.raises(Conflict, match="run_as"):
        people(arms="ua", vision="ua").new_token(NewToken(holder="eve", team=VISION))
    with pytest.raises(Conflict, match="run_as"):
        people(arms="ua", grasp="uv", vision="uv").new_token(NewToken(holder="eve", team=VISION))
    people(arms="ua", vision="uv").new_token(NewToken(holder="eve", team=VISION))
    with pytest.raises(Conflict, match="add a team"):
        people(arms="ua", vision="uv", hand="uv").set_team(Team(name=TeamName("hand"), parent=ARMS))


# ---------------------------------------------------------------- the audit log


def test_what_people_do_is_told_with_who_by_which_token_and_from_where(teams: World) -> None:
    people, control = teams.control.people, teams.control
    made = people.new_token(NewToken(holder="ada", team=ARMS, role=TeamRole.ADMIN))
    ada = people.caller(made.secret, address="10.0.0.7")
    before = people.audit()[-1].sequence
    job = control.submit(Submit(spec=teams.spec(team=ARMS)), ada).id
    control.steering.stop(job, ada)
    other = people.new_token(NewToken(holder="bo", team=GRASP), ada).token
    people.remove_token(other.id, ada)
    people.set_team(Team(name=GRASP, parent=ARMS, weight=2.0), ada)
    told = people.audit(since=before)
    assert [(line.action, line.team) for line in told] == [
        ("submit a job", ARMS),
        ("stop a job", ARMS),
        ("make a token", GRASP),
        ("remove a token", GRASP),
        ("set a team", GRASP),
    ]
    assert {(line.holder, line.token, line.address) for line in told} == {("ada", made.token.id, "10.0.0.7")}
    assert [told[0].target, told[2].target] == [job, f"{other.id}: member bo"]
    assert made.secret not in str(people.audit())


def test_what_is_not_done_is_not_told(teams: World) -> None:
    before = teams.control.people.audit()
    with pytest.raises(NotAllowed):
        teams.control.submit(Submit(spec=teams.spec(team=VISION)), _caller(teams, TeamRole.MEMBER))
    told = teams.control.people.audit(since=before[-1].sequence)
    assert [line.action for line in told] == ["make a token"]  # The member's own.


def test_refusals_are_told_and_a_flood_of_them_once_in_a_while(teams: World) -> None:
    people, caller = teams.control.people, _caller(teams, TeamRole.VIEWER)
    before = people.audit()[-1].sequence
    for _ in range(100):
        people.refused(caller, "no", action="submit jobs", target="/v1/jobs")
    people.refused(caller, "no", action="stop jobs", target="/v1/jobs/x/stop")
    teams.clock.advance(REFUSED_S)
    people.refused(caller, "no", action="submit jobs", target="/v1/jobs")
    told = people.audit(since=before)
    assert [(line.action, line.outcome) for line in told] == [
        ("submit jobs", "refused"),
        ("stop jobs", "refused"),
        ("submit jobs", "refused"),
    ]


def test_who_shows_a_token_that_is_not_good_is_told_of_with_its_address(world: World) -> None:
    people, secret = world.control.people, world.token(TeamRole.VIEWER, holder="bo", days=1.0)
    before = people.audit()[-1].sequence
    world.clock.advance(2 * 86_400.0)
    for shown, address in (
        ("", "192.0.2.1"),
        ("guessed", "192.0.2.2"),
        ("guessed", "192.0.2.3"),
        (secret, "192.0.2.4"),
    ):
        with pytest.raises(NotAllowed):
            people.caller(shown, address=address)
    told = people.audit(since=before)
    assert [(line.holder, line.action, line.outcome, line.address) for line in told] == [
        ("nobody", "enter", "refused", "192.0.2.2"),
        ("bo", "enter", "refused", "192.0.2.4"),
    ]
