"""Cordons: what engines are told of closed nodes, so that the cluster's others see it too; never a foreign one.

An engine has one cordon of a node: that of its oldest closure. The store says that an engine may show one before it is
told, and no longer once it has taken it back, so that whoever dies in between leaves none that nobody knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

import sqlalchemy as sa

from mainspring.control.loop.engine_commands import Act, CommandResult, Cordon, Seen
from mainspring.control.state.fleet import FleetView
from mainspring.control.store.nodes.closures import change_closures, ended_closures, shown_closures
from mainspring.domain.answers import NodeClosure
from mainspring.domain.fleet import NodeCondition, NodeRef
from mainspring.domain.ids import ClusterName
from mainspring.domain.ports import Backoff, Clock

# Told again where an engine's inventory does not show it; that may be as old as a minute.
AGAIN = Backoff(first_s=60.0, cap_s=3_600.0)
STALE_S = AGAIN.first_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tried:
    """How often in a row an engine was told, and before when it is not told again."""

    times: int
    again_s: float


@final
class Cordons:
    """Finds which cordons are to be placed and taken back, and writes what engines answered.

    Args:
        fleet: What the engines said.
        most: Engine calls in one tick.
    """

    def __init__(self, fleet: FleetView, clock: Clock, most: int) -> None:
        self._fleet = fleet
        self._clock = clock
        self._most = most
        self._tried: dict[tuple[int, bool], _Tried] = {}  # By closure, and whether its cordon is taken back.

    def acts(self, connection: sa.Connection, seen: Seen, now_s: float) -> Sequence[Act]:
        """Returns what engines should be told now, and writes that they may show it.

        Args:
            connection: From `Store.write`, of the leader.
            seen: The clusters that answer.
        """
        closures = [one for one in shown_closures(connection) if one.cluster in seen]
        due = [*self._due(closures, seen), *self._strays(connection, closures, seen, now_s)]
        at_s = self._clock.monotonic_s()
        self._tried = {key: tried for key, tried in self._tried.items() if at_s < tried.again_s + AGAIN.cap_s}
        asked = [(cluster, cordon) for cluster, cordon in due if self._last(cordon, at_s).again_s <= at_s][: self._most]
        change_closures(connection, [cordon.closure for _, cordon in asked if not cordon.lift], on_engine=True)
        return [Act(cluster=cluster, cordon=cordon) for cluster, cordon in asked]

    def record(self, connection: sa.Connection, told: Iterable[CommandResult]) -> None:
        """Writes what engines answered. One that has not answered yet is told again in the next tick.

        Args:
            connection: From `Store.write`, of the leader.
        """
        at_s, placed, lifted = self._clock.monotonic_s(), list[int](), list[int]()
        for answer in told:
            cordon = answer.act.cordon
            if cordon is None:
                continue
            times = self._last(cordon, at_s).times + 1
            self._tried[cordon.closure, cordon.lift] = _Tried(times=times, again_s=at_s + AGAIN.wait_s(times))
            if cordon.lift:  # Refused, it is somebody else's, or of a node that is gone: ours is not there.
                lifted.append(cordon.closure)
            elif answer.refused:
                change_closures(connection, [cordon.closure], on_engine=False, refused=answer.refused)
            else:
                placed.append(cordon.closure)
        change_closures(connection, lifted, on_engine=False)
        change_closures(connection, placed, refused="")

    def _last(self, cordon: Cordon, at_s: float) -> _Tried:
        return self._tried.get((cordon.closure, cordon.lift), _Tried(times=0, again_s=at_s))

    def _due(self, closures: Sequence[NodeClosure], seen: Seen) -> Iterator[tuple[ClusterName, Cordon]]:
        """Yields what engines do not show as it is."""
        indices = self._fleet.indices()
        first: dict[NodeRef, int] = {}
        for one in closures:
            if one.ended_s is None:
                first.setdefault(one.at, one.number)
        lifted = [one for one in closures if one.on_engine and first.get(one.at) != one.number]
        for one in lifted:  # First, for an engine has no room for two.
            yield one.cluster, _cordon(one, lift=True)
        for one in closures:
            node = indices[one.cluster].by_name.get(one.node)
            if node is not None and first.get(one.at) == one.number:
                shown = one.on_engine and node.condition is not NodeCondition.READY
                if not shown:
                    yield one.cluster, _cordon(one, lift=False)

    def _strays(
        self, connection: sa.Connection, closures: Sequence[NodeClosure], seen: Seen, now_s: float
    ) -> Iterator[tuple[ClusterName, Cordon]]:
        """Yields cordons of ours that engines show though what they were for is long over: told before, heard late."""
        known = {(one.at, one.owner) for one in closures}
        shown = [(name, node) for name, one in self._fleet.indices().items() if name in seen for node in one.cordoned]
        cordoned = {(NodeRef(cluster=name, node=node.name), node.condition_owner) for name, node in shown} - known
        for one in ended_closures(connection, sorted({at for at, _ in cordoned})) if cordoned else ():
            if (one.at, one.owner) in cordoned and one.ended_s is not None and one.ended_s < now_s - STALE_S:
                cordoned.discard((one.at, one.owner))
                yield one.cluster, _cordon(one, lift=True)


def _cordon(closure: NodeClosure, *, lift: bool) -> Cordon:
    return Cordon(closure=closure.number, node=closure.node, owner=closure.owner, reason=closure.reason, lift=lift)
