"""Nodes that Karpenter adds: a job that waits in an empty cluster has them ordered, and runs on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.app.base.system import SystemClock
from mainspring.control import AgentAccess, Control, open_store
from mainspring.domain.answers import JobView, Submit
from mainspring.domain.fleet import NodeCondition
from mainspring.domain.ids import ChipName, ClusterName, RoleName
from mainspring.domain.job import JobSpec, Option, Role
from mainspring.domain.life import JobState
from mainspring.engines.kubernetes.cluster.offers import NodeOffer
from mainspring.planner import Policy
from mainspring.testing import SeededDice
from mainspring.testing.controllers.karpenter import karpenter_missing, make_pool, start_karpenter
from mainspring.testing.kubernetes import KubernetesServer
from tests.contracts.nodes_on_kubernetes import KubernetesOrdering

MISSING = karpenter_missing()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=MISSING)]
H100 = ChipName("h100")
LABELS = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
OFFER = NodeOffer(chip=H100, chips=8, labels={"karpenter.sh/nodepool": "gpus"}, lead_time_s=60.0)
MACHINES = {
    "small": {"cpu": "32", "memory": "256Gi", "nvidia.com/gpu": "8"},
    "large": {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "16"},
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KubernetesServer]:
    """A control plane without a node, and Karpenter with a NodePool of up to four nodes."""
    with KubernetesServer(tmp_path / "kubernetes") as started:
        start_karpenter(started, MACHINES)
        make_pool(started, "gpus", LABELS, {"nvidia.com/gpu": "32"})
        yield started


def test_job_that_waits_in_an_empty_cluster_runs_on_nodes_that_karpenter_adds_for_it(
    cluster: KubernetesServer, tmp_path: Path
) -> None:
    rig = KubernetesOrdering(tmp_path, cluster, offers={"gpus": OFFER})
    engine = rig.engine()
    assert [(offer.name, offer.nodes_max, offer.withheld) for offer in engine.inventory().offers] == [("gpus", 4, "")]
    control = Control(
        store=open_store(f"sqlite:///{tmp_path / 'store.db'}"),
        engines={ClusterName("alpha"): engine},
        clock=SystemClock(),
        dice=SeededDice(1, "control"),
        access=AgentAccess(controller_urls=("http://127.0.0.1:1",), objects_url=f"file://{tmp_path}", key="a key"),
        policy=Policy(provision_after_s=0.0),
    )
    option = Option(chip=H100, chips=8, replicas=2)
    role = Role(name=RoleName("main"), command=("train",), options=(option,))
    loop = control.new_loop()
    job = control.submit(Submit(spec=JobSpec(name="waits", roles=(role,)))).id

    def comes_to(state: JobState) -> bool:
        loop.tick()
        return control.job(job).state is state

    try:
        cluster.wait(lambda: comes_to(JobState.STARTING), "karpenter")
        view: JobView = control.job(job)
        (attempt,) = view.attempts
        assert len(attempt.nodes) == 2
        nodes = cluster.call("GET", "/api/v1/nodes")["items"]
        assert {node["metadata"]["labels"]["karpenter.sh/nodepool"] for node in nodes} == {"gpus"}
        assert [
            event.kind for event in control.events(reference=job) if event.kind.startswith(("nodes_", "provision"))
        ] == [
            "provision_wanted",
            "nodes_ordered",
        ]
        there = f"/api/v1/namespaces/{rig.space}/pods"

        def running() -> bool:
            loop.tick()
            pods = cluster.call("GET", f"{there}?labelSelector=mainspring/allocation")["items"]
            return [pod["status"].get("phase") for pod in pods] == ["Running", "Running"]

        cluster.wait(running, "kwok")
        assert not cluster.call("GET", f"{there}?labelSelector=mainspring/order")["items"]
        assert not engine.inventory().orders
        assert all(node.condition is NodeCondition.READY for node in engine.inventory().nodes)
    finally:
        rig.close()
