"""Kubernetes: from a submit to the first line of a rank, ours and a plain Job.

Run as `python -m benchmarks.kubernetes_launch [--quick]`; needs what `make kubernetes` builds, and root for pods. The
control plane is a real one; pods of both run as processes of this machine, by the same kubelet for tests. `job_s`: from
the call that makes a Job of one pod, whose program is `date`, to the time which that tells. `ours_s`: from the SDK's
call that submits a job whose program is that `date`, through a server, the planner, Kubernetes and an agent. Both in
turn on idle nodes; medians. `overhead_s`: ours less the Job's. `python_s`: of that, what an interpreter takes that
imports the agent and does nothing. `loop_s` is the time of 6,000,000 turns of `total += i * i % 7`, by which bounds
scale (0.20 s is the reference).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.control_submit import loop_s
from benchmarks.running import run
from tests.faults.slurm_rig import until

from mainspring.app.base.home import Config
from mainspring.app.base.system import SystemClock
from mainspring.app.sdk.lab import Lab, job
from mainspring.domain.life import JobState
from mainspring.engines.kubernetes.cluster.config import KubernetesCluster
from mainspring.engines.kubernetes.jobs.pod_template import CONTAINER
from mainspring.testing.kubernetes import KubernetesNodes, KubernetesServer, kubernetes_missing, settings_on
from mainspring.testing.kubernetes_pods import PodRunner, pods_missing

LAUNCHES, QUICK_LAUNCHES = 9, 3
NODES, SPACE, GPU = 2, "lab", "nvidia.com/gpu"
DATE = ("date", "+%s.%N")
LIMIT_S = 60.0
REST_S = 1.5  # What follows an end is not the next one's time.


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    """A cluster whose pods run here, and a lab on it."""

    server: KubernetesServer
    pods: PodRunner
    lab: Lab


@contextmanager
def rig_of(folder: Path) -> Iterator[Rig]:
    """Gives one whose nodes are idle; stops all of it whatever happens."""
    nodes = KubernetesNodes(count=NODES, chips=1, labels={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"})
    lab = Lab(folder / "home")
    with KubernetesServer(folder / "server", nodes=[nodes]) as server:
        server.make_space(SPACE)
        pods = PodRunner(server, folder / "pods", space=SPACE, environment=dict(os.environ), clock=SystemClock())
        try:
            pods.serve(*nodes.names)
            lab.home.write_config(Config(clusters=(cluster_on(server),)))
            lab.up(port=0)
            until(lambda: sum(len(view.inventory.nodes) for view in lab.fleet()) == NODES, "the nodes")
            yield Rig(server=server, pods=pods, lab=lab)
        finally:
            lab.down()
            pods.close()


def cluster_on(server: KubernetesServer) -> KubernetesCluster:
    return settings_on(server, namespace=SPACE)


def plain_s(rig: Rig, number: int) -> float:
    name, path = f"plain-{number}", f"/apis/batch/v1/namespaces/{SPACE}/jobs"
    limits = {"limits": {GPU: "1"}}
    container = {"name": CONTAINER, "image": "this-machine", "command": list(DATE), "resources": limits}
    told = {"restartPolicy": "Never", "automountServiceAccountToken": False}  # As ours: it need not reach the API.
    template = {"spec": {**told, "containers": [container]}}
    begun_s = time.time()
    rig.server.call("POST", path, {"metadata": {"name": name}, "spec": {"template": template, "backoffLimit": 0}})
    until(lambda: any(said.endswith(b"\n") for said in rig.pods.said(name)), "the Job's line", wait_s=LIMIT_S)
    taken_s = float(rig.pods.said(name)[0]) - begun_s
    rig.server.call("DELETE", f"{path}/{name}", {"propagationPolicy": "Background"})
    return taken_s


def ours_s(rig: Rig, number: int) -> float:
    spec = job(f"date-{number}", DATE, on="h100")
    begun_s = time.time()
    made = rig.lab.run(spec)
    assert rig.lab.wait(made.id, timeout_s=LIMIT_S).state is JobState.SUCCEEDED
    return float(b"".join(rig.lab.logs(made.id))) - begun_s


def interpreter_s() -> float:
    begun_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import mainspring.node.agent"], check=True)
    return time.perf_counter() - begun_s


def measure(folder: Path, count: int) -> dict[str, float]:
    with rig_of(folder) as rig:
        ours, plain, python, loops = list[float](), list[float](), list[float](), list[float]()
        for number in range(count + 1):  # The first fills caches.
            for taken, measured_s in ((plain, plain_s), (ours, ours_s)):
                taken.append(measured_s(rig, number))
                time.sleep(REST_S)
            python.append(interpreter_s())
            loops.append(loop_s())
            print(f"first line: ours {ours[-1]:.2f} s, Job {plain[-1]:.2f} s", flush=True)
    found = {"ours_s": statistics.median(ours[1:]), "job_s": statistics.median(plain[1:])}
    found["overhead_s"] = found["ours_s"] - found["job_s"]
    return found | {"python_s": statistics.median(python[1:]), "loop_s": statistics.median(loops)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_LAUNCHES} launches in place of {LAUNCHES}")
    count = QUICK_LAUNCHES if parser.parse_args().quick else LAUNCHES
    run("kubernetes-launch", kubernetes_missing() or pods_missing(), lambda folder: measure(folder, count))


if __name__ == "__main__":
    main()
