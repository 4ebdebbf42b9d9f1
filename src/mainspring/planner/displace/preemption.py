"""Preemption: the cheapest attempts that come after a job and whose end really lets it start.

The price of a victim is what ending it costs: chip-seconds since its newest durable checkpoint, and a restart. An
attempt that has not run long enough, or whose job was evicted not long ago, is no victim. Elastic attempts shrink
before anyone ends.

The search: what every domain of the topology asks for room (`ladder`), rung by rung, in rounds, because an attempt on
several nodes paid for on one is free on the others; then, in order of price, everybody is spared without whom the gang
stands just as well; then the dearest of those left are exchanged for cheaper ones where there are any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

import numpy as np

from mainspring.domain.job import MILLI
from mainspring.domain.plan import Resize
from mainspring.planner.displace.elastic import parts_of, resizes
from mainspring.planner.displace.ladder import Domains, Ladder, Offers, ladder
from mainspring.planner.displace.reclaimable import Free, Parts, ReclaimableCapacity, pool_of
from mainspring.planner.facts.policy import Policy
from mainspring.planner.facts.snapshot import NONE, Flags, Floats, Integers, Snapshot
from mainspring.planner.place.candidates import CandidatePlacement, OptionOnCluster
from mainspring.planner.place.free_capacity import FreeCapacity
from mainspring.planner.place.pool import Picked
from mainspring.planner.place.topology import NODE, most

DOMAINS_MAX = 3  # Searched to the end: those whose cheapest sufficient set is cheapest by the first estimate.
NODES_TRIED = 4  # The same for a job of one unit.
ROUNDS = (0.4, 0.7, 0.9, 1.0)  # How much of the gang has room after each round.
EXCHANGES_MAX = 8  # Victims for whom a cheaper set is looked for.
PREFERRED_RATIO_MAX = 1.5  # What standing in the preferred level may cost, relative to standing anywhere.
CORES_PER_CHIP = 100  # What a chip is worth in cores where attempts hold no chips.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Victims:
    """Who makes room for a job.

    Args:
        rows: Live rows of attempts that end, ascending.
        prices_chip_s: What ending each of them costs.
        price_chip_s: What it costs in all, shrinking included.
        resizes: Elastic attempts that shrink instead.
        picked: Where the job will stand, one entry for each choice of its site.
    """

    rows: Integers
    prices_chip_s: Floats
    price_chip_s: float
    resizes: tuple[Resize, ...]
    picked: tuple[Picked, ...]


def prices(snapshot: Snapshot, policy: Policy, now_s: float) -> Floats:
    """Returns what ending each live attempt costs, in chip-seconds.

    Args:
        policy: Says what a restart costs.
    """
    return sizes(snapshot) * (np.maximum(now_s - snapshot.live.durable_s, 0.0) + policy.restart_s)


def sizes(snapshot: Snapshot) -> Floats:
    """Returns how many chips each live attempt holds; where it holds none, what its cores stand for."""
    live = snapshot.live
    chips = live.chip_milli / MILLI
    if (live.chip_milli == 0).any():
        cores = np.bincount(live.held_by, weights=live.held_cpu_milli, minlength=len(chips)) / MILLI
        chips = np.where(live.chip_milli == 0, cores / CORES_PER_CHIP, chips)
    return chips


def settled(snapshot: Snapshot, policy: Policy, now_s: float) -> Flags:
    """Returns which live attempts may be moved: they ran long enough, and were not evicted not long ago."""
    live = snapshot.live
    ran = now_s - live.granted_s >= policy.runtime_min_s
    return ran & (now_s - live.evicted_s >= policy.cooldown_s) & ~live.stopping


def victims(
    room: FreeCapacity, site: CandidatePlacement, *, candidates: Flags, policy: Policy, now_s: float, evicts_max: int
) -> Victims | None:
    """Returns the cheapest way found to make room for a gang, None when there is none within the limits.

    Args:
        site: Where its roles would go. Elastic ones ask for the least they can run with.
        candidates: By live row: whether the job comes before it.
        policy: Minimum runtime, cooldown, blast radius.
        evicts_max: How many attempts this plan may still end.
    """
    snapshot, live = room.snapshot, room.snapshot.live
    asked_milli = sum(pool_of(choice).charge_milli(choice.wanted.replicas_min) for choice in site.choices)
    radius_milli = policy.evicted_ratio_max * asked_milli
    eligible = candidates & (live.cluster == site.cluster) & (live.chip_milli <= radius_milli)
    eligible &= settled(snapshot, policy, now_s)
    if evicts_max <= 0 or not eligible.any():
        return None
    ground = ReclaimableCapacity(room, site.choices)
    if int(ground.base.whole.sum()) * MILLI + int(live.chip_milli[eligible].sum()) < asked_milli:
        return None
    parts = parts_of(ground, eligible, prices(snapshot, policy, now_s), sizes(snapshot) * policy.restart_s)
    found = cheapest(ground, site.choices, parts)
    if found is None:
        return None
    ended = found.parts[parts.role[found.parts] == NONE]
    rows = parts.live[ended]
    if len(rows) > evicts_max or int(live.chip_milli[rows].sum()) > radius_milli:
        return None
    price = float(parts.price[ended].sum())
    shrinks: tuple[Resize, ...] = ()
    if len(ended) < len(found.parts):
        shrunk = found.parts[(parts.role[found.parts] != NONE) & ~np.isin(parts.live[found.parts], rows)]
        price += float(sizes(snapshot)[np.unique(parts.live[shrunk])].sum()) * policy.restart_s
        shrinks = resizes(ground, parts, shrunk)
    return Victims(
        rows=rows, prices_chip_s=parts.price[ended], price_chip_s=price, resizes=shrinks, picked=found.picked
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Found:
    """A set of parts without which a gang stands; none of them is needless.

    Args:
        picked: Where the gang stands.
    """

    parts: Integers
    price: float
    picked: tuple[Picked, ...]


def cheapest(ground: ReclaimableCapacity, choices: Sequence[OptionOnCluster], parts: Parts) -> Found | None:
    """Returns the cheapest set of parts found that makes room for a gang, or None when all together do not.

    Args:
        choices: The gang's roles.
        parts: What could be given up.
    """
    search = _Search(ground, choices, parts)
    everything = np.ones(len(parts), dtype=np.bool_)
    given_up = np.zeros(len(parts), dtype=np.bool_)
    if not search.stands(ground.base):
        if not search.stands(ground.without(parts, everything)):
            return None
        spares = parts.role != NONE
        if spares.any() and search.stands(ground.without(parts, spares)):
            everything = spares
        given_up = search.best(everything)
    picked = ground.stand(choices, search.replicas, ground.without(parts, given_up))
    assert picked is not None
    return Found(parts=np.flatnonzero(given_up), price=search.price(given_up), picked=picked)


class _Search:
    """One search for the parts to give up for a gang."""

    def __init__(self, ground: ReclaimableCapacity, choices: Sequence[OptionOnCluster], parts: Parts) -> None:
        self.ground, self.parts = ground, parts
        self.choices = choices
        self.replicas = [choice.wanted.replicas_min for choice in choices]
        self.spread = bool(len(parts.things.part)) and int(np.bincount(parts.things.part).max()) > 1

    def stands(self, free: Free) -> bool:
        """Returns whether the gang stands in what is free."""
        if len(self.choices) > 1:
            return self.ground.stand(self.choices, self.replicas, free) is not None
        pool = pool_of(self.choices[0])
        ask = pool.ask(self.replicas[0])
        caps = pool.caps(*free)
        return int(caps.sum()) >= ask.units and most(caps, pool.tree, ask) >= ask.units

    def price(self, chosen: Flags) -> float:
        """Returns what parts cost together."""
        return float(self.parts.price[chosen].sum())

    def best(self, allowed: Flags) -> Flags:
        """Returns the cheapest set found among the parts allowed, where the gang would rather stand if that is fair."""
        order = sorted(range(len(self.choices)), key=lambda row: (-self.choices[row].wanted.chip_milli, row))
        wanted = self.choices[order[0]].wanted
        anywhere = self._among(order, allowed, wanted.within)
        if anywhere is None:
            return self._pruned(allowed)
        close = None if wanted.prefer is None else self._among(order, allowed, wanted.prefer)
        fair = close is not None and self.price(close) <= PREFERRED_RATIO_MAX * self.price(anywhere)
        return close if fair and close is not None else anywhere

    def _among(self, order: Sequence[int], allowed: Flags, within: str | None) -> Flags | None:
        """Returns the cheapest of the sets that make room in one domain of a level."""
        sets = [
            chosen
            for shared_price in ((False, True) if self.spread and not self._alone(order) else (False,))
            for chosen in self._sets(order, allowed, within, shared_price=shared_price)
        ]
        best: Flags | None = None
        for chosen in {chosen.tobytes(): chosen for chosen in sets}.values():
            # A single part can only be kept or be too dear.
            single = np.count_nonzero(chosen) == 1
            if single and best is not None and self.price(chosen) >= self.price(best):
                continue
            if self.stands(self.ground.without(self.parts, chosen)):
                found = chosen if single else self._pruned(chosen)
                best = found if best is None or self.price(found) < self.price(best) else best
        return None if best is None else self._exchanged(best, order, allowed, within)

    def _alone(self, order: Sequence[int]) -> bool:
        """Returns whether all there is to place is one unit on one node."""
        choice = self.choices[order[0]]
        return len(order) == 1 and pool_of(choice).ask(self.replicas[order[0]]).units == 1

    def _sets(self, order: Sequence[int], allowed: Flags, within: str | None, *, shared_price: bool) -> list[Flags]:
        """Returns a set that makes room for all roles for each of the domains that ask least for the first."""
        first = _Role(self, order[0], within, shared_price=shared_price)
        nothing = np.zeros_like(allowed)
        asked = first.asked(allowed, nothing, self.ground.base)
        cost = asked[1].cost
        tried = NODES_TRIED if first.alone else DOMAINS_MAX
        sets = []
        for domain in np.argsort(cost, kind="stable")[:tried].tolist():
            if cost[domain] == inf:
                break
            chosen = first.climb(allowed, nothing, self.ground.base, domain, asked)
            sets.append(self._others(order, allowed, chosen, shared_price=shared_price))
        return sets

    def _others(self, order: Sequence[int], allowed: Flags, chosen: Flags, *, shared_price: bool) -> Flags:
        """Returns a set with which the other roles have room too, once the first has."""
        base = self.ground.base
        for before, row in pairwise(order):
            free = self.ground.without(self.parts, chosen, free=base)
            picked = self.ground.stand([self.choices[before]], [self.replicas[before]], free)
            if picked is None:
                break
            base = self.ground.taken(pool_of(self.choices[before]), picked[0], base)
            role = _Role(self, row, self.choices[row].wanted.within, shared_price=shared_price)
            chosen = role.climb(allowed, chosen, base)
        return chosen

    def _pruned(self, chosen: Flags) -> Flags:
        """Returns a set without those that are not needed, the dearest first.

        Who is needed once is needed for good: to spare others leaves less room.
        """
        parts, things = self.parts, self.parts.things
        numbers = np.flatnonzero(chosen)
        order = numbers[np.lexsort((numbers, -parts.price[numbers], parts.role[numbers] != NONE))]
        free = self.ground.without(parts, chosen)
        kept = chosen.copy()
        shared = bool(things.share.any())
        begin = np.searchsorted(things.part, np.arange(len(parts) + 1))
        at, step = 0, 1
        while at < len(order):
            spared = order[at : at + step]
            kept[spared] = False
            less = Free(*(column.copy() for column in free))
            if shared:
                less = self.ground.without(parts, kept)
            else:
                for number in spared.tolist():
                    mine = slice(begin[number], begin[number + 1])
                    nodes = things.node[mine]  # One of them may stand there more than once: a job of several roles.
                    np.subtract.at(less.whole, nodes, things.whole[mine])
                    np.subtract.at(less.cpu, nodes, things.cpu[mine])
                    np.subtract.at(less.memory, nodes, things.memory[mine])
            if self.stands(less):
                free, at, step = less, at + len(spared), 2 * step
                continue
            kept[spared] = True
            if step == 1:
                at += 1
            step = 1
        return kept

    def _exchanged(self, found: Flags, order: Sequence[int], allowed: Flags, within: str | None) -> Flags:
        """Returns a set in which the dearest are exchanged for others where these cost less."""
        role = _Role(self, order[0], within, shared_price=False)
        if len(order) > 1 or role.alone:
            return found
        chosen = found
        numbers = np.flatnonzero(found)
        dearest = numbers[np.argsort(-self.parts.price[numbers], kind="stable")][:EXCHANGES_MAX]
        for number in dearest.tolist():
            left, others = chosen.copy(), allowed.copy()
            left[number] = others[number] = False
            other = role.finish(others, left, self.ground.base)
            cheaper = self.price(other & ~left) < self.parts.price[number]
            if cheaper and self.stands(self.ground.without(self.parts, other)):
                chosen = other
        if chosen is found:
            return found
        exchanged = self._pruned(chosen)
        return exchanged if self.price(exchanged) < self.price(found) else found


class _Role:
    """The search for room for one role, in one domain of a level."""

    def __init__(self, search: _Search, row: int, within: str | None, *, shared_price: bool) -> None:
        self._search, self._shared_price = search, shared_price
        self._pool = pool_of(search.choices[row])
        self._ask = self._pool.ask(search.replicas[row])
        self.alone = self._ask.units == 1
        # One unit stands on one node: every node asks its own price.
        self._domains = Domains(self._pool.tree, self._ask, NODE if self.alone else within)

    def asked(self, allowed: Flags, chosen: Flags, base: Free) -> tuple[Ladder, Offers]:
        """Returns the rungs beyond those paid for already, and what each domain asks."""
        search = self._search
        free = search.ground.without(search.parts, chosen, free=base)
        rungs = ladder(
            search.ground,
            self._pool,
            self._domains,
            search.parts,
            allowed & ~chosen,
            free,
            shared_price=self._shared_price,
        )
        return rungs, Offers(rungs, self._domains)

    def climb(
        self,
        allowed: Flags,
        chosen: Flags,
        base: Free,
        domain: int | None = None,
        asked: tuple[Ladder, Offers] | None = None,
    ) -> Flags:
        """Returns a set with which the role has room, beyond what is chosen already; in the cheapest domain if None."""
        for part in ROUNDS if self._search.spread and not self.alone else ROUNDS[-1:]:
            rungs, offers = asked or self.asked(allowed, chosen, base)
            asked = None
            if domain is None and len(offers.cost):
                domain = int(np.argmin(offers.cost))
            if domain is None or offers.cost[domain] == inf:
                break
            chosen = chosen | rungs.given_up(offers.rungs(domain, part), len(chosen))
        return chosen

    def finish(self, allowed: Flags, chosen: Flags, base: Free) -> Flags:
        """Returns a set that is enough for the role in the domain that asks least for the rest."""
        rungs, offers = self.asked(allowed, chosen, base)
        if not len(offers.cost) or offers.cost.min() == inf:
            return chosen
        return chosen | rungs.given_up(offers.rungs(int(np.argmin(offers.cost)), 1.0), len(chosen))
