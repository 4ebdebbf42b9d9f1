"""Those who watch the nodes of a world, in some of them: they tell of faults, right or wrong, promote rules, and others
cordon nodes beside them; and they let go of it all at last.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import final

from mainspring.control import Control
from mainspring.control.health.rules import RULES
from mainspring.domain.answers import Reason
from mainspring.domain.errors import MainspringError
from mainspring.domain.fleet import NodeRef
from mainspring.domain.hardware.health import HealthEvent, HealthSource, HealthState, Repair, Scope, ScopeKind, Strategy
from mainspring.domain.ids import ClusterName
from mainspring.domain.wire import HealthBatch
from mainspring.simulator.nodes.agenda import chance, pick
from mainspring.simulator.proof.cluster import SimulatedCluster
from mainspring.testing import SeededDice

STRANGER = "stranger"  # Who cordons nodes and asks nobody here.
_WATCHED = 0.15  # Of all worlds: where nodes are closed all the time little else happens.
_TELLS, _CORDONS, _PROMOTES = 0.3, 0.05, 0.1  # How often, each step.
_CHECKS = ("xid", "disk", "fan")
_FAILED = tuple(rule.name for rule in RULES if rule.state is HealthState.FAILED)


@final
class NodeWatchers:
    """The watchers of one world."""

    def __init__(self, seed: int) -> None:
        self._dice = SeededDice(seed, "watching")
        self.there = chance(self._dice, _WATCHED)
        self.promoted: dict[str, None] = {}
        """Rules that anybody ever let act."""
        self.cordoned: dict[NodeRef, None] = {}
        """Nodes that strangers keep cordoned."""
        self._told: dict[tuple[NodeRef, str], None] = {}
        self._count = 0
        self._over = False

    def step(self, control: Control, clusters: Mapping[ClusterName, SimulatedCluster]) -> str:
        """Tells, promotes or cordons something, or takes it back; returns what, in words, "" for nothing.

        Args:
            control: Any that lives.
        """
        if not self.there:
            return ""
        try:
            return self._step(control, clusters)
        except MainspringError as error:
            return f"watching is refused: {type(error).__name__}"

    def let_go(self, control: Control, clusters: Mapping[ClusterName, SimulatedCluster]) -> None:
        """Takes back all that was told, promoted and cordoned, and opens what is closed; tried until it is done."""
        if self.there and not self._over:
            with suppress(MainspringError):  # Who has just begun to lead knows no cluster yet.
                self._let_go(control, clusters)
                self._over = True

    def _let_go(self, control: Control, clusters: Mapping[ClusterName, SimulatedCluster]) -> None:
        for at, check in list(self._told):
            self._tell(control, at, check, healthy=True)
        for at in list(self.cordoned):
            self._uncordon(clusters, at)
        for rule in self.promoted:
            control.care.demote(rule, reason="it is over")
        for name in clusters:
            control.care.reset_breaker(name, reason="it is over")
        for one in control.care.closures():
            control.care.open(one.cluster, one.node, reason="it is over")

    def _step(self, control: Control, clusters: Mapping[ClusterName, SimulatedCluster]) -> str:
        dice = self._dice
        if chance(dice, _PROMOTES):
            rule = _FAILED[pick(dice, len(_FAILED))]
            if rule in self.promoted and chance(dice, 0.5):
                control.care.demote(rule, reason="wrong")
                return f"{rule} is demoted"
            self.promoted[rule] = None
            control.care.promote(rule, Reason(reason="right"))
            return f"{rule} is promoted"
        if chance(dice, _CORDONS):
            return self._cordon(clusters)
        if not chance(dice, _TELLS):
            return ""
        if self._told and chance(dice, 0.4):
            at, check = list(self._told)[pick(dice, len(self._told))]
            self._tell(control, at, check, healthy=True)
            return f"{check} of {at.node} of {at.cluster} is well"
        at, check = self._node(clusters), _CHECKS[pick(dice, len(_CHECKS))]
        self._tell(control, at, check, healthy=False)
        return f"{check} of {at.node} of {at.cluster} is told"

    def _cordon(self, clusters: Mapping[ClusterName, SimulatedCluster]) -> str:
        if self.cordoned and chance(self._dice, 0.5):
            at = list(self.cordoned)[pick(self._dice, len(self.cordoned))]
            self._uncordon(clusters, at)
            return f"a stranger opens {at.node} of {at.cluster}"
        at = self._node(clusters)
        clusters[at.cluster].inner.cordon(at.node, owner=STRANGER, reason="not ours to know")
        self.cordoned[at] = None
        return f"a stranger cordons {at.node} of {at.cluster}"

    def _uncordon(self, clusters: Mapping[ClusterName, SimulatedCluster], at: NodeRef) -> None:
        del self.cordoned[at]
        with suppress(MainspringError):
            clusters[at.cluster].inner.uncordon(at.node, owner=STRANGER)

    def _node(self, clusters: Mapping[ClusterName, SimulatedCluster]) -> NodeRef:
        own = [name for name, cluster in clusters.items() if not cluster.inner.inventory().delegated]
        name = (own or list(clusters))[pick(self._dice, len(own or clusters))]
        nodes = clusters[name].inner.inventory().nodes
        return NodeRef(cluster=name, node=nodes[pick(self._dice, len(nodes))].name)

    def _tell(self, control: Control, at: NodeRef, check: str, *, healthy: bool) -> None:
        self._count += 1
        event = HealthEvent(
            source=HealthSource(name="watcher", session="proof", sequence=self._count),
            at_s=control.clock.now_s(),
            scope=Scope(kind=ScopeKind.NODE, cluster=at.cluster, node=at.node),
            check=check,
            healthy=healthy,
            fatal=not healthy,
            repair=Repair.NONE if healthy else Repair.RESTART_NODE,
            strategy=Strategy.ACT,
        )
        control.care.tell(HealthBatch(events=(event,)))
        if healthy:
            self._told.pop((at, check), None)
        else:
            self._told[at, check] = None
