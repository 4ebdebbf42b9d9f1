"""Calls about nodes: how they are, what is seen of them, what closes and opens them, what rules of health may do."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from typing import Annotated

from mainspring.domain import answers, wire
from mainspring.domain.answers.steering import REASON_MAX
from mainspring.domain.codec import WHOLE_MAX
from mainspring.domain.routes.routing import Query, route
from mainspring.domain.team import Right

LIST_MAX = 1_000  # Entries of one answer.
Limit = Annotated[int, Query(ge=1, le=LIST_MAX)]
Named = Annotated[str | None, Query(max_length=63)]
Before = Annotated[int | None, Query(ge=1, le=WHOLE_MAX)]
Why = Annotated[str, Query(max_length=REASON_MAX)]


class NodeCalls:
    """What people and programs ask and say of nodes; see `LabCalls`."""

    @route("GET", "/fleet/map", handler="questions.fleet_map")
    def fleet_map(self) -> tuple[answers.ClusterMap, ...]:
        """Shows every cluster rack by rack, a letter a node, with how many chips could work and how many do: what pages
        draw, a fiftieth of what `/v1/clusters` tells.
        """

    @route("GET", "/clusters/{cluster}/nodes", handler="questions.nodes", operation="list_nodes")
    def nodes(
        self, cluster: str, *, within: Named = None, after: Named = None, limit: Limit = LIST_MAX
    ) -> tuple[answers.NodeView, ...]:
        """Lists the nodes of a cluster, or its slots, in order of name.

        Args:
            cluster: The cluster.
            within: Only those in a domain of this name: a rack, a block.
            after: Name of the last one seen: the list goes on after it.
            limit: At most so many.
        """

    @route("GET", "/clusters/{cluster}/nodes/{node}", handler="care.node", operation="show_node")
    def node(self, cluster: str, node: str) -> answers.NodeView:
        """Shows one node, how it is, and what keeps it closed."""

    @route("GET", "/clusters/{cluster}/nodes/{node}/history", handler="care.history")
    def node_history(self, cluster: str, node: str, *, limit: Limit = 100) -> tuple[answers.NodeChange, ...]:
        """Lists what changed of a node, newest first: what its cluster said of it, and who closed and opened it.

        Args:
            cluster: The cluster.
            node: The node.
            limit: At most so many.
        """

    @route("GET", "/promises", handler="questions.promises", operation="list_promises", patient=True)
    def promises(self) -> tuple[answers.PromiseView, ...]:
        """Lists what became of the lab's promises, day by day, as far as events tell."""

    @route("PUT", "/clusters/{cluster}/nodes/{node}/closure", may=Right.HOLD_FLEET, handler="care.close")
    def close_node(self, cluster: str, node: str, body: answers.NewClosure) -> answers.NodeClosure:
        """Closes a node to new work, here and in its cluster; drained and in quarantine, what runs there ends, saved,
        and is placed elsewhere.
        """

    @route(
        "DELETE", "/clusters/{cluster}/nodes/{node}/closure", may=Right.HOLD_FLEET, handler="care.open", repeats=True
    )
    def open_node(
        self, cluster: str, node: str, *, kind: answers.ClosureKind | None = None, reason: Why = ""
    ) -> tuple[answers.NodeClosure, ...]:
        """Opens a node again that people or health closed, and lists what it was closed by; a cordon of others stays.

        Args:
            cluster: The cluster.
            node: The node.
            kind: Only what closed it as this; all, when left out.
            reason: Why, for people; none is refused. What was seen of the node until now is held against it no more.
        """

    @route("GET", "/closures", handler="care.closures", operation="list_closures")
    def closures(
        self, *, cluster: Named = None, past: bool = False, before: Before = None, limit: Limit = LIST_MAX
    ) -> tuple[answers.NodeClosure, ...]:
        """Lists the nodes that people or health keep closed, newest first.

        Args:
            cluster: Only of this cluster.
            past: Also those that are open again.
            before: Number of the last one seen: the list goes on after it, to the first one.
            limit: At most so many.
        """

    @route("GET", "/maintenance", handler="care.announcing.windows", operation="list_maintenance")
    def maintenance(self, *, cluster: Named = None, past: bool = False) -> tuple[answers.MaintenanceWindow, ...]:
        """Lists windows of maintenance that people announced, in order of when they begin.

        Args:
            cluster: Only of this cluster.
            past: Also those that are over.
        """

    @route("POST", "/clusters/{cluster}/maintenance", may=Right.HOLD_FLEET, handler="care.announcing.announce")
    def announce_maintenance(self, cluster: str, body: answers.NewMaintenance) -> answers.MaintenanceWindow:
        """Announces that nodes will not be there for work for a while: what runs there ends before, saved, and goes
        elsewhere, and nothing starts there that would not be over.
        """

    @route("DELETE", "/maintenance/{number}", may=Right.HOLD_FLEET, handler="care.announcing.withdraw", repeats=True)
    def withdraw_maintenance(self, number: str, *, reason: Why = "") -> answers.MaintenanceWindow:
        """Withdraws maintenance that was announced, and returns it.

        Args:
            number: Its number.
            reason: Why, for people; none is refused.
        """

    @route("POST", "/health/events", may=None, handler="care.tell", repeats=True)
    def tell_health(self, body: wire.HealthBatch) -> wire.HealthTaken:
        """Takes what was seen of machines: by the agents of an attempt of its own nodes, by watchers and operators of
        any; what was said before is known again, so that a call may be repeated.
        """

    @route("GET", "/health/events", handler="care.events", operation="list_health_events")
    def health_events(
        self, *, cluster: Named = None, node: Named = None, before: Before = None, limit: Limit = 100
    ) -> tuple[answers.HealthEventView, ...]:
        """Lists what was seen of machines, newest first.

        Args:
            cluster: Only of this cluster.
            node: Only of this node of it.
            before: Number of the last one seen: the list goes on after it.
            limit: At most so many.
        """

    @route("GET", "/health/rules", handler="care.rules", operation="list_health_rules")
    def health_rules(self) -> tuple[answers.HealthRuleView, ...]:
        """Lists the rules of health in their order, whether they act, and the nodes for which they hold."""

    @route("PUT", "/health/rules/{rule}/act", may=Right.RULE_HEALTH, handler="care.promote")
    def promote_rule(self, rule: str, body: answers.Reason) -> answers.HealthRuleView:
        """Lets a rule act: nodes that it finds to have failed are closed."""

    @route("DELETE", "/health/rules/{rule}/act", may=Right.RULE_HEALTH, handler="care.demote", repeats=True)
    def demote_rule(self, rule: str, *, reason: Why = "") -> answers.HealthRuleView:
        """Puts a rule back into shadow: what it finds is told, and nothing follows; nodes closed for it are opened.

        Args:
            rule: Its name.
            reason: Why, for people; none is refused.
        """

    @route("PUT", "/health/rules/{rule}/cases/{cluster}/{node}", may=Right.RULE_HEALTH, handler="care.judging.judge")
    def judge_rule(self, rule: str, cluster: str, node: str, body: answers.NewVerdict) -> answers.RuleMeasured:
        """Says whether a rule was right the last time that it held for a node; answers how often it was."""

    @route("GET", "/health/incidents", handler="care.incidents", operation="list_incidents")
    def incidents(self, *, cluster: Named = None) -> tuple[answers.Incident, ...]:
        """Lists what is wrong with nodes now, what is wrong with many for one reason once.

        Args:
            cluster: Only of this cluster.
        """

    @route("GET", "/health/spares", handler="care.spares.wanted", operation="list_spares")
    def health_spares(self, *, cluster: Named = None) -> tuple[answers.SparesView, ...]:
        """Lists how many spare nodes each cluster and each of its blocks wants, by what it lost, and their price.

        Args:
            cluster: Only of this cluster.
        """

    @route("DELETE", "/clusters/{cluster}/breaker", may=Right.RULE_HEALTH, handler="care.reset_breaker", repeats=True)
    def reset_breaker(self, cluster: str, *, reason: Why = "") -> tuple[answers.Incident, ...]:
        """Resets the breaker of a cluster, so that rules may close nodes there again, and lists its incidents.

        Args:
            cluster: The cluster.
            reason: Why, for people; none is refused.
        """
