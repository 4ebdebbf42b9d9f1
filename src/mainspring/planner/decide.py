"""The planner: one pure function from a snapshot to a plan.

A cycle takes jobs in the order of `order.Queue`, weighs every option on every cluster, and starts each job at the
cheapest site that has room for its whole gang now. What does not start waits with the limit that binds it.

Backfill: jobs behind a waiting one may start, but not on the nodes it waits for. The first waiting job of each block
(a cluster's nodes of one chip type) that its quota allows to run holds nodes there: those with most free now that would
be enough for it. Held nodes only drain, the job stays first in line, so a gang is never starved by small jobs.

Elastic roles start at full size, or at the most the ready nodes could hold. Nothing is evicted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import repeat

import numpy as np

from mainspring.domain.ids import JobId
from mainspring.domain.plan import Candidate, Grant, Limit, Plan, Start, Wait
from mainspring.planner.order import Ledger, Queue, Turn
from mainspring.planner.snapshot import Shape, Snapshot
from mainspring.planner.weigh import (
    Bar,
    Choice,
    Fleet,
    Site,
    Standing,
    Work,
    best_standing,
    quota_bar,
    room_bar,
)

CANDIDATES_MAX = 32  # Told of one job; a person reads no more, and 100,000 waits must fit in memory.
_PRICE_EQUAL = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the lab decides about planning.

    Args:
        holds_max: How many waiting jobs may hold nodes in one block; 0 lets small jobs starve large ones.
    """

    holds_max: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much work one plan may take; jobs not reached wait with `Limit.BUDGET`.

    Args:
        placements_max: Placements examined; 100,000 take about 3 s on 2,000 nodes.
    """

    placements_max: int = 100_000


def plan(snapshot: Snapshot, policy: Policy, now_s: float, budget: Budget) -> Plan:
    """Returns what starts now, in the order it was placed, and why everything else that is pending waits.

    Args:
        snapshot: Everything known.
        policy: What the lab decides.
        now_s: The time, in seconds since the Unix epoch; jobs from the future count as submitted now.
        budget: Bounds the work.
    """
    return _Cycle(snapshot, policy, now_s, budget).run()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Menu:
    """What a shape can choose from; `told` keeps the last words on each choice, which seldom change."""

    choices: tuple[Choice, ...]
    sites: tuple[Site, ...]
    told: dict[int, Candidate] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    turn: Turn
    bar: Bar
    considered: tuple[Candidate, ...]


class _Cycle:
    def __init__(self, snapshot: Snapshot, policy: Policy, now_s: float, budget: Budget) -> None:
        self.snapshot = snapshot
        self.policy = policy
        self.now_s = now_s
        self.fleet = Fleet(snapshot)
        self.ledger = Ledger(snapshot.teams, snapshot.live)
        self.queue = Queue(snapshot.pending, self.ledger, now_s)
        self.work = Work(placements_max=budget.placements_max)
        self.menus: dict[int, _Menu] = {}

    def run(self) -> Plan:
        starts: list[Start] = []
        refusals: list[_Refusal] = []
        while (turn := self.queue.pop()) is not None:
            shape = self.snapshot.pending[turn.shape]
            menu = self._menu(turn.shape)
            found = best_standing(self.fleet, menu.sites, shape, self.ledger, self.work)
            if isinstance(found, Standing):
                starts.append(self._start(turn, shape, menu, found))
                self.queue.push_next(turn)
            else:
                # Room and quota only shrink from here on, so what stops this job stops all of its shape.
                refusals.append(self._refuse(turn, shape, menu, found))
        return Plan(number=self.snapshot.number, starts=tuple(starts), waits=self._waits(refusals))

    def _menu(self, index: int) -> _Menu:
        if index not in self.menus:
            roles = self.snapshot.pending[index].roles
            choices = self.fleet.choices(roles)
            self.menus[index] = _Menu(choices=choices, sites=self.fleet.sites(choices, len(roles)))
        return self.menus[index]

    def _start(self, turn: Turn, shape: Shape, menu: _Menu, standing: Standing) -> Start:
        considered = self._considered(shape, menu, standing.site)
        names = self.snapshot.nodes.names
        grants = []
        for choice, picked in zip(standing.site.choices, standing.picked, strict=True):
            assert choice.pool is not None
            milli = picked.units * choice.pool.unit_milli
            choice.pool.block.take(picked.rows, milli)
            grants.append(
                Grant(
                    role=shape.roles[choice.role].name,
                    option=choice.option,
                    cluster=self.snapshot.clusters.names[choice.cluster],
                    nodes=tuple(names[node] for node in choice.pool.block.node[picked.rows].tolist()),
                    chip_milli=tuple(milli.tolist()),
                    ranks=tuple(picked.units.tolist()),
                )
            )
        self.ledger.charge(shape.team, standing.site.charge_milli)
        return Start(job=turn.job, grants=tuple(grants), considered=considered)

    def _refuse(self, turn: Turn, shape: Shape, menu: _Menu, bars: dict[int, Bar]) -> _Refusal:
        if len(bars) < len(menu.sites):
            text = f"the plan's work budget of {self.work.placements_max} placements ran out before this job's turn"
            return _Refusal(
                turn=turn, bar=Bar(limit=Limit.BUDGET, where="planner", short_by=0.0, text=text), considered=()
            )
        considered = self._considered(shape, menu, None)
        if not bars:
            return _Refusal(turn=turn, bar=self._lasting(shape, menu), considered=considered)
        for index, bar in bars.items():
            if bar.limit in (Limit.CAPACITY, Limit.TOPOLOGY):
                self._hold(turn, menu.sites[index])
                break
        return _Refusal(turn=turn, bar=bars[0], considered=considered)

    def _hold(self, turn: Turn, site: Site) -> None:
        blocks = [choice.pool.block for choice in site.choices if choice.pool is not None]
        if any(len(block.held_for) >= self.policy.holds_max for block in blocks):
            return
        for choice in site.choices:
            assert choice.pool is not None
            rows = choice.pool.soonest(choice.replicas)
            if rows is not None:
                choice.pool.block.hold(rows, turn.job)

    def _lasting(self, shape: Shape, menu: _Menu) -> Bar:
        """Returns the bar of the cluster that is nearest to running the job, when none could now."""
        best: Bar | None = None
        for cluster in dict.fromkeys(choice.cluster for choice in menu.choices):
            worst: Bar | None = None
            for row in range(len(shape.roles)):
                mine = (choice for choice in menu.choices if choice.cluster == cluster and choice.role == row)
                bar = next(mine).bar
                if bar and (worst is None or bar.severity > worst.severity):
                    worst = bar
            if worst and (best is None or worst.severity < best.severity):
                best = worst
        text = "no cluster has reported its machines yet"
        return best or Bar(limit=Limit.HEALTH, where="", short_by=0.0, text=text)

    def _considered(self, shape: Shape, menu: _Menu, chosen: Site | None) -> tuple[Candidate, ...]:
        first, rest = [], []
        for index, choice in enumerate(menu.choices[:CANDIDATES_MAX]):
            taken = chosen and next((own for own in chosen.choices if _same(own, choice)), None)
            if taken:
                first.append(self._candidate(shape, menu, index, taken, "chosen", None))
            else:
                bar = choice.bar or self._passing_bar(shape, choice)
                verdict = bar.text if bar else _verdict(choice, chosen, self.snapshot)
                rest.append(self._candidate(shape, menu, index, choice, verdict, bar))
        return (*first, *rest)

    def _passing_bar(self, shape: Shape, choice: Choice) -> Bar | None:
        return quota_bar(self.ledger, shape.team, choice.charge_milli) or room_bar(
            self.snapshot.clusters.names[choice.cluster], choice
        )

    def _candidate(
        self, shape: Shape, menu: _Menu, index: int, choice: Choice, verdict: str, bar: Bar | None
    ) -> Candidate:
        known = menu.told.get(index)
        if known and known.verdict == verdict:
            return known
        clusters = self.snapshot.clusters
        menu.told[index] = Candidate(
            role=shape.roles[choice.role].name,
            option=choice.option,
            cluster=clusters.names[choice.cluster],
            simulated=bool(clusters.simulated[choice.cluster]),
            fits=bar is None,
            dollars_per_hour=choice.dollars_per_hour,
            dollars_per_work=choice.dollars_per_work,
            verdict=verdict,
        )
        return menu.told[index]

    def _waits(self, refusals: list[_Refusal]) -> tuple[Wait, ...]:
        """Returns one wait for each job of each shape refused, in queue order as things stand at the end."""
        rows: list[tuple[int, tuple[int, ...], float, JobId, int]] = []
        for number, refusal in enumerate(refusals):
            shape, first = self.snapshot.pending[refusal.turn.shape], refusal.turn.index
            since_s = np.minimum(shape.submitted_s[first:], self.now_s).tolist()
            share = self.ledger.share(shape.team)
            rows.extend(
                zip(repeat(shape.tier.rank), repeat(share), since_s, shape.jobs[first:], repeat(number), strict=False)
            )
        rows.sort()
        reasons = [_reason(refusal.bar) for refusal in refusals]
        return tuple(
            Wait(
                job=job,
                limit=refusals[number].bar.limit,
                where=refusals[number].bar.where,
                short_by=refusals[number].bar.short_by,
                reason=reasons[number],
                considered=refusals[number].considered,
            )
            for _, _, _, job, number in rows
        )


def _same(one: Choice, other: Choice) -> bool:
    return (one.role, one.option, one.cluster) == (other.role, other.option, other.cluster)


def _reason(bar: Bar) -> str:
    if bar.limit in (Limit.QUOTA, Limit.BUDGET) or not bar.where:
        return bar.text
    return f"{bar.where}: {bar.text}"


def _verdict(choice: Choice, chosen: Site | None, snapshot: Snapshot) -> str:
    """Returns why a choice that fits by itself was not taken."""
    if chosen is None:
        return "fits, but not together with the job's other roles"
    taken = chosen.choices[choice.role]
    if choice.dollars_per_work > taken.dollars_per_work + _PRICE_EQUAL:
        dearer, cheaper = choice.dollars_per_work, taken.dollars_per_work
        return f"dearer: ${dearer:.2f} against ${cheaper:.2f} per useful chip-hour"
    if choice.dollars_per_work < taken.dollars_per_work - _PRICE_EQUAL:
        return "cheaper, but dearer or impossible together with the job's other roles"
    return f"same price; {snapshot.clusters.names[taken.cluster]} breaks up fewer nodes, or comes first by name"
