"""The tenant tree by rows of teams: who is above whom, and what those below come to together."""

from __future__ import annotations

from mainspring.planner.facts.snapshot import NONE, Flags

Rows = list[list[int]]  # One row a team, one column a chip type; the last column is for chips of unknown type.


class TeamTree:
    """Teams by row.

    Args:
        parent: The row of the team above each, or `NONE`.

    Attributes:
        path: Of each team, from itself up to the top.
        upward: Every team after those below it.
        single_top: The team at the top, when there is but one; else `NONE`.
    """

    def __init__(self, parent: list[int]) -> None:
        self.parent = parent
        self.path = _paths(parent)
        self.upward = sorted(range(len(parent)), key=lambda team: -len(self.path[team]))
        tops = [team for team, above in enumerate(parent) if above == NONE]
        self.single_top = tops[0] if len(tops) == 1 else NONE

    def summed(self, own: Rows) -> Rows:
        """Returns what each team has with all below it.

        Args:
            own: What each has by itself.
        """
        sums = [list(row) for row in own]
        for team in self.upward:
            if self.parent[team] != NONE:
                above = sums[self.parent[team]]
                for chip, milli in enumerate(sums[team]):
                    above[chip] += milli
        return sums

    def below(self, own: Rows, width: int) -> Rows:
        """Returns for each team, and at last for the whole tree, what those right below count for together.

        A team counts for its own figure, or for what those right below it count for, whichever is more.

        Args:
            width: How many of them.
        """
        below = [[0] * width for _ in range(len(own) + 1)]  # `NONE` is the last row: the whole tree.
        for team in self.upward:
            above = below[self.parent[team]]
            for chip, (mine, theirs) in enumerate(zip(own[team], below[team], strict=True)):
                above[chip] += max(mine, theirs)
        return below

    def marked(self, flags: Flags) -> list[tuple[int, ...]]:
        """Returns for each team the marked ones on its path, from the top down.

        Args:
            flags: One for each team.
        """
        marks = flags.tolist()
        if not any(marks):
            return [()] * len(self.path)
        return [tuple([above for above in reversed(path) if marks[above]]) for path in self.path]


def _paths(parent: list[int]) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for team in range(len(parent)):
        path = [team]
        while parent[path[-1]] != NONE:
            path.append(parent[path[-1]])
        paths.append(tuple(path))
    return paths
