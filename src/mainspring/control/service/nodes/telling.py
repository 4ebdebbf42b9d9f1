"""Who may tell what of machines, and how what they told comes into the store."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import sqlalchemy as sa

from mainspring.control.state.fleet import ClusterSeen
from mainspring.control.store.holdings import live_allocations_of, parts
from mainspring.control.store.nodes.samples import Told, add_samples
from mainspring.control.store.records import attempt_by_id
from mainspring.control.store.tokens import Caller
from mainspring.domain.errors import NotAllowed, NotFound, nearest
from mainspring.domain.hardware.health import HealthEvent
from mainspring.domain.ids import AttemptId, ClusterName
from mainspring.domain.job import LAB
from mainspring.domain.team import Right
from mainspring.domain.wire import HealthBatch, HealthTaken

ATTEMPTED = "take events of health"


def allowed(
    connection: sa.Connection,
    batch: HealthBatch,
    caller: Caller,
    clusters: Mapping[ClusterName, ClusterSeen],
    now_s: float,
) -> Sequence[Told]:
    """Returns what a caller tells, as it is to be kept: nothing is from later than now.

    Args:
        caller: The agents of an attempt, which may speak of its own nodes, devices and links, for its own job; or
            somebody who may speak of any.
        clusters: Those that ever answered.

    Raises:
        NotAllowed: The caller may not speak of something in it; nothing of it is taken then.
        NotFound: There is no such cluster.
    """
    if caller.attempt is not None:
        events: Sequence[HealthEvent] = _of_attempt(connection, batch, caller.attempt)
        teller: str = caller.attempt
    else:
        caller.require(connection, Right.TELL_HEALTH, LAB)
        teller, events = str(caller), batch.events
        for name in sorted({one.scope.cluster for one in events} - set(clusters)):
            raise NotFound(ATTEMPTED, on=f"cluster {name}", wanted=nearest(name, clusters), next_step="ms cluster ls")
    return [Told(teller=teller, event=one if one.at_s <= now_s else replace(one, at_s=now_s)) for one in events]


def taken(connection: sa.Connection, told: Sequence[Told], now_s: float) -> HealthTaken:
    """Writes what is told; returns how much of it was not there.

    Args:
        connection: From `Store.write`.
    """
    added = add_samples(connection, told, now_s)
    return HealthTaken(taken=added, repeated=len(told) - added)


def _of_attempt(connection: sa.Connection, batch: HealthBatch, attempt: AttemptId) -> Sequence[HealthEvent]:
    record = attempt_by_id(connection, attempt)
    if record is None:
        raise NotFound(ATTEMPTED, on=attempt, got="an attempt that the store does not know")
    own = _places(connection, attempt)
    for one in batch.events:
        scope = one.scope
        if scope.cluster != record.cluster or scope.node not in own:
            got = f"{scope.kind.value} {scope.part or scope.node or scope.kind.value} of {scope.node or 'no node'}"
            wanted = f"one of its own nodes: {', '.join(sorted(own)[:5]) or 'it holds none any more'}"
            raise NotAllowed(ATTEMPTED, on=attempt, got=f"{got} in {scope.cluster}", wanted=wanted)
    return [replace(one, job=record.job) for one in batch.events]


def _places(connection: sa.Connection, attempt: AttemptId) -> Collection[str]:
    """Returns the nodes of an attempt, and where its cluster chose them the machines behind them."""
    own = live_allocations_of(connection, [attempt])
    held = parts(connection, [one.id for one in own])
    return {node for one in own for node in (*held[one.id].nodes, *one.hosts)}
