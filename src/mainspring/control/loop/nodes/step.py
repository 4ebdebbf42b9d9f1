"""The loop's step for health: what was seen comes into the fold, and what `decide` says of it is written.

What was seen is read from the store as it was told, the fold is made anew by every leader, and nothing is decided until
all of it has been read. What somebody opened is not closed for what was seen before.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from typing import final

import sqlalchemy as sa

from mainspring.control.health.breaker import Breaker
from mainspring.control.health.nodes import EVENTS_MAX, REMEMBERED_S, HealthFold, NodeHealth
from mainspring.control.health.quarantines import OWNER, Decided, Leaf, NodePlace, Quarantine, decide
from mainspring.control.health.rules import RULES, Finding, acting
from mainspring.control.loop.nodes.known import OwnKnowledge
from mainspring.control.loop.nodes.signs import ClusterSigns
from mainspring.control.state.fleet import FleetView
from mainspring.control.store.ledger import StateWriter
from mainspring.control.store.nodes.cases import Case, change_cases
from mainspring.control.store.nodes.closures import (
    NEW,
    NOBODY,
    add_closure,
    change_closures,
    open_closures,
    released_s,
)
from mainspring.control.store.nodes.samples import FreshSamples, newest_sample, samples, told_nodes
from mainspring.control.store.nodes.settings import breaker_texts, healths, promotions, write_breaker, write_healths
from mainspring.control.store.rows import read_text, text_of
from mainspring.domain.answers import ClosureKind, HealthFinding, NodeClosure, NodeHealthView
from mainspring.domain.fleet import NodeRef
from mainspring.domain.hardware.care import CareRules
from mainspring.domain.hardware.health import HealthEvent
from mainspring.domain.ids import ClusterName
from mainspring.domain.wire.events.nodes import BreakerOpenedEvent, NodeClosedEvent, NodeOpenedEvent

READ_MAX = 20_000  # Events of one tick: half a second's work.
JUDGED_MAX = 40_000  # Events looked at in one tick, for all nodes that are judged: a tenth of a second's work.
AGAIN_S = 5.0  # Between two looks at a node of which something is found, and nothing new was told: windows pass.
FORGET_S = 3_600.0  # Between two looks at what no rule looks at any more.
EVIDENCE_KEPT = 16  # The newest events that are kept with a finding.
RENEWED_S = 3_600.0  # How much later a quarantine must end before that is written.
_log = logging.getLogger(__name__)


@final
class _Places:
    """Where nodes stand among the others, and whose links failed together."""

    def __init__(self, fleet: FleetView) -> None:
        self._fleet = fleet
        self.fabrics: Mapping[Leaf, float] = {}

    def now(self) -> Mapping[NodeRef, NodePlace]:
        return self._fleet.places()

    def mates(self, at: NodeRef) -> Collection[NodeRef]:
        index = self._fleet.indices().get(at.cluster)
        place = None if index is None else index.places.get(at.node)
        return () if index is None or place is None else index.by_leaf.get(place.leaf, ())


@final
class HealthStep:
    """The fold of one leader, and what it made of it.

    Args:
        fleet: What the engines said.
        rules: What the site says of the care of nodes.
        fresh: What this server was told just now.
    """

    def __init__(self, fleet: FleetView, rules: CareRules, fresh: FreshSamples) -> None:
        self._rules = rules
        self._fresh = fresh
        self._places = _Places(fleet)
        self._fold = HealthFold(mates_of=self._places.mates)
        self._known = (OwnKnowledge(), ClusterSigns(fleet))
        self._seen: int | None = None  # The last event in the fold.
        self._unread: list[NodeRef] = []  # Nodes of which nothing from before has been read yet.
        self._behind = True  # Whether anything from before has still to be read.
        self._promoted: frozenset[str] = frozenset()
        self._open: frozenset[int] = frozenset()  # Closures that stood at the last look.
        self._changed: dict[NodeRef, None] = {}  # Of which something new was told, longest ago first.
        self._urgent: dict[NodeRef, None] = {}  # Of which something fatal was.
        self._healths: dict[NodeRef, NodeHealth] = {}  # Of which something is found, or may be soon.
        self._views: dict[NodeRef, NodeHealthView] = {}  # As the store has them.
        self._looked_s = -inf

    def turn(self, *, leads: bool) -> None:
        """Learns that a tick begins, before anything is read for it, and whether this controller leads."""
        self._fresh.turn(leads=leads)

    def read(self, connection: sa.Connection, now_s: float) -> None:
        """Takes what was told since the last time into the fold; the first time, all that rules look back at.

        Args:
            connection: From `Store.read`.
        """
        if self._seen is None:
            self._seen = newest_sample(connection)
            self._unread = [*told_nodes(connection)]
            self._views = dict(healths(connection))
            self._changed = dict.fromkeys(self._views)
            self._learn_releases(connection, now_s)
        read = 0
        while self._unread and read < READ_MAX:  # Of each the newest alone: there may be millions.
            at = self._unread.pop()
            told = samples(connection, cluster=at.cluster, node=at.node, newest=True, limit=EVENTS_MAX)
            self._take(one.event for one in told if one.told_s > now_s - REMEMBERED_S)
            read += len(told)
        if not self._unread:
            read = self._read_new(connection)
        self._behind = self._behind and (bool(self._unread) or read == READ_MAX)

    def _read_new(self, connection: sa.Connection) -> int:
        assert self._seen is not None
        told = samples(connection, after=self._seen, limit=READ_MAX, fresh=self._fresh)
        self._take(one.event for one in told)
        self._seen = told[-1].number if told else self._seen
        if len(told) < READ_MAX:
            self._fresh.done()
        return len(told)

    def _take(self, events: Iterable[HealthEvent]) -> None:
        for event in events:
            if self._fold.add(event):
                at = NodeRef(cluster=event.scope.cluster, node=event.scope.node)
                self._changed[at] = None
                if event.fatal:
                    self._urgent[at] = None

    def write(self, connection: sa.Connection, now_s: float) -> None:
        """Writes what is known here of machines, what the fold says, and what follows from it.

        Args:
            connection: From `Store.write`, of the leader.
        """
        known, signs = self._known
        own = known.take(connection, now_s) + signs.take(connection, now_s)
        _end_over(connection, now_s)
        if self._behind:
            return
        if own:
            self._read_new(connection)  # Now, not a tick later.
        self._learn_rules(connection, now_s)
        standing = open_closures(connection)
        closed = {one.at: one for one in standing if one.owner == OWNER}
        if not self._open <= {one.number for one in standing}:
            self._learn_releases(connection, now_s)
        self._open = frozenset(one.number for one in standing)
        self._judge(connection, closed, now_s)
        breakers = {name: read_text(Breaker, text) for name, text in breaker_texts(connection).items()}
        healths = [self._healths.get(at) or self._fold.of(at, now_s) for at in dict.fromkeys([*self._healths, *closed])]
        quarantined = {at: _quarantine_of(one) for at, one in closed.items()}
        decided = decide(healths, self._places.now(), quarantined, breakers, now_s, self._places.fabrics, self._rules)
        self._places.fabrics = decided.fabrics
        _write(connection, decided, closed, breakers, now_s)

    def _learn_rules(self, connection: sa.Connection, now_s: float) -> None:
        promoted = frozenset(promotions(connection)) & {rule.name for rule in RULES}
        if promoted != self._promoted:
            self._promoted = promoted
            self._fold.judge_by(acting(RULES, promoted))
            self._changed |= dict.fromkeys(self._healths)
            self._healths = {at: self._fold.of(at, now_s) for at in self._healths}  # Nothing acts by rules of before.

    def _learn_releases(self, connection: sa.Connection, now_s: float) -> None:
        for at, opened_s in released_s(connection, now_s - REMEMBERED_S, OWNER).items():
            self._fold.clear(at, opened_s)
            self._healths.pop(at, None)
            self._changed[at] = None

    def _judge(self, connection: sa.Connection, closed: Iterable[NodeRef], now_s: float) -> None:
        """Learns how the nodes are of which something was told, and now and then where something is or may be found."""
        forgets = False
        if now_s - self._looked_s >= AGAIN_S or now_s < self._looked_s:
            self._changed |= dict.fromkeys([*self._healths, *closed])
            forgets = now_s // FORGET_S != self._looked_s // FORGET_S
            self._looked_s = now_s
        views: dict[NodeRef, NodeHealthView | None] = {}
        for at in self._due():
            health = self._fold.of(at, now_s)
            if health.findings or not health.settled:
                self._healths[at] = health
            else:
                self._healths.pop(at, None)
            known = self._views.get(at)
            view = _view(health, known, now_s) if self._fold.size(at) else None
            if view != known:
                views[at] = view
        write_healths(connection, views)
        before = {at: _rules_of(self._views.get(at)) for at in views}
        now = {at: _rules_of(view) for at, view in views.items()}
        change_cases(
            connection,
            [Case(rule=rule, at=at) for at in views for rule in now[at] if rule not in before[at]],
            [Case(rule=rule, at=at) for at in views for rule in before[at] if rule not in now[at]],
            now_s,
        )
        for at, view in views.items():
            if view is None:
                self._views.pop(at, None)
            else:
                self._views[at] = view
        if forgets:
            self._fold.forget(now_s)

    def _due(self) -> list[NodeRef]:
        """Returns the nodes to judge in this tick, as many as it has time for; the others are for the next."""
        due, work = list[NodeRef](), 0
        for at in dict.fromkeys([*self._urgent, *self._changed]):
            if work > JUDGED_MAX:
                break
            due.append(at)
            work += 1 + self._fold.size(at)
        for at in due:
            self._changed.pop(at, None)
            self._urgent.pop(at, None)
        return due


def _rules_of(view: NodeHealthView | None) -> Sequence[str]:
    return () if view is None else [one.rule for one in view.findings]


def _write(
    connection: sa.Connection,
    decided: Decided,
    closed: Mapping[NodeRef, NodeClosure],
    breakers: Mapping[ClusterName, Breaker],
    now_s: float,
) -> None:
    """Writes what was decided.

    Args:
        closed: What health kept closed until now.
        breakers: As they were.
    """
    ledger = StateWriter(connection, now_s)
    for quarantine in decided.close:
        _close(ledger, quarantine)
    over = [closed[at] for at in decided.reopen]
    ended = {"ended_s": now_s, "ended_by": OWNER, "ended_reason": "nothing is found any more"}
    change_closures(connection, [one.number for one in over], **ended)
    for one in over:
        _log.info("node %s of %s is open again: nothing is found any more", one.node, one.cluster)
        ledger.event(_opened(one, OWNER, ended["ended_reason"]), job=None)
    for at, quarantine in decided.closed.items():
        known = closed.get(at)
        if known is None:
            continue
        later = quarantine.until_s - (known.until_s or 0.0) >= RENEWED_S
        if later or quarantine.reason != known.reason:
            evidence = quarantine.evidence[-EVIDENCE_KEPT:]
            again = {"reason": quarantine.reason, "until_s": quarantine.until_s, "repair": quarantine.repair}
            change_closures(connection, [known.number], **again, evidence=evidence)
    for name, breaker in decided.breakers.items():
        before = breakers.get(name, Breaker())
        if breaker != before:
            write_breaker(connection, name, text_of(breaker))
        if breaker.is_open and not before.is_open:
            _log.warning("the breaker of cluster %s opened: %s", name, breaker.words)
            ledger.event(BreakerOpenedEvent(cluster=name, reason=breaker.words), job=None)


def _close(ledger: StateWriter, quarantine: Quarantine) -> None:
    rule = quarantine.reason.partition(":")[0]
    closure = NodeClosure(
        number=NEW,
        cluster=quarantine.at.cluster,
        node=quarantine.at.node,
        kind=ClosureKind.QUARANTINE,
        owner=OWNER,
        rule=rule,
        reason=quarantine.reason,
        evidence=quarantine.evidence[-EVIDENCE_KEPT:],
        repair=quarantine.repair,
        from_s=ledger.now_s,
        until_s=quarantine.until_s,
    )
    told = NodeClosedEvent(
        cluster=closure.cluster,
        node=closure.node,
        closure=closure.kind.value,
        by=OWNER,
        reason=closure.reason,
        rule=rule,
        until_s=closure.until_s,
    )
    _log.warning("node %s of %s is closed: %s", closure.node, closure.cluster, closure.reason)
    ledger.event(told, job=None)
    add_closure(ledger.connection, closure)


def _end_over(connection: sa.Connection, now_s: float) -> None:
    """Ends what people closed for a time that is over."""
    over = [
        one
        for one in open_closures(connection)
        if one.owner != OWNER and one.until_s is not None and one.until_s <= now_s
    ]
    ended = {"ended_s": now_s, "ended_by": NOBODY, "ended_reason": "its time is over"}
    change_closures(connection, [one.number for one in over], **ended)
    for one in over:
        StateWriter(connection, now_s).event(_opened(one, "its time", ended["ended_reason"]), job=None)


def _opened(closure: NodeClosure, by: str, reason: object) -> NodeOpenedEvent:
    return NodeOpenedEvent(
        cluster=closure.cluster, node=closure.node, closure=closure.kind.value, by=by, reason=str(reason)
    )


def _quarantine_of(closure: NodeClosure) -> Quarantine:
    return Quarantine(
        at=closure.at,
        owner=closure.owner,
        reason=closure.reason,
        evidence=closure.evidence,
        repair=closure.repair,
        from_s=closure.from_s,
        until_s=inf if closure.until_s is None else closure.until_s,
    )


def _view(health: NodeHealth, before: NodeHealthView | None, now_s: float) -> NodeHealthView:
    since_s = before.since_s if before is not None and before.state is health.state else now_s
    return NodeHealthView(
        cluster=health.at.cluster,
        node=health.at.node,
        state=health.state,
        findings=tuple(map(_finding_view, health.findings)),
        lemon_score=health.lemon_score,
        since_s=since_s,
    )


def _finding_view(finding: Finding) -> HealthFinding:
    return HealthFinding(
        rule=finding.rule,
        state=finding.state,
        repair=finding.repair,
        words=finding.words,
        strategy=finding.strategy,
        evidence=finding.evidence[-EVIDENCE_KEPT:],
        of_links=finding.of_links,
    )
