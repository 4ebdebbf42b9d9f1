"""Pages take answers as they are: they equal what any other client would have decoded, to the last type."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from mainspring.app.web.inside import TAKEN, Inside, Refusal
from mainspring.control import create_app
from mainspring.control.api_releases import HANDED_KEY
from mainspring.domain.answers import ClosureKind, NewClosure, NewHold
from mainspring.domain.ids import JobId, NodeName, TeamName
from mainspring.domain.job import LAB
from mainspring.domain.routes import Calls, Route
from mainspring.domain.team import Team, TeamRole
from tests.control.conftest import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """A lab in which there is something of everything; and its API, with and without handing over."""

    world: World
    api: ASGIApp
    written: ASGIApp
    secret: str
    ran: JobId
    runs: JobId

    def asked(self, *, written: bool) -> Inside:
        return Inside(self.written if written else self.api, self.secret, "127.0.0.1")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    world = World(Path(tmp_path_factory.mktemp("inside")))
    control = world.control
    control.people.set_team(Team(name=LAB))
    control.people.set_team(Team(name=TeamName("arms"), parent=LAB, dollars_max=1e6))
    ran, runs = world.submit(world.spec("ran")), world.submit(world.spec("runs", team=TeamName("arms")))
    for job in (ran, runs):
        world.run(job)
    world.beat(ran, ("rank_exited", {"rank": 0, "exit_code": 1, "last_words": "no"}), seconds={"productive": 5.0})
    world.succeed(ran)
    world.submit(world.spec("wide", replicas=4), count=3)
    many = [world.submit(world.spec(f"waits-{number}", replicas=4)) for number in range(3)]
    control.steering.pause(many[0], NewHold(reason="later"))
    control.care.close("west", "west-3", NewClosure(kind=ClosureKind.CORDON, reason="a fan"))
    world.tick(3)
    api = create_app(control)

    async def written(scope: Scope, receive: Receive, send: Send) -> None:
        await api({name: value for name, value in scope.items() if name != HANDED_KEY}, receive, send)

    yield Filled(world=world, api=api, written=written, secret=world.token(TeamRole.ADMIN), ran=ran, runs=runs)
    control.store.close()


CALLS: Mapping[Route[..., Any], Callable[[Filled], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    Calls.whoami: lambda of: ((), {}),
    Calls.ps: lambda of: ((), {}),
    Calls.job_counts: lambda of: ((), {}),
    Calls.status: lambda of: ((of.ran,), {}),
    Calls.job_events: lambda of: ((of.ran,), {"newest": True}),
    Calls.all_events: lambda of: ((), {"newest": True, "limit": 500}),
    Calls.why: lambda of: (("waits-2",), {"remedies": True}),
    Calls.history: lambda of: ((of.ran,), {}),
    Calls.verdicts: lambda of: ((), {"limit": 200}),
    Calls.plan: lambda of: ((), {}),
    Calls.fleet_map: lambda of: ((), {}),
    Calls.fleet_at: lambda of: ((), {"at_s": of.world.clock.now_s()}),
    Calls.closures: lambda of: ((), {"past": True}),
    Calls.incidents: lambda of: ((), {}),
    Calls.nodes: lambda of: (("west",), {}),
    Calls.node: lambda of: (("west", NodeName("west-3")), {}),
    Calls.node_history: lambda of: (("west", "west-3"), {}),
    Calls.goodput_report: lambda of: ((), {"since_s": 0.0}),
    Calls.promises: lambda of: ((), {}),
    Calls.teams: lambda of: ((), {}),
    Calls.audit: lambda of: ((), {"newest": True}),
}


def differs(one: object, other: object, where: str = "") -> str:
    """Where two values are not of the same types and equal, "" for nowhere; a whole number may stand for any."""
    numbers = {type(one), type(other)} <= {int, float}
    if not numbers and not (isinstance(one, Mapping) and isinstance(other, Mapping)) and type(one) is not type(other):
        return f"{where}: {type(one)} and {type(other)}"
    if is_dataclass(one) and not isinstance(one, type):
        parts = [(f".{part.name}", getattr(one, part.name), getattr(other, part.name)) for part in fields(one)]
    elif isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        parts = [(f"[{at}]", *both) for at, both in enumerate(zip(one, other, strict=True))]
    elif isinstance(one, Mapping) and isinstance(other, Mapping) and one.keys() == other.keys():
        parts = [(f"[{key!r}]", one[key], other[key]) for key in one]
    else:
        return "" if one == other else f"{where}: {one!r} and {other!r}"
    return next(filter(None, (differs(a, b, where + name) for name, a, b in parts)), "")


def test_every_route_that_is_taken_as_it_is_is_held_against_what_is_written() -> None:
    assert CALLS.keys() == TAKEN


@pytest.mark.parametrize("route", [*CALLS], ids=[route.operation for route in CALLS])
def test_answer_that_is_handed_over_equals_what_would_be_decoded(filled: Filled, route: Route[..., Any]) -> None:
    args, kwargs = CALLS[route](filled)

    def ask(*, written: bool) -> object:
        return anyio.run(lambda: filled.asked(written=written).call(route, *args, **kwargs))

    handed, decoded = ask(written=False), ask(written=True)
    assert differs(handed, decoded) == ""
    assert handed is not None
    if route not in (Calls.incidents, Calls.promises):  # In so small a lab there are none.
        assert handed != ()


def test_types_that_decoding_would_not_give_are_found() -> None:
    assert differs(("a",), ["a"])
    assert differs(TeamRole.ADMIN, "admin")
    assert differs({"a": (1,)}, {"a": (2,)})
    assert not differs({"a": (1, None)}, {"a": (1.0, None)})


def test_refusals_are_the_apis_own(filled: Filled) -> None:
    with pytest.raises(Refusal, match="no-such-job") as refused:
        anyio.run(filled.asked(written=False).status, "no-such-job")
    assert refused.value.status == 404
    with pytest.raises(Refusal) as nobody:
        anyio.run(Inside(filled.api, "nobody's", "127.0.0.1").whoami)
    assert nobody.value.status == 401


def test_nothing_that_comes_from_outside_is_handed_over(filled: Filled) -> None:
    """A header is no key of a scope: whoever asks over a socket is answered in writing."""
    body: list[bytes] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        body.append(message.get("body", b""))

    secret = filled.world.token(TeamRole.VIEWER)
    headers = [(b"authorization", f"Bearer {secret}".encode()), (HANDED_KEY.encode(), b"yes")]
    scope = {"type": "http", "method": "GET", "path": "/v1/whoami", "raw_path": b"/v1/whoami", "headers": headers}
    rest = {"query_string": b"", "client": ("127.0.0.1", 1), "server": ("here", 80), "scheme": "http", "root_path": ""}
    anyio.run(filled.api, {**scope, **rest, "http_version": "1.1", "asgi": {"version": "3.0"}}, receive, send)
    assert b'"role":"viewer"' in b"".join(body)
