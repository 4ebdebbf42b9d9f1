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
    | HealthRulePromotedEvent
    | HealthRuleDemotedEvent
    | BreakerOpenedEvent
    | BreakerResetEvent
)
