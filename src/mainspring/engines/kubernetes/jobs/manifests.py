"""Objects of an allocation, each named by its id: a ConfigMap that claims it, a Secret of orders, an Indexed Job.

The claim is made first, and whoever finds it made starts nothing anew; it owns the others, which go where it goes. What
is said of an allocation later (a stop, its end) are annotations of the claim. The Job's pods are made behind a
scheduling gate, and let through to the node that the plan has for their index: the index is the agent's, whatever the
cluster calls the pod. One that fails is not made again, and the others go on without it.
Source: kubernetes.io/docs, "Job" (Indexed, `backoffLimitPerIndex`), "Pod Scheduling Readiness", "Pod Security
Standards" (restricted).
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mainspring.domain.codec import encode
from mainspring.domain.fleet import AgentOrder, LaunchOrder
from mainspring.domain.ids import JobId, NodeName
from mainspring.domain.job import MILLI
from mainspring.engines.kubernetes.cluster.chips import CPU
from mainspring.engines.kubernetes.cluster.config import ALLOCATION, KubernetesCluster
from mainspring.engines.kubernetes.cluster.devices import DRIVERS
from mainspring.engines.kubernetes.cluster.machines import KubernetesMachine

FOLDER = "/srv/mainspring"  # Of ours in every pod: orders, claim, work.
WORDS = f"{FOLDER}/words"  # Where the kubelet looks for a container's last.
GATE = "mainspring/place"
CONTAINER = "agent"
CHIPS = "chips"  # What a driver is asked for.
QUEUE, PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
NEAR = "kueue.x-k8s.io/podset-preferred-topology"
STOP, ENDED = "mainspring/stop", "mainspring/ended"  # Annotations of a claim.
CLAIM_FILE, ORDER_FILE, ATTESTATION = "claim.json", "order.json", "attestation"
KEPT_S = 3_600  # A Job that is over goes by itself then, also where no server is left; so long its output is there.
MAP_BYTES_MAX = 1_000_000  # The API takes a MiB in all.


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """What a claim says of its allocation; no nodes where it was stopped before it was launched.

    Args:
        nodes: In rank order, as we name them.
        theirs: The cluster's names of them; none where its queue chooses nodes.
        chip_milli: Thousandths of chips on each.
        queue: Kueue's LocalQueue that it waits in, "" for none.
    """

    nodes: tuple[NodeName, ...]
    theirs: tuple[str, ...] = ()
    chip_milli: tuple[int, ...] = ()
    queue: str = ""
    job_id: JobId


def claim(name: str, claimed: Claimed, attestation: str = "") -> dict[str, Any]:
    """Returns the ConfigMap that takes an allocation's id, for good.

    Args:
        attestation: What came with the order; left out where it would be too much for one object.
    """
    told = {CLAIM_FILE: encode(claimed).decode()}
    if attestation and len(told[CLAIM_FILE]) + len(attestation) <= MAP_BYTES_MAX:
        told[ATTESTATION] = attestation
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _meta(name), "data": told}


def orders(order: LaunchOrder, owner: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the Secret with what agents are told: all the same, but for their places, which are in the claim.

    Args:
        owner: The claim, as it was made.
    """
    told = AgentOrder(
        allocation=order.allocation,
        attempt=order.attempt,
        role=order.role,
        node=order.nodes[0],
        index=0,
        chip_milli=order.chip_milli[0],
        controller=order.controller,
        controllers_beside=order.controllers_beside,
        token=order.token,
        work_dir=f"{FOLDER}/work",
    )
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _meta(order.allocation, owner),
        "immutable": True,
        "data": {ORDER_FILE: base64.b64encode(encode(told)).decode()},
    }


def device_claims(
    order: LaunchOrder, machines: Sequence[KubernetesMachine], owner: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Returns the ResourceClaimTemplate by which each pod asks a driver for chips; None where a resource counts them.

    Args:
        machines: What stands behind the order's nodes, in their order.
        owner: The claim, as it was made.
    """
    driver, products = machines[0].driver, sorted({machine.product for machine in machines})
    if not driver:
        return None
    asked: dict[str, Any] = {"deviceClassName": driver, "count": _chips(order)}
    if all(products):
        said = f"device.attributes[{json.dumps(driver)}]"
        told = f'"productName" in {said} && {said}.productName in {json.dumps(products)}'
        asked["selectors"] = [{"cel": {"expression": told}}]
    requests = [{"name": CHIPS, "exactly": asked}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": _meta(order.allocation, owner),
        "spec": {
            "metadata": {"labels": {ALLOCATION: order.allocation}},
            "spec": {"devices": {"requests": requests}},
        },
    }


def job(
    order: LaunchOrder,
    cluster: KubernetesCluster,
    owner: Mapping[str, Any],
    *,
    machines: Sequence[KubernetesMachine],
    environment: Mapping[str, str],
    near: str = "",
) -> dict[str, Any]:
    """Returns the Job that starts one agent a node.

    Args:
        owner: The claim, as it was made.
        machines: What stands behind the order's nodes, in their order.
        environment: Variables of the agents.
        near: The label of the level that shall hold all of them if one can, "" for no matter; Kueue goes by it.
    """
    count = len(order.nodes)
    meta = _meta(order.allocation, owner) | {"annotations": {"mainspring/job": order.job or order.job_id}}
    if cluster.delegated:
        priority = cluster.priorities.get(order.tier.value, "")
        meta["labels"] |= {QUEUE: cluster.queue_of(order.teams)} | ({PRIORITY: priority} if priority else {})
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": meta,
        "spec": {
            "suspend": cluster.delegated,  # Kueue lets it begin.
            "completionMode": "Indexed",
            "completions": count,
            "parallelism": count,
            # No pod is made a second time, and none takes the others with it.
            "backoffLimitPerIndex": 0,
            "maxFailedIndexes": count,
            "podReplacementPolicy": "Failed",
            "ttlSecondsAfterFinished": KEPT_S,
            "template": {
                "metadata": {"labels": {ALLOCATION: order.allocation}, "annotations": {NEAR: near} if near else {}},
                "spec": _pod(order, cluster, machines=machines, environment=environment),
            },
        },
    }


def placed(node: str) -> dict[str, Any]:
    """Returns the strategic merge that lets a pod through to its node, by the cluster's name; "" for any."""
    if not node:
        return {"spec": {"schedulingGates": [{"name": GATE, "$patch": "delete"}]}}
    here = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    wanted = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [here]}}
    return {
        "spec": {"schedulingGates": [{"name": GATE, "$patch": "delete"}], "affinity": {"nodeAffinity": wanted}},
    }


def annotation(name: str, value: object) -> dict[str, Any]:
    """Returns the merge that says something of a claim.

    Args:
        name: `STOP` or `ENDED`.
        value: A dataclass that says it.
    """
    return {"metadata": {"annotations": {name: encode(value).decode()}}}


def _meta(name: str, owner: Mapping[str, Any] | None = None) -> dict[str, Any]:
    meta: dict[str, Any] = {"name": name, "labels": {ALLOCATION: name}}
    if owner is not None:
        uid = owner["metadata"]["uid"]
        meta["ownerReferences"] = [{"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid}]
    return meta


def _pod(
    order: LaunchOrder,
    cluster: KubernetesCluster,
    *,
    machines: Sequence[KubernetesMachine],
    environment: Mapping[str, str],
) -> dict[str, Any]:
    words = ("-m", "mainspring", "agent", "--order", f"{FOLDER}/order/{ORDER_FILE}")
    place = ("--places", f"{FOLDER}/claim/{CLAIM_FILE}", "--index", "$(JOB_COMPLETION_INDEX)")
    command = [cluster.python, *words, *place, "--last-words", WORDS, "--echo"]
    claim_alone = [{"key": CLAIM_FILE, "path": CLAIM_FILE}]
    mounts = [{"name": name, "mountPath": f"{FOLDER}/{name}"} for name in ("order", "claim", "work")]
    container = {"resources": _resources(order, machines), "volumeMounts": mounts}
    return _alone(cluster, command, environment, container) | {
        "schedulingGates": [{"name": GATE}],
        **({"nodeSelector": dict(machines[0].labels)} if cluster.delegated else {}),
        "terminationGracePeriodSeconds": math.ceil(cluster.grace_s),
        "tolerations": _tolerations(machines, cluster),
        **(
            {"resourceClaims": [{"name": CHIPS, "resourceClaimTemplateName": order.allocation}]}
            if machines[0].driver
            else {}
        ),
        "volumes": [
            {"name": "order", "secret": {"secretName": order.allocation}},
            {"name": "claim", "configMap": {"name": order.allocation, "items": claim_alone}},
            {"name": "work", "emptyDir": {}},
        ],
    }


def probe_pod(cluster: KubernetesCluster, environment: Mapping[str, str], program: str, url: str) -> dict[str, Any]:
    """Returns a pod that runs once as agents would, on any node, and leaves its answer as its last words.

    Args:
        program: Text of what it runs in its interpreter.
        url: Where agents will call; "" to call nobody.
    """
    mounts = [{"name": "work", "mountPath": f"{FOLDER}/work"}]
    pod = _alone(cluster, [cluster.python, "-c", program, url, WORDS], environment, {"volumeMounts": mounts})
    volumes = [{"name": "work", "emptyDir": {}}]
    meta = {"generateName": "mainspring-check-", "labels": {"mainspring/check": "true"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod | {"volumes": volumes}}


def _alone(
    cluster: KubernetesCluster, command: Sequence[str], environment: Mapping[str, str], more: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns what all our pods have in common: one container, with the rights that Kubernetes calls restricted.

    Args:
        more: Of the container.
    """
    container = {
        "name": CONTAINER,
        "image": cluster.image,
        "command": list(command),
        "env": [{"name": name, "value": value} for name, value in sorted(environment.items())],
        "terminationMessagePath": WORDS,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
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
        **({"priorityClassName": cluster.priority_class} if cluster.priority_class else {}),
        **({"imagePullSecrets": [{"name": name} for name in cluster.pull_secrets]} if cluster.pull_secrets else {}),
        "containers": [container | dict(more)],
    }


def _resources(order: LaunchOrder, machines: Sequence[KubernetesMachine]) -> dict[str, Any]:
    """Returns what each pod asks for: of a gang all pods ask for the same, the most that one of them needs."""
    cpu_milli, memory_mib = max(order.cpu_milli), max(order.memory_mib)
    resource = machines[0].resource
    requests = {"cpu": f"{cpu_milli}m"} if cpu_milli else {}
    if memory_mib:
        requests["memory"] = f"{memory_mib}Mi"
    if machines[0].counted_by == CPU and not cpu_milli:
        requests["cpu"] = f"{max(order.chip_milli)}m"  # Its chips are its cores.
    limits = {name: amount for name, amount in requests.items() if name == "memory"}
    if resource:
        requests[resource] = limits[resource] = str(_chips(order))
    claims = {"claims": [{"name": CHIPS}]} if machines[0].driver else {}
    return {"requests": requests, "limits": limits, **claims}


def _chips(order: LaunchOrder) -> int:
    return math.ceil(max(order.chip_milli) / MILLI)


def _tolerations(machines: Iterable[KubernetesMachine], cluster: KubernetesCluster) -> list[dict[str, str]]:
    """Returns what pods put up with: the plan has chosen nodes whose taints their job tolerates."""
    keys = {*cluster.tolerated}
    for machine in machines:
        keys |= {taint.partition("=")[0] for taint in machine.taints}
        keys |= {key for key in (machine.resource, DRIVERS.get(machine.driver, "")) if key}
    return [{"key": key, "operator": "Exists"} for key in sorted(keys)]
