"""What is seen of our allocations: copies of claims, Jobs and pods that threads keep up, by allocation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from threading import Lock
from typing import Any

from mainspring.domain.codec import decode
from mainspring.domain.ids import AllocationId, NodeName
from mainspring.domain.ports import Clock
from mainspring.engines.kubernetes.api.client import Api
from mainspring.engines.kubernetes.cluster.config import ALLOCATION, KubernetesCluster
from mainspring.engines.kubernetes.cluster.mirror import Known, Mirror
from mainspring.engines.kubernetes.cluster.queues import GROUP, version_of
from mainspring.engines.kubernetes.jobs.manifests import ENDED, STOP, Claimed
from mainspring.engines.kubernetes.jobs.pod_template import CLAIM_FILE
from mainspring.engines.kubernetes.jobs.pods import PodSeen, PodStage, read_pod
from mainspring.engines.kubernetes.jobs.workloads import WorkloadSeen, read_workload


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedToStop:
    """That an allocation is to end.

    Args:
        at_s: Since when, seconds since the Unix epoch.
        grace_s: How long its agents have from then on.
        words: Why the engine itself gave it up; "" where it was told to.
        taken: Whether the cluster would not have it, so that nothing is held against the job.
    """

    at_s: float
    grace_s: float
    words: str = ""
    taken: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedSeen:
    """How an allocation ended, and when that was seen."""

    ended_s: float
    exit_code: int | None
    reason: str
    lost_nodes: tuple[NodeName, ...] = ()
    taken: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSeen:
    """A claim, when it was made, and what was said of its allocation since."""

    claimed: Claimed
    uid: str
    made_s: float = 0.0
    stop: AskedToStop | None = None
    ended: EndedSeen | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSeen:
    """A Job.

    Args:
        completed: Indexes whose pods ended well.
        failed: Those whose pods did not, or are gone.
        over: Whether it makes no pods any more.
    """

    completed: frozenset[int] = frozenset()
    failed: frozenset[int] = frozenset()
    over: bool = False


@dataclass(slots=True, kw_only=True)
class Found:
    """All that is seen of one allocation; `pods` by index, those that are gone as they were seen last."""

    allocation: AllocationId
    claim: ClaimSeen
    job: JobSeen | None = None
    workload: WorkloadSeen | None = None
    pods: dict[int, PodSeen] = field(default_factory=dict)

    @property
    def living(self) -> list[PodSeen]:
        """Returns the pods that are not over."""
        return [pod for pod in self.pods.values() if pod.stage is not PodStage.OVER]


class AllocationWatch:
    """Keeps up what is known of the allocations of one cluster.

    Args:
        came: Told whenever a pod waits for its place; called by a thread that must not be kept waiting.
    """

    def __init__(self, cluster: KubernetesCluster, api: Api, clock: Clock, came: Callable[[], None]) -> None:
        self._call_s = cluster.call_s_max
        self._lock = Lock()
        self._gone: dict[AllocationId, dict[int, PodSeen]] = {}
        self._claims = Known[ClaimSeen](self._lock)
        self._jobs = Known[JobSeen](self._lock)
        self._workloads = Known[WorkloadSeen](self._lock)
        self._pods = Known[PodSeen](
            self._lock, lambda pod: came() if pod.stage is PodStage.GATED else None, self._forgot
        )
        query = {"labelSelector": ALLOCATION}
        spaces = {
            "v1": f"/api/v1/namespaces/{cluster.namespace}",
            "batch": f"/apis/batch/v1/namespaces/{cluster.namespace}",
        }
        self._queues: Callable[[], Mirror[WorkloadSeen]] | None = None
        if cluster.delegated:
            self._queues = lambda: Mirror(
                api,
                clock,
                path=f"{GROUP}/{version_of(api)}/namespaces/{cluster.namespace}/workloads",
                query={},
                key="name",
                read=read_workload,
                keeps=self._workloads,
            )
        self._mirrors: tuple[Mirror[Any], ...] = (
            Mirror(
                api,
                clock,
                path=f"{spaces['v1']}/configmaps",
                query=query,
                key="name",
                read=read_claim,
                keeps=self._claims,
            ),
            Mirror(
                api, clock, path=f"{spaces['batch']}/jobs", query=query, key="name", read=_read_job, keeps=self._jobs
            ),
            Mirror(api, clock, path=f"{spaces['v1']}/pods", query=query, key="uid", read=read_pod, keeps=self._pods),
        )

    def begin(self) -> None:
        """Starts its threads; harmless when they run.

        Raises:
            Unavailable: Kueue is needed, and not there.
        """
        if self._queues is not None:
            self._mirrors, self._queues = (*self._mirrors, self._queues()), None
        for mirror in self._mirrors:
            mirror.begin()

    def check(self) -> None:
        """Returns when the copies are ones to go by.

        Raises:
            Unavailable: The API does not answer, and has not for some while.
        """
        self.begin()  # All are listed at once.
        for mirror in self._mirrors:
            mirror.check(self._call_s)

    def close(self) -> None:
        """Ends its threads, once the API lets go of them."""
        for mirror in self._mirrors:
            mirror.close()

    def claimed(self, allocation: AllocationId, claim: ClaimSeen) -> None:
        """Notes what was just written of a claim, which the copy learns of later."""
        self._claims.put(allocation, claim)

    def found(self) -> Iterator[Found]:
        """Yields what is seen of every allocation, in order of id."""
        with self._lock:
            claims, jobs = dict(self._claims.known), dict(self._jobs.known)
            workloads = {one.job: one for one in self._workloads.known.values()}
            pods = list(self._pods.known.values())
            self._gone = {name: own for name, own in self._gone.items() if name in claims}
            by_allocation: dict[str, dict[int, PodSeen]] = {name: dict(own) for name, own in self._gone.items()}
        for pod in pods:
            by_allocation.setdefault(pod.allocation, {})[pod.index] = pod
        for name in sorted(claims):
            yield Found(
                allocation=AllocationId(name),
                claim=claims[name],
                job=jobs.get(name),
                workload=workloads.get(name),
                pods=by_allocation.get(name, {}),
            )

    def _forgot(self, pod: PodSeen) -> None:
        """Keeps a pod that is gone as it was seen last: nothing of it lives."""
        if pod.stage is not PodStage.OVER:
            words = pod.words or ("its pod was deleted" if pod.going_s is None else "ended")
            pod = replace(pod, stage=PodStage.OVER, words=words)
        self._gone.setdefault(pod.allocation, {})[pod.index] = pod


def read_claim(found: Mapping[str, Any]) -> ClaimSeen:
    """Returns a claim of ours.

    Raises:
        KeyError, InvalidMessage: It cannot be read.
    """
    meta = found["metadata"]
    said = meta.get("annotations") or {}
    return ClaimSeen(
        claimed=decode(Claimed, found["data"][CLAIM_FILE].encode()),
        uid=meta["uid"],
        made_s=datetime.fromisoformat(meta["creationTimestamp"]).timestamp(),
        stop=decode(AskedToStop, said[STOP].encode()) if STOP in said else None,
        ended=decode(EndedSeen, said[ENDED].encode()) if ENDED in said else None,
    )


def _read_job(found: Mapping[str, Any]) -> JobSeen:
    status = found.get("status") or {}
    over = any(
        one["type"] in ("Complete", "Failed") and one["status"] == "True" for one in status.get("conditions") or ()
    )
    return JobSeen(
        completed=_indexes(status.get("completedIndexes") or ""),
        failed=_indexes(status.get("failedIndexes") or ""),
        over=over,
    )


def _indexes(text: str) -> frozenset[int]:
    """Returns the numbers that a list such as "1,3-5" names."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
