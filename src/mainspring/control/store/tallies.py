"""How many jobs there are, by their end, and how long the specs of those are that have not: of each person and team.

Whoever writes a job, or its end, counts it here in the same transaction: counting 100,000 jobs with each submit would
take longer than the submit, and counting all that ever ended with each look longer than anybody waits. Jobs that have
ended stay counted when they are removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import sqlalchemy as sa

from mainspring.control.store.schema import LIVE, WAITS, array_ends, jobs, tallies, whys
from mainspring.domain.ids import JobId, TeamName
from mainspring.domain.life import JobState, ended

ENDS = tuple(state for state in JobState if ended(state))
_OWN = (tallies.c.owner == sa.bindparam("whose"), tallies.c.team == sa.bindparam("of"))
_ADD = (
    sa.update(tallies)
    .where(*_OWN)
    .values(jobs=tallies.c.jobs + sa.bindparam("jobs_more"), letters=tallies.c.letters + sa.bindparam("letters_more"))
)
_ADD_ENDS = {end: _ADD.values({end.value: tallies.c[end.value] + sa.bindparam("ends_more")}) for end in ENDS}
_ADD_OF_ARRAY = {
    end: sa.update(array_ends)
    .where(array_ends.c.array_id == sa.bindparam("whose"))
    .values({end.value: array_ends.c[end.value] + sa.bindparam("ends_more")})
    for end in ENDS
}
_SUMS = (sa.func.coalesce(sa.func.sum(tallies.c.jobs), 0), sa.func.coalesce(sa.func.sum(tallies.c.letters), 0))
_OF_TEAMS = sa.select(tallies.c.team, *_SUMS).group_by(tallies.c.team)
_ENDED = [sa.func.sum(tallies.c[end.value]) for end in ENDS]
_ENDED_OF_TEAMS = sa.select(tallies.c.team, *_ENDED).group_by(tallies.c.team)
_TEAMS_OF = sa.select(tallies.c.team).where(tallies.c.owner == sa.bindparam("whose")).order_by(tallies.c.team)
_OF_PERSON = sa.select(*_SUMS).where(tallies.c.owner == sa.bindparam("whose"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Jobs that have not ended, and the letters of their specs; those of an array have one spec together."""

    jobs: int = 0
    letters: int = 0

    def __add__(self, other: Tally) -> Tally:
        """Returns both together."""
        return Tally(jobs=self.jobs + other.jobs, letters=self.letters + other.letters)


def begin(connection: sa.Connection, owner: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Counts jobs that begin.

    Args:
        connection: From `Store.write`.
        owner: Whose they are.
        rows: As they are written to `jobs`.
    """
    more: dict[str, Tally] = {}
    for row in rows:
        team = str(row["team"])
        more[team] = more.get(team, Tally()) + Tally(jobs=1, letters=len(str(row["spec"])))
    for team, tally in more.items():
        _add(connection, owner, team, tally)


def settle(connection: sa.Connection, over: Sequence[JobId], end: JobState) -> None:
    """Counts jobs as ended, and forgets what those waited for that had not started.

    Args:
        connection: From `Store.write`.
        over: Jobs that end in this transaction, few enough for one IN list.
        end: How.
    """
    connection.execute(sa.delete(whys).where(whys.c.job_id.in_(over), WAITS))
    counted = (sa.func.count().label("jobs"), sa.func.sum(sa.func.length(jobs.c.spec)).label("letters"))
    whose = (jobs.c.owner, jobs.c.team, jobs.c.array_id)
    for row in connection.execute(sa.select(*whose, *counted).where(jobs.c.id.in_(over)).group_by(*whose)):
        less = {"jobs_more": -int(row.jobs), "letters_more": -int(row.letters), "ends_more": int(row.jobs)}
        connection.execute(_ADD_ENDS[end], {"whose": row.owner, "of": row.team, **less})
        if row.array_id is not None:
            given = {"whose": row.array_id, "ends_more": int(row.jobs)}
            if not connection.execute(_ADD_OF_ARRAY[end], given).rowcount:
                connection.execute(sa.insert(array_ends), {"array_id": row.array_id, end.value: int(row.jobs)})


def counts_by_state(
    connection: sa.Connection, *, owner: str | None = None, teams: Sequence[TeamName] | None = None
) -> Mapping[JobState, int]:
    """Returns how many jobs are in each state: of those that ended, also those that were removed since.

    Args:
        owner: Only of this person, unless None.
        teams: Only of these teams, unless None.
    """
    if owner is not None:
        known = teams_of_person(connection, owner)  # With them, an index has the jobs of one state.
        teams = known if teams is None else [team for team in teams if team in known]
    which = {"owner": None if owner is None else [owner], "team": teams}
    given = {name: some for name, some in which.items() if some is not None}
    counts = _counts(*given)
    found = dict(zip(ENDS, map(int, connection.execute(counts.of_ended, given).one()), strict=True))
    return found | {JobState(state): count for state, count in connection.execute(counts.of_live, given)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counts:
    """Statements that count jobs."""

    of_ended: sa.Select[Any]
    of_live: sa.Select[Any]


@cache
def _counts(*names: str) -> _Counts:
    """Returns what counts jobs whose columns of these names have some values."""
    some: dict[str, sa.BindParameter[Any]] = {name: sa.bindparam(name, expanding=True) for name in names}
    sums = [sa.func.coalesce(sa.func.sum(tallies.c[end.value]), 0) for end in ENDS]
    live = [jobs.c[name].in_(values) for name, values in some.items()]
    return _Counts(
        of_ended=sa.select(*sums).where(*(tallies.c[name].in_(values) for name, values in some.items())),
        of_live=sa.select(jobs.c.state, sa.func.count()).where(LIVE, *live).group_by(jobs.c.state),
    )


def counts_by_team(connection: sa.Connection) -> Mapping[tuple[str, JobState], int]:
    """Returns how many jobs of each team are in each state, as `counts_by_state` does; states of none are left out."""
    found = {
        (row.team, end): int(row[at])
        for row in connection.execute(_ENDED_OF_TEAMS)
        for at, end in enumerate(ENDS, start=1)
        if row[at]
    }
    live = sa.select(jobs.c.team, jobs.c.state, sa.func.count()).where(LIVE).group_by(jobs.c.team, jobs.c.state)
    return found | {(team, JobState(state)): count for team, state, count in connection.execute(live)}


def counts_of_arrays(connection: sa.Connection, of: Sequence[JobId]) -> Mapping[JobId, Mapping[JobState, int]]:
    """Returns how many jobs of some arrays are in each state; states of none are left out.

    Args:
        of: Their first jobs, few enough for one IN list.
    """
    counts: dict[JobId, dict[JobState, int]] = {array: {} for array in of}
    live = sa.select(jobs.c.array_id, jobs.c.state, sa.func.count()).where(jobs.c.array_id.in_(of), LIVE)
    for array, state, count in connection.execute(live.group_by(jobs.c.array_id, jobs.c.state)):
        counts[JobId(array)][JobState(state)] = count
    for row in connection.execute(sa.select(array_ends).where(array_ends.c.array_id.in_(of))).mappings():
        counts[JobId(row["array_id"])] |= {end: row[end.value] for end in ENDS if row[end.value]}
    return counts


def teams_of_person(connection: sa.Connection, owner: str) -> tuple[TeamName, ...]:
    """Returns the teams in which a person ever submitted a job, in order of name."""
    return tuple(TeamName(team) for team in connection.execute(_TEAMS_OF, {"whose": owner}).scalars())


def tallies_of_teams(connection: sa.Connection) -> Mapping[TeamName, Tally]:
    """Returns what each team has, those below it not counted; teams that never had any are left out."""
    rows = connection.execute(_OF_TEAMS)
    return {TeamName(team): Tally(jobs=int(count), letters=int(letters)) for team, count, letters in rows}


def tally_of_person(connection: sa.Connection, owner: str) -> Tally:
    """Returns what a person has, in all teams."""
    count, letters = connection.execute(_OF_PERSON, {"whose": owner}).one()
    return Tally(jobs=int(count), letters=int(letters))


def _add(connection: sa.Connection, owner: str, team: str, more: Tally) -> None:
    given = {"whose": owner, "of": team, "jobs_more": more.jobs, "letters_more": more.letters}
    if not connection.execute(_ADD, given).rowcount:
        row = {"owner": owner, "team": team, "jobs": more.jobs, "letters": more.letters}
        connection.execute(sa.insert(tallies), row)
