"""What becomes of nodes: closed, opened, by whom; and what rules and breakers of health may do. The controller's."""

from __future__ import annotations

from typing import TypeAlias, final

from mainspring.domain.ids import ClusterName, NodeName
from mainspring.domain.wire.events.marks import EventFacts, Renews, clause, event


@final
@event("node_closed", renews=Renews.HOLDS)
class NodeClosedEvent(EventFacts):
    """A node takes no more work.

    Args:
        closure: For what: "cordon", "drain" or "quarantine".
        by: "health", or somebody.
        rule: Of health, that found why; None for people.
        until_s: When it ends by itself, None for never.
    """

    cluster: ClusterName
    node: NodeName
    closure: str
    by: str
    reason: str
    rule: str | None = None
    until_s: float | None = None

    def __str__(self) -> str:
        return f"{self.closure} of node {self.node} of {self.cluster} by {self.by}{clause(': ', self.reason)}"


@final
@event("node_opened", renews=Renews.HOLDS)
class NodeOpenedEvent(EventFacts):
    """Something closes a node no more; another thing may."""

    cluster: ClusterName
    node: NodeName
    closure: str
    by: str
    reason: str

    def __str__(self) -> str:
        where = f"node {self.node} of {self.cluster}"
        return f"{self.closure} of {where} ended by {self.by}{clause(': ', self.reason)}"


@final
@event("node_repair_begun", renews=Renews.HOLDS)
class NodeRepairBegunEvent(EventFacts):
    """Something is done to a node in quarantine: a rung of the ladder of repairs, or a burn-in."""

    cluster: ClusterName
    node: NodeName
    step: str

    def __str__(self) -> str:
        return f"{self.step} of node {self.node} of {self.cluster} begins"


@final
@event("node_repair_ended", renews=Renews.HOLDS)
class NodeRepairEndedEvent(EventFacts):
    """What was done to a node in quarantine is over; `outcome` is "done", "failed" or "late"."""

    cluster: ClusterName
    node: NodeName
    step: str
    outcome: str
    words: str

    def __str__(self) -> str:
        return f"{self.step} of node {self.node} of {self.cluster} is {self.outcome}{clause(': ', self.words)}"


@final
@event("maintenance_announced", renews=Renews.HOLDS)
class MaintenanceAnnouncedEvent(EventFacts):
    """Nodes will not be there for work for a while."""

    cluster: ClusterName
    number: int
    from_s: float
    until_s: float
    by: str
    reason: str

    def __str__(self) -> str:
        return f"maintenance {self.number} of {self.cluster} is announced by {self.by}{clause(': ', self.reason)}"


@final
@event("maintenance_withdrawn", renews=Renews.HOLDS)
class MaintenanceWithdrawnEvent(EventFacts):
    """Maintenance that was announced will not be."""

    cluster: ClusterName
    number: int
    by: str
    reason: str

    def __str__(self) -> str:
        return f"maintenance {self.number} of {self.cluster} is withdrawn by {self.by}{clause(': ', self.reason)}"


@final
@event("health_rule_promoted")
class HealthRulePromotedEvent(EventFacts):
    """Nodes are closed for what a rule of health finds."""

    rule: str
    by: str
    reason: str

    def __str__(self) -> str:
        return f"rule {self.rule} acts, says {self.by}{clause(': ', self.reason)}"


@final
@event("health_rule_demoted")
class HealthRuleDemotedEvent(EventFacts):
    """What a rule of health finds is told, and nothing follows."""

    rule: str
    by: str
    reason: str

    def __str__(self) -> str:
        return f"rule {self.rule} is in shadow, says {self.by}{clause(': ', self.reason)}"


@final
@event("breaker_opened")
class BreakerOpenedEvent(EventFacts):
    """Health closes and opens nothing more of a cluster."""

    cluster: ClusterName
    reason: str

    def __str__(self) -> str:
        return f"the breaker of {self.cluster} opened: {self.reason}"


@final
@event("breaker_reset")
class BreakerResetEvent(EventFacts):
    """Health may close and open nodes of a cluster again."""

    cluster: ClusterName
    by: str
    reason: str

    def __str__(self) -> str:
        return f"the breaker of {self.cluster} was reset by {self.by}{clause(': ', self.reason)}"


OfNodes: TypeAlias = (
    NodeClosedEvent
    | NodeOpenedEvent
    | NodeRepairBegunEvent
    | NodeRepairEndedEvent
    | MaintenanceAnnouncedEvent
    | MaintenanceWithdrawnEvent
    | HealthRulePromotedEvent
    | HealthRuleDemotedEvent
    | BreakerOpenedEvent
    | BreakerResetEvent
)
