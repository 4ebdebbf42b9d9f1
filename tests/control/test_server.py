"""The server: one controller at work on a socket, alone on its store."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import httpx
import pytest

from mainspring.control import Tls, listen
from mainspring.domain.answers import Health, HealthStatus, JobView, NewToken, Submit
from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import Conflict, InvalidInput, NotAllowed
from mainspring.domain.life import JobState
from mainspring.domain.team import TeamRole

if TYPE_CHECKING:
    from tests.control.serving import Lab


def wait_for(held: Callable[[], bool]) -> None:
    """Returns once `held` is true; polls the server, which answers as fast as it can."""
    end = time.monotonic() + 120
    while not held():
        assert time.monotonic() < end, "waited 120 s"


@pytest.mark.slow
def test_server_restarted_in_the_middle_of_a_run_goes_on_with_it(lab: Lab) -> None:
    first, control, url = lab.server("first")
    first.start()
    headers = {
        "Authorization": f"Bearer {control.people.new_token(NewToken(holder='ada', role=TeamRole.ADMIN)).secret}"
    }
    body = encode(Submit(spec=lab.world.spec()))
    job = decode(JobView, httpx.post(f"{url}/v1/jobs", content=body, headers=headers, trust_env=False).content).id
    wait_for(lambda: control.job(job).state is JobState.STARTING and bool(lab.world.west.orders))
    first.stop()
    second, control, url = lab.server("second")
    second.start()
    assert [one.used_s is not None for one in control.people.tokens()] == [True], (
        "the first had written it when it ended"
    )
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


@pytest.mark.slow
def test_a_server_is_ready_once_it_leads(lab: Lab) -> None:
    first, control, url = lab.server("first")
    with control.store.write():  # Nobody else may write meanwhile.
        starting = Thread(target=first.start)
        starting.start()
        wait_for(lambda: _probe(url, "readyz")[0] == 503)
        assert _probe(url, "livez")[0] == 200
    starting.join()
    status, health = _probe(url, "readyz")
    assert (status, health.status) == (200, HealthStatus.OK)


@pytest.mark.slow
def test_a_server_that_ends_says_so_and_ends_streams_before_it_hangs_up(lab: Lab) -> None:
    server, control, url = lab.server("only")
    server.start()
    secret = control.people.new_token(NewToken(holder="ada", role=TeamRole.ADMIN)).secret
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {secret}"}, trust_env=False) as client:
        follow = {"follow": "true"}
        with client.stream("GET", "/v1/events", params=follow) as stream:
            with control.store.write():  # The loop waits for its turn, and so does the lead that is given back.
                stopping = Thread(target=server.stop)
                stopping.start()
                wait_for(lambda: _probe(url, "readyz")[0] == 503)
                assert _probe(url, "livez")[0] == 200
                assert "event: end" not in stream.read().decode()
                refused = client.get("/v1/events", params=follow)
                assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
                assert client.get("/v1/jobs").status_code == 200
            stopping.join()
    assert control.store.leader().holder == ""
    with pytest.raises(httpx.ConnectError):
        _probe(url, "livez")


def _probe(url: str, name: str) -> tuple[int, Health]:
    answer = httpx.get(f"{url}/{name}", trust_env=False)
    return answer.status_code, decode(Health, answer.content)


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
