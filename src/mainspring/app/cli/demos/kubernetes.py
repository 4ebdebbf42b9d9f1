"""The clusters of `ms demo --engine kubernetes`: a real Kubernetes with Kueue on this machine, and a pretended one.

Its pods run as processes of this machine. A pod is killed half-way; later a team that has lent its quota takes it back
by a job of its own: the trainer is put out, saves within its grace, and goes on elsewhere.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mainspring.app.base.home import Config
from mainspring.app.base.system import SystemClock
from mainspring.app.cli.demos.job import REPLICAS, Blow, Stage, v5e_beside
from mainspring.app.render.tables import ERRORS
from mainspring.domain.answers import JobView
from mainspring.domain.errors import Unavailable
from mainspring.domain.ids import ChipName, ClusterName
from mainspring.engines.kubernetes.cluster.config import KubernetesCluster
from mainspring.testing.kubernetes import KubernetesNodes, KubernetesServer, settings_on
from mainspring.testing.kubernetes_kueue import kueue_missing, make_queues, start_kueue
from mainspring.testing.kubernetes_pods import PodRunner

NODES = 4
SPACE, OURS, THEIRS, URGENT = "robots", "lab", "others", "urgent"
GPU = "nvidia.com/gpu"
JOBS = f"/apis/batch/v1/namespaces/{SPACE}/jobs"


def check_kubernetes() -> None:
    """Sees that a Kubernetes with Kueue can be started here.

    Raises:
        Unavailable: Something it needs is not there; says how to get it.
    """
    if missing := kueue_missing():
        what, _, install = missing.partition("; ")
        raise Unavailable("run the demo on Kubernetes", got=what, next_step=install)


@contextmanager
def on_kubernetes(home: Path) -> Iterator[Stage]:
    """Gives a Kubernetes cluster with the better chip and a pretended one beside it; stops it whatever happens.

    Args:
        home: The demo's home folder; what the cluster keeps is below it.

    Raises:
        Unavailable: It does not start.
    """
    nodes = KubernetesNodes(count=NODES, chips=1, labels={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"})
    with KubernetesServer(home / "kubernetes", nodes=[nodes]) as server:
        start_kueue(server)
        server.make_space(SPACE)
        # All that is there is the others', who lend it.
        quota = {OURS: {"gpus": 0}, THEIRS: {"gpus": NODES}}
        make_queues(server, SPACE, flavors={"gpus": {}}, queues=quota, priorities={URGENT: 1_000})
        version = server.call("GET", "/version")["gitVersion"]
        ERRORS.print(f"Kubernetes {version} with Kueue: {NODES} nodes, on this machine", style="dim")
        # The image is this machine, as this interpreter sees it.
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
        pods = PodRunner(
            server, home / "kubernetes" / "pods", space=SPACE, environment=environment, clock=SystemClock()
        )
        try:
            pods.serve(*nodes.names)
            yield Stage(
                config=Config(clusters=(v5e_beside(), _cluster(server))),
                blows=(
                    Blow(at=0.4, strike=lambda view: _kill_pod(server, pods, view)),
                    Blow(at=0.7, strike=lambda view: _take_back(server, view)),
                ),
            )
        finally:
            pods.close()


def _cluster(server: KubernetesServer) -> KubernetesCluster:
    return settings_on(
        server,
        name=ClusterName("kubernetes"),
        namespace=SPACE,
        queue=OURS,
        queued_nodes_max=0,  # Where it would wait it need not go: there is another cluster.
        dollars_per_chip_hour={ChipName("h100"): 2.4},
    )


def _kill_pod(server: KubernetesServer, pods: PodRunner, view: JobView) -> str:
    """Kills the container of the last pod of what runs now; nothing, where that has ended by itself."""
    for job in reversed(server.call("GET", JOBS)["items"]):
        name = job["metadata"]["name"]
        if living := pods.names(name, living=True):
            with suppress(ProcessLookupError):
                os.kill(pods.pid(name, REPLICAS - 1), signal.SIGKILL)
            return f"kill -9 pod {living[-1]} at step {view.step}"
    return f"no pod to kill at step {view.step}"


def _take_back(server: KubernetesServer, view: JobView) -> str:
    """Submits a job of the others', for all nodes."""
    amount = {GPU: "1"}
    resources = {"requests": amount, "limits": amount}
    container = {"name": "theirs", "image": "theirs", "command": ["sleep", "3600"], "resources": resources}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    labels = {"kueue.x-k8s.io/queue-name": THEIRS, "kueue.x-k8s.io/priority-class": URGENT}
    spec = {"suspend": True, "parallelism": NODES, "completions": NODES, "template": template}
    server.call("POST", JOBS, {"metadata": {"generateName": "theirs-", "labels": labels}, "spec": spec})
    return f"queue {THEIRS} takes back its {NODES} nodes at step {view.step}"
