"""What an allocation's pods mean: its phase, how it ended, and what is to be done about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mainspring.domain.fleet import AllocationPhase, AllocationSeen
from mainspring.domain.ids import NodeName
from mainspring.engines.common.clocks import CLOCK_S_MAX
from mainspring.engines.kubernetes.cluster.slots import QueueHolding
from mainspring.engines.kubernetes.jobs.pods import PodSeen, PodStage
from mainspring.engines.kubernetes.jobs.watch import AskedToStop, EndedSeen, Found

OWN_END_S = 3.0  # A job's agents end with it; a kubelet looks at containers once a second, and then tells.
FENCED_S = 120.0  # Past its grace, what is left of a pod on a node that does not answer: its lease is over for long.
LATE_S = CLOCK_S_MAX + 1.0  # The API dates in whole seconds, by its own clock.


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What is seen of an allocation.

    Args:
        ended: How it ended, where nobody has written that down yet.
        stuck: What keeps it from starting that nothing but a change mends, "" for nothing.
        refused: Whether that is for want of room: the cluster would not have it.
    """

    seen: AllocationSeen
    ended: EndedSeen | None = None
    stuck: str = ""
    refused: bool = False


def outcome(found: Found, *, launching: bool, now_s: float) -> Outcome:
    """Returns what is seen of an allocation that was launched.

    Args:
        launching: Whether its Job may be made yet, or be on its way into our copy.
    """
    claim, nodes = found.claim, found.claim.claimed.nodes
    if claim.ended is not None:
        return Outcome(seen=_over(found, claim.ended))
    agents = [_agent(found, index, launching=launching) for index in range(len(nodes))]
    lost = tuple(nodes[index] for index, one in enumerate(agents) if one.stage is PodStage.OVER and one.exit_code != 0)
    if all(one.stage is PodStage.OVER for one in agents):
        ended = _end(found, agents, lost, now_s)
        return Outcome(seen=_over(found, ended), ended=ended)
    waiting = [one for one in agents if one.stage in (PodStage.WAITING, PodStage.GATED)]
    going = all(one.going_s is not None for one in agents if one.stage is PodStage.RUNNING)
    phase = AllocationPhase.PENDING if waiting else AllocationPhase.RUNNING
    if claim.stop is not None or (going and not waiting):
        phase = AllocationPhase.STOPPING
    stuck = next((one for one in waiting if one.stuck), None)
    seen = AllocationSeen(
        allocation=found.allocation,
        phase=phase,
        nodes=nodes,
        reason=(stuck or waiting[0]).words if waiting else next((one.words for one in agents if one.taken), ""),
        agent_lost=bool(lost),
        lost_nodes=lost,
        taken=phase is AllocationPhase.STOPPING and _is_taken(found, agents),
        hosts=_hosts(found, agents),
        job_id=claim.claimed.job_id,
    )
    if stuck is None or claim.stop is not None:
        return Outcome(seen=seen)
    return Outcome(seen=seen, stuck=stuck.words, refused=not stuck.host)


def outlives(pod: PodSeen, asked: AskedToStop, now_s: float) -> bool:
    """Returns whether nobody ends a pod by the end of a stop's grace: nobody at all, or somebody more patient."""
    return pod.going_s is None or pod.going_s > max(asked.at_s + asked.grace_s, now_s) + LATE_S


def ends_by_itself(found: Found, asked: AskedToStop, now_s: float) -> bool:
    """Returns whether what lives of an allocation may be about to end: with a pod that is deleted, its output goes.

    What others end already, and later than asked, has nothing to wait for.
    """
    if asked.words or now_s >= asked.at_s + min(OWN_END_S, asked.grace_s / 2):
        return False
    untouched = [pod for pod in found.living if pod.going_s is None]
    late = any(outlives(pod, asked, now_s) for pod in found.living if pod.going_s is not None)
    return bool(untouched) and not late and all(pod.stage is PodStage.RUNNING for pod in untouched)


def is_fenced(pod: PodSeen, asked: AskedToStop | None, now_s: float) -> bool:
    """Returns whether a pod that is going can be taken for dead, though its node has said nothing.

    A grace that was shortened counts, for the API, from when the pod began to go; for its node, from when it was told.
    """
    end_s = pod.going_s if asked is None or pod.going_s is None else max(pod.going_s, asked.at_s + asked.grace_s)
    return end_s is not None and now_s > end_s + FENCED_S


def _agent(found: Found, index: int, *, launching: bool) -> PodSeen:
    """Returns the pod of an index, or what is known of one that nobody sees."""
    if index in found.pods:
        return found.pods[index]
    bare = PodSeen(allocation=found.allocation, name="", uid="", index=index, stage=PodStage.WAITING)
    if found.job is not None and index in found.job.completed:
        return replace(bare, stage=PodStage.OVER, exit_code=0)
    if waits_in_queue(found):
        words = found.workload.words if found.workload is not None else ""
        return replace(bare, words=words or f"Kueue has not said a word of it in queue {found.claim.claimed.queue}")
    if found.job is not None and (index in found.job.failed or found.job.over):
        return replace(bare, stage=PodStage.OVER, words="its pod is gone, and how it ended nobody saw")
    if found.job is None and not launching:
        return replace(bare, stage=PodStage.OVER, words="its launch was cut short, or somebody deleted its Job")
    return replace(bare, words=f"its pod is not made: kubectl describe job {found.allocation}", stuck=True)


def _end(found: Found, agents: list[PodSeen], lost: tuple[NodeName, ...], now_s: float) -> EndedSeen:
    stop = found.claim.stop
    first = next((one for one in agents if one.exit_code != 0), agents[0])
    words = first.words or ("every agent ended well" if not lost else "ended")
    taken = any(one.taken for one in agents)
    if stop is not None and stop.words:
        kept = () if stop.taken else lost
        return EndedSeen(ended_s=now_s, exit_code=None, reason=stop.words, lost_nodes=kept, taken=stop.taken)
    if stop is not None and lost and not any(one.host for one in agents):
        return EndedSeen(ended_s=now_s, exit_code=None, reason="stopped before it began")
    return EndedSeen(ended_s=now_s, exit_code=first.exit_code, reason=words, lost_nodes=lost, taken=taken)


def _over(found: Found, ended: EndedSeen) -> AllocationSeen:
    return AllocationSeen(
        allocation=found.allocation,
        phase=AllocationPhase.ENDED,
        nodes=found.claim.claimed.nodes,
        exit_code=ended.exit_code,
        reason=ended.reason,
        agent_lost=bool(ended.lost_nodes),
        lost_nodes=ended.lost_nodes,
        taken=ended.taken,
        job_id=found.claim.claimed.job_id,
    )


def waits_in_queue(found: Found) -> bool:
    """Returns whether an allocation waits for Kueue to let it begin."""
    waits = bool(found.claim.claimed.queue) and found.claim.stop is None and found.job is not None
    return waits and (found.workload is None or not found.workload.admitted)


def slots_held(found: Found) -> Iterator[QueueHolding]:
    """Yields what a live allocation holds of a delegated cluster's slots."""
    if found.claim.ended is None:
        for index, slot in enumerate(found.claim.claimed.nodes):
            pod = found.pods.get(index)
            yield QueueHolding(slot=slot, host=pod.host if pod is not None else "")


def _is_taken(found: Found, agents: Sequence[PodSeen]) -> bool:
    return any(one.taken for one in agents) or (found.claim.stop is not None and found.claim.stop.taken)


def _hosts(found: Found, agents: Sequence[PodSeen]) -> tuple[str, ...]:
    """Returns the nodes that a queue has chosen, once it has chosen all."""
    hosts = tuple(one.host for one in agents) if found.claim.claimed.queue else ()
    return hosts if all(hosts) else ()


def places_due(found: Found) -> Mapping[str, str]:
    """Returns the pods that may go to their nodes, by name; none before all are made, or once they are to stop.

    Nor any that Kueue has let in a second time: who was put out has gone on elsewhere.

    Returns:
        The cluster's name of each pod's node, "" for any.
    """
    claim, workload = found.claim, found.workload
    if claim.stop is not None or claim.ended is not None or len(found.pods) < len(claim.claimed.nodes):
        return {}
    if claim.claimed.queue and (workload is None or not workload.admitted or workload.put_out):
        return {}
    return {
        pod.name: claim.claimed.theirs[pod.index] if claim.claimed.theirs else ""
        for pod in found.pods.values()
        if pod.stage is PodStage.GATED and pod.going_s is None
    }
