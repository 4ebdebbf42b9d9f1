"""What the builder is told of clusters and nodes to keep away from, and what of it holds at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import final

from mainspring.domain.fleet import AvoidedNode, NodeRef
from mainspring.domain.ids import ClusterName, JobId
from mainspring.planner.facts.services import Services
from mainspring.planner.facts.snapshot import PendingJob


@dataclass(frozen=True, slots=True, kw_only=True)
class AvoidingJob:
    """A pending job, and the nodes it keeps away from now, in order; none once all of it is over."""

    job: PendingJob
    avoided: tuple[AvoidedNode, ...]
    avoids: tuple[NodeRef, ...]
    shuns: tuple[NodeRef, ...]


@final
class Avoiding:
    """Pending jobs that keep away from clusters or nodes, and the nodes that all jobs do.

    `services` says which of them keep away from each other.
    """

    def __init__(self) -> None:
        self.services = Services()
        self._of_clusters: dict[JobId, Mapping[ClusterName, float]] = {}
        self._of_nodes: dict[JobId, PendingJob] = {}
        self._until_s: Mapping[NodeRef, float] = {}

    @property
    def clusters(self) -> Mapping[JobId, Mapping[ClusterName, float]]:
        """Returns until when jobs keep away from clusters; some of it may be over."""
        return dict(self._of_clusters)

    def put(self, job: PendingJob) -> None:
        """Adds a job, or tells it anew."""
        self.drop(job.job)
        if job.avoid:
            self._of_clusters[job.job] = job.avoid
        if job.avoid_nodes:
            self._of_nodes[job.job] = job
        self.services.put_pending(job)

    def drop(self, job: JobId) -> None:
        """Forgets a job."""
        self._of_clusters.pop(job, None)
        self._of_nodes.pop(job, None)
        self.services.drop_pending(job)

    def set_nodes(self, until_s: Mapping[NodeRef, float]) -> None:
        """Replaces the nodes that all jobs keep away from.

        Args:
            until_s: Until when.
        """
        self._until_s = dict(until_s)

    def nodes(self, now_s: float) -> Mapping[NodeRef, float]:
        """Returns until when all jobs keep away from nodes, as far as they do now."""
        return {at: until_s for at, until_s in self._until_s.items() if until_s > now_s}

    def jobs(self, now_s: float) -> Iterator[AvoidingJob]:
        """Yields the jobs that keep away from nodes; those of which that is over once more, and then never again."""
        for job in list(self._of_nodes.values()):
            avoided = tuple(sorted((one for one in job.avoid_nodes if one.until_s > now_s), key=lambda one: one.at))
            if not avoided:
                del self._of_nodes[job.job]
            yield AvoidingJob(
                job=job,
                avoided=avoided,
                avoids=tuple(one.at for one in avoided),
                shuns=tuple(one.at for one in avoided if one.again_s > now_s),
            )
