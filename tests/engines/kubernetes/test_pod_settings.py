"""What pods have besides an image: admitted by Pod Security, or refused here until the operator allows it by name."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from mainspring.domain.codec import from_plain
from mainspring.domain.errors import InvalidInput, InvalidSpec, Unavailable
from mainspring.domain.fleet import LaunchOrder
from mainspring.domain.ids import AllocationId, AttemptId, ClusterName, NodeName, RoleName, TeamName
from mainspring.engines.kubernetes.cluster.config import KubernetesCluster
from mainspring.engines.kubernetes.cluster.machines import read_machine
from mainspring.engines.kubernetes.cluster.pods import BEYOND, CAPABILITIES
from mainspring.engines.kubernetes.jobs.pod_template import agent_template, probe_pod
from mainspring.testing.kubernetes import KubernetesServer

# All that pods may have in a namespace that enforces `restricted`.
WITHIN = {
    "volumes": {
        "data": {"path": "/data", "claim": "robot-data", "read_only": True},
        "memory": {"path": "/dev/shm", "memory_gib": 64},
        "lake": {"path": "/lake", "csi": "gcsfuse.csi.storage.gke.io", "attributes": {"bucketName": "lab"}},
    },
    "devices": {"rdma/hca": 1, "hugepages-2Mi": "5Gi"},
    "accounts": {"lab": "trainer"},
    "labels": {"lab/paid-by": "vision"},
    "annotations": {"gke-gcsfuse/volumes": "true"},
}
# What asks for more, and the field that is told of where it is not allowed.
MORE: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "hostPath": ({}, {"volumes": {"disk": {"path": "/disk", "host": "/mnt/disk"}}}, "pods.volumes.disk.host"),
    "nfs": ({}, {"volumes": {"old": {"path": "/old", "nfs": "files:/old"}}}, "pods.volumes.old.nfs"),
    "root": ({"user": 0}, {}, "user"),
}


def cluster(pods: Any, **settings: Any) -> KubernetesCluster:
    """Reads a cluster as the configuration has it."""
    told = {"name": "cloud", "image": "train", "bundle": "bundle", "pods": pods, **settings}
    return from_plain(KubernetesCluster, told, strict=True)


def template(
    of: KubernetesCluster,
    *,
    milli: int = 8_000,
    cpu_milli: int = 4_000,
    memory_mib: int = 1_024,
    devices: tuple[Any, ...] = ({"rdma/hca": "4", "hugepages-2Mi": "8Gi"},),
) -> Any:
    """Returns the pods of an allocation on nodes of 8 chips each that have devices."""
    order = LaunchOrder(
        allocation=AllocationId("allocation-1"),
        attempt=AttemptId("attempt-1"),
        role=RoleName("main"),
        nodes=tuple(NodeName(f"n{index}") for index in range(len(devices))),
        chip_milli=(milli,) * len(devices),
        cpu_milli=(cpu_milli,) * len(devices),
        memory_mib=(memory_mib,) * len(devices),
        controller="http://127.0.0.1:1",
        token="a-secret",
        teams=(TeamName("arms"), TeamName("lab")),
    )
    machines = [
        read_machine(
            {"metadata": {"name": name}, "status": {"allocatable": {"nvidia.com/gpu": "8", **has}}},
            of,
        )
        for name, has in zip(order.nodes, devices, strict=True)
    ]
    return agent_template(order, of, machines=machines, environment={"A": "b"}, annotations={})


@pytest.fixture(scope="module")
def space(server: KubernetesServer) -> str:
    """A namespace that enforces `restricted`, with an account of a team."""
    name = f"lab-{os.urandom(4).hex()}"
    enforced = {"pod-security.kubernetes.io/enforce": "restricted"}
    server.make_space(name, enforced)
    server.call("POST", f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "trainer"}})
    return name


def admit(server: KubernetesServer, space: str, of: KubernetesCluster, **asked: Any) -> None:
    """Has the API look at a pod, and not keep it.

    Args:
        **asked: What it asks for, in place of what `template` says.

    Raises:
        Unavailable: It is refused.
    """
    made = template(of, **asked)
    made["metadata"]["name"] = "tried"
    body = {"apiVersion": "v1", "kind": "Pod", **made}
    server.call("POST", f"/api/v1/namespaces/{space}/pods?dryRun=All&fieldValidation=Strict", body)


@pytest.mark.slow
@pytest.mark.parametrize("pods", [{}, WITHIN], ids=["bare", "within"])
def test_pods_that_nothing_beyond_is_allowed_for_are_admitted_as_restricted(
    server: KubernetesServer, space: str, pods: Any
) -> None:
    admit(server, space, cluster(pods))


@pytest.mark.slow
@pytest.mark.parametrize("asked", [{}, {"cpu_milli": 0}, {"memory_mib": 0}, {"cpu_milli": 0, "memory_mib": 0}])
def test_pods_with_huge_pages_are_admitted_whatever_else_their_job_asks_for(
    server: KubernetesServer, space: str, asked: Any
) -> None:
    admit(server, space, cluster({"devices": {"hugepages-2Mi": "5Gi"}}), **asked)


@pytest.mark.slow
@pytest.mark.parametrize("name", BEYOND)
def test_what_goes_beyond_restricted_is_admitted_where_the_namespace_has_it_and_nowhere_else(
    server: KubernetesServer, space: str, name: str
) -> None:
    settings, pods, _ = MORE.get(name, ({}, {}, ""))
    allowed = [name, *(["root"] if name in CAPABILITIES else [])]
    made = cluster({**pods, "beyond": allowed}, **settings)
    with pytest.raises(Unavailable, match="violates PodSecurity"):
        admit(server, space, made)
    admit(server, "default", replace(made, pods=replace(made.pods, accounts={})))


@pytest.mark.parametrize("name", MORE)
def test_what_goes_beyond_restricted_is_refused_with_its_field_unless_it_is_allowed_by_name(name: str) -> None:
    settings, pods, field = MORE[name]
    with pytest.raises(InvalidSpec) as refused:
        cluster(pods, **settings)
    assert field in refused.value.on
    assert name in refused.value.wanted
    cluster({**pods, "beyond": [name]}, **settings)
    for other in {*MORE} - {name}:
        with pytest.raises(InvalidSpec):
            cluster({**pods, "beyond": [other]}, **settings)


def test_capabilities_are_for_root_alone_as_no_other_user_would_have_them() -> None:
    for name in CAPABILITIES:
        with pytest.raises(InvalidSpec, match="root"):
            cluster({"beyond": [name]})
        cluster({"beyond": [name, "root"]}, user=0)


@pytest.mark.parametrize(
    ("pods", "field"),
    [
        ({"volumes": {"a": {"path": "data", "claim": "c"}}}, "volumes.a.path"),
        ({"volumes": {"a": {"path": "/data/../etc", "claim": "c"}}}, "volumes.a.path"),
        ({"volumes": {"a": {"path": "/srv/mainspring/order", "claim": "c"}}}, "volumes.a.path"),
        ({"volumes": {"a": {"path": "/srv", "claim": "c"}}}, "volumes.a.path"),
        ({"volumes": {"a": {"path": "/proc", "claim": "c"}}}, "volumes.a.path"),
        ({"volumes": {"a": {"path": "/data"}}}, "volumes.a.claim"),
        ({"volumes": {"a": {"path": "/data", "claim": "c", "host": "/x"}}}, "volumes.a.claim"),
        ({"volumes": {"a": {"path": "/data", "claim": "c", "attributes": {"a": "b"}}}}, "volumes.a.attributes"),
        ({"volumes": {"a": {"path": "/d", "claim": "c"}, "b": {"path": "/d", "claim": "d"}}}, "volumes"),
        ({"volumes": {"a.b": {"path": "/d", "claim": "c"}}}, "volumes"),
        ({"devices": {"rdma": 1}}, "devices.rdma"),
        ({"devices": {"rdma/hca": 0}}, "devices.rdma/hca"),
        ({"devices": {"rdma/hca": "many"}}, "devices.rdma/hca"),
        ({"labels": {"mainspring/allocation": "mine"}}, "labels"),
        ({"annotations": {"kueue.x-k8s.io/queue-name": "mine"}}, "annotations"),
        ({"beyond": ["privileged"]}, "beyond"),
    ],
)
def test_settings_of_pods_name_the_field_that_is_wrong(pods: Any, field: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        cluster(pods)
    assert f"'pods.{field}'" in refused.value.on


def test_devices_are_asked_for_by_pods_that_take_all_chips_of_nodes_that_have_them() -> None:
    of = cluster(WITHIN)
    for milli, devices, asked in (
        (8_000, ({"rdma/hca": "4"},) * 2, "1"),
        (4_000, ({"rdma/hca": "4"},) * 2, None),  # Others may be there, who want theirs.
        (8_000, ({"rdma/hca": "4"}, {}), None),
    ):
        resources = template(of, milli=milli, devices=devices)["spec"]["containers"][0]["resources"]
        assert (resources["requests"].get("rdma/hca"), resources["limits"].get("rdma/hca")) == (asked, asked)
        assert resources["limits"]["nvidia.com/gpu"] == str(milli // 1_000)


def test_huge_pages_come_with_a_sliver_of_a_core_where_a_job_asks_for_nothing() -> None:
    of = cluster({"devices": {"hugepages-2Mi": "5Gi"}})
    for cpu_milli, memory_mib, cpu in ((0, 0, "1m"), (0, 1_024, None), (4_000, 0, "4000m")):
        made = template(of, cpu_milli=cpu_milli, memory_mib=memory_mib)["spec"]["containers"][0]["resources"]
        assert made["requests"].get("cpu") == cpu
    bare = template(cluster({"devices": {"rdma/hca": 1}}), cpu_milli=0, memory_mib=0)["spec"]["containers"][0]
    assert "cpu" not in bare["resources"]["requests"]


def test_pods_of_a_team_have_its_account_or_that_of_the_nearest_above_it() -> None:
    pods = cluster(WITHIN).pods
    assert template(cluster(WITHIN))["spec"]["serviceAccountName"] == "trainer"
    nearer = replace(pods, accounts={TeamName("lab"): "trainer", TeamName("arms"): "arms"})
    assert nearer.account_of((TeamName("arms"), TeamName("lab"))) == "arms"
    assert nearer.account_of((TeamName("legs"),)) == ""
    assert "serviceAccountName" not in template(KubernetesCluster(name=ClusterName("cloud")))["spec"]


def test_pods_name_another_scheduler_where_the_operator_does() -> None:
    of = cluster({"scheduler": "volcano"})
    assert template(of)["spec"]["schedulerName"] == "volcano"
    assert probe_pod(of, {}, "", "")["spec"]["schedulerName"] == "volcano"
    assert "schedulerName" not in template(cluster({}))["spec"]
    with pytest.raises(InvalidInput, match="scheduler"):
        cluster({"scheduler": "my scheduler"})


def test_shared_memory_is_as_much_as_the_pods_own_unless_the_operator_says() -> None:
    for pods, size in (({}, None), (WITHIN, "65536Mi")):
        spec = template(cluster(pods))["spec"]
        (name,) = [one["name"] for one in spec["containers"][0]["volumeMounts"] if one["mountPath"] == "/dev/shm"]
        (volume,) = [one for one in spec["volumes"] if one["name"] == name]
        assert volume["emptyDir"] == {"medium": "Memory", **({"sizeLimit": size} if size else {})}


def test_bundles_container_asks_for_what_a_quota_counts_and_for_no_device() -> None:
    (first,) = template(cluster(WITHIN))["spec"]["initContainers"]
    assert first["resources"] == {"requests": {"cpu": "4000m", "memory": "1024Mi"}, "limits": {"memory": "1024Mi"}}


def test_no_autoscaler_empties_a_node_of_ours_unless_the_operator_lets_it() -> None:
    safe, disrupt = "cluster-autoscaler.kubernetes.io/safe-to-evict", "karpenter.sh/do-not-disrupt"
    assert template(cluster({}))["metadata"]["annotations"] == {safe: "false", disrupt: "true"}
    told = template(cluster({"annotations": {safe: "true"}}))["metadata"]["annotations"]
    assert told == {safe: "true", disrupt: "true"}
