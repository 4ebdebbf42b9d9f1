"""What happens to attempts and allocations, told by the controller and by replays."""

from __future__ import annotations

from typing import TypeAlias, final

from mainspring.domain.ids import AllocationId, ClusterName, JobId, NodeName, RoleName
from mainspring.domain.life import AttemptState
from mainspring.domain.wire.events.marks import EventFacts, Renews, clause, counted, event, ordinal


@final
@event("attempt_granted", renews=Renews.ATTEMPT, accounted=True)
class AttemptGrantedEvent(EventFacts):
    """An attempt was granted; `step` is the furthest of earlier attempts, -1 for none."""

    cluster: ClusterName
    nodes: int
    plan: int
    number: int
    step: int = -1

    def __str__(self) -> str:
        return f"attempt {self.number} is granted {counted(self.nodes, 'node')} of {self.cluster} by plan {self.plan}"


@final
@event("attempt_resized", renews=Renews.ATTEMPT, notable=True)
class AttemptResizedEvent(EventFacts):
    """A role of an attempt that goes on has another size; `for_job` is who gets what it gives up."""

    role: RoleName
    replicas: int
    reason: str
    for_job: JobId | None = None

    def __str__(self) -> str:
        return f"goes on with {self.replicas} replicas of {self.role}: {self.reason}{clause(', for ', self.for_job)}"


@final
@event("attempt_stopping", renews=Renews.ATTEMPT, passes_on=True)
class AttemptStoppingEvent(EventFacts):
    """An attempt was asked to end; `cause` is a `StopCause`, `node` the one where an agent of it ended, if one did."""

    cause: str
    reason: str
    node: NodeName | None = None

    def __str__(self) -> str:
        return f"the attempt is asked to end{clause(': ', self.reason)}"


@final
@event("attempt_ended", renews=Renews.ATTEMPT, accounted=True, passes_on=True)
class AttemptEndedEvent(EventFacts):
    """An attempt gave back all it held."""

    outcome: AttemptState
    reason: str

    def __str__(self) -> str:
        return f"the attempt is over: {self.outcome.value}{clause(', ', self.reason)}"


@final
@event("allocation_queued", renews=Renews.ATTEMPT)
class AllocationQueuedEvent(EventFacts):
    """An allocation waits in its cluster's own queue."""

    allocation: AllocationId
    cluster: ClusterName
    reason: str

    def __str__(self) -> str:
        return f"waits in the queue of {self.cluster} itself: {self.reason}"


@final
@event("allocation_placed", renews=Renews.ATTEMPT)
class AllocationPlacedEvent(EventFacts):
    """An allocation has left its cluster's own queue."""

    allocation: AllocationId

    def __str__(self) -> str:
        return f"{self.allocation} has left the queue of its cluster"


@final
@event("allocation_taken", renews=Renews.ATTEMPT, notable=True)
class AllocationTakenEvent(EventFacts):
    """A cluster took an allocation back."""

    allocation: AllocationId
    cluster: ClusterName
    reason: str

    def __str__(self) -> str:
        return f"{self.allocation} is over: {self.reason}"


@final
@event("lead_named", notable=True)
class LeadNamedEvent(EventFacts):
    """Another agent leads an attempt from now on."""

    epoch: int
    agent: int
    reason: str

    def __str__(self) -> str:
        return f"agent {self.agent} leads from now on, the {ordinal(self.epoch)} to: {self.reason}"


@final
@event("node_blamed", renews=Renews.NODE, notable=True)
class NodeBlamedEvent(EventFacts):
    """An attempt's end is evidence against a node; `again` tells whether its job is tried again."""

    cluster: ClusterName
    node: NodeName
    outcome: AttemptState
    reason: str
    again: bool

    def __str__(self) -> str:
        return f"this is held against {self.node} of {self.cluster}{clause(': ', self.reason)}"


@final
@event("node_cleared", renews=Renews.NODE)
class NodeClearedEvent(EventFacts):
    """An attempt ended well on a node against which there is evidence."""

    cluster: ClusterName
    node: NodeName

    def __str__(self) -> str:
        return f"this speaks for {self.node} of {self.cluster}, where others were lost"


OfAttempts: TypeAlias = (
    AttemptGrantedEvent
    | AttemptResizedEvent
    | AttemptStoppingEvent
    | AttemptEndedEvent
    | AllocationQueuedEvent
    | AllocationPlacedEvent
    | AllocationTakenEvent
    | LeadNamedEvent
    | NodeBlamedEvent
    | NodeClearedEvent
)
