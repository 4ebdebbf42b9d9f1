"""A real JobSet controller on a benchmark's own Kubernetes, with the definition of its object.

Built by `make kubernetes-peers`. Start it before a Kueue that is to admit its JobSets.
Source: JobSet's `config/components`; jobset.sigs.k8s.io/docs.
"""

from __future__ import annotations

from typing import Any

import yaml

from mainspring.testing.controllers.hooks import answers, define, path_of, register_hooks, write_certificates
from mainspring.testing.daemons import free_ports
from mainspring.testing.kubernetes import BUILT, KubernetesServer, kubernetes_missing
from mainspring.testing.kubernetes_files import HOST

JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2"
DEFINED = BUILT / "jobset.d"  # The definition of its object, and its webhooks, as JobSet has them.
_ITS_PODS = {"matchExpressions": [{"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}]}


def jobset_missing() -> str:
    """Returns why no JobSet can be started here and what to do, or nothing when one can."""
    if missing := kubernetes_missing():
        return missing
    built = (BUILT / "jobset").exists() and DEFINED.is_dir()
    return "" if built else "JobSet is needed, not found: make kubernetes-peers (with Go 1.26 or newer, some minutes)"


def start_jobset(server: KubernetesServer) -> None:
    """Installs and starts JobSet; it goes with its server.

    Raises:
        Unavailable: It did not come up; quotes its last words.
    """
    port, health = free_ports(2)
    folder = server.folder / "jobset"
    write_certificates(server.place, folder / "certificates")
    config = {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"{HOST}:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": HOST, "port": port, "certDir": str(folder / "certificates")},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "clientConnection": {"qps": 500, "burst": 500},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    define(server, JOBSETS, [DEFINED / "jobset.x-k8s.io_jobsets.yaml"])
    words = (f"--config={folder / 'config.yaml'}", f"--kubeconfig={server.place.kubeconfig}")
    server.run("jobset", str(BUILT / "jobset"), *words)
    server.wait(lambda: answers(f"http://{HOST}:{health}/readyz"), "jobset")
    register_hooks(server, DEFINED / "manifests.yaml", port, _for_its_pods, name="jobset-")


def _for_its_pods(hook: dict[str, Any]) -> dict[str, Any]:
    """Returns a webhook that is asked about pods of JobSets alone, as JobSet's own installation has it."""
    return hook | {"objectSelector": _ITS_PODS} if path_of(hook).endswith("-v1-pod") else hook
