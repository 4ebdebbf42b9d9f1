"""What others say of nodes through their clusters, as health events: when it begins, when it is over, and in between.

What stands is known from what was told: another leader goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from math import inf
from typing import final

import sqlalchemy as sa

from mainspring.control.state.fleet import FleetView
from mainspring.control.store.nodes.samples import Told, add_samples, last_told_by
from mainspring.domain.fleet import Inventory, NodeRef, NodeSign
from mainspring.domain.hardware.health import CONDITIONS, HealthEvent, HealthSource, Scope, ScopeKind, Strategy
from mainspring.domain.ids import ClusterName

SAID_AGAIN_S = 6 * 3_600.0  # Rules look back a day at what stands.
TAKEN_MAX = 500  # News of one tick; a cluster with more has them in those after it.


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class _Place:
    """What a sign is about."""

    at: NodeRef
    check: str


@final
class ClusterSigns:
    """Which signs stand, as one leader has told of them.

    Args:
        fleet: What the engines said.
    """

    def __init__(self, fleet: FleetView) -> None:
        self._fleet = fleet
        self._standing: dict[_Place, HealthEvent] | None = None
        self._looked: dict[ClusterName, Inventory] = {}
        self._due_s: dict[ClusterName, float] = {}  # When what stands is to be said again.

    def take(self, connection: sa.Connection, now_s: float) -> int:
        """Writes what came and what went since the last time as health events; returns how many these are.

        Args:
            connection: From `Store.write`, of the leader; where that fails, another of these goes on.
        """
        if self._standing is None:
            self._standing = _told_before(connection)
        told: list[HealthEvent] = []
        for name, seen in self._fleet.seen().items():
            if self._looked.get(name) is seen.inventory and now_s < self._due_s[name]:
                continue
            signs = _places(seen.inventory)
            for place, event in _news(self._standing, seen.inventory, signs, now_s):
                if len(told) >= TAKEN_MAX:
                    break
                told.append(event)
                if event.healthy:
                    del self._standing[place]
                else:
                    self._standing[place] = event
            else:
                self._looked[name] = seen.inventory
                said_s = [one.at_s for place, one in self._standing.items() if place in signs and signs[place].stands]
                self._due_s[name] = min(said_s, default=inf) + SAID_AGAIN_S
        return add_samples(connection, [Told(teller="", event=event) for event in told], now_s)


def _told_before(connection: sa.Connection) -> dict[_Place, HealthEvent]:
    return {
        _Place(at=NodeRef(cluster=event.scope.cluster, node=event.scope.node), check=event.check): event
        for event in last_told_by(connection, CONDITIONS)
        if not event.healthy
    }


def _places(inventory: Inventory) -> Mapping[_Place, NodeSign]:
    name = inventory.cluster
    return {_Place(at=NodeRef(cluster=name, node=sign.node), check=sign.check): sign for sign in inventory.signs}


def _news(
    standing: Mapping[_Place, HealthEvent], inventory: Inventory, signs: Mapping[_Place, NodeSign], now_s: float
) -> Iterator[tuple[_Place, HealthEvent]]:
    """Yields what is told anew of a cluster: what is over first. Of a node that is gone nobody can tell.

    Args:
        standing: What was told, of all clusters.
        signs: Of this one.
    """
    here = {NodeRef(cluster=inventory.cluster, node=node.name) for node in inventory.nodes}
    over = [place for place in standing if place.at in here and place not in signs]
    for place in sorted(over):
        yield place, _event(place, None, now_s)
    for place, sign in signs.items():
        before = standing.get(place)
        same = before is not None and (before.repair, before.codes) == (sign.repair, (sign.code,))
        due = before is None or not same or now_s - before.at_s >= SAID_AGAIN_S
        if sign.stands and due:
            yield place, _event(place, sign, now_s)


def _event(place: _Place, sign: NodeSign | None, now_s: float) -> HealthEvent:
    """Returns that a sign stands, or that it is over.

    Args:
        sign: None where it is over.
    """
    known = sha256(f"{place.at.cluster}/{place.at.node}/{place.check}".encode()).hexdigest()[:16]
    source = HealthSource(name=CONDITIONS, session=known, sequence=round(now_s * 1_000))
    scope = Scope(kind=ScopeKind.NODE, cluster=place.at.cluster, node=place.at.node)
    if sign is None:
        return HealthEvent(
            source=source, at_s=now_s, scope=scope, check=place.check, healthy=True, strategy=Strategy.ACT
        )
    return HealthEvent(
        source=source,
        at_s=now_s,
        scope=scope,
        check=place.check,
        codes=(sign.code,),
        message=sign.message,
        repair=sign.repair,
        strategy=Strategy.ACT,
    )
