"""Clients and servers of other releases: what is too far is refused by name, by whichever end is of this one."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest

from mainspring.app.base.async_client import AsyncClient
from mainspring.app.base.client import Client
from mainspring.app.base.system import SystemClock
from mainspring.app.render.tables import state_text, states_text
from mainspring.domain.codec import to_plain
from mainspring.domain.errors import InvalidMessage, OtherRelease
from mainspring.domain.ids import AllocationId, AttemptId, ChipName, NodeName, RoleName
from mainspring.domain.job import JobSpec, Option, Role
from mainspring.domain.life import JobState
from mainspring.domain.release import RELEASE, RELEASE_HEADER
from mainspring.domain.wire import Register
from mainspring.node.net.controller import ControllerClient
from tests.domain.test_release import BEYOND, NEWER

SPEC = JobSpec(
    name="a", roles=(Role(name=RoleName("main"), command=("true",), options=(Option(chip=ChipName("cpu")),)),)
)
JOB = {
    "id": "job-a", "state": "queued", "submitted_s": 0.0, "ended_s": None, "reason": "", "step": 0, "metrics": {},
    "spec": to_plain(SPEC), "result": {}, "attempts": [], "goodput": None,
}  # fmt: skip
TOO_FAR = f"got Mainspring {BEYOND}; wanted Mainspring {RELEASE}, .*; next: upgrade this end"


class Later(BaseHTTPRequestHandler):
    """Answers as a server of a later release does: well, whatever is asked."""

    stated: list[str | None]
    release = BEYOND
    says: object = {}

    def do_GET(self) -> None:
        Later.stated.append(self.headers.get(RELEASE_HEADER))
        body = json.dumps(self.says).encode()
        self.send_response(200)
        self.send_header(RELEASE_HEADER, self.release)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


class Hibernating(Later):
    """A server of the next release, which knows a state of jobs that we do not."""

    release = NEWER
    array: ClassVar = {"first": "job-a", "index": 0, "count": 2, "states": {"queued": 1, "hibernated": 1}}
    says = (JOB | {"state": "hibernated"}, JOB | {"array": array})


class Mistaken(Hibernating):
    """One of our own release that says so all the same."""

    release = RELEASE


@pytest.fixture(params=[Later])
def later(request: pytest.FixtureRequest) -> Iterator[str]:
    Later.stated = []
    server = HTTPServer(("127.0.0.1", 0), request.param)
    serving = threading.Thread(target=server.serve_forever, args=(0.01,))
    serving.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    serving.join()
    server.server_close()
    assert set(Later.stated) == {RELEASE}


def test_server_too_far_from_its_clients_is_refused_by_each_of_them(later: str) -> None:
    with Client(later, "") as client:
        for call in (client.teams, client.ready, lambda: next(client.watch())):
            with pytest.raises(OtherRelease, match=TOO_FAR):
                call()

    async def scenario() -> None:
        async with AsyncClient(later, "") as client:
            with pytest.raises(OtherRelease, match=TOO_FAR):
                await client.teams()
            with pytest.raises(OtherRelease, match=TOO_FAR):
                await anext(client.watch())
        agent = ControllerClient((later,), "a-token", SystemClock(), attempt=AttemptId("b"))
        with pytest.raises(OtherRelease, match=TOO_FAR):
            await agent.register(Register(allocation=AllocationId("a"), node=NodeName("n"), address="n:7"))
        await agent.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("later", [Hibernating, Mistaken], indirect=True)
def test_state_that_only_a_newer_server_knows_is_shown(later: str, request: pytest.FixtureRequest) -> None:
    with Client(later, "") as client:
        if "Mistaken" in request.node.name:
            with pytest.raises(InvalidMessage, match="hibernated"):
                client.ps()
            return
        alone, member = client.ps()
    assert alone.state.value == "hibernated"
    assert alone.state not in set(JobState)
    assert to_plain(alone)["state"] == "hibernated"
    assert state_text(alone.state).plain == "hibernated"
    assert states_text(member).plain == "1 queued, 1 hibernated"
