"""What is known here already of how machines are, as health events: by leads, by attempts' ends, and by engines.

These are told as by the controller itself, each once: how far events and states of nodes were looked at is in the
store. What is of an engine's own word stays a shadow: it has closed the node by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any, final

import sqlalchemy as sa

from mainspring.control.loop.nodes.quiet_leads import QuietLeads
from mainspring.control.store.evidence import nodes_of_ranks
from mainspring.control.store.nodes.samples import Told, add_samples
from mainspring.control.store.records import (
    AttemptRecord,
    attempts_by_id,
    event_of,
    look_on,
    looked_at,
    newest_event,
)
from mainspring.control.store.schema import closures, events, node_states
from mainspring.domain.answers import Event
from mainspring.domain.errors import InvalidInput
from mainspring.domain.fleet import NodeCondition
from mainspring.domain.hardware.health import (
    MESSAGE_LENGTH_MAX,
    QUIET,
    REPLICAS,
    SDC,
    STRAGGLER,
    HealthEvent,
    HealthSource,
    Repair,
    Scope,
    ScopeKind,
    Strategy,
)
from mainspring.domain.ids import AttemptId, ClusterName, NodeName
from mainspring.domain.life import AttemptState
from mainspring.domain.wire import EXIT_PREEMPTED
from mainspring.domain.wire.events.attempts import NodeBlamedEvent, NodeClearedEvent
from mainspring.domain.wire.events.leads import (
    AgentHeardEvent,
    AgentLostEvent,
    AgentQuietEvent,
    DevicesDifferEvent,
    HangEvent,
    RankEvenEvent,
    RankExitedEvent,
    RankSlowEvent,
    ReplicasDifferEvent,
)

NodesOfRanks = Callable[[AttemptId], Mapping[int, NodeName]]
NODES_MAX = 16  # Of one event: a lead names no more.
TAKEN_MAX = 500  # Events, and states of nodes, looked at in one tick.
_KINDS = (
    NodeBlamedEvent,
    NodeClearedEvent,
    AgentLostEvent,
    AgentQuietEvent,
    AgentHeardEvent,
    DevicesDifferEvent,
    HangEvent,
    RankEvenEvent,
    RankExitedEvent,
    RankSlowEvent,
    ReplicasDifferEvent,
)
_EVENTS, _STATES = "health events", "health states"  # See `looked_at`.
_RUNS, _ENGINE = "runtime", "engine"  # Names of sources.
_ASKED = (0, EXIT_PREEMPTED, -15)  # Ends of ranks that were well, or asked for.
_DEVICE = re.compile(r"device ([0-9]{1,4})\b")
_UNWRITTEN_MAX = 1_000  # Of no interest, that another leader may look at once more.
_BEFORE = node_states.alias()
_WAS_OTHER = sa.exists().where(
    _BEFORE.c.until_s == node_states.c.since_s,
    _BEFORE.c.cluster == node_states.c.cluster,
    _BEFORE.c.node == node_states.c.node,
)
# With each whether the node was in another before: a question for each of a new fleet's nodes would hold up who writes.
_NEW_STATES = (
    sa.select(node_states, _WAS_OTHER.label("was_other"))
    .where(node_states.c.ordinal > sa.bindparam("seen"))
    .order_by(node_states.c.ordinal)
    .limit(TAKEN_MAX)
)


@final
class OwnKnowledge:
    """How far one leader has looked."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._written: dict[str, int] = {}
        self._leads = QuietLeads()

    def take(self, connection: sa.Connection, now_s: float) -> int:
        """Writes what came since the last time as health events; returns how many these are.

        Args:
            connection: From `Store.write`, of the leader.
        """
        told = [*self._of_events(connection), *self._of_states(connection), *self._leads.of(connection, now_s)]
        return add_samples(connection, [Told(teller="", event=one) for one in told], now_s)

    def _of_events(self, connection: sa.Connection) -> Iterator[HealthEvent]:
        newest = newest_event(connection)
        seen = self._begin(connection, _EVENTS, newest)
        since = (events.c.sequence > seen, events.c.kind.in_([kind.kind for kind in _KINDS]))
        rows = connection.execute(sa.select(events).where(*since).order_by(events.c.sequence).limit(TAKEN_MAX)).all()
        found = [event_of(row) for row in rows]
        wanted = dict.fromkeys(one.attempt for one in found if one.attempt is not None)
        attempts = {one.id: one for one in attempts_by_id(connection, wanted)}
        nodes_of = cache(partial(nodes_of_ranks, connection))
        for one in found:
            attempt = attempts.get(one.attempt) if one.attempt is not None else None
            if attempt is not None:
                yield from _of_event(one, attempt, nodes_of)
        self._end(connection, _EVENTS, found[-1].sequence if len(found) == TAKEN_MAX else newest, told=bool(found))

    def _of_states(self, connection: sa.Connection) -> Iterator[HealthEvent]:
        newest = connection.execute(sa.select(sa.func.max(node_states.c.ordinal))).scalar() or 0
        seen = self._begin(connection, _STATES, newest)
        rows = connection.execute(_NEW_STATES, {"seen": seen}).all()
        for row in rows:
            if (made := _of_state(connection, row)) is not None:
                yield made
        self._end(connection, _STATES, rows[-1].ordinal if len(rows) == TAKEN_MAX else newest, told=bool(rows))

    def _begin(self, connection: sa.Connection, name: str, newest: int) -> int:
        """Returns the last that was looked at: what was before this release began to is not."""
        if name not in self._seen:
            self._seen[name] = self._written[name] = looked_at(connection, name, lambda: newest)
        return min(self._seen[name], newest)  # A store that went back in time counts on from where it is.

    def _end(self, connection: sa.Connection, name: str, seen: int, *, told: bool) -> None:
        self._seen[name] = seen
        if told or seen - self._written[name] > _UNWRITTEN_MAX or seen < self._written[name]:
            look_on(connection, name, seen)
            self._written[name] = seen


# ---------------------------------------------------------------- events of runs


def _of_event(event: Event, attempt: AttemptRecord, nodes_of: NodesOfRanks) -> Iterator[HealthEvent]:
    """Returns what an event of a run says of nodes, of each by itself."""
    told = event.told
    several = told.nodes.split(", ") if isinstance(told, DevicesDifferEvent | ReplicasDifferEvent) else [""]
    for number, node in enumerate(several[:NODES_MAX]):
        if (made := _of_node(event, attempt, nodes_of, node)) is not None:
            yield made if not number else replace(made, source=replace(made.source, session=f"{attempt.id}.{number}"))


def _of_node(event: Event, attempt: AttemptRecord, nodes_of: NodesOfRanks, of: str) -> HealthEvent | None:
    """Returns what an event of a run says of a node, `of` where it names several; None where it says nothing.

    Words of programs are left out: whoever reads of nodes may not read of jobs. Nothing follows from a rank's end by
    itself: programs end by their own faults, far more often than by a node's.
    """
    told = event.told
    match told:
        case NodeBlamedEvent() if told.outcome is AttemptState.LOST:
            return _seen(event, attempt, told.node, "attempt-lost", "an attempt was lost there")
        case NodeClearedEvent():
            return _seen(event, attempt, told.node, "attempt-lost", "", healthy=True)
        case AgentLostEvent():
            return _seen(event, attempt, told.node, "agent-lost", "its agent was not heard of any more")
        case AgentQuietEvent():
            return _seen(event, attempt, told.node, QUIET, "its agent is not heard of; it may be there still")
        case AgentHeardEvent():
            return _seen(event, attempt, told.node, QUIET, "", healthy=True)
        case RankEvenEvent():
            return _seen(event, attempt, told.node, STRAGGLER, "", healthy=True)
        case RankSlowEvent():
            words = f"a rank took {told.ratio:.3g} times as long as the others for its part"
            return _seen(event, attempt, told.node, STRAGGLER, words)
        case RankExitedEvent() if told.exit_code not in _ASKED:
            node, codes = nodes_of(attempt.id).get(told.rank, ""), (f"exit{told.exit_code:+d}",)
            made = _seen(event, attempt, node, "rank-exit", "a rank ended otherwise than well", codes=codes)
            return None if made is None else replace(made, repair=Repair.NONE)
        case ReplicasDifferEvent() if told.odd:
            words = "its replica of state is not what most others have: it may compute wrongly"
            made = _seen(event, attempt, of, REPLICAS, words)
            return None if made is None else replace(made, fatal=True, repair=Repair.CALL_PEOPLE)
        case DevicesDifferEvent() if told.certain:
            words = f"{_device(told)} computes otherwise than two that agree"
            made = _seen(event, attempt, of, SDC, words)
            return None if made is None else replace(made, fatal=True, repair=Repair.CALL_PEOPLE)
        case DevicesDifferEvent():
            again = f"{_device(told)} did not come to the same again: it may compute wrongly"
            words = again if told.again else "devices do not agree; nothing tells which are right"
            made = _seen(event, attempt, of, SDC, words)
            return None if made is None else replace(made, repair=Repair.RESET_DEVICE)
        case HangEvent() if told.odd.isdecimal():
            node = nodes_of(attempt.id).get(int(told.odd), "")
            return _seen(event, attempt, node, "hang", f"a rank kept the others waiting for {told.silent_s:.0f} s")
        case _:
            return None


def _device(told: DevicesDifferEvent) -> str:
    """Returns which device of one node a program speaks of: its number alone, for all else is its own words."""
    found = _DEVICE.match(told.device) if ", " not in told.nodes else None
    return f"device {found[1]}" if found is not None else "a device"


def _seen(
    event: Event,
    attempt: AttemptRecord,
    node: str,
    check: str,
    words: str,
    *,
    codes: tuple[str, ...] = (),
    healthy: bool = False,
) -> HealthEvent | None:
    try:
        return HealthEvent(
            source=HealthSource(name=_RUNS, session=attempt.id, sequence=event.sequence),
            at_s=event.time_s,
            scope=Scope(kind=ScopeKind.NODE, cluster=attempt.cluster, node=NodeName(node)),
            check=check,
            healthy=healthy,
            codes=codes,
            message=words,
            repair=Repair.NONE if healthy else Repair.RESTART_RANKS,
            strategy=Strategy.ACT,
            job=attempt.job,
        )
    except InvalidInput:  # Of no node, or of a machine with a name that no node of ours has.
        return None


# ---------------------------------------------------------------- states of nodes


def _of_state(connection: sa.Connection, row: Any) -> HealthEvent | None:
    """Returns what an engine's word for a node says, None where it is ours, or the first of a sound one."""
    condition = NodeCondition(row.condition)
    if condition is NodeCondition.COMING or (condition is NodeCondition.CORDONED and _is_ours(connection, row)):
        return None
    if condition is NodeCondition.READY and not row.was_other:
        return None
    healthy, down = condition is NodeCondition.READY, condition is NodeCondition.DOWN
    return HealthEvent(
        source=HealthSource(name=_ENGINE, session=f"s{row.since_s:.0f}", sequence=row.ordinal),
        at_s=row.since_s,
        scope=Scope(kind=ScopeKind.NODE, cluster=ClusterName(row.cluster), node=NodeName(row.node)),
        check="condition",
        healthy=healthy,
        codes=() if healthy else (condition.value,),
        fatal=down,
        message="" if healthy else " ".join(filter(None, (row.owner, row.reason)))[:MESSAGE_LENGTH_MAX],
        strategy=Strategy.SHADOW,
    )


def _is_ours(connection: sa.Connection, row: Any) -> bool:
    own = (closures.c.cluster == row.cluster, closures.c.node == row.node, closures.c.owner == row.owner)
    return connection.execute(sa.select(closures.c.number).where(*own).limit(1)).first() is not None
