"""The inventory of a real control plane: nodes and pods come, change and go while it watches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from mainspring.domain.errors import NotFound, Unavailable
from mainspring.domain.fleet import Node, NodeCondition
from mainspring.domain.ids import ClusterName, NodeName
from mainspring.engines.kubernetes.api.access import read_kubeconfig
from mainspring.engines.kubernetes.api.client import MERGE, Api
from mainspring.engines.kubernetes.cluster.config import ALLOCATION, CORDONED_BY, CORDONED_FOR, KubernetesCluster
from mainspring.engines.kubernetes.cluster.inventory import NodeStock
from mainspring.testing import FakeClock
from mainspring.testing.kubernetes import KubernetesNodes, KubernetesServer
from tests.engines.kubernetes.line import Line

pytestmark = pytest.mark.slow
READY, CORDONED, DOWN = NodeCondition.READY, NodeCondition.CORDONED, NodeCondition.DOWN
PODS = "/api/v1/namespaces/default/pods"
OURS = "/api/v1/namespaces/mainspring/pods"
H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "topology.kubernetes.io/zone": "us-a"}
SLICE = {
    "cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice",
    "cloud.google.com/gke-tpu-topology": "2x2x2",
    "cloud.google.com/gke-nodepool": "pool-1",
}


class Rig:
    """A cluster of two nodes of GPUs and a TPU slice of two hosts, and a stock of it."""

    def __init__(self, server: KubernetesServer) -> None:
        self.server = server
        self.clock = FakeClock()
        self._made: list[NodeStock] = []
        self.stock = self.another()

    def another(self, url: str = "", **fields: Any) -> NodeStock:
        """Returns one more stock of the same cluster.

        Args:
            url: Where it finds the API, in place of where that is.
        """
        path = self.server.place.kubeconfig
        access = read_kubeconfig(path, "", environment=os.environ, clock=self.clock)
        api = Api("ada", lambda: replace(access, url=url or access.url), call_s=60.0, page_items=2)
        self._made.append(
            NodeStock(KubernetesCluster(name=ClusterName("ada"), call_s_max=60.0, **fields), api, self.clock)
        )
        return self._made[-1]

    def close(self) -> None:
        for stock in self._made:
            stock.close()

    def nodes(self, stock: NodeStock | None = None) -> dict[str, Node]:
        return {node.name: node for node in (stock or self.stock).look().nodes}

    def silent(self, stock: NodeStock | None = None) -> bool:
        """Returns whether the cluster counts as silent, a second later than at the last look."""
        self.clock.advance(1.0)
        try:
            self.nodes(stock=stock)
        except Unavailable:
            return True
        return False

    def until(self, condition: Callable[[], bool]) -> None:
        self.server.wait(condition, "etcd")

    def change(self, path: str, **change: object) -> None:
        self.server.call("PATCH", path, change, kind=MERGE)

    def pod(self, name: str, node: str, *, gpus: int, path: str = PODS, ours: bool = False, **more: str) -> None:
        """Binds a pod to a node.

        Args:
            ours: Whether it bears our label.
            more: What it asks for besides.
        """
        asked = {"nvidia.com/gpu": str(gpus), **more}
        container = {"name": "main", "image": "none", "resources": {"requests": asked, "limits": asked}}
        spec = {"nodeName": node, "containers": [container], "terminationGracePeriodSeconds": 0}
        labels = {ALLOCATION: "allocation-1"} if ours else {}
        self.server.call("POST", path, {"metadata": {"name": name, "labels": labels}, "spec": spec})

    def remove(self, path: str) -> None:
        self.server.call("DELETE", path)


def noted(space: str | None) -> dict[str, Any]:
    """Returns who has cordoned a node, as its metadata says it: a lab, or nobody any more."""
    by, why = (None, None) if space is None else (f"{space}/health", "slow link")
    return {"annotations": {CORDONED_BY: by, CORDONED_FOR: why}}


@pytest.fixture(scope="module")
def cluster(server: KubernetesServer) -> Iterator[KubernetesServer]:
    groups = (
        KubernetesNodes(count=2, labels=H100, cpus="64", memory="512Gi"),
        KubernetesNodes(count=2, prefix="t", resource="google.com/tpu", chips=4, labels=SLICE),
    )
    for nodes in groups:
        server.add(nodes)
    server.make_space("mainspring")
    yield server
    for name in (name for nodes in groups for name in nodes.names):
        server.call("DELETE", f"/api/v1/nodes/{name}")


@pytest.fixture
def rig(cluster: KubernetesServer) -> Iterator[Rig]:
    made = Rig(cluster)
    yield made
    made.close()


def test_nodes_are_shown_with_what_they_have_and_where_they_stand(rig: Rig) -> None:
    shown = rig.stock.look()
    assert (shown.cluster, shown.engine, [node.name for node in shown.nodes]) == (
        "ada",
        "kubernetes",
        ["n1", "n2", "t1", "t2"],
    )
    gpu, tpu = shown.nodes[0], shown.nodes[2]
    assert (gpu.chip, gpu.chips, gpu.cpus, gpu.memory_gib, gpu.condition) == ("h100", 8, 64.0, 512.0, READY)
    assert (gpu.domains, gpu.slice, gpu.taints, gpu.foreign_chip_milli) == ((("zone", "us-a"),), "", (), 0)
    assert (tpu.chip, tpu.chips, tpu.slice, tpu.domains) == ("v5p", 4, "2x2x2", (("slice", "pool-1"),))


def test_what_others_hold_comes_and_goes_with_their_pods_and_ours_is_not_theirs(rig: Rig) -> None:
    rig.nodes()
    rig.pod("theirs", "n1", gpus=3, cpu="1500m", memory="2Gi")
    rig.pod("more", "n1", gpus=1)
    rig.pod("ours", "n1", gpus=2, path=OURS, ours=True)
    rig.pod("not-ours", "n2", gpus=2, ours=True)
    rig.until(lambda: [rig.nodes()[name].foreign_chip_milli for name in ("n1", "n2")] == [4_000, 2_000])
    assert (rig.nodes()["n1"].foreign_cpus, rig.nodes()["n1"].foreign_memory_gib) == (1.5, 2.0)
    listed = rig.nodes(stock=rig.another())
    assert listed == rig.nodes()
    rig.change(f"{PODS}/theirs/status", status={"phase": "Succeeded"})
    for path in (f"{PODS}/more", f"{OURS}/ours", f"{PODS}/not-ours"):
        rig.remove(path)
    rig.until(lambda: not any(node.foreign_chip_milli for node in rig.nodes().values()))
    assert rig.nodes()["n1"].foreign_cpus == 0.0
    rig.remove(f"{PODS}/theirs")


def test_cordons_of_operators_are_leaving_and_ours_are_ours(rig: Rig) -> None:
    rig.clock.jump(1_000.0)
    rig.nodes()
    rig.change("/api/v1/nodes/n1", spec={"unschedulable": True}, metadata=noted("other"))
    rig.change("/api/v1/nodes/n2", spec={"unschedulable": True}, metadata=noted("mainspring"))
    rig.until(lambda: [rig.nodes()[name].condition for name in ("n1", "n2")] == [CORDONED, CORDONED])
    shown = rig.nodes()
    assert (shown["n1"].condition_owner, shown["n1"].condition_reason) == ("kubernetes", "cordoned")
    assert shown["n1"].leaves_s == rig.clock.now_s()
    assert (shown["n2"].condition_owner, shown["n2"].condition_reason) == ("health", "slow link")
    assert shown["n2"].leaves_s is None
    for name in ("n1", "n2"):
        rig.change(f"/api/v1/nodes/{name}", spec={"unschedulable": None}, metadata=noted(None))
    rig.until(lambda: [rig.nodes()[name].condition for name in ("n1", "n2")] == [READY, READY])
    assert rig.nodes()["n1"].leaves_s is None


def test_slice_with_a_host_that_takes_nothing_takes_nothing(rig: Rig) -> None:
    assert rig.nodes()["t1"].condition is READY
    lost = [{"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."}]
    rig.change("/api/v1/nodes/t2/status", status={"conditions": lost})
    rig.until(lambda: rig.nodes()["t2"].condition is DOWN)
    one = rig.nodes()["t1"]
    assert (one.condition, one.condition_reason) == (CORDONED, "its slice has 1 of 2 hosts ready")
    rig.change("/api/v1/nodes/t2/status", status={"conditions": [{**lost[0], "status": "True"}]})
    rig.until(lambda: rig.nodes()["t1"].condition is READY)
    rig.change("/api/v1/nodes/t1", spec={"unschedulable": True}, metadata=noted("mainspring"))
    rig.until(lambda: rig.nodes()["t2"].condition is CORDONED)
    rig.change("/api/v1/nodes/t1", spec={"unschedulable": None}, metadata=noted(None))
    rig.until(lambda: rig.nodes()["t2"].condition is READY)


def test_nodes_that_come_and_go_are_seen_and_others_pools_are_not(rig: Rig) -> None:
    picked = rig.another(nodes="pool=a")
    assert rig.nodes(stock=picked) == {}
    rig.server.add(KubernetesNodes(count=1, prefix="new", labels={"pool": "a"}))
    rig.until(lambda: "new1" in rig.nodes() and "new1" in rig.nodes(stock=picked))
    assert rig.stock.machine(NodeName("new1")).name == "new1"
    rig.remove("/api/v1/nodes/new1")
    rig.until(lambda: "new1" not in rig.nodes() and not rig.nodes(stock=picked))
    with pytest.raises(NotFound, match="got n9; did you mean"):
        rig.stock.machine(NodeName("n9"))


def test_restarted_api_server_is_caught_up_with_and_one_that_stays_away_is_told(rig: Rig) -> None:
    rig.nodes()
    rig.server.kill("kube-apiserver")
    assert len(rig.nodes()) == 4  # For a moment that is no news.
    rig.until(rig.silent)
    with pytest.raises(Unavailable, match="refused"):
        rig.nodes()
    rig.server.serve("kube-apiserver")
    rig.pod("late", "n1", gpus=8)
    rig.until(lambda: not rig.silent() and rig.nodes()["n1"].foreign_chip_milli == 8_000)
    rig.remove(f"{PODS}/late")


def test_pod_deleted_while_nobody_looked_and_versions_were_forgotten_is_gone(rig: Rig) -> None:
    rig.pod("old", "n2", gpus=8)
    with Line(rig.server.place.port) as line:
        stock = rig.another(url=f"https://127.0.0.1:{line.port}")
        assert rig.nodes(stock=stock)["n2"].foreign_chip_milli == 8_000
        line.cut()
        rig.remove(f"{PODS}/old")
        # One that begins anew knows no version from before.
        rig.server.kill("kube-apiserver")
        rig.server.serve("kube-apiserver")
        line.mend()
        rig.until(lambda: not rig.silent(stock) and not rig.nodes(stock=stock)["n2"].foreign_chip_milli)
