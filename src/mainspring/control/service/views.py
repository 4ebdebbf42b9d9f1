"""The store as people see it: jobs, their attempts, why they are where they are, and the clusters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import sqlalchemy as sa

from mainspring.control.service.lists import JobFilter, listed
from mainspring.control.service.reports.goodput import goodput_of
from mainspring.control.service.steering.pausing import hold_of
from mainspring.control.service.traces.telling import trace_of
from mainspring.control.state.active_state import held
from mainspring.control.state.avoidance import REMEMBERED_S, Avoidance
from mainspring.control.state.fleet import FleetView, read_closed, read_holds
from mainspring.control.store.evidence import evidence_by, evidence_since
from mainspring.control.store.holdings import ALLOCATION_LIVE, grants, held_parts
from mainspring.control.store.nodes.closures import open_closures
from mainspring.control.store.nodes.settings import healths
from mainspring.control.store.records import (
    AttemptRecord,
    JobRecord,
    Reported,
    attempts_of,
    chunks,
    jobs_by_id,
    read_text,
    reported,
    specs_of,
)
from mainspring.control.store.schema import WAITS, allocations, jobs, whys
from mainspring.control.store.settings import Settings
from mainspring.control.store.tallies import counts_of_arrays
from mainspring.control.store.tokens import LAB_ITSELF, Caller, sight
from mainspring.domain.answers import (
    ArrayView,
    AttemptView,
    ClusterView,
    JobView,
    NodeClosure,
    NodeView,
    Verdict,
    Why,
)
from mainspring.domain.codec import alike
from mainspring.domain.errors import NotFound, nearest
from mainspring.domain.fleet import NodeRef
from mainspring.domain.ids import AttemptId, ClusterName, JobId, NodeName
from mainspring.domain.job import Hold, JobSpec
from mainspring.domain.life import AttemptState, JobState, ended
from mainspring.domain.plan import Candidate, Grant, Limit

_NAMES_MAX = 200
_NAMED_MAX = 1_000  # The newest jobs of one name, of whichever team, among which somebody's own is looked for.
_SECONDS_PER_HOUR = 3_600.0
# Made once, as those of `records`.
_SOME: sa.BindParameter[Any] = sa.bindparam("some", expanding=True)
_SOME_WAITS = sa.select(whys.c.job_id, whys.c.summary, whys.c.start_s, whys.c.exact).where(
    whys.c.job_id.in_(_SOME), WAITS
)
_WHY = sa.select(whys).where(whys.c.job_id == sa.bindparam("job"))
_QUEUED = (
    sa.select(allocations.c.attempt_id, allocations.c.cluster, allocations.c.queued)
    .where(allocations.c.attempt_id.in_(_SOME), allocations.c.queued != "", allocations.c.state.in_(ALLOCATION_LIVE))
    .order_by(allocations.c.place)
)
_ELSEWHERE = (
    sa.select(allocations.c.attempt_id, allocations.c.part, allocations.c.hosts)
    .where(allocations.c.attempt_id.in_(_SOME), allocations.c.hosts != "[]")
    .order_by(allocations.c.place)
)
_UNTIL_S = sa.func.coalesce(allocations.c.ended_s, sa.bindparam("now_s"))
_HELD = (allocations.c.granted_s < _UNTIL_S) & (sa.func.coalesce(allocations.c.queued, "") == "")
_LASTED_S = sa.case((_HELD, _UNTIL_S - allocations.c.granted_s), else_=0.0)
_COST = (
    sa.select(allocations.c.attempt_id, sa.func.sum(_LASTED_S * allocations.c.dollars_per_hour / _SECONDS_PER_HOUR))
    .where(allocations.c.attempt_id.in_(_SOME))
    .group_by(allocations.c.attempt_id)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a job is: its state, and the state of each of its attempts, in order of number."""

    job: JobId
    state: JobState
    attempts: tuple[AttemptState, ...]

    @property
    def ended(self) -> bool:
        """Returns whether nothing more will come."""
        return ended(self.state)


def find_job(connection: sa.Connection, reference: str, caller: Caller = LAB_ITSELF) -> JobRecord:
    """Returns the job with an id, or the newest with a name, of those that somebody may read.

    Args:
        reference: An id or a name.
        caller: Who asks.

    Raises:
        NotFound: Neither; names the nearest job.
    """
    seen = sight(connection, caller)
    known = jobs_by_id(connection, [JobId(reference)]).get(JobId(reference))
    if known is not None and (seen is None or known.team in seen):
        return known
    newest = sa.select(jobs.c.id, jobs.c.team).where(jobs.c.name == reference).order_by(jobs.c.ordinal.desc())
    named = newest.limit(1 if seen is None else _NAMED_MAX).subquery()  # Others may have many of that name.
    query = sa.select(named.c.id).where(*([] if seen is None else [named.c.team.in_(sorted(seen))])).limit(1)
    found = jobs_by_id(connection, [JobId(job) for job in connection.execute(query).scalars()])
    if found:
        return next(iter(found.values()))
    near = jobs_by_id(connection, listed(connection, JobFilter(seen=seen), _NAMES_MAX))
    names = [job.name for job in near.values()]
    raise NotFound("find a job", on=repr(reference[:80]), wanted=nearest(reference[:80], names), next_step="ms ps")


def progress_of(connection: sa.Connection, reference: str) -> Progress:
    """Returns how far a job is; see `find_job`."""
    job = find_job(connection, reference)
    own = attempts_of(connection, [job.id]).get(job.id, [])
    return Progress(job=job.id, state=job.state, attempts=tuple(attempt.state for attempt in own))


def view_job(
    connection: sa.Connection, job: JobRecord, *, now_s: float, settings: Settings, spec: JobSpec | None = None
) -> JobView:
    """Returns everything about one job.

    Args:
        now_s: The time, for what has not ended.
        spec: What it was made of, where the caller has it: then it is not read again.
    """
    own = attempts_of(connection, [job.id]).get(job.id, [])
    granted = grants(connection, [attempt.id for attempt in own])
    told = _told(connection, own, now_s)
    view = _job_view(
        _holds(connection, [job]),
        job,
        spec or specs_of(connection, [job], {})[job.id],
        tuple(_view_attempt(attempt, granted, told, reported(connection, attempt.id)) for attempt in own),
        _waits(connection, [job]).get(job.id),
        _arrays(connection, [job]),
    )
    view = replace(view, trace=trace_of(connection, job.id, settings.traces))
    return replace(view, goodput=goodput_of(connection, job, now_s=now_s, lease_s=settings.lease_s)) if own else view


def list_jobs(connection: sa.Connection, wanted: JobFilter, *, limit: int, now_s: float) -> tuple[JobView, ...]:
    """Returns jobs, newest first: of their specs what they ask for, without ranks, goodput, what is at risk.

    Of each array only the newest job that matches is shown, with a count of all its jobs by state.

    Args:
        limit: The most to return.
    """
    return _list_views(connection, listed(connection, wanted, limit), now_s)


def _list_views(connection: sa.Connection, wanted: Sequence[JobId], now_s: float) -> tuple[JobView, ...]:
    found, own = jobs_by_id(connection, wanted), attempts_of(connection, wanted)
    written = specs_of(connection, found.values(), {})
    every = [attempt for some in own.values() for attempt in some]
    granted, told = grants(connection, [attempt.id for attempt in every]), _told(connection, every, now_s)
    waits, arrays = _waits(connection, found.values()), _arrays(connection, found.values())
    holds = _holds(connection, found.values())
    return tuple(
        _job_view(
            holds,
            found[job],
            _asked(written[job]),
            tuple(_view_attempt(attempt, granted, told, Reported()) for attempt in own.get(job, [])),
            waits.get(job),
            arrays,
        )
        for job in wanted
    )


def _asked(spec: JobSpec) -> JobSpec:
    """Returns what a spec asks for, without what is long in it: a look at one job shows that."""
    roles = tuple(replace(role, command=role.command[:1], environment={}) for role in spec.roles)
    return replace(spec, roles=roles, inputs=(), views=(), reads=(), after=())


def _holds(connection: sa.Connection, of: Iterable[JobRecord]) -> dict[JobId, Hold]:
    """Returns what keeps some jobs that have not ended from starting, as far as something does."""
    held = read_holds(connection)
    found = {job.id: hold_of(job, held, connection) for job in of if not ended(job.state)}
    return {job: hold for job, hold in found.items() if hold is not None}


def _job_view(
    holds: Mapping[JobId, Hold],
    job: JobRecord,
    spec: JobSpec,
    own: tuple[AttemptView, ...],
    wait: _Wait | None,
    arrays: Mapping[JobId, Mapping[str, int]],
) -> JobView:
    place = None
    if job.array is not None:
        assert job.array_index is not None
        assert job.array_count is not None
        place = ArrayView(
            first=job.array, index=job.array_index, count=job.array_count, states=arrays.get(job.array, {})
        )
    reason = own[-1].reason if job.state is JobState.STARTING and own and own[-1].reason else job.reason
    known = alike(JobView, job) | {"reason": reason, "array": place} | (alike(JobView, wait) if wait else {})
    if hold := holds.get(job.id):
        known |= {"hold": hold} | ({"reason": str(hold)} if job.state is JobState.QUEUED else {})
    named = spec if job.name == spec.name else replace(spec, name=job.name)
    return JobView(**known, spec=named, attempts=own, goodput=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wait:
    """What the newest plan says of a job that waits."""

    reason: str
    start_s: float | None
    exact: bool


def _waits(connection: sa.Connection, of: Iterable[JobRecord]) -> dict[JobId, _Wait]:
    """Returns what the newest plan says of those that wait."""
    waits: dict[JobId, _Wait] = {}
    for some in chunks([job.id for job in of if job.state is JobState.QUEUED]):
        for row in connection.execute(_SOME_WAITS, {"some": some}):
            waits[JobId(row.job_id)] = _Wait(reason=row.summary, start_s=row.start_s, exact=row.exact)
    return waits


def _arrays(connection: sa.Connection, of: Iterable[JobRecord]) -> dict[JobId, dict[str, int]]:
    """Returns how many jobs are in each state, by array, of the arrays that some jobs belong to."""
    counts: dict[JobId, dict[str, int]] = {}
    for some in chunks(dict.fromkeys(job.array for job in of if job.array is not None)):
        for array, states in counts_of_arrays(connection, some).items():
            counts[array] = {state.value: states[state] for state in sorted(states, key=lambda state: state.value)}
    return counts


def view_why(connection: sa.Connection, job: JobRecord, now_s: float) -> Why:
    """Returns why a job is where it is, or waits, and which nodes it keeps away from.

    Args:
        now_s: For what it keeps away from still.
    """
    told = _view_why(connection, job)
    if ended(job.state):
        return told
    avoided = Avoidance(evidence_by(connection, job.id)).of_job(job.id)
    hold = _holds(connection, [job]).get(job.id)
    if hold is not None and job.state is JobState.QUEUED:
        told = Why(
            job=job.id,
            state=job.state,
            plan=told.plan,
            summary=str(hold),
            limit=Limit.PAUSED,
            candidates=(),
            where=hold.team,
            holds=(hold,),
        )
    return replace(told, avoided=tuple(one for one in avoided if one.until_s > now_s))


def _view_why(connection: sa.Connection, job: JobRecord) -> Why:
    row = connection.execute(_WHY, {"job": job.id}).one_or_none()
    # What was said while it waited is not why it ended, and what was said when it started not why it waits again.
    spoken = row is not None and (row.limit_name is None) is not (job.state is JobState.QUEUED)
    if row is None or not spoken:
        summary = job.reason or "no plan has considered it yet"
        return Why(job=job.id, state=job.state, plan=0, summary=summary, limit=None, candidates=())
    own = attempts_of(connection, [job.id]).get(job.id, []) if job.state is JobState.STARTING else []
    queued = _queues(connection, own[-1:]).get(own[-1].id) if own else None
    return Why(
        job=job.id,
        state=job.state,
        plan=row.plan,
        summary=f"{row.summary}; {queued}" if queued else row.summary,
        limit=Limit(row.limit_name) if row.limit_name else None,
        candidates=read_text(tuple[Candidate, ...], row.candidates),
        where=row.whose,
        short_by=row.short_by,
        start_s=row.start_s,
        exact=row.exact,
    )


def list_verdicts(connection: sa.Connection, wanted: JobFilter, *, limit: int) -> tuple[Verdict, ...]:
    """Returns what waiting jobs wait for, those of the same words together, what most wait for first.

    Args:
        limit: The most to return.
    """
    same = (whys.c.limit_name, whys.c.whose, whys.c.summary)
    count, first = sa.func.count().label("size"), sa.func.min(jobs.c.ordinal).label("first")
    groups = (
        sa.select(*same, count, first, sa.func.min(whys.c.start_s).label("start_s"))
        .join(jobs, whys.c.job_id == jobs.c.id)
        .where(WAITS, *wanted.conditions())
        .group_by(*same)
        .order_by(sa.desc("size"), "first")
        .limit(limit)
        .subquery()
    )
    query = sa.select(groups, jobs.c.id).join(jobs, jobs.c.ordinal == groups.c.first)
    return tuple(
        Verdict(
            limit=Limit(row.limit_name),
            where=row.whose,
            reason=row.summary,
            count=row.size,
            first=JobId(row.id),
            start_s=row.start_s,
        )
        for row in connection.execute(query.order_by(groups.c.size.desc(), groups.c.first))
    )


def list_nodes(
    connection: sa.Connection,
    view: ClusterView,
    *,
    within: str | None = None,
    after: str | None,
    limit: int,
    only: NodeName | None = None,
) -> tuple[NodeView, ...]:
    """Returns nodes of a cluster, in order of name.

    Args:
        within: Only those in a domain of this name, unless None.
        after: The last one seen, None to begin.
        limit: The most to return.
        only: Just this one, unless None.
    """
    every = view.inventory.nodes
    if within is not None:
        every = tuple(node for node in every if any(name == within for _, name in node.domains))
    left = (node for node in every if (after is None or node.name > after) and only in (None, node.name))
    shown, cluster = tuple(islice(left, limit)), view.inventory.cluster
    avoided = {one.at.node: one for one in view.avoided}
    known = healths(
        connection, cluster=cluster, nodes=[node.name for node in shown] if len(shown) < len(every) else None
    )
    closed: dict[NodeRef, tuple[NodeClosure, ...]] = {}
    for one in open_closures(connection):
        closed[one.at] = (*closed.get(one.at, ()), one)
    return tuple(
        NodeView(
            node=node,
            used_chip_milli=view.used_chip_milli.get(node.name, 0),
            avoided=avoided.get(node.name),
            health=known.get(NodeRef(cluster=cluster, node=node.name)),
            closures=closed.get(NodeRef(cluster=cluster, node=node.name), ()),
        )
        for node in shown
    )


def view_clusters(connection: sa.Connection, fleet: FleetView, now_s: float) -> tuple[ClusterView, ...]:
    """Returns every cluster that ever answered, in order of name.

    Args:
        connection: Where to read what is granted, and what was lost.
        fleet: What the engines said.
        now_s: For which nodes are avoided still.
    """
    seen, holds = fleet.seen(), read_closed(connection).ahead(now_s)
    counts = {name: len(one.inventory.nodes) for name, one in seen.items() if not one.inventory.delegated}
    told = evidence_since(connection, now_s - REMEMBERED_S)
    avoided = Avoidance(one for one in told if one.time_s <= now_s).of_all(now_s, counts)  # Not of a clock set back.
    parts: dict[ClusterName, list[Grant]] = {}
    for part in held_parts(connection):
        parts.setdefault(part.cluster, []).append(part)
    return tuple(
        ClusterView(
            inventory=holds.applied(one.inventory),
            used_chip_milli=dict(sorted(held(parts.get(name, ())).items())),
            answering=one.answering,
            seen_s=one.seen_s,
            avoided=tuple(node for node in avoided if node.at.cluster == name),
            hold=holds.clusters.get(name),
        )
        for name, one in seen.items()
    )


def nodes_of(granted: Iterable[Grant]) -> tuple[NodeName, ...]:
    """Returns the node of each agent, in agent order; a node that serves two roles has two agents.

    Args:
        granted: An attempt's grants.
    """
    return tuple(node for grant in granted for node in grant.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What is told of some attempts from their allocations: dollars, waits in queues, machines by node."""

    cost: Mapping[AttemptId, float]
    queues: Mapping[AttemptId, str]
    hosts: Mapping[AttemptId, Mapping[str, str]]


def _told(connection: sa.Connection, of: Sequence[AttemptRecord], now_s: float) -> _Told:
    return _Told(cost=_dollars(connection, of, now_s), queues=_queues(connection, of), hosts=_hosts(connection, of))


def _queues(connection: sa.Connection, of: Iterable[AttemptRecord]) -> dict[AttemptId, str]:
    """Returns what those of some attempts wait for that are in their cluster's own queue, in words."""
    found: dict[AttemptId, str] = {}
    for some in chunks([attempt.id for attempt in of if not attempt.stop_cause]):
        for row in connection.execute(_QUEUED, {"some": some}):
            words = f"waits in the queue of {row.cluster} itself: {row.queued}"
            found.setdefault(AttemptId(row.attempt_id), words)
    return found


def _hosts(connection: sa.Connection, of: Iterable[AttemptRecord]) -> dict[AttemptId, dict[str, str]]:
    """Returns the machines behind the nodes of some attempts, where their clusters chose them."""
    found: dict[AttemptId, dict[str, str]] = {}
    for some in chunks([attempt.id for attempt in of]):
        for row in connection.execute(_ELSEWHERE, {"some": some}):
            named = zip(read_text(Grant, row.part).nodes, read_text(tuple[str, ...], row.hosts), strict=False)
            found.setdefault(AttemptId(row.attempt_id), {}).update(named)
    return found


def _dollars(connection: sa.Connection, of: Iterable[AttemptRecord], now_s: float) -> dict[AttemptId, float]:
    """Returns what some attempts have cost: what each of their allocations did while it was held."""
    found: dict[AttemptId, float] = {}
    for some in chunks([attempt.id for attempt in of]):
        for attempt, sum_ in connection.execute(_COST, {"some": some, "now_s": now_s}):
            found[AttemptId(attempt)] = sum_
    return found


def _view_attempt(
    attempt: AttemptRecord,
    granted: Mapping[AttemptId, tuple[Grant, ...]],
    told: _Told,
    seen: Reported,
) -> AttemptView:
    known = alike(AttemptView, attempt, seen) | {"reason": attempt.reason or told.queues.get(attempt.id, "")}
    if ended(attempt.state):
        known["at_risk"] = None  # Nothing runs that could lose it.
    return AttemptView(
        **known,
        nodes=nodes_of(granted[attempt.id]),
        dollars=told.cost.get(attempt.id, 0.0),
        hosts=told.hosts.get(attempt.id, {}),
    )
