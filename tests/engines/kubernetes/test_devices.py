"""Chips that a driver publishes: a real control plane gives them to pods of ours and of others."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from mainspring.domain.errors import Conflict
from mainspring.domain.fleet import AllocationPhase, LaunchOrder, Node, NodeCondition
from mainspring.domain.ids import AllocationId, AttemptId, ChipName, ClusterName, NodeName, RoleName
from mainspring.engines.kubernetes.api.access import read_kubeconfig
from mainspring.engines.kubernetes.api.client import Api
from mainspring.engines.kubernetes.cluster.config import KubernetesCluster
from mainspring.engines.kubernetes.cluster.devices import GROUP
from mainspring.engines.kubernetes.cluster.inventory import NodeStock
from mainspring.engines.kubernetes.engine import STUCK_S_MAX
from mainspring.engines.kubernetes.setup.account import AccountWanted
from mainspring.testing import FakeClock
from mainspring.testing.kubernetes import KubernetesNodes, KubernetesServer, kubernetes_missing
from mainspring.testing.kubernetes_pods import pods_missing
from tests.contracts.on_kubernetes import KubernetesHarness
from tests.engines.kubernetes.applying import apply

MISSING = kubernetes_missing() or pods_missing()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=MISSING)]
DRIVER = "gpu.nvidia.com"
H100 = "NVIDIA H100 80GB HBM3"
NAME = AllocationId("allocation-1")
NODES = ("alpha-1", "alpha-2")
PENDING, RUNNING, STOPPING, ENDED = AllocationPhase


def device(name: str, product: str = H100, kind: str = "gpu") -> dict[str, Any]:
    told = {"type": {"string": kind}, "productName": {"string": product}}
    return {"name": name, "attributes": told, "capacity": {"memory": {"value": "81559Mi"}}}


def publish(
    server: KubernetesServer,
    node: str,
    *devices: dict[str, Any],
    generation: int = 1,
    parts: int = 1,
    driver: str = DRIVER,
) -> None:
    spec = {
        "driver": driver,
        "nodeName": node,
        "pool": {"name": node, "generation": generation, "resourceSliceCount": parts},
        "devices": list(devices),
    }
    name = f"{node}-{driver}-{generation}-{len(devices)}"
    server.call("POST", f"{GROUP}/resourceslices", {"metadata": {"name": name}, "spec": spec})


@pytest.fixture
def server(tmp_path: Path) -> Iterator[KubernetesServer]:
    """A cluster of two nodes with eight H100 each, which a driver publishes, as well as a part of one."""
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    nodes = KubernetesNodes(count=len(NODES), prefix="alpha-", resource="", taints=(taint,))
    with KubernetesServer(tmp_path / "kubernetes", nodes=[nodes]) as started:
        whole = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'gpu'"
        chosen = {"selectors": [{"cel": {"expression": whole}}]}
        started.call("POST", f"{GROUP}/deviceclasses", {"metadata": {"name": DRIVER}, "spec": chosen})
        for node in NODES:
            part = device("gpu-8-mig-1", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "mig")
            publish(started, node, *(device(f"gpu-{index}") for index in range(8)), part)
        yield started


class Stocks:
    """Inventories of one cluster."""

    def __init__(self, server: KubernetesServer) -> None:
        self._server = server
        self._made: list[NodeStock] = []

    def new(self, **settings: Any) -> NodeStock:
        access = read_kubeconfig(self._server.place.kubeconfig, "", environment=os.environ, clock=FakeClock())
        cluster = KubernetesCluster(name=ClusterName("ada"), call_s_max=60.0, **settings)
        self._made.append(NodeStock(cluster, Api("ada", lambda: access, call_s=60.0), FakeClock()))
        return self._made[-1]

    def close(self) -> None:
        for stock in self._made:
            stock.close()


@pytest.fixture
def stocks(server: KubernetesServer) -> Iterator[Stocks]:
    made = Stocks(server)
    yield made
    made.close()


def shown(stock: NodeStock) -> Mapping[str, Node]:
    return {node.name: node for node in stock.look().nodes}


def ask(server: KubernetesServer, name: str, count: int) -> None:
    """Has somebody else's pod ask for chips."""
    space = "default"
    request = {"name": "chips", "exactly": {"deviceClassName": DRIVER, "count": count}}
    template = {"metadata": {"name": name}, "spec": {"spec": {"devices": {"requests": [request]}}}}
    server.call("POST", f"{GROUP}/namespaces/{space}/resourceclaimtemplates", template)
    spec = {
        "nodeSelector": {"kubernetes.io/hostname": "alpha-1"},
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": 0,
        "resourceClaims": [{"name": "chips", "resourceClaimTemplateName": name}],
        "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "chips"}]}}],
    }
    server.call("POST", f"/api/v1/namespaces/{space}/pods", {"metadata": {"name": name}, "spec": spec})


def order(milli: int = 8_000, nodes: tuple[str, ...] = NODES) -> LaunchOrder:
    return LaunchOrder(
        allocation=NAME,
        attempt=AttemptId("attempt-1"),
        role=RoleName("main"),
        nodes=tuple(map(NodeName, nodes)),
        chip_milli=(milli,) * len(nodes),
        controller="http://127.0.0.1:1",
        token="a-secret",
    )


def test_devices_of_a_driver_are_chips_and_what_others_hold_of_them_comes_and_goes(
    server: KubernetesServer, stocks: Stocks
) -> None:
    stock = stocks.new()
    one = shown(stock)["alpha-1"]
    assert (one.chip, one.chips, one.condition, one.taints) == ("h100", 8, NodeCondition.READY, ())
    ask(server, "theirs", 3)
    server.wait(lambda: shown(stock)["alpha-1"].foreign_chip_milli == 3_000, "kube-scheduler")
    assert shown(stock)["alpha-2"].foreign_chip_milli == 0
    assert shown(stocks.new()) == shown(stock)
    server.call("DELETE", "/api/v1/namespaces/default/pods/theirs")
    server.wait(lambda: shown(stock)["alpha-1"].foreign_chip_milli == 0, "kube-controller-manager")


def test_newest_generation_of_a_pool_counts_once_all_of_it_is_there(server: KubernetesServer, stocks: Stocks) -> None:
    stock = stocks.new()
    assert shown(stock)["alpha-1"].chips == 8
    publish(server, "alpha-1", device("gpu-0"), device("gpu-1"), generation=2, parts=2)
    server.wait(lambda: shown(stock)["alpha-1"].chips == 0, "etcd")
    for one in (shown(stock)["alpha-1"], shown(stocks.new())["alpha-1"]):
        assert (one.chip, one.condition) == ("h100", NodeCondition.CORDONED)  # No node without chips, free for any job.
        assert one.condition_reason == f"{DRIVER} has not published all of its chips yet"
    publish(server, "alpha-1", device("gpu-2"), generation=2, parts=2)
    server.wait(lambda: shown(stock)["alpha-1"].chips == 3, "etcd")
    assert (shown(stock)["alpha-1"].condition, shown(stock)["alpha-1"].condition_reason) == (NodeCondition.READY, "")


def test_node_whose_driver_takes_back_what_it_published_takes_nothing_until_that_is_there_again(
    server: KubernetesServer, stocks: Stocks
) -> None:
    stock = stocks.new()
    assert shown(stock)["alpha-1"].chips == 8
    server.call("DELETE", f"{GROUP}/resourceslices?fieldSelector=spec.nodeName=alpha-1")
    server.wait(lambda: shown(stock)["alpha-1"].chips == 0, "etcd")
    one = shown(stock)["alpha-1"]
    assert (one.chip, one.condition) == ("h100", NodeCondition.CORDONED)
    assert one.condition_reason == f"{DRIVER} has taken back what it published"
    publish(server, "alpha-1", generation=2)
    publish(server, "alpha-2", device("part", kind="mig"), generation=2)
    words = f"{DRIVER} publishes no whole chip that can be had"
    server.wait(lambda: {one.condition_reason for one in shown(stock).values()} == {words}, "etcd")
    publish(server, "alpha-1", device("gpu-0"), generation=3)
    server.wait(lambda: shown(stock)["alpha-1"].chips == 1, "etcd")
    assert shown(stock)["alpha-1"].condition is NodeCondition.READY


def test_operator_names_drivers_and_products_and_unnamed_drivers_have_no_chips(
    server: KubernetesServer, stocks: Stocks
) -> None:
    taint = {"key": "tpu.example.org", "effect": "NoSchedule"}
    server.add(KubernetesNodes(count=1, prefix="beta-", resource="", taints=(taint,)))
    publish(server, "beta-1", {"name": "tpu-0"}, {"name": "tpu-1"}, driver="tpu.example.org")
    assert shown(stocks.new())["beta-1"].chip == "cpu"
    named = shown(stocks.new(chips={"tpu.example.org": ChipName("v5p"), H100: ChipName("hopper")}))
    assert (named["beta-1"].chip, named["beta-1"].chips, named["alpha-1"].chip) == ("v5p", 2, "hopper")
    assert (named["beta-1"].chip_memory_gib, named["alpha-1"].chip_memory_gib) == (None, 81_559 / 1_024)


def test_pods_for_chips_of_a_driver_that_the_operator_names_go_where_a_taint_named_like_it_is(
    server: KubernetesServer, tmp_path: Path
) -> None:
    driver = "tpu.example.org"
    chosen = {"selectors": [{"cel": {"expression": f"device.driver == '{driver}'"}}]}
    server.call("POST", f"{GROUP}/deviceclasses", {"metadata": {"name": driver}, "spec": chosen})
    taint = {"key": driver, "effect": "NoSchedule"}
    server.add(KubernetesNodes(count=1, prefix="beta-", resource="", taints=(taint,)))
    publish(server, "beta-1", {"name": "tpu-0"}, {"name": "tpu-1"}, driver=driver)
    rig = KubernetesHarness(tmp_path, server, ("beta-1",))
    try:
        engine = rig.engine(chips={driver: ChipName("v5p")})
        engine.launch(order(2_000, ("beta-1",)))
        rig.until(lambda: [one.phase for one in engine.observe()] == [RUNNING])
    finally:
        rig.close()


def test_pods_have_whole_chips_of_amds_driver_and_no_parts_of_the_same_product(
    server: KubernetesServer, tmp_path: Path
) -> None:
    driver, product = "gpu.amd.com", "AMD Instinct MI300X"
    chosen = {"selectors": [{"cel": {"expression": f"device.driver == '{driver}'"}}]}  # As AMD's own has it.
    server.call("POST", f"{GROUP}/deviceclasses", {"metadata": {"name": driver}, "spec": chosen})
    server.add(KubernetesNodes(count=1, prefix="beta-", resource=""))
    parts = [device(f"a-part-{index}", product, "amdgpu-partition") for index in range(8)]
    publish(
        server, "beta-1", *parts, device("gpu-0", product, "amdgpu"), device("gpu-1", product, "amdgpu"), driver=driver
    )
    rig = KubernetesHarness(tmp_path, server, ("beta-1",))
    try:
        engine = rig.engine()
        one = next(node for node in engine.inventory().nodes if node.name == "beta-1")
        assert (one.chip, one.chips) == ("mi300x", 2)
        engine.launch(order(2_000, ("beta-1",)))
        rig.until(lambda: [one.phase for one in engine.observe()] == [RUNNING])
        (claim,) = server.call("GET", f"{GROUP}/namespaces/{rig.space}/resourceclaims")["items"]
        given = claim["status"]["allocation"]["devices"]["results"]
        assert sorted(one["device"] for one in given) == ["gpu-0", "gpu-1"]
    finally:
        rig.close()


def test_chips_of_one_type_that_plugins_count_and_a_driver_publishes_are_kept_apart(
    server: KubernetesServer, stocks: Stocks, tmp_path: Path
) -> None:
    server.add(KubernetesNodes(count=1, prefix="beta-", labels={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}))
    found = shown(stocks.new())
    assert {name: node.condition for name, node in found.items()} == {
        "alpha-1": NodeCondition.READY,
        "alpha-2": NodeCondition.READY,
        "beta-1": NodeCondition.CORDONED,
    }
    assert "--chip nvidia.com/gpu=NAME" in found["beta-1"].condition_reason
    named = shown(stocks.new(chips={"gpu.nvidia.com": ChipName("h100-dra")}))
    assert {(node.chip, node.condition) for node in named.values()} == {
        ("h100-dra", NodeCondition.READY),
        ("h100", NodeCondition.READY),
    }
    rig = KubernetesHarness(tmp_path, server, ())
    try:
        engine = rig.engine()
        with pytest.raises(Conflict, match=r"gpu\.nvidia\.com and nvidia\.com/gpu"):
            engine.launch(order(nodes=("alpha-1", "beta-1")))
        assert engine.observe() == ()
    finally:
        rig.close()


def test_cluster_whose_api_knows_no_devices_has_the_chips_that_its_plugins_count(tmp_path: Path) -> None:
    before = {"kube-apiserver": ["--emulated-version=1.33"]}
    with KubernetesServer(tmp_path / "before", nodes=[KubernetesNodes(count=1)], extra=before) as older:
        assert not older.there(GROUP)
        stocks = Stocks(older)
        assert shown(stocks.new())["n1"].chips == 8
        stocks.close()


def test_allocation_has_devices_of_its_own_under_the_policies_and_leaves_none_behind(
    server: KubernetesServer, tmp_path: Path
) -> None:
    apply(server, AccountWanted(accelerators="deny").text())
    path = tmp_path / "kubeconfig"
    server.write_kubeconfig(path, "mainspring", "mainspring")
    rig = KubernetesHarness(tmp_path, server, NODES, space="mainspring", kubeconfig=path)
    claims = f"{GROUP}/namespaces/mainspring/resourceclaims"
    try:
        engine = rig.engine()
        assert [node.chips for node in engine.inventory().nodes] == [8, 8]
        engine.launch(order())
        rig.until(lambda: [one.phase for one in engine.observe()] == [RUNNING])
        rig.speak(NAME, len(NODES))
        given = [one["status"]["allocation"]["devices"]["results"] for one in server.call("GET", claims)["items"]]
        assert [len(results) for results in given] == [8, 8]
        assert {one["pool"] for results in given for one in results} == set(NODES)
        assert [node.foreign_chip_milli for node in engine.inventory().nodes] == [0, 0]  # Ours are not others'.
        engine.stop(NAME, grace_s=30.0)
        rig.until(lambda: [one.phase for one in engine.observe()] == [ENDED])
        rig.until(lambda: server.call("GET", claims)["items"] == [])
        server.call("DELETE", f"/api/v1/namespaces/mainspring/configmaps/{NAME}")
        templates = f"{GROUP}/namespaces/mainspring/resourceclaimtemplates"
        rig.until(lambda: server.call("GET", templates)["items"] == [])
    finally:
        rig.close()


def test_pods_for_which_others_leave_too_few_devices_give_their_nodes_back(
    server: KubernetesServer, tmp_path: Path
) -> None:
    ask(server, "theirs", 3)
    rig = KubernetesHarness(tmp_path, server, NODES)
    try:
        engine = rig.engine()
        rig.until(lambda: engine.inventory().nodes[0].foreign_chip_milli == 3_000)
        engine.launch(order())
        rig.until(lambda: "allocate all claims" in engine.observe()[0].reason)
        rig.clock.advance(STUCK_S_MAX + 1.0)
        rig.until(lambda: engine.observe()[0].phase is ENDED)
        assert engine.observe()[0].taken
    finally:
        rig.close()
