"""Nodes that are ordered of a cluster's autoscaler, whose part the tests play: `deliver` adds what pods wait for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from mainspring.domain.codec import from_plain
from mainspring.domain.errors import Conflict, InvalidSpec
from mainspring.domain.fleet import AllocationPhase, LaunchOrder, NodeCondition
from mainspring.domain.ids import AllocationId, AttemptId, ChipName, ClusterName, JobId, RoleName
from mainspring.domain.plan import Provision
from mainspring.engines.kubernetes.api.client import MERGE, ApiRefusal
from mainspring.engines.kubernetes.cluster.config import KubernetesCluster
from mainspring.engines.kubernetes.cluster.offers import NodeOffer, every_offer, read_pool
from mainspring.engines.kubernetes.engine import KubernetesEngine
from mainspring.engines.kubernetes.jobs.orders import LATE, LATE_S_MIN, WITHHELD_S, order_name
from mainspring.testing.kubernetes import KubernetesServer
from tests.contracts.nodes_on_kubernetes import OFFER, KubernetesOrdering, serve_requests
from tests.engines.kubernetes.applying import somebody

Made = Callable[..., KubernetesOrdering]
H100 = ChipName("h100")
WANTED = Provision(cluster=ClusterName("alpha"), offer="spot", nodes=2, for_job=JobId("job-1"), reason="it waits")
NAME = order_name("spot", WANTED.for_job)
JOBS, PODS = ("/apis/batch/v1", "jobs"), ("/api/v1", "pods")


@pytest.fixture
def made(server: KubernetesServer, tmp_path: Path) -> Iterator[Made]:
    every: list[KubernetesOrdering] = []

    def make(**settings: Any) -> KubernetesOrdering:
        every.append(KubernetesOrdering(tmp_path, server, **settings))
        return every[-1]

    yield make
    for each in every:
        each.close()


def conditions(engine: KubernetesEngine) -> list[str]:
    return sorted(node.condition.value for node in engine.inventory().nodes)


def names(rig: KubernetesOrdering, group: str, path: str) -> list[str]:
    return [one["metadata"]["name"] for one in rig.call("GET", group, path)["items"]]


@pytest.mark.slow
def test_pods_wait_one_a_node_and_leave_all_nodes_to_the_job_once_the_last_is_there(made: Made) -> None:
    rig = made()
    engine = rig.engine()
    engine.provision(WANTED)
    rig.until(lambda: len(rig.waiting()) == 2)
    assert conditions(engine) == ["coming", "coming"]
    rig.add(1)
    rig.until(lambda: len(rig.waiting()) == 1)
    assert conditions(engine) == ["coming", "coming"], "the one that is there is held for the other"
    (real,) = [node for node in engine.inventory().nodes if node.name.startswith("new-")]
    assert (real.foreign_chip_milli, real.condition_reason) == (0, "ordered of spot for job-1")
    rig.add(1)
    rig.until(lambda: conditions(engine) == ["ready", "ready"])
    rig.until(lambda: not names(rig, *PODS))
    assert names(rig, *JOBS) == []
    nodes = tuple(node.name for node in engine.inventory().nodes)
    engine.launch(
        LaunchOrder(
            allocation=AllocationId("allocation-1"),
            attempt=AttemptId("attempt-1"),
            role=RoleName("main"),
            nodes=nodes,
            chip_milli=(8_000, 8_000),
            controller="http://127.0.0.1:1",
            token="a-secret",
            job_id=WANTED.for_job,
        )
    )
    there = "pods?labelSelector=mainspring/allocation"
    rig.until(
        lambda: (
            sorted(one["spec"].get("nodeName", "") for one in rig.call("GET", "/api/v1", there)["items"]) == [*nodes]
        )
    )
    assert [one.phase for one in engine.observe()] == [AllocationPhase.PENDING]


@pytest.mark.slow
def test_what_does_not_come_in_time_is_given_up_in_the_schedulers_words_and_goes_by_itself(made: Made) -> None:
    rig = made()
    engine = rig.engine()
    engine.provision(WANTED)
    rig.until(lambda: len(rig.waiting()) == 2)
    rig.until(lambda: "PodScheduled" in str(rig.call("GET", *PODS)["items"][0]["status"].get("conditions")))
    rig.until(lambda: engine.inventory().orders != ())
    rig.clock.advance(max(LATE_S_MIN, LATE * OFFER.lead_time_s))
    rig.until(lambda: engine.inventory().orders == ())
    (offer,) = rig.engine().inventory().offers
    assert re.match(r"0 of 2 nodes came within 18\d\d s: ", offer.withheld)
    assert "available" in offer.withheld
    rig.until(lambda: not names(rig, *PODS))
    (job,) = rig.call("GET", *JOBS)["items"]
    assert job["spec"]["ttlSecondsAfterFinished"] == WITHHELD_S


@pytest.mark.slow
def test_order_of_a_server_that_is_gone_is_followed_by_another_or_ends_by_itself(made: Made) -> None:
    rig = made()
    rig.engine().provision(WANTED)
    (job,) = rig.call("GET", *JOBS)["items"]
    assert job["spec"]["activeDeadlineSeconds"] > LATE * OFFER.lead_time_s
    path, soon = f"/apis/batch/v1/namespaces/{rig.space}/jobs/{NAME}", {"spec": {"activeDeadlineSeconds": 1}}
    rig.api().call("PATCH", path, attempted="let an order's time be over", body=soon, kind=MERGE)
    other = rig.engine()
    rig.until(lambda: other.inventory().orders == ())
    assert "deadline" in other.inventory().offers[0].withheld
    assert not names(rig, *PODS)


@pytest.mark.slow
def test_requests_ask_for_all_nodes_where_they_are_served_and_go_with_their_order(
    made: Made, server: KubernetesServer
) -> None:
    bare = made(requests=True, call_s_max=2.0).engine()
    assert "404" in bare.inventory().offers[0].withheld, "what the cluster does not serve"
    with pytest.raises(Conflict, match="404"):
        bare.provision(WANTED)
    serve_requests(server)
    rig = made(requests=True)
    engine = rig.engine()
    engine.provision(WANTED)
    (request,) = rig.requests()
    (template,) = rig.call("GET", "/api/v1", "podtemplates")["items"]
    (pods,) = request["spec"]["podSets"]
    assert (pods["podTemplateRef"]["name"], pods["count"]) == (template["metadata"]["name"], 2)
    rig.until(lambda: len(rig.waiting()) == 2)
    (pod, _) = rig.call("GET", *PODS)["items"]
    assert pod["metadata"]["annotations"]["autoscaling.x-k8s.io/consume-provisioning-request"] == NAME
    assert template["template"]["spec"]["nodeSelector"] == pod["spec"]["nodeSelector"] == {"lab/pool": "spot"}
    rig.deliver()
    rig.until(lambda: conditions(engine) == ["ready", "ready"])
    rig.until(lambda: not [*rig.requests(), *names(rig, "/api/v1", "podtemplates"), *names(rig, *PODS)])


@pytest.mark.slow
def test_cluster_whose_operators_have_not_applied_what_offers_need_says_what_to_do(made: Made) -> None:
    rig = made()
    engine = rig.engine()
    rig.server.call("DELETE", f"/apis/scheduling.k8s.io/v1/priorityclasses/{rig.space}-placeholders")
    with pytest.raises(ApiRefusal, match=f"manifests kubernetes --namespace {rig.space} --offers"):
        engine.provision(WANTED)
    assert names(rig, *JOBS) == []


@pytest.mark.slow
def test_stranger_makes_no_order(made: Made, tmp_path: Path) -> None:
    rig = made()
    label = {"mainspring/order": "order-mine"}
    rights = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {"name": "any", "image": "any", "securityContext": rights}
    user = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"containers": [container], "restartPolicy": "Never", "securityContext": user}
    template = {"metadata": {"labels": label}, "spec": spec}
    objects: tuple[tuple[tuple[str, str], dict[str, Any]], ...] = (
        (JOBS, {"metadata": {"name": "order-mine", "labels": label}, "spec": {"template": template}}),
        (JOBS, {"metadata": {"name": "order-mine"}, "spec": {"template": template}}),
        (PODS, {"metadata": {"name": "order-mine", "labels": label}, "spec": spec}),
        (
            ("/api/v1", "podtemplates"),
            {"metadata": {"name": "order-mine", "labels": label}, "template": {"spec": spec}},
        ),
    )
    with somebody(rig.server, tmp_path, "eve") as client:
        first, bare = objects[0]
        path = "/namespaces/".join((first[0], f"{rig.space}/{first[1]}?dryRun=All"))
        rig.until(lambda: client.post(path, json=bare).is_error)  # A policy counts from a moment after it is made.
        for (group, kind), bare in objects:
            answer = client.post(f"{group}/namespaces/{rig.space}/{kind}", json=bare)
            assert (answer.status_code, "are made by Mainspring alone" in answer.text) == (403, True), answer.text


@pytest.mark.slow
def test_nodes_that_idle_when_they_are_ordered_are_not_placed_on_before_they_are_held(made: Made) -> None:
    rig = made()
    engine = rig.engine()
    rig.add(1)
    rig.until(lambda: conditions(engine) == ["ready"])
    engine.provision(WANTED)
    assert [node.name for node in engine.inventory().nodes if node.condition is NodeCondition.READY] == []
    assert engine.inventory().offers[0].nodes_max <= 2


# ---------------------------------------------------------------- settings, and NodePools


def cluster(**settings: Any) -> KubernetesCluster:
    return KubernetesCluster(name=ClusterName("cloud"), image="train", **settings)


def test_offers_of_the_page_are_read_as_they_stand() -> None:
    page = (Path(__file__).parents[3] / "docs" / "engines" / "kubernetes.md").read_text()
    (told,) = [part for block in page.split("```yaml\n") if (part := block.partition("```")[0]).startswith("offers:")]
    plain = {"name": "cloud", "image": "train", **yaml.safe_load(told)}
    read = from_plain(KubernetesCluster, plain, strict=True)
    assert (read.offers["a3"].chip, read.offers["a3"].resource, read.karpenter) == ("h100", "nvidia.com/gpu", True)


def pool(**spec: Any) -> dict[str, Any]:
    """A NodePool of Karpenter, as AWS's are."""
    required = {
        "karpenter.k8s.aws/instance-gpu-name": ["h100"],
        "karpenter.k8s.aws/instance-gpu-count": ["8"],
        "karpenter.sh/capacity-type": ["spot", "on-demand"],
    }
    requirements = [{"key": key, "operator": "In", "values": values} for key, values in required.items()]
    requirements.append({"key": "kubernetes.io/arch", "operator": "Exists"})
    template = {"metadata": {}, "spec": {"requirements": requirements, "taints": spec.pop("taints", [])}}
    status = {"resources": {"nvidia.com/gpu": "16", "cpu": "384"}, "nodes": 2, "conditions": spec.pop("conditions", [])}
    return {"metadata": {"name": "gpus"}, "spec": {"template": template, **spec}, "status": status}


def test_node_pool_that_says_its_chips_is_an_offer_within_its_limits() -> None:
    of = cluster(karpenter=True)
    read = read_pool(pool(limits={"nvidia.com/gpu": "40", "cpu": "1k"}), of)
    (found,) = every_offer(of, {"gpus": read})
    assert (found.name, found.offer.chip, found.offer.chips, found.offer.spot) == ("gpus", "h100", 8, True)
    assert found.offer.labels == {"karpenter.sh/nodepool": "gpus"}
    assert read.nodes_left(found.offer) == 3
    assert read_pool(pool(limits={"nodes": "2"}), of).nodes_left(found.offer) == 0
    assert list(every_offer(cluster(), {"gpus": read})) == [], "unless the operator lets NodePools be"


def test_offer_of_a_node_pool_tells_the_memory_of_its_chips_where_the_pool_does() -> None:
    of = cluster(karpenter=True)
    told = pool()
    (bare,) = every_offer(of, {"gpus": read_pool(told, of)})
    memory = {"key": "karpenter.k8s.aws/instance-gpu-memory", "operator": "In", "values": ["81920"]}
    told["spec"]["template"]["spec"]["requirements"].append(memory)
    (found,) = every_offer(of, {"gpus": read_pool(told, of)})
    assert (bare.offer.chip_memory_gib, found.offer.chip_memory_gib) == (None, 80.0)


def test_operators_word_for_a_pool_stands_in_place_of_the_pools_own() -> None:
    offers = {"mine": NodeOffer(chip=H100, chips=4, labels={"karpenter.sh/nodepool": "gpus"})}
    of = cluster(karpenter=True, offers=offers)
    (found,) = every_offer(of, {"gpus": read_pool(pool(), of)})
    assert (found.name, found.offer.chips) == ("mine", 4)
    assert found.pool is not None


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"taints": [{"key": "lab/reserved", "effect": "NoSchedule"}]}, "lab/reserved"),
        (
            {
                "taints": [
                    {"key": "lab/soft", "effect": "PreferNoSchedule"},
                    {"key": "nvidia.com/gpu", "effect": "NoSchedule"},
                ]
            },
            "",
        ),
        ({"conditions": [{"type": "Ready", "status": "False", "message": "no such class"}]}, "no such class"),
    ],
)
def test_pool_whose_nodes_our_pods_could_not_use_says_why(spec: dict[str, Any], words: str) -> None:
    shut = read_pool(pool(**spec), cluster()).shut
    assert words in shut if words else not shut


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"offers": {"a": replace(OFFER, labels={})}}, "offers.a.labels"),
        ({"offers": {"a": replace(OFFER, nodes_max=0)}}, "offers.a.nodes_max"),
        ({"offers": {"a": replace(OFFER, resource="cpu")}}, "offers.a.resource"),
        ({"offers": {"a": OFFER}, "queue": "lab"}, "provisioning_class"),
    ],
)
def test_offer_that_cannot_be_names_its_field(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        cluster(**settings)
    assert field in caught.value.on
