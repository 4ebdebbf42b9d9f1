"""Health at work in a month of a fleet: the fold, rules and decisions that ship, and what a site makes of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import final

from mainspring.control.health.breaker import Breaker
from mainspring.control.health.nodes import HealthFold, NodeHealth
from mainspring.control.health.quarantines import Leaf, NodePlace, Quarantine, decide
from mainspring.control.health.rules import RULES, acting
from mainspring.domain.fleet import NodeRef
from mainspring.domain.hardware.health import HealthEvent, Repair
from mainspring.domain.ids import ClusterName
from mainspring.simulator.health.faults import Fault, FaultKind, FaultModel
from mainspring.simulator.health.operation import Operation, noticed
from mainspring.simulator.health.watchers import CLUSTER, at, told, well

ACTING = ("reset-in-vain", "fatal", "flapping-link", "slow")
LEMONS = frozenset(("lemon", "reset-in-vain"))  # Either says that a node fails again and again.
RECENT_S = 3_600.0  # A node that is closed within so long of a fault is not closed for nothing.
RESET_S = 1_800.0  # Until somebody has looked at an open breaker.
FORGET_S = 86_400.0


@dataclass(slots=True)
class HealthRecord:
    """What came of it.

    Args:
        begun_s: When each fault began that did anything, or looked as if it had, by its number.
        seen_s: How long after that it was in the fold.
        lemons: When each node was found to fail again and again.
        replaced: When people repaired each node first, or replaced it: nothing is wrong with it from then on.
        closings: How many nodes were closed; `false_closings` of them for nothing.
        breakers_opened: How often too much was to be closed at once.
    """

    begun_s: dict[int, float] = field(default_factory=dict)
    seen_s: dict[int, float] = field(default_factory=dict)
    lemons: dict[int, float] = field(default_factory=dict)
    replaced: dict[int, float] = field(default_factory=dict)
    closings: int = 0
    false_closings: int = 0
    breakers_opened: int = 0


@final
class HealthAtWork:
    """Watches a fleet: closes nodes, has them started anew or repaired, opens them again.

    A site's people repair what rules ask people for, look at lemons as soon as they would at any fault, and reset
    breakers.
    """

    def __init__(self, model: FaultModel) -> None:
        self._fold = HealthFold(acting(RULES, ACTING), self._mates)
        self._model = model
        self._places: Mapping[NodeRef, NodePlace] = {
            at(row): NodePlace(
                leaf=f"leaf-{row // model.leaf_nodes}", leaf_nodes=model.leaf_nodes, cluster_nodes=model.nodes
            )
            for row in range(model.nodes)
        }
        self._rows = {at(row): row for row in range(model.nodes)}
        self._healths: dict[NodeRef, NodeHealth] = {}
        self._closed: Mapping[NodeRef, Quarantine] = {}
        self._breakers: Mapping[ClusterName, Breaker] = {}
        self._fabrics: Mapping[Leaf, float] = {}
        self._standing: dict[int, list[HealthEvent]] = {}
        self._well = 0
        self._forgot_s = 0.0
        self._last_s: dict[int, float] = {}
        self.record = HealthRecord()

    # ---------------------------------------------------------------- what it hears

    def begun(self, fault: Fault, operation: Operation) -> None:
        """Hears of a fault, as far as watchers do."""
        leaf = range(fault.row, fault.row + self._model.leaf_nodes) if fault.kind is FaultKind.SWITCH else [fault.row]
        if fault.kind is not FaultKind.ALARM:
            self._last_s |= dict.fromkeys(leaf, operation.now_s)
        self.record.begun_s[fault.number] = operation.now_s
        dice = operation.dice(fault)
        noticed_s = noticed(fault, self._model, dice)
        for one in told(fault, self._model, operation.now_s, dice):
            operation.later(one.after_s, self._hear, fault, one.event, operation)
        if noticed_s is not None:
            operation.later(noticed_s, self._people_see, fault, operation)

    def well(self, row: int, operation: Operation) -> None:
        """Hears that all is well: watchers take back what they said."""
        for event in self._standing.pop(row, []):
            self._well += 1
            self._fold.add(well(event, self._well, operation.now_s))
        self._look([row], operation)

    def _mates(self, node: NodeRef) -> Collection[NodeRef]:
        leaf = self._rows[node] // self._model.leaf_nodes * self._model.leaf_nodes
        return [at(row) for row in range(leaf, min(leaf + self._model.leaf_nodes, self._model.nodes))]

    def _hear(self, fault: Fault, event: HealthEvent, operation: Operation) -> None:
        row = self._rows[NodeRef(cluster=CLUSTER, node=event.scope.node)]
        self.record.seen_s.setdefault(fault.number, operation.now_s - self.record.begun_s[fault.number])
        self._fold.add(event)
        transient_link = fault.kind is FaultKind.LINK and fault.times == 1 and not fault.stays
        if transient_link:  # It is up again by itself.
            operation.later(60.0, self.well, row, operation)
        self._standing.setdefault(row, []).append(event)
        self._look([row], operation)

    def _people_see(self, fault: Fault, operation: Operation) -> None:
        """What no rule has found people see as they would without health."""
        if not operation.is_ill(fault.row):
            return
        if at(fault.row) in self._closed:
            operation.later(RECENT_S, self._people_see, fault, operation)
        else:
            self._by_people(fault.row, operation)

    # ---------------------------------------------------------------- what it does

    def _look(self, rows: Collection[int], operation: Operation) -> None:
        now_s = operation.now_s
        if now_s - self._forgot_s > FORGET_S:
            self._fold.forget(now_s)
            self._forgot_s = now_s
        for row in rows:
            health = self._fold.of(at(row), now_s)
            self._healths[health.at] = health
            if row not in self.record.lemons and LEMONS & {each.rule for each in health.findings}:
                self.record.lemons[row] = now_s
                operation.later(self._model.noticed_s, self._look_at_lemon, row, operation)
        known = [self._fold.of(one, now_s) for one in {*self._healths, *self._closed}]
        self._healths = {each.at: each for each in known if each.findings}
        was_open = self._breaker_open
        decided = decide(known, self._places, self._closed, self._breakers, now_s, self._fabrics)
        self._closed, self._breakers, self._fabrics = decided.closed, decided.breakers, decided.fabrics
        if self._breaker_open and not was_open:
            self.record.breakers_opened += 1
            operation.later(RESET_S, self._reset, operation)
        self._close(decided.close, operation)
        for one in decided.reopen:
            operation.open(self._rows[one])

    @property
    def _breaker_open(self) -> bool:
        return any(each.is_open for each in self._breakers.values())

    def _reset(self, operation: Operation) -> None:
        self._breakers = {}
        self._look([], operation)

    def _close(self, quarantines: Iterable[Quarantine], operation: Operation) -> None:
        for quarantine in quarantines:
            row = self._rows[quarantine.at]
            recent = operation.now_s - self._last_s.get(row, -RECENT_S) < RECENT_S
            self.record.closings += 1
            self.record.false_closings += not (recent or operation.is_ill(row) or operation.is_lemon(row))
            operation.close(row)
            if quarantine.repair is Repair.CALL_PEOPLE:
                operation.repair(row, self._repaired)
            else:
                operation.restart(row, self._restarted)

    def _restarted(self, row: int, operation: Operation) -> None:
        """What starting it anew did not cure, or rules do not believe cured, is for people."""
        if at(row) in self._closed:
            operation.repair(row, self._repaired)

    def _repaired(self, row: int, operation: Operation) -> None:
        """People open what they repaired."""
        self.record.replaced.setdefault(row, operation.now_s)
        self._fold.clear(at(row), operation.now_s)
        self._look([row], operation)
        operation.open(row)

    def _look_at_lemon(self, row: int, operation: Operation) -> None:
        if operation.is_lemon(row) and at(row) not in self._closed:
            self._by_people(row, operation)

    def _by_people(self, row: int, operation: Operation) -> None:
        operation.close(row)
        operation.repair(row, self._repaired)
