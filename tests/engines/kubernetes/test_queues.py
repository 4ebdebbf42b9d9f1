"""A cluster whose queue is Kueue's: what waits there, what it takes back, what of its quota is shown."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mainspring.app.base.system import SystemClock
from mainspring.domain.errors import Unavailable
from mainspring.domain.fleet import AllocationPhase, LaunchOrder, Node, NodeCondition
from mainspring.domain.ids import AllocationId, AttemptId, ClusterName, NodeName, RoleName
from mainspring.domain.job import Tier
from mainspring.engines.common.kind import CheckResult, EngineContext
from mainspring.engines.kubernetes.api.client import MERGE
from mainspring.engines.kubernetes.cluster.config import KubernetesCluster
from mainspring.engines.kubernetes.cluster.machines import read_machine
from mainspring.engines.kubernetes.cluster.pods import PodSettings
from mainspring.engines.kubernetes.cluster.queues import Flavor
from mainspring.engines.kubernetes.cluster.slots import Slot, make_slots
from mainspring.engines.kubernetes.kind import check
from mainspring.testing.kubernetes import KubernetesServer, settings_on
from mainspring.testing.kubernetes_kueue import API, kueue_missing, make_queues, start_kueue
from tests.contracts.on_kubernetes import KubernetesHarness, kubernetes_of
from tests.engines.kubernetes.test_engine import phase, seen

MISSING = kueue_missing()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=MISSING)]
FIRST, SECOND = AllocationId("allocation-1"), AllocationId("allocation-2")
NODES = ("alpha-1", "alpha-2")
SLOTS = ("gpus-h100x8-0001", "gpus-h100x8-0002")
PENDING, RUNNING, STOPPING, ENDED = AllocationPhase


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesServer]:
    with kubernetes_of(tmp_path_factory.mktemp("kubernetes"), len(NODES)) as server:
        start_kueue(server)
        yield server


@pytest.fixture
def rig(cluster: KubernetesServer, tmp_path: Path) -> Iterator[KubernetesHarness]:
    """Our queue has half of the chips, and may borrow the other's half."""
    made = KubernetesHarness(tmp_path, cluster, NODES, queues={"lab": 8, "other": 8})
    yield made
    engine = made.engine()
    for one in engine.observe():
        engine.stop(one.allocation, grace_s=0.0)
    made.until(lambda: all(one.phase is ENDED for one in engine.observe()))
    cluster.call("DELETE", jobs(made), {"propagationPolicy": "Background", "gracePeriodSeconds": 0})
    made.until(lambda: pods(made, cluster) == [])
    made.close()


def order(name: AllocationId = FIRST, *, slots: tuple[str, ...] = SLOTS, tier: Tier = Tier.STANDARD) -> LaunchOrder:
    return LaunchOrder(
        allocation=name,
        attempt=AttemptId("attempt-1"),
        role=RoleName("main"),
        nodes=tuple(map(NodeName, slots)),
        chip_milli=(8_000,) * len(slots),
        controller="http://127.0.0.1:1",
        token="a-secret",
        tier=tier,
    )


def jobs(rig: KubernetesHarness) -> str:
    return f"/apis/batch/v1/namespaces/{rig.space}/jobs"


def pods(rig: KubernetesHarness, cluster: KubernetesServer) -> list[dict[str, object]]:
    return list(cluster.call("GET", f"/api/v1/namespaces/{rig.space}/pods")["items"])


def others_job(rig: KubernetesHarness, cluster: KubernetesServer) -> str:
    """Submits a Job of others to their own queue, for one node; returns where it is."""
    amount = {"nvidia.com/gpu": "8"}
    container = {"name": "a", "image": "theirs", "command": ["sleep", "600"]}
    spec = {"restartPolicy": "Never", "containers": [container | {"resources": {"requests": amount, "limits": amount}}]}
    meta = {"name": "theirs", "labels": {"kueue.x-k8s.io/queue-name": "other"}}
    cluster.call("POST", jobs(rig), {"metadata": meta, "spec": {"suspend": True, "template": {"spec": spec}}})
    return f"{jobs(rig)}/theirs"


def test_what_finds_no_quota_waits_in_kueues_words_and_begins_once_there_is_some(rig: KubernetesHarness) -> None:
    engine = rig.engine()
    engine.launch(order())
    rig.until(lambda: phase(engine) is RUNNING)
    rig.speak(FIRST, 2)
    assert sorted(seen(engine).hosts) == sorted(NODES)
    engine.launch(order(SECOND))
    rig.until(lambda: "quota" in seen(engine, SECOND).reason)
    assert (phase(engine, SECOND), seen(engine, SECOND).hosts, rig.starts()) == (PENDING, (), 2)
    engine.stop(FIRST, grace_s=5.0)
    rig.until(lambda: phase(engine, SECOND) is RUNNING)
    rig.speak(SECOND, 2)
    assert phase(engine, FIRST) is ENDED
    assert not seen(engine, FIRST).taken


def test_preempted_by_another_queue_it_ends_in_good_order_and_no_pod_of_a_second_life_begins(
    rig: KubernetesHarness, cluster: KubernetesServer
) -> None:
    engine = rig.engine()
    engine.launch(order())
    rig.speak(FIRST, 2)
    before = {str(pod["metadata"]["uid"]) for pod in pods(rig, cluster)}  # type: ignore[index]
    theirs = others_job(rig, cluster)
    rig.until(lambda: bool(cluster.call("GET", theirs)["status"].get("active")))  # It took back what it had lent.
    cluster.call("DELETE", theirs, {"propagationPolicy": "Background", "gracePeriodSeconds": 0})
    # Nobody has looked meanwhile, so Kueue lets it in again.
    rig.until(lambda: len({pod["metadata"]["uid"] for pod in pods(rig, cluster)} - before) == 2)  # type: ignore[index]
    again = rig.engine()
    rig.until(lambda: phase(again) is ENDED)
    over = seen(engine)
    assert (over.phase, over.taken, over.lost_nodes) == (ENDED, True, ())
    assert "Preempted" in over.reason
    assert [words for words in rig.over(FIRST) if "stopped" in words] != []
    rig.until(lambda: pods(rig, cluster) == [] and not cluster.there(f"{jobs(rig)}/{FIRST}"))
    assert rig.starts() == 2


def test_what_waits_for_too_long_is_withdrawn(rig: KubernetesHarness, cluster: KubernetesServer) -> None:
    engine = rig.engine(queue_wait_s_max=3_000.0)
    engine.launch(order())
    rig.speak(FIRST, 2)
    engine.launch(order(SECOND))
    rig.until(lambda: "quota" in seen(engine, SECOND).reason)
    rig.clock.advance(3_001.0)
    rig.until(lambda: phase(engine, SECOND) is ENDED)
    over = seen(engine, SECOND)
    assert (over.taken, over.reason.startswith("withdrawn from queue lab")) == (True, True)
    assert not cluster.there(f"{jobs(rig)}/{SECOND}")
    assert phase(engine) is RUNNING


def test_what_is_stopped_while_it_waits_never_begins(rig: KubernetesHarness, cluster: KubernetesServer) -> None:
    engine = rig.engine()
    engine.launch(order())
    rig.speak(FIRST, 2)
    engine.launch(order(SECOND))
    rig.until(lambda: "quota" in seen(engine, SECOND).reason)
    engine.stop(SECOND, grace_s=30.0)
    rig.until(lambda: phase(engine, SECOND) is ENDED)
    assert (seen(engine, SECOND).reason, seen(engine, SECOND).taken) == ("stopped before it began", False)
    assert not cluster.there(f"{jobs(rig)}/{SECOND}")
    assert rig.starts() == 2


def test_a_tier_has_its_priority_among_what_waits(rig: KubernetesHarness, cluster: KubernetesServer) -> None:
    engine = rig.engine(priorities={"critical": "now"})
    engine.launch(order())
    rig.speak(FIRST, 2)
    engine.launch(order(SECOND, slots=SLOTS[:1], tier=Tier.CRITICAL))  # Who must borrow takes from nobody.
    rig.until(lambda: phase(engine, SECOND) is RUNNING)
    assert (phase(engine), seen(engine).taken) == (ENDED, True)


def test_slots_are_what_quota_and_nodes_leave(rig: KubernetesHarness, cluster: KubernetesServer) -> None:
    engine = rig.engine()

    def shown(**settings: Any) -> list[tuple[str, str, int]]:
        found = rig.engine(**settings).inventory() if settings else engine.inventory()
        assert found.delegated
        return [(node.name, node.condition.value, node.foreign_chip_milli) for node in found.nodes]

    free = [(slot, "ready", 0) for slot in SLOTS]
    assert shown() == free
    theirs = others_job(rig, cluster)
    rig.until(lambda: shown() == [(SLOTS[0], "ready", 0), (SLOTS[1], "ready", 8_000)])
    assert shown(queued_nodes_max=1) == free
    path = f"{API}/clusterqueues/{rig.space}-lab"
    cluster.call("PATCH", path, {"spec": {"stopPolicy": "Hold"}}, kind=MERGE)
    rig.until(lambda: "stopped (Hold)" in engine.inventory().nodes[0].condition_reason)
    assert {node.condition for node in engine.inventory().nodes} == {NodeCondition.CORDONED}
    cluster.call("PATCH", path, {"spec": {"stopPolicy": "None"}}, kind=MERGE)
    cluster.call("DELETE", theirs, {"propagationPolicy": "Background", "gracePeriodSeconds": 0})
    rig.until(lambda: shown() == free)


def test_queue_that_covers_no_device_of_pods_takes_nothing_and_names_it(
    rig: KubernetesHarness, cluster: KubernetesServer
) -> None:
    pods = PodSettings(devices={"rdma/hca": 1})
    engine = rig.engine(pods=pods)
    said = {(node.condition, node.condition_reason) for node in engine.inventory().nodes}
    assert said == {(NodeCondition.CORDONED, f"ClusterQueue '{rig.space}-lab' covers no rdma/hca of pods.devices")}
    settings = settings_on(cluster, namespace=rig.space, queue="lab", pods=pods)
    context = EngineContext(environment=os.environ, certificate="", clock=SystemClock())
    found = {one.name: one for one in check(settings, context, "")}
    assert (found["queues"].standing, "rdma/hca" in found["queues"].found) == (CheckResult.FAILED, True)
    # As Kueue says of who asks for it all the same.
    name = {"nvidia.com/gpu": "8", "rdma/hca": "1"}
    container = {"name": "a", "image": "theirs", "resources": {"requests": name, "limits": name}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    meta = {"name": "asks", "labels": {"kueue.x-k8s.io/queue-name": "lab"}}
    cluster.call("POST", jobs(rig), {"metadata": meta, "spec": {"suspend": True, "template": template}})
    workloads = f"{API}/namespaces/{rig.space}/workloads"
    rig.until(lambda: "rdma/hca" in str([one.get("status") for one in cluster.call("GET", workloads)["items"]]))


def test_slots_have_the_devices_that_all_nodes_behind_them_have() -> None:
    of = KubernetesCluster(name=ClusterName("ada"), queue="lab", pods=PodSettings(devices={"rdma/hca": 1, "a/b": 1}))
    nodes = []
    for name, has in (("n1", {"rdma/hca": "1", "a/b": "2"}), ("n2", {"a/b": "2"})):
        amounts = {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "8", **has}
        status = {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
        machine = read_machine({"metadata": {"name": name}, "status": status}, of)
        shown = Node(name=NodeName(name), chip=machine.chip, chips=8)
        nodes.append(Slot(node=shown, machine=machine))
    flavors = {"gpus": Flavor(name="gpus", labels={})}
    for chosen, devices in ((nodes, ("a/b",)), (nodes[:1], ("a/b", "rdma/hca"))):
        made = make_slots(chosen, flavors, {("gpus", "nvidia.com/gpu"): 16.0}, [], queued=0, closed="")
        assert {slot.machine.devices for slot in made} == {devices}


def test_a_gang_is_asked_to_be_near_where_kueue_knows_levels(rig: KubernetesHarness, cluster: KubernetesServer) -> None:
    kueue = "kueue.x-k8s.io/v1beta2"
    levels = [{"nodeLabel": "lab/rack"}, {"nodeLabel": "kubernetes.io/hostname"}]
    topology = {"apiVersion": kueue, "kind": "Topology", "metadata": {"name": rig.space}, "spec": {"levels": levels}}
    cluster.call("POST", f"{API}/topologies", topology)
    for node, rack in zip(NODES, ("r1", "r2"), strict=True):
        labels = {"lab/rack": rack, "pool": rig.space}
        cluster.call("PATCH", f"/api/v1/nodes/{node}", {"metadata": {"labels": labels}}, kind=MERGE)
    flavor = {"nodeLabels": {"pool": rig.space}, "topologyName": rig.space}
    make_queues(cluster, rig.space, flavors={f"near-{rig.space}": flavor}, queues={"near": {f"near-{rig.space}": 16}})
    engine = rig.engine(queue="near")
    rig.until(lambda: len(engine.inventory().nodes) == 2)
    slots = tuple(str(node.name) for node in engine.inventory().nodes)
    engine.launch(order(slots=slots))
    rig.until(lambda: phase(engine) is RUNNING)
    template = cluster.call("GET", f"{jobs(rig)}/{FIRST}")["spec"]["template"]
    assert template["metadata"]["annotations"]["kueue.x-k8s.io/podset-preferred-topology"] == "lab/rack"
    assert sorted(seen(engine).hosts) == sorted(NODES)


def test_a_cluster_without_kueue_says_so(server: KubernetesServer, tmp_path: Path) -> None:
    rig = KubernetesHarness(tmp_path, server, ())
    try:
        with pytest.raises(Unavailable, match="Kueue"):
            rig.engine(queue="lab").inventory()
    finally:
        rig.close()
