"""Karpenter on a test's own Kubernetes: it adds nodes where pods wait for some, as a cloud would, but objects only.

Built by `make karpenter`: Karpenter itself with the provider that it has for tests, whose machines a test names,
and the definitions of its objects. KWOK makes such nodes ready.
Source: Karpenter's `kwok/README.md`; karpenter.sh/docs, "NodePools".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mainspring.testing.controllers.hooks import answers, define
from mainspring.testing.controllers.kwok import kwok_missing, start_kwok
from mainspring.testing.daemons import free_ports
from mainspring.testing.kubernetes import BUILT, KubernetesServer
from mainspring.testing.kubernetes_files import HOST

DEFINED = BUILT / "karpenter.d"  # Definitions of its objects.
POOLS, CLASSES = "/apis/karpenter.sh/v1/nodepools", "/apis/karpenter.kwok.sh/v1alpha1/kwoknodeclasses"
_KINDS = {
    "/apis/karpenter.sh/v1": ("karpenter.sh_nodepools", "karpenter.sh_nodeclaims"),
    "/apis/karpenter.sh/v1alpha1": ("karpenter.sh_nodeoverlays",),
    "/apis/autoscaling.x-k8s.io/v1beta1": ("autoscaling.x-k8s.io_capacitybuffers",),
    "/apis/karpenter.kwok.sh/v1alpha1": ("karpenter.kwok.sh_kwoknodeclasses",),
}


def karpenter_missing() -> str:
    """Returns why no Karpenter can be started here and what to do, or nothing when one can."""
    if missing := kwok_missing():
        return missing
    built = (BUILT / "karpenter").exists() and DEFINED.is_dir()
    return "" if built else "Karpenter is needed, not found: make karpenter (with Go 1.26 or newer, 10 minutes)"


def start_karpenter(server: KubernetesServer, machines: Mapping[str, Mapping[str, str]]) -> None:
    """Starts KWOK and Karpenter; both go with their server.

    Args:
        machines: What each type has, by its name: {"p5": {"cpu": "192", "memory": "2Ti", "nvidia.com/gpu": "8"}}. The
            more cores, the dearer.

    Raises:
        Unavailable: It did not come up; quotes its last words.
    """
    start_kwok(server)
    for api, names in _KINDS.items():
        define(server, api, [DEFINED / f"{name}.yaml" for name in names])
    told = server.folder / "machines.json"
    told.write_text(json.dumps([_machine(name, has) for name, has in machines.items()]))
    metrics, health = free_ports(2)
    variables = {
        "KUBECONFIG": server.place.kubeconfig,
        "SYSTEM_NAMESPACE": "kube-system",
        "DISABLE_LEADER_ELECTION": "true",
        "METRICS_PORT": metrics,
        "HEALTH_PROBE_PORT": health,
        "INSTANCE_TYPES_FILE_PATH": told,
    }
    server.run("karpenter", "env", *(f"{name}={value}" for name, value in variables.items()), str(BUILT / "karpenter"))
    server.wait(lambda: answers(f"http://{HOST}:{health}/readyz"), "karpenter")
    kind = {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass"}
    server.call("POST", CLASSES, {**kind, "metadata": {"name": "default"}, "spec": {}})


def make_pool(server: KubernetesServer, name: str, labels: Mapping[str, str], limits: Mapping[str, str]) -> None:
    """Makes a NodePool of whatever machine fits, and returns once it is ready.

    Args:
        labels: That its nodes bear.
        limits: The most it may have, by resource.
    """
    chosen = [{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}]
    node_class = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
    spec = {
        "template": {
            "metadata": {"labels": dict(labels)},
            "spec": {"requirements": chosen, "nodeClassRef": node_class},
        },
        "limits": dict(limits),
        "disruption": {"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "30s"},
    }
    kind = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool"}
    server.call("POST", POOLS, {**kind, "metadata": {"name": name}, "spec": spec})

    def ready() -> bool:
        status = server.call("GET", f"{POOLS}/{name}").get("status") or {}
        return any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or ())

    server.wait(ready, "karpenter")


def _machine(name: str, has: Mapping[str, str]) -> dict[str, Any]:
    told = {"karpenter.sh/capacity-type": "on-demand", "topology.kubernetes.io/zone": "zone-a"}
    needs = [{"key": key, "operator": "In", "values": [value]} for key, value in told.items()]
    return {
        "name": name,
        "architecture": "amd64",
        "operatingSystems": ["linux"],
        "resources": dict(has),
        "offerings": [{"Price": float(has["cpu"]), "Available": True, "Requirements": needs}],
    }
