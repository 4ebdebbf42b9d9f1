"""Whose views are: what that costs others, and what a job is given of those that it names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from tests.control.calling import Api
from tests.control.granting import Given

from mainspring.control import Caller
from mainspring.control.service.stored.access import granted
from mainspring.data.views.places import datasets_of_view, record_dataset, view_key
from mainspring.domain.answers import NewDatasetTeam, NewScale, NewService, NewVersion, Submit
from mainspring.domain.codec import encode
from mainspring.domain.errors import NotFound
from mainspring.domain.ids import TeamName
from mainspring.domain.job import LAB, JobKind
from mainspring.domain.routes import KEY_HEADER
from mainspring.domain.team import Team, TeamRole
from mainspring.domain.wire import ViewCredentialsWanted
from mainspring.objects import ObjectStore, open_store

if TYPE_CHECKING:
    from tests.control.conftest import World

VISION, ARMS = TeamName("vision"), TeamName("arms")
WAIT_S = 120.0  # The longest that a slow machine is waited for.


@pytest.fixture
def teams(world: World) -> World:
    """A lab of two teams, with a dataset and a view of each."""
    for name, parent in ((TeamName(LAB), None), (VISION, LAB), (ARMS, LAB)):
        world.control.people.set_team(Team(name=name, parent=parent))
    for dataset, team in (("grips", ARMS), ("lamps", VISION)):
        _objects(world).put(f"catalog/{dataset}/000001.json", b"{}")
        _objects(world).put(view_key(f"of-{dataset}"), b"{}")
        record_dataset(_objects(world), f"of-{dataset}", dataset)
        world.control.datasets.owners.give(dataset, NewDatasetTeam(team=team))
    return world


def _objects(world: World) -> ObjectStore:
    return open_store(f"file://{world.objects}")


def _caller(world: World, team: str) -> Caller:
    return world.control.people.caller(world.token(TeamRole.MEMBER, team=team, holder=f"member-{team}"))


@contextmanager
def _listening(world: World, listen: Callable[[str], None]) -> Iterator[None]:
    """Calls something with every statement that the store is asked."""

    def told(_: object, __: object, statement: str, *___: object) -> None:
        listen(statement)

    engine = world.control.store.engine
    sa.event.listen(engine, "before_cursor_execute", told)
    try:
        yield
    finally:
        sa.event.remove(engine, "before_cursor_execute", told)


def test_submits_wait_for_nobody_whose_views_are_looked_up_slowly(teams: World, api: Api) -> None:
    looking, served = Event(), Event()

    def wait(statement: str) -> None:
        if "FROM dataset_owners" in statement:
            looking.set()
            assert served.wait(WAIT_S)

    def send(views: tuple[str, ...]) -> int:
        headers = {"Authorization": f"Bearer {teams.token(TeamRole.MEMBER, team=ARMS, holder=f'bo-{len(views)}')}"}
        spec = teams.spec(team=ARMS, views=views)
        content = encode(Submit(spec=spec))
        return api.http.post("/v1/jobs", content=content, headers=headers, timeout=2 * WAIT_S).status_code

    with _listening(teams, wait), ThreadPoolExecutor(2) as threads:
        slow = threads.submit(send, ("of-grips",))
        try:
            assert looking.wait(WAIT_S)
            assert threads.submit(send, ()).result(WAIT_S / 2) == 200
        finally:
            served.set()
        assert slow.result(WAIT_S) == 200
    assert send(("of-lamps",)) == 404


def test_views_of_a_service_are_looked_up_in_no_writers_turn(teams: World, api: Api) -> None:
    token, joined = teams.token(TeamRole.MEMBER, team=ARMS, holder="member-arms"), list[bool]()

    def send(path: str, asked: object, key: str) -> int:
        headers = {"Authorization": f"Bearer {token}", KEY_HEADER: f'"{key}"'}
        return api.http.post(path, content=encode(asked), headers=headers).status_code

    def note(statement: str) -> None:
        if "FROM dataset_owners" in statement:
            joined.append(teams.control.store.joining)

    served = replace(teams.spec("served", team=ARMS), kind=JobKind.SERVICE)
    scale, versions = NewScale(replicas=1), "/v1/services/served/versions"
    with _listening(teams, note):
        for number, (view, status) in enumerate((("of-lamps", 404), ("of-grips", 200))):
            spec = replace(served, views=(view,))
            assert send("/v1/services", NewService(spec=spec, scale=scale), f"{number}-a") == status
            assert send(versions, NewVersion(spec=replace(spec, duration_s=9.0)), f"{number}-b") == status
    assert joined == [False] * 4


def test_a_view_that_may_be_read_is_looked_up_once_and_one_that_may_not_again(teams: World) -> None:
    owners = teams.control.datasets.owners
    assert owners.readable_views(["of-grips", "of-lamps"], ARMS, most=9) == ("of-grips",)
    record_dataset(_objects(teams), "of-lamps", "grips")
    assert owners.readable_views(["of-grips", "of-lamps"], ARMS, most=9) == ("of-grips", "of-lamps")
    _objects(teams).delete("datasets_of_views/of-lamps/grips")  # As if the object store were away: it is not asked.
    assert owners.readable_views(["of-grips", "of-lamps"], ARMS, most=9) == ("of-grips", "of-lamps")
    owners.give("grips", NewDatasetTeam(team=VISION))
    assert owners.readable_views(["of-grips", "of-lamps"], ARMS, most=9) == ()


def test_owners_are_read_once_for_all_that_a_call_names(teams: World) -> None:
    read: list[str] = []

    def note(statement: str) -> None:
        if "FROM dataset_owners" in statement:
            read.append(statement)

    specs = [teams.spec(team=ARMS, inputs=(f"grips@{number}",), views=("of-grips",)) for number in range(20)]
    with _listening(teams, note):
        teams.control.datasets.owners.require_named(specs, _caller(teams, ARMS))
    assert len(read) == 1


def test_a_view_of_an_older_release_is_looked_for_once_and_one_that_is_not_there_never(teams: World) -> None:
    store = _objects(teams)
    for dataset in ("lamps", "grips"):
        store.put(f"uses/{dataset}/000001/view/old", b"")
    assert datasets_of_view(store, "old") == ()
    store.put(view_key("old"), b"{}")
    assert datasets_of_view(store, "old") == ("grips", "lamps")
    for seen in store.list("uses"):
        store.delete(seen.key)
    assert datasets_of_view(store, "old") == ("grips", "lamps")


def test_who_repeats_a_call_hears_of_their_job_whatever_became_of_its_data(teams: World) -> None:
    control, arms = teams.control, _caller(teams, ARMS)
    asked = Submit(spec=teams.spec(team=ARMS, inputs=("grips@1",), views=("of-grips",)), key="once")
    made = control.submit(asked, arms)
    control.datasets.owners.give("grips", NewDatasetTeam(team=VISION))
    assert control.submit(asked, arms).id == made.id
    with pytest.raises(NotFound, match="inputs"):
        control.submit(Submit(spec=asked.spec, key="twice"), arms)
    with pytest.raises(NotFound, match="inputs"):
        control.submit(Submit(spec=asked.spec), arms)


def test_views_that_are_another_teams_by_now_take_no_room_of_those_that_are_opened(teams: World) -> None:
    control, grants = teams.control, Given()
    names = ("grips-1", "grips-2", "grips-3")
    for name in names:
        record_dataset(_objects(teams), f"of-{name}", name)
        _objects(teams).put(f"catalog/{name}/000001.json", b"{}")
        control.datasets.owners.give(name, NewDatasetTeam(team=ARMS))
    spec = teams.spec(team=ARMS, reads=("imported",), views=tuple(f"of-{name}" for name in names))
    job = control.submit(Submit(spec=spec), _caller(teams, ARMS)).id
    for name in names[:2]:
        control.datasets.owners.give(name, NewDatasetTeam(team=VISION))
    teams.run(job)
    order = next(iter(teams.orders_of(job).values()))
    caller = control.entered(order.token, attempt=order.attempt)
    wanted = ViewCredentialsWanted(allocation=order.allocation, view="")
    granted(control.store, wanted, caller, grants=grants, owners=control.datasets.owners)
    assert grants.asked[-1].objects == (view_key("of-grips-3"),)
