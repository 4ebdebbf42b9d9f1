"""A real Kueue on a test's own Kubernetes: its queues, quotas, preemption and webhooks, for Jobs alone.

Built by `make kubernetes`, with the definitions of its objects. The control plane has no network of services, so its
webhooks are called at their address on this machine, with the API server's own certificate. That of its metrics lies at
a place that cannot be told, below /etc: it runs in a mount namespace with another /etc, for which root is needed.
Source: Kueue's `config/components`; kueue.sigs.k8s.io/docs, "Installation".
"""

from __future__ import annotations

import base64
import shutil
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from mainspring.testing.daemons import free_ports
from mainspring.testing.kubernetes import BUILT, KubernetesServer, kubernetes_missing
from mainspring.testing.kubernetes_files import HOST
from mainspring.testing.kubernetes_pods import pods_missing

API = "/apis/kueue.x-k8s.io/v1beta2"
SPACE, ACCOUNT = "kueue-system", "kueue-controller-manager"
GPU = "nvidia.com/gpu"  # Whose quota that is.
DEFINED = BUILT / "kueue.d"  # Definitions of its objects, and its webhooks, as Kueue has them.
CALL_S = 2.0
# Of kinds that are not there, nobody can be asked about.
_ABOUT = ("-kueue-x-k8s-io-", "-batch-v1-job")
_OWN_ETC = 'mount --bind "$0" /etc && exec "$@"'


def kueue_missing() -> str:
    """Returns why no Kueue can be started here and what to do, or nothing when one can."""
    if missing := kubernetes_missing() or pods_missing():
        return missing
    built = (BUILT / "kueue").exists() and DEFINED.is_dir()
    return "" if built else "Kueue is needed, not found: make kubernetes (with Go 1.26 or newer, 10 minutes)"


def start_kueue(server: KubernetesServer) -> None:
    """Installs and starts Kueue; it goes with its server.

    Raises:
        Unavailable: It did not come up; quotes its last words.
    """
    port, health, metrics = free_ports(3)
    place, folder = server.place, server.folder / "kueue"
    etc, certificates = folder / "etc", folder / "etc" / "kueue" / "metrics" / "certs"
    certificates.mkdir(parents=True)
    for kind, suffix in (("pem", "crt"), ("key", "key")):
        shutil.copy(place.private / f"server.{kind}", certificates / f"tls.{suffix}")
    config = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"{HOST}:{health}"},
        "metrics": {"bindAddress": f"{HOST}:{metrics}"},
        "webhook": {"host": HOST, "port": port, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "clientConnection": {"qps": 100, "burst": 200},
        "integrations": {"frameworks": ["batch/job"]},
        "featureGates": {"VisibilityOnDemand": False, "MultiKueue": False},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    defined = sorted(DEFINED.glob("kueue.x-k8s.io_*.yaml"))
    for path in defined:
        server.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", yaml.safe_load(path.read_text()))
    kubeconfig = _make_account(server, folder)
    server.wait(lambda: server.there(API) and len(_kinds(server)) == len(defined), "kube-apiserver")
    words = ("unshare", "--mount", "--propagation", "private", "sh", "-c", _OWN_ETC, str(etc), str(BUILT / "kueue"))
    server.run("kueue", *words, f"--config={folder / 'config.yaml'}", f"--kubeconfig={kubeconfig}")
    server.wait(lambda: _is_ready(health), "kueue")
    hooks = yaml.safe_load_all((DEFINED / "manifests.yaml").read_text())
    for found in hooks:
        own = [_reached(hook, port, place.authority) for hook in found["webhooks"] if _is_about(hook)]
        kind = f"{found['kind'].lower()}s"
        server.call("POST", f"/apis/admissionregistration.k8s.io/v1/{kind}", found | {"webhooks": own})


def make_queues(
    server: KubernetesServer,
    space: str,
    *,
    flavors: Mapping[str, Mapping[str, Any]],
    queues: Mapping[str, Mapping[str, int]],
    priorities: Mapping[str, int] | None = None,
) -> None:
    """Makes flavors, ClusterQueues of one cohort that take back by priority, a LocalQueue for each, and priorities.

    Args:
        space: The namespace of the LocalQueues.
        flavors: What each says, such as its `nodeLabels`.
        queues: Quota by flavor, by queue.
    """
    for name, said in flavors.items():
        _make(server, f"{API}/resourceflavors", "ResourceFlavor", name, spec=dict(said))
    for name, value in (priorities or {}).items():
        _make(server, f"{API}/workloadpriorityclasses", "WorkloadPriorityClass", name, value=value)
    for name, quota in queues.items():
        group = {
            "coveredResources": [GPU],
            "flavors": [
                {
                    "name": flavor,
                    "resources": [{"name": GPU, "nominalQuota": amount}],
                }
                for flavor, amount in quota.items()
            ],
        }
        spec = {
            "cohortName": space,
            "namespaceSelector": {},
            "resourceGroups": [group],
            "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
        }
        _make(server, f"{API}/clusterqueues", "ClusterQueue", f"{space}-{name}", spec=spec)
        doors = f"{API}/namespaces/{space}/localqueues"
        _make(server, doors, "LocalQueue", name, spec={"clusterQueue": f"{space}-{name}"})


def _make(server: KubernetesServer, path: str, kind: str, name: str, **fields: object) -> None:
    """Makes an object, where there is none of its name yet."""
    if not server.there(f"{path}/{name}"):
        bare = {"apiVersion": API.removeprefix("/apis/"), "kind": kind, "metadata": {"name": name}}
        server.call("POST", path, bare | fields)


def _make_account(server: KubernetesServer, folder: Path) -> Path:
    """Makes the account that Kueue has; returns a kubeconfig of it."""
    server.call("POST", "/api/v1/namespaces", {"metadata": {"name": SPACE}})
    accounts = f"/api/v1/namespaces/{SPACE}/serviceaccounts"
    server.call("POST", accounts, {"metadata": {"name": ACCOUNT}})
    bound = {
        "metadata": {"name": ACCOUNT},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": SPACE}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    }
    server.call("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", bound)
    path = folder / "kubeconfig"
    server.write_kubeconfig(path, SPACE, ACCOUNT)
    return path


def _kinds(server: KubernetesServer) -> list[str]:
    return [one["name"] for one in server.call("GET", API)["resources"] if "/" not in one["name"]]


def _is_about(hook: Mapping[str, Any]) -> bool:
    return any(part in hook["clientConfig"]["service"]["path"] for part in _ABOUT)


def _reached(hook: Mapping[str, Any], port: int, authority: Path) -> dict[str, Any]:
    url = f"https://{HOST}:{port}{hook['clientConfig']['service']['path']}"
    trusted = base64.b64encode(authority.read_bytes()).decode()
    return {**hook, "clientConfig": {"url": url, "caBundle": trusted}}


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/readyz", timeout=CALL_S) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
