"""Holds: what people keep from starting, of teams, clusters and nodes; and what of it bears on a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import sqlalchemy as sa

from mainspring.control.state.fleet import FleetView, Holds, forget_hold, read_holds, write_hold
from mainspring.control.store.audit import note
from mainspring.control.store.ledger import StateWriter
from mainspring.control.store.records import JobRecord, tenants
from mainspring.control.store.store import Store
from mainspring.control.store.tokens import LAB_ITSELF, Caller
from mainspring.domain.answers import HoldView, NewHold
from mainspring.domain.errors import Conflict, InvalidInput, NotFound, nearest
from mainspring.domain.ids import ClusterName, NodeName, TeamName
from mainspring.domain.job import LAB, NO_CLUSTER, NO_NODE, NO_TEAM, Hold
from mainspring.domain.ports import Clock
from mainspring.domain.team import Right, with_those_above
from mainspring.domain.wire.events.jobs import HoldPlacedEvent, HoldReleasedEvent

HOLDS_MAX = 20_000  # More than anybody drains at a time; the loop reads them all when one changes.


@final
class Pauses:
    """Holds of one controller. What is held again, or released again, is as it was: every call may be repeated.

    Args:
        fleet: Tells which clusters and nodes there are.
        wake: Told that there is something to plan.
    """

    def __init__(self, store: Store, fleet: FleetView, clock: Clock, wake: Callable[[], None]) -> None:
        self._store = store
        self._fleet = fleet
        self._clock = clock
        self._wake = wake

    def holds(self, caller: Caller = LAB_ITSELF) -> tuple[HoldView, ...]:
        """Returns what is held: teams, clusters, nodes, each in order of name; all of it, for anybody."""
        with self._store.read() as connection:
            return tuple(HoldView(hold=hold) for hold in read_holds(connection).all())

    def pause_team(self, name: str, asked: NewHold, caller: Caller = LAB_ITSELF) -> HoldView:
        """Keeps jobs of a team, and of those below it, from starting.

        Raises:
            NotAllowed: The caller may not.
            NotFound: There is no such team.
        """
        return self._hold(self._drawn(asked, caller, team=TeamName(name)), caller)

    def resume_team(self, name: str, caller: Caller = LAB_ITSELF) -> HoldView:
        """Lets jobs of a team start again.

        Raises:
            NotAllowed: The caller may not.
        """
        return self._release(self._drawn(NewHold(), caller, team=TeamName(name)), caller)

    def pause_cluster(self, name: str, asked: NewHold, caller: Caller = LAB_ITSELF) -> HoldView:
        """Keeps jobs from starting on a cluster.

        Raises:
            NotAllowed: The caller does not operate the fleet.
            NotFound: There is no such cluster.
        """
        return self._hold(self._drawn(asked, caller, cluster=ClusterName(name)), caller)

    def resume_cluster(self, name: str, caller: Caller = LAB_ITSELF) -> HoldView:
        """Lets jobs start on a cluster again.

        Raises:
            NotAllowed: The caller does not operate the fleet.
        """
        return self._release(self._drawn(NewHold(), caller, cluster=ClusterName(name)), caller)

    def drain(self, cluster: str, node: str, asked: NewHold, caller: Caller = LAB_ITSELF) -> HoldView:
        """Keeps jobs from starting on a node; what runs on it ends, saved, and is placed elsewhere.

        Raises:
            NotAllowed: The caller does not operate the fleet.
            NotFound: There is no such node.
            Conflict: The cluster places work by itself: its slots are no nodes.
        """
        told = NewHold(reason=asked.reason, drain=True)
        return self._hold(self._drawn(told, caller, cluster=ClusterName(cluster), node=NodeName(node)), caller)

    def undrain(self, cluster: str, node: str, caller: Caller = LAB_ITSELF) -> HoldView:
        """Lets jobs start on a node again, unless others than we keep them off.

        Raises:
            NotAllowed: The caller does not operate the fleet.
        """
        return self._release(self._drawn(NewHold(), caller, cluster=ClusterName(cluster), node=NodeName(node)), caller)

    def _drawn(
        self,
        asked: NewHold,
        caller: Caller,
        *,
        team: TeamName = NO_TEAM,
        cluster: ClusterName = NO_CLUSTER,
        node: NodeName = NO_NODE,
    ) -> Hold:
        return new_hold(asked, caller, self._clock.now_s(), team=team, cluster=cluster, node=node)

    def _hold(self, hold: Hold, caller: Caller) -> HoldView:
        with self._store.write() as connection:
            _require(connection, hold, caller)
            held = read_holds(connection)
            before = held.of(hold)
            if before is not None and same_hold(before, hold):
                return HoldView(hold=before)
            self._require_there(connection, hold)
            if before is None and len(held.all()) >= HOLDS_MAX:
                raise InvalidInput("pause or drain", got=f"{HOLDS_MAX} holds", wanted="fewer", next_step="ms resume")
            write_hold(connection, hold)
            told = HoldPlacedEvent(
                by=hold.by,
                reason=hold.reason,
                drain=hold.drain,
                team=hold.team or None,
                cluster=hold.cluster or None,
                node=hold.node or None,
            )
            StateWriter(connection, hold.since_s).event(told, job=None)
            done = "drain a node" if hold.node else "drain" if hold.drain else "pause"
            note(connection, caller, done, str(hold), team=hold.team or LAB, now_s=hold.since_s)
        self._wake()
        return HoldView(hold=hold)

    def _release(self, hold: Hold, caller: Caller) -> HoldView:
        with self._store.write() as connection:
            _require(connection, hold, caller)
            if read_holds(connection).of(hold) is None:
                self._require_there(connection, hold)
                return HoldView()
            forget_hold(connection, hold)
            told = HoldReleasedEvent(
                by=hold.by, team=hold.team or None, cluster=hold.cluster or None, node=hold.node or None
            )
            StateWriter(connection, hold.since_s).event(told, job=None)
            done = "undrain a node" if hold.node else "resume"
            note(connection, caller, done, hold.target, team=hold.team or LAB, now_s=hold.since_s)
        self._wake()
        return HoldView()

    def _require_there(self, connection: sa.Connection, hold: Hold) -> None:
        """Returns if there is what is to be held, or released.

        Raises:
            NotFound: There is not.
            Conflict: It is a slot of a cluster that places work by itself.
        """
        attempted = "drain a node" if hold.node else "pause or resume"
        if hold.team:
            known = {LAB, *(team.name for team in tenants(connection))}
            if hold.team not in known:
                raise NotFound(attempted, on=f"team {hold.team[:80]!r}", wanted=nearest(hold.team[:80], known))
            return
        clusters = self._fleet.seen()
        seen = clusters.get(hold.cluster)
        if seen is None:
            on = f"cluster {hold.cluster[:80]!r}"
            raise NotFound(attempted, on=on, wanted=nearest(hold.cluster[:80], clusters), next_step="ms cluster ls")
        if hold.node and seen.inventory.delegated:
            raise Conflict(
                attempted,
                on=f"{hold.node[:80]} of {hold.cluster}",
                got="a slot: the cluster itself chooses nodes",
                next_step=f"drain it there, or all of the cluster: ms drain --cluster {hold.cluster}",
            )
        nodes = [node.name for node in seen.inventory.nodes]
        if hold.node and hold.node not in nodes:
            raise NotFound(attempted, on=f"{hold.node[:80]!r} of {hold.cluster}", wanted=nearest(hold.node[:80], nodes))


def new_hold(
    asked: NewHold,
    caller: Caller,
    now_s: float,
    *,
    team: TeamName = NO_TEAM,
    cluster: ClusterName = NO_CLUSTER,
    node: NodeName = NO_NODE,
) -> Hold:
    """Returns what somebody holds from now on."""
    return Hold(
        by=str(caller),
        since_s=now_s,
        reason=asked.reason,
        drain=asked.drain,
        team=team,
        cluster=cluster,
        node=node,
    )


def same_hold(one: Hold, other: Hold) -> bool:
    """Returns whether two holds differ in nothing but when they were asked for."""
    return (one.by, one.reason, one.drain, one.target) == (other.by, other.reason, other.drain, other.target)


def hold_of(job: JobRecord, holds: Holds, connection: sa.Connection) -> Hold | None:
    """Returns what keeps a job from starting wherever it could: its own hold, or its team's."""
    own = job.overrides.paused if job.overrides is not None else None
    if own is not None or not holds.teams:
        return own
    return holds.of_team(with_those_above(tenants(connection), job.team))


def _require(connection: sa.Connection, hold: Hold, caller: Caller) -> None:
    right = Right.HOLD_TEAMS if hold.team else Right.HOLD_FLEET
    caller.require(connection, right, hold.team or LAB)
