"""Evidence of losses at nodes: which node an attempt's end points at, what earlier ends pointed at, what of it counts.

Nothing is decided here about where jobs go: `state.avoidance` folds the events that are read here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from mainspring.control.store.holdings import allocations_of, parts
from mainspring.control.store.records import AttemptRecord, event_of, reported
from mainspring.control.store.schema import EVIDENCE, agents, attempts, events
from mainspring.domain.answers import Event
from mainspring.domain.fleet import NodeRef
from mainspring.domain.ids import AttemptId, JobId, NodeName
from mainspring.domain.life import AttemptState
from mainspring.domain.wire import EXIT_PREEMPTED
from mainspring.domain.wire.events.attempts import AttemptStoppingEvent, NodeBlamedEvent, NodeClearedEvent
from mainspring.domain.wire.events.leads import (
    AgentLostEvent,
    GenerationResumedEvent,
    GenerationSteppingEvent,
    RankExitedEvent,
)

# Losses of one job that are held against a node and not against the job: one at a bad node, and one more by bad luck.
SPARED_MAX = 2
_READ_MAX = (
    256  # Events of an attempt's last generation; the first failure is far from the last in the widest gangs only.
)
_EXITS_READ_MAX = 32  # The first bad exit is among the first few: later ones are ranks that lost their peers.
_TELLING = (AttemptStoppingEvent, AgentLostEvent, RankExitedEvent, GenerationResumedEvent)
_BY_JOB = sa.select(events).where(events.c.kind.in_([NodeBlamedEvent.kind, NodeClearedEvent.kind]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """An attempt's end, held against a node or for it.

    Args:
        outcome: SUCCEEDED speaks for the node, LOST and FAILED against it.
        again: Whether the job was to be tried again.
        reason: What was lost, for people.
    """

    time_s: float
    job: JobId
    at: NodeRef
    outcome: AttemptState
    again: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostAttempt:
    """A lost attempt, and the node it is held against, None where nothing points at one."""

    reason: str
    at: NodeRef | None


def evidence_since(connection: sa.Connection, since_s: float) -> tuple[Evidence, ...]:
    """Returns all evidence since a time, oldest first."""
    query = sa.select(events).where(EVIDENCE, events.c.time_s > since_s).order_by(events.c.time_s, events.c.sequence)
    return tuple(evidence_of(event_of(row)) for row in connection.execute(query))


def evidence_by(connection: sa.Connection, job: JobId) -> tuple[Evidence, ...]:
    """Returns the evidence of one job's attempts, oldest first."""
    query = _BY_JOB.where(events.c.job_id == job).order_by(events.c.sequence)
    return tuple(evidence_of(event_of(row)) for row in connection.execute(query))


def evidence_of(event: Event) -> Evidence:
    """Returns what an event says of a node.

    Args:
        event: Of a kind that is evidence.
    """
    assert event.job is not None
    told = event.told
    assert isinstance(told, NodeBlamedEvent | NodeClearedEvent)
    at = NodeRef(cluster=told.cluster, node=told.node)
    if isinstance(told, NodeClearedEvent):
        return Evidence(time_s=event.time_s, job=event.job, at=at, outcome=AttemptState.SUCCEEDED)
    return Evidence(
        time_s=event.time_s, job=event.job, at=at, outcome=told.outcome, again=told.again, reason=told.reason
    )


def losses_of(connection: sa.Connection, job: JobId, *, leaving_out: str) -> tuple[LostAttempt, ...]:
    """Returns a job's lost attempts, oldest first.

    Args:
        leaving_out: A cause of which losses do not count.
    """
    query = sa.select(attempts.c.id, attempts.c.reason).where(
        attempts.c.job_id == job,
        attempts.c.state == AttemptState.LOST.value,
        attempts.c.stop_cause != leaving_out,
    )
    rows = connection.execute(query.order_by(attempts.c.number)).all()
    if not rows:
        return ()
    blamed = _BY_JOB.where(events.c.job_id == job)
    told = {row.attempt_id: evidence_of(event_of(row)).at for row in connection.execute(blamed)}
    return tuple(LostAttempt(reason=row.reason, at=told.get(row.id)) for row in rows)


def counted(losses: Sequence[LostAttempt], *, attempts_max: int) -> int:
    """Returns how many losses count against a job.

    What was lost at one node only is held against that node, up to `SPARED_MAX` times. A job that was lost on several
    nodes is likelier at fault itself: then all of it counts. One that may be tried once is tried once.

    Args:
        losses: All of the job's.
        attempts_max: Losses after which it fails.
    """
    nodes = {loss.at for loss in losses if loss.at is not None}
    if len(nodes) != 1 or attempts_max == 1:
        return len(losses)
    return len(losses) - min(SPARED_MAX, sum(loss.at is not None for loss in losses))


def first_error(connection: sa.Connection, attempt: AttemptRecord) -> str:
    """Returns the first bad exit of a rank that an attempt's lead told of, "" when there was none.

    One after which ranks stepped again was recovered from, and is not what the attempt ended of.
    """
    own = (events.c.job_id == attempt.job, events.c.attempt_id == attempt.id)
    stepping = sa.select(sa.func.max(events.c.sequence)).where(*own, events.c.kind == GenerationSteppingEvent.kind)
    since = sa.func.coalesce(stepping.scalar_subquery(), 0)
    exits = sa.select(events).where(*own, events.c.kind == RankExitedEvent.kind, events.c.sequence > since)
    for row in connection.execute(exits.order_by(events.c.sequence).limit(_EXITS_READ_MAX)):
        told = event_of(row).told
        if isinstance(told, RankExitedEvent) and told.exit_code not in (0, EXIT_PREEMPTED):
            words = f": {told.last_words}" if told.last_words else ""
            return f"rank {told.rank} exited with {told.exit_code}{words}"
    return ""


def culprit_of(connection: sa.Connection, attempt: AttemptRecord) -> NodeName | None:
    """Returns the node that an attempt's end points at, None where nothing does.

    That is where its engine saw the one agent end that ended; else where the first rank or agent of its last generation
    did; else the first node whose agent did not come; else the only node it had.

    Args:
        attempt: A stopping attempt, as it stands in this transaction.
    """
    own = allocations_of(connection, attempt.id)
    held = parts(connection, [one.id for one in own])
    place_of = {one.agent_first + place: node for one in own for place, node in enumerate(held[one.id].nodes)}
    nodes = dict.fromkeys(place_of.values())
    if len(nodes) == 1:
        return next(iter(nodes))
    told = _told_last(connection, attempt.id)
    for event in told:
        if isinstance(event, AttemptStoppingEvent) and event.node in nodes:
            return event.node
    node_of = nodes_of_ranks(connection, attempt.id)
    for event in told:
        if isinstance(event, AgentLostEvent) and event.node in nodes:
            return NodeName(event.node)
        if isinstance(event, RankExitedEvent) and event.exit_code not in (0, EXIT_PREEMPTED):
            return node_of.get(event.rank)
    came = set(connection.execute(sa.select(agents.c.agent).where(agents.c.attempt_id == attempt.id)).scalars())
    missing = [node for number, node in sorted(place_of.items()) if number not in came]
    return missing[0] if came and missing else None


def node_of_agent(connection: sa.Connection, attempt: AttemptId, agent: int) -> NodeName | None:
    """Returns the node that one of an attempt's agents was granted, None for an agent that it has not."""
    own = allocations_of(connection, attempt)
    held = parts(connection, [one.id for one in own])
    places = {one.agent_first + place: node for one in own for place, node in enumerate(held[one.id].nodes)}
    return places.get(agent)


def nodes_of_ranks(connection: sa.Connection, attempt: AttemptId) -> Mapping[int, NodeName]:
    """Returns the node of each rank of an attempt, as its lead reported it last, else as it was granted."""
    own = allocations_of(connection, attempt)
    held = parts(connection, [one.id for one in own])
    node_of: dict[int, NodeName] = {}
    for one in own:
        rank = one.rank_first
        for node, count in zip(held[one.id].nodes, held[one.id].ranks, strict=True):
            node_of |= dict.fromkeys(range(rank, rank + count), node)
            rank += count
    return node_of | {status.rank: NodeName(status.node) for status in reported(connection, attempt).ranks}


def _told_last(connection: sa.Connection, attempt: AttemptId) -> list[object]:
    """Returns what tells of failures since an attempt's last generation began, oldest first."""
    kinds = [kind.kind for kind in _TELLING]
    job = sa.select(attempts.c.job_id).where(attempts.c.id == attempt).scalar_subquery()
    query = sa.select(events).where(events.c.job_id == job, events.c.attempt_id == attempt, events.c.kind.in_(kinds))
    told: list[object] = []
    for row in connection.execute(query.order_by(events.c.sequence.desc()).limit(_READ_MAX)):
        event = event_of(row).told
        if isinstance(event, GenerationResumedEvent):
            break
        told.append(event)
    return told[::-1]
