"""The proxy beside a home's server: there when somebody calls, again when it dies, and gone with `ms down`."""

from __future__ import annotations

import os
import signal

import httpx
import pytest

from mainspring.app.sdk.lab import Lab
from mainspring.app.sdk.policies.services import replica_spec
from mainspring.app.server.daemon import running
from mainspring.domain.answers import NewScale, NewService
from tests.app.conftest import until


def _refused(address: str) -> bool:
    """Returns whether the proxy answers, having asked the server who a stranger is."""
    url = address.replace("ws", "http", 1)
    wanted = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    wanted |= {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Authorization": "Api-Key nobodys"}
    return httpx.get(url, headers=wanted, timeout=60.0).status_code == 403


def _proxy(lab: Lab) -> int:
    record = lab.home.server("proxy")
    assert record is not None
    return record.pid if running(record, lab.home, "proxy") else 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_service_has_one_address_whatever_becomes_of_the_proxy_and_of_the_server(lab: Lab) -> None:
    spec = replica_spec(lab, "pick:act", name="pick", on=["h100"])
    address = lab.serve(NewService(spec=spec, scale=NewScale(replicas=1))).address
    assert address.startswith("ws://127.0.0.1:")
    assert address.endswith("/v1/services/pick")
    try:
        assert lab.home.server("proxy") is None, "nobody has called"
        assert _refused(address)
        first = _proxy(lab)
        os.kill(first, signal.SIGKILL)
        until(lambda: not _proxy(lab), "the proxy to be gone")
        assert _refused(address)
        second = _proxy(lab)
        assert second not in (0, first)
        server = lab.home.server()
        assert server is not None
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: not running(server, lab.home), "the server to be gone")
        assert _proxy(lab) == second
        lab.up()
        assert lab.service("pick").address == address
        assert _refused(address)
        assert _proxy(lab) == second, "its robots stay connected"
        lab.down()
        assert not _proxy(lab)
        with pytest.raises(httpx.ConnectError):
            _refused(address)
    finally:
        lab.up()
        lab.stop_service("pick")
