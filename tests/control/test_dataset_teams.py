"""Datasets have a team: who may not read one does not find it, by whichever way they look."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from tests.control.calling import Api, Served
from tests.control.granting import Given
from tests.data.making import record_many, version_of

from mainspring.app.server.arrivals import Inboxes
from mainspring.control import Caller, open_store
from mainspring.control.service.stored.access import granted
from mainspring.control.service.stored.owners import TEAM_DATASETS_MAX
from mainspring.control.store.datasets.records import find_owner, teams_of_datasets
from mainspring.control.store.datasets.tables import dataset_owners
from mainspring.control.store.store import bring_back
from mainspring.data import ViewRecipe, build_view, merge, resolve, select
from mainspring.data.views.places import datasets_of_view
from mainspring.domain.answers import (
    ClipCatalog,
    ClipEntry,
    ClipsAsked,
    DatasetDetail,
    DatasetView,
    NewDatasetTeam,
    NewRobot,
    NewScale,
    NewService,
    Submit,
)
from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import LimitReached, MainspringError, NotAllowed, NotFound
from mainspring.domain.ids import TeamName
from mainspring.domain.job import LAB, JobKind, Tier
from mainspring.domain.team import Team, TeamRole
from mainspring.domain.wire import StoreCredentials, ViewCredentialsWanted
from mainspring.objects import open_store as open_objects

if TYPE_CHECKING:
    from tests.control.conftest import World

VISION, ARMS, GRASP = TeamName("vision"), TeamName("arms"), TeamName("grasp")
EVERYBODY = NewDatasetTeam()


@pytest.fixture
def teams(world: World) -> World:
    """Two teams of a lab, of which one has another below it."""
    for name, parent in ((TeamName(LAB), None), (VISION, LAB), (ARMS, LAB), (GRASP, ARMS)):
        world.control.people.set_team(Team(name=name, parent=parent))
    return world


def _caller(world: World, team: str, role: TeamRole = TeamRole.MEMBER) -> Caller:
    return world.control.people.caller(world.token(role, team=team, holder=f"{role.value}-{team}"))


def _headers(world: World, team: str, role: TeamRole = TeamRole.MEMBER) -> dict[str, str]:
    return {"Authorization": f"Bearer {world.token(role, team=team, holder='bo')}"}


# ---------------------------------------------------------------- whose they are


def test_whoever_begins_a_dataset_gives_it_their_team_and_the_labs_people_everybody(teams: World) -> None:
    owners, admin = teams.control.datasets.owners, _caller(teams, LAB, TeamRole.ADMIN)
    assert owners.begin("grips", _caller(teams, GRASP)).team == GRASP
    assert owners.begin("shared", admin).team is None
    for dataset, team, found in (("grips", ARMS, GRASP), ("shared", VISION, None), ("grips", GRASP, GRASP)):
        assert owners.begin(dataset, _caller(teams, team)).team == found  # Whose it is stays as it was.
    assert owners.of("grips", admin).maker == "member-grasp"
    for refused in (owners.begin, owners.of):
        with pytest.raises(NotFound) as told:
            refused("grips", _caller(teams, VISION))
        assert "grasp" not in str(told.value)
    assert owners.hidden(_caller(teams, VISION)) == {"grips"}
    assert owners.hidden(_caller(teams, LAB, TeamRole.AUDITOR)) == owners.hidden(_caller(teams, ARMS)) == frozenset()
    lines = [(line.action, line.target, line.team) for line in teams.control.people.audit(admin, newest=True)]
    assert ("begin a dataset", "grips", GRASP) in lines


def test_what_was_there_before_is_everybodys(teams: World) -> None:
    store, owners = open_objects(f"file://{teams.objects}"), teams.control.datasets.owners
    store.put("catalog/old/000001.json", b"{}")
    store.put("clips/told/arm-1/x.json", b"{}")
    for dataset in ("old", "told"):
        assert owners.of(dataset, _caller(teams, VISION)).team is None
        assert owners.begin(dataset, _caller(teams, ARMS)).team is None
        assert owners.begin(dataset, _caller(teams, VISION)).team is None
    assert owners.begin("sent", _caller(teams, ARMS), there=True).team is None
    with pytest.raises(NotFound):
        owners.of("nothing", _caller(teams, ARMS))


def test_a_dataset_of_an_open_team_is_read_by_all_and_added_to_by_its_own(teams: World) -> None:
    owners = teams.control.datasets.owners
    owners.begin("grips", _caller(teams, ARMS))
    teams.control.people.set_team(Team(name=ARMS, parent=TeamName(LAB), open=True))
    assert owners.of("grips", _caller(teams, VISION)).team == ARMS
    with pytest.raises(NotAllowed):
        owners.begin("grips", _caller(teams, VISION))


def test_of_two_who_begin_one_dataset_at_a_time_it_is_ones(teams: World) -> None:
    owners, together = teams.control.datasets.owners, Barrier(2)
    callers = [_caller(teams, team) for team in (ARMS, VISION)]

    def begin(caller: Caller) -> TeamName | None:
        together.wait(60)
        try:
            return owners.begin("both", caller).team
        except NotFound:
            return None

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(begin, callers))
    with teams.control.store.read() as connection:
        owner = find_owner(connection, "both")
    assert owner is not None
    assert sorted(map(str, found)) == sorted(["None", str(owner.team)])


def test_no_team_uses_up_the_names_of_all(teams: World) -> None:
    owners = teams.control.datasets.owners
    owners.begin("arms-own", _caller(teams, ARMS))
    with teams.control.store.write() as connection:
        rows = [
            {"name": f"set-{number}", "team": VISION, "maker": "ada", "made_s": 0.0}
            for number in range(TEAM_DATASETS_MAX)
        ]
        connection.execute(sa.insert(dataset_owners), rows)
    with pytest.raises(LimitReached, match="datasets of team 'vision'"):
        owners.begin("one-more", _caller(teams, VISION))
    assert owners.begin("set-7", _caller(teams, VISION)).team == VISION  # What is there goes on.
    assert owners.begin("another", _caller(teams, ARMS)).team == ARMS


def test_name_of_others_is_taken_and_no_more_is_told(teams: World) -> None:
    owners = teams.control.datasets.owners
    owners.begin("grips", _caller(teams, ARMS))
    with pytest.raises(NotFound, match="got a name that is taken; next: choose another name"):
        owners.begin("grips", _caller(teams, VISION))


def test_admins_give_what_is_their_teams_and_those_of_the_lab_all(teams: World) -> None:
    owners, lab = teams.control.datasets.owners, _caller(teams, LAB, TeamRole.ADMIN)
    arms, vision = (_caller(teams, team, TeamRole.ADMIN) for team in (ARMS, VISION))
    owners.begin("grips", _caller(teams, GRASP))
    owners.begin("shared", lab)
    with pytest.raises(NotAllowed):
        owners.give("grips", EVERYBODY, _caller(teams, GRASP))
    with pytest.raises(NotAllowed):  # It is not theirs to take.
        owners.give("shared", NewDatasetTeam(team=ARMS), arms)
    with pytest.raises(NotAllowed):  # Nor to be left with others who did not ask for it.
        owners.give("grips", NewDatasetTeam(team=VISION), arms)
    with pytest.raises(NotFound):
        owners.give("grips", EVERYBODY, vision)
    with pytest.raises(NotFound, match="visio'"):
        owners.give("shared", NewDatasetTeam(team=TeamName("visio")), lab)
    assert owners.give("grips", NewDatasetTeam(team=ARMS), arms).team == ARMS
    with pytest.raises(NotFound):  # Of the team above now.
        owners.of("grips", _caller(teams, GRASP))
    assert owners.give("grips", NewDatasetTeam(team=VISION), lab).team == VISION
    with pytest.raises(NotFound):
        owners.of("grips", arms)
    assert owners.give("grips", EVERYBODY, vision).team is None
    assert owners.of("grips", arms).team is None
    seen = [line.target for line in teams.control.people.audit(arms) if line.action == "give a dataset"]
    assert seen == ["grips to arms", "grips to arms", "grips to vision"]


# ---------------------------------------------------------------- looking


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An object store with a dataset of each team, one made of both, and a view of each."""
    folder = tmp_path_factory.mktemp("stock")
    store = open_objects(f"file://{folder / 'objects'}")
    made = [
        version_of(store, record_many(folder / name, 2, first_seed=10 * number), name)
        for number, name in enumerate(("grips", "lamps"))
    ]
    merge(store, [one.name for one in made], dataset="grips-and-lamps")
    for version in made:
        build_view(store, version, ViewRecipe(holdout_fraction=0.5), scratch_dir=folder / "scratch")
    return folder / "objects"


@pytest.fixture
def stocked(teams: World, stock: Path) -> World:
    """A lab with that, where `grips` are of arms and the others of vision."""
    shutil.copytree(stock, teams.objects)
    for dataset, team in (("grips", ARMS), ("lamps", VISION), ("grips-and-lamps", VISION)):
        teams.control.datasets.owners.give(dataset, NewDatasetTeam(team=team))
    return teams


def _view_of(world: World, dataset: str) -> str:
    store = open_objects(f"file://{world.objects}")
    ids = [seen.key.removeprefix("views/").removesuffix(".json") for seen in store.list("views")]
    (found,) = [id for id in ids if dataset in datasets_of_view(store, id)]
    return found


@pytest.mark.slow
def test_who_may_not_read_a_dataset_finds_it_nowhere(stocked: World, api: Api) -> None:
    arms, vision = _headers(stocked, ARMS, TeamRole.VIEWER), _headers(stocked, VISION, TeamRole.VIEWER)

    def names(headers: dict[str, str]) -> dict[str, str]:
        answer = api.http.get("/v1/datasets", headers=headers)
        return {one["name"]: one["team"] for one in answer.json()}

    assert names(arms) == {"grips": "arms"}
    assert names(vision) == {"grips-and-lamps": "vision", "lamps": "vision"}
    assert names(_headers(stocked, LAB, TeamRole.OPERATOR)).keys() == {"grips", "grips-and-lamps", "lamps"}
    (episode,) = api.http.get("/v1/datasets/lamps/versions/1/episodes?limit=1", headers=vision).json()
    below = f"/v1/datasets/lamps/versions/1/episodes/{episode['id']}"
    hidden = ["/v1/datasets/lamps", "/v1/datasets/lamps/versions/1/episodes", below, f"{below}/pictures"]
    for path in hidden:
        seen = path.endswith("/pictures") or api.http.get(path, headers=vision).status_code == 200
        assert seen, path
        told = api.problem(api.http.get(path, headers=arms), 404)
        nothing = api.problem(api.http.get(path.replace("lamps", "lampz"), headers=arms), 404)
        assert told.detail == nothing.detail.replace("lampz", "lamps")  # As of one that there is not.
    near = api.problem(api.http.get("/v1/datasets/lampz", headers=arms), 404)
    assert "lamps" not in near.detail
    assert "lamps" in api.problem(api.http.get("/v1/datasets/lampz", headers=vision), 404).detail
    api.problem(api.http.get("/v1/datasets/lamps/team", headers=arms), 404)


@pytest.mark.slow
def test_lineage_names_what_may_be_read_alone(stocked: World, api: Api) -> None:
    def shown(dataset: str, team: str) -> DatasetDetail:
        answer = api.http.get(f"/v1/datasets/{dataset}", headers=_headers(stocked, team, TeamRole.VIEWER))
        return decode(DatasetDetail, answer.content)

    grips = shown("grips", ARMS)
    assert {link.kind for link in grips.lineage} == {"view"}
    assert "lamps" not in str(encode(grips))
    both = shown("grips-and-lamps", VISION)
    assert both.versions[0].inputs == ("lamps@1",)
    assert "grips@1" not in str(encode(both))
    stocked.control.datasets.owners.give("grips-and-lamps", EVERYBODY)
    assert "grips-and-lamps@1" in {link.id for link in shown("grips", ARMS).lineage}
    every = decode(DatasetView, encode(stocked.control.datasets.every(_caller(stocked, ARMS))[0]))
    assert (every.name, every.team) == ("grips", ARMS)


# ---------------------------------------------------------------- sending


@pytest.fixture
def inboxes(teams: World, api: Api, served: Served, tmp_path: Path) -> Iterator[Inboxes]:
    made = Inboxes(tmp_path / "arrivals")
    served.app.state.arrivals = made
    yield made
    served.app.state.arrivals = None


def test_recordings_and_recipes_come_to_datasets_of_ones_team_or_everybodys(
    teams: World, api: Api, inboxes: Inboxes
) -> None:
    arms, vision = _headers(teams, ARMS), _headers(teams, VISION)
    said: dict[str, str | int] = {"id": "0" * 64, "size": 4}

    def sent(dataset: str, headers: dict[str, str], name: str = "a.mcap") -> int:
        path = f"/v1/datasets/{dataset}/arrivals/{name}"
        return api.http.put(path, params=said, content=b"ab", headers=headers).status_code

    (inboxes.folder / "before").mkdir(parents=True)  # Sent to before anybody owned datasets.
    assert [sent("new", arms), sent("new", vision)] == [200, 404]
    assert [sent("before", arms), sent("before", vision, "b.mcap")] == [200, 200]
    assert sent("wrong", arms, "passwd") == 400
    with teams.control.store.read() as connection:
        assert teams_of_datasets(connection) == {"new": ARMS}
    path = "/v1/datasets/new/arrivals/a.mcap"
    assert api.http.get(path, params=said, headers=arms).json()["offset"] == 2
    api.problem(api.http.get(path, params=said, headers=vision), 404)
    for dataset, headers, status in (("new", vision, 404), ("new", arms, 204), ("ruled", vision, 204)):
        answer = api.http.put(f"/v1/datasets/{dataset}/recipe", content=_RECIPE, headers=headers)
        assert answer.status_code == status, answer.text
    assert sent("ruled", arms) == 404


_RECIPE = b"""
rate_hz: 20
columns:
  state: [{topic: /observation/state, field: values, tolerance_ms: 25}]
  action: [{topic: /action, field: values, tolerance_ms: 25}]
task: {text: pick}
"""


def _robot(world: World, name: str) -> Caller:
    """A robot's own token, of the team whose people look."""
    return replace(_caller(world, VISION), holder=name)


def _clip(robot: str, number: int) -> ClipEntry:
    return ClipEntry(
        id=f"{number:064x}",
        name=f"{robot}-{number}.mcap",
        size_bytes=10,
        robot=robot,
        begun_ns=number,
        ended_ns=number + 1,
        triggers=("failed",),
        priority=Tier.STANDARD,
        send=False,
    )


def test_clips_go_to_datasets_of_their_robots_team_or_everybodys(teams: World) -> None:
    control = teams.control
    clips, owners, lab = control.clips, control.datasets.owners, _caller(teams, LAB, TeamRole.ADMIN)
    for robot, team in (("arm-1", ARMS), ("eye-1", VISION)):
        control.robots.invite(NewRobot(name=robot, team=team, plain=True))
    told = {robot: ClipCatalog(clips=(_clip(robot, number),)) for number, robot in enumerate(("arm-1", "eye-1", "x"))}
    clips.tell("grips", told["arm-1"], lab)  # By a gateway of the whole lab: it is the robot's team's all the same.
    assert owners.of("grips").team == ARMS
    for robot, caller in (("eye-1", lab), ("eye-1", _robot(teams, "eye-1")), ("x", _robot(teams, "x"))):
        with pytest.raises(NotFound):
            clips.tell("grips", told[robot], caller)
    with pytest.raises(NotFound):  # One of another team in the same catalog.
        clips.tell("grips", ClipCatalog(clips=(_clip("arm-1", 5), _clip("eye-1", 6))), lab)
    clips.tell("lamps", told["x"], _robot(teams, "x"))  # One that is not enrolled is of who tells of it.
    owners.begin("shared")
    for robot in ("arm-1", "eye-1"):
        clips.tell("shared", told[robot], lab)
    seen = {
        team: {(one.dataset, one.clip.robot) for one in clips.every(_caller(teams, team))} for team in (ARMS, VISION)
    }
    shared = {("shared", "arm-1"), ("shared", "eye-1")}
    assert seen == {ARMS: {("grips", "arm-1"), *shared}, VISION: {("lamps", "x"), *shared}}
    assert clips.every(_caller(teams, ARMS), dataset="lamps") == ()
    id = told["x"].clips[0].id
    with pytest.raises(NotFound):
        clips.ask(ClipsAsked(ids=(id,)), _caller(teams, ARMS))
    assert clips.ask(ClipsAsked(ids=(id,)), _caller(teams, VISION)).ids == (id,)
    control.people.set_team(Team(name=VISION, parent=TeamName(LAB), open=True))
    with pytest.raises(NotAllowed):  # Read by all now, and still not theirs to ask for.
        clips.ask(ClipsAsked(ids=(id,)), _caller(teams, ARMS))


# ---------------------------------------------------------------- jobs


@pytest.mark.slow
def test_jobs_name_data_that_their_submitter_and_their_team_may_read(stocked: World, api: Api) -> None:
    control, arms, lab = stocked.control, _caller(stocked, ARMS), _caller(stocked, LAB, TeamRole.ADMIN)
    mine, theirs = _view_of(stocked, "grips"), _view_of(stocked, "lamps")
    fine = stocked.spec(team=ARMS, inputs=("grips@1",), views=(mine,))
    control.submit(Submit(spec=fine), arms)
    for named in ({"inputs": ("lamps@1",)}, {"inputs": ("lamps",)}, {"views": (theirs,)}, {"views": (mine, theirs)}):
        spec = replace(fine, **{"inputs": (), "views": (), **named})  # type: ignore[arg-type]
        served = NewService(spec=replace(spec, name="served", kind=JobKind.SERVICE), scale=NewScale(replicas=1))
        with pytest.raises(NotFound, match=next(iter(named))):
            control.submit(Submit(spec=spec), arms)
        with pytest.raises(NotFound):
            control.services.make(served, arms)
        with pytest.raises(
            NotAllowed, match="people of that team may not read"
        ):  # Who may, and arms would by way of it.
            control.submit(Submit(spec=spec), lab)
    answer = api.http.post(
        "/v1/jobs", content=encode(Submit(spec=replace(fine, views=(theirs,)))), headers=_headers(stocked, ARMS)
    )
    api.problem(answer, 404)
    assert len(control.jobs(limit=50)) == 1
    control.datasets.owners.give("lamps", EVERYBODY)
    control.submit(Submit(spec=replace(fine, inputs=("lamps@1",), views=(mine, theirs))), arms)


@pytest.mark.slow
def test_a_view_is_also_of_another_dataset_of_the_same_episodes(stocked: World, tmp_path: Path) -> None:
    store, view = open_objects(f"file://{stocked.objects}"), _view_of(stocked, "lamps")
    same = select(store, resolve(store, "lamps@1"), "true", dataset="lamps-again")
    made = build_view(store, same, ViewRecipe(holdout_fraction=0.5), scratch_dir=tmp_path / "scratch")
    assert made.id == view
    assert datasets_of_view(store, view) == ("lamps", "lamps-again")
    spec = stocked.spec(team=ARMS, views=(view,))
    stocked.control.submit(Submit(spec=spec), _caller(stocked, ARMS))  # `lamps-again` is everybody's.
    stocked.control.datasets.owners.give("lamps-again", NewDatasetTeam(team=VISION))
    with pytest.raises(NotFound, match="views"):
        stocked.control.submit(Submit(spec=spec), _caller(stocked, ARMS))


@pytest.mark.slow
def test_a_view_of_an_older_release_is_of_the_dataset_whose_version_says_so(stocked: World) -> None:
    store, view = open_objects(f"file://{stocked.objects}"), _view_of(stocked, "lamps")
    store.delete(f"datasets_of_views/{view}/lamps")
    assert datasets_of_view(store, view) == ("lamps",)
    assert datasets_of_view(store, "nothing") == ()


@pytest.mark.slow
def test_ranks_get_no_session_for_a_view_whose_dataset_is_another_teams_by_now(stocked: World) -> None:
    control, view, grants = stocked.control, _view_of(stocked, "grips"), Given()
    job = control.submit(Submit(spec=stocked.spec(team=ARMS, views=(view,))), _caller(stocked, ARMS)).id
    stocked.run(job)
    order = next(iter(stocked.orders_of(job).values()))
    caller = control.entered(order.token, attempt=order.attempt)
    wanted = ViewCredentialsWanted(allocation=order.allocation, view=view)

    def ask() -> StoreCredentials:
        return granted(control.store, wanted, caller, grants=grants, owners=control.datasets.owners)

    ask()
    assert [access.objects for access in grants.asked] == [(f"views/{view}.json",)]
    control.datasets.owners.give("grips", NewDatasetTeam(team=VISION))
    with pytest.raises(NotFound, match="no view"):
        ask()
    assert len(grants.asked) == 1


# ---------------------------------------------------------------- the store


def test_owners_go_with_the_table_and_everything_is_everybodys_again(teams: World) -> None:
    owners = teams.control.datasets.owners
    teams.control.robots.invite(NewRobot(name="arm-1", team=ARMS, plain=True))
    owners.begin("grips", _caller(teams, ARMS))
    owners.begin("shared", _caller(teams, LAB))
    teams.control.store.close()
    bring_back(teams.url, "0027", None, now_s=teams.clock.now_s())
    open_store(teams.url).close()
    teams.restart()
    owners = teams.control.datasets.owners
    with teams.control.store.read() as connection:
        assert teams_of_datasets(connection) == {}
    assert teams.control.robots.show("arm-1").team == ARMS
    assert owners.begin("grips", _caller(teams, VISION), there=True).team is None
    with pytest.raises(MainspringError):
        owners.of("nothing")
