"""Kubernetes: a gang of 512 pods, from a submit until all of them run, ours and a JobSet that Kueue admits.

Run as `python -m benchmarks.kubernetes_gang [--quick]`; needs what `make kubernetes kubernetes-peers` builds, and root
for Kueue. One real control plane, with JobSet, Kueue and KWOK, which says of pods that are bound that they run;
controllers may call the API 100 times a second each, the scheduler 200 times. There are as many nodes as pods, of eight
chips, and a pod takes a whole one. `ours_s`: from the SDK's call that submits a job of 512 replicas, through a server,
its planner and its pinned Kubernetes cluster, until the API has shown the last of its pods running. `jobset_s`: from
the call that makes a JobSet of one replicated job, whose pods are ours in image, command, chips and rights, in a
LocalQueue whose quota is all chips, until the same. Both in turn on idle nodes, medians of 3. `overhead_s`: ours less
the JobSet's; `ratio`: ours over the JobSet's. `refuse_s`: while somebody else holds one chip of one node, from the
submit of a gang for all nodes until `why` says that chips are what it waits for, and how many; or, where that is
longer, from the submit of one for a node more than there are until it is refused as impossible; median of 3. `loop_s`
is the time of 6,000,000 turns of `total += i * i % 7`, by which bounds in seconds scale (0.20 s is the reference).
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

from benchmarks.control_submit import loop_s
from benchmarks.running import run
from tests.faults.slurm_rig import until

from mainspring.app.base.home import Config
from mainspring.app.base.system import SystemClock
from mainspring.app.sdk.lab import Lab, job
from mainspring.domain.errors import ImpossibleJob
from mainspring.domain.life import ended
from mainspring.domain.plan import Limit
from mainspring.engines.kubernetes.api.access import read_kubeconfig
from mainspring.engines.kubernetes.api.client import Api
from mainspring.engines.kubernetes.cluster.config import KubernetesCluster
from mainspring.testing.controllers.jobset import JOBSETS, jobset_missing, start_jobset
from mainspring.testing.controllers.kwok import kwok_missing, start_kwok
from mainspring.testing.kubernetes import KubernetesNodes, KubernetesServer, settings_on
from mainspring.testing.kubernetes_kueue import kueue_missing, make_queues, start_kueue

PODS, QUICK_PODS, ROUNDS = 512, 64, 3
CHIPS, GPU = 8, "nvidia.com/gpu"
OURS, THEIRS = "lab", "peer"  # Namespaces; the peer's is its queue's name too.
FLAGS = {
    "kube-controller-manager": ("--kube-api-qps=100", "--kube-api-burst=100"),
    "kube-scheduler": ("--kube-api-qps=200", "--kube-api-burst=200"),
}
LABELS = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
IMAGE = "nothing-runs"
LIMIT_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    """The cluster, a lab on it, and an API to watch it by."""

    server: KubernetesServer
    lab: Lab
    api: Api
    pods: int


@contextmanager
def rig_of(folder: Path, pods: int) -> Iterator[Rig]:
    """Gives one whose nodes are idle; stops all of it whatever happens."""
    nodes = KubernetesNodes(count=pods, chips=CHIPS, labels=LABELS)
    lab = Lab(folder / "home")
    with KubernetesServer(folder / "server", nodes=[nodes], extra=FLAGS) as server:
        for space in (OURS, THEIRS):
            server.make_space(space)
        start_kwok(server)
        start_jobset(server)
        start_kueue(server, jobsets=True)
        make_queues(server, THEIRS, flavors={"gpus": {}}, queues={THEIRS: {"gpus": pods * CHIPS}})
        access = read_kubeconfig(server.place.kubeconfig, "", environment=os.environ, clock=SystemClock())
        lab.home.write_config(Config(clusters=(cluster_on(server),)))
        lab.up(port=0)
        try:
            until(lambda: sum(len(view.inventory.nodes) for view in lab.fleet()) == pods, "the nodes")
            yield Rig(server=server, lab=lab, api=Api("watched", lambda: access), pods=pods)
        finally:
            lab.down()


def cluster_on(server: KubernetesServer) -> KubernetesCluster:
    return settings_on(server, namespace=OURS, image=IMAGE)


def running_s(rig: Rig, space: str, submit: Callable[[], object]) -> float:
    """Returns how long it takes from a submit until all pods of a namespace run."""
    path, query = f"/api/v1/namespaces/{space}/pods", {"fieldSelector": "status.phase=Running"}
    *_, page = rig.api.pages(path, attempted="list pods", query=query)
    assert not page.items, "idle nodes"
    watching, done, at_s = Event(), Event(), [0.0]

    def watch() -> None:
        count, version = 0, page.version
        while count < rig.pods:  # The API server ends the watch of who reads too slowly for a moment.
            for change in rig.api.watch(path, version, attempted="watch pods", query=query):
                watching.set()
                version = change.version
                count += change.kind == "ADDED"
                if count == rig.pods:
                    at_s[0] = time.monotonic()
                    done.set()
                    break

    Thread(target=watch, daemon=True).start()
    assert watching.wait(LIMIT_S)
    begun_s = time.monotonic()
    submit()
    assert done.wait(LIMIT_S), f"{rig.pods} pods that run"
    return at_s[0] - begun_s


def ours_s(rig: Rig, number: int) -> float:
    """Submits a gang of ours, and takes it away again."""
    spec = job(f"gang-{number}", ["true"], on=f"h100:{CHIPS}", replicas=rig.pods)
    made: list[str] = []
    taken_s = running_s(rig, OURS, lambda: made.append(rig.lab.run(spec).id))
    rig.lab.stop(made[0])
    idle(rig)
    return taken_s


def theirs_s(rig: Rig, template: Mapping[str, Any], number: int) -> float:
    """Submits the peer's gang, and takes it away again."""
    count = {"completions": rig.pods, "parallelism": rig.pods, "completionMode": "Indexed", "backoffLimit": 0}
    gang = {"name": "main", "replicas": 1, "template": {"spec": {**count, "template": template}}}
    body = {
        "apiVersion": JOBSETS.removeprefix("/apis/"),
        "kind": "JobSet",
        "metadata": {"name": f"gang-{number}", "labels": {"kueue.x-k8s.io/queue-name": THEIRS}},
        "spec": {"replicatedJobs": [gang]},
    }
    path = f"{JOBSETS}/namespaces/{THEIRS}/jobsets"
    taken_s = running_s(rig, THEIRS, lambda: rig.server.call("POST", path, body))
    rig.server.call("DELETE", f"{path}/gang-{number}", {"propagationPolicy": "Background"})
    idle(rig)
    return taken_s


def idle(rig: Rig) -> None:
    """Waits until no pod is left, and nobody is at work on what was."""
    until(lambda: not rig.server.call("GET", "/api/v1/pods?limit=1")["items"], "no pods", wait_s=LIMIT_S)
    until(lambda: all(ended(view.state) for view in rig.lab.ps()), "jobs to end", wait_s=LIMIT_S)
    time.sleep(3.0)  # What controllers have to do after an end is not the next one's time.


def template_of(rig: Rig) -> dict[str, Any]:
    """Returns the pod of the peer: ours, as the API has it, without what places it."""
    made = rig.lab.run(job("template", ["true"], on=f"h100:{CHIPS}"))
    path = f"/apis/batch/v1/namespaces/{OURS}/jobs"
    until(lambda: rig.server.call("GET", path)["items"], "a Job of ours")
    spec = dict(rig.server.call("GET", path)["items"][0]["spec"]["template"]["spec"])
    del spec["schedulingGates"]
    rig.lab.stop(made.id)
    idle(rig)
    return {"spec": spec}


@contextmanager
def held(rig: Rig) -> Iterator[None]:
    """Has somebody else hold one chip of one node meanwhile."""
    limits = {"limits": {GPU: "1"}}
    container = {"name": "main", "image": IMAGE, "resources": limits}
    path = f"/api/v1/namespaces/{THEIRS}/pods"
    rig.server.call("POST", path, {"metadata": {"name": "holds"}, "spec": {"containers": [container]}})
    until(lambda: any(node.foreign_chip_milli for view in rig.lab.fleet() for node in view.inventory.nodes), "its use")
    yield
    rig.server.call("DELETE", f"{path}/holds")
    idle(rig)


def refused_s(rig: Rig, number: int) -> float:
    """Returns how long it takes until it is told why a gang cannot start: now, or ever; the longer of both."""
    now, ever = (job(f"none-{number}", ["true"], on=f"h100:{CHIPS}", replicas=rig.pods + more) for more in (0, 1))
    with held(rig):
        begun_s = time.monotonic()
        made = rig.lab.run(now)
        until(lambda: rig.lab.why(made.id).limit is not None, "a reason")
        taken_s = time.monotonic() - begun_s
        why = rig.lab.why(made.id)
        assert (why.limit, why.short_by) == (Limit.CAPACITY, CHIPS), why
        begun_s = time.monotonic()
        try:
            rig.lab.run(ever)
        except ImpossibleJob:
            taken_s = max(taken_s, time.monotonic() - begun_s)
        else:
            raise AssertionError("it can never be")
        rig.lab.stop(made.id)
    return taken_s


def measure(folder: Path, pods: int) -> dict[str, float]:
    with rig_of(folder, pods) as rig:
        template = template_of(rig)
        ours, theirs, refused, loops = [], [], [], []
        for number in range(ROUNDS):
            loops.append(loop_s())
            theirs.append(theirs_s(rig, template, number))
            ours.append(ours_s(rig, number))
            refused.append(refused_s(rig, number))
            print(f"ours {ours[-1]:.2f} s, JobSet {theirs[-1]:.2f} s, refused {refused[-1]:.2f} s", flush=True)
    found = {"ours_s": statistics.median(ours), "jobset_s": statistics.median(theirs)}
    found |= {"overhead_s": found["ours_s"] - found["jobset_s"], "ratio": found["ours_s"] / found["jobset_s"]}
    return found | {"refuse_s": statistics.median(refused), "loop_s": statistics.median(loops)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_PODS} pods in place of {PODS}")
    pods = QUICK_PODS if parser.parse_args().quick else PODS
    missing = kueue_missing() or jobset_missing() or kwok_missing()
    run("kubernetes-gang", missing, lambda folder: measure(folder, pods))


if __name__ == "__main__":
    main()
