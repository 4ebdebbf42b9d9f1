"""Fair share: how much a team borrowed and used, compared with its siblings at every level of the tree."""

from __future__ import annotations

from mainspring.planner.facts.snapshot import NONE, Teams
from mainspring.planner.quota.tree import Rows, TeamTree


class Shares:
    """Shares of teams, while what they hold changes.

    Args:
        teams: Weights and decayed use.
        borrowed: What each team and those below it hold beyond what they are promised; then, one more row a team, what
            it holds by itself: where it has teams below it, that competes with them.
        lendable: What can be borrowed in the whole tree.
    """

    def __init__(self, tree: TeamTree, teams: Teams, *, borrowed: Rows, lendable: list[int]) -> None:
        self._path = tree.path
        self._per_pool: list[float] = [1.0 / max(1, milli) for milli in lendable]
        self._per_pool[NONE] = 0.0  # Chips of unknown type are in no pool.
        count = len(tree.path)
        self._borrowed = borrowed
        self._weight: list[float] = [*teams.weight.tolist(), *([1.0] * count)]
        use = teams.usage.tolist()
        for team in tree.upward:
            if tree.parent[team] != NONE:
                use[tree.parent[team]] += use[team]
        self._use = [each / weight for each, weight in zip(use, self._weight, strict=False)] + teams.usage.tolist()
        has_below = [False] * (count + 1)
        for parent in tree.parent:
            has_below[parent] = True
        self._compared = [
            (
                *(above for above in reversed(path) if above != tree.single_top),
                *((team + count,) if has_below[team] else ()),
            )
            for team, path in enumerate(tree.path)
        ]
        self._dominant = [self._dominant_of(row) for row in range(2 * count)]

    def of(self, team: int) -> tuple[float, ...]:
        """Returns how much a team and those above it had, from the top of the tree down: less goes first.

        Each level gives two numbers: the dominant share of what is borrowed there, over what can be borrowed in the
        whole tree, then decayed use; both divided by the weight. A single team at the top is left out. A team with
        teams below it competes with them: what it holds by itself counts as one more team there, of weight 1.

        Source: Ghodsi et al., Dominant Resource Fairness (NSDI'11), on what is borrowed as in Kueue's fair sharing.
        """
        dominant, use = self._dominant, self._use
        return tuple([each for row in self._compared[team] for each in (dominant[row], use[row])])

    def hold(self, team: int, chip: int, milli: int) -> None:
        """Counts chips that a team holds from now on, or no longer.

        Args:
            milli: How many more, in thousandths.
        """
        for row in (*self._path[team], team + len(self._path)):
            self._borrowed[row][chip] += milli
        for row in self._compared[team]:
            # The chip that grew is the only one that can have become the dominant one.
            more = self._share_of(row, chip)
            self._dominant[row] = max(self._dominant[row], more) if milli > 0 else self._dominant_of(row)

    def _dominant_of(self, row: int) -> float:
        return max(0.0, *[self._share_of(row, chip) for chip in range(len(self._per_pool))])

    def _share_of(self, row: int, chip: int) -> float:
        return self._borrowed[row][chip] * self._per_pool[chip] / self._weight[row]
