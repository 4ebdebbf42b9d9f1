"""The fleet at a time: what ran where, what waited, which nodes there were, and what was closed.

Jobs are known for as long as the archive has them, by rows that say from when until when something was. States of
nodes, and what people held, are known for as long as events are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from mainspring.control.service.retention.archive import Place
from mainspring.control.service.retention.past_jobs import place_in
from mainspring.control.service.views import nodes_of
from mainspring.control.state.fleet import Holds, read_holds
from mainspring.control.store.holdings import merged, parts
from mainspring.control.store.records import chunks, event_of
from mainspring.control.store.schema import allocations, archived, archives, attempts, events, jobs, node_states
from mainspring.domain.answers import ClosedNode, JobHistory, PastAttempt, PastCluster
from mainspring.domain.errors import NotFound
from mainspring.domain.fleet import NodeCondition, NodeRef
from mainspring.domain.ids import AllocationId, ClusterName, JobId, NodeName, TeamName
from mainspring.domain.job import NO_CLUSTER, NO_NODE, NO_TEAM, Hold
from mainspring.domain.wire.events.jobs import HoldPlacedEvent, HoldReleasedEvent

LIVES_MAX = 2_000  # Jobs that are read from the archive: some seconds, of an object store far away.
_HOLDS_READ_MAX = 100_000  # Events of what people hold: many in a minute, for as long as any are kept.


@dataclass(frozen=True, slots=True, kw_only=True)
class PastNode:
    """The state of a node at a time."""

    at: NodeRef
    state: ClosedNode


@dataclass(frozen=True, slots=True, kw_only=True)
class PastJobs:
    """Which attempts held nodes at a time, the last granted first; of how many jobs, and how many others waited."""

    attempts: tuple[PastAttempt, ...]
    running: int
    waiting: int


def require_known(connection: sa.Connection, at_s: float, *, now_s: float) -> None:
    """Returns if something is known of a time.

    Raises:
        NotFound: Nothing is; names the first time of which something is known.
    """
    oldest = (
        sa.select(jobs.c.submitted_s).order_by(jobs.c.ordinal).limit(1),
        sa.select(sa.func.min(archives.c.first_s)),
        sa.select(node_states.c.since_s).order_by(node_states.c.ordinal).limit(1),
    )
    known = [first for query in oldest if (first := connection.execute(query).scalar()) is not None]
    earliest = f"from {_clock(min(known))}, the first of which anything is known" if known else "a lab that has begun"
    if not known or not min(known) <= at_s <= now_s:
        raise NotFound("look at the fleet", got=_clock(at_s), wanted=f"a time {earliest}, until now")


def _clock(at_s: float) -> str:
    try:
        return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return f"{at_s:g} s after 1970"


def _alive(
    query: sa.Select[Any], began: sa.Column[float], ended: sa.Column[float | None], at_s: float
) -> sa.CompoundSelect[Any]:
    """Returns the rows of what had begun at a time, and not ended, from an index of both: of what ended since."""
    return sa.union_all(*(query.where(began <= at_s, then) for then in (ended.is_(None), ended > at_s)))


# ---------------------------------------------------------------- nodes, and what people held


def nodes_at(connection: sa.Connection, at_s: float, *, known_s: float) -> Sequence[PastNode] | None:
    """Returns the nodes of all clusters, each cluster's in order of name; None where they are not known.

    Args:
        known_s: From when on states of nodes are kept that are over.
    """
    first = sa.select(node_states.c.since_s).order_by(node_states.c.ordinal).limit(1)
    first_s = connection.execute(first).scalar()
    if first_s is None or at_s < max(first_s, known_s):
        return None
    then = _alive(sa.select(node_states), node_states.c.since_s, node_states.c.until_s, at_s)
    rows = sorted(connection.execute(then), key=lambda row: (row.cluster, row.node))
    return [
        PastNode(
            at=NodeRef(cluster=ClusterName(row.cluster), node=NodeName(row.node)),
            state=ClosedNode(
                node=NodeName(row.node),
                condition=NodeCondition(row.condition),
                since_s=row.since_s,
                by=row.owner,
                reason=row.reason,
            ),
        )
        for row in rows
    ]


def holds_at(connection: sa.Connection, at_s: float) -> Holds:
    """Returns what people held: by what they said last before, else by whether they let go of it first after.

    What nobody has spoken of since is as it is now.
    """
    kinds = events.c.kind.in_((HoldPlacedEvent.kind, HoldReleasedEvent.kind))
    query = sa.select(events).where(events.c.job_id.is_(None), kinds).order_by(events.c.sequence.desc())
    found = {_target(hold): hold for hold in read_holds(connection).all() if hold.since_s <= at_s}
    settled = set[Hold]()
    for row in connection.execute(query.limit(_HOLDS_READ_MAX)):
        told = event_of(row).told
        assert isinstance(told, HoldPlacedEvent | HoldReleasedEvent)
        target = Hold(
            by="",
            since_s=0.0,
            team=told.team or NO_TEAM,
            cluster=told.cluster or NO_CLUSTER,
            node=told.node or NO_NODE,
        )
        if target in settled:
            continue
        if row.time_s <= at_s:
            settled.add(target)
        found.pop(target, None)
        if isinstance(told, HoldPlacedEvent) and row.time_s <= at_s:
            found[target] = replace(target, by=told.by, since_s=row.time_s, reason=told.reason, drain=told.drain)
        elif isinstance(told, HoldReleasedEvent) and row.time_s > at_s:
            found[target] = target
    return Holds(
        clusters={one.cluster: one for one in found.values() if one.cluster and not one.node},
        nodes={NodeRef(cluster=one.cluster, node=one.node): one for one in found.values() if one.node},
    )


def _target(hold: Hold) -> Hold:
    return Hold(by="", since_s=0.0, team=hold.team, cluster=hold.cluster, node=hold.node)


def clusters_at(
    nodes: Sequence[PastNode] | None, held: Holds, ran: Iterable[PastAttempt], *, limit: int
) -> tuple[PastCluster, ...]:
    """Returns every cluster that had nodes, ran something or was held, in order of name.

    Args:
        nodes: None where they are not known.
        held: What people held.
        ran: What held nodes.
        limit: The most closed nodes of each to return.
    """
    used: dict[ClusterName, set[NodeName]] = {}
    for attempt in ran:
        used.setdefault(attempt.cluster, set()).update(attempt.nodes)
    known: dict[ClusterName, list[ClosedNode]] = {}
    for one in nodes or ():
        known.setdefault(one.at.cluster, []).append(_with_hold(one.state, held.nodes.get(one.at)))
    made = []
    for name in sorted({*used, *known, *held.clusters}):
        closed = [node for node in known.get(name, ()) if node.condition is not NodeCondition.READY]
        made.append(
            PastCluster(
                cluster=name,
                nodes=len(known[name]) if name in known else None,
                used=len(used.get(name, ())),
                closed=len(closed),
                closed_nodes=tuple(closed[:limit]),
                hold=held.clusters.get(name),
            )
        )
    return tuple(made)


def _with_hold(node: ClosedNode, hold: Hold | None) -> ClosedNode:
    if hold is None or node.condition is not NodeCondition.READY:
        return node
    return replace(node, condition=NodeCondition.CORDONED, since_s=hold.since_s, by=hold.by, reason=hold.reason)


# ---------------------------------------------------------------- jobs


def stored_at(connection: sa.Connection, at_s: float) -> PastJobs:
    """Returns the jobs that the store has."""
    live = _alive(sa.select(jobs.c.ordinal), jobs.c.submitted_s, jobs.c.ended_s, at_s).subquery()
    count = connection.execute(sa.select(sa.func.count()).select_from(live)).scalar_one()
    then = sa.select(attempts.c.id, attempts.c.job_id, attempts.c.number, attempts.c.cluster, attempts.c.granted_s)
    own = connection.execute(_alive(then, attempts.c.granted_s, attempts.c.ended_s, at_s)).all()
    held = _held(connection, [row.id for row in own], at_s)
    named: dict[str, sa.Row[tuple[str, str, str]]] = {}
    for some in chunks(dict.fromkeys(row.job_id for row in own)):
        query = sa.select(jobs.c.id, jobs.c.name, jobs.c.team).where(jobs.c.id.in_(some))
        named |= {row.id: row for row in connection.execute(query)}
    ran = [
        PastAttempt(
            job=JobId(row.job_id),
            name=named[row.job_id].name,
            team=TeamName(named[row.job_id].team),
            number=row.number,
            cluster=ClusterName(row.cluster),
            nodes=held.get(row.id, ()),
            granted_s=row.granted_s,
        )
        for row in own
    ]
    return _counted(ran, waiting=count - len(named))


def _held(connection: sa.Connection, wanted: Sequence[str], at_s: float) -> Mapping[str, tuple[NodeName, ...]]:
    """Returns the nodes that some attempts held."""
    found: dict[str, list[AllocationId]] = {}
    for some in chunks(wanted):
        query = sa.select(allocations.c.attempt_id, allocations.c.id).where(allocations.c.attempt_id.in_(some))
        live = sa.or_(allocations.c.ended_s.is_(None), allocations.c.ended_s > at_s)
        then = query.where(allocations.c.granted_s <= at_s, live)
        for row in connection.execute(then.order_by(allocations.c.attempt_id, allocations.c.place)):
            found.setdefault(row.attempt_id, []).append(AllocationId(row.id))
    of = parts(connection, [one for own in found.values() for one in own])
    return {attempt: nodes_of(merged(of[one] for one in own)) for attempt, own in found.items()}


def archived_at(connection: sa.Connection, at_s: float) -> Sequence[Place]:
    """Returns where jobs are that had been submitted and not ended, of those that have left the store."""
    then = (archived.c.submitted_s <= at_s, archived.c.ended_s > at_s)
    files = (archives.c.first_s <= at_s, archives.c.last_s > at_s)
    left = sa.not_(sa.exists().where(jobs.c.id == archived.c.job_id))
    query = sa.select(archived).join(archives).where(*files, *then, left)
    return [place_in(row) for row in connection.execute(query.order_by(archived.c.archive, archived.c.offset))]


def with_archived(stored: PastJobs, lives: Iterable[JobHistory], at_s: float) -> PastJobs:
    """Returns the jobs that the store has, and those of the archive.

    Args:
        lives: Of jobs that had been submitted and, as far as rows tell, not ended.
    """
    ran, waiting = list(stored.attempts), stored.waiting
    for job in (life.job for life in lives):
        own = [one for one in job.attempts if one.granted_s <= at_s and (one.ended_s is None or one.ended_s > at_s)]
        waiting += not own and (job.ended_s is None or job.ended_s > at_s)
        ran += [
            PastAttempt(
                job=job.id,
                name=job.spec.name,
                team=job.spec.team,
                number=one.number,
                cluster=one.cluster,
                nodes=one.nodes,
                granted_s=one.granted_s,
                archived=True,
            )
            for one in own
        ]
    return _counted(ran, waiting=waiting)


def _counted(ran: Iterable[PastAttempt], *, waiting: int) -> PastJobs:
    made = tuple(sorted(ran, key=lambda one: (-one.granted_s, one.job)))
    return PastJobs(attempts=made, running=len({one.job for one in made}), waiting=waiting)
