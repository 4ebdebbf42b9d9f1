"""Goodput accounting in node-seconds: the ledgers that leads report, and what nobody could tell them.

The law holds by construction: a lead's ledger says what its time with its nodes went into, and what is left of the time
allocated is given to what surrounds it, in this order: start-up until all agents have come (the first ones, or those
that were added), what came after the last word, nodes on their way out, and recovery for every other hour in which
nodes were held and no lead counted them. A ledger that claims more than was allocated, as by clocks that disagree, is
scaled down to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import fsum, inf
from typing import Any

import sqlalchemy as sa

from mainspring.control.store.holdings import AllocationRecord, allocations_of_each
from mainspring.control.store.ledger import DISPLACED, StopCause
from mainspring.control.store.records import AttemptRecord, JobRecord, attempts_of, tenants
from mainspring.control.store.schema import ATTEMPT_ROWS, attempts, jobs
from mainspring.domain.answers import GoodputReport
from mainspring.domain.errors import NotFound, nearest
from mainspring.domain.goodput import Goodput, TimeUse, total
from mainspring.domain.ids import ClusterName, TeamName
from mainspring.domain.life import JobState

REPORTED_MAX = 100_000  # Attempts in one report, newest first; about ten seconds of work.
_UNTOLD = (StopCause.LOST.value, StopCause.FENCED.value)


def account(
    attempt: AttemptRecord, held: Sequence[AllocationRecord], *, waited_s: float, now_s: float, lease_s: float
) -> Goodput:
    """Returns the ledger of one attempt.

    Args:
        held: All its allocations, those that are gone too.
        waited_s: How long its job was in the queue before it.
        now_s: Until when an attempt that goes on is counted: until its lead's last word, while that is fresh.
        lease_s: How old a fresh word may be.
    """
    word_s = attempt.heard_s if attempt.led_s is not None else None
    until_s = now_s
    if attempt.ended_s is not None:  # By a clock that may have been set back since the last of it was gone.
        until_s = max((attempt.ended_s, *(one.ended_s for one in held if one.ended_s is not None)))
    if attempt.ended_s is None and not attempt.stop_cause and word_s is not None and 0.0 <= now_s - word_s <= lease_s:
        until_s = word_s
    spans = [_Span(one, until_s) for one in held]
    allocated_s = fsum(span.within(-inf, inf) for span in spans)
    seconds = _told(attempt, allocated_s)
    left_s = max(0.0, allocated_s - fsum(seconds.values()))
    led_s = inf if attempt.led_s is None else attempt.led_s
    failed = attempt.stop_cause in _UNTOLD or not attempt.stop_cause
    for use, claimed_s in (
        (TimeUse.STARTUP, fsum(span.starting(led_s) for span in spans)),
        (
            TimeUse.RECOVERY if failed else TimeUse.WINDDOWN,
            0.0 if word_s is None else fsum(span.within(word_s, inf) for span in spans),
        ),
        (TimeUse.RESIZE, fsum(span.leaving(until_s) for span in spans)),
        (TimeUse.RECOVERY, inf),
    ):
        given_s = min(claimed_s, left_s)
        seconds[use] += given_s
        left_s -= given_s
    return Goodput(
        allocated_s=allocated_s,
        seconds=seconds,
        waited_s=waited_s,
        preemptions=int(attempt.stop_cause in DISPLACED),
    )


def goodput_of(connection: sa.Connection, job: JobRecord, *, now_s: float, lease_s: float) -> Goodput:
    """Returns the ledger of one job: all its attempts together, and how long it has been in the queue.

    Args:
        lease_s: How long a lead may be silent.
    """
    own = attempts_of(connection, [job.id]).get(job.id, [])
    held = allocations_of_each(connection, [attempt.id for attempt in own])
    queued_s = job.submitted_s
    accounts: list[Goodput] = []
    for attempt in own:
        granted_s = now_s if _queued(held.get(attempt.id, ())) else attempt.granted_s
        waited_s = max(0.0, granted_s - queued_s)
        part = account(attempt, held.get(attempt.id, ()), waited_s=waited_s, now_s=now_s, lease_s=lease_s)
        accounts.append(part)
        queued_s = now_s if attempt.ended_s is None else attempt.ended_s
    whole = total(tuple(accounts))
    until_s = now_s if job.ended_s is None else job.ended_s
    waits = job.state is JobState.QUEUED or not own
    return replace(whole, waited_s=whole.waited_s + (max(0.0, until_s - queued_s) if waits else 0.0))


def goodput_report(
    connection: sa.Connection,
    *,
    team: TeamName | None,
    cluster: ClusterName | None,
    since_s: float,
    now_s: float,
    lease_s: float,
    seen: frozenset[TeamName] | None = None,
) -> GoodputReport:
    """Returns the ledgers of many attempts: together, by team and by cluster.

    Args:
        team: Only of this team and those below it, unless None.
        cluster: Only on this cluster, unless None.
        since_s: Only attempts granted since then.
        lease_s: How long a lead may be silent.
        seen: Only of these teams, unless None.

    Raises:
        NotFound: No such team or cluster.
    """
    before_s = sa.func.lag(attempts.c.ended_s).over(partition_by=attempts.c.job_id, order_by=attempts.c.number)
    every = sa.select(attempts, before_s.label("before_s")).subquery()
    query = (
        sa.select(every, jobs.c.team, jobs.c.submitted_s)
        .join(jobs, every.c.job_id == jobs.c.id)
        .where(every.c.granted_s >= since_s)
        .order_by(every.c.granted_s.desc())
        .limit(REPORTED_MAX + 1)
    )
    if team is not None:
        query = query.where(jobs.c.team.in_(_below(connection, team)))
    if seen is not None:
        query = query.where(jobs.c.team.in_(sorted(seen)))
    if cluster is not None:
        _require_cluster(connection, cluster)
        query = query.where(every.c.cluster == cluster)
    rows = connection.execute(query).all()
    counted = rows[:REPORTED_MAX]
    held = allocations_of_each(connection, [row.id for row in counted])
    by_team: dict[str, list[Goodput]] = {}
    by_cluster: dict[str, list[Goodput]] = {}
    for row in counted:
        granted_s = now_s if _queued(held.get(row.id, ())) else row.granted_s
        waited_s = max(0.0, granted_s - (row.submitted_s if row.before_s is None else row.before_s))
        part = account(ATTEMPT_ROWS.value(row), held.get(row.id, ()), waited_s=waited_s, now_s=now_s, lease_s=lease_s)
        by_team.setdefault(row.team, []).append(part)
        by_cluster.setdefault(row.cluster, []).append(part)
    return GoodputReport(
        attempts=len(counted),
        whole=total(tuple(part for own in by_team.values() for part in own)),
        teams=_totals(by_team),
        clusters=_totals(by_cluster),
        complete=len(rows) <= REPORTED_MAX,
    )


def _queued(held: Sequence[AllocationRecord]) -> bool:
    """Returns whether an attempt waits in its cluster's own queue, and nothing of it was ever elsewhere."""
    return bool(held) and all(one.queued for one in held)


class _Span:
    """An allocation's time, in node-seconds.

    Args:
        until_s: Until when it is counted at the most.
    """

    def __init__(self, one: AllocationRecord, until_s: float) -> None:
        self._one = one
        end_s = until_s if one.ended_s is None else min(one.ended_s, until_s)
        # What waits in its cluster's own queue holds nothing yet.
        self._end_s = one.granted_s if one.queued else max(one.granted_s, end_s)

    def within(self, from_s: float, to_s: float) -> float:
        """Returns what lies between two times."""
        return self._one.nodes * max(0.0, min(self._end_s, to_s) - max(self._one.granted_s, from_s))

    def starting(self, led_s: float) -> float:
        """Returns what came before its agents had all come: the attempt's, or its own when it was added later."""
        added = self._one.granted_s > led_s
        came_s = inf if self._one.came_s is None else self._one.came_s
        return self.within(-inf, came_s if added else led_s)

    def leaving(self, until_s: float) -> float:
        """Returns what came after its engine took a stop for it, while its attempt went on."""
        stopped_s = self._one.stopped_s
        return self.within(stopped_s, inf) if stopped_s is not None and self._end_s < until_s else 0.0


def _told(attempt: AttemptRecord, allocated_s: float) -> dict[TimeUse, float]:
    """Returns what leads reported, at most what was allocated."""
    ledgers = (attempt.seconds_before, attempt.seconds)
    seconds = {use: fsum(max(0.0, told.get(use.value, 0.0)) for told in ledgers) for use in TimeUse}
    whole_s = fsum(seconds.values())
    share = min(1.0, allocated_s / whole_s) if whole_s > 0 else 1.0
    return {use: told_s * share for use, told_s in seconds.items()}


def _totals(parts: Mapping[str, Iterable[Goodput]]) -> dict[str, Goodput]:
    return {name: total(tuple(parts[name])) for name in sorted(parts)}


def _below(connection: sa.Connection, team: TeamName) -> list[TeamName]:
    tree = tenants(connection)
    names = [one.name for one in tree]
    if names and team not in names:  # Until somebody names teams, any will do.
        raise NotFound("tell a team's goodput", on=f"team {team[:80]!r}", wanted=nearest(team[:80], names))
    wanted = [team]
    for name in wanted:
        wanted += [one.name for one in tree if one.parent == name]
    return wanted


def _require_cluster(connection: sa.Connection, cluster: ClusterName) -> None:
    names: Sequence[Any] = connection.execute(sa.select(attempts.c.cluster).distinct()).scalars().all()
    if cluster not in names:
        raise NotFound("tell a cluster's goodput", on=f"cluster {cluster[:80]!r}", wanted=nearest(cluster[:80], names))
