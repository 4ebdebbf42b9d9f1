"""KWOK on a test's own Kubernetes: pods that are bound to nodes count as running, and go when they are deleted.

Built by `make kubernetes-peers`, with its stages as KWOK publishes them. Nothing runs: no container ends by itself.
Source: kwok.sigs.k8s.io/docs, "Stages Configuration"; KWOK's `kustomize/stage`.
"""

from __future__ import annotations

from mainspring.testing.controllers.hooks import answers
from mainspring.testing.daemons import free_ports
from mainspring.testing.kubernetes import BUILT, KubernetesServer, kubernetes_missing
from mainspring.testing.kubernetes_files import HOST

STAGES = BUILT / "kwok.d"
# Not the one by which pods of Jobs are over at once.
_USED = ("node-initialize.yaml", "pod-ready.yaml", "pod-delete.yaml")


def kwok_missing() -> str:
    """Returns why no KWOK can be started here and what to do, or nothing when one can."""
    if missing := kubernetes_missing():
        return missing
    built = (BUILT / "kwok").exists() and STAGES.is_dir()
    return "" if built else "KWOK is needed, not found: make kubernetes-peers (with Go 1.26 or newer, some minutes)"


def start_kwok(server: KubernetesServer) -> None:
    """Starts KWOK for every node; it goes with its server.

    Raises:
        Unavailable: It did not come up; quotes its last words.
    """
    (port,) = free_ports(1)
    config = server.folder / "kwok.yaml"
    config.write_text("\n---\n".join((STAGES / name).read_text() for name in _USED))
    # Nodes need no leases: they count as lost only when a test says so.
    flags = {
        "config": config,
        "kubeconfig": server.place.kubeconfig,
        "manage-all-nodes": "true",
        "node-lease-duration-seconds": 0,
        "server-address": f"{HOST}:{port}",
    }
    server.run("kwok", str(BUILT / "kwok"), *(f"--{name}={value}" for name, value in flags.items()))
    server.wait(lambda: answers(f"http://{HOST}:{port}/healthz"), "kwok")
