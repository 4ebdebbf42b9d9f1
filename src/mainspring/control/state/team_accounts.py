"""The tenant tree as the loop last read it, and what its teams have spent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import final

import sqlalchemy as sa

from mainspring.control.state.history import Charge, Spending
from mainspring.control.store.records import read_text
from mainspring.control.store.schema import teams
from mainspring.domain.ids import TeamName
from mainspring.domain.team import Team, with_those_above


@final
class TeamAccounts:
    """The teams, and their spending in the windows of their budgets."""

    def __init__(self) -> None:
        self.tree: tuple[Team, ...] = ()
        self._rows: list[tuple[str, str]] | None = None
        self._spending = Spending()
        self._lines: dict[TeamName, tuple[TeamName, ...]] = {}

    def changed(self, connection: sa.Connection, now_s: float) -> bool:
        """Reads the tree again; returns whether it is another."""
        rows = [(row.name, row.facts) for row in connection.execute(sa.select(teams).order_by(teams.c.name))]
        if rows == self._rows:
            return False
        self._rows, self._lines = rows, {}
        self.tree = tuple(read_text(Team, facts) for _, facts in rows)
        self._spending.reach(connection, self.tree, now_s)
        return True

    def ended(self, charge: Charge, ended_s: float) -> None:
        """Charges an allocation that is over."""
        self._spending.ended(charge, ended_s)

    def spent(self, live: Iterable[Charge], now_s: float) -> Mapping[TeamName, float]:
        """Returns what each team and those below it spent, what goes on until now included."""
        return self._spending.totals(self.tree, live, now_s)

    def with_those_above(self, team: TeamName) -> tuple[TeamName, ...]:
        """Returns a team and the teams above it, nearest first."""
        if team not in self._lines:
            self._lines[team] = with_those_above(self.tree, team)
        return self._lines[team]
