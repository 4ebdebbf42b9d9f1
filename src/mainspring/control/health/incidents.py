"""Incidents: what is wrong now, each thing once. Many nodes of one switch whose links fail are one, of the switch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from mainspring.control.health.breaker import Breaker
from mainspring.control.health.quarantines import FABRIC_NODES, NodePlace
from mainspring.domain.answers import HealthFinding, Incident, IncidentKind, NodeHealthView
from mainspring.domain.fleet import NodeRef
from mainspring.domain.hardware.health import HealthState, Strategy
from mainspring.domain.ids import ClusterName

SHOWN_MAX = 100  # Nodes of one incident.
CLOSED, HELD, SHADOW, TOLD = "closed", "held", "shadow", "told"


def incidents_of(
    healths: Iterable[NodeHealthView],
    places: Mapping[NodeRef, NodePlace],
    closed: Collection[NodeRef],
    breakers: Mapping[ClusterName, Breaker],
) -> tuple[Incident, ...]:
    """Returns what is wrong now: breakers that are open first, then switches, then nodes.

    Args:
        healths: Of the nodes of which anything is known.
        closed: Those that health keeps closed.
        breakers: By cluster.
    """
    wrong = sorted((one for one in healths if one.findings), key=lambda one: one.at)
    fabrics = _fabrics(wrong, places)
    in_fabric = {one.at for own in fabrics.values() for one in own}
    alone = (one for one in wrong if one.at not in in_fabric)
    return (
        *(_of_breaker(name, breakers[name]) for name in sorted(breakers) if breakers[name].is_open),
        *(_of_fabric(cluster, leaf, own, closed) for (cluster, leaf), own in sorted(fabrics.items())),
        *(_of_node(one, closed) for one in alone),
    )


def _fabrics(
    wrong: Iterable[NodeHealthView], places: Mapping[NodeRef, NodePlace]
) -> Mapping[tuple[ClusterName, str], list[NodeHealthView]]:
    """Returns the nodes of each leaf on which so many have nothing but links that fail."""
    found: dict[tuple[ClusterName, str], list[NodeHealthView]] = defaultdict(list)
    for one in wrong:
        place = places.get(one.at)
        if place is not None and place.leaf and all(each.of_links for each in one.findings):
            found[one.cluster, place.leaf].append(one)
    return {key: own for key, own in found.items() if len(own) >= FABRIC_NODES}


def _of_breaker(cluster: ClusterName, breaker: Breaker) -> Incident:
    assert breaker.opened_s is not None
    nodes = tuple(dict.fromkeys(each.at.node for each in breaker.recent))
    return Incident(
        kind=IncidentKind.BREAKER,
        cluster=cluster,
        where="",
        rule="",
        nodes=nodes[:SHOWN_MAX],
        node_count=len(nodes),
        since_s=breaker.opened_s,
        words=f"nothing is closed or opened by health until somebody resets it: {breaker.words}",
        done=HELD,
    )


def _of_fabric(cluster: ClusterName, leaf: str, own: list[NodeHealthView], closed: Collection[NodeRef]) -> Incident:
    worst = _worst(own[0])
    return Incident(
        kind=IncidentKind.FABRIC,
        cluster=cluster,
        where=leaf,
        rule=worst.rule,
        nodes=tuple(one.node for one in own[:SHOWN_MAX]),
        node_count=len(own),
        since_s=min(one.since_s for one in own),
        words=f"links of {len(own)} nodes of {leaf} fail: look at what they hang on. The first: {worst.words}",
        done=CLOSED if all(one.at in closed for one in own) else HELD if any(map(_acts, own)) else TOLD,
    )


def _of_node(one: NodeHealthView, closed: Collection[NodeRef]) -> Incident:
    worst = _worst(one)
    done = TOLD if one.state is not HealthState.FAILED else HELD if _acts(one) else SHADOW
    return Incident(
        kind=IncidentKind.NODE,
        cluster=one.cluster,
        where="",
        rule=worst.rule,
        nodes=(one.node,),
        node_count=1,
        since_s=one.since_s,
        words=worst.words,
        done=CLOSED if one.at in closed else done,
    )


def _worst(one: NodeHealthView) -> HealthFinding:
    """Returns the finding that tells most: what acts first, then the worst."""
    return min(one.findings, key=lambda each: (-each.state.rank, each.strategy is not Strategy.ACT))


def _acts(one: NodeHealthView) -> bool:
    return any(each.state is HealthState.FAILED and each.strategy is Strategy.ACT for each in one.findings)
