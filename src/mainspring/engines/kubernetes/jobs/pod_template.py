"""Pods of ours: one container, with the rights that Kubernetes calls restricted and what the operator allows besides.

The agent is in the image of jobs, or comes from a bundle: an init container copies that into a volume, whose place in
every pod is the one that the bundle was made for. Jobs' own programs come from their image either way.
Source: kubernetes.io/docs, "Pod Security Standards" (restricted), "Init Containers", "Volumes"; Karpenter's
"Disruption"; cluster-autoscaler's FAQ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mainspring.domain.fleet import MEMORY, LaunchOrder
from mainspring.domain.job import MILLI
from mainspring.engines.kubernetes.cluster.chips import CPU
from mainspring.engines.kubernetes.cluster.config import ALLOCATION, KubernetesCluster
from mainspring.engines.kubernetes.cluster.machines import UNSCHEDULABLE, KubernetesMachine
from mainspring.engines.kubernetes.cluster.pods import BUNDLE, FOLDER, HOST_NETWORK, PAGES, PodVolume

WORDS = f"{FOLDER}/words"  # Where the kubelet looks for a container's last.
GATE = "mainspring/place"
CONTAINER = "agent"
CHIPS = "chips"  # What a driver is asked for.
CLAIM_FILE, ORDER_FILE = "claim.json", "order.json"
# What autoscalers go by when they would empty a node that is little used: each pod of a gang is all of it.
UNDISTURBED = {"karpenter.sh/do-not-disrupt": "true", "cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
_COPIED = f"{FOLDER}/copied"  # Where the bundle's own container has the volume.
# Only what is in the volume is its user's, not the volume itself.
_COPY = """
import os, shutil, sys
for name in os.listdir(sys.argv[1]):
    shutil.copytree(os.path.join(sys.argv[1], name), os.path.join(sys.argv[2], name), symlinks=True)
"""


def agent_template(
    order: LaunchOrder,
    cluster: KubernetesCluster,
    *,
    machines: Sequence[KubernetesMachine],
    environment: Mapping[str, str],
    annotations: Mapping[str, str],
) -> dict[str, Any]:
    """Returns the pods of a Job that starts agents, all alike.

    Args:
        machines: What stands behind the order's nodes, in their order.
        environment: Variables of the agents.
        annotations: Of the pods, besides the operator's.
    """
    words = ("-m", "mainspring", "agent", "--order", f"{FOLDER}/order/{ORDER_FILE}")
    place = ("--places", f"{FOLDER}/claim/{CLAIM_FILE}", "--index", "$(JOB_COMPLETION_INDEX)")
    command = [*interpreter_of(cluster), *words, *place, "--last-words", WORDS, "--echo"]
    pod = bare_pod(cluster, command, environment, resources=_resources(order, cluster, machines))
    for name, source in (
        ("order", {"secret": {"secretName": order.allocation}}),
        ("claim", {"configMap": {"name": order.allocation, "items": [{"key": CLAIM_FILE, "path": CLAIM_FILE}]}}),
    ):
        _mount(pod, name, source, f"{FOLDER}/{name}")
    account = cluster.pods.account_of(order.teams)
    spec = pod | {
        "schedulingGates": [{"name": GATE}],
        **({"serviceAccountName": account} if account else {}),
        **({"nodeSelector": dict(machines[0].labels)} if cluster.delegated else {}),
        **(
            {"resourceClaims": [{"name": CHIPS, "resourceClaimTemplateName": order.allocation}]}
            if machines[0].driver
            else {}
        ),
        "terminationGracePeriodSeconds": math.ceil(cluster.grace_s),
        "tolerations": _tolerations(machines, cluster),
    }
    meta = {
        "labels": {**cluster.pods.labels, ALLOCATION: order.allocation},
        "annotations": {**UNDISTURBED, **cluster.pods.annotations, **annotations},
    }
    return {"metadata": meta, "spec": spec}


def probe_pod(cluster: KubernetesCluster, environment: Mapping[str, str], program: str, url: str) -> dict[str, Any]:
    """Returns a pod that runs once as agents would, on any node, and leaves its answer as its last words.

    Args:
        program: Text of what it runs in its interpreter.
        url: Where agents will call; "" to call nobody.
    """
    places = [("r" if volume.read_only else "w") + volume.path for volume in cluster.pods.volumes.values()]
    command = [*interpreter_of(cluster), "-c", program, url, WORDS, *places]
    meta = {
        "generateName": "mainspring-check-",
        "labels": {**cluster.pods.labels, "mainspring/check": "true"},
        "annotations": dict(cluster.pods.annotations),
    }
    spec = bare_pod(cluster, command, environment, resources={})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def interpreter_of(cluster: KubernetesCluster) -> list[str]:
    """Returns what runs an agent; a bundle's is deaf to variables that an image has for its own Python."""
    return [f"{BUNDLE}/bin/python3", "-I"] if cluster.bundle else [cluster.python]


def bare_pod(
    cluster: KubernetesCluster, command: Sequence[str], environment: Mapping[str, str], *, resources: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns what all our pods have in common.

    Args:
        environment: Variables.
        resources: What it asks for.
    """
    settings = cluster.pods
    added = {"add": list(settings.capabilities)} if settings.capabilities else {}
    rights = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"], **added}}
    container = {
        "name": CONTAINER,
        "image": cluster.image,
        "command": list(command),
        "env": [{"name": name, "value": value} for name, value in sorted(environment.items())],
        "terminationMessagePath": WORDS,
        "securityContext": rights,
        "resources": dict(resources),
        "volumeMounts": [],
    }
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,  # No job of a lab has a say in its cluster.
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": cluster.user > 0,
            "runAsUser": cluster.user,
            "runAsGroup": cluster.user,
            "fsGroup": cluster.user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if HOST_NETWORK in settings.beyond else {}),
        **({"priorityClassName": cluster.priority_class} if cluster.priority_class else {}),
        **({"schedulerName": settings.scheduler} if settings.scheduler else {}),
        **({"imagePullSecrets": [{"name": name} for name in cluster.pull_secrets]} if cluster.pull_secrets else {}),
        "containers": [container],
        "volumes": [],
    }
    _mount(pod, "work", {"emptyDir": {}}, f"{FOLDER}/work")
    if all(volume.path != MEMORY for volume in settings.volumes.values()):
        # Else a runtime gives 64 MiB, which no loader can do with; like this it may be as much as the pod's memory.
        _mount(pod, "shm", {"emptyDir": {"medium": "Memory"}}, MEMORY)
    for name, volume in settings.volumes.items():
        _mount(pod, f"lab-{name}", _source(volume), volume.path, read_only=volume.read_only)
    if cluster.bundle:
        _mount(pod, "bundle", {"emptyDir": {}}, BUNDLE, read_only=True)
        pod["initContainers"] = [
            {
                "name": "bundle",
                "image": cluster.bundle,
                "command": [f"{BUNDLE}/bin/python3", "-I", "-c", _COPY, BUNDLE, _COPIED],
                "terminationMessagePolicy": "FallbackToLogsOnError",  # What copies has nowhere else to say why not.
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                "resources": _plain(resources),
                "volumeMounts": [{"name": "bundle", "mountPath": _COPIED}],
            }
        ]
    return pod


def _mount(pod: Mapping[str, Any], name: str, source: Mapping[str, Any], path: str, *, read_only: bool = False) -> None:
    """Gives a pod a volume, and its container that at a path."""
    pod["volumes"].append({"name": name, **source})
    mount = {"name": name, "mountPath": path, **({"readOnly": True} if read_only else {})}
    pod["containers"][0]["volumeMounts"].append(mount)


def _source(volume: PodVolume) -> dict[str, Any]:
    """Returns where a volume comes from, as the API has it."""
    if volume.claim:
        return {"persistentVolumeClaim": {"claimName": volume.claim, "readOnly": volume.read_only}}
    if volume.csi:
        told = {"volumeAttributes": dict(volume.attributes)} if volume.attributes else {}
        return {"csi": {"driver": volume.csi, "readOnly": volume.read_only, **told}}
    if volume.nfs:
        server, _, path = volume.nfs.partition(":")
        return {"nfs": {"server": server, "path": path, "readOnly": volume.read_only}}
    if volume.host:
        return {"hostPath": {"path": volume.host, "type": "Directory"}}
    return {"emptyDir": {"medium": "Memory", "sizeLimit": f"{math.ceil(volume.memory_gib * 1_024)}Mi"}}


def _resources(order: LaunchOrder, cluster: KubernetesCluster, machines: Sequence[KubernetesMachine]) -> dict[str, Any]:
    """Returns what each pod asks for: of a gang all pods ask for the same, the most that one of them needs."""
    chips = chips_of(order)
    cpu_milli, memory_mib = max(order.cpu_milli), max(order.memory_mib)
    resource = machines[0].resource
    requests = {"cpu": f"{cpu_milli}m"} if cpu_milli else {}
    if memory_mib:
        requests["memory"] = f"{memory_mib}Mi"
    if machines[0].counted_by == CPU and not cpu_milli:
        requests["cpu"] = f"{max(order.chip_milli)}m"  # Its chips are its cores.
    limits = {name: amount for name, amount in requests.items() if name == "memory"}
    extended = {resource: str(chips)} if resource else {}
    if chips >= max(machine.chips for machine in machines):
        common = frozenset.intersection(*(frozenset(machine.devices) for machine in machines))
        extended |= {name: str(amount) for name, amount in cluster.pods.devices.items() if name in common}
    if not requests and any(name.startswith(PAGES) for name in extended):
        requests["cpu"] = "1m"  # The API gives nobody huge pages who asks for no cores and no memory.
    claims = {"claims": [{"name": CHIPS}]} if machines[0].driver else {}
    return {"requests": {**requests, **extended}, "limits": {**limits, **extended}, **claims}


def chips_of(order: LaunchOrder) -> int:
    """Returns how many chips each pod asks for."""
    return math.ceil(max(order.chip_milli) / MILLI)


def _plain(resources: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Returns what a pod asks for but for devices: a quota wants every container to ask, and one after the other is
    counted once.
    """
    return {
        kind: {name: amount for name, amount in amounts.items() if name in ("cpu", "memory")}
        for kind, amounts in resources.items()
        if kind != "claims"
    }


def _tolerations(machines: Iterable[KubernetesMachine], cluster: KubernetesCluster) -> list[dict[str, str]]:
    """Returns what pods put up with: the plan has chosen nodes whose taints their job tolerates, or that we closed."""
    keys = {*cluster.tolerated}
    for machine in machines:
        keys |= {UNSCHEDULABLE} if machine.cordon.ours else set()
        keys |= machine.tolerated | {taint.partition("=")[0] for taint in machine.taints}
    return [{"key": key, "operator": "Exists"} for key in sorted(keys)]
