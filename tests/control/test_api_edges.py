"""The API where it ends: streams whose reader may no longer read, what cannot be served, and faults of our own."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import httpx
import pytest
from fastapi.routing import APIRoute
from starlette.routing import Match
from tests.control.calling import Api, Served

from mainspring.control.api import create_app
from mainspring.control.api_streams import Followers
from mainspring.control.connections import listen
from mainspring.control.server import Server
from mainspring.domain.answers import Submit
from mainspring.domain.codec import encode
from mainspring.domain.fleet import LogChunk
from mainspring.domain.ids import AllocationId, TeamName
from mainspring.domain.job import LAB
from mainspring.domain.team import Team, TeamRole
from mainspring.testing import FakeEngine

if TYPE_CHECKING:
    from tests.control.conftest import World


class Chatty(FakeEngine):
    """Its ranks write all the time."""

    def logs(self, allocation: AllocationId, *, rank: int, since: int, limit: int) -> LogChunk:
        return LogChunk(data=b".", next_offset=since + 1)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["/v1/events", "/v1/jobs/busy/logs"])
def test_stream_ends_once_the_token_is_removed_however_much_it_says(api: Api, served: Served, what: str) -> None:
    world = api.world
    world.west.inner = Chatty(world.west.inner.inventory(), world.clock)
    world.run(api.submit(world.spec("busy")).id)
    served.app.state.followers = Followers(quiet_s=0.05, asked_s=0.2)
    with api.http.stream("GET", f"{what}?follow=true", headers=api.viewer, timeout=120) as answer:
        lines = answer.iter_lines()
        next(lines)
        for token in world.control.people.tokens():
            if token.role is TeamRole.VIEWER:
                world.control.people.remove_token(token.id)
        for count, _ in enumerate(lines):
            assert count < 100_000, "it goes on"
    assert api.http.get("/v1/jobs", headers=api.viewer).status_code == 401


@pytest.mark.slow
def test_stream_of_a_job_ends_once_its_team_is_no_longer_open(api: Api, served: Served) -> None:
    world = api.world
    world.west.inner = Chatty(world.west.inner.inventory(), world.clock)
    for team in (
        Team(name=LAB),
        Team(name=TeamName("legs"), parent=LAB),
        Team(name=TeamName("arms"), parent=LAB, open=True),
    ):
        world.control.people.set_team(team)
    world.run(api.submit(world.spec("busy", team=TeamName("arms"))).id)
    served.app.state.followers = Followers(asked_s=0.2)
    headers = {"Authorization": f"Bearer {world.token(TeamRole.VIEWER, team='legs')}"}
    with api.http.stream("GET", "/v1/jobs/busy/logs?follow=true", headers=headers, timeout=120) as answer:
        lines = answer.iter_lines()
        next(lines)
        world.control.people.set_team(Team(name=TeamName("arms"), parent=LAB))
        for count, _ in enumerate(lines):
            assert count < 100_000, "it goes on"


def test_a_wrong_method_is_told_every_right_one(api: Api) -> None:
    answer = api.http.delete("/v1/jobs", headers=api.member)
    api.problem(answer, 405)
    assert answer.headers["Allow"] == "GET, POST"


def test_a_route_is_passed_over_only_where_its_pattern_does_not_match(world: World) -> None:
    routes = [one for one in create_app(world.control).routes if isinstance(one, APIRoute)]
    paths = {re.sub(r"{[^}]*}", "a-1", one.path) for one in routes}
    paths |= {f"{path}{more}" for path in paths for more in ("/", "/a-1", "x")} | {"", "/", "/v1"}
    found = [0] * len(routes)
    for root in ("", "/lab"):
        for path in sorted(paths):
            scope = {"type": "http", "method": "GET", "path": root + path, "root_path": root}
            for number, route in enumerate(routes):
                match, _ = route.matches(scope)
                assert match is APIRoute.matches(route, scope)[0], f"{route.path} and {root}{path}"
                found[number] += match is not Match.NONE
    assert min(found) >= 2, "each is found by its own path, mounted or not"


def test_a_fault_of_ours_is_a_problem_that_gives_nothing_away(api: Api, served: Served) -> None:
    served.app.state.control = "a password"
    answer = api.http.get("/v1/job-counts", headers=api.viewer)
    assert "AttributeError" in api.problem(answer, 500).got
    assert "password" not in answer.text


@pytest.mark.slow
@pytest.mark.parametrize("proxied", [True, False])
def test_only_where_a_proxy_is_declared_it_tells_where_a_call_came_from(api: Api, *, proxied: bool) -> None:
    listener = listen("127.0.0.1", 0)
    server = Server(api.world.control, listener, proxied=proxied)
    server.start()
    api.http.post(
        f"http://127.0.0.1:{listener.getsockname()[1]}/v1/tokens",
        content=b'{"holder": "bo"}',
        headers=api.admin | {"X-Forwarded-For": "192.0.2.7"},
    ).raise_for_status()
    server.stop()
    assert api.world.control.people.audit()[-1].address == ("192.0.2.7" if proxied else "127.0.0.1")


@pytest.mark.slow
def test_submits_that_come_at_one_time_are_answered_each_by_itself(api: Api) -> None:
    """They wait together while another writes: nobody's fault is another's."""
    world = api.world
    good = encode(Submit(spec=world.spec()))
    unknown = encode(Submit(spec=world.spec(team=TeamName("nobody"))))
    wanted = {good: 200, b"no json": 400, unknown: 404}
    bodies = [body for _ in range(3) for body in wanted]

    def submit(body: bytes) -> int:
        return httpx.post(f"{api.http.base_url}/v1/jobs", content=body, headers=api.member, timeout=120).status_code

    def refused() -> int:
        return httpx.post(f"{api.http.base_url}/v1/jobs", content=good, headers=api.viewer, timeout=120).status_code

    with ThreadPoolExecutor(len(bodies) + 1) as threads:
        with world.control.store.write():
            told, not_told = [threads.submit(submit, body) for body in bodies], threads.submit(refused)
            assert not any(one.done() for one in wait(told, timeout=1.0).done if one.result() == 200)
        assert [one.result(120) for one in told] == [wanted[body] for body in bodies]
        assert not_told.result(120) == 403
    assert len(world.control.jobs()) == 3
