"""Wait reasons: one `Wait` for each equivalence class, in words and numbers of the room as the plan leaves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, isfinite

import numpy as np

from mainspring.domain.ids import JobId
from mainspring.domain.job import MILLI
from mainspring.domain.plan import Candidate, Limit, Wait
from mainspring.planner.facts.reasons import BindingLimit, amount, listed, together
from mainspring.planner.facts.snapshot import NONE, UNCOUNTED, Floats, Integers, Snapshot
from mainspring.planner.future.backfill import Profile
from mainspring.planner.place.candidates import CandidatePlacement, CandidateSet, OptionOnCluster, severity
from mainspring.planner.place.chip_memory import memory_words
from mainspring.planner.place.free_capacity import FreeCapacity
from mainspring.planner.quota.entitlement import Entitlement
from mainspring.planner.quota.precedence import code_of
from mainspring.planner.quota.queue import Queue

CANDIDATES_MAX = 32  # Told of one job; a person reads no more, and 100,000 waits must fit in memory.
CLOSE_LOOKS_MAX = 256  # Choices measured for one plan's words; beyond, only each class's best one is.
_PRICE_EQUAL = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Cause:
    """Why some jobs wait; without a bar, the room as the plan leaves it tells.

    Args:
        bar: What stands in the way, when it is known already.
        menu: What the jobs can choose from.
        code: Their precedence: what less urgent jobs hold is not in their way for long.
        team: The team whose limits count beside the room, or `NONE`.
        keeps: Whether room is kept for them: then what is kept is not in their way.
    """

    bar: BindingLimit | None
    menu: CandidateSet | None
    code: int
    team: int
    keeps: bool = False


class Waiting:
    """Collects causes while a plan is made.

    Args:
        room: What is free, kept up to date by others.
        entitlement: What teams hold, kept up to date by others.
    """

    def __init__(self, snapshot: Snapshot, room: FreeCapacity, entitlement: Entitlement) -> None:
        self.closed: dict[int, int] = {}
        self._closed_menus: dict[int, int] = {}
        self._snapshot, self._room, self._entitlement = snapshot, room, entitlement
        self._causes: list[_Cause] = []
        self._of_row = np.full(len(snapshot.pending.jobs), NONE, dtype=np.int64)
        self._started = np.zeros(len(snapshot.pending.jobs), dtype=np.bool_)
        self._of_team: dict[tuple[int, int], int] = {}
        self._start_s: dict[int, float] = {}
        self._exact: dict[int, bool] = {}
        self._looks = 0
        self._held: dict[int, tuple[Integers, Integers]] = {}  # By area: see `_held_by_code`.

    def started(self, row: int) -> None:
        """Notes that a job does not wait."""
        self._started[row] = True

    def row(
        self, row: int, bar: BindingLimit | None, menu: CandidateSet, *, start_s: float, exact: bool, code: int = 0
    ) -> None:
        """Notes why one job waits, and until when.

        Args:
            bar: What stands in the way, None for the room.
            menu: What it can choose from.
            start_s: When it is expected to start.
            exact: Whether room is reserved for it from then on.
        """
        self._of_row[row] = self._cause(_Cause(bar=bar, menu=menu, code=code, team=NONE, keeps=bar is None))
        self._start_s[row], self._exact[row] = start_s, exact

    def shape(self, shape: int, menu: CandidateSet, code: int) -> None:
        """Notes that all jobs of a shape left wait for room.

        Args:
            shape: The shape.
            menu: What they can choose from.
            code: Precedence of the first of them.
        """
        if shape not in self.closed:
            if id(menu) not in self._closed_menus:
                self._closed_menus[id(menu)] = self._cause(_Cause(bar=None, menu=menu, code=code, team=NONE))
            self.closed[shape] = self._closed_menus[id(menu)]

    def team(self, shape: int, team: int, bar: BindingLimit | None, menu: CandidateSet) -> None:
        """Notes that all jobs left of a shape and team wait for a limit of the team.

        Args:
            shape: The shape.
            bar: The limit; None when the team's limits and the room share the blame.
            menu: What they can choose from.
        """
        self._of_team[team, shape] = self._cause(_Cause(bar=bar, menu=menu, code=0, team=team))

    def _cause(self, cause: _Cause) -> int:
        self._causes.append(cause)
        return len(self._causes) - 1

    def finish(
        self, menus: Mapping[int, CandidateSet], queue: Queue, profile: Profile, now_s: float, *, spent: bool
    ) -> tuple[Wait, ...]:
        """Returns why every job that did not start waits, classes in queue order of their first job.

        Args:
            menus: What shapes can choose from.
            queue: Gives the order.
            profile: Gives estimates of when they start.
            spent: Whether the plan's work budget ran out.
        """
        rows = np.flatnonzero(~self._started)
        if not len(rows):
            return ()
        rows = queue.order(rows)
        cause = self._causes_of(rows, spent=spent)
        start_s = self._starts(rows, cause, menus, profile)
        classes, first, group = np.unique(cause, return_index=True, return_inverse=True)
        by_class = np.argsort(group, kind="stable")
        ends = np.cumsum(np.bincount(group))
        jobs = self._snapshot.pending.jobs
        waits: list[tuple[int, Wait]] = []
        for number, end in enumerate(ends.tolist()):
            places = by_class[int(ends[number - 1]) if number else 0 : end]
            own = rows[places]
            if self._exact:
                late = np.array([not self._exact.get(row, False) for row in own.tolist()])
                keep = np.argsort(late, kind="stable")
                places, own, exact = places[keep], own[keep], int(np.count_nonzero(~late))
            else:
                exact = 0
            times = [time if isfinite(time) else None for time in start_s[places].tolist()]
            named = tuple(jobs[row] for row in own.tolist())
            waits.append((int(first[number]), self._wait(int(classes[number]), named, times, exact, now_s)))
        waits.sort(key=lambda item: item[0])
        return tuple(wait for _, wait in waits)

    def _causes_of(self, rows: Integers, *, spent: bool) -> Integers:
        """Returns the cause of each row: its own, else its team's, else its shape's."""
        pending = self._snapshot.pending
        shape, team = pending.shape[rows], pending.team[rows]
        count = len(self._snapshot.shapes)
        of_shape = np.full(count, NONE, dtype=np.int64)
        for each, number in self.closed.items():
            of_shape[each] = number
        cause = of_shape[shape]
        if self._of_team:
            codes = np.array([of_team * count + of for of_team, of in self._of_team], dtype=np.int64)
            numbers = np.array(list(self._of_team.values()), dtype=np.int64)
            order = np.argsort(codes)
            codes, numbers = codes[order], numbers[order]
            asked = team * count + shape
            place = np.minimum(np.searchsorted(codes, asked), len(codes) - 1)
            cause = np.where(codes[place] == asked, numbers[place], cause)
        cause = np.where(self._of_row[rows] != NONE, self._of_row[rows], cause)
        # Out of the queue, whatever became of others of their shape.
        for out, limit, text in (
            (pending.blocked[rows], Limit.DEPENDENCY, "a job it comes after has not succeeded yet"),
            (
                pending.paused[rows],
                Limit.PAUSED,
                "somebody has paused it, or its team, or it is held since the store went back in time",
            ),
            (
                pending.behind[rows] & ~pending.blocked[rows] & ~pending.paused[rows],
                Limit.DEPENDENCY,
                "replicas of a service start one by one, and another of its own is to have its place first",
            ),
        ):
            if out.any():
                bar = BindingLimit(limit=limit, where="", short_by=0.0, text=text)
                cause = np.where(out, self._cause(_Cause(bar=bar, menu=None, code=0, team=NONE)), cause)
        if (cause == NONE).any():
            assert spent, "every job popped has a cause"
            text = "the plan's work budget ran out before this job's turn"
            bar = BindingLimit(limit=Limit.SEARCH, where="planner", short_by=0.0, text=text)
            cause = np.where(cause == NONE, self._cause(_Cause(bar=bar, menu=None, code=0, team=NONE)), cause)
        return cause

    def _starts(self, rows: Integers, cause: Integers, menus: Mapping[int, CandidateSet], profile: Profile) -> Floats:
        """Returns when each row is expected to start: as reserved, else an estimate behind the reservations."""
        roomy = np.array([each.bar is None and each.team == NONE for each in self._causes], dtype=np.bool_)
        start_s = np.full(len(rows), inf)
        asked = np.flatnonzero(roomy[cause] & ~np.isin(rows, list(self._start_s)))
        if len(asked):
            shapes = self._snapshot.pending.shape[rows[asked]].tolist()
            sites: dict[int, CandidatePlacement | None] = {}
            for shape in shapes:
                if shape not in sites:
                    known = menus.get(shape)
                    sites[shape] = known.sites[0] if known and known.sites else None
            start_s[asked] = profile.estimates(rows[asked], [sites[shape] for shape in shapes])
        if self._start_s:
            place = {row: index for index, row in enumerate(rows.tolist())}
            for row, known_s in self._start_s.items():
                start_s[place[row]] = known_s
        return start_s

    # ---------------------------------------------------------------- words

    def _wait(self, number: int, jobs: tuple[JobId, ...], times: list[float | None], exact: int, now_s: float) -> Wait:
        cause = self._causes[number]
        bar = cause.bar
        considered: tuple[Candidate, ...] = ()
        if cause.menu is not None:
            bars = self._bars(cause)
            considered = _told(self._snapshot, cause.menu, bars)
            bar = bar or self._binding(cause.menu, bars)
        assert bar is not None
        reason = bar.reason
        if cause.menu is not None and cause.menu.sites and cause.menu.shape.avoids:
            avoided = [at.node for at in cause.menu.shape.avoids]
            reason += f"; not on {listed(avoided)}, where it was lost before"
        return Wait(
            jobs=jobs,
            start_s=tuple(times),
            exact=exact,
            limit=bar.limit,
            where=bar.where,
            short_by=bar.short_by,
            reason=reason,
            considered=considered,
        )

    def _bars(self, cause: _Cause) -> list[BindingLimit | None]:
        """Returns what stands in the way of each choice of a menu."""
        assert cause.menu is not None
        bars: list[BindingLimit | None] = []
        for index, choice in enumerate(cause.menu.choices[:CANDIDATES_MAX]):
            bar = choice.bar
            if bar is None and cause.team != NONE:
                with_it = next((site for site in cause.menu.sites if choice in site.choices), None)
                bar = self._entitlement.bar(cause.team, with_it.charge) if with_it else None
            if bar is None and (index == 0 or self._looks < CLOSE_LOOKS_MAX):
                self._looks += 1
                ahead_milli = self._ahead(choice, cause.code)
                bar = room_bar(self._room, choice, ahead_milli, keeps=cause.keeps)
                if bar is None and cause.keeps and len(cause.menu.shape.roles) == 1:
                    bar = room_bar(self._room, choice, ahead_milli)  # All that keeps it waiting is kept for others.
            bars.append(bar)
        return bars

    def _ahead(self, choice: OptionOnCluster, code: int) -> int:
        """Returns thousandths of a choice's chips held by attempts that come before a job."""
        assert choice.pool is not None
        area = choice.pool.area
        known = self._held.get(id(area))
        if known is None:
            known = self._held[id(area)] = _held_by_code(
                self._snapshot, self._entitlement.live_precedence, area.rows[self._room.usable[area.rows]]
            )
        codes, milli = known
        return int(milli[np.searchsorted(codes, code, side="left")])

    def _binding(self, menu: CandidateSet, bars: list[BindingLimit | None]) -> BindingLimit:
        """Returns the bar of the site that is nearest to running the job."""
        if not menu.choices:
            text = "no cluster has reported its machines yet"
            return BindingLimit(limit=Limit.HEALTH, where="", short_by=0.0, text=text)
        by_choice = {id(choice): bar for choice, bar in zip(menu.choices, bars, strict=False)}
        for site in menu.sites:
            for choice in site.choices:
                bar = by_choice.get(id(choice))
                if bar is not None:
                    return bar
        if menu.sites:
            several = len(menu.shape.roles) > 1
            text = "each role would fit by itself, but not beside the job's other roles" if several else "no room now"
            where = self._snapshot.clusters.names[menu.sites[0].cluster]
            return BindingLimit(limit=Limit.CAPACITY, where=where, short_by=0.0, text=text)
        worst: dict[int, BindingLimit] = {}
        for role in range(len(menu.shape.roles)):
            for cluster in range(len(self._snapshot.clusters.names)):
                mine = next(choice for choice in menu.choices if choice.cluster == cluster and choice.role == role)
                known = worst.get(cluster)
                if mine.bar and (known is None or severity(mine.bar) > severity(known)):
                    worst[cluster] = mine.bar
        return min(worst.values(), key=severity)


def _held_by_code(snapshot: Snapshot, precedence: Integers, rows: Integers) -> tuple[Integers, Integers]:
    """Returns precedences of what is held on some nodes, ascending, and thousandths held before each of them."""
    live = snapshot.live
    inside = np.zeros(len(snapshot.nodes.names) + 1, dtype=np.bool_)  # The last: a node nobody lists.
    inside[rows] = True
    things = np.flatnonzero(inside[live.held_node])
    code = code_of(precedence)[live.held_by[things]]
    order = np.argsort(code, kind="stable")
    milli = live.held_whole[things] * MILLI + live.held_share_milli[things]
    return code[order], np.append(0, np.cumsum(milli[order]))


def room_bar(
    room: FreeCapacity, choice: OptionOnCluster, ahead_milli: int = 0, *, keeps: bool = False
) -> BindingLimit | None:
    """Returns what keeps a choice from the room as it is now, if anything.

    Args:
        choice: A choice without a lasting bar.
        ahead_milli: Thousandths of its chips that jobs before it hold.
        keeps: Whether what is kept for reservations counts as free.
    """
    pool, wanted = choice.pool, choice.wanted
    assert pool is not None
    where = room.snapshot.clusters.names[choice.cluster]
    replicas = max(wanted.replicas_min, 1)
    found = room.shortfall(pool, replicas, np.ones(int(room.hold.max(initial=0)), dtype=np.bool_) if keeps else None)
    if found is None:
        return None
    needs = f"needs {amount(wanted, replicas)}{together(wanted)}"
    memory = memory_words(room.snapshot, choice.cluster, wanted)
    each = pool.need.whole + pool.need.share_milli / MILLI or pool.need.cpu_milli / MILLI
    short_by = round(found.short_units * each, 3)
    usable = pool.rows[room.usable[pool.rows]]
    if not wanted.chips:
        total = int(room.snapshot.nodes.cpu_total_milli[usable].sum())
        counted = total < UNCOUNTED
        cores = f", {int(room.cpu[usable].sum()) / MILLI:g} free of {total / MILLI:g}" if counted else ""
        text = f"{needs}{cores}; {found.text}"
        return BindingLimit(limit=Limit.CAPACITY, where=where, short_by=short_by, text=text)
    free = room.free_chips(pool)
    chips = int(room.snapshot.nodes.chips[usable].sum())
    held = 0 if keeps else int(room.whole[pool.rows][room.hold[pool.rows] > 0].sum())
    kept = f" ({held} kept for jobs before it)" if held else ""
    if found.apart:
        return BindingLimit(
            limit=Limit.TOPOLOGY, where=where, short_by=short_by, text=f"{needs}; {found.text}{kept}{memory}"
        )
    if chips * MILLI - ahead_milli < choice.charge_milli and ahead_milli:
        text = f"{needs}; jobs that come before it hold {ahead_milli / MILLI:g} of {chips}"
        return BindingLimit(limit=Limit.TIER, where=where, short_by=short_by, text=text + kept + memory)
    text = f"{needs}, {free:g} free of {chips}{kept}"
    if free - held >= replicas * wanted.chips:
        text += f"; {found.text}"
    return BindingLimit(limit=Limit.CAPACITY, where=where, short_by=short_by, text=text + memory)


def _told(snapshot: Snapshot, menu: CandidateSet, bars: list[BindingLimit | None]) -> tuple[Candidate, ...]:
    return tuple(
        _candidate(snapshot, menu, choice, fits=bar is None, verdict=bar.text if bar else "fits by itself")
        for choice, bar in zip(menu.choices, bars, strict=False)
    )


def chosen_of(snapshot: Snapshot, menu: CandidateSet, site: CandidatePlacement, now_s: float) -> tuple[Candidate, ...]:
    """Returns what was weighed for a job that starts: the chosen first, then the others, best first.

    Args:
        menu: What it could choose from.
    """
    known = menu.told.get(site.index)
    if known is not None:
        return known
    first, rest = [], []
    for choice in menu.choices[:CANDIDATES_MAX]:
        if choice in site.choices:
            own = _candidate(snapshot, menu, choice, fits=True, verdict="chosen")
            first.append(replace(own, start_s=now_s))
        else:
            fits, verdict = _verdict(snapshot, menu, site, choice)
            rest.append(_candidate(snapshot, menu, choice, fits=fits, verdict=verdict))
    menu.told[site.index] = (*first, *rest)
    return menu.told[site.index]


def _verdict(
    snapshot: Snapshot, menu: CandidateSet, site: CandidatePlacement, choice: OptionOnCluster
) -> tuple[bool, str]:
    """Returns whether a choice that was not taken fits, and why it was not."""
    if choice.bar is not None:
        return False, choice.bar.text
    with_it = [other for other in menu.sites if choice in other.choices]
    if with_it and all(menu.closed_from_s[other.index] < inf for other in with_it):
        return False, "no room now"
    taken = site.choices[choice.role]
    if choice.dollars_per_work > taken.dollars_per_work + _PRICE_EQUAL:
        dearer, cheaper = choice.dollars_per_work, taken.dollars_per_work
        return True, f"dearer: ${dearer:.2f} against ${cheaper:.2f} per useful chip-hour"
    if choice.dollars_per_work < taken.dollars_per_work - _PRICE_EQUAL:
        return True, "cheaper, but dearer or impossible together with the job's other roles"
    return True, f"same price; {snapshot.clusters.names[taken.cluster]} is left less broken up, or comes first by name"


def _candidate(
    snapshot: Snapshot, menu: CandidateSet, choice: OptionOnCluster, *, fits: bool, verdict: str
) -> Candidate:
    return Candidate(
        role=menu.shape.roles[choice.role].name,
        option=choice.option,
        cluster=snapshot.clusters.names[choice.cluster],
        simulated=bool(snapshot.clusters.simulated[choice.cluster]),
        fits=fits,
        dollars_per_hour=choice.dollars_per_hour,
        dollars_per_work=choice.dollars_per_work,
        verdict=verdict,
    )
