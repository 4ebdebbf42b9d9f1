"""One planning cycle: forced moves, then every pending job in order: start it, make room for it, or say why it waits.

While a plan is made free room only shrinks (what is evicted comes free later), so a site that had no room for a shape
has none for those after it, and a shape that found none anywhere is closed for the rest of the cycle.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf, nextafter

import numpy as np

from mainspring.domain.ids import ClusterName
from mainspring.domain.job import MILLI
from mainspring.domain.plan import Evict, Grant, Limit, Move, Plan, Reservation, Resize, Start
from mainspring.planner.displace.elastic import grow, shrink
from mainspring.planner.displace.moves import consolidate, forced
from mainspring.planner.displace.preemption import Victims, victims
from mainspring.planner.facts.policy import Budget, Policy
from mainspring.planner.facts.reasons import BindingLimit
from mainspring.planner.facts.snapshot import Flags, Integers, Shape, Snapshot
from mainspring.planner.future.backfill import Profile, Reserved
from mainspring.planner.future.waits import Waiting, chosen_of
from mainspring.planner.offers import provisions
from mainspring.planner.place.candidates import (
    CandidatePlacement,
    CandidateSet,
    GangPlacement,
    admitted,
    charge_of,
    menu,
    stand_at,
)
from mainspring.planner.place.free_capacity import FreeCapacity
from mainspring.planner.quota.entitlement import Entitlement
from mainspring.planner.quota.limits import Charge
from mainspring.planner.quota.precedence import Precedence, code_of
from mainspring.planner.quota.queue import FOREVER_S, Queue, Turn

SITES_MAX = 4  # Sites examined for a reservation or for victims: the cheapest ones.
DRAIN_S = 30.0  # From the order to end until nodes are free: the usual grace.
_EQUAL = 1e-9  # Dollars: prices are quoted to about 1e-4.


def plan(snapshot: Snapshot, policy: Policy, now_s: float, budget: Budget) -> Plan:
    """Returns what starts now, what must end or change for it, and why everything else that is pending waits.

    Args:
        policy: What the lab decides.
        now_s: The time, in seconds since the Unix epoch; jobs from the future count as submitted now.
    """
    return _Cycle(snapshot, policy, now_s, budget).run()


def _code(precedence: Precedence) -> int:
    return int(code_of(np.array(precedence)))


@dataclass(slots=True, kw_only=True)
class _Draft:
    """The plan so far, what it cost to make, and what reservations bind.

    `held_until` has by cluster the seconds until each reservation there, ascending; `drains` the kinds of chip, by
    cluster, of which what comes free is kept for a job whose start nobody can foresee.
    """

    starts: list[Start] = field(default_factory=list)
    evicts: list[Evict] = field(default_factory=list)
    resizes: list[Resize] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    reservations: list[Reservation] = field(default_factory=list)
    held_until: dict[int, list[float]] = field(default_factory=dict)
    drains: set[tuple[int, int]] = field(default_factory=set)
    placements: int = 0
    searches: int = 0
    spent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reclaimable:
    """Which live attempts may be evicted, by precedence as a number, the worst of them, and whether any ends already.

    Candidates are where we choose nodes, on clusters that answer, and not ending already.
    """

    evictable: Flags
    live_code: Integers
    worst_code: int
    draining: bool


def _reclaimable(snapshot: Snapshot, live_code: Integers) -> _Reclaimable:
    stopping = snapshot.live.stopping
    pinned = np.append(~snapshot.clusters.delegated & snapshot.clusters.answering, False)  # The last: unknown.
    evictable: Flags = ~stopping & pinned[snapshot.live.cluster]
    worst_code = int(live_code[evictable].max(initial=-1))
    return _Reclaimable(evictable=evictable, live_code=live_code, worst_code=worst_code, draining=bool(stopping.any()))


class _Cycle:
    def __init__(self, snapshot: Snapshot, policy: Policy, now_s: float, budget: Budget) -> None:
        self.snapshot, self.policy, self.now_s, self.budget = snapshot, policy, now_s, budget
        self.room = FreeCapacity(snapshot)
        self.entitlement = Entitlement(snapshot, policy, now_s)
        self.queue = Queue(snapshot, self.entitlement, policy, now_s)
        self.profile = Profile(self.room, now_s, budget)
        self.waiting = Waiting(snapshot, self.room, self.entitlement)
        self.menus: dict[int, CandidateSet] = {}
        self.menus_of: dict[Shape, CandidateSet] = {}  # Shapes that differ only in what is ample share a menu.
        self.draft = _Draft()
        self.reclaimable = _reclaimable(snapshot, code_of(self.entitlement.live_precedence))
        self.budgeted = bool(np.isfinite(snapshot.teams.dollars_max).any())

    def run(self) -> Plan:
        for evict in forced(self.snapshot, self.policy, self.now_s):
            self._evict(self.snapshot.live.attempts.index(evict.attempt), evict)
        for resize in shrink(self.snapshot, np.flatnonzero(self.reclaimable.evictable)):
            self._spare(resize)
        while not self.draft.spent and (turn := self.queue.pop()) is not None:
            self._turn(turn)
        crowded = {site.cluster for shape in self.waiting.closed for site in self.menus[shape].sites}
        ending = {evict.attempt for evict in self.draft.evicts} | {resize.attempt for resize in self.draft.resizes}
        self.draft.resizes += grow(
            self.room, self.policy, self.now_s, crowded=crowded, ending=ending, entitlement=self.entitlement
        )
        waits = self.waiting.finish(self.menus, self.queue, self.profile, self.now_s, spent=self.draft.spent)
        return Plan(
            number=self.snapshot.number,
            starts=tuple(self.draft.starts),
            evicts=tuple(self.draft.evicts),
            resizes=tuple(self.draft.resizes),
            moves=tuple(self.draft.moves),
            provisions=provisions(self.snapshot, self.policy, self.entitlement, self.now_s, waits),
            reservations=tuple(self.draft.reservations),
            waits=waits,
            complete=not (self.draft.spent or self.profile.spent or self.draft.searches >= self.budget.preemptions_max),
        )

    # ---------------------------------------------------------------- one job

    def _turn(self, turn: Turn, again: CandidateSet | None = None) -> None:
        """Starts a job, makes room for it, or notes why it waits.

        Args:
            again: What it may choose from, when its team may have nothing that its shape would choose from.
        """
        menu = again or self._menu(turn.shape)
        duration_s = min(float(self.snapshot.pending.duration_safe_s[turn.row]), FOREVER_S)
        avoided = self._avoided(turn, menu)
        barred = dict(avoided)
        found = self._best(menu, turn, duration_s, barred)
        if self.draft.spent:
            return
        if found is not None:
            if found.site.bytes_to_move:
                self._bring_data(turn, menu, found.site)
            else:
                self._start(turn, menu, found)
            return
        if menu.shape.spreads:  # Better beside another of its service than not at all.
            self._turn(turn, self._new_menu(replace(menu.shape, avoids=menu.shape.shuns, spreads=False)))
            return
        open_to = [self._admitted(turn, site) for site in menu.sites if site.index not in barred]
        sites = [site for site in open_to if isinstance(site, CandidatePlacement)]
        if avoided:  # Others of its shape may go where it may not.
            if not self._make_room(turn, menu, sites):
                self._wait_for_cluster(turn, menu, avoided)
            return
        if not sites:
            bar = next(iter(barred.values()), None)
            if any(choice.shunned for choice in menu.choices):
                shuns = menu.shape.shuns
                if menu.shape.avoids == shuns:
                    self._wait_for_node(turn, menu)
                else:
                    self._turn(turn, self._new_menu(replace(menu.shape, avoids=shuns)))
            elif bar is None:
                self._close(turn, menu)
            else:
                self._close_for_team(turn, menu, bar)
            return
        if not self._make_room(turn, menu, sites):
            if barred or again:
                self._close_for_team(turn, menu, None)
            else:
                self._close(turn, menu)

    def _close_for_team(self, turn: Turn, menu: CandidateSet, bar: BindingLimit | None) -> None:
        """Notes that no job of this shape and team can start any more: for its team's limits, the room apart."""
        self.waiting.team(turn.shape, turn.team, bar, menu)
        self.queue.close_for_team(turn.shape, turn.team)

    def _avoided(self, turn: Turn, menu: CandidateSet) -> dict[int, BindingLimit]:
        """Returns, by site, why a job is not placed where it was taken back a moment ago."""
        until_s = self.snapshot.avoid.get(self.snapshot.pending.jobs[turn.row])
        if until_s is None:
            return {}
        bars: dict[int, BindingLimit] = {}
        for site in menu.sites:
            name = self.snapshot.clusters.names[site.cluster]
            if until_s.get(name, -inf) > self.now_s:
                text = "took it back, and is not asked again for a while"
                bars[site.index] = BindingLimit(limit=Limit.HEALTH, where=name, short_by=0.0, text=text)
        return bars

    def _wait_for_cluster(self, turn: Turn, menu: CandidateSet, avoided: Mapping[int, BindingLimit]) -> None:
        bar = next(iter(avoided.values()))
        until_s = self.snapshot.avoid[self.snapshot.pending.jobs[turn.row]][ClusterName(bar.where)]
        self.waiting.row(turn.row, bar, menu, start_s=until_s, exact=False)

    def _wait_for_node(self, turn: Turn, menu: CandidateSet) -> None:
        """Notes that a job waits to be tried again where its attempts were lost: nothing else could run it."""
        avoided = self.snapshot.avoid_nodes[self.snapshot.pending.jobs[turn.row]]
        again_s = min((one.again_s for one in avoided if one.again_s > self.now_s), default=self.now_s)
        bar = next(choice.bar for choice in menu.choices if choice.shunned)
        self.waiting.row(turn.row, bar, menu, start_s=again_s, exact=False)

    def _close(self, turn: Turn, menu: CandidateSet) -> None:
        """Notes that no job of this shape that runs as long finds room any more."""
        self.waiting.shape(turn.shape, menu, _code(turn.precedence))
        self.queue.close(turn.shape, duration_s=max(menu.closed_from_s, default=0.0))

    def _menu(self, shape: int) -> CandidateSet:
        known = self.menus.get(shape)
        if known is None:
            plain = self.room.ample.plain(self.snapshot.shapes[shape])
            known = self.menus[shape] = self._new_menu(plain)
        return known

    def _new_menu(self, plain: Shape) -> CandidateSet:
        known = self.menus_of.get(plain)
        if known is None:
            known = self.menus_of[plain] = menu(self.room, self.policy, plain)
        return known

    def _charge(self, charge: Charge, row: int) -> Charge:
        expected_s = float(self.snapshot.pending.duration_s[row]) if self.budgeted else inf
        return replace(charge, duration_s=expected_s) if expected_s < inf else charge

    def _best(
        self, menu: CandidateSet, turn: Turn, duration_s: float, barred: dict[int, BindingLimit]
    ) -> GangPlacement | None:
        """Returns the best site with room now: the cheapest; among equals the one left least broken up."""
        best: GangPlacement | None = None
        best_cost = inf
        holds = self.profile.holds_open(duration_s) if self.draft.reservations else None
        for tied in menu.tied:
            # What a site of equal price cost the last time ranks them: seldom is more than one looked at again.
            for whole in sorted(tied, key=lambda site: menu.costs[site.index]) if len(tied) > 1 else tied:
                if best is not None and best_cost <= menu.costs[whole.index]:
                    break
                if whole.index in barred:
                    continue
                site = self._admitted(turn, whole)
                if isinstance(site, BindingLimit):
                    barred[whole.index] = site
                    continue
                if duration_s >= menu.closed_from_s[site.index]:
                    continue
                if self.draft.placements >= self.budget.placements_max:
                    self.draft.spent = True
                    return None
                self.draft.placements += 1
                found = stand_at(self.room, site, holds)
                if found is None:
                    menu.closed_from_s[site.index] = self._same_holds_from(site.cluster, duration_s)
                    continue
                menu.costs[site.index] = cost = found.cost(self.room) if len(tied) > 1 else 0.0
                if cost < best_cost - _EQUAL:
                    best, best_cost = found, cost
            if best is not None:
                break
        return best

    def _admitted(self, turn: Turn, site: CandidatePlacement) -> CandidatePlacement | BindingLimit:
        _, tier, level = turn.precedence
        bar = partial(self.entitlement.bar, turn.team, tier=tier, level=level)
        return admitted(site, lambda charge: bar(self._charge(charge, turn.row)))

    def _same_holds_from(self, cluster: int, duration_s: float) -> float:
        """Returns the least duration that may use the very same held nodes of a cluster as `duration_s` may."""
        offsets = self.draft.held_until.get(cluster, [])
        place = bisect_left(offsets, duration_s)
        return nextafter(offsets[place - 1], inf) if place else 0.0

    def _start(self, turn: Turn, menu: CandidateSet, standing: GangPlacement) -> None:
        site, pending = standing.site, self.snapshot.pending
        names = self.snapshot.nodes.names
        ends_s = self.now_s + float(pending.duration_s[turn.row])
        grants: dict[int, Grant] = {}
        shrunk = False
        for place in site.by_size:  # In the order they were found room in: what shares leave depends on it.
            choice, picked = site.choices[place], standing.picked[place]
            assert choice.pool is not None
            shrunk |= standing.replicas[place] != choice.replicas
            shared = self.room.take(choice.pool, picked)
            self.profile.started(choice.pool, picked, ends_s, shared)
            unit_milli = choice.pool.need.whole * MILLI + choice.pool.need.share_milli
            grants[place] = Grant(
                role=menu.shape.roles[choice.role].name,
                option=choice.option,
                cluster=self.snapshot.clusters.names[choice.cluster],
                nodes=tuple(names[row] for row in picked.rows.tolist()),
                chip_milli=tuple(units * unit_milli for units in picked.units.tolist()),
                ranks=tuple(picked.units.tolist()),
                shared=shared,
            )
        charge = site.charge
        if shrunk:
            sized = zip(site.choices, standing.replicas, strict=True)
            charge = charge_of(replace(choice, replicas=replicas) for choice, replicas in sized)
        self.entitlement.charge(turn.team, self._charge(charge, turn.row))
        considered = chosen_of(self.snapshot, menu, site, self.now_s)
        in_order = tuple(grants[place] for place in range(len(site.choices)))
        self.draft.starts.append(Start(job=pending.jobs[turn.row], grants=in_order, considered=considered))
        self.waiting.started(turn.row)

    def _bring_data(self, turn: Turn, menu: CandidateSet, site: CandidatePlacement) -> None:
        job = self.snapshot.pending.jobs[turn.row]
        names, data = self.snapshot.clusters.names, self.snapshot.data
        rows = [data.names.index(name) for name in menu.shape.inputs if name in data.names]
        brought = [row for row in rows if not data.present[row, site.cluster]]
        lost = [data.names[row] for row in brought if not data.present[row].any()]
        if lost:
            text = f"no cluster known has {' and '.join(lost)}, which it reads"
            bar = BindingLimit(limit=Limit.DATA, where="", short_by=0.0, text=text)
            self.waiting.row(turn.row, bar, menu, start_s=inf, exact=False)
            return
        target = names[site.cluster]
        ordered = {(move.what, move.target) for move in self.draft.moves}
        for row in [row for row in brought if (data.names[row], target) not in ordered]:
            # From a cluster that answers, when one of them has it.
            source = int(np.argmax(data.present[row] * (1 + self.snapshot.clusters.answering)))
            self.draft.moves.append(
                Move(
                    what=data.names[row],
                    source=names[source],
                    target=target,
                    size_bytes=int(data.size_bytes[row]),
                    for_job=job,
                )
            )
        text = f"{site.bytes_to_move / 1e9:.1f} GB it reads are being moved there"
        bar = BindingLimit(limit=Limit.DATA, where=names[site.cluster], short_by=0.0, text=text)
        ready_s = self.now_s + site.bytes_to_move / self.policy.link_bytes_per_s
        self.waiting.row(turn.row, bar, menu, start_s=ready_s, exact=False)

    # ---------------------------------------------------------------- making room

    def _make_room(self, turn: Turn, menu: CandidateSet, sites: Sequence[CandidatePlacement]) -> bool:
        """Reserves room for a job that finds none, displacing others where it may; returns whether it did."""
        pinned = [site for site in sites if not self.snapshot.clusters.delegated[site.cluster]][:SITES_MAX]
        left = len(self.draft.reservations) < self.policy.reservations_max
        searching = (
            self.policy.preempt
            and self.draft.searches < self.budget.preemptions_max
            and bool(self.reclaimable.evictable.any())
        )
        if not pinned or not (left or searching):
            return False
        soonest = self._earliest(pinned) if left or self.reclaimable.draining else None
        if soonest is not None and soonest[1].start_s <= self.now_s:
            return self._start_beside_holds(turn, menu, *soonest)
        # What somebody was evicted for comes free: nobody else is. A guess that jobs soon end makes nobody wait.
        if self.reclaimable.draining and soonest is not None and soonest[1].start_s <= self.now_s + DRAIN_S:
            return self._reserve(turn, menu, *soonest)
        if searching and (self._displace(turn, menu, pinned) or self._tidy(turn, menu, pinned)):
            return True
        if not left:
            return False
        if soonest is None and not self.snapshot.teams.attained[turn.team]:
            soonest = self._drain(pinned)
        return soonest is not None and self._reserve(turn, menu, *soonest)

    def _start_beside_holds(self, turn: Turn, menu: CandidateSet, site: CandidatePlacement, reserved: Reserved) -> bool:
        """Starts a job on nodes kept for others, which it leaves free enough for them however long it runs."""
        if site.bytes_to_move:
            self._bring_data(turn, menu, site)
            return True
        replicas = tuple(choice.replicas for choice in site.choices)
        self._start(turn, menu, GangPlacement(site=site, picked=reserved.picked, replicas=replicas))
        return True

    def _earliest(self, sites: Sequence[CandidatePlacement]) -> tuple[CandidatePlacement, Reserved] | None:
        best: tuple[CandidatePlacement, Reserved] | None = None
        for site in sites:
            reserved = self.profile.earliest(site)
            if reserved is not None and (best is None or reserved.start_s < best[1].start_s):
                best = (site, reserved)
        return best

    def _drain(self, sites: Sequence[CandidatePlacement]) -> tuple[CandidatePlacement, Reserved] | None:
        """Keeps what comes free for the first job of each kind of chip whose start nobody can foresee."""
        for site in sites:
            kinds = {(site.cluster, choice.chip) for choice in site.choices}
            if kinds & self.draft.drains:
                continue
            reserved = self.profile.soonest(site)
            if reserved is not None:
                self.draft.drains |= kinds
                return site, reserved
        return None

    def _reserve(self, turn: Turn, menu: CandidateSet, site: CandidatePlacement, reserved: Reserved) -> bool:
        pending = self.snapshot.pending
        self.profile.reserve(site, reserved, float(pending.duration_s[turn.row]), len(self.draft.reservations))
        nodes = sum(len(picked.rows) for picked in reserved.picked)
        # A drained node comes to nobody but the job it is kept for: no duration is short enough.
        until_s = reserved.start_s - self.now_s if reserved.start_s < inf else 0.0
        insort(self.draft.held_until.setdefault(site.cluster, []), until_s)
        name = self.snapshot.clusters.names[site.cluster]
        start_s = reserved.start_s if reserved.start_s < inf else None
        self.draft.reservations.append(
            Reservation(job=pending.jobs[turn.row], cluster=name, start_s=start_s, nodes=nodes)
        )
        self.entitlement.charge(turn.team, self._charge(site.charge, turn.row))
        code = _code(turn.precedence)
        self.waiting.row(turn.row, None, menu, start_s=reserved.start_s, exact=start_s is not None, code=code)
        return True

    def _displace(self, turn: Turn, menu: CandidateSet, sites: Sequence[CandidatePlacement]) -> bool:
        code = _code(turn.precedence)
        if code >= self.reclaimable.worst_code:
            return False
        candidates = self.reclaimable.evictable & (self.reclaimable.live_code > code)
        if not candidates.any():
            return False
        best: tuple[CandidatePlacement, Victims] | None = None
        for site in sites:
            self.draft.searches += 1
            found = victims(
                self.room,
                site,
                candidates=candidates,
                policy=self.policy,
                now_s=self.now_s,
                evicts_max=self.policy.evicts_max - len(self.draft.evicts),
            )
            if found is not None and (best is None or found.price_chip_s < best[1].price_chip_s):
                best = (site, found)
        return best is not None and self._apply(turn, menu, *best, Limit.TIER)

    def _tidy(self, turn: Turn, menu: CandidateSet, sites: Sequence[CandidatePlacement]) -> bool:
        """Moves running jobs together for a gang that waits only because free chips are too scattered."""
        if not self.policy.consolidate:
            return False
        for site in sites:
            self.draft.searches += 1
            found = consolidate(
                self.room,
                site,
                candidates=self.reclaimable.evictable & ~self.snapshot.live.serves,  # Somebody waits for its answers.
                policy=self.policy,
                now_s=self.now_s,
                evicts_max=self.policy.evicts_max - len(self.draft.evicts),
            )
            if found is not None:
                return self._apply(turn, menu, site, found, Limit.TOPOLOGY)
        return False

    def _apply(self, turn: Turn, menu: CandidateSet, site: CandidatePlacement, found: Victims, cause: Limit) -> bool:
        if site.bytes_to_move:  # Nobody ends for a job before what it reads is there.
            self._bring_data(turn, menu, site)
            return True
        job, live = self.snapshot.pending.jobs[turn.row], self.snapshot.live
        words = f"makes room for {job}, which comes before it"
        if cause is not Limit.TIER:
            words = f"moves so that there is room in one place for {job}"
        for row, price in zip(found.rows.tolist(), found.prices_chip_s.tolist(), strict=True):
            own, of = live.attempts[row], live.jobs[row]
            self._evict(row, Evict(attempt=own, job=of, cause=cause, reason=words, for_job=job, price_chip_s=price))
        for resize in found.resizes:
            self._spare(replace(resize, for_job=job))
        return self._reserve(turn, menu, site, Reserved(start_s=self.now_s + DRAIN_S, picked=found.picked))

    def _spare(self, resize: Resize) -> None:
        """Takes in a resize: whoever changes in this plan is not ended by it."""
        self.reclaimable.evictable[self.snapshot.live.attempts.index(resize.attempt)] = False
        self.draft.resizes.append(resize)

    def _evict(self, row: int, evict: Evict) -> None:
        self.reclaimable.evictable[row] = False
        self.draft.evicts.append(evict)
        live, nodes = self.snapshot.live, self.snapshot.nodes
        first, last = np.searchsorted(live.held_by, [row, row + 1]).tolist()
        chips: dict[int, int] = {}
        for thing in range(first, last):
            if live.held_node[thing] >= 0:
                chip = int(nodes.chip[live.held_node[thing]])
                milli = int(live.held_whole[thing]) * MILLI + int(live.held_share_milli[thing])
                chips[chip] = chips.get(chip, 0) + milli
        charge = Charge(chips=tuple(sorted(chips.items())), dollars_per_hour=0.0, duration_s=0.0)
        standing, tier, level = self.entitlement.live_precedence[row].tolist()
        self.entitlement.release(int(live.team[row]), charge, (standing, tier, level))
