"""Lending: what subtrees keep of their guarantees from all others while it is idle."""

from __future__ import annotations

from mainspring.planner.facts.snapshot import NONE
from mainspring.planner.quota.tree import Rows, TeamTree


class Lending:
    """What each subtree keeps, while what it holds changes.

    Args:
        tree: The tenant tree.
        unlent: What each team does not lend of its guarantee.
        used: What each team holds with all below it.
        width: How many types of chip there are.

    Attributes:
        binds: Whether anybody keeps anything.
    """

    def __init__(self, tree: TeamTree, unlent: Rows, used: Rows, width: int) -> None:
        self.binds = any(map(any, unlent))
        self._path, self._unlent = tree.path, unlent
        self._idle = [
            [kept - milli for kept, milli in zip(*rows, strict=True)] for rows in zip(unlent, used, strict=True)
        ]
        self._below = tree.below(self._idle, width)

    def kept_from(self, team: int, chip: int, within: int) -> int:
        """Returns how much a team must leave to the subtrees below another that do not contain it.

        Args:
            team: The team.
            chip: The type of chip.
            within: The other, above it; `NONE` for the whole tree.
        """
        kept = self._below[within][chip]
        for above in self._path[team]:
            if above == within:
                break
            kept += self._below[above][chip] - self._kept(above, chip)
        return kept

    def keeper(self, team: int, chip: int) -> int:
        """Returns who keeps most from a team by its own limit; the first by name among equals.

        Args:
            team: The team.
            chip: The type of chip.
        """
        path = self._path[team]
        others = [other for other, unlent in enumerate(self._unlent) if unlent[chip] and other not in path]
        return max(others, key=lambda other: self._idle[other][chip])

    def hold(self, team: int, chip: int, milli: int) -> None:
        """Counts chips that a team holds from now on, or no longer.

        Args:
            team: The team.
            chip: Their type.
            milli: How many more, in thousandths.
        """
        kept_more = 0
        for above in self._path[team]:
            # What a subtree keeps changes with what it holds, and so does what the one around it keeps.
            before = self._kept(above, chip)
            self._below[above][chip] += kept_more
            self._idle[above][chip] -= milli
            kept_more = self._kept(above, chip) - before
        self._below[NONE][chip] += kept_more

    def _kept(self, team: int, chip: int) -> int:
        """Returns how much the subtree of a team keeps from all others."""
        return max(0, self._idle[team][chip], self._below[team][chip])
