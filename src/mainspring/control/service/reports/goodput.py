"""Goodput in node-seconds: of one job, and of many: together, by team and by cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

import sqlalchemy as sa

from mainspring.control.state.ledgers import ATTEMPTS, DAY_S, TEAM, account, accounted, waits_in_queue
from mainspring.control.store.holdings import allocations_of_each
from mainspring.control.store.records import JobRecord, attempts_of, tenants
from mainspring.control.store.schema import UNCOUNTED, accounts, attempts
from mainspring.domain.answers import GoodputReport
from mainspring.domain.errors import NotFound, nearest
from mainspring.domain.goodput import Goodput, TimeUse, total
from mainspring.domain.ids import ClusterName, TeamName
from mainspring.domain.life import JobState

REPORTED_MAX = 100_000  # Attempts of one report that are not counted yet, newest first; about ten seconds of work.


_DAY_MAX = 1_000_000  # Counted from 1970; nothing is granted after that.


def goodput_of(connection: sa.Connection, job: JobRecord, *, now_s: float, lease_s: float) -> Goodput:
    """Returns the ledger of one job: all its attempts together, and how long it has been in the queue.

    Args:
        lease_s: How long a lead may be silent.
    """
    own = attempts_of(connection, [job.id]).get(job.id, [])
    held = allocations_of_each(connection, [attempt.id for attempt in own])
    queued_s = job.submitted_s
    parts: list[Goodput] = []
    for attempt in own:
        granted_s = now_s if waits_in_queue(held.get(attempt.id, ())) else attempt.granted_s
        waited_s = max(0.0, granted_s - queued_s)
        part = account(attempt, held.get(attempt.id, ()), waited_s=waited_s, now_s=now_s, lease_s=lease_s)
        parts.append(part)
        queued_s = now_s if attempt.ended_s is None else attempt.ended_s
    whole = total(tuple(parts))
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

    Of attempts whose jobs were removed, whole days count: none of the first day that `since_s` is amid.

    Args:
        team: Only of this team and those below it, unless None.
        cluster: Only on this cluster, unless None.
        since_s: Only attempts granted since then.
        lease_s: How long a lead may be silent.
        seen: Only of these teams, unless None.

    Raises:
        NotFound: No such team or cluster.
    """
    teams = None if team is None else _below(connection, team)
    if seen is not None:
        teams = sorted(seen) if teams is None else [one for one in teams if one in seen]
    if cluster is not None:
        _require_cluster(connection, cluster)
    whole_day = ceil(min(since_s / DAY_S, _DAY_MAX))
    which = [] if cluster is None else [attempts.c.cluster == cluster]
    which += [] if teams is None else [TEAM.in_(teams)]
    rows: list[sa.Row[Any]] = []
    for some in (
        (UNCOUNTED, attempts.c.granted_s >= since_s),
        (attempts.c.counted, attempts.c.granted_s >= since_s, attempts.c.granted_s < whole_day * DAY_S),
    ):
        newest = ATTEMPTS.where(*some, *which).order_by(attempts.c.granted_s.desc())
        rows += connection.execute(newest.limit(REPORTED_MAX + 1)).all()
    parts = [
        (row.team, row.cluster, part)
        for row, part in zip(rows, accounted(connection, rows, now_s=now_s, lease_s=lease_s), strict=True)
    ]
    count = len(rows)
    for row in connection.execute(_counted(whole_day, teams, cluster)):
        parts.append((row.team, row.cluster, _goodput(row)))
        count += int(row.attempts)
    by_team: dict[str, list[Goodput]] = {}
    by_cluster: dict[str, list[Goodput]] = {}
    for of, on, part in parts:
        by_team.setdefault(of, []).append(part)
        by_cluster.setdefault(on, []).append(part)
    return GoodputReport(
        attempts=count,
        whole=total(tuple(part for _, _, part in parts)),
        teams=_totals(by_team),
        clusters=_totals(by_cluster),
        complete=len(rows) <= REPORTED_MAX,
    )


def _counted(whole_day: int, teams: Sequence[TeamName] | None, cluster: ClusterName | None) -> sa.Select[Any]:
    """Returns a query of what is counted since the beginning of a day, by team and cluster."""
    which = [accounts.c.day >= whole_day]
    which += [] if teams is None else [accounts.c.team.in_(teams)]
    which += [] if cluster is None else [accounts.c.cluster == cluster]
    keys = (accounts.c.team, accounts.c.cluster)
    sums = (sa.func.sum(column).label(column.name) for column in accounts.c if not column.primary_key)
    return sa.select(*keys, *sums).where(*which).group_by(*keys).order_by(*keys)


def _goodput(row: sa.Row[Any]) -> Goodput:
    """Returns the ledger that columns of `accounts` are."""
    seconds = {use: float(getattr(row, f"{use.value}_s")) for use in TimeUse}
    return Goodput(
        allocated_s=row.allocated_s, seconds=seconds, waited_s=row.waited_s, preemptions=int(row.preemptions)
    )


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
    names = set(connection.execute(sa.select(attempts.c.cluster).where(UNCOUNTED).distinct()).scalars())
    last: str | None = ""
    while last is not None:  # Each found by itself: the table has a row for every day.
        last = connection.execute(
            sa.select(sa.func.min(accounts.c.cluster)).where(accounts.c.cluster > last)
        ).scalar_one()
        names |= {last} - {None}
    if cluster not in names:
        got, known = f"cluster {cluster[:80]!r}", sorted(names)
        raise NotFound("tell a cluster's goodput", on=got, wanted=nearest(cluster[:80], known))
