"""The server: one controller at work on a socket, alone on its store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from mainspring.control import AgentAccess, Control, Server, Settings, Tls, TokenRole, listen, open_store
from mainspring.domain.answers import JobView, Submit
from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import Conflict, InvalidInput, NotAllowed
from mainspring.domain.job import LAB
from mainspring.domain.life import JobState
from mainspring.testing import SeededDice

if TYPE_CHECKING:
    from tests.control.conftest import World

SETTINGS = Settings(interval_s=0.05, leader_lease_s=0.6)


class SystemClock:
    def now_s(self) -> float:
        return time.time()

    def monotonic_s(self) -> float:
        return time.monotonic()


class Lab:
    """Servers on one store and one fleet."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.url = f"sqlite:///{folder / 'served.db'}"
        self.servers: list[Server] = []

    def server(self, name: str) -> tuple[Server, Control, str]:
        listener = listen("127.0.0.1", 0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        control = Control(
            store=open_store(self.url),
            engines=dict(self.world.clusters),
            clock=SystemClock(),
            dice=SeededDice(len(self.servers), name),
            access=AgentAccess(controller_url=url, objects_url="file:///objects", key="a key"),
            settings=SETTINGS,
        )
        made = Server(control, listener)
        self.servers.append(made)
        return made, control, url


@pytest.fixture
def lab(world: World, tmp_path: Path) -> Iterator[Lab]:
    made = Lab(world, tmp_path)
    yield made
    for server in made.servers:
        server.stop()


def wait_for(held: Callable[[], bool]) -> None:
    """Returns once `held` is true; polls the server, which answers as fast as it can."""
    end = time.monotonic() + 10
    while not held():
        assert time.monotonic() < end, "waited 10 s"


@pytest.mark.slow
def test_server_restarted_in_the_middle_of_a_run_goes_on_with_it(lab: Lab) -> None:
    first, control, url = lab.server("first")
    first.start()
    headers = {"Authorization": f"Bearer {control.issue_token(role=TokenRole.ADMIN, team=LAB)}"}
    body = encode(Submit(spec=lab.world.spec()))
    job = decode(JobView, httpx.post(f"{url}/v1/jobs", content=body, headers=headers, trust_env=False).content).id
    wait_for(lambda: control.job(job).state is JobState.STARTING and bool(lab.world.west.orders))
    first.stop()
    second, control, url = lab.server("second")
    second.start()
    assert httpx.get(f"{url}/v1/health", trust_env=False).status_code == 200
    view = decode(JobView, httpx.get(f"{url}/v1/jobs/{job}", headers=headers, trust_env=False).content)
    assert (view.state, len(view.attempts)) == (JobState.STARTING, 1)
    assert len(lab.world.west.orders) == 1


@pytest.mark.slow
def test_second_server_on_one_store_says_that_another_leads(lab: Lab) -> None:
    first, _, _ = lab.server("first")
    first.start()
    second, _, _ = lab.server("second")
    with pytest.raises(Conflict, match="keeps its lease"):
        second.start()


def test_port_in_use_is_told_with_its_number() -> None:
    with listen("127.0.0.1", 0) as held:
        port = held.getsockname()[1]
        with pytest.raises(Conflict, match=f"port {port}.*another port"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "example.org"])
def test_public_address_without_tls_is_refused(host: str) -> None:
    with pytest.raises(NotAllowed, match="TLS"):
        listen(host, 0)


def test_address_of_another_machine_is_refused() -> None:
    with pytest.raises(InvalidInput, match="address of this machine"):
        listen("192.0.2.1", 0, tls=Tls(certificate=Path("chain.pem"), key=Path("key.pem")))
