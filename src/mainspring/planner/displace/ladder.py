"""Preemption costs: by node the price of each further unit there, and the cheapest that hold a gang together.

The parts on a node are given up in order of price per chip; each time that makes room for more units is a rung. Rungs
are summed up by domain, so that every domain is scored by the price of its cheapest sufficient set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mainspring.planner.displace.reclaimable import Free, Parts, ReclaimableCapacity, Things
from mainspring.planner.facts.snapshot import NONE, Flags, Floats, Integers
from mainspring.planner.place.pool import Pool
from mainspring.planner.place.topology import Ask, Tree

RUNGS_MAX = 64  # Of one node, then all the rest at once: nodes with more jobs than that run small ones.


class Domains:
    """The domains a gang may stand in, as its ask counts them.

    Args:
        ask: What the gang wants.
        within: The level that holds all of it.
    """

    def __init__(self, tree: Tree, ask: Ask, within: str | None) -> None:
        self.ask = ask
        self.within = _ids(tree, within)
        self.group = _ids(tree, ask.group_within) if ask.group_units else None
        self.count = int(self.within.max(initial=NONE)) + 1

    def missing(self, caps: Integers) -> Integers:
        """Returns, by row, how many units more are worth having in its domains: what the gang still lacks there.

        Args:
            caps: How many units each row has room for already.
        """
        have, left = caps, np.zeros_like(caps)
        if self.group is not None:
            sums = np.bincount(self.group + 1, weights=caps)[self.group + 1].astype(np.int64)
            left = sums % self.ask.group_units
            have = np.where(sums > 0, caps * (sums - left) / np.maximum(sums, 1), 0.0)
        together = np.bincount(self.within + 1, weights=have)[self.within + 1]
        lacking: Integers = self.ask.units - np.rint(together).astype(np.int64) - left
        return np.maximum(lacking, 1)


def _ids(tree: Tree, level: str | None) -> Integers:
    depth = tree.depth(level)
    rows = len(tree.order)
    if depth <= 0:
        return np.full(rows, depth, dtype=np.int64)  # 0: the whole is one domain. NONE: there is no such level.
    return np.arange(rows) if depth == tree.bottom else tree.domain[:, depth - 1]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ladder:
    """Rungs, and what is given up for each.

    Args:
        row: For each rung: row of the pool.
        step: How many things of the row, less one, are given up for it and those below it; -1 for what is free.
        units: How many units it makes room for.
        cost: What it costs beyond those below it.
        rate: What a unit costs on average with it, or with it and those above it where that is less.
        things: Things that could be given up, by row, in order.
        place: For each thing: row of the pool.
        position: For each thing: its place in the order of its row.
    """

    row: Integers
    step: Integers
    units: Integers
    cost: Floats
    rate: Floats
    things: Things
    place: Integers
    position: Integers

    def given_up(self, rungs: Integers, count: int) -> Flags:
        """Returns, by part, whether it is given up for some rungs and those below them.

        Args:
            count: How many parts there are.
        """
        upto = np.full(int(max(self.row.max(initial=0), self.place.max(initial=0))) + 1, -1, dtype=np.int64)
        np.maximum.at(upto, self.row[rungs], self.step[rungs])
        chosen = np.zeros(count, dtype=np.bool_)
        chosen[self.things.part[self.position <= upto[self.place]]] = True
        return chosen


def ladder(
    ground: ReclaimableCapacity,
    pool: Pool,
    domains: Domains,
    parts: Parts,
    allowed: Flags,
    free: Free,
    *,
    shared_price: bool,
) -> Ladder:
    """Returns the rungs of every node of a pool.

    Args:
        pool: Where the units would go.
        domains: What the gang lacks there: room for more is worth nothing.
        parts: What could be given up.
        allowed: By part: whether it may be.
        free: What is free before.
        shared_price: Whether a part on several nodes costs each of them its share, or all of it.
    """
    row_of = ground.rows_in(pool)
    things = parts.things.where(allowed[parts.things.part] & (row_of[parts.things.node] != NONE))
    size = _size(pool, things)
    cost = parts.price[things.part]
    if shared_price:
        cost = cost * size / np.bincount(things.part, weights=size, minlength=len(parts))[things.part]
    place = row_of[things.node]
    order = np.lexsort((things.part, cost / size, place))
    things, place, cost = things.where(order), place[order], cost[order]
    starts = np.flatnonzero(np.diff(place, prepend=-1))
    position = np.arange(len(place)) - np.repeat(starts, np.diff(np.append(starts, len(place))))
    amounts = (things.whole, things.cpu, things.memory)
    if things.share.any():
        whole = things.whole.copy()
        whole[ground.last_shares(things)] += 1
        amounts = (whole, things.cpu, things.memory)
    now = Free(free.whole.copy(), free.cpu.copy(), free.memory.copy())
    caps = pool.caps(*now)
    have = np.flatnonzero(caps)
    missing = domains.missing(caps)
    rungs = [(have, np.full(len(have), -1), caps[have], np.zeros(len(have)))]
    averages = [np.zeros(len(have))]
    owed, paid, bought = np.zeros(len(caps)), np.zeros(len(caps)), np.zeros(len(caps), dtype=np.int64)
    steps = np.minimum(position, RUNGS_MAX)
    by_step = np.argsort(steps, kind="stable")
    for at in np.split(by_step, np.flatnonzero(np.diff(steps[by_step])) + 1) if len(by_step) else ():
        for column, amount in zip(now, amounts, strict=True):
            np.add.at(column, things.node[at], amount[at])
        np.add.at(owed, place[at], cost[at])
        after = pool.caps(*now)
        gained = np.flatnonzero(after > caps)
        more = (after - caps)[gained]
        upto = np.full(len(gained), int(position[at].max()))
        rungs.append((gained, upto, more, owed[gained]))
        paid[gained] += owed[gained]
        bought[gained] += more
        averages.append(paid[gained] / np.minimum(bought[gained], missing[gained]))
        owed[gained] = 0.0
        caps = after
    row, step, more, costs = (np.concatenate(column) for column in zip(*rungs, strict=True))
    rate = _rates([rung[0] for rung in rungs], averages, len(caps))
    return Ladder(row=row, step=step, units=more, cost=costs, rate=rate, things=things, place=place, position=position)


def _rates(keys: Sequence[Integers], averages: Sequence[Floats], count: int) -> Floats:
    """Returns what is bought at what rate: the least average to which it leads, so that what comes later is no cheaper.

    Args:
        keys: For each step: of whom something is bought, each once.
        averages: What each unit of theirs has cost until then, on average.
        count: How many keys there are.
    """
    least = np.full(count, np.inf)
    rates = []
    for key, average in zip(reversed(keys), reversed(averages), strict=True):
        least[key] = np.minimum(least[key], average)
        rates.append(least[key])
    return np.concatenate(rates[::-1])


def _size(pool: Pool, things: Things) -> Floats:
    milli = things.milli if pool.need.whole or pool.need.share_milli else things.cpu
    return np.maximum(milli, 1).astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Offered:
    """What each domain asks for room.

    Args:
        cost: By domain: price of its cheapest sufficient set, infinity when it has none.
        rungs: Rungs, by domain, in the order in which it would give them up.
        reached: Units reached with each of them, over all domains.
        starts: By domain: units reached before its first.
    """

    cost: Floats
    rungs: Integers
    domain: Integers
    reached: Integers
    starts: Integers

    def upto(self, units: Integers) -> Integers:
        """Returns the rungs given up for some units of each domain.

        Args:
            units: By domain: how many.
        """
        return self.rungs[np.append(0, self.reached[:-1]) < (self.starts + units)[self.domain]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Packs:
    """Groups that could stand together, by the domain that would hold all of them, cheapest first.

    Args:
        within: For each: that domain.
        group: The domain of the group itself.
    """

    within: Integers
    group: Integers


class Offers:
    """What each domain asks for a gang.

    Args:
        domains: The domains, and what the gang wants.
    """

    def __init__(self, rungs: Ladder, domains: Domains) -> None:
        self._ask = domains.ask
        self._packs: _Packs | None = None
        known = domains.within != NONE
        if domains.group is None:
            self._offered = _offered(rungs, domains.within, known, domains.ask.units, domains.count)
            self.cost = self._offered.cost
        else:
            known &= domains.group != NONE
            count = int(domains.group.max(initial=NONE)) + 1
            self._offered = _offered(rungs, domains.group, known, domains.ask.group_units, count)
            self._packs, self.cost = _packed(self._offered, rungs, domains)

    def rungs(self, domain: int, part: float) -> Integers:
        """Returns the cheapest rungs of a domain that make room for a part of the gang.

        Args:
            part: How much of the gang, up to 1.
        """
        units = np.zeros(len(self._offered.cost), dtype=np.int64)
        if self._packs is None:
            units[domain] = max(1, round(self._ask.units * part))
        else:
            each = self._ask.group_units
            mine = self._packs.group[self._packs.within == domain]
            mine = mine[: max(1, round(self._ask.units // each * part))]
            units = np.bincount(mine, minlength=len(units)) * each
        return self._offered.upto(units)


def _offered(rungs: Ladder, domain: Integers, known: Flags, units: int, count: int) -> Offered:
    of = domain[rungs.row]
    order = np.flatnonzero(known[rungs.row])
    order = order[np.lexsort((rungs.step[order], rungs.row[order], rungs.rate[order], of[order]))]
    of = of[order]
    reached, paid = np.cumsum(rungs.units[order]), np.append(0.0, np.cumsum(rungs.cost[order]))
    first = np.searchsorted(of, np.arange(count))
    ends = np.searchsorted(of, np.arange(count), side="right")
    starts = np.append(0, reached)[first]
    enough = np.searchsorted(reached, starts + units)
    cost = np.where(enough < ends, paid[np.minimum(enough + 1, len(order))] - paid[first], np.inf)
    return Offered(cost=cost, rungs=order, domain=of, reached=reached, starts=starts)


def _packed(inner: Offered, rungs: Ladder, domains: Domains) -> tuple[_Packs, Floats]:
    """Returns the groups that could stand, and what each domain asks for as many as the gang needs."""
    assert domains.group is not None
    each, needed = domains.ask.group_units, domains.ask.units // domains.ask.group_units
    count = len(inner.cost)
    total = np.bincount(inner.domain, weights=rungs.units[inner.rungs], minlength=count).astype(np.int64)
    most = np.where(total == each, 1, 0) if domains.ask.whole else total // each
    group = np.repeat(np.arange(count), most)
    number = np.arange(len(group)) - np.repeat(np.cumsum(most) - most, most)
    paid = np.append(0.0, np.cumsum(rungs.cost[inner.rungs]))
    reach = np.searchsorted(inner.reached, inner.starts[group] + (number + 1) * each) + 1
    upto = paid[reach] - paid[np.searchsorted(inner.domain, group)]
    cost = np.where(number > 0, upto - np.append(0.0, upto[:-1])[: len(upto)], upto)
    by_number = np.argsort(number, kind="stable")
    firsts = np.flatnonzero(np.diff(number[by_number], prepend=-1))[1:]
    steps = np.split(by_number, firsts) if len(by_number) else [by_number]
    counted = np.empty(len(group))
    averages = [upto[at] / np.minimum(number[at] + 1, needed) for at in steps]
    counted[by_number] = _rates([group[at] for at in steps], averages, count)
    of_group = np.full(count, NONE, dtype=np.int64)
    of_group[domains.group[domains.group != NONE]] = domains.within[domains.group != NONE]
    within = of_group[group]
    order = np.lexsort((number, group, counted, within))
    order = order[within[order] != NONE]
    within = within[order]
    first = np.searchsorted(within, np.arange(domains.count))
    ends = np.searchsorted(within, np.arange(domains.count), side="right")
    paid = np.append(0.0, np.cumsum(cost[order]))
    last = np.minimum(first + needed, len(order))
    asked = np.where(first + needed <= ends, paid[last] - paid[first], np.inf)
    return _Packs(within=within, group=group[order]), asked
