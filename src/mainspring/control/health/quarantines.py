"""Quarantines: which nodes to close for what rules found, which to open again, and what a breaker keeps as it is.

A decision, not a deed: who asks does what it says, or, of rules in shadow, only tells it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mainspring.control.health.breaker import Breaker, Closing
from mainspring.control.health.nodes import NodeHealth
from mainspring.control.health.rules import Finding
from mainspring.domain.fleet import NodeRef
from mainspring.domain.hardware.care import CareRules
from mainspring.domain.hardware.health import HealthSource, HealthState, Repair, Strategy
from mainspring.domain.ids import ClusterName

OWNER = "health"  # Of the cordons that follow; nobody else's is ever lifted.
FABRIC_NODES = 2  # Of one leaf whose links fail: one is tolerated, and closed; two are the switch's,
FABRIC_S = 600.0  # and so is each of them for a while: they do not come back at one instant.
Leaf: TypeAlias = tuple[ClusterName, str]
QUARANTINE_S = 86_400.0  # It ends by itself, unless what it stands for is still found by then;
PEOPLE_S = 7 * 86_400.0  # where people are asked for, who work by day and on five of seven, later.
NEW_RULE = "new"  # Of a node that is closed until its first burn-in, whatever is found of it.
_USUAL = CareRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """A node that is closed, or would be, for what was found.

    Args:
        reason: The first rule that says so, and its words.
        evidence: The events behind that.
        from_s: Since when.
        until_s: When it ends unless it is found again.
    """

    at: NodeRef
    owner: str = OWNER
    reason: str
    evidence: tuple[HealthSource, ...]
    repair: Repair
    from_s: float
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlace:
    """Where a node stands among the others.

    Args:
        leaf: Its narrowest domain, "" for none.
        leaf_nodes: How many nodes that has.
        cluster_nodes: How many its cluster has.
    """

    leaf: str
    leaf_nodes: int
    cluster_nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What is to be done of quarantines.

    Args:
        closed: All that stand from now on, by node.
        close: Those of them that are new.
        reopen: Nodes whose quarantine is over.
        shadow: What would be closed if the rules that find it acted.
        held: What acts and is not done: the breaker of its cluster is open, or it is the switch's that it hangs on.
        breakers: As they are from now on, by cluster.
        fabrics: When the links of a leaf last failed together, for as long as that counts.
    """

    closed: Mapping[NodeRef, Quarantine]
    close: tuple[Quarantine, ...]
    reopen: tuple[NodeRef, ...]
    shadow: tuple[Quarantine, ...]
    held: tuple[Quarantine, ...]
    breakers: Mapping[ClusterName, Breaker]
    fabrics: Mapping[Leaf, float]


def decide(
    healths: Iterable[NodeHealth],
    places: Mapping[NodeRef, NodePlace],
    closed: Mapping[NodeRef, Quarantine],
    breakers: Mapping[ClusterName, Breaker],
    now_s: float,
    fabrics: Mapping[Leaf, float] | None = None,
    rules: CareRules = _USUAL,
) -> Decided:
    """Returns what is to be closed and opened now.

    A node of which a rule says that it has failed is closed until none says so any more and what was fatal is taken
    back, or until its time is over; one that is suspect is told of, and stays open. That a rule looks no further back
    does not repair a node; that it is back in shadow opens what it closed. Nodes are asked for in their order, so that
    equal facts give equal answers.

    Args:
        healths: Of every node of which anything is known.
        places: Of every node that there is; others are let be.
        closed: What stands.
        breakers: By cluster; one that is not there is shut.
        fabrics: What was returned the last time.
        rules: What the site says. Where it has a burn-in, a node comes back by that alone, or by people; where it has
            hooks, not while these are at work.
    """
    breakers, stands, over = dict(breakers), dict(closed), set[NodeRef]()
    close, shadow, held = list[Quarantine](), list[Quarantine](), list[Quarantine]()
    healths = sorted(healths, key=lambda each: each.at)
    failing = _failing_links(healths, places)
    fabrics = _fabrics(failing, fabrics or {}, now_s)
    of_fabrics = {at for leaf in fabrics for at in failing.get(leaf, ())}
    for health in healths:
        place = places.get(health.at)
        failed = [each for each in health.findings if each.state is HealthState.FAILED]
        acts = [each for each in failed if each.strategy is Strategy.ACT]
        kept = rules.comes_back_by_repair or health.stands  # A rule in shadow finds it still, and keeps nothing.
        if not acts and (failed or not kept) and health.at in closed:
            over.add(health.at)
        if place is None or not failed:
            continue
        made = _quarantine(health.at, (acts or failed)[0], closed.get(health.at), now_s)
        if not acts:
            shadow.append(made)
            continue
        if health.at in closed:
            stands[health.at] = made
            continue
        if health.at in of_fabrics:
            held.append(made)
            continue
        answered = breakers.get(health.at.cluster, Breaker()).ask(_closing(health.at, place, now_s, rules))
        breakers[health.at.cluster] = answered.breaker
        (close if answered.granted else held).append(made)
        if answered.granted:
            stands[health.at] = made
    if not rules.comes_back_by_repair:
        over |= {at for at, each in stands.items() if each.until_s <= now_s}
    reopen = [at for at in sorted(over) if not breakers.get(at.cluster, Breaker()).is_open]
    for at in reopen:
        del stands[at]
    return Decided(
        closed=stands,
        close=tuple(close),
        reopen=tuple(reopen),
        shadow=tuple(shadow),
        held=tuple(held),
        breakers=breakers,
        fabrics=fabrics,
    )


def _fabrics(
    failing: Mapping[Leaf, Sequence[NodeRef]], before: Mapping[Leaf, float], now_s: float
) -> Mapping[Leaf, float]:
    """Returns when the links of each leaf failed together: the last one that comes back is the switch's fault, too."""
    together = {leaf: now_s for leaf, own in failing.items() if len(own) >= FABRIC_NODES}
    return {leaf: at_s for leaf, at_s in before.items() if now_s - at_s < FABRIC_S} | together


def _failing_links(
    healths: Iterable[NodeHealth], places: Mapping[NodeRef, NodePlace]
) -> Mapping[Leaf, Sequence[NodeRef]]:
    """Returns the nodes of which nothing but links has failed, by leaf."""
    found: dict[Leaf, list[NodeRef]] = defaultdict(list)
    for health in healths:
        place = places.get(health.at)
        failed = [each for each in health.findings if each.state is HealthState.FAILED]
        if place is not None and place.leaf and failed and all(each.of_links for each in failed):
            found[health.at.cluster, place.leaf].append(health.at)
    return found


def _quarantine(at: NodeRef, finding: Finding, known: Quarantine | None, now_s: float) -> Quarantine:
    return Quarantine(
        at=at,
        reason=f"{finding.rule}: {finding.words}",
        evidence=finding.evidence,
        repair=finding.repair,
        from_s=now_s if known is None else known.from_s,
        until_s=now_s + (PEOPLE_S if finding.repair is Repair.CALL_PEOPLE else QUARANTINE_S),
    )


def _closing(at: NodeRef, place: NodePlace, now_s: float, rules: CareRules) -> Closing:
    return Closing(
        at=at,
        at_s=now_s,
        leaf=place.leaf,
        cluster_nodes=place.cluster_nodes,
        leaf_nodes=place.leaf_nodes,
        limits=rules.limits_of(at.cluster),
    )
