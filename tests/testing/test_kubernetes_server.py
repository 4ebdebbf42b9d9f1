"""The promises of the one-machine Kubernetes that tests of the engine stand on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from mainspring.domain.errors import Unavailable
from mainspring.testing.kubernetes import KubernetesNodes, KubernetesServer, kubernetes_missing

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(kubernetes_missing()), reason=kubernetes_missing())]

TAINT = {"key": "team", "value": "vla", "effect": "NoSchedule"}
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesServer]:
    nodes = [
        KubernetesNodes(count=2),
        KubernetesNodes(count=1, prefix="t", resource="google.com/tpu", chips=4, taints=(TAINT,)),
    ]
    with KubernetesServer(tmp_path_factory.mktemp("kubernetes"), nodes=nodes) as started:
        yield started


def pod(name: str, resource: str, count: int) -> dict[str, object]:
    amounts = {resource: str(count)}
    container = {"name": "main", "image": "none", "resources": {"limits": amounts}}
    return {"metadata": {"name": name}, "spec": {"containers": [container]}}


def place_of(server: KubernetesServer, name: str) -> str:
    """Returns the node that a pod is bound to, or why it is to none."""
    found = server.call("GET", f"{PODS}/{name}")
    said = [each.get("reason", "") for each in found["status"].get("conditions", ()) if each["type"] == "PodScheduled"]
    return str(found["spec"].get("nodeName") or "".join(said))


def test_pods_go_where_chips_are_and_none_where_a_taint_is(server: KubernetesServer) -> None:
    server.call("POST", PODS, pod("fits", "nvidia.com/gpu", 8))
    server.call("POST", PODS, pod("shut-out", "google.com/tpu", 4))
    server.wait(lambda: bool(place_of(server, "fits") and place_of(server, "shut-out")), "kube-scheduler")
    assert place_of(server, "fits") in {"n1", "n2"}
    assert place_of(server, "shut-out") == "Unschedulable"


def test_killed_api_server_is_gone_and_comes_back_with_what_it_had(server: KubernetesServer) -> None:
    server.kill("kube-apiserver")
    with pytest.raises(httpx.TransportError):
        server.call("GET", "/api/v1/nodes")
    server.serve("kube-apiserver")
    assert [each["metadata"]["name"] for each in server.call("GET", "/api/v1/nodes")["items"]] == ["n1", "n2", "t1"]


def test_stamped_version_is_the_one_it_was_built_from(server: KubernetesServer) -> None:
    modules = Path(__file__).parents[1] / "engines" / "kubernetes" / "go" / "kubernetes" / "go.mod"
    assert f"\tk8s.io/kubernetes {server.call('GET', '/version')['gitVersion']} " in modules.read_text()


def test_refusal_of_the_api_is_quoted(server: KubernetesServer) -> None:
    with pytest.raises(Unavailable, match='nodes \\\\"n9\\\\" not found'):
        server.call("GET", "/api/v1/nodes/n9")
