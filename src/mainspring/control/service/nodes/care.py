"""What is said of nodes, and what of them is shown: what was seen, what closes and opens them, rules, incidents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import final

import sqlalchemy as sa

from mainspring.control.health.breaker import Breaker
from mainspring.control.health.incidents import incidents_of
from mainspring.control.health.quarantines import OWNER, QUARANTINE_S
from mainspring.control.health.rules import RULES, Rule
from mainspring.control.service.nodes.announcing import Announcing
from mainspring.control.service.nodes.judging import Judging, require_measured
from mainspring.control.service.nodes.past import changes_of
from mainspring.control.service.nodes.spares import SpareCounts
from mainspring.control.service.nodes.telling import allowed, taken
from mainspring.control.service.views import list_nodes, view_clusters
from mainspring.control.state.fleet import FleetView
from mainspring.control.store.audit import note
from mainspring.control.store.ledger import StateWriter
from mainspring.control.store.nodes.cases import Precision, measured
from mainspring.control.store.nodes.closures import (
    NEW,
    OPEN_MAX,
    add_closure,
    change_closures,
    closures_of,
    open_closures,
)
from mainspring.control.store.nodes.samples import FreshSamples, samples
from mainspring.control.store.nodes.settings import (
    Promotion,
    breaker_texts,
    demote,
    healths,
    promote,
    promotions,
    write_breaker,
)
from mainspring.control.store.rows import read_text, text_of
from mainspring.control.store.store import Store
from mainspring.control.store.tokens import LAB_ITSELF, Caller
from mainspring.domain.answers import (
    ClosureKind,
    HealthEventView,
    HealthRuleView,
    Incident,
    NewClosure,
    NodeChange,
    NodeClosure,
    NodeHealthView,
    NodeView,
    Reason,
)
from mainspring.domain.answers.health import require_reason
from mainspring.domain.errors import Conflict, InvalidInput, NotFound, nearest
from mainspring.domain.fleet import NodeRef
from mainspring.domain.hardware.health import HealthState, Repair, Strategy
from mainspring.domain.ids import ClusterName, NodeName
from mainspring.domain.job import LAB
from mainspring.domain.ports import Clock
from mainspring.domain.routes import LIST_MAX
from mainspring.domain.team import Right
from mainspring.domain.wire import HealthBatch, HealthTaken
from mainspring.domain.wire.events.nodes import (
    BreakerResetEvent,
    HealthRuleDemotedEvent,
    HealthRulePromotedEvent,
    NodeClosedEvent,
    NodeOpenedEvent,
)

HOUR_S = 3_600.0
FEW = 50  # Events: more are told by who catches up, and may wait.
FOUND_SHOWN_MAX = 100  # Nodes of one rule.


@final
class NodeCare:
    """What is said of nodes at one controller. Used by many threads.

    Args:
        fleet: What the engines said.
        wake: Told that there is something to do.
        write: Returns what a writer returned, once that is in the store; others' pieces are written with it.
        fresh: Where the loop finds what was told just now.
    """

    def __init__(
        self,
        store: Store,
        fleet: FleetView,
        clock: Clock,
        wake: Callable[[], None],
        write: Callable[[Callable[[sa.Connection], HealthTaken]], HealthTaken],
        fresh: FreshSamples,
    ) -> None:
        self._store = store
        self._fleet = fleet
        self._clock = clock
        self._wake = wake
        self._write = write
        self._fresh = fresh

    @property
    def announcing(self) -> Announcing:
        """Returns what may be said of maintenance."""
        return Announcing(self._store, self._fleet, self._clock, self._wake)

    @property
    def judging(self) -> Judging:
        """Returns what may be said of how often rules were right."""
        return Judging(self._store, self._clock)

    @property
    def spares(self) -> SpareCounts:
        """Returns what may be asked of spares."""
        return SpareCounts(self._store, self._fleet, self._clock)

    # ---------------------------------------------------------------- what is seen

    def tell(self, batch: HealthBatch, caller: Caller = LAB_ITSELF) -> HealthTaken:
        """Returns once a whole batch is in the store; what was told before is known again.

        A large one waits until the loop has read most of what was told before.

        Raises:
            NotAllowed: The caller may not speak of something in it; nothing of it is taken then.
            NotFound: There is no such cluster.
        """
        if len(batch.events) > FEW:
            self._fresh.wait_for_room()
        now_s = self._clock.now_s()
        with self._store.read() as connection:
            told = allowed(connection, batch, caller, self._fleet.seen(), now_s)
        answer = self._write(partial(taken, told=told, now_s=now_s))
        if not answer.repeated:  # Else the store has some of it in other words, perhaps.
            self._fresh.put(told)
        if any(one.fatal for one in batch.events):
            self._wake()
        return answer

    def events(
        self,
        caller: Caller = LAB_ITSELF,
        *,
        cluster: str | None = None,
        node: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> tuple[HealthEventView, ...]:
        """Returns what was seen of machines, newest first; anybody may read it.

        Args:
            cluster: Only of this cluster, unless None.
            node: Only of this node of it, unless None.
            before: Number of the last one seen, None to begin.
            limit: The most to return.

        Raises:
            InvalidInput: A node without a cluster.
        """
        if node is not None and cluster is None:
            raise InvalidInput("list events of health", on=f"node {node}", got="no cluster", wanted="its cluster too")
        with self._store.read() as connection:
            return samples(
                connection,
                cluster=None if cluster is None else ClusterName(cluster),
                node=None if node is None else NodeName(node),
                before=before,
                newest=True,
                limit=limit,
            )

    def node(self, cluster: str, node: str, caller: Caller = LAB_ITSELF) -> NodeView:
        """Returns one node as anybody may see it.

        Raises:
            NotFound: There is no such node.
        """
        self._require_there("show a node", cluster, node)
        with self._store.read() as connection:
            views = view_clusters(connection, self._fleet, self._clock.now_s())
            view = next(one for one in views if one.inventory.cluster == cluster)
            found = list_nodes(connection, view, after=None, limit=len(view.inventory.nodes), only=NodeName(node))
        return found[0]

    def history(
        self, cluster: str, node: str, caller: Caller = LAB_ITSELF, *, limit: int = 100
    ) -> tuple[NodeChange, ...]:
        """Returns what changed of a node, newest first, as long as it is kept; also of one that is gone.

        Args:
            limit: The most to return.

        Raises:
            NotFound: Nothing is known of such a node.
        """
        with self._store.read() as connection:
            found = changes_of(connection, ClusterName(cluster), NodeName(node), limit)
        if not found:
            self._require_there("show a node's history", cluster, node)
        return found

    # ---------------------------------------------------------------- closed and open

    def closures(
        self,
        caller: Caller = LAB_ITSELF,
        *,
        cluster: str | None = None,
        past: bool = False,
        before: int | None = None,
        limit: int = LIST_MAX,
    ) -> tuple[NodeClosure, ...]:
        """Returns what keeps nodes closed, newest first; anybody may read it.

        Args:
            cluster: Only of this cluster, unless None.
            past: Whether also what is over.
            before: Number of the last one seen, None to begin.
            limit: The most to return.
        """
        of = None if cluster is None else ClusterName(cluster)
        with self._store.read() as connection:
            return closures_of(connection, cluster=of, past=past, before=before, limit=limit)

    def close(self, cluster: str, node: str, asked: NewClosure, caller: Caller = LAB_ITSELF) -> NodeClosure:
        """Closes a node; what the same person closed for the same already gets the new reason and end.

        Raises:
            NotAllowed: The caller does not operate the fleet.
            NotFound: There is no such node.
            Conflict: The cluster places work by itself: its slots are no nodes.
            InvalidInput: So much is closed already.
        """
        now_s, at = self._clock.now_s(), NodeRef(cluster=ClusterName(cluster), node=NodeName(node))
        owner = str(caller) if str(caller) != OWNER else f"{caller}, a person"  # Whose cordons rules lift is health's.
        hours_s = None if asked.hours is None else asked.hours * HOUR_S
        if asked.kind is ClosureKind.QUARANTINE and hours_s is None:
            hours_s = QUARANTINE_S
        until_s = None if hours_s is None else now_s + hours_s
        with self._store.write() as connection:
            caller.require(connection, Right.HOLD_FLEET, LAB)
            self._require_there("close a node", cluster, node, ours=True)
            known = open_closures(connection)
            same = [each for each in known if (each.at, each.kind, each.owner) == (at, asked.kind, owner)]
            if same and same[0].reason == asked.reason and asked.hours is None:
                return same[0]
            if len(known) >= OPEN_MAX:
                raise InvalidInput("close a node", got=f"{OPEN_MAX} that are closed", wanted="fewer")
            made = NodeClosure(
                number=NEW,
                cluster=at.cluster,
                node=at.node,
                kind=asked.kind,
                owner=owner,
                rule="",
                reason=asked.reason,
                evidence=(),
                repair=Repair.NONE,
                from_s=now_s,
                until_s=until_s,
            )
            if same:
                made = replace(same[0], reason=asked.reason, until_s=until_s)
                change_closures(connection, [made.number], reason=made.reason, until_s=made.until_s)
            else:
                made = add_closure(connection, made)
            self._tell_closed(connection, made, now_s)
            words = f"{node} of {cluster}: {asked.reason}"
            note(connection, caller, f"{asked.kind.value} a node", words, team=LAB, now_s=now_s)
        self._wake()
        return made

    def open(
        self, cluster: str, node: str, caller: Caller = LAB_ITSELF, *, kind: ClosureKind | None = None, reason: str = ""
    ) -> tuple[NodeClosure, ...]:
        """Opens a node that people or health closed, and returns what it was closed by.

        Args:
            kind: Only what closed it as this, unless None.
            reason: Why, for people.

        Raises:
            NotAllowed: The caller does not operate the fleet.
            NotFound: There is no such node.
            InvalidInput: No reason is given.
        """
        require_reason("open a node", reason)
        now_s, at = self._clock.now_s(), NodeRef(cluster=ClusterName(cluster), node=NodeName(node))
        with self._store.write() as connection:
            caller.require(connection, Right.HOLD_FLEET, LAB)
            over = [one for one in open_closures(connection) if one.at == at and kind in (None, one.kind)]
            if not over:
                self._require_there("open a node", cluster, node)
                return ()
            ended = {"ended_s": now_s, "ended_by": str(caller), "ended_reason": reason}
            change_closures(connection, [one.number for one in over], **ended)
            for one in over:
                told = NodeOpenedEvent(
                    cluster=at.cluster, node=at.node, closure=one.kind.value, by=str(caller), reason=reason
                )
                StateWriter(connection, now_s).event(told, job=None)
            note(connection, caller, "open a node", f"{node} of {cluster}: {reason}", team=LAB, now_s=now_s)
            numbers = {one.number for one in over}
            found = closures_of(connection, cluster=at.cluster, node=at.node, past=True, limit=LIST_MAX)
        self._wake()
        return tuple(one for one in found if one.number in numbers)

    def _tell_closed(self, connection: sa.Connection, made: NodeClosure, now_s: float) -> None:
        told = NodeClosedEvent(
            cluster=made.cluster,
            node=made.node,
            closure=made.kind.value,
            by=made.owner,
            reason=made.reason,
            until_s=made.until_s,
        )
        StateWriter(connection, now_s).event(told, job=None)

    def _require_there(self, attempted: str, cluster: str, node: str, *, ours: bool = False) -> None:
        """Returns if there is a node.

        Args:
            ours: Whether it must be one that we choose.

        Raises:
            NotFound: There is not.
            Conflict: It is a slot of a cluster that places work by itself.
        """
        clusters = self._fleet.seen()
        seen = clusters.get(ClusterName(cluster))
        if seen is None:
            on = f"cluster {cluster[:80]!r}"
            raise NotFound(attempted, on=on, wanted=nearest(cluster[:80], clusters), next_step="ms cluster ls")
        if ours and seen.inventory.delegated:
            raise Conflict(
                attempted,
                on=f"{node[:80]} of {cluster}",
                got="a slot: the cluster itself chooses nodes",
                next_step="close it there",
            )
        nodes = [one.name for one in seen.inventory.nodes]
        if node not in nodes:
            raise NotFound(attempted, on=f"{node[:80]!r} of {cluster}", wanted=nearest(node[:80], nodes))

    # ---------------------------------------------------------------- rules, breakers, incidents

    def rules(self, caller: Caller = LAB_ITSELF) -> tuple[HealthRuleView, ...]:
        """Returns the rules in their order, whether they act, and for which nodes they hold; anybody may read it."""
        with self._store.read() as connection:
            acting, known, found = promotions(connection), healths(connection), measured(connection)
        return tuple(
            _rule_view(rule, acting.get(rule.name), known.values(), found.get(rule.name, Precision())) for rule in RULES
        )

    def promote(self, rule: str, asked: Reason, caller: Caller = LAB_ITSELF) -> HealthRuleView:
        """Lets a rule act.

        Raises:
            NotAllowed: The caller may not.
            NotFound: There is no such rule.
            Conflict: It finds no node failed, or was measured to be wrong too often.
        """
        known, now_s = _rule("let a rule of health act", rule), self._clock.now_s()
        if known.state is not HealthState.FAILED:
            raise Conflict(
                "let a rule of health act",
                on=rule,
                got=f"one that finds a node {known.state.value}",
                wanted="one that finds nodes failed: no other closes any",
            )
        with self._store.write() as connection:
            caller.require(connection, Right.RULE_HEALTH, LAB)
            require_measured("let a rule of health act", rule, measured(connection).get(rule, Precision()))
            if rule not in promotions(connection):
                made = Promotion(rule=rule, by=str(caller), since_s=now_s, reason=asked.reason)
                promote(connection, made)
                told = HealthRulePromotedEvent(rule=rule, by=str(caller), reason=asked.reason)
                StateWriter(connection, now_s).event(told, job=None)
                note(connection, caller, "promote a rule", f"{rule}: {asked.reason}", team=LAB, now_s=now_s)
        self._wake()
        return next(one for one in self.rules() if one.name == rule)

    def demote(self, rule: str, caller: Caller = LAB_ITSELF, *, reason: str = "") -> HealthRuleView:
        """Puts a rule back into shadow.

        Args:
            reason: Why, for people.

        Raises:
            NotAllowed: The caller may not.
            NotFound: There is no such rule.
            InvalidInput: No reason is given.
        """
        require_reason("put a rule of health into shadow", reason)
        _rule("put a rule of health into shadow", rule)
        now_s = self._clock.now_s()
        with self._store.write() as connection:
            caller.require(connection, Right.RULE_HEALTH, LAB)
            if rule in promotions(connection):
                demote(connection, rule)
                told = HealthRuleDemotedEvent(rule=rule, by=str(caller), reason=reason)
                StateWriter(connection, now_s).event(told, job=None)
                note(connection, caller, "demote a rule", f"{rule}: {reason}", team=LAB, now_s=now_s)
        self._wake()
        return next(one for one in self.rules() if one.name == rule)

    def incidents(self, caller: Caller = LAB_ITSELF, *, cluster: str | None = None) -> tuple[Incident, ...]:
        """Returns what is wrong with nodes now; anybody may read it.

        Args:
            cluster: Only of this cluster, unless None.
        """
        with self._store.read() as connection:
            known, closed, breakers = healths(connection), open_closures(connection), self._breakers(connection)
        found = incidents_of(
            known.values(), self._fleet.places(), {one.at for one in closed if one.owner == OWNER}, breakers
        )
        return tuple(one for one in found if cluster in (None, one.cluster))

    def reset_breaker(self, cluster: str, caller: Caller = LAB_ITSELF, *, reason: str = "") -> tuple[Incident, ...]:
        """Resets a cluster's breaker, and returns its incidents; one that is shut stays as it is.

        Args:
            reason: Why, for people.

        Raises:
            NotAllowed: The caller may not.
            NotFound: There is no such cluster.
            InvalidInput: No reason is given.
        """
        require_reason("reset a breaker", reason)
        now_s, name = self._clock.now_s(), ClusterName(cluster)
        with self._store.write() as connection:
            caller.require(connection, Right.RULE_HEALTH, LAB)
            breaker = self._breakers(connection).get(name)
            if breaker is None and name not in self._fleet.seen():
                wanted = nearest(cluster[:80], self._fleet.seen())
                raise NotFound("reset a breaker", on=f"cluster {cluster[:80]!r}", wanted=wanted)
            if breaker is not None and breaker.is_open:
                write_breaker(connection, name, text_of(breaker.reset()))
                told = BreakerResetEvent(cluster=name, by=str(caller), reason=reason)
                StateWriter(connection, now_s).event(told, job=None)
                note(connection, caller, "reset a breaker", f"{cluster}: {reason}", team=LAB, now_s=now_s)
        self._wake()
        return self.incidents(cluster=cluster)

    def open_breakers(self) -> Mapping[ClusterName, str]:
        """Returns the clusters whose breakers are open, and why, in order of name."""
        with self._store.read() as connection:
            return {name: one.words for name, one in self._breakers(connection).items() if one.is_open}

    def _breakers(self, connection: sa.Connection) -> Mapping[ClusterName, Breaker]:
        return {name: read_text(Breaker, text) for name, text in breaker_texts(connection).items()}


def _rule(attempted: str, name: str) -> Rule:
    known = {rule.name: rule for rule in RULES}
    if name not in known:
        raise NotFound(
            attempted, on=f"rule {name[:80]!r}", wanted=nearest(name[:80], known), next_step="ms health rules"
        )
    return known[name]


def _rule_view(
    rule: Rule, promotion: Promotion | None, known: Iterable[NodeHealthView], seen: Precision
) -> HealthRuleView:
    found = [one.at for one in known if any(each.rule == rule.name for each in one.findings)]
    return HealthRuleView(
        name=rule.name,
        words=rule.words,
        window_s=rule.window_s,
        state=rule.state,
        repair=rule.repair,
        strategy=Strategy.SHADOW if promotion is None else Strategy.ACT,
        by="" if promotion is None else promotion.by,
        since_s=0.0 if promotion is None else promotion.since_s,
        reason="" if promotion is None else promotion.reason,
        found=tuple(found[:FOUND_SHOWN_MAX]),
        found_count=len(found),
        right=seen.right,
        wrong=seen.wrong,
        unjudged=seen.unjudged,
    )
