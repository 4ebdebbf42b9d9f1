"""What a node's and a pod's object say, as providers and device plugins write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from mainspring.domain.errors import InvalidSpec
from mainspring.domain.fleet import NodeCondition
from mainspring.domain.ids import ChipName, ClusterName
from mainspring.engines.kubernetes.cluster.amounts import asked_by, number
from mainspring.engines.kubernetes.cluster.config import KubernetesCluster
from mainspring.engines.kubernetes.cluster.devices import Published, read_slice
from mainspring.engines.kubernetes.cluster.machines import KubernetesMachine, read_machine

READY, CORDONED, DOWN = NodeCondition.READY, NodeCondition.CORDONED, NodeCondition.DOWN
NAME = ClusterName("ada")
PLAIN = KubernetesCluster(name=NAME)
KUBELET = ({"type": "Ready", "status": "True"},)


def read(
    labels: Mapping[str, str] | None = None,
    amounts: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
    cluster: KubernetesCluster = PLAIN,
    conditions: Sequence[Mapping[str, str]] = KUBELET,
    **spec: object,
) -> KubernetesMachine:
    status = {"allocatable": {"cpu": "31850m", "memory": "64Gi", **(amounts or {})}, "conditions": conditions}
    meta = {"name": "n1", "labels": labels or {}}
    return read_machine({"metadata": meta, "spec": {"taints": taints, **spec}, "status": status}, cluster)


@pytest.mark.parametrize(
    ("resource", "label", "product", "chip"),
    [
        ("nvidia.com/gpu", "nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3", "h100"),
        ("nvidia.com/gpu", "nvidia.com/gpu.product", "NVIDIA-L40S", "l40s"),
        ("nvidia.com/gpu", "nvidia.com/gpu.product", "NVIDIA-GB200", "gb200"),
        ("nvidia.com/gpu", "nvidia.com/gpu.product", "NVIDIA-RTX-A6000", "nvidia-rtx-a6000"),
        ("nvidia.com/gpu", "nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3-SHARED", "nvidia-h100-80gb-hbm3-shared"),
        (
            "nvidia.com/gpu",
            "nvidia.com/gpu.product",
            "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
            "nvidia-a100-sxm4-40gb-mig-1g.5gb",
        ),
        ("nvidia.com/gpu", "cloud.google.com/gke-accelerator", "nvidia-h100-mega-80gb", "h100"),
        ("nvidia.com/gpu", "cloud.google.com/gke-accelerator", "nvidia-l4", "l4"),
        ("nvidia.com/gpu", "karpenter.k8s.aws/instance-gpu-name", "a10g", "a10g"),
        ("nvidia.com/gpu", "k8s.amazonaws.com/accelerator", "nvidia-tesla-v100", "v100"),
        ("nvidia.com/gpu", "unknown", "h100", "gpu"),
        ("amd.com/gpu", "amd.com/gpu.product-name", "AMD_Instinct_MI300X_OAM", "mi300x"),
        ("google.com/tpu", "cloud.google.com/gke-tpu-accelerator", "tpu-v5p-slice", "v5p"),
        ("google.com/tpu", "cloud.google.com/gke-tpu-accelerator", "tpu-v5-lite-podslice", "v5e"),
    ],
)
def test_chip_is_the_model_in_the_words_of_who_labels_the_node(
    resource: str, label: str, product: str, chip: str
) -> None:
    found = read({label: product}, {resource: "8"})
    assert (found.chip, found.resource, found.chips) == (chip, resource, 8)


GPU, AMD, PRODUCT = "nvidia.com/gpu", "amd.com/gpu", "nvidia.com/gpu.product"


@pytest.mark.parametrize(
    ("resource", "labels", "memory_gib"),
    [
        (GPU, {PRODUCT: "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"}, 81_559 / 1_024),
        (GPU, {PRODUCT: "NVIDIA-A100-SXM4-40GB"}, 40.0),
        (GPU, {PRODUCT: "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "nvidia.com/gpu.memory": "4864"}, 4.75),
        (GPU, {PRODUCT: "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"}, 5.0),
        (GPU, {PRODUCT: "NVIDIA-H200", "nvidia.com/gpu.memory": "0"}, None),
        (GPU, {PRODUCT: "NVIDIA-H200", "nvidia.com/gpu.memory": "plenty"}, None),
        (GPU, {"cloud.google.com/gke-accelerator": "nvidia-a100-80gb"}, 80.0),
        (
            GPU,
            {"karpenter.k8s.aws/instance-gpu-name": "a100", "karpenter.k8s.aws/instance-gpu-memory": "40960"},
            40.0,
        ),
        (
            GPU,
            {
                PRODUCT: "NVIDIA-L4-SHARED",
                "nvidia.com/gpu.memory": "23034",
                "nvidia.com/gpu.replicas": "4",
            },
            23_034 / 1_024 / 4,
        ),
        (AMD, {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM", "amd.com/gpu.vram": "191G"}, 191.0),
        (AMD, {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}, 192.0),
        (AMD, {"amd.com/gpu.device-id": "74a1"}, None),
        ("google.com/tpu", {"cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice"}, None),
        (GPU, {}, None),
    ],
)
def test_memory_of_a_chip_is_what_labels_measured_else_what_its_product_tells(
    resource: str, labels: Mapping[str, str], memory_gib: float | None
) -> None:
    assert read(labels, {resource: "8"}).chip_memory_gib == memory_gib


@pytest.mark.parametrize(
    ("product", "mode", "memory_gib"),
    [
        ("AMD_Instinct_MI300X_OAM", "spx_nps1", 192.0),
        ("AMD_Instinct_MI300X_OAM", "dpx_nps2", 96.0),
        ("AMD_Instinct_MI300X_OAM", "cpx_nps4", 24.0),
        ("AMD_Instinct_MI300A", "cpx_nps1", 128.0 / 6),
    ],
)
def test_part_of_amds_chips_has_its_share_of_their_memory(product: str, mode: str, memory_gib: float) -> None:
    labels = {"amd.com/gpu.product-name": product, "amd.com/compute-memory-partition": mode}
    assert read(labels, {AMD: "64"}).chip_memory_gib == memory_gib


def test_part_of_a_chip_that_the_operator_names_has_the_memory_of_such_parts() -> None:
    part = "nvidia.com/mig-1g.10gb"
    cluster = KubernetesCluster(name=NAME, chips={part: ChipName("h100-slice")})
    whole = {PRODUCT: "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"}
    whole["karpenter.k8s.aws/instance-gpu-memory"] = "81920"
    assert read({**whole, f"{part}.memory": "9984"}, {part: "7"}, cluster=cluster).chip_memory_gib == 9.75
    assert read(whole, {part: "7"}, cluster=cluster).chip_memory_gib == 10.0


def test_operators_word_for_the_memory_of_a_chip_counts_where_no_label_tells_it() -> None:
    cluster = KubernetesCluster(name=NAME, chip_memory_gib={ChipName("a100"): 39.5, ChipName("gpu"): 16.0})
    bare, measured = {"karpenter.k8s.aws/instance-gpu-name": "a100"}, {"nvidia.com/gpu.memory": "81920"}
    assert read(bare, {GPU: "8"}, cluster=cluster).chip_memory_gib == 39.5
    assert read({**bare, **measured}, {GPU: "8"}, cluster=cluster).chip_memory_gib == 80.0
    assert read({}, {GPU: "8"}, cluster=cluster).chip_memory_gib == 16.0


MI300 = {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}
PARTED = "amd.com/compute-memory-partition"


@pytest.mark.parametrize(
    ("mode", "amounts", "chip", "counted"),
    [
        ("spx_nps1", {"amd.com/gpu": "8"}, "mi300x", ("amd.com/gpu", 8)),
        ("cpx_nps4", {"amd.com/gpu": "64"}, "amd_instinct_mi300x_oam-cpx_nps4", ("amd.com/gpu", 64)),
        ("", {"amd.com/spx_nps1": "5", "amd.com/cpx_nps1": "24"}, "mi300x", ("amd.com/spx_nps1", 5)),
        ("cpx_nps4", {"amd.com/cpx_nps4": "64"}, "amd_instinct_mi300x_oam-cpx_nps4", ("amd.com/gpu", 0)),
    ],
)
def test_parts_of_amds_chips_are_no_whole_ones_however_they_are_counted(
    mode: str, amounts: Mapping[str, str], chip: str, counted: tuple[str, int]
) -> None:
    found = read({**MI300, **({PARTED: mode} if mode else {})}, amounts)
    assert (found.chip, (found.resource, found.chips)) == (chip, counted)
    assert found.telling.get(PARTED, "") == mode  # By which a queue tells parts and whole ones apart.


def test_operator_names_parts_of_chips_apart_from_whole_ones() -> None:
    product = MI300["amd.com/gpu.product-name"]
    named = {product: ChipName("mi300"), f"{product}-cpx_nps4": ChipName("mi300-eighth")}
    cluster = KubernetesCluster(name=NAME, chips=named)
    for mode, chip in (("spx_nps1", "mi300"), ("cpx_nps4", "mi300-eighth")):
        assert read({**MI300, PARTED: mode}, {"amd.com/gpu": "8"}, cluster=cluster).chip == chip


def test_operator_names_products_and_resources_that_count_as_chips() -> None:
    cluster = KubernetesCluster(
        name=NAME, chips={"NVIDIA-A100-SXM4-40GB": ChipName("a100-40g"), "habana.ai/gaudi": ChipName("gaudi2")}
    )
    label = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}
    assert read(label, {"nvidia.com/gpu": "4"}, cluster=cluster).chip == "a100-40g"
    found = read({}, {"habana.ai/gaudi": "8"}, cluster=cluster)
    assert (found.chip, found.chips, found.resource) == ("gaudi2", 8, "habana.ai/gaudi")
    assert read({}, {"habana.ai/gaudi": "8"}).chip == "cpu"


def test_node_without_accelerators_has_whole_cores_for_chips() -> None:
    found = read()
    assert (found.chip, found.chips, found.resource, found.cpus, found.memory_mib) == ("cpu", 31, "", 31.85, 65_536)


@pytest.mark.parametrize("amounts", [{}, {"nvidia.com/gpu": "0"}])
def test_accelerators_that_no_plugin_has_counted_yet_take_nothing_and_are_no_cores(amounts: Mapping[str, str]) -> None:
    found = read({"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}, amounts)
    assert (found.chip, found.chips, found.condition) == ("h100", 0, CORDONED)
    assert found.words == "its device plugin counts no nvidia.com/gpu"


@pytest.mark.parametrize(
    ("capacity", "memory_mib"),
    [
        ({"memory": {"value": "81559Mi"}}, 81_559),
        ({"gpu.nvidia.com/memory": {"value": "80Gi"}}, 81_920),
        ({"memory": {"value": "plenty"}}, 0),
        ({}, 0),
        (None, 0),
    ],
)
def test_memory_of_a_published_chip_is_its_drivers_capacity(
    capacity: Mapping[str, Any] | None, memory_mib: int
) -> None:
    device = {"name": "gpu-0", "attributes": {"productName": {"string": "NVIDIA H100"}}, "capacity": capacity}
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": "n1", "pool": pool, "devices": [device]}
    found = read_slice({"spec": spec}, frozenset({"gpu.nvidia.com"}))
    assert found is not None
    assert found.devices == (("gpu-0", "NVIDIA H100", memory_mib),)


def test_chips_that_a_driver_publishes_stand_in_for_what_no_plugin_counts() -> None:
    found = Published(driver="gpu.nvidia.com", product="NVIDIA H200", count=8, held=1)
    label = {"nvidia.com/gpu.product": "NVIDIA-H200"}
    one = read(label).with_published(found, PLAIN)
    assert (one.chip, one.chips, one.condition, one.words, one.counted_by) == ("h200", 8, READY, "", "gpu.nvidia.com")
    counted = read(label, {"nvidia.com/gpu": "4"})
    assert counted.with_published(found, PLAIN) == counted
    none = read(amounts={}).with_published(replace(found, count=0, words="not yet"), PLAIN)
    assert (none.chip, none.chips, none.condition, none.words) == ("h200", 0, CORDONED, "not yet")
    assert (one.chip_memory_gib, counted.chip_memory_gib) == (None, None)
    told = read(label).with_published(replace(found, memory_mib=143_771), PLAIN)
    assert told.chip_memory_gib == 143_771 / 1_024
    lost = read(label, conditions=()).with_published(found, PLAIN)
    assert (lost.condition, lost.chips) == (DOWN, 8)
    queued = read(label).with_published(found, replace(PLAIN, queue="lab"))
    assert (queued.condition, queued.words) == (
        CORDONED,
        "its chips are those of gpu.nvidia.com: Kueue is asked for none",
    )


@pytest.mark.parametrize(
    ("labels", "domains"),
    [
        (
            {
                "topology.kubernetes.io/zone": "us-a",
                "cloud.google.com/gce-topology-subblock": "s7",
                "cloud.google.com/gce-topology-block": "b1",
                "nvidia.com/gpu.clique": "f00.1",
            },
            (("zone", "us-a"), ("block", "b1"), ("rack", "s7"), ("nvlink", "f00.1")),
        ),
        (
            {f"topology.k8s.aws/network-node-layer-{layer}": f"nn-{layer}" for layer in (3, 1, 2)},
            (("spine", "nn-1"), ("block", "nn-2"), ("rack", "nn-3")),
        ),
        ({}, ()),
    ],
)
def test_providers_labels_are_levels_widest_first(labels: Mapping[str, str], domains: object) -> None:
    assert read(labels, {"nvidia.com/gpu": "8"}).place.domains == domains


def test_operators_levels_stand_in_place_of_the_providers() -> None:
    cluster = KubernetesCluster(name=NAME, levels={"hall": "lab/hall", "rack": "lab/rack"})
    labels = {"lab/rack": "r1", "lab/hall": "east", "topology.kubernetes.io/zone": "us-a"}
    assert read(labels, cluster=cluster).place.domains == (("hall", "east"), ("rack", "r1"))


def tpu(topology: str, chips: int) -> KubernetesMachine:
    labels = {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice",
        "cloud.google.com/gke-tpu-topology": topology,
        "cloud.google.com/gke-nodepool": "pool-3",
    }
    return read(labels, {"google.com/tpu": str(chips)})


def test_hosts_of_one_tpu_slice_are_one_node_pool_and_lone_hosts_are_slices_of_their_own() -> None:
    many, one = tpu("4x4x4", 4).place, tpu("2x2x1", 4).place
    assert (many.slice, many.slice_hosts, many.domains) == ("4x4x4", 16, (("slice", "pool-3"),))
    assert (one.slice, one.slice_hosts, one.domains) == ("2x2x1", 1, (("slice", "n1"),))


def test_taints_are_conditions_notices_tolerated_by_all_or_asked_of_jobs() -> None:
    taints = [
        {"key": "team", "value": "vla", "effect": "NoSchedule"},
        {"key": "spot", "effect": "NoExecute"},
        {"key": "slow", "effect": "PreferNoSchedule"},
        {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
        {"key": "lab", "effect": "NoSchedule"},
    ]
    cluster = KubernetesCluster(name=NAME, tolerated=("lab",))
    found = read({}, {"nvidia.com/gpu": "8"}, taints, cluster)
    assert (found.taints, found.condition) == (("spot", "team=vla"), READY)
    assert "nvidia.com/gpu=present" in read(taints=taints, cluster=cluster).taints  # It keeps jobs for cores away.


def test_taint_named_like_what_counts_a_nodes_chips_is_tolerated_by_their_pods() -> None:
    for driver, key in (
        ("gpu.nvidia.com", "nvidia.com/gpu"),
        ("gpu.amd.com", "amd.com/gpu"),
        ("tpu.example.org", "tpu.example.org"),
    ):
        taints = [{"key": key, "effect": "NoSchedule"}, {"key": "habana.ai/gaudi", "effect": "NoSchedule"}]
        cluster = KubernetesCluster(name=NAME, chips={driver: ChipName("v5p"), "habana.ai/gaudi": ChipName("gaudi")})
        bare = read(taints=taints, cluster=cluster)
        found = bare.with_published(Published(driver=driver, product="", count=4), cluster)
        assert (bare.taints, found.taints) == (tuple(sorted((key, "habana.ai/gaudi"))), ("habana.ai/gaudi",))
        assert key in found.tolerated


@pytest.mark.parametrize(
    ("key", "condition", "words", "leaving"),
    [
        ("node.kubernetes.io/unreachable", DOWN, "its kubelet does not answer", False),
        ("node.kubernetes.io/disk-pressure", CORDONED, "short of disk", False),
        ("node.kubernetes.io/unschedulable", CORDONED, "cordoned", False),
        ("ToBeDeletedByClusterAutoscaler", CORDONED, "taken away by the cluster's autoscaler", True),
        ("cloud.google.com/impending-node-termination", CORDONED, "taken back by Google", True),
        ("karpenter.sh/disrupted", CORDONED, "taken away by Karpenter", True),
    ],
)
def test_words_of_a_taint_are_the_nodes_condition(
    key: str, condition: NodeCondition, words: str, leaving: bool
) -> None:
    found = read(taints=[{"key": key, "effect": "NoSchedule"}])
    assert (found.condition, found.words, found.leaving, found.taints) == (condition, words, leaving, ())


def test_node_whose_kubelet_is_not_ready_is_down_whatever_else_is_said() -> None:
    said = [{"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."}]
    found = read(conditions=said, unschedulable=True)
    assert (found.condition, found.words, found.leaving) == (DOWN, "Kubelet stopped posting node status.", True)
    assert read(conditions=()).condition is DOWN


def test_drained_node_is_leaving_and_maintenance_ahead_has_its_time() -> None:
    found = read(unschedulable=True)
    assert (found.condition, found.words, found.leaving) == (CORDONED, "cordoned", True)
    planned = read({"cloud.google.com/scheduled-maintenance-time": "1800000000"})
    assert (planned.condition, planned.leaving, planned.leaves_s) == (READY, False, 1_800_000_000.0)


def container(**asked: str) -> dict[str, Any]:
    return {"resources": {"requests": asked}}


def test_pod_holds_the_most_that_its_containers_ever_need_together() -> None:
    spec = {
        "initContainers": [
            container(cpu="6", memory="1Gi"),
            {**container(cpu="500m"), "restartPolicy": "Always"},
            container(cpu="5"),
        ],
        "containers": [container(cpu="2", memory="2Gi"), container(cpu="1500m", memory="1Gi"), {}],
        "overhead": {"cpu": "100m"},
    }
    asked = asked_by(spec)
    assert asked["cpu"] == pytest.approx(6.1)  # The first container's 6, over 5.5 and 4.
    assert asked["memory"] == 3 << 30
    spec["containers"] = [container(cpu="8")]
    assert asked_by(spec)["cpu"] == pytest.approx(8.6)  # With the sidecar beside it.


def test_what_is_asked_for_a_pod_as_a_whole_counts_in_place_of_its_containers() -> None:
    spec = {**container(cpu="3"), "containers": [container(cpu="1", memory="1Gi")]}
    assert asked_by(spec) == {"cpu": 3.0, "memory": float(1 << 30)}


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("1500m", 1.5), ("64", 64), ("1e3", 1_000), ("5E", 5e18), ("2Ki", 2_048), ("1.5Gi", 1.5 * 2**30)],
)
def test_amounts_are_numbers(text: str, value: float) -> None:
    assert number(text) == value


@pytest.mark.parametrize("text", ["", "Gi", "1Q", "one"])
def test_text_that_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        number(text)


def test_settings_name_the_field_that_is_wrong() -> None:
    for field, value in (("kubeconfig", "config"), ("namespace", "a.b"), ("levels", {"rack": ""}), ("call_s_max", 0.0)):
        with pytest.raises(InvalidSpec, match=field):
            KubernetesCluster(name=NAME, **{field: value})  # type: ignore[arg-type]
