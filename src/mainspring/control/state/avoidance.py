"""Avoidance: which nodes a job, or every job, keeps away from, folded from the evidence that attempts' ends leave.

A loss at a node keeps its job away from it while others could run it (`ELSEWHERE`), longer from loss to loss; where
nothing else could, the job is tried there again after a growing pause (`AGAIN`). `SUSPECTS_MIN` jobs lost at one node,
and nowhere else, keep all jobs away from it for a while (`RESTS`); each that ends well there takes one back. What of it
counts against the job is said in `store.evidence`. Nothing here is kept: the same events give the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import final

from mainspring.control.store.evidence import Evidence
from mainspring.domain.fleet import AvoidedNode, NodeRef
from mainspring.domain.ids import ClusterName, JobId
from mainspring.domain.life import AttemptState
from mainspring.domain.ports import Backoff

DAY_S = 86_400.0
# While others could run it: the day in which somebody looks after a node, longer where that did not help.
ELSEWHERE = Backoff(first_s=DAY_S, cap_s=8 * DAY_S)
# Where nothing else could: how Kubernetes starts a container again (CrashLoopBackOff: 10 s, doubled, at most 5 min).
AGAIN = Backoff(first_s=10.0, cap_s=300.0)
REMEMBERED_S = 2 * ELSEWHERE.cap_s  # Older evidence says nothing any more.

# Spark leaves a node alone after two executors failed there (spark.excludeOnFailure.application), and for an hour;
# here it is tried again sooner, longer from loss to loss, since jobs lost there meanwhile go elsewhere, uncounted.
SUSPECTS_MIN = 2
RESTS = Backoff(first_s=600.0, cap_s=1_800.0)
FRESH_S = DAY_S  # Evidence against a node for all jobs: whoever repairs it does so within a day.
# Where more than one node in ten seems bad it is not the nodes: only the worst are left alone, never a cluster's last.
CLUSTER_PART = 10
KEPT_MAX = 64  # Pieces of evidence remembered of one node or job, the newest; far more than any rule needs.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """What stands against a node: the jobs that were lost there and nowhere else, less those that ended well since."""

    jobs: tuple[JobId, ...]
    weight: int
    last_s: float
    last: JobId | None


@final
class Avoidance:
    """The evidence that counts, by node and by job; told in order of time."""

    def __init__(self, told: Iterable[Evidence] = ()) -> None:
        self._by_node: dict[NodeRef, list[Evidence]] = {}
        self._by_job: dict[JobId, list[Evidence]] = {}
        self._now_s = inf
        for one in told:
            self.add(one)

    def add(self, told: Evidence) -> None:
        """Adds a piece of evidence."""
        of_job = self._by_job.setdefault(told.job, [])
        for kept in (self._by_node.setdefault(told.at, []), of_job):
            kept.append(told)
            del kept[:-KEPT_MAX]

    def forget(self, now_s: float) -> bool:
        """Forgets what says nothing any more; returns whether the clock may have been set back since the last time."""
        since_s = now_s - REMEMBERED_S
        self._by_node = {at: told for at, told in self._by_node.items() if told[-1].time_s > since_s}
        self._by_job = {job: told for job, told in self._by_job.items() if told[-1].time_s > since_s}
        back, self._now_s = now_s < self._now_s, now_s
        return back

    def set_back(self, now_s: float) -> set[JobId]:
        """Takes what was told of later than now for told now: a clock was set back, and no pause lasts longer for it.

        Returns the jobs whose own pauses are shorter for it.
        """
        later = {one.job for told in self._by_job.values() for one in told if one.time_s > now_s}
        for told in (*self._by_node.values(), *(self._by_job[job] for job in later)):
            told[:] = [one if one.time_s <= now_s else replace(one, time_s=now_s) for one in told]
        return later

    def of_job(self, job: JobId) -> tuple[AvoidedNode, ...]:
        """Returns the nodes where a job's attempts were lost, and until when it keeps away from each."""
        lost: dict[NodeRef, list[Evidence]] = {}
        for one in self._by_job.get(job, ()):
            if one.outcome is not AttemptState.SUCCEEDED:
                lost.setdefault(one.at, []).append(one)
        return tuple(
            AvoidedNode(
                at=at,
                until_s=told[-1].time_s + ELSEWHERE.wait_s(len(told)),
                again_s=told[-1].time_s + AGAIN.wait_s(len(told)),
                reason=_times(told),
            )
            for at, told in sorted(lost.items())
        )

    def of_all(self, now_s: float, node_counts: Mapping[ClusterName, int]) -> tuple[AvoidedNode, ...]:
        """Returns the nodes that every job keeps away from now.

        Args:
            node_counts: How many nodes each cluster has; nothing is said of others.
        """
        found: dict[ClusterName, list[tuple[_Case, NodeRef]]] = {}
        for at in sorted(self._by_node):
            case = self._case(at, now_s)
            if at.cluster in node_counts and case.weight >= SUSPECTS_MIN and _until_s(case) > now_s:
                found.setdefault(at.cluster, []).append((case, at))
        avoided: list[AvoidedNode] = []
        for cluster, cases in found.items():
            count = node_counts[cluster]
            most = max(min(1, count - 1), count // CLUSTER_PART)
            worst = sorted(cases, key=lambda pair: (-pair[0].weight, -pair[0].last_s, pair[1]))[:most]
            for case, at in worst:
                # Everybody reads it: what was lost is told by the job itself, to those who may read that.
                words = f"{len(case.jobs)} jobs were lost there and nowhere else; the last: {case.last}"
                avoided.append(AvoidedNode(at=at, until_s=_until_s(case), again_s=_until_s(case), reason=words))
        return tuple(sorted(avoided, key=lambda one: one.at))

    def stands_against(self, at: NodeRef, now_s: float, *, but: JobId | None = None) -> bool:
        """Returns whether other jobs' ends speak against a node, more than speak for it.

        Args:
            but: The job that asks.
        """
        return self._case(at, now_s, but=but, failed=True).weight > 0

    def _case(self, at: NodeRef, now_s: float, *, but: JobId | None = None, failed: bool = False) -> _Case:
        """Returns what stands against a node.

        Args:
            but: A job that does not count.
            failed: Whether jobs count that a program's own word has ended.
        """
        jobs: dict[JobId, Evidence] = {}
        successes = 0
        for one in self._by_node.get(at, ()):
            if one.time_s <= now_s - FRESH_S or one.job == but:
                continue
            if one.outcome is AttemptState.SUCCEEDED:
                successes += bool(jobs)
            elif (one.outcome is AttemptState.LOST or one.again or failed) and self._only_at(one.job, at):
                jobs[one.job] = one
        last = max(jobs.values(), key=lambda one: one.time_s, default=None)
        return _Case(
            jobs=tuple(jobs),
            weight=max(0, len(jobs) - successes),
            last_s=last.time_s if last is not None else 0.0,
            last=last.job if last is not None else None,
        )

    def _only_at(self, job: JobId, at: NodeRef) -> bool:
        """Returns whether a job was lost at this node alone: then it is likelier the node's fault."""
        return all(one.at == at for one in self._by_job[job] if one.outcome is not AttemptState.SUCCEEDED)


def _until_s(case: _Case) -> float:
    return case.last_s + RESTS.wait_s(max(1, case.weight - SUSPECTS_MIN + 1))


def _times(told: Sequence[Evidence]) -> str:
    many = "an attempt was" if len(told) == 1 else f"{len(told)} attempts were"
    return f"{many} lost there; the last: {told[-1].reason}"
