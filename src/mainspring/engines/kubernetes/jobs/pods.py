"""A pod of ours as its object says: where it is, what it waits for, how its agent ended, who took it away.

Source: kubernetes.io/docs, "Pod Lifecycle", "Disruptions" (the condition `DisruptionTarget`), "Job" (the annotation of
its index).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from mainspring.domain.codec import decode
from mainspring.domain.errors import InvalidMessage
from mainspring.domain.fleet import AgentExit
from mainspring.domain.ids import AllocationId
from mainspring.engines.kubernetes.cluster.config import ALLOCATION
from mainspring.engines.kubernetes.jobs.pod_template import CONTAINER, GATE

INDEX = "batch.kubernetes.io/job-completion-index"
WORDS_MAX = 300
# Waits that end by themselves; all others of a container do not, before somebody mends something.
_COMING = frozenset({"ContainerCreating", "PodInitializing"})


class PodStage(Enum):
    """How far a pod has come."""

    GATED = "gated"
    WAITING = "waiting"
    RUNNING = "running"
    OVER = "over"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodProgress:
    """How far a pod has come.

    Args:
        words: What it waits for, or how its container ended, for people.
        stuck: Whether nothing but a change of the cluster or of the job ends that wait.
        exit_code: Of its container; None while that lives, and where it never did.
        message: What the container left as its last words.
    """

    stage: PodStage
    words: str = ""
    stuck: bool = False
    exit_code: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSeen:
    """One pod.

    Args:
        index: Its agent's place among the allocation's nodes.
        words: What it waits for, or how its agent ended, for people.
        stuck: Whether nothing but a change of the cluster or of the job ends that wait.
        exit_code: Of its agent; None while that lives, and where it never did.
        taken: Whether the cluster took it away.
        going_s: When it is ended by force, seconds since the Unix epoch; None while nobody ends it.
        host: The node it is bound to, "" for none.
    """

    allocation: AllocationId
    name: str
    uid: str
    index: int
    stage: PodStage
    words: str = ""
    stuck: bool = False
    exit_code: int | None = None
    taken: bool = False
    going_s: float | None = None
    host: str = ""


def read_pod(found: Mapping[str, Any]) -> PodSeen | None:
    """Returns a pod of ours; None for what bears our label and is no part of a Job.

    Raises:
        KeyError, TypeError, ValueError: It cannot be read.
    """
    meta, status = found["metadata"], found.get("status") or {}
    index = (meta.get("annotations") or {}).get(INDEX)
    if index is None:
        return None
    stage = stage_of(found)
    words = stage.words
    disruption = _condition(status, "DisruptionTarget")
    if disruption is not None:
        words = f"{disruption.get('message') or disruption.get('reason') or 'taken away'}"
    deleted = meta.get("deletionTimestamp")
    return PodSeen(
        allocation=AllocationId(meta["labels"][ALLOCATION]),
        name=meta["name"],
        uid=meta["uid"],
        index=int(index),
        stage=stage.stage,
        words=words[:WORDS_MAX],
        stuck=stage.stuck,
        exit_code=stage.exit_code,
        taken=disruption is not None,
        going_s=None if deleted is None else datetime.fromisoformat(deleted).timestamp(),
        host=found["spec"].get("nodeName") or "",
    )


def stage_of(found: Mapping[str, Any]) -> PodProgress:
    """Returns how far a pod has come: its agent's container, whatever others were put in beside it.

    Raises:
        KeyError, TypeError, ValueError: It cannot be read.
    """
    spec, status = found["spec"], found.get("status") or {}
    state = _states(status, "containerStatuses").get(CONTAINER, {})
    phase = status.get("phase") or "Pending"
    if over := state.get("terminated"):
        message = str(over.get("message") or "")
        return PodProgress(
            stage=PodStage.OVER, words=_last_words(over), exit_code=int(over["exitCode"]), message=message
        )
    if phase in ("Succeeded", "Failed"):
        words = str(status.get("message") or status.get("reason") or _failed_before(status) or phase.lower())
        return PodProgress(stage=PodStage.OVER, words=words, exit_code=0 if phase == "Succeeded" else None)
    if "running" in state:
        return PodProgress(stage=PodStage.RUNNING)
    if any(gate["name"] == GATE for gate in spec.get("schedulingGates") or ()):
        return PodProgress(stage=PodStage.GATED, words="its place is not told yet", stuck=True)
    for who, each in {**_states(status, "initContainerStatuses"), "": state}.items():
        waiting = each.get("waiting") or {}
        reason = waiting.get("reason")
        if reason and (reason not in _COMING or not who):
            words = f"{who} {reason}: {waiting.get('message') or ''}".strip(": ")
            return PodProgress(stage=PodStage.WAITING, words=words, stuck=reason not in _COMING)
    unbound = _condition(status, "PodScheduled", "False")
    # What it says of gates stays until a scheduler looks, though none is left.
    if unbound is not None and (unbound.get("reason") != "SchedulingGated" or spec.get("schedulingGates")):
        words = str(unbound.get("message") or unbound.get("reason") or "not scheduled")
        return PodProgress(stage=PodStage.WAITING, words=words, stuck=unbound.get("reason") == "Unschedulable")
    if not spec.get("nodeName"):
        words = f"the scheduler {spec.get('schedulerName', '')} has said nothing of it yet"
        return PodProgress(stage=PodStage.WAITING, words=words)
    return PodProgress(stage=PodStage.WAITING, words="its kubelet has said nothing of it yet")


def _states(status: Mapping[str, Any], kind: str) -> dict[str, Mapping[str, Any]]:
    """Returns how containers stand, by name, in their order."""
    return {str(one.get("name")): one.get("state") or {} for one in status.get(kind) or ()}


def _failed_before(status: Mapping[str, Any]) -> str:
    """Returns what is told of a container that failed, so that the agent's never began; "" for none."""
    for name, state in _states(status, "initContainerStatuses").items():
        over = state.get("terminated") or {}
        if over.get("exitCode"):
            return f"its container {name} failed: {over.get('message') or _last_words(over)}"
    return ""


def _last_words(over: Mapping[str, Any]) -> str:
    """Returns how an agent ended, in its own words if it left any."""
    try:
        return decode(AgentExit, str(over.get("message") or "").encode()).reason
    except InvalidMessage:
        reason, code = over.get("reason") or "ended", over["exitCode"]
        return f"{reason}, by code {code}"


def _condition(status: Mapping[str, Any], kind: str, wanted: str = "True") -> Mapping[str, Any] | None:
    """Returns a condition of a pod that stands as is wanted, None where it does not."""
    return next(
        (one for one in status.get("conditions") or () if one.get("type") == kind and one.get("status") == wanted), None
    )
