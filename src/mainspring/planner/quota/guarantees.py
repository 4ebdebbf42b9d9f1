"""Guarantees: what they cover, what is left in them for whom, and what of them is kept from others while idle.

What a team holds fills its guarantee by tier, then level of chip-time had, then age of the grant; whatever does not fit
is borrowed. What the teams below hold under guarantees of their own counts first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mainspring.planner.facts.snapshot import NONE, Integers, Snapshot, sealed
from mainspring.planner.quota.precedence import BORROWED, TIERS, Precedence
from mainspring.planner.quota.tree import Rows, TeamTree


class Lending:
    """What each subtree keeps, while what it holds changes.

    Args:
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
            chip: The type of chip.
        """
        path = self._path[team]
        others = [other for other, unlent in enumerate(self._unlent) if unlent[chip] and other not in path]
        return max(others, key=lambda other: self._idle[other][chip])

    def hold(self, team: int, chip: int, milli: int) -> None:
        """Counts chips that a team holds from now on, or no longer.

        Args:
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


class Guarantees:
    """What of each guarantee is left for a newcomer, by its tier and level of chip-time had.

    Args:
        guarantee: One row a team, one column a chip type.
        lending: What subtrees keep from others, up to date whenever something is asked.
        held: What each live attempt holds, one column a chip type.
        level: The level of chip-time had of each.
        levels: How many there are.

    Attributes:
        live_precedence: One row a live attempt: standing, rank of the tier, level.
    """

    def __init__(
        self,
        tree: TeamTree,
        guarantee: Integers,
        lending: Lending,
        snapshot: Snapshot,
        held: Integers,
        level: Integers,
        levels: int,
    ) -> None:
        self._path, self._lending, self._levels = tree.path, lending, levels
        self._guarantors = tree.marked(np.any(guarantee > 0, axis=1))
        covered = _covered(tree, guarantee, snapshot, held, level, levels)
        self._left, self.live_precedence = covered.left, covered.precedence

    def rank(self, tier: int, level: int) -> int:
        """Returns the place of a tier and level among all.

        Args:
            tier: Rank of the tier.
            level: Level of chip-time had.
        """
        return min(tier * self._levels + level, TIERS * self._levels - 1)

    def standing(self, team: int, chips: tuple[tuple[int, int], ...], rank: int) -> int:
        """Returns 0 when the team's own guarantee covers a grant, n when that of the team n above does, or `BORROWED`.

        Args:
            team: The team that would be charged.
            chips: As in `Charge`. Nothing covers a grant without chips: guarantees are in chips.
            rank: See `rank`.
        """
        if not chips:
            return BORROWED
        lending = self._lending
        for above in reversed(self._guarantors[team]):
            left = self._left[above]
            for chip, milli in chips:
                if milli > left[chip][rank] - (lending.kept_from(team, chip, above) if lending.binds else 0):
                    break
            else:
                return self._path[team].index(above)
        return BORROWED

    def over(self, team: int) -> tuple[int, ...]:
        """Returns the teams on the path of one that have guarantees, from the top down; () when all is borrowed."""
        return self._guarantors[team]

    def hold(self, team: int, chip: int, milli: int) -> None:
        """Counts chips, in thousandths, that a team holds from now on."""
        for above in self._guarantors[team]:
            left = self._left[above][chip]
            left[:] = [each - milli for each in left]

    def release(self, team: int, chip: int, milli: int, precedence: Precedence) -> None:
        """Counts chips, in thousandths, that a live attempt held no longer.

        Above the guarantee that covered them they came before every newcomer; elsewhere before those of its rank on.

        Args:
            precedence: Its row of `live_precedence`.
        """
        standing, tier, level = precedence
        rank = self.rank(tier, level)
        for above in self._guarantors[team]:
            left = self._left[above][chip]
            first = 0 if self._path[team].index(above) > standing else rank
            left[first:] = [each + milli for each in left[first:]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Covered:
    """The precedence of what is live; of each guarantee, what is left beside all that comes before a newcomer."""

    precedence: Integers
    left: list[Rows]


def _covered(
    tree: TeamTree, guarantee: Integers, snapshot: Snapshot, held: Integers, level: Integers, levels: int
) -> _Covered:
    """Fills guarantees with what is live."""
    left: list[Rows] = []
    live = snapshot.live
    count, width = guarantee.shape
    ranks = TIERS * levels
    standing = np.full(len(held), BORROWED, dtype=np.int64)
    if guarantee.any():
        rank = live.tier * levels + level
        order = np.lexsort((live.granted_s, rank))
        row, chip = np.nonzero(held[order])
        attempt = order[row]
        milli, rank, team = held[attempt, chip], rank[attempt], live.team[attempt]
        before = np.zeros(count * width * ranks)
        depths = np.array([len(path) for path in tree.path])
        for depth in sorted(set(depths[(guarantee > 0).any(axis=1)].tolist()), reverse=True):
            # Deepest first: what a team below covers counts before all else in the guarantees above it.
            ancestor = np.array([path[-depth] if len(path) >= depth else NONE for path in tree.path])[team]
            inside = ancestor != NONE
            cell = ancestor * width + chip
            firm = standing[attempt] != BORROWED
            at = (cell * ranks + np.where(firm, 0, rank))[inside]
            before += np.bincount(at, weights=milli[inside], minlength=len(before))
            firm_milli = np.bincount(cell[inside & firm], weights=milli[inside & firm], minlength=count * width).astype(
                np.int64
            )
            room: list[int] = (guarantee.ravel() - firm_milli).tolist()
            asking = np.flatnonzero(inside & ~firm & ~live.stopping[attempt])
            taken = asking[_fitting(attempt[asking].tolist(), cell[asking].tolist(), milli[asking].tolist(), room)]
            standing[attempt[taken]] = depths[team[taken]] - depth
        ahead = before.reshape(count, width, ranks).cumsum(axis=2).astype(np.int64)
        left = (guarantee[:, :, None] - ahead).tolist()
    return _Covered(precedence=sealed(np.stack([standing, live.tier, level], axis=1)), left=left)


def _fitting(attempts: list[int], cells: list[int], milli: list[int], room: list[int]) -> list[int]:
    """Returns the entries of attempts that find room in turn; all entries of one attempt are adjacent, and all fit.

    Args:
        attempts: The attempt of each entry.
        room: How much each cell has; what is found is taken from it.
    """
    fitting: list[int] = []
    refused = NONE
    for entry, (attempt, cell, asked) in enumerate(zip(attempts, cells, milli, strict=True)):
        if attempt == refused:
            continue
        if asked <= room[cell]:
            room[cell] -= asked
            fitting.append(entry)
            continue
        refused = attempt
        while fitting and attempts[fitting[-1]] == attempt:
            given_back = fitting.pop()
            room[cells[given_back]] += milli[given_back]
    return fitting
