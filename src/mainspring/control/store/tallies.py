"""How many jobs that have not ended there are, and how long their specs: of each person, of each team.

Whoever writes a job, or its end, counts it here in the same transaction: counting 100,000 jobs with each submit would
take longer than the submit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from mainspring.control.store.schema import jobs, tallies
from mainspring.domain.ids import JobId, TeamName

_OWN = (tallies.c.owner == sa.bindparam("whose"), tallies.c.team == sa.bindparam("of"))
_ADD = (
    sa.update(tallies)
    .where(*_OWN)
    .values(jobs=tallies.c.jobs + sa.bindparam("jobs_more"), letters=tallies.c.letters + sa.bindparam("letters_more"))
)
_SUMS = (sa.func.coalesce(sa.func.sum(tallies.c.jobs), 0), sa.func.coalesce(sa.func.sum(tallies.c.letters), 0))
_OF_TEAMS = sa.select(tallies.c.team, *_SUMS).group_by(tallies.c.team)
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


def settle(connection: sa.Connection, ended: Sequence[JobId]) -> None:
    """Counts jobs no longer.

    Args:
        connection: From `Store.write`.
        ended: Jobs that end in this transaction, few enough for one IN list.
    """
    counted = (sa.func.count().label("jobs"), sa.func.sum(sa.func.length(jobs.c.spec)).label("letters"))
    own = sa.select(jobs.c.owner, jobs.c.team, *counted).where(jobs.c.id.in_(ended))
    for row in connection.execute(own.group_by(jobs.c.owner, jobs.c.team)):
        _add(connection, row.owner, row.team, Tally(jobs=-int(row.jobs), letters=-int(row.letters)))


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
