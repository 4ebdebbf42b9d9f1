"""A lab on a real Kubernetes control plane, whose pods run as processes of this machine: agents, ranks, checkpoints."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.app.base.home import Config
from mainspring.app.base.system import SystemClock
from mainspring.app.sdk.lab import Lab, job
from mainspring.domain.job import JobSpec
from mainspring.domain.life import JobState, ended
from mainspring.engines.kubernetes.cluster.config import KubernetesCluster
from mainspring.testing.kubernetes import KubernetesNodes, KubernetesServer, kubernetes_missing, settings_on
from mainspring.testing.kubernetes_pods import PodRunner, pods_missing
from tests.app.conftest import COUNTER, halted, until

MISSING = kubernetes_missing() or pods_missing()
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.skipif(bool(MISSING), reason=MISSING)]
SPACE = "lab"
PROGRAM = str(Path(sys.executable).with_name("ms"))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[KubernetesServer]:
    nodes = KubernetesNodes(count=2, chips=1, labels={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"})
    with KubernetesServer(tmp_path / "kubernetes", nodes=[nodes]) as started:
        started.make_space(SPACE)
        yield started


@pytest.fixture
def pods(server: KubernetesServer, tmp_path: Path) -> Iterator[PodRunner]:
    runner = PodRunner(server, tmp_path / "pods", space=SPACE, environment=dict(os.environ), clock=SystemClock())
    runner.serve("n1", "n2")
    yield runner
    runner.close()


def cluster(server: KubernetesServer) -> KubernetesCluster:
    return settings_on(server, namespace=SPACE)


@pytest.fixture
def lab(server: KubernetesServer, pods: PodRunner, tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path / "home")
    made.home.write_config(Config(clusters=(cluster(server),)))
    made.up(port=0)
    try:
        yield made
        for view in made.ps():
            if not ended(view.state):
                made.stop(view.id)
        until(lambda: all(ended(view.state) for view in made.ps()), "jobs to end")
    finally:
        made.down()


def ms(lab: Lab, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, "--home", str(lab.home.path), *words], capture_output=True, text=True, timeout=120, check=False
    )


def counting(gate: Path, *halts: int) -> JobSpec:
    words = [sys.executable, str(COUNTER), "60", "7", str(gate), *map(str, halts)]
    return job("count", words, on=["h100"], replicas=2)


def test_a_job_goes_on_in_its_pods_through_a_killed_one_and_leaves_nothing(
    lab: Lab, pods: PodRunner, server: KubernetesServer, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    view = lab.run(counting(gate, 30))
    until(lambda: lab.status(view.id).attempts != (), "an attempt")
    halted(lab, view.id, gate, 30)
    first = lab.status(view.id).attempts[-1]
    job_name = server.call("GET", f"/apis/batch/v1/namespaces/{SPACE}/jobs")["items"][0]["metadata"]["name"]
    os.kill(pods.pid(job_name, 1), signal.SIGKILL)
    (gate / "go-30").touch()
    until(lambda: ended(lab.status(view.id).state), "the job to end", wait_s=120)
    done = lab.status(view.id)
    assert done.state is JobState.SUCCEEDED, done.reason
    assert len(done.attempts) == 2
    assert done.attempts[-1].id != first.id
    assert done.step == 60
    assert server.call("GET", f"/api/v1/namespaces/{SPACE}/secrets")["items"] == []


def test_a_cluster_is_added_once_its_set_up_is_sound(server: KubernetesServer, pods: PodRunner, tmp_path: Path) -> None:
    lab = Lab(tmp_path / "home")
    lab.up(port=0)
    config = str(server.place.kubeconfig)
    words = (
        "cluster",
        "add",
        "kubernetes",
        "cloud",
        "--kubeconfig",
        config,
        "--namespace",
        SPACE,
        "--image",
        "this-machine",
    )
    priced = (*words, "--python", sys.executable, "--price", "h100=2.4")
    try:
        done = ms(lab, *priced, "--context", "nobody")
        assert done.returncode != 0
        assert "no context 'nobody'" in done.stdout + done.stderr
        done = ms(lab, *priced, "--nodes", "pool=none")
        assert "no nodes" in done.stdout + done.stderr
        done = ms(lab, *words, "--python", "/no/python")
        assert done.returncode != 0
        assert "by code 127" in done.stdout  # A kubelet says more: what it could not start.
        assert {view.inventory.cluster for view in lab.fleet()} == {"local"}
        done = ms(lab, *priced)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "2 of 2 ready, with 2 h100" in done.stdout
        done = ms(lab, "cluster", "check", "cloud", "--json")
        assert {finding["standing"] for finding in json.loads(done.stdout)} == {"ok"}, done.stdout
        assert server.call("GET", f"/api/v1/namespaces/{SPACE}/pods")["items"] == []
        server.kill("kube-apiserver")
        done = ms(lab, "cluster", "check", "cloud")
        assert done.returncode != 0
        assert "API" in done.stdout
    finally:
        lab.down()
