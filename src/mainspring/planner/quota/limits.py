"""Limits: hard caps, bounds on borrowing and dollar budgets, which bind a team and all above it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from mainspring.domain.ids import ChipName
from mainspring.domain.job import MILLI
from mainspring.domain.plan import Limit
from mainspring.planner.facts.policy import HOUR_S
from mainspring.planner.facts.reasons import BindingLimit
from mainspring.planner.facts.snapshot import NO_LIMIT, Integers, Teams
from mainspring.planner.quota.tree import Rows, TeamTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """What a grant takes from its team.

    Args:
        chips: Pairs of chip type (its index, or `NONE` when it is unknown) and thousandths; each type once.
        duration_s: How long it is expected to last, infinity when nobody can know: then an hour is charged.
    """

    chips: tuple[tuple[int, int], ...]
    dollars_per_hour: float
    duration_s: float

    @property
    def dollars(self) -> float:
        """Returns what it costs in all."""
        return self.dollars_per_hour * (self.duration_s if self.duration_s < inf else HOUR_S) / HOUR_S


class Limits:
    """What teams hold and have spent, against the most they may.

    Args:
        used: What each team holds with all below it.
        promised: What each is guaranteed, or those right below it are together.
    """

    def __init__(
        self, tree: TeamTree, teams: Teams, chips: tuple[ChipName, ...], *, used: Rows, promised: Rows
    ) -> None:
        self._path, self._names, self._chips = tree.path, teams.names, chips
        self._used, self._promised = [list(row) for row in used], promised
        self._total = [sum(row) for row in used]
        self._milli_max: list[int] = teams.milli_max.tolist()
        self._capped = tree.marked(teams.milli_max != NO_LIMIT)
        borrow_max = widened(teams.borrow_max_milli, NO_LIMIT)
        self._borrow_max: Rows = borrow_max.tolist()
        self._bounded = tree.marked(np.any(borrow_max != NO_LIMIT, axis=1))
        self._dollars_max: list[float] = teams.dollars_max.tolist()
        self._dollars: list[float] = teams.dollars.tolist()
        self._budgeted = tree.marked(np.isfinite(teams.dollars_max))

    def chip_bar(self, team: int, charge: Charge) -> BindingLimit | None:
        """Returns the first limit on chips that a grant would break: caps from the top down, then borrowing.

        Args:
            team: The team that would be charged.
            charge: What it would take.
        """
        if self._capped[team] and charge.chips:
            asked = sum(milli for _, milli in charge.chips)
            for above in self._capped[team]:
                short = self._total[above] + asked - self._milli_max[above]
                if short > 0:
                    most, holds = count_text(self._milli_max[above]), count_text(self._total[above])
                    return self._quota(above, f"may hold {most} chips and holds {holds}", asked, short)
        for above in self._bounded[team]:
            for chip, milli in charge.chips:
                borrow_max, promised = self._borrow_max[above][chip], self._promised[above][chip]
                short = self._used[above][chip] + milli - promised - borrow_max
                if borrow_max != NO_LIMIT and short > 0:
                    beyond = f" beyond its {count_text(promised)}" if promised else ""
                    may = f"may borrow {count_text(borrow_max)} {self._chips[chip]}{beyond}"
                    return self._quota(above, f"{may} and holds {count_text(self._used[above][chip])}", milli, short)
        return None

    def dollar_bar(self, team: int, charge: Charge) -> BindingLimit | None:
        """Returns the first budget that a grant would break, from the top down.

        Args:
            team: The team that would be charged.
            charge: What it would take.
        """
        for above in self._budgeted[team]:
            short_dollars = self._dollars[above] + charge.dollars - self._dollars_max[above]
            if short_dollars > 0 and charge.dollars > 0:
                may = f"may spend {self._dollars_max[above]:.2f} dollars and spent {self._dollars[above]:.2f}"
                text = f"team {self._names[above]} {may}; {charge.dollars:.2f} more are {short_dollars:.2f} too many"
                return BindingLimit(limit=Limit.BUDGET, where=self._names[above], short_by=0.0, text=text)
        return None

    def hold(self, team: int, chip: int, milli: int) -> None:
        """Counts chips that a team holds from now on, or no longer.

        Args:
            milli: How many more, in thousandths.
        """
        for above in self._path[team]:
            self._used[above][chip] += milli
            self._total[above] += milli

    def spend(self, team: int, dollars: float) -> None:
        """Counts what a team spends."""
        for above in self._budgeted[team]:
            self._dollars[above] += dollars

    def _quota(self, team: int, may: str, asked: int, short: int) -> BindingLimit:
        text = f"team {self._names[team]} {may}; {count_text(asked)} more are {count_text(short)} too many"
        return BindingLimit(limit=Limit.QUOTA, where=self._names[team], short_by=short / MILLI, text=text)


def widened(table: Integers, unknown: int) -> Integers:
    """Returns a table of limits with one more column, for chips of unknown type."""
    return np.concatenate([table, np.full((len(table), 1), unknown, dtype=np.int64)], axis=1)


def count_text(milli: int) -> str:
    """Returns a number of chips in words."""
    return f"{milli / MILLI:g}"
