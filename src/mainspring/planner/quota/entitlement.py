"""Entitlement: who is covered by a guarantee, who may borrow how much, and who had the least so far.

Three questions, answered while a plan is made and kept up to date by `Entitlement.charge`:

- Bar: would a grant break a limit? Hard caps and dollar budgets bind a team and all above it. `borrow_max` binds what
  a team and those below it hold beyond what they are guaranteed. `lend_max` keeps part of a guarantee from others.
- Standing: is a grant covered by the team's own guarantee, by that of a team above, or borrowed?
- Share: how much did a team borrow, compared with its siblings, at every level of the tree from the top?

Nested guarantees. The guarantee of a team is part of that of the team above, where that one has any. So a subtree is
promised the guarantee of its top, or what those right below are promised together, whichever is more; and it keeps
from others the part of its top's guarantee that is idle and not lent, or what those right below keep together,
whichever is more. A team must leave free what every subtree keeps that does not contain it, those below it included.
A grant that a guarantee covers takes nothing from teams outside that guarantee, whatever they keep: if too little is
free it is for borrowers to give way. Inside, it may use only what the guarantee leaves beside what is kept there.

Own order. What a team holds fills its guarantee by tier, then level of chip-time had, then age of the grant; whatever
does not fit is borrowed. What the teams below hold under guarantees of their own counts first. So a job finds room in
a guarantee when it fits beside what comes before it there: what comes after it becomes borrowed in its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from mainspring.domain.job import MILLI, Tier
from mainspring.domain.plan import Limit
from mainspring.planner.facts.policy import HOUR_S, Policy
from mainspring.planner.facts.reasons import BindingLimit
from mainspring.planner.facts.snapshot import NO_LIMIT, NONE, Flags, Floats, Integers, Snapshot, Teams, sealed

Precedence = tuple[int, int, int]  # Standing, rank of the tier, level of chip-time had: less comes first.
Rows = list[list[int]]  # One row a team, one column a chip type; the last column is for chips of unknown type.

BORROWED = 1 << 16  # The standing of what no guarantee covers; no tree is as deep.
LAST = 1 << 16  # A tier or level after all others.
TIERS = len(Tier)
LEVELS_MAX = 1_024  # Levels of chip-time had that a policy may name.


def code_of(precedence: Integers) -> Integers:
    """Returns precedences as single numbers that compare as they do.

    Args:
        precedence: One row each, or one alone: standing, rank of the tier, level.
    """
    return (precedence[..., 0] * TIERS + precedence[..., 1]) * LEVELS_MAX + precedence[..., 2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """What a grant takes from its team.

    Args:
        chips: Pairs of chip type (its index, or `NONE` when it is unknown) and thousandths; each type once.
        dollars_per_hour: What it costs.
        duration_s: How long it is expected to last, infinity when nobody can know: then an hour is charged.
    """

    chips: tuple[tuple[int, int], ...]
    dollars_per_hour: float
    duration_s: float

    @property
    def dollars(self) -> float:
        """Returns what it costs in all."""
        return self.dollars_per_hour * (self.duration_s if self.duration_s < inf else HOUR_S) / HOUR_S


def attained_level(teams: Teams, policy: Policy, team: Integers, attained_chip_s: Floats) -> Integers:
    """Returns the level each job has dropped to; 0 where the team does not take its jobs by chip-time had.

    Args:
        teams: The tenant tree.
        policy: Gives the levels.
        team: The team of each job.
        attained_chip_s: What each has had.

    Source: Gu et al., Tiresias (NSDI'19), discretised two-dimensional least attained service.
    """
    if not teams.attained.any():
        return np.zeros(len(team), dtype=np.int64)
    level = np.searchsorted(policy.attained_levels_chip_s, attained_chip_s)
    return np.where(teams.attained[team], level, 0)


class Entitlement:
    """What each team holds, may hold and comes first with, while a plan is made.

    Args:
        snapshot: The facts.
        policy: Gives the levels of chip-time had, and when a node counts as leaving.
        now_s: The time.

    Attributes:
        live_precedence: One row a live attempt: standing, rank of the tier, level. What is stopping fills no
            guarantee.
        eased: One entry a `release`: the root of the part of the tree in which somebody may come earlier now.
    """

    def __init__(self, snapshot: Snapshot, policy: Policy, now_s: float) -> None:
        teams = snapshot.teams
        count, width = len(teams.names), len(snapshot.chips) + 1
        self._names, self._chips = teams.names, snapshot.chips
        self._parent: list[int] = teams.parent.tolist()
        self._path = _paths(self._parent)  # From the team itself up to the top.
        self._upward = sorted(range(count), key=lambda team: -len(self._path[team]))
        self.eased: list[int] = []

        guarantee = _widened(teams.guarantee_milli, 0)
        lend_max = _widened(teams.lend_max_milli, NO_LIMIT)
        self._guarantee: Rows = guarantee.tolist()
        self._unlent: Rows = np.where(lend_max == NO_LIMIT, 0, np.maximum(guarantee - lend_max, 0)).tolist()
        self._keeps = bool(((lend_max != NO_LIMIT) & (guarantee > lend_max)).any())
        promised_below = self._below(self._guarantee, width)
        self._promised: Rows = [
            [max(pair) for pair in zip(own, below, strict=True)]
            for own, below in zip(self._guarantee, promised_below, strict=False)
        ]
        self._guarantors = self._marked(np.any(guarantee > 0, axis=1))

        held = _held(snapshot, width)
        team = np.repeat(snapshot.live.team, width) * width + np.tile(np.arange(width), len(held))
        alone = np.bincount(team, weights=held.ravel(), minlength=count * width).astype(np.int64).reshape(count, width)
        self._alone: Rows = alone.tolist()
        self._used: Rows = alone.tolist()
        for row in self._upward:
            if self._parent[row] != NONE:
                above = self._used[self._parent[row]]
                for chip, milli in enumerate(self._used[row]):
                    above[chip] += milli
        self._total = [sum(row) for row in self._used]
        idle = [[a - b for a, b in zip(*rows, strict=True)] for rows in zip(self._unlent, self._used, strict=True)]
        self._kept_below = self._below(idle, width)
        self._free = _free(snapshot, policy, now_s)

        self._set_limits(teams)
        self._set_shares(teams, promised_below[NONE], self._below(self._unlent, width)[NONE])
        level = attained_level(teams, policy, snapshot.live.team, snapshot.live.attained_chip_s)
        self._levels = len(policy.attained_levels_chip_s) + 1
        self.live_precedence = sealed(self._covered(snapshot, guarantee, held, level))

    def bar(self, team: int, charge: Charge, *, tier: int = LAST, level: int = LAST) -> BindingLimit | None:
        """Returns the first limit that a grant would break: caps from the top down, borrowing, lending, dollars.

        Args:
            team: The team that would be charged.
            charge: What it would take.
            tier: Rank of the job's tier; the last when not given.
            level: Its level of chip-time had; the last when not given. Both matter to lending alone, which does not
                bind what a guarantee covers.
        """
        if self._capped[team] and charge.chips:
            asked = sum(milli for _, milli in charge.chips)
            for above in self._capped[team]:
                short = self._total[above] + asked - self._milli_max[above]
                if short > 0:
                    may = f"may hold {_count(self._milli_max[above])} chips and holds {_count(self._total[above])}"
                    return self._quota(above, may, asked, short)
        for above in self._bounded[team]:
            for chip, milli in charge.chips:
                borrow_max, promised = self._borrow_max[above][chip], self._promised[above][chip]
                short = self._used[above][chip] + milli - promised - borrow_max
                if borrow_max != NO_LIMIT and short > 0:
                    beyond = f" beyond its {_count(promised)}" if promised else ""
                    may = f"may borrow {_count(borrow_max)} {self._chips[chip]}{beyond}"
                    return self._quota(above, f"{may} and holds {_count(self._used[above][chip])}", milli, short)
        if self._keeps and self.standing(team, charge, tier=tier, level=level) == BORROWED:
            for chip, milli in charge.chips:
                kept, free_milli = self._kept_from(team, chip, NONE), max(0, self._free[chip])
                short = min(milli, milli + kept - free_milli)
                if kept and short > 0:
                    keeper = self._keeper(team, chip)
                    free = f"of {_count(free_milli)} free {self._chips[chip]} teams do not lend {_count(kept)}"
                    text = f"{free}, {self._names[keeper]} among them; {_count(milli)} are {_count(short)} too many"
                    return BindingLimit(limit=Limit.QUOTA, where=self._names[keeper], short_by=short / MILLI, text=text)
        for above in self._budgeted[team]:
            short_dollars = self._dollars[above] + charge.dollars - self._dollars_max[above]
            if short_dollars > 0 and charge.dollars > 0:
                may = f"may spend {self._dollars_max[above]:.2f} dollars and spent {self._dollars[above]:.2f}"
                text = f"team {self._names[above]} {may}; {charge.dollars:.2f} more are {short_dollars:.2f} too many"
                return BindingLimit(limit=Limit.BUDGET, where=self._names[above], short_by=0.0, text=text)
        return None

    def standing(self, team: int, charge: Charge, *, tier: int = LAST, level: int = LAST) -> int:
        """Returns 0 when the team's own guarantee covers a grant, n when that of the team n above does, or `BORROWED`.

        Args:
            team: The team that would be charged.
            charge: What it would take. Nothing covers a grant without chips: guarantees are in chips.
            tier: Rank of the job's tier; the last when not given.
            level: Its level of chip-time had; the last when not given.
        """
        return self.standing_at(team, charge.chips, self._rank(tier, level))

    def standing_at(self, team: int, chips: tuple[tuple[int, int], ...], rank: int) -> int:
        """Returns the same as `standing`, for those who ask very often.

        Args:
            team: The team that would be charged.
            chips: As in `Charge`.
            rank: The tier's rank times the number of levels, plus the level.
        """
        if not chips:
            return BORROWED
        for above in reversed(self._guarantors[team]):
            left = self._left[above]
            for chip, milli in chips:
                if milli > left[chip][rank] - (self._kept_from(team, chip, above) if self._keeps else 0):
                    break
            else:
                return self._path[team].index(above)
        return BORROWED

    def guaranteed(self, team: int) -> bool:
        """Returns whether the team or one above it has any guarantee; else all it is granted is borrowed.

        Args:
            team: The team.
        """
        return bool(self._guarantors[team])

    def charge(self, team: int, charge: Charge) -> None:
        """Counts a grant of this plan; it comes before all that is asked later.

        Args:
            team: The team charged.
            charge: What it takes.
        """
        for chip, milli in charge.chips:
            self._hold(team, chip, milli)
            for above in self._guarantors[team]:
                self._left[above][chip] = [left - milli for left in self._left[above][chip]]
        for above in self._budgeted[team]:
            self._dollars[above] += charge.dollars

    def release(self, team: int, charge: Charge, *, tier: int = LAST, level: int = LAST) -> None:
        """Counts a live attempt that this plan evicts no longer. What it cost so far remains spent.

        Args:
            team: The team that was charged.
            charge: What the attempt held.
            tier: Rank of its tier; when not given the last, and it keeps filling its guarantee for those before.
            level: Its level of chip-time had; likewise.
        """
        rank = self._rank(tier, level)
        for chip, milli in charge.chips:
            self._hold(team, chip, -milli)
            for above in self._guarantors[team]:
                left = self._left[above][chip]
                left[rank:] = [each + milli for each in left[rank:]]
        self.eased.append(self.root(team))

    def share(self, team: int) -> tuple[float, ...]:
        """Returns how much a team and those above it had, from the top of the tree down: less goes first.

        Each level gives two numbers: the dominant share of what is borrowed there, over what can be borrowed in the
        whole tree, then decayed use; both divided by the weight. A single team at the top is left out. A team with
        teams below it competes with them: what it holds by itself counts as one more team there, of weight 1.

        Args:
            team: The team.

        Source: Ghodsi et al., Dominant Resource Fairness (NSDI'11), on what is borrowed as in Kueue's fair sharing.
        """
        dominant, use = self._dominant, self._use
        return tuple([each for row in self._compared[team] for each in (dominant[row], use[row])])

    def root(self, team: int) -> int:
        """Returns the root of the smallest part of the tree in which a grant to this team changes anybody's place.

        Args:
            team: The team.
        """
        path = self._path[team]
        alone_at_top = self._skipped and len(path) > 1 and not any(self._guarantee[path[-1]])
        return path[-2] if alone_at_top else path[-1]

    # ---------------------------------------------------------------- tree

    def _below(self, own: Rows, width: int) -> Rows:
        """Returns for each team, and at last for the whole tree, what those right below count for together.

        A team counts for its own figure, or for what those right below it count for, whichever is more.
        """
        below = [[0] * width for _ in range(len(own) + 1)]  # `NONE` is the last row: the whole tree.
        for team in self._upward:
            above = below[self._parent[team]]
            for chip, (mine, theirs) in enumerate(zip(own[team], below[team], strict=True)):
                above[chip] += max(mine, theirs)
        return below

    def _marked(self, flags: Flags) -> list[tuple[int, ...]]:
        """Returns for each team the marked ones on its path, from the top down."""
        marks = flags.tolist()
        if not any(marks):
            return [()] * len(self._path)
        return [tuple([above for above in reversed(path) if marks[above]]) for path in self._path]

    def _set_limits(self, teams: Teams) -> None:
        self._milli_max: list[int] = teams.milli_max.tolist()
        self._capped = self._marked(teams.milli_max != NO_LIMIT)
        borrow_max = _widened(teams.borrow_max_milli, NO_LIMIT)
        self._borrow_max: Rows = borrow_max.tolist()
        self._bounded = self._marked(np.any(borrow_max != NO_LIMIT, axis=1))
        self._dollars_max: list[float] = teams.dollars_max.tolist()
        self._dollars: list[float] = teams.dollars.tolist()
        self._budgeted = self._marked(np.isfinite(teams.dollars_max))

    def _set_shares(self, teams: Teams, promised: list[int], unlent: list[int]) -> None:
        tops = [team for team, parent in enumerate(self._parent) if parent == NONE]
        self._skipped = len(tops) == 1
        used = [sum(column) for column in zip(*(self._used[team] for team in tops), strict=True)] or [0] * len(promised)
        # What can be borrowed: what nobody is guaranteed, and of what somebody is, what is lent.
        pool = [max(sure, free + mine) for sure, free, mine in zip(promised, self._free, used, strict=True)]
        self._per_pool: list[float] = [1.0 / max(1, milli - kept) for milli, kept in zip(pool, unlent, strict=True)]
        self._per_pool[NONE] = 0.0  # Chips of unknown type are in no pool.
        self._weight: list[float] = [*teams.weight.tolist(), *([1.0] * len(self._path))]
        use = teams.usage.tolist()
        for team in self._upward:
            if self._parent[team] != NONE:
                use[self._parent[team]] += use[team]
        self._use = [each / weight for each, weight in zip(use, self._weight, strict=False)] + teams.usage.tolist()
        # What a team with teams below it holds by itself has a row of its own, after those of all teams.
        count = len(self._path)
        has_below = [False] * (count + 1)
        for parent in self._parent:
            has_below[parent] = True
        skipped = tops[0] if self._skipped else NONE
        self._compared = [
            (*(above for above in reversed(path) if above != skipped), *((team + count,) if has_below[team] else ()))
            for team, path in enumerate(self._path)
        ]
        self._dominant = [self._dominant_of(row) for row in range(2 * count)]

    def _dominant_of(self, row: int) -> float:
        return max(0.0, *[self._share_of(row, chip) for chip in range(len(self._per_pool))])

    def _share_of(self, row: int, chip: int) -> float:
        count = len(self._path)
        borrowed = self._used[row][chip] - self._promised[row][chip] if row < count else self._alone[row - count][chip]
        return borrowed * self._per_pool[chip] / self._weight[row]

    def _rank(self, tier: int, level: int) -> int:
        return min(tier * self._levels + level, TIERS * self._levels - 1)

    def _hold(self, team: int, chip: int, milli: int) -> None:
        self._free[chip] -= milli
        self._alone[team][chip] += milli
        kept_more = 0
        for above in self._path[team]:
            if self._keeps:
                # What a subtree keeps changes with what it holds, and so does what the one around it keeps.
                before = self._kept(above, chip)
                self._kept_below[above][chip] += kept_more
                self._used[above][chip] += milli
                kept_more = self._kept(above, chip) - before
            else:
                self._used[above][chip] += milli
            self._total[above] += milli
        self._kept_below[NONE][chip] += kept_more
        for row in self._compared[team]:
            # The chip that grew is the only one that can have become the dominant one.
            more = self._share_of(row, chip)
            self._dominant[row] = max(self._dominant[row], more) if milli > 0 else self._dominant_of(row)

    # ---------------------------------------------------------------- lending

    def _kept(self, team: int, chip: int) -> int:
        """Returns how much the subtree of a team keeps from all others."""
        return max(0, self._unlent[team][chip] - self._used[team][chip], self._kept_below[team][chip])

    def _kept_from(self, team: int, chip: int, within: int) -> int:
        """Returns how much a team must leave to the subtrees below `within` (`NONE`: all) that do not contain it."""
        kept = self._kept_below[within][chip]
        for above in self._path[team]:
            if above == within:
                break
            kept += self._kept_below[above][chip] - self._kept(above, chip)
        return kept

    def _keeper(self, team: int, chip: int) -> int:
        """Returns who keeps most from a team by its own limit; the first by name among equals."""
        path = self._path[team]
        others = [other for other, unlent in enumerate(self._unlent) if unlent[chip] and other not in path]
        return max(others, key=lambda other: self._unlent[other][chip] - self._used[other][chip])

    def _quota(self, team: int, may: str, asked: int, short: int) -> BindingLimit:
        text = f"team {self._names[team]} {may}; {_count(asked)} more are {_count(short)} too many"
        return BindingLimit(limit=Limit.QUOTA, where=self._names[team], short_by=short / MILLI, text=text)

    # ---------------------------------------------------------------- what is live

    def _covered(self, snapshot: Snapshot, guarantee: Integers, held: Integers, level: Integers) -> Integers:
        """Fills guarantees with what is live and returns the precedence of each attempt.

        Sets `_left`: of each guarantee, what is left beside all that comes before a newcomer, by tier and level.
        """
        live = snapshot.live
        count, width = guarantee.shape
        ranks = TIERS * self._levels
        standing = np.full(len(held), BORROWED, dtype=np.int64)
        if guarantee.any():
            rank = live.tier * self._levels + level
            order = np.lexsort((live.granted_s, rank))
            row, chip = np.nonzero(held[order])
            attempt = order[row]
            milli, rank, team = held[attempt, chip], rank[attempt], live.team[attempt]
            before = np.zeros(count * width * ranks)
            depths = np.array([len(path) for path in self._path])
            for depth in sorted(set(depths[(guarantee > 0).any(axis=1)].tolist()), reverse=True):
                # Deepest first: what a team below covers counts before all else in the guarantees above it.
                ancestor = np.array([path[-depth] if len(path) >= depth else NONE for path in self._path])[team]
                inside = ancestor != NONE
                cell = ancestor * width + chip
                firm = standing[attempt] != BORROWED
                at = (cell * ranks + np.where(firm, 0, rank))[inside]
                before += np.bincount(at, weights=milli[inside], minlength=len(before))
                firm_milli = np.bincount(
                    cell[inside & firm], weights=milli[inside & firm], minlength=count * width
                ).astype(np.int64)
                room: list[int] = (guarantee.ravel() - firm_milli).tolist()
                asking = np.flatnonzero(inside & ~firm & ~live.stopping[attempt])
                taken = asking[_fitting(attempt[asking].tolist(), cell[asking].tolist(), milli[asking].tolist(), room)]
                standing[attempt[taken]] = depths[team[taken]] - depth
            ahead = before.reshape(count, width, ranks).cumsum(axis=2).astype(np.int64)
            self._left: list[Rows] = (guarantee[:, :, None] - ahead).tolist()
        return np.stack([standing, live.tier, level], axis=1)


def _fitting(attempts: list[int], cells: list[int], milli: list[int], room: list[int]) -> list[int]:
    """Returns the entries of attempts that find room in turn; all entries of one attempt are adjacent, and all fit.

    Args:
        attempts: The attempt of each entry.
        cells: Where it asks.
        milli: How much.
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


def _paths(parent: list[int]) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for team in range(len(parent)):
        path = [team]
        while parent[path[-1]] != NONE:
            path.append(parent[path[-1]])
        paths.append(tuple(path))
    return paths


def _widened(table: Integers, unknown: int) -> Integers:
    """Returns a table of limits with one more column, for chips of unknown type."""
    return np.concatenate([table, np.full((len(table), 1), unknown, dtype=np.int64)], axis=1)


def _held(snapshot: Snapshot, width: int) -> Integers:
    """Returns thousandths held by live attempts, one column a chip type; the last for nodes nobody lists any more."""
    live = snapshot.live
    chip = np.append(snapshot.nodes.chip, width - 1)[live.held_node]
    milli = live.held_whole * MILLI + live.held_share_milli
    held = np.bincount(live.held_by * width + chip, weights=milli, minlength=len(live.attempts) * width)
    return held.astype(np.int64).reshape(-1, width)


def _free(snapshot: Snapshot, policy: Policy, now_s: float) -> list[int]:
    """Returns thousandths free of each chip type on nodes that new work may use; 0 of chips of unknown type."""
    nodes = snapshot.nodes
    usable = nodes.ready & snapshot.clusters.answering[nodes.cluster] & (nodes.leaves_s > now_s + policy.leave_s)
    free = np.bincount(nodes.chip, weights=nodes.whole * MILLI * usable, minlength=len(snapshot.chips) + 1)
    milli = nodes.share_milli * usable[nodes.share_node]
    free += np.bincount(nodes.chip[nodes.share_node], weights=milli, minlength=len(free))
    return [int(each) for each in free.tolist()]


def _count(milli: int) -> str:
    return f"{milli / MILLI:g}"
