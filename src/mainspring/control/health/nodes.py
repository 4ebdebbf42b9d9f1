"""How each node is: a fold over health events. From the same events it gives the same, in whatever order they come."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from typing import final

from mainspring.control.health.lemons import LEMON_WINDOW_S, lemon_score
from mainspring.control.health.rules import RULES, Finding, Rule, findings
from mainspring.domain.fleet import NodeRef
from mainspring.domain.hardware.health import (
    HealthEvent,
    HealthSource,
    HealthState,
    Repair,
    Scope,
    ScopeKind,
    Strategy,
)

REMEMBERED_S = LEMON_WINDOW_S  # As far back as any rule looks.
REPEATED_S = 180.0  # Within which the same, said again, is one fault: most watchers look once a minute.
TOGETHER_S = 60.0  # Within which links of one switch are seen to fail: what the best promise of switches.
EVENTS_MAX = 4_096  # Of one node, the newest: six an hour for as long as they are remembered.
REPEATS_FIRST = 3  # Of what is said again and again within `REPEATED_S`, the first are kept: no rule counts to more,
REPEATS_MAX = REPEATS_FIRST + 1  # and the newest, which is what evidence shows.


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHealth:
    """How a node is at one instant.

    Args:
        findings: The rules that hold, in their order.
        lemon_score: See `lemon_score`.
        stands: Whether something fatal was said that nobody has taken back, however long ago.
        settled: Whether all that was said counts; a link that failed just now does not yet, and the node is to be
            judged again without another word.
    """

    at: NodeRef
    findings: tuple[Finding, ...] = ()
    lemon_score: float = 0.0
    stands: bool = False
    settled: bool = True

    @property
    def state(self) -> HealthState:
        """Returns the worst that any rule says, whether it acts or not."""
        return max((each.state for each in self.findings), key=lambda state: state.rank, default=HealthState.SOUND)

    @property
    def acting(self) -> tuple[Finding, ...]:
        """Returns the findings from which something follows."""
        return tuple(each for each in self.findings if each.strategy is Strategy.ACT)

    @property
    def repair(self) -> Repair:
        """Returns the most that any rule asks for."""
        return max((each.repair for each in self.findings), key=lambda repair: repair.rank, default=Repair.NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Repeat:
    """What events say the same about the same time: all of them but their words, their numbers, and when exactly."""

    name: str
    scope: Scope
    check: str
    codes: tuple[str, ...]
    healthy: bool
    fatal: bool
    repair: Repair
    strategy: Strategy
    job: str
    about: int

    @classmethod
    def of(cls, event: HealthEvent) -> _Repeat:
        return cls(
            name=event.source.name,
            scope=event.scope,
            check=event.check,
            codes=event.codes,
            healthy=event.healthy,
            fatal=event.fatal,
            repair=event.repair,
            strategy=event.strategy,
            job=event.job,
            about=int(event.at_s // REPEATED_S),
        )


@dataclass(slots=True)
class _Told:
    """What was said of one node, in order, without what only repeats it.

    What is kept of repeats is the same in whatever order they come: of all that were told, the first few and the last.
    """

    events: list[HealthEvent] = field(default_factory=list)
    sources: set[HealthSource] = field(default_factory=set)
    repeats: dict[_Repeat, list[HealthEvent]] = field(default_factory=dict)
    cleared_s: float = -inf

    def add(self, event: HealthEvent) -> bool:
        """Takes an event, and returns whether it is kept."""
        if event.source in self.sources:
            return False
        own = self.repeats.setdefault(_Repeat.of(event), [])
        insort(own, event, key=_order)
        left_out = own.pop(REPEATS_FIRST) if len(own) > REPEATS_MAX else None
        if left_out is event:
            return False
        insort(self.events, event, key=_order)
        self.sources.add(event.source)
        if left_out is not None:
            del self.events[bisect_left(self.events, left_out.order, key=_order)]
            self.sources.discard(left_out.source)
        if len(self.events) > EVENTS_MAX:
            oldest = self.events[0]
            self.drop(1)
            return oldest is not event
        return True

    def drop(self, count: int) -> None:
        """Drops the oldest few."""
        for event in self.events[:count]:
            self.sources.discard(event.source)
            repeat = _Repeat.of(event)
            own = self.repeats[repeat]
            own.remove(event)
            if not own:
                del self.repeats[repeat]
        del self.events[:count]


@final
class HealthFold:
    """Keeps what was seen of nodes, and tells how each is. It reads no clock, and keeps nothing that events do not say.

    Args:
        rules: The rules, in order.
        mates_of: Returns the nodes that hang on the same switch as a node, itself among them; none where nobody knows.
    """

    def __init__(
        self, rules: Iterable[Rule] = RULES, mates_of: Callable[[NodeRef], Collection[NodeRef]] = lambda at: ()
    ) -> None:
        self.judge_by(rules)
        self._mates_of = mates_of
        self._told: dict[NodeRef, _Told] = {}
        # Of which a link was said to have failed, by when; some of that may be forgotten since.
        self._downs: dict[int, dict[NodeRef, None]] = {}

    def add(self, event: HealthEvent) -> bool:
        """Takes an event, and returns whether it says anything new of a node.

        Said again under the same number, it is not read again; of what is said again and again within minutes little is
        kept, so that who says much makes nobody slow. What is said of domains, slices and jobs is of no one node, and
        is left to others.
        """
        if not event.scope.node:
            return False
        at = NodeRef(cluster=event.scope.cluster, node=event.scope.node)
        kept = self._told.setdefault(at, _Told()).add(event)
        if kept and _is_link_down(event):
            self._downs.setdefault(_about(event.at_s), {})[at] = None
        return kept

    def judge_by(self, rules: Iterable[Rule]) -> None:
        """Finds by other rules from now on.

        Args:
            rules: The rules, in order.
        """
        self._rules = tuple(rules)
        assert all(rule.window_s <= REMEMBERED_S for rule in self._rules)

    def clear(self, at: NodeRef, at_s: float) -> None:
        """Holds nothing against a node that was seen until a time, but how often it failed: somebody looked at it."""
        told = self._told.setdefault(at, _Told())
        told.cleared_s = max(told.cleared_s, at_s)

    def size(self, at: NodeRef) -> int:
        """Returns how many events of a node are remembered: what it takes to tell how it is."""
        told = self._told.get(at)
        return 0 if told is None else len(told.events)

    def nodes(self) -> tuple[NodeRef, ...]:
        """Returns the nodes of which anything is remembered, in order."""
        return tuple(sorted(self._told))

    def of(self, at: NodeRef, now_s: float) -> NodeHealth:
        """Returns how a node is; sound when nothing was said of it."""
        told = self._told.get(at)
        if told is None:
            return NodeHealth(at=at)
        since_s = now_s - REMEMBERED_S
        heard = [each for each in told.events if since_s < each.at_s <= now_s]
        faults = [each for each in heard if not each.healthy]
        since = [each for each in _once(heard) if each.at_s > told.cleared_s]
        standing = [each for each in _standing(heard) if each.at_s > told.cleared_s]
        own = self._own(at, faults, now_s)
        return NodeHealth(
            at=at,
            findings=findings(self._rules, since, standing, own, now_s),
            lemon_score=lemon_score(own),
            stands=any(each.fatal for each in standing),
            settled=not any(_is_link_down(each) and now_s - each.at_s < TOGETHER_S for each in faults),
        )

    def _own(self, at: NodeRef, faults: Sequence[HealthEvent], now_s: float) -> Sequence[HealthEvent]:
        """Returns faults without links that failed together with those of others: it is their switch that did.

        Whether they did shows within `TOGETHER_S`; until then they do not count.
        """
        mates = self._mates_of(at) if any(map(_is_link_down, faults)) else ()
        if not mates:
            return faults

        def is_own(event: HealthEvent) -> bool:
            if not _is_link_down(event):
                return True
            return now_s - event.at_s >= TOGETHER_S and not self._fails_with(at, event.at_s, mates)

        return [event for event in faults if is_own(event)]

    def _fails_with(self, at: NodeRef, at_s: float, mates: Collection[NodeRef]) -> bool:
        """Returns whether a link of another of some nodes failed about a time: looks at those of which one did about
        then, or at the nodes, whichever are fewer.
        """
        none: Mapping[NodeRef, None] = {}
        near = [self._downs.get(_about(at_s) + more, none) for more in (-1, 0, 1)]
        if sum(map(len, near)) < len(mates):
            others = (other for other in chain(*near) if other in mates)
        else:
            others = (mate for mate in mates if any(mate in each for each in near))
        told = (self._told[other].events for other in others if other != at and other in self._told)
        return any(_links_down_at(each, at_s) for each in told)

    def forget(self, now_s: float) -> None:
        """Drops what no rule looks at any more."""
        for at in list(self._told):
            told = self._told[at]
            told.drop(bisect_left(told.events, now_s - REMEMBERED_S, key=lambda each: each.at_s))
            if not told.events and told.cleared_s <= now_s - REMEMBERED_S:
                del self._told[at]
        for about in [about for about in self._downs if about < _about(now_s - REMEMBERED_S)]:
            del self._downs[about]


def _order(event: HealthEvent) -> tuple[float, HealthSource]:
    return event.order


def _once(events: Sequence[HealthEvent]) -> list[HealthEvent]:
    """Returns the faults in order, without what was said again within `REPEATED_S` and not taken back in between.

    A watcher that says again what stands has not seen it a second time; it stands all the same.
    """
    last: dict[tuple[str, Scope, str, tuple[str, ...]], float] = {}
    found: list[HealthEvent] = []
    for event in events:
        of = event.source.name, event.scope, event.check, event.codes
        if event.healthy:
            last = {key: at_s for key, at_s in last.items() if key[:3] != of[:3]}
            continue
        if event.at_s >= last.get(of, -inf) + REPEATED_S:
            found.append(event)
            last[of] = event.at_s
    return found


def _standing(events: Sequence[HealthEvent]) -> list[HealthEvent]:
    """Returns the faults that their watcher has not taken back since, in order."""
    well: set[tuple[str, Scope, str]] = set()
    found: list[HealthEvent] = []
    for event in reversed(events):
        of = event.source.name, event.scope, event.check
        if event.healthy:
            well.add(of)
        elif of not in well:
            found.append(event)
    return found[::-1]


def _is_link_down(event: HealthEvent) -> bool:
    return event.scope.kind is ScopeKind.LINK and event.fatal


def _about(at_s: float) -> int:
    """Returns the stretch of time that an instant is in: what is within `TOGETHER_S` of it is in that or one beside."""
    return int(at_s // TOGETHER_S)


def _links_down_at(told: Sequence[HealthEvent], at_s: float) -> bool:
    """Returns whether a link was said to have failed about that time."""
    first = bisect_left(told, at_s - TOGETHER_S, key=lambda each: each.at_s)
    last = bisect_right(told, at_s + TOGETHER_S, key=lambda each: each.at_s)
    return any(map(_is_link_down, told[first:last]))
