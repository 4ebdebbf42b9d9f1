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

Own order: see `guarantees`. A job finds room in a guarantee when it fits beside what comes before it there: what comes
after it becomes borrowed in its place.
"""

from __future__ import annotations

import numpy as np

from mainspring.domain.job import MILLI
from mainspring.domain.plan import Limit
from mainspring.planner.facts.policy import Policy
from mainspring.planner.facts.reasons import BindingLimit
from mainspring.planner.facts.snapshot import NO_LIMIT, NONE, Integers, Snapshot
from mainspring.planner.quota.guarantees import Guarantees, Lending
from mainspring.planner.quota.limits import Charge, Limits, count_text, widened
from mainspring.planner.quota.precedence import BORROWED, LAST, Precedence, attained_level
from mainspring.planner.quota.shares import Shares
from mainspring.planner.quota.tree import Rows, TeamTree


class Entitlement:
    """What each team holds, may hold and comes first with, while a plan is made.

    Args:
        policy: Gives the levels of chip-time had, and when a node counts as leaving.

    Attributes:
        guarantees: What they cover.
        shares: Who had the least so far.
        live_precedence: One row a live attempt: standing, rank of the tier, level. What is stopping fills no
            guarantee.
        eased: One entry a `release`: the root of the part of the tree in which somebody may come earlier now.
    """

    def __init__(self, snapshot: Snapshot, policy: Policy, now_s: float) -> None:
        teams, live = snapshot.teams, snapshot.live
        count, width = len(teams.names), len(snapshot.chips) + 1
        self._names, self._chips = teams.names, snapshot.chips
        self._tree = tree = TeamTree(teams.parent.tolist())
        self.eased: list[int] = []

        guarantee = widened(teams.guarantee_milli, 0)
        lend_max = widened(teams.lend_max_milli, NO_LIMIT)
        unlent: Rows = np.where(lend_max == NO_LIMIT, 0, np.maximum(guarantee - lend_max, 0)).tolist()
        promised_below = tree.below(guarantee.tolist(), width)
        promised = np.maximum(guarantee, np.array(promised_below[:NONE], dtype=np.int64).reshape(count, width))

        held = _held(snapshot, width)
        cell = np.repeat(live.team, width) * width + np.tile(np.arange(width), len(held))
        alone = np.bincount(cell, weights=held.ravel(), minlength=count * width).astype(np.int64).reshape(count, width)
        used = tree.summed(alone.tolist())
        self._free = _free(snapshot, policy, now_s)
        # What can be borrowed: what nobody is guaranteed, and of what somebody is, what is lent.
        pool = np.maximum(promised_below[NONE], self._free + alone.sum(axis=0)) - tree.below(unlent, width)[NONE]

        self._lending = Lending(tree, unlent, used, width)
        self._limits = Limits(tree, teams, snapshot.chips, used=used, promised=promised.tolist())
        borrowed = np.concatenate([np.array(used, dtype=np.int64).reshape(count, width) - promised, alone])
        self.shares = Shares(tree, teams, borrowed=borrowed.tolist(), lendable=pool.tolist())
        level = attained_level(teams, policy, live)
        levels = len(policy.attained_levels_chip_s) + 1
        self.guarantees = Guarantees(tree, guarantee, self._lending, snapshot, held, level, levels)
        self.live_precedence = self.guarantees.live_precedence

    def bar(self, team: int, charge: Charge, *, tier: int = LAST, level: int = LAST) -> BindingLimit | None:
        """Returns the first limit that a grant would break: caps from the top down, borrowing, lending, dollars.

        Args:
            team: The team that would be charged.
            charge: What it would take.
            tier: Rank of the job's tier; the last when not given.
            level: Its level of chip-time had; the last when not given. Both matter to lending alone, which does not
                bind what a guarantee covers.
        """
        if (bar := self._limits.chip_bar(team, charge)) is not None:
            return bar
        if self._lending.binds and self.standing(team, charge, tier=tier, level=level) == BORROWED:
            for chip, milli in charge.chips:
                kept, free_milli = self._lending.kept_from(team, chip, NONE), max(0, self._free[chip])
                short = min(milli, milli + kept - free_milli)
                if kept and short > 0:
                    keeper = self._names[self._lending.keeper(team, chip)]
                    free = f"of {count_text(free_milli)} free {self._chips[chip]} teams do not lend {count_text(kept)}"
                    text = f"{free}, {keeper} among them; {count_text(milli)} are {count_text(short)} too many"
                    return BindingLimit(limit=Limit.QUOTA, where=keeper, short_by=short / MILLI, text=text)
        return self._limits.dollar_bar(team, charge)

    def standing(self, team: int, charge: Charge, *, tier: int = LAST, level: int = LAST) -> int:
        """Returns 0 when the team's own guarantee covers a grant, n when that of the team n above does, or `BORROWED`.

        Args:
            team: The team that would be charged.
            charge: What it would take. Nothing covers a grant without chips: guarantees are in chips.
            tier: Rank of the job's tier; the last when not given.
            level: Its level of chip-time had; the last when not given.
        """
        return self.guarantees.standing(team, charge.chips, self.guarantees.rank(tier, level))

    def charge(self, team: int, charge: Charge) -> None:
        """Counts a grant of this plan; it comes before all that is asked later."""
        for chip, milli in charge.chips:
            self._limits.hold(team, chip, milli)
            self._hold(team, chip, milli)
            self.guarantees.hold(team, chip, milli)
        self._limits.spend(team, charge.dollars)

    def release(self, team: int, charge: Charge, precedence: Precedence) -> None:
        """Counts a live attempt that this plan evicts no longer, but against limits: it holds on until it has ended.

        What it cost so far remains spent.

        Args:
            team: The team that was charged.
            charge: What the attempt held.
            precedence: Its row of `live_precedence`.
        """
        for chip, milli in charge.chips:
            self._hold(team, chip, -milli)
            self.guarantees.release(team, chip, milli, precedence)
        self.eased.append(self.root(team))

    def root(self, team: int) -> int:
        """Returns the root of the smallest part of the tree in which a grant to this team changes anybody's place."""
        path = self._tree.path[team]
        alone_at_top = self._tree.single_top != NONE and path[-1] not in self.guarantees.over(team)
        return path[-2] if alone_at_top and len(path) > 1 else path[-1]

    def _hold(self, team: int, chip: int, milli: int) -> None:
        self._free[chip] -= milli
        self.shares.hold(team, chip, milli)
        if self._lending.binds:
            self._lending.hold(team, chip, milli)


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
