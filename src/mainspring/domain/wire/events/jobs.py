"""What happens to jobs, told by the controller and by replays."""

from __future__ import annotations

from typing import TypeAlias, final

from mainspring.domain.ids import ClusterName, JobId, NodeName, RoleName, TeamName
from mainspring.domain.job import Tier
from mainspring.domain.life import JobState
from mainspring.domain.wire.events.marks import EventFacts, Renews, clause, event


@final
@event("job_submitted", renews=Renews.JOB)
class JobSubmittedEvent(EventFacts):
    """A job was submitted; a replay tells what it asks for too, its roles as JSON, ids with spaces between.

    `traceparent` is the span that it was submitted under.
    """

    name: str
    team: TeamName
    tier: Tier | None = None
    duration_s: float | None = None
    attempts_max: int | None = None
    roles: str | None = None
    after: str | None = None
    inputs: str | None = None
    traceparent: str | None = None

    def __str__(self) -> str:
        return f"submitted for team {self.team}"


@final
@event("job_moved", renews=Renews.JOB, passes_on=True)
class JobMovedEvent(EventFacts):
    """A job's state changed."""

    before: JobState
    after: JobState
    reason: str

    def __str__(self) -> str:
        return f"{self.before.value} -> {self.after.value}{clause(': ', self.reason)}"


@final
@event("stop_requested", accounted=True)
class StopRequestedEvent(EventFacts):
    """A stop was asked for: by a person, or by a plan that needs the room for another job."""

    by: str
    for_job: JobId | None = None
    limit: str | None = None

    def __str__(self) -> str:
        return f"asked to stop by {self.by}{clause(', for ', self.for_job)}"


@final
@event("move_wanted")
class MoveWantedEvent(EventFacts):
    """The job waits until some data lies where it is to run."""

    what: str
    source: str
    target: str
    size_bytes: int

    def __str__(self) -> str:
        return f"{self.what} is to be brought from {self.source} to {self.target}"


@final
@event("provision_wanted")
class ProvisionWantedEvent(EventFacts):
    """The job waits for nodes that one could order."""

    cluster: ClusterName
    offer: str
    nodes: int
    reason: str

    def __str__(self) -> str:
        return f"{self.nodes} nodes of {self.offer} on {self.cluster} are wanted: {self.reason}"


@final
@event("nodes_ordered", notable=True)
class NodesOrderedEvent(EventFacts):
    """The cluster was asked for the nodes that the job waits for.

    Args:
        lead_time_s: How long they usually take to come.
    """

    cluster: ClusterName
    offer: str
    nodes: int
    lead_time_s: float

    def __str__(self) -> str:
        return (
            f"{self.nodes} nodes of {self.offer} on {self.cluster} are ordered; they come in {self.lead_time_s:.0f} s"
        )


@final
@event("nodes_refused", notable=True)
class NodesRefusedEvent(EventFacts):
    """Nodes for the job will not come: the cluster did not take the order, or did not meet it."""

    cluster: ClusterName
    offer: str
    nodes: int
    reason: str

    def __str__(self) -> str:
        return f"{self.nodes} nodes of {self.offer} on {self.cluster} do not come{clause(': ', self.reason)}"


@final
@event("start_promised")
class StartPromisedEvent(EventFacts):
    """A plan holds room for the job from some time on, from another than it did, or no longer, while it waits.

    Args:
        start_s: Seconds since the Unix epoch, None for no time any more.
        before_s: What was promised before, None for nothing.
    """

    start_s: float | None
    before_s: float | None = None

    def __str__(self) -> str:
        if self.start_s is None:
            return "room is no longer held for it"
        if self.before_s is None:
            return "room is held for it"
        moved_s = self.start_s - self.before_s
        return f"room is held for it {abs(moved_s):.0f} s {'later' if moved_s > 0 else 'earlier'} than before"


@final
@event("job_paused", renews=Renews.JOB)
class JobPausedEvent(EventFacts):
    """Somebody keeps the job from running: an attempt that runs ends, saved, and none starts."""

    by: str
    reason: str

    def __str__(self) -> str:
        return f"paused by {self.by}{clause(': ', self.reason)}"


@final
@event("job_resumed", renews=Renews.JOB)
class JobResumedEvent(EventFacts):
    """The job may run again; its time in line is what it was."""

    by: str

    def __str__(self) -> str:
        return f"resumed by {self.by}"


@final
@event("stacks_asked")
class StacksAskedEvent(EventFacts):
    """Somebody asked where the ranks of a job stand."""

    by: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.by} asked where its ranks stand{clause(': ', self.reason)}"


@final
@event("job_ranked", renews=Renews.JOB)
class JobRankedEvent(EventFacts):
    """The job's tier, or its place among its team's, is another.

    Args:
        tier: What it is now, None for what its spec says.
        since_s: From when on it counts as waiting; None for when it was submitted.
    """

    by: str
    tier: Tier | None = None
    since_s: float | None = None
    reason: str = ""

    def __str__(self) -> str:
        tier = "the tier it was submitted with" if self.tier is None else f"tier {self.tier.value}"
        place = "its own place in line" if self.since_s is None else "another place in line"
        return f"{tier} and {place}, says {self.by}{clause(': ', self.reason)}"


@final
@event("job_resized", renews=Renews.JOB)
class JobResizedEvent(EventFacts):
    """A role of the job is to have another number of replicas."""

    by: str
    role: RoleName
    least: int
    most: int
    reason: str

    def __str__(self) -> str:
        size = f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"
        return f"{self.role} is to have {size} replicas, says {self.by}{clause(': ', self.reason)}"


@final
@event("notice_undelivered", notable=True)
class NoticeUndeliveredEvent(EventFacts):
    """The job's team could not be told of it, and will not be any more; `notices` counts what it would have been."""

    team: TeamName
    host: str
    reason: str
    notices: int = 1

    def __str__(self) -> str:
        place = f" at {self.host}" if self.host else ""
        return f"team {self.team} could not be told of it{place}{clause(': ', self.reason)}"


@final
@event("hold_placed", renews=Renews.HOLDS)
class HoldPlacedEvent(EventFacts):
    """Somebody keeps what is of a team, a cluster or a node from starting; with `drain` what runs there ends too."""

    by: str
    reason: str
    drain: bool
    team: TeamName | None = None
    cluster: ClusterName | None = None
    node: NodeName | None = None

    def __str__(self) -> str:
        drained = " and drained" if self.drain and not self.node else ""
        done = "drained" if self.node else f"paused{drained}"
        return f"{_held(self.team, self.cluster, self.node)} {done} by {self.by}{clause(': ', self.reason)}"


@final
@event("hold_released", renews=Renews.HOLDS)
class HoldReleasedEvent(EventFacts):
    """What is of a team, a cluster or a node may start again."""

    by: str
    team: TeamName | None = None
    cluster: ClusterName | None = None
    node: NodeName | None = None

    def __str__(self) -> str:
        return f"{_held(self.team, self.cluster, self.node)} resumed by {self.by}"


def _held(team: TeamName | None, cluster: ClusterName | None, node: NodeName | None) -> str:
    if node:
        return f"node {node} of {cluster}"
    return f"team {team}" if team else f"cluster {cluster}"


@final
@event("evaluation_started")
class EvaluationStartedEvent(EventFacts):
    """A rule has a checkpoint of the job evaluated, by the job `by`."""

    rule: str
    step: int
    by: JobId

    def __str__(self) -> str:
        return f"step {self.step} is evaluated by {self.by}, as rule {self.rule} says"


@final
@event("evaluation_dropped")
class EvaluationDroppedEvent(EventFacts):
    """An evaluation that waited gave way to that of a newer checkpoint."""

    rule: str
    step: int
    by: JobId
    newer: int

    def __str__(self) -> str:
        return f"step {self.step} is not evaluated by {self.by}: step {self.newer} came first, as rule {self.rule} says"


@final
@event("evaluation_refused", notable=True)
class EvaluationRefusedEvent(EventFacts):
    """A rule could not have a checkpoint evaluated."""

    rule: str
    step: int
    reason: str

    def __str__(self) -> str:
        return f"rule {self.rule} cannot have step {self.step} evaluated: {self.reason}"


@final
@event("service_changed", notable=True)
class ServiceChangedEvent(EventFacts):
    """A service is wanted otherwise than before, by somebody or by itself: its version, its size, its end."""

    service: str
    change: str
    by: str | None = None

    def __str__(self) -> str:
        return f"service {self.service}: {self.change}{clause(', by ', self.by)}"


OfJobs: TypeAlias = (
    JobSubmittedEvent
    | JobMovedEvent
    | StopRequestedEvent
    | MoveWantedEvent
    | ProvisionWantedEvent
    | NodesOrderedEvent
    | NodesRefusedEvent
    | StartPromisedEvent
    | JobPausedEvent
    | JobResumedEvent
    | StacksAskedEvent
    | JobRankedEvent
    | JobResizedEvent
    | NoticeUndeliveredEvent
    | HoldPlacedEvent
    | HoldReleasedEvent
    | EvaluationStartedEvent
    | EvaluationDroppedEvent
    | EvaluationRefusedEvent
    | ServiceChangedEvent
)
