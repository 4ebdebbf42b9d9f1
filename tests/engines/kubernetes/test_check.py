"""A look at a set-up on a real control plane, whose pods run: clocks that differ, a server that answers or does not."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from mainspring.app.base.system import SystemClock
from mainspring.domain.ports import Clock
from mainspring.engines.common.kind import CheckResult, EngineContext, Finding
from mainspring.engines.kubernetes.kind import check
from mainspring.engines.kubernetes.setup.findings import STEPS
from mainspring.testing import FakeClock
from mainspring.testing.kubernetes import KubernetesServer, kubernetes_missing, settings_on
from mainspring.testing.kubernetes_pods import PodRunner, pods_missing
from tests.contracts.on_kubernetes import kubernetes_of

MISSING = kubernetes_missing() or pods_missing()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=MISSING)]
OK, FAILED = CheckResult.OK, CheckResult.FAILED


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesServer]:
    folder = tmp_path_factory.mktemp("kubernetes")
    with kubernetes_of(folder, 1) as started:
        pods = PodRunner(started, folder / "pods", space="default", environment=dict(os.environ), clock=SystemClock())
        yield started
        pods.close()


@contextmanager
def controller(ahead_s: float) -> Iterator[str]:
    """Gives the URL of a server whose clock is ahead of this machine's."""

    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def date_time_string(self, timestamp: float | None = None) -> str:
            return formatdate(SystemClock().now_s() + ahead_s, usegmt=True)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Health) as made:
        Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{made.server_address[1]}"
        made.shutdown()


def looked(server: KubernetesServer, url: str, clock: Clock | None = None) -> Mapping[str, Finding]:
    cluster = settings_on(server, namespace="default")
    context = EngineContext(environment=os.environ, certificate="", clock=clock or SystemClock())
    found = list(check(cluster, context, url))
    assert tuple(each.name for each in found) == STEPS
    return {each.name: each for each in found}


@pytest.mark.parametrize(
    ("ahead_s", "standing", "words"),
    [(0.0, OK, "within a second"), (90.0, FAILED, "behind"), (-600.0, FAILED, "ahead")],
)
def test_clock_of_a_node_is_held_against_the_servers(
    server: KubernetesServer, ahead_s: float, standing: CheckResult, words: str
) -> None:
    with controller(ahead_s) as url:
        found = looked(server, url)
    assert (found["clocks"].standing, found["server from a pod"].standing) == (standing, OK)
    assert words in found["clocks"].found
    assert ("NTP" in found["clocks"].fix) is (standing is FAILED)


def test_without_a_server_clocks_are_held_against_this_machines(server: KubernetesServer) -> None:
    assert looked(server, "")["clocks"].found == "within a second"


def test_clock_of_the_api_is_held_against_this_machines(server: KubernetesServer) -> None:
    clock = FakeClock(SystemClock().now_s() - 3_600.0)
    found = looked(server, "", clock)["clocks"]
    assert (found.standing, found.found.partition(" is ")[0]) == (FAILED, "the API server")
    assert found.found.endswith(" s ahead")
