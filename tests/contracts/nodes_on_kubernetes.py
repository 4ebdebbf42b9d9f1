"""Kubernetes as an engine that orders nodes: a real control plane, and a test that plays the autoscaler.

What would add nodes is not there: `deliver` makes a node for each pod that waits, as an autoscaler would, and says so
in the ProvisioningRequest where there is one. All else is the API server's, its scheduler's and its controllers' own
work, under the account and the policies that `ms cluster manifests` prints, in a namespace that enforces `restricted`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.contracts.on_kubernetes import CALL_S_MAX
from tests.engines.kubernetes.applying import apply

from mainspring.app.base.system import SystemClock
from mainspring.domain.ids import ChipName, ClusterName
from mainspring.engines.kubernetes.api.access import read_kubeconfig
from mainspring.engines.kubernetes.api.client import Api
from mainspring.engines.kubernetes.cluster.config import KubernetesCluster
from mainspring.engines.kubernetes.cluster.offers import NodeOffer
from mainspring.engines.kubernetes.engine import KubernetesEngine
from mainspring.engines.kubernetes.setup.account import AccountWanted
from mainspring.testing import FakeClock
from mainspring.testing.kubernetes import KubernetesNodes, KubernetesServer

H100 = ChipName("h100")
GROUP = "/apis/autoscaling.x-k8s.io/v1"
ATOMIC = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
POOL = {"lab/pool": "spot", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
OFFER = NodeOffer(
    chip=H100,
    chips=8,
    labels={"lab/pool": "spot"},
    nodes_max=4,
    lead_time_s=600.0,
    dollars_per_chip_hour=2.0,
    spot=True,
)


def serve_requests(server: KubernetesServer) -> None:
    """Makes the API know ProvisioningRequests: of their fields those that are used here, and no others."""
    text = {"type": "string"}
    condition = dict.fromkeys(("type", "status", "reason", "message"), text)
    name = {"type": "object", "properties": {"name": text}}
    pods = {"type": "object", "properties": {"podTemplateRef": name, "count": {"type": "integer"}}}
    schema = {
        "spec": {
            "type": "object",
            "properties": {
                "provisioningClassName": text,
                "parameters": {"type": "object", "additionalProperties": text},
                "podSets": {"type": "array", "items": pods},
            },
        },
        "status": {
            "type": "object",
            "properties": {"conditions": {"type": "array", "items": {"type": "object", "properties": condition}}},
        },
    }
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": schema}},
    }
    names = {"plural": "provisioningrequests", "singular": "provisioningrequest", "kind": "ProvisioningRequest"}
    crd: dict[str, Any] = {
        "metadata": {
            "name": "provisioningrequests.autoscaling.x-k8s.io",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/autoscaler/pull/5848"},
        },
        "spec": {"group": "autoscaling.x-k8s.io", "scope": "Namespaced", "names": names, "versions": [version]},
    }
    server.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    server.wait(lambda: server.there(f"{GROUP}/provisioningrequests"), "kube-apiserver")


class KubernetesOrdering:
    """A namespace of its own in a cluster whose nodes are all that are delivered here.

    Args:
        requests: Whether nodes are ordered by ProvisioningRequests.
    """

    def __init__(self, root: Path, server: KubernetesServer, *, requests: bool = False, **settings: Any) -> None:
        self.clock = FakeClock(SystemClock().now_s())  # The API server's own times are those of this machine.
        self.space = f"lab-{os.urandom(4).hex()}"
        self.server = server
        self._requests = requests
        self._settings = settings
        self._made: list[KubernetesEngine] = []
        self._nodes: list[str] = []
        apply(server, AccountWanted(namespace=self.space, offers=True).text())
        account = f"/api/v1/namespaces/{self.space}/serviceaccounts"
        server.wait(lambda: server.there(f"{account}/default"), "kube-controller-manager")
        self._kubeconfig = root / f"{self.space}.yaml"
        server.write_kubeconfig(self._kubeconfig, self.space, "mainspring")

    def close(self) -> None:
        """Ends the threads of its engines, and takes away its nodes, and pods that would take those of others."""
        for engine in self._made:
            engine.close()
        self.call("DELETE", "/apis/batch/v1", "jobs", {"propagationPolicy": "Background"})
        pods = "pods?labelSelector=mainspring/order"
        self.server.wait(lambda: not self.call("GET", "/api/v1", pods)["items"], "kube-controller-manager")
        for name in self._nodes:
            self.server.call("DELETE", f"/api/v1/nodes/{name}")

    def engine(self) -> KubernetesEngine:
        """Returns a new adapter to the same cluster, as after a restart of the controller."""
        told: dict[str, Any] = {
            "offers": {"spot": OFFER},
            "provisioning_class": ATOMIC if self._requests else "",
            "call_s_max": CALL_S_MAX,
        }
        cluster = KubernetesCluster(
            name=ClusterName("alpha"),
            namespace=self.space,
            image="this-machine",
            simulated=True,
            **{**told, **self._settings},
        )
        self._made.append(KubernetesEngine(cluster, self.api(), environment={}, clock=self.clock))
        return self._made[-1]

    def api(self) -> Api:
        """Returns the API as the server's account has it."""
        return Api(
            "alpha",
            lambda: read_kubeconfig(self._kubeconfig, "", environment=os.environ, clock=self.clock),
            call_s=CALL_S_MAX,
        )

    def waiting(self) -> list[str]:
        """Returns the pods that wait for a node."""
        pods = self.call("GET", "/api/v1", "pods?labelSelector=mainspring/order")["items"]
        return [pod["metadata"]["name"] for pod in pods if not pod["spec"].get("nodeName")]

    def deliver(self) -> None:
        """Makes a node for each pod that waits."""
        self.until(lambda: bool(self.waiting()))
        for order in self.call("GET", "/apis/batch/v1", "jobs?labelSelector=mainspring/order")["items"]:
            self.until(lambda count=order["spec"]["parallelism"]: len(self.waiting()) >= count)  # type: ignore[misc]
        self.add(len(self.waiting()))
        for request in self.requests():
            self.say(request, "Provisioned", "they are there")

    def add(self, count: int) -> None:
        """Makes nodes of the offer."""
        nodes = KubernetesNodes(count=count, prefix=f"new-{os.urandom(3).hex()}-", labels=POOL)
        self._nodes += nodes.names
        self.server.add(nodes)

    def deny(self, words: str) -> None:
        """Says that the nodes will not come."""
        self.until(lambda: bool(self.requests()))
        for request in self.requests():
            self.say(request, "Failed", words)

    def requests(self) -> list[dict[str, Any]]:
        """Returns the ProvisioningRequests that are there."""
        found: dict[str, Any] = self.call("GET", GROUP, "provisioningrequests") if self._requests else {"items": []}
        return list(found["items"])

    def say(self, request: dict[str, Any], kind: str, words: str) -> None:
        """Writes a condition of a ProvisioningRequest, as an autoscaler does."""
        said = {"type": kind, "status": "True", "reason": kind, "message": words}
        path, kind = f"provisioningrequests/{request['metadata']['name']}/status", "application/merge-patch+json"
        self.call("PATCH", GROUP, path, {"status": {"conditions": [said]}}, kind=kind)

    def call(self, method: str, group: str, path: str, body: object = None, *, kind: str = "application/json") -> Any:
        """Returns what the API answers its administrator of this namespace."""
        return self.server.call(method, f"{group}/namespaces/{self.space}/{path}", body, kind=kind)

    def until(self, condition: Callable[[], bool]) -> None:
        """Lets a little time pass, in which controllers look, until the condition holds."""

        def holds() -> bool:
            self.clock.advance(0.05)
            for engine in self._made:
                engine.observe()
            return condition()

        self.server.wait(holds, "etcd")
