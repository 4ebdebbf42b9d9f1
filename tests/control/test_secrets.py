"""Secrets of teams: who sets and names them, what agents are given, what is kept, and under which keys."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cryptography.fernet import Fernet
from tests.control.living import ask, come, live

from mainspring.control import AgentAccess, Caller, Control
from mainspring.control.service.secrets import TEAM_SECRETS_MAX
from mainspring.domain.answers import NewSecret, Submit
from mainspring.domain.answers.people import VALUE_BYTES_MAX
from mainspring.domain.codec import encode
from mainspring.domain.errors import Conflict, InvalidInput, InvalidSpec, NotAllowed, NotFound, StorageFull, Unavailable
from mainspring.domain.ids import JobId, RoleName, TeamName
from mainspring.domain.job import LAB, JobSpec, Option, Role
from mainspring.domain.life import JobState
from mainspring.domain.team import Team, TeamRole
from mainspring.domain.wire import Orders, Register
from mainspring.testing import SeededDice

if TYPE_CHECKING:
    from tests.control.conftest import World

VISION, ARMS, GRASP = TeamName("vision"), TeamName("arms"), TeamName("grasp")
VALUE, OTHER = "hf_0123456789abcdef", "hf_fedcba9876543210"


@pytest.fixture
def keys(world: World) -> Path:
    return world.keys


@pytest.fixture
def teams(world: World) -> World:
    """Two teams of a lab, of which one has another below it."""
    for name, parent in ((TeamName(LAB), None), (VISION, LAB), (ARMS, LAB), (GRASP, ARMS)):
        world.control.people.set_team(Team(name=name, parent=parent))
    return world


def caller(world: World, role: TeamRole, team: str = ARMS, holder: str = "ada") -> Caller:
    return world.control.people.caller(world.token(role, team=team, holder=holder))


def keep(world: World, name: str, team: str = ARMS, value: str = VALUE) -> None:
    world.control.people.secrets.keep(team, name, NewSecret(value=value))


def naming(*secrets: str, team: str = GRASP, files: tuple[str, ...] = (), **fields: object) -> JobSpec:
    option = Option(chip="gpu", replicas=1)  # type: ignore[arg-type]
    role = Role(command=("train",), options=(option,), secrets=secrets, secret_files=files)  # type: ignore[arg-type]
    return JobSpec(name="job", team=TeamName(team), roles=(role,), **fields)  # type: ignore[arg-type]


def submit(world: World, spec: JobSpec, who: Caller | None = None) -> JobId:
    return world.control.submit(Submit(spec=spec), who or world.admin).id


def orders(world: World, spec: JobSpec) -> Orders:
    job = submit(world, spec)
    world.tick(2)
    (given,) = come(world, job).values()
    return given


# ---------------------------------------------------------------- names and values


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "A=", "A\n", "ä", "A" * 65, "MAINSPRING_TOKEN", "../A"])
def test_name_that_no_variable_can_have_is_refused(teams: World, name: str) -> None:
    with pytest.raises(InvalidInput, match="name for a secret"):
        keep(teams, name)
    with pytest.raises(InvalidInput, match="name for a secret"):
        naming(name)


@pytest.mark.parametrize(
    "value", ["", "short", "  short  ", "x" * (VALUE_BYTES_MAX + 1), "\0" * 10, "a\x1b[31mred", "line\n" * 300]
)
def test_value_that_cannot_be_one_is_refused_and_not_quoted(value: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        NewSecret(value=value)
    assert not value.strip() or value[:6] not in str(refused.value)


def test_secret_is_told_to_nobody_who_asks(teams: World, keys: Path) -> None:
    made = teams.control.people.secrets.keep(ARMS, "HF_TOKEN", NewSecret(value=VALUE))
    shown = [made, *teams.control.people.secrets.known(), *teams.control.people.audit()]
    shown.append(teams.control.people.secrets.remove(ARMS, "HF_TOKEN"))
    assert VALUE not in encode(tuple(shown)).decode() + repr(NewSecret(value=VALUE))
    store = Path(teams.url.removeprefix("sqlite:///"))
    assert not [path for path in store.parent.glob("*") if path.is_file() and VALUE.encode() in path.read_bytes()]
    assert keys.stat().st_mode & 0o777 == 0o600


def test_secret_set_again_counts_its_values_and_the_same_one_is_left_as_it_is(teams: World) -> None:
    secrets = teams.control.people.secrets
    for value in (VALUE, VALUE, OTHER):
        secrets.keep(ARMS, "HF_TOKEN", NewSecret(value=value))
    assert [(one.name, one.version) for one in secrets.known()] == [("HF_TOKEN", 2)]
    told = [line.target for line in teams.control.people.audit() if line.action == "set a secret"]
    assert told == ["HF_TOKEN: version 1", "HF_TOKEN: version 2"]


def test_team_has_so_many_secrets_and_no_more(teams: World) -> None:
    for number in range(TEAM_SECRETS_MAX):
        keep(teams, f"S{number}")
    with pytest.raises(InvalidInput, match="100 secrets"):
        keep(teams, "ONE_MORE")
    keep(teams, "S0", value=OTHER)
    keep(teams, "S0", team=VISION)


def test_controller_without_a_file_of_keys_keeps_no_secrets(world: World) -> None:
    access = AgentAccess(controller_urls=("http://127.0.0.1:1",), objects_url="file:///objects", key="a key")
    control = Control(
        store=world.control.store, engines={}, clock=world.clock, dice=SeededDice(9, "control"), access=access
    )
    with pytest.raises(NotFound, match="file of keys"):
        control.people.secrets.keep(LAB, "HF_TOKEN", NewSecret(value=VALUE))


# ---------------------------------------------------------------- who may


def test_names_of_the_own_team_those_below_and_those_above_are_listed(teams: World) -> None:
    for team in (LAB, VISION, ARMS, GRASP):
        keep(teams, "HF_TOKEN", team=team)
    keep(teams, "WANDB", team=LAB)
    secrets = teams.control.people.secrets
    member, below = caller(teams, TeamRole.MEMBER), caller(teams, TeamRole.MEMBER, team=GRASP)
    assert [(one.team, one.name) for one in secrets.known(member)] == [
        (ARMS, "HF_TOKEN"),
        (GRASP, "HF_TOKEN"),
        (LAB, "HF_TOKEN"),
        (LAB, "WANDB"),
    ]
    assert {one.team for one in secrets.known(below)} == {GRASP, ARMS, LAB}
    assert len(secrets.known()) == 5
    assert [(one.name, one.team) for one in secrets.known(below, team=GRASP)] == [("HF_TOKEN", GRASP), ("WANDB", LAB)]
    with pytest.raises(NotAllowed):
        secrets.known(member, team=VISION)
    with pytest.raises(NotAllowed):
        secrets.known(caller(teams, TeamRole.VIEWER))


def test_another_team_cannot_name_a_secret_nor_can_the_team_above(teams: World) -> None:
    keep(teams, "HF_TOKEN", team=ARMS)
    for team in (VISION, LAB):
        with pytest.raises(NotFound, match=f"HF_TOKEN of team {team}"):
            submit(teams, naming("HF_TOKEN", team=team))
    submit(teams, naming("HF_TOKEN", team=GRASP), caller(teams, TeamRole.MEMBER, team=GRASP))
    with pytest.raises(NotAllowed):
        submit(teams, naming("HF_TOKEN", team=GRASP), caller(teams, TeamRole.MEMBER, team=VISION))


def test_admin_of_one_team_sets_and_removes_nothing_of_another(teams: World) -> None:
    keep(teams, "HF_TOKEN", team=ARMS)
    secrets, stranger = teams.control.people.secrets, caller(teams, TeamRole.ADMIN, team=VISION)
    with pytest.raises(NotAllowed):
        secrets.keep(ARMS, "HF_TOKEN", NewSecret(value=OTHER), stranger)
    with pytest.raises(NotAllowed):
        secrets.remove(ARMS, "HF_TOKEN", stranger)
    with pytest.raises(NotAllowed, match="team lab"):
        secrets.rotate(caller(teams, TeamRole.ADMIN, team=ARMS))
    with pytest.raises(NotFound, match="team 'nobody'"):
        keep(teams, "HF_TOKEN", team="nobody")


# ---------------------------------------------------------------- specs


@pytest.mark.parametrize(
    "role",
    [
        {"secrets": ("A", "A")},
        {"secrets": ("A",), "environment": {"A": "1"}},
        {"secrets": ("A_FILE",), "secret_files": ("A",)},
        {"secret_files": ("A",), "environment": {"A_FILE": "1"}},
    ],
)
def test_secrets_that_would_overwrite_a_variable_are_refused(role: dict[str, object]) -> None:
    option = Option(chip="gpu")  # type: ignore[arg-type]
    with pytest.raises(InvalidSpec, match="variables that differ"):
        Role(command=("x",), options=(option,), **role)  # type: ignore[arg-type]
    Role(command=("x",), options=(option,), secrets=("A",), secret_files=("A",))  # type: ignore[arg-type]


def test_job_names_so_many_secrets_and_no_more() -> None:
    naming(*(f"S{number}" for number in range(16)))
    with pytest.raises(InvalidSpec, match="at most 16"):
        naming(*(f"S{number}" for number in range(10)), files=tuple(f"F{number}" for number in range(7)))


def test_job_that_names_a_secret_which_nobody_set_is_refused_with_the_nearest(teams: World) -> None:
    keep(teams, "HF_TOKEN")
    with pytest.raises(NotFound, match="did you mean 'HF_TOKEN'"):
        submit(teams, naming("HF_TOKENS"))


def test_submit_repeated_after_its_secret_went_returns_the_job_it_made(teams: World) -> None:
    keep(teams, "HF_TOKEN")
    again = Submit(spec=naming("HF_TOKEN"), key="once")
    made = teams.control.submit(again).id
    teams.control.people.secrets.remove(ARMS, "HF_TOKEN")
    assert teams.control.submit(again).id == made


# ---------------------------------------------------------------- agents


def test_agent_is_given_the_nearest_value_and_the_store_and_launch_never_see_it(teams: World) -> None:
    keep(teams, "HF_TOKEN", team=LAB, value=OTHER)
    keep(teams, "HF_TOKEN", team=ARMS)
    keep(teams, "UNASKED", team=ARMS, value=OTHER)
    job = submit(teams, naming(files=("HF_TOKEN",)))
    teams.tick(2)
    (given,) = come(teams, job).values()
    assert given.secrets == {"HF_TOKEN": VALUE}
    assert (given.roles[0].secrets, given.roles[0].secret_files) == ((), ("HF_TOKEN",))
    assert VALUE not in repr(given)
    launched = next(iter(teams.orders_of(job).values()))
    shown = [teams.job(job), *teams.control.events(), launched]
    assert VALUE not in encode(tuple(shown)).decode()
    store = Path(teams.url.removeprefix("sqlite:///"))
    assert not [path for path in store.parent.glob("store*") if VALUE.encode() in path.read_bytes()]


def test_agent_is_given_what_its_own_role_names_once_its_orders_are_ready(teams: World) -> None:
    keep(teams, "HF_TOKEN")
    keep(teams, "WANDB", value=OTHER)
    option = Option(chip="gpu")  # type: ignore[arg-type]
    roles = tuple(
        Role(name=RoleName(name), command=("x",), options=(option,), secrets=(secret,))  # type: ignore[arg-type]
        for name, secret in (("one", "HF_TOKEN"), ("two", "WANDB"))
    )
    job = submit(teams, JobSpec(name="job", team=ARMS, roles=roles))
    teams.tick(2)
    first, *_ = come(teams, job, twice=False).values()
    assert (first.ready, first.secrets) == (False, {})
    assert sorted(tuple(each.secrets.items()) for each in come(teams, job).values()) == [
        (("HF_TOKEN", VALUE),),
        (("WANDB", OTHER),),
    ]


def test_waiting_job_whose_secret_went_fails_at_its_start_and_says_why(teams: World) -> None:
    keep(teams, "HF_TOKEN")
    job = submit(teams, naming("HF_TOKEN"))
    teams.tick(2)
    teams.control.people.secrets.remove(ARMS, "HF_TOKEN")
    ((name, order),) = live(teams, job).items()
    assert not ask(teams, name, order, order.nodes[0]).ready
    with pytest.raises(Conflict, match="stopping"):
        ask(teams, name, order, order.nodes[0])
    teams.tick(4)
    view = teams.job(job)
    assert view.state is JobState.FAILED
    assert len(view.attempts) == 1
    assert "could not find a secret; on HF_TOKEN of team grasp, or of one above" in view.reason
    assert "ms secret set HF_TOKEN --team grasp" in view.reason
    assert "node_blamed" not in [event.kind for event in teams.control.events(job)]


def test_running_job_goes_on_when_its_secret_went(teams: World) -> None:
    keep(teams, "HF_TOKEN")
    job = submit(teams, naming("HF_TOKEN"))
    teams.tick(2)
    come(teams, job)
    teams.beat(job)
    teams.control.people.secrets.remove(ARMS, "HF_TOKEN")
    (again,) = come(teams, job, lost_epoch=1).values()
    assert (again.ready, again.secrets) == (True, {})
    ((name, order),) = live(teams, job).items()
    with pytest.raises(Conflict, match="could not find a secret"):  # One that comes late has none to go on with.
        ask(teams, name, order, order.nodes[0])
    assert teams.job(job).state is JobState.RUNNING


def test_agents_of_another_attempt_are_given_nothing(teams: World) -> None:
    keep(teams, "HF_TOKEN")
    job, other = submit(teams, naming("HF_TOKEN")), submit(teams, naming(team=VISION))
    teams.tick(2)
    stranger = teams.control.people.caller(next(iter(teams.orders_of(other).values())).token)
    ((name, order),) = live(teams, job).items()
    with pytest.raises(NotAllowed):
        teams.control.register(Register(allocation=name, node=order.nodes[0], address="a:1"), stranger)


# ---------------------------------------------------------------- keys


def test_rotation_keeps_every_value_under_a_new_key_and_forgets_the_old_one(teams: World, keys: Path) -> None:
    keep(teams, "HF_TOKEN")
    keep(teams, "WANDB", team=LAB, value=OTHER)
    before = keys.read_text()
    assert teams.control.people.secrets.rotate().count == 2
    after = keys.read_text()
    assert len(after.split()) == 1
    assert after != before
    teams.restart()
    assert orders(teams, naming("HF_TOKEN", "WANDB")).secrets == {"HF_TOKEN": VALUE, "WANDB": OTHER}
    told = [line for line in teams.control.people.audit() if line.action == "rotate secrets"]
    assert [line.target.split(",")[0] for line in told] == ["2 secrets"]
    assert after.strip() not in str(told)


def test_rotation_whose_key_cannot_be_kept_changes_nothing(teams: World, keys: Path) -> None:
    keep(teams, "HF_TOKEN")
    draft = keys.with_name(f".{keys.name}.{os.getpid()}")
    draft.mkdir()  # Where the file is written before it takes the other's place.
    with pytest.raises(StorageFull, match="keep the keys"):
        teams.control.people.secrets.rotate()
    draft.rmdir()
    assert orders(teams, naming("HF_TOKEN")).secrets == {"HF_TOKEN": VALUE}


def test_key_that_an_operator_put_first_is_the_one_for_what_is_set_from_then_on(teams: World, keys: Path) -> None:
    keep(teams, "HF_TOKEN")
    fresh = Fernet.generate_key().decode()
    old = keys.read_text()
    keys.write_text(f"{fresh}\n{old}")
    keep(teams, "WANDB", value=OTHER)
    assert orders(teams, naming("HF_TOKEN", "WANDB")).secrets == {"HF_TOKEN": VALUE, "WANDB": OTHER}
    keys.write_text(old)
    with pytest.raises(Unavailable, match="WANDB of team arms"):
        submit(teams, naming("WANDB"))
    submit(teams, naming("HF_TOKEN"))


@pytest.mark.parametrize("text", ["", "no key\n", "k" * 43 + "=\n", "\0\xff"])
def test_wrong_file_of_keys_is_told_and_stops_no_job_without_secrets(teams: World, keys: Path, text: str) -> None:
    keep(teams, "HF_TOKEN")
    waiting = submit(teams, naming("HF_TOKEN"))
    teams.tick(2)
    good = keys.read_text()
    keys.write_bytes(text.encode("latin-1"))
    for attempt in (lambda: submit(teams, naming("HF_TOKEN")), teams.control.people.secrets.rotate):
        with pytest.raises(Unavailable, match=r"could not read (a secret|the keys of secrets)") as refused:
            attempt()
        assert good.strip() not in str(refused.value)
    assert keys.read_bytes() == text.encode("latin-1")
    assert orders(teams, naming()).ready
    ((name, order),) = live(teams, waiting).items()
    ask(teams, name, order, order.nodes[0])
    teams.tick(4)
    assert teams.job(waiting).state is JobState.FAILED
    assert "could not read" in teams.job(waiting).reason


def test_file_of_keys_that_is_gone_is_not_replaced_while_secrets_need_it(teams: World, keys: Path) -> None:
    keep(teams, "HF_TOKEN")
    held = keys.read_text()
    keys.unlink()
    with pytest.raises(Unavailable, match="no such file"):
        keep(teams, "WANDB")
    assert not keys.exists()
    keys.write_text(held)
    assert orders(teams, naming("HF_TOKEN")).secrets == {"HF_TOKEN": VALUE}


def test_row_moved_to_another_team_in_the_database_is_not_read(teams: World) -> None:
    keep(teams, "HF_TOKEN", team=VISION)
    with teams.control.store.write() as connection:
        connection.exec_driver_sql("UPDATE secrets SET team = 'arms'")
    with pytest.raises(Unavailable, match="HF_TOKEN of team arms"):
        submit(teams, naming("HF_TOKEN"))
