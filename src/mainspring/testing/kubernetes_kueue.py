"""A real Kueue on a test's own Kubernetes: its queues, quotas, preemption and webhooks, for Jobs, and JobSets if asked.

Built by `make kubernetes`, with the definitions of its objects. The certificate of its metrics lies at a place that
cannot be told, below /etc: it runs in a mount namespace with another /etc, for which root is needed.
Source: Kueue's `config/components`; kueue.sigs.k8s.io/docs, "Installation".
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from mainspring.testing.controllers.hooks import answers, define, path_of, register_hooks, write_certificates
from mainspring.testing.daemons import free_ports
from mainspring.testing.kubernetes import BUILT, KubernetesServer, kubernetes_missing
from mainspring.testing.kubernetes_files import HOST
from mainspring.testing.kubernetes_pods import pods_missing

API = "/apis/kueue.x-k8s.io/v1beta2"
SPACE, ACCOUNT = "kueue-system", "kueue-controller-manager"
GPU = "nvidia.com/gpu"  # Whose quota that is.
DEFINED = BUILT / "kueue.d"  # Definitions of its objects, and its webhooks, as Kueue has them.
# Kinds of work, and what webhooks about them are called; of kinds that are not there, nobody can be asked.
_JOB = {"batch/job": "-batch-v1-job"}
_JOBSET = {"jobset.x-k8s.io/jobset": "-jobset-x-k8s-io-"}
_OWN_ETC = 'mount --bind "$0" /etc && exec "$@"'


def kueue_missing() -> str:
    """Returns why no Kueue can be started here and what to do, or nothing when one can."""
    if missing := kubernetes_missing() or pods_missing():
        return missing
    built = (BUILT / "kueue").exists() and DEFINED.is_dir()
    return "" if built else "Kueue is needed, not found: make kubernetes (with Go 1.26 or newer, 15 minutes)"


def start_kueue(server: KubernetesServer, *, jobsets: bool = False) -> None:
    """Installs and starts Kueue; it goes with its server.

    Args:
        jobsets: Whether it admits JobSets too.

    Raises:
        Unavailable: It did not come up; quotes its last words.
    """
    port, health, metrics = free_ports(3)
    place, folder = server.place, server.folder / "kueue"
    etc, certificates = folder / "etc", folder / "etc" / "kueue" / "metrics" / "certs"
    write_certificates(place, certificates)
    admitted = _JOB | (_JOBSET if jobsets else {})
    config = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"{HOST}:{health}"},
        "metrics": {"bindAddress": f"{HOST}:{metrics}"},
        "webhook": {"host": HOST, "port": port, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "clientConnection": {"qps": 100, "burst": 200},
        "integrations": {"frameworks": [*admitted]},
        "featureGates": {"VisibilityOnDemand": False, "MultiKueue": False},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    kubeconfig = _make_account(server, folder)
    define(server, API, sorted(DEFINED.glob("kueue.x-k8s.io_*.yaml")))
    words = ("unshare", "--mount", "--propagation", "private", "sh", "-c", _OWN_ETC, str(etc), str(BUILT / "kueue"))
    server.run("kueue", *words, f"--config={folder / 'config.yaml'}", f"--kubeconfig={kubeconfig}")
    server.wait(lambda: answers(f"http://{HOST}:{health}/readyz"), "kueue")
    told = ("-kueue-x-k8s-io-", *admitted.values())
    register_hooks(
        server,
        DEFINED / "manifests.yaml",
        port,
        lambda hook: hook if any(part in path_of(hook) for part in told) else None,
    )


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
    server.make_admin(SPACE, ACCOUNT)
    path = folder / "kubeconfig"
    server.write_kubeconfig(path, SPACE, ACCOUNT)
    return path
