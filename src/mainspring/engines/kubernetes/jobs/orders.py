"""Orders of nodes: a Job of pods that wait until an autoscaler adds a node for each, and hold it until all are there.

The Job is the whole state of an order. Its pods ask for what a node of the offer has, one a node, by the lowest
priority, and do nothing. Once each is bound the Job is deleted: the nodes are there. An order that is not met in time,
or that the cluster refuses, is ended with the reason as an annotation; while such a Job is there its offer is withheld,
and it goes by itself. It ends by itself too, somewhat later, where no server is left to see to that.

Where the operator names a class of them, a ProvisioningRequest of the same pods asks for all nodes or none: the
autoscaler then adds none for the pods themselves.
Source: kubernetes.io/docs, "Job" (`podFailurePolicy`, TTL); autoscaling.x-k8s.io/v1; cluster-autoscaler's FAQ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

from mainspring.domain.fleet import NodeOrder
from mainspring.domain.ids import JobId
from mainspring.domain.plan import Provision
from mainspring.engines.kubernetes.cluster.config import ORDER, KubernetesCluster
from mainspring.engines.kubernetes.cluster.offers import NodeOffer
from mainspring.engines.kubernetes.jobs.pod_template import UNDISTURBED, bare_pod, interpreter_of

LATE, LATE_S_MIN = 3.0, 900.0  # Lead times, but at least so long, until an order is over: drivers take some minutes.
WITHHELD_S = 1_800  # An offer whose nodes did not come is not asked again for so long; others may do.
ALONE_S = 120.0  # After that an order ends by itself, where no server did it.
PROVISIONING = "/apis/autoscaling.x-k8s.io/v1"
OFFER, JOB, ENDED = "mainspring/offer", "mainspring/job", "mainspring/ended"  # Annotations of an order.
WORDS_MAX = 500
_EXPECTED = "mainspring/expected"
_CONSUMES, _CLASS = "autoscaling.x-k8s.io/consume-provisioning-request", "autoscaling.x-k8s.io/provisioning-class-name"


def priority_of(cluster: KubernetesCluster) -> str:
    """Returns the PriorityClass of pods that hold nodes, which `ms cluster manifests --offers` makes."""
    return f"{cluster.namespace}-placeholders"


def order_name(offer: str, job: JobId) -> str:
    """Returns the name of an order's objects: one order of an offer for a job is under way at a time."""
    return f"order-{sha256(f'{offer} {job}'.encode()).hexdigest()[:16]}"


def late_s(offer: NodeOffer | None) -> float:
    """Returns how long nodes of an offer may take, or of one that is not there any more."""
    return max(LATE_S_MIN, LATE * offer.lead_time_s if offer is not None else 0.0)


def order_job(wanted: Provision, offer: NodeOffer, cluster: KubernetesCluster, now_s: float) -> dict[str, Any]:
    """Returns the Job of an order.

    Args:
        offer: What is wanted of.
    """
    name = order_name(wanted.offer, wanted.for_job)
    pod = bare_pod(
        cluster,
        [*interpreter_of(cluster), "-c", "import signal; signal.pause()"],
        {},
        resources={kind: {offer.resource: str(offer.chips)} for kind in ("requests", "limits")},
    )
    here = {"labelSelector": {"matchExpressions": [{"key": ORDER, "operator": "Exists"}]}}
    apart = [here | {"topologyKey": "kubernetes.io/hostname"}]
    spec = pod | {
        "priorityClassName": priority_of(cluster),
        "terminationGracePeriodSeconds": 0,
        "nodeSelector": dict(offer.labels),
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": apart}},
        "tolerations": [
            {"key": key, "operator": "Exists"} for key in sorted({*cluster.tolerated, *cluster.chips, offer.resource})
        ],
    }
    consumes = {_CONSUMES: name, _CLASS: cluster.provisioning_class} if cluster.provisioning_class else {}
    template = {
        "metadata": {
            "labels": {**cluster.pods.labels, ORDER: name},
            "annotations": {**UNDISTURBED, **cluster.pods.annotations, **consumes},
        },
        "spec": spec,
    }
    # Pods that the cluster takes away, for those that come before them, are made again.
    taken = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    said = {OFFER: wanted.offer, JOB: wanted.for_job, _EXPECTED: f"{now_s + offer.lead_time_s:.0f}"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {ORDER: name}, "annotations": said},
        "spec": {
            "completions": wanted.nodes,
            "parallelism": wanted.nodes,
            "backoffLimit": 0,
            "podFailurePolicy": {"rules": [taken]},
            "activeDeadlineSeconds": math.ceil(late_s(offer) + ALONE_S),
            "ttlSecondsAfterFinished": WITHHELD_S,
            "template": template,
        },
    }


def request_objects(job: Mapping[str, Any], offer: NodeOffer, cluster: KubernetesCluster) -> Sequence[dict[str, Any]]:
    """Returns the PodTemplate and the ProvisioningRequest of an order.

    Args:
        job: The order's, as it was made; both go where it goes.
    """
    name = job["metadata"]["name"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job["metadata"]["uid"]}
    meta = {"name": name, "labels": {ORDER: name}, "ownerReferences": [owner]}
    template = dict(job["spec"]["template"])
    bare = {key: value for key, value in template["metadata"].items() if key == "annotations"}
    return (
        {"apiVersion": "v1", "kind": "PodTemplate", "metadata": meta, "template": template | {"metadata": bare}},
        {
            "apiVersion": "autoscaling.x-k8s.io/v1",
            "kind": "ProvisioningRequest",
            "metadata": meta,
            "spec": {
                "provisioningClassName": cluster.provisioning_class,
                "parameters": {"ValidUntilSeconds": f"{late_s(offer):.0f}"},
                "podSets": [{"podTemplateRef": {"name": name}, "count": job["spec"]["parallelism"]}],
            },
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderSeen:
    """An order as its Job tells of it.

    Args:
        made_s: Since when it is there.
        ended: Why its nodes do not come, "" while they may.
    """

    name: str
    offer: str
    job: JobId
    nodes: int
    made_s: float
    expected_s: float
    ended: str = ""

    def told(self, cluster: KubernetesCluster) -> NodeOrder:
        """Returns it as inventories have it."""
        return NodeOrder(
            cluster=cluster.name, offer=self.offer, job=self.job, nodes=self.nodes, expected_s=self.expected_s
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderSeen:
    """A pod that waits for a node, or holds it.

    Args:
        host: The node, "" while it waits.
        words: Why it waits.
    """

    order: str
    host: str
    words: str


def read_order(found: Mapping[str, Any]) -> OrderSeen | None:
    """Returns an order; None where its Job is on its way out.

    Raises:
        KeyError, TypeError, ValueError: It cannot be read.
    """
    meta, status = found["metadata"], found.get("status") or {}
    if meta.get("deletionTimestamp"):
        return None
    said = meta["annotations"]
    failed = (one for one in status.get("conditions") or () if one["type"] == "Failed" and one["status"] == "True")
    over = next((one.get("message") or one.get("reason") or "it is over" for one in failed), "")
    return OrderSeen(
        name=meta["name"],
        offer=said[OFFER],
        job=JobId(said[JOB]),
        nodes=found["spec"]["parallelism"],
        made_s=datetime.fromisoformat(meta["creationTimestamp"]).timestamp(),
        expected_s=float(said[_EXPECTED]),
        ended=str(said.get(ENDED) or over)[:WORDS_MAX],
    )


def read_holder(found: Mapping[str, Any]) -> HolderSeen | None:
    """Returns a pod of an order; None for one that holds nothing any more.

    Raises:
        KeyError, TypeError, ValueError: It cannot be read.
    """
    meta, status = found["metadata"], found.get("status") or {}
    if meta.get("deletionTimestamp") or status.get("phase") in ("Succeeded", "Failed"):
        return None
    waits = (
        one for one in status.get("conditions") or () if one["type"] == "PodScheduled" and one["status"] == "False"
    )
    words = next((one.get("message") or "" for one in waits), "")
    return HolderSeen(order=meta["labels"][ORDER], host=found["spec"].get("nodeName") or "", words=words)


def read_request(found: Mapping[str, Any]) -> str:
    """Returns why a ProvisioningRequest is not met, "" while it may be.

    Raises:
        KeyError, TypeError, ValueError: It cannot be read.
    """
    for one in (found.get("status") or {}).get("conditions") or ():
        if one["type"] in ("Failed", "CapacityRevoked") and one["status"] == "True":
            return str(one.get("message") or one.get("reason") or one["type"])
    return ""
