"""What `kubectl apply -f -` does, and who else calls the API of a test's own Kubernetes."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import yaml

from mainspring.engines.kubernetes.api.client import APPLY
from mainspring.testing.kubernetes import CALL_S, KubernetesServer

# Where objects of each kind are; {} stands for their namespace.
PLACES = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
}


def apply(server: KubernetesServer, text: str) -> None:
    """Applies every document of a text; no field of it is unknown to the API."""
    for one in yaml.safe_load_all(text):
        meta = one["metadata"]
        path = f"{PLACES[one['kind']].format(meta.get('namespace', ''))}/{meta['name']}"
        server.call("PATCH", f"{path}?fieldManager=operator&force=true&fieldValidation=Strict", one, kind=APPLY)


@contextmanager
def somebody(server: KubernetesServer, folder: Path, name: str) -> Iterator[httpx.Client]:
    """Gives a client of an account "default/NAME", which may do anything but what policies refuse."""
    server.make_admin("default", name)
    server.write_kubeconfig(folder / name, "default", name)
    token = json.loads((folder / name).read_text())["users"][0]["user"]["token"]
    with httpx.Client(
        base_url=server.place.url,
        headers={"Authorization": f"Bearer {token}"},
        verify=ssl.create_default_context(cafile=str(server.place.authority)),
        timeout=CALL_S,
        trust_env=False,
    ) as client:
        yield client
