"""Objects of an allocation, each named by its id: a ConfigMap that claims it, a Secret of orders, an Indexed Job.

Where a driver has its chips, a ResourceClaimTemplate too, by which each pod asks for them.

The claim is made first, and whoever finds it made starts nothing anew; it owns the others, which go where it goes. What
is said of an allocation later (a stop, its end) are annotations of the claim. The Job's pods are made behind a
scheduling gate, and let through to the node that the plan has for their index: the index is the agent's, whatever the
cluster calls the pod. One that fails is not made again, and the others go on without it.
Source: kubernetes.io/docs, "Job" (Indexed, `backoffLimitPerIndex`), "Pod Scheduling Readiness".
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mainspring.domain.codec import encode
from mainspring.domain.fleet import AgentOrder, LaunchOrder
from mainspring.domain.ids import JobId, NodeName
from mainspring.engines.kubernetes.cluster.config import ALLOCATION, KubernetesCluster
from mainspring.engines.kubernetes.cluster.devices import WHOLE
from mainspring.engines.kubernetes.cluster.machines import KubernetesMachine
from mainspring.engines.kubernetes.cluster.pods import FOLDER
from mainspring.engines.kubernetes.jobs.pod_template import (
    CHIPS,
    CLAIM_FILE,
    GATE,
    ORDER_FILE,
    agent_template,
    chips_of,
)

QUEUE, PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
NEAR = "kueue.x-k8s.io/podset-preferred-topology"
STOP, ENDED = "mainspring/stop", "mainspring/ended"  # Annotations of a claim.
ATTESTATION = "attestation"
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
        job_id=order.job_id,
        log_form=order.log_form,
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
    said = f"device.attributes[{json.dumps(driver)}]"
    # A class may hold parts of chips too, which bear the product of their chip.
    told = [f'!("type" in {said}) || {said}.type in {json.dumps(WHOLE)}']
    if all(products):
        told.append(f'"productName" in {said} && {said}.productName in {json.dumps(products)}')
    selectors = [{"cel": {"expression": expression}} for expression in told]
    asked = {"deviceClassName": driver, "count": chips_of(order), "selectors": selectors}
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
            "template": agent_template(
                order,
                cluster,
                machines=machines,
                environment=environment,
                annotations={NEAR: near} if near else {},
            ),
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
