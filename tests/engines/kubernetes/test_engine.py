"""The engine where things go wrong: no room, no image, no API, no kubelet, others who delete, quotas, evictions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mainspring.domain.errors import Conflict, Unavailable
from mainspring.domain.fleet import AllocationPhase, AllocationSeen, EndedBefore, LaunchOrder
from mainspring.domain.ids import AllocationId, AttemptId, NodeName, RoleName
from mainspring.domain.ports import Engine
from mainspring.engines.kubernetes.api.client import MERGE, ApiRefusal
from mainspring.engines.kubernetes.cluster.config import CORDONED_BY, CORDONED_FOR
from mainspring.engines.kubernetes.engine import ENDED_VISIBLE_S, LAUNCH_S_MAX, STUCK_S_MAX
from mainspring.engines.kubernetes.jobs.seeing import FENCED_S
from mainspring.testing.kubernetes import KubernetesServer, kubernetes_missing
from mainspring.testing.kubernetes_pods import NO_IMAGE, pods_missing
from tests.contracts.on_kubernetes import KubernetesHarness, kubernetes_of

MISSING = kubernetes_missing() or pods_missing()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=MISSING)]
NAME = AllocationId("allocation-1")
NODES = ("alpha-1", "alpha-2")
PENDING, RUNNING, STOPPING, ENDED = AllocationPhase
BARE = {"ready": False, "restartCount": 0, "image": "", "imageID": ""}  # Of every container's status.


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesServer]:
    with kubernetes_of(tmp_path_factory.mktemp("kubernetes"), len(NODES)) as server:
        yield server


@pytest.fixture
def rig(cluster: KubernetesServer, tmp_path: Path) -> Iterator[KubernetesHarness]:
    made = KubernetesHarness(tmp_path, cluster, NODES)
    yield made
    engine = made.engine()
    for one in engine.observe():
        engine.stop(one.allocation, grace_s=0.0)
    made.clock.advance(FENCED_S + 30.0)  # A test that failed may leave a kubelet dead.
    pods = f"/api/v1/namespaces/{made.space}/pods"
    try:
        made.until(lambda: all(one.phase is ENDED for one in engine.observe()))
    finally:
        cluster.call("DELETE", pods, {"gracePeriodSeconds": 0})  # Of others, too: the next test has the same nodes.
        made.until(lambda: cluster.call("GET", pods)["items"] == [])
        made.close()
        cluster.call("DELETE", f"/api/v1/namespaces/{made.space}")


def order(name: AllocationId = NAME, *, milli: int = 8_000) -> LaunchOrder:
    return LaunchOrder(
        allocation=name,
        attempt=AttemptId("attempt-1"),
        role=RoleName("main"),
        nodes=tuple(map(NodeName, NODES)),
        chip_milli=(milli,) * len(NODES),
        controller="http://127.0.0.1:1",
        token="a-secret",
    )


def running(rig: KubernetesHarness, engine: Engine) -> None:
    """Waits until both agents have said hello."""
    rig.until(lambda: phase(engine) is RUNNING)
    rig.speak(NAME, len(NODES))


def seen(engine: Engine, name: AllocationId = NAME) -> AllocationSeen:
    return next(one for one in engine.observe() if one.allocation == name)


def phase(engine: Engine, name: AllocationId = NAME) -> AllocationPhase:
    return seen(engine, name).phase


def silent(engine: Engine) -> bool:
    """Returns whether the cluster does not answer; nor does it before its watches stand."""
    try:
        engine.observe()
    except Unavailable:
        return True
    return False


def no_jobs(rig: KubernetesHarness, cluster: KubernetesServer) -> str:
    """Gives a namespace a quota that lets no Job in; returns where quotas are."""
    path = f"/api/v1/namespaces/{rig.space}/resourcequotas"
    cluster.call("POST", path, {"metadata": {"name": "q"}, "spec": {"hard": {"count/jobs.batch": "0"}}})
    cluster.wait(lambda: "hard" in cluster.call("GET", f"{path}/q").get("status", {}), "kube-controller-manager")
    return path


def test_pods_for_which_others_leave_no_room_give_their_nodes_back_in_the_schedulers_words(
    rig: KubernetesHarness, cluster: KubernetesServer
) -> None:
    taken = {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}
    other = {
        "metadata": {"name": "other"},
        "spec": {"nodeName": "alpha-2", "containers": [{"name": "a", "image": NO_IMAGE, "resources": taken}]},
    }
    cluster.call("POST", f"/api/v1/namespaces/{rig.space}/pods", other)
    engine = rig.engine()
    engine.launch(order())
    rig.until(lambda: "nvidia.com/gpu" in seen(engine).reason)
    assert phase(engine) is PENDING
    rig.clock.advance(STUCK_S_MAX + 1.0)
    rig.until(lambda: phase(engine) is ENDED)
    over = seen(rig.engine())
    assert (over.taken, over.exit_code) == (True, None)
    assert "nvidia.com/gpu" in over.reason


def test_pods_whose_image_cannot_be_pulled_end_and_their_job_is_blamed(
    rig: KubernetesHarness, cluster: KubernetesServer
) -> None:
    engine = rig.engine(image=f"{NO_IMAGE}:1")
    engine.launch(order())
    rig.until(lambda: "ImagePullBackOff" in seen(engine).reason)
    rig.clock.advance(STUCK_S_MAX + 1.0)
    rig.until(lambda: phase(engine) is ENDED)
    assert (seen(engine).taken, seen(engine).agent_lost) == (False, True)
    assert rig.starts() == 0


def test_api_server_that_is_gone_is_no_answer_and_what_runs_goes_on(
    rig: KubernetesHarness, cluster: KubernetesServer
) -> None:
    engine = rig.engine()
    engine.launch(order(milli=4_000))
    running(rig, engine)
    cluster.kill("kube-apiserver")
    second = AllocationId("allocation-2")
    with pytest.raises(Unavailable):
        engine.launch(order(second, milli=4_000))
    with pytest.raises(Unavailable):
        engine.stop(NAME, grace_s=1.0)
    rig.until(lambda: silent(engine))
    cluster.serve("kube-apiserver")
    rig.until(lambda: not silent(engine) and phase(engine) is RUNNING)
    engine.launch(order(second, milli=4_000))
    rig.until(lambda: phase(engine, second) is RUNNING)
    rig.speak(second, len(NODES))
    assert rig.starts() == 4


def test_cordon_is_seen_by_all_and_stands_while_the_api_server_is_away(
    rig: KubernetesHarness, cluster: KubernetesServer
) -> None:
    engine, other = rig.engine(), rig.engine()

    def owners(of: Engine) -> list[str]:
        return [node.condition_owner for node in of.inventory().nodes]

    assert owners(other) == ["", ""]
    engine.cordon(NodeName("alpha-2"), owner="ada", reason="noisy fan")
    assert owners(engine) == ["", "ada"]
    rig.until(lambda: owners(other) == ["", "ada"])
    cluster.kill("kube-apiserver")
    assert owners(engine) == owners(other) == ["", "ada"]  # A look asks the API for nothing.
    cluster.serve("kube-apiserver")
    engine.uncordon(NodeName("alpha-2"), owner="ada")
    rig.until(lambda: owners(other) == ["", ""])


def test_cordon_is_kubernetes_own_and_one_of_its_operators_is_never_touched(
    rig: KubernetesHarness, cluster: KubernetesServer
) -> None:
    engine, path = rig.engine(), "/api/v1/nodes/alpha-2"

    def shut() -> bool:
        return bool(cluster.call("GET", path)["spec"].get("unschedulable"))

    engine.inventory()
    cluster.call("PATCH", path, {"spec": {"unschedulable": True}}, kind=MERGE)
    with pytest.raises(Conflict, match="kubernetes"):  # Though what the engine was shown is older.
        engine.cordon(NodeName("alpha-2"), owner="ada", reason="noisy fan")
    with pytest.raises(Conflict, match="kubernetes"):
        engine.uncordon(NodeName("alpha-2"), owner="ada")
    assert shut()
    cluster.call("PATCH", path, {"spec": {"unschedulable": None}}, kind=MERGE)
    engine.cordon(NodeName("alpha-2"), owner="ada", reason="noisy fan")
    notes = cluster.call("GET", path)["metadata"]["annotations"]
    assert shut()
    assert (notes[CORDONED_BY], notes[CORDONED_FOR]) == (f"{rig.space}/ada", "noisy fan")
    engine.uncordon(NodeName("alpha-2"), owner="ada")
    assert not shut()
    assert CORDONED_BY not in (cluster.call("GET", path)["metadata"].get("annotations") or {})


def test_what_is_sent_to_a_node_of_our_own_cordon_starts_there(
    rig: KubernetesHarness, cluster: KubernetesServer
) -> None:
    engine = rig.engine()
    engine.cordon(NodeName("alpha-2"), owner="ada", reason="burn-in")
    engine.launch(replace(order(), nodes=(NodeName("alpha-2"),), chip_milli=(8_000,), cpu_milli=(), memory_mib=()))
    rig.until(lambda: phase(engine) is RUNNING)
    engine.uncordon(NodeName("alpha-2"), owner="ada")


def test_node_whose_kubelet_is_dead_keeps_its_pod_until_its_lease_is_surely_over(
    rig: KubernetesHarness, cluster: KubernetesServer
) -> None:
    engine = rig.engine()
    engine.launch(order())
    running(rig, engine)
    rig.pods.die("alpha-2")
    engine.stop(NAME, grace_s=5.0)
    pods = f"/api/v1/namespaces/{rig.space}/pods"
    rig.until(lambda: phase(engine) is STOPPING and len(cluster.call("GET", pods)["items"]) == 1)
    rig.clock.advance(FENCED_S - 60.0)
    assert phase(engine) is STOPPING
    rig.clock.advance(70.0)
    rig.until(lambda: phase(engine) is ENDED)
    assert seen(engine).lost_nodes == ("alpha-2",)


def test_stop_shortens_what_others_let_go_more_slowly(rig: KubernetesHarness, cluster: KubernetesServer) -> None:
    engine = rig.engine()
    engine.launch(order())
    running(rig, engine)
    for node in NODES:
        rig.pods.die(node)  # Nobody there ends anything meanwhile.
    pods = f"/api/v1/namespaces/{rig.space}/pods"
    cluster.call("DELETE", pods, {"gracePeriodSeconds": 600})
    rig.until(lambda: phase(engine) is STOPPING)
    engine.stop(NAME, grace_s=20.0)

    def left_s() -> list[int]:
        engine.observe()
        return [one["metadata"]["deletionGracePeriodSeconds"] for one in cluster.call("GET", pods)["items"]]

    rig.until(lambda: max(left_s()) <= 20)
    engine.stop(NAME, grace_s=0.0)
    rig.until(lambda: left_s() == [1, 1])  # Never none: what runs on a node that is silent would be forgotten.
    rig.clock.advance(FENCED_S + 30.0)
    rig.until(lambda: phase(engine) is ENDED)


def test_pod_that_is_evicted_is_taken_and_the_rest_goes_on(rig: KubernetesHarness, cluster: KubernetesServer) -> None:
    engine = rig.engine()
    engine.launch(order())
    running(rig, engine)
    (name,) = [one for one in rig.pods.names(NAME) if one.startswith(f"{NAME}-1-")]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    cluster.call("POST", f"/api/v1/namespaces/{rig.space}/pods/{name}/eviction", eviction)
    rig.until(lambda: rig.pods.names(NAME) != [] and len(rig.living(NAME)) == 1)
    rig.until(lambda: "viction" in seen(engine).reason)
    assert phase(engine) is RUNNING
    rig.clock.advance(30.0)
    assert rig.starts() == 2, "a pod that is gone is not made again"


def test_job_that_somebody_deletes_is_over_and_says_so(rig: KubernetesHarness, cluster: KubernetesServer) -> None:
    engine = rig.engine()
    engine.launch(order())
    running(rig, engine)
    cluster.call(
        "DELETE",
        f"/apis/batch/v1/namespaces/{rig.space}/jobs/{NAME}",
        {"propagationPolicy": "Background"},
    )
    rig.until(lambda: phase(engine) is ENDED)
    engine.launch(order())
    assert phase(rig.engine()) is ENDED
    assert rig.starts() == 2


def test_what_ends_by_itself_while_it_is_stopped_keeps_what_its_ranks_wrote(
    rig: KubernetesHarness, cluster: KubernetesServer
) -> None:
    engine = rig.engine()
    engine.launch(order())
    running(rig, engine)
    engine.stop(NAME, grace_s=60.0)
    for index in range(2):
        rig.end_agent(NAME, index, well=True)
    rig.until(lambda: phase(engine) is ENDED)
    pods = f"/api/v1/namespaces/{rig.space}/pods"
    # A pod that is deleted shows its end a moment before it is gone, and its log with it.
    rig.until(lambda: not any("deletionTimestamp" in pod["metadata"] for pod in cluster.call("GET", pods)["items"]))
    assert engine.logs(NAME, rank=1, since=0, limit=5).data == b"hello"


def test_containers_that_others_put_beside_agents_do_not_keep_pods_of_what_has_ended(
    rig: KubernetesHarness, cluster: KubernetesServer
) -> None:
    for node in NODES:
        rig.pods.die(node)  # What stands in pods' objects is told here.
    engine = rig.engine()
    engine.launch(order())
    pods = f"/api/v1/namespaces/{rig.space}/pods"

    def bound() -> list[str]:
        engine.observe()
        found = cluster.call("GET", pods)["items"]
        return [one["metadata"]["name"] for one in found if one["spec"].get("nodeName")]

    rig.until(lambda: len(bound()) == len(NODES))
    over = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    states = [{"name": "agent", "state": over}, {"name": "istio-proxy", "state": {"running": {}}}]
    status = {"phase": "Running", "containerStatuses": [BARE | one for one in states]}
    for name in bound():
        cluster.call("PATCH", f"{pods}/{name}/status", {"status": status}, kind=MERGE)
    rig.until(lambda: phase(engine) is ENDED)
    rig.until(lambda: all("deletionTimestamp" in one["metadata"] for one in cluster.call("GET", pods)["items"]))
    assert (seen(engine).exit_code, seen(engine).lost_nodes) == (0, ())


def test_quota_of_the_namespace_refuses_a_launch_in_its_words_and_a_later_one_goes_through(
    rig: KubernetesHarness, cluster: KubernetesServer
) -> None:
    path = no_jobs(rig, cluster)
    engine = rig.engine()
    with pytest.raises(ApiRefusal, match="exceeded quota"):
        engine.launch(order())
    assert phase(engine) is PENDING
    cluster.call("DELETE", f"{path}/q")
    cluster.wait(lambda: cluster.call("GET", path)["items"] == [], "kube-apiserver")

    def launched() -> bool:
        try:
            engine.launch(order())
        except ApiRefusal:  # What admission knows of quotas is some moments old.
            return False
        return True

    rig.until(launched)
    running(rig, engine)
    assert rig.starts() == 2


def test_launch_that_was_cut_short_is_over_once_it_cannot_be_under_way(
    rig: KubernetesHarness, cluster: KubernetesServer
) -> None:
    no_jobs(rig, cluster)
    engine = rig.engine()
    with pytest.raises(ApiRefusal):
        engine.launch(order())
    assert phase(engine) is PENDING
    rig.clock.advance(LAUNCH_S_MAX + 1.0)
    rig.until(lambda: not silent(engine) and phase(engine) is ENDED)
    assert "cut short" in seen(engine).reason
    assert cluster.call("GET", f"/api/v1/namespaces/{rig.space}/secrets")["items"] == []


def test_pods_let_nobody_have_more_than_kubernetes_calls_restricted(
    rig: KubernetesHarness, cluster: KubernetesServer
) -> None:
    enforce = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    cluster.call("PATCH", f"/api/v1/namespaces/{rig.space}", enforce, kind=MERGE)
    engine = rig.engine()
    engine.launch(order())
    running(rig, engine)


def test_what_ended_long_ago_is_forgotten_and_what_was_stopped_before_its_launch_too(
    rig: KubernetesHarness, cluster: KubernetesServer
) -> None:
    engine, never = rig.engine(), AllocationId("allocation-never")
    engine.launch(order())
    running(rig, engine)
    engine.stop(never, grace_s=0.0)
    engine.stop(NAME, grace_s=30.0)
    rig.until(lambda: phase(engine) is ENDED)
    due = EndedBefore(time_s=rig.clock.now_s() + 10 * ENDED_VISIBLE_S, limit=10)
    assert engine.forget_ended(due) == 0
    rig.clock.advance(ENDED_VISIBLE_S + 1.0)
    assert engine.forget_ended(replace(due, limit=0)) == 2
    assert engine.forget_ended(due) == 2
    rig.until(lambda: engine.forget_ended(due) == 0)
    maps = cluster.call("GET", f"/api/v1/namespaces/{rig.space}/configmaps?labelSelector=mainspring/allocation")
    assert maps["items"] == []
