"""Which jobs a list shows, and how many there are: found by indices, however many jobs have ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from mainspring.control.store.records import JobRecord, chunks
from mainspring.control.store.schema import jobs
from mainspring.control.store.tallies import counts_by_state, teams_of_person
from mainspring.domain.answers import JobCounts
from mainspring.domain.ids import JobId, TeamName
from mainspring.domain.life import JobState

_TEAMS_APART_MAX = 16  # Teams whose jobs are looked for one by one.
_PARTS_MAX = 128  # Of one statement: SQLite joins 500 at the most.


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs of a list are wanted; None for all.

    Args:
        owner: Who submitted them.
        array: Only the jobs of this array, each of them and in their order.
        after: What the list has after this job, the last that was seen.
        seen: Only jobs of these teams.
    """

    state: JobState | None = None
    team: TeamName | None = None
    owner: str | None = None
    array: JobId | None = None
    after: JobRecord | None = None
    seen: frozenset[TeamName] | None = None

    def teams(self) -> Sequence[TeamName] | None:
        """Returns the teams whose jobs are wanted and may be seen, None for all."""
        if self.team is None:
            return None if self.seen is None else sorted(self.seen)
        return [self.team] if self.seen is None or self.team in self.seen else []

    def conditions(self) -> list[sa.ColumnElement[bool]]:
        """Returns what its jobs meet, wherever they are in the list."""
        asked = {jobs.c.state: self.state and self.state.value, jobs.c.team: self.team, jobs.c.owner: self.owner}
        found = [column == value for column, value in asked.items() if value is not None]
        seen = [] if self.seen is None else [jobs.c.team.in_(sorted(self.seen))]
        return [*seen, *found, *([jobs.c.array_id == self.array] if self.array is not None else ())]


def count_jobs(connection: sa.Connection, wanted: JobFilter) -> JobCounts:
    """Returns how many jobs are in each state, those of arrays one by one: also those that were removed since.

    Args:
        wanted: Of which teams, and whose.
    """
    sizes = counts_by_state(connection, owner=wanted.owner, teams=wanted.teams())
    return JobCounts(states={state.value: sizes[state] for state in JobState if sizes.get(state)})


def listed(connection: sa.Connection, wanted: JobFilter, limit: int) -> Sequence[JobId]:
    """Returns the jobs that a list shows, newest first; of each array only the newest that matches.

    Args:
        limit: The most to return.
    """
    if wanted.array is not None:
        query = sa.select(jobs.c.id).where(*wanted.conditions()).order_by(jobs.c.array_index)
        if wanted.after is not None and wanted.after.array_index is not None:
            query = query.where(jobs.c.array_index > wanted.after.array_index)
        return [JobId(job) for job in connection.execute(query.limit(limit)).scalars()]
    below, shown = None, list[JobId]()
    if wanted.after is not None:
        below = _first_ordinal(connection, wanted.after.array) if wanted.after.array else wanted.after.ordinal
    parts = _parts(connection, wanted)
    while len(shown) < limit:
        rows = _newest(connection, parts, below, limit - len(shown))
        for row in rows:
            shown.append(JobId(row.id))
            if row.array_id is not None:  # All of an array was written at once: the list goes on before it.
                below = _first_ordinal(connection, row.array_id)
                break
        else:
            break
    return shown


def _first_ordinal(connection: sa.Connection, array: str) -> int:
    return int(connection.execute(sa.select(jobs.c.ordinal).where(jobs.c.id == array)).scalar_one())


def _parts(connection: sa.Connection, wanted: JobFilter) -> Sequence[tuple[sa.ColumnElement[bool], ...]]:
    """Returns conditions that a job of a list meets one of, each such that an index has its jobs in order.

    Somebody who sees many teams sees many of the jobs: for them all jobs are looked at, newest first.
    """
    teams = wanted.teams()
    if wanted.owner is not None:
        known = teams_of_person(connection, wanted.owner)
        teams = known if teams is None else [team for team in teams if team in known]
    elif teams is not None and len(teams) > _TEAMS_APART_MAX:
        return [tuple(wanted.conditions())]
    whose = () if wanted.owner is None else (jobs.c.owner == wanted.owner,)
    if teams is None:
        return [tuple(wanted.conditions())]
    states = list(JobState) if wanted.state is None else [wanted.state]
    return [(*whose, jobs.c.team == team, jobs.c.state == state.value) for team in teams for state in states]


def _newest(
    connection: sa.Connection,
    parts: Sequence[tuple[sa.ColumnElement[bool], ...]],
    below: int | None,
    limit: int,
) -> Sequence[sa.Row[tuple[str, str | None, int]]]:
    """Returns the newest jobs that meet one of several conditions, newest first."""
    before = () if below is None else (jobs.c.ordinal < below,)
    found: list[sa.Row[tuple[str, str | None, int]]] = []
    for some in chunks(parts, _PARTS_MAX):
        each = [
            sa.select(jobs.c.id, jobs.c.array_id, jobs.c.ordinal)
            .where(*part, *before)
            .order_by(jobs.c.ordinal.desc())
            .limit(limit)
            for part in some
        ]
        every = each[0] if len(each) == 1 else sa.union_all(*(sa.select(one.subquery()) for one in each))
        found += connection.execute(every).all()
    return sorted(found, key=lambda row: row.ordinal, reverse=True)[:limit]
