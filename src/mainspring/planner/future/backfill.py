"""The future of free room: when a gang will stand, what is kept for it, and what may be used until then.

Backfill is that of EASY, with as many reservations as the policy grants, but by node: a job that does not start yet
keeps the nodes it will start on, and those behind it in the queue use them only when they very likely end before.
A node whose free room is not needed, because enough more will be free there by then, is not kept at all.

Source: Feitelson & Weil, "Utilization and Predictability in Scheduling the IBM SP2 with Backfilling" (IPPS 1998);
Mu'alem & Feitelson, "Utilization, Predictability, Workloads, and User Runtime Estimates in Scheduling the IBM SP2 with
Backfilling" (TPDS 2001); Tsafrir, Etsion, Feitelson (TPDS 2007) for reservations made from predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from mainspring.domain.job import MILLI
from mainspring.planner.facts.policy import Budget
from mainspring.planner.facts.snapshot import NONE, UNCOUNTED, Flags, Floats, Integers
from mainspring.planner.future.fluid import Changes, spread_ends, starts
from mainspring.planner.place.candidates import CandidatePlacement, OptionOnCluster
from mainspring.planner.place.free_capacity import FreeCapacity
from mainspring.planner.place.pool import Picked, Pool
from mainspring.planner.place.topology import choose

STOPPING_S = 30.0  # From the order to end until nodes are free: the usual grace. Also for what should have ended.
WHOLE, CPU, MEMORY = 0, 1, 2  # Rows of what is free, held or released: whole chips, cores (milli), memory (MiB).
_RESOURCES = 3
_Shared = tuple[tuple[int, ...], ...]  # On each node, the chip each unit lies on; () for whole chips.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reserved:
    """Where and when a job will stand.

    Args:
        start_s: From when on; infinity when nobody can know.
        picked: Nodes, one entry for each choice of the site.
    """

    start_s: float
    picked: tuple[Picked, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Flow:
    """What comes free, one row a node or shared chip.

    Args:
        at_s: When, infinity for never.
        node: Row of the node.
        amount: How much, by resource.
    """

    at_s: Floats
    node: Integers
    amount: Integers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Booking:
    """What a reservation will use: rows within the cluster, and how much by resource."""

    start_s: float
    end_s: float
    node: Integers
    amount: Integers


class _Releases:
    """What comes free on one cluster, by time, and what reservations will use of it.

    Args:
        first: First node row of the cluster.
        count: How many nodes it has.
    """

    def __init__(self, first: int, count: int) -> None:
        self.here = slice(first, first + count)
        self.blocked = np.zeros(count, dtype=np.bool_)
        self.seen = 0  # How many flows are counted.
        self._count = count
        self._at = np.zeros(0)
        self._node = np.zeros(0, dtype=np.int64)
        self._amount = np.zeros((_RESOURCES, 0), dtype=np.int64)
        self._bookings: list[_Booking] = []
        self._floors: list[tuple[float, Integers]] = []  # Latest first: from a booking on, the least there is.

    def add(self, flow: _Flow) -> None:
        """Adds what comes free on nodes of the cluster.

        Args:
            flow: What comes free anywhere.
        """
        own = (flow.node >= self.here.start) & (flow.node < self.here.stop)
        at_s = np.concatenate([self._at, flow.at_s[own]])
        order = np.argsort(at_s, kind="stable")
        self._at = at_s[order]
        self._node = np.concatenate([self._node, flow.node[own] - self.here.start])[order]
        self._amount = np.concatenate([self._amount, flow.amount[:, own]], axis=1)[:, order]
        self._floors = []

    def book(self, start_s: float, flow: _Flow) -> None:
        """Adds what a reservation uses.

        Args:
            flow: What comes free when its job ends, at one time for all of it.
        """
        end_s = float(flow.at_s[0])
        node = flow.node - self.here.start
        self._bookings.append(_Booking(start_s=start_s, end_s=end_s, node=node, amount=flow.amount))
        self._floors = []

    def released(self, until_s: float) -> Integers:
        """Returns what comes free until a time, by resource and node; until infinity, everything."""
        end = int(np.searchsorted(self._at, until_s, side="right"))
        node = self._node[:end]
        rows = [np.bincount(node, weights=row[:end], minlength=self._count) for row in self._amount]
        return np.stack(rows).astype(np.int64)

    def left(self, time_s: float) -> Integers:
        """Returns how much more than now is free for good from a time on: at the worst moment of reservations.

        Later times have at least as much.
        """
        if self._bookings and not self._floors:
            for start_s in sorted({booking.start_s for booking in self._bookings}, reverse=True):
                least = self._net(start_s)
                if self._floors:
                    least = np.minimum(least, self._floors[-1][1])
                self._floors.append((start_s, least))
        later = next((least for start_s, least in reversed(self._floors) if start_s > time_s), None)
        net = self._net(time_s)
        return net if later is None else np.minimum(net, later)

    def _net(self, time_s: float) -> Integers:
        net = self.released(time_s)
        for booking in self._bookings:
            if booking.start_s <= time_s < booking.end_s:
                net[:, booking.node] -= booking.amount
        return net

    def times(self, nodes: Flags, after_s: float) -> Floats:
        """Returns the times at which something comes free, ascending, each once.

        Args:
            after_s: Only those later than this.
        """
        begin, end = int(np.searchsorted(self._at, after_s, side="right")), int(np.searchsorted(self._at, inf))
        ends_s = [booking.end_s for booking in self._bookings if after_s < booking.end_s < inf]
        return np.unique(np.append(self._at[begin:end][nodes[self._node[begin:end]]], ends_s))


class Profile:
    """The future of free room while a plan is made. Costs next to nothing before it is asked.

    Args:
        room: What is free now, kept up to date by others.
    """

    def __init__(self, room: FreeCapacity, now_s: float, budget: Budget) -> None:
        self._room, self._now_s = room, now_s
        self._probes_left = budget.probes_max
        self.spent = False  # Whether a search ended early because the probes ran out.
        self._new: list[tuple[Pool, Picked, float, _Shared]] = []  # Started, not in `_flows` yet.
        self._whole_s: dict[tuple[int, int], float] = {}  # By node and partly used chip: when nobody uses it any more.
        self._flows: list[_Flow] = []
        self._uses: list[Changes] = []
        self._clusters: dict[int, _Releases] = {}
        self._opens_s: list[float] = []  # By reservation: until when others may use what it keeps.
        self._foreseen: bool | None = None

    def started(self, pool: Pool, picked: Picked, ends_s: float, shared: _Shared = ()) -> None:
        """Notes that replicas started in this plan.

        Args:
            ends_s: When they are expected to end, infinity when nobody can know.
            shared: For units that share chips: on each node, the chip of each.
        """
        self._new.append((pool, picked, ends_s, shared))
        if ends_s < inf:
            self._foreseen = True

    def earliest(self, site: CandidatePlacement, *, not_before_s: float = -inf) -> Reserved | None:
        """Returns when the whole gang will stand and where, None when nobody can say or the probes ran out.

        What it names delays no reservation made before. A start at the time of the plan can be made at once.

        Args:
            site: What would stand where.
            not_before_s: Not before this time, nor before now.
        """
        if not self._is_foreseen():
            return None
        begin_s = max(self._now_s, not_before_s)
        releases = self._releases(site.cluster)
        inside = np.zeros(len(self._room.whole), dtype=np.bool_)
        for choice in site.choices:
            inside[_pool(choice).rows] = True
        times = np.append(begin_s, releases.times(inside[releases.here], begin_s))
        return self._first(times, lambda time_s: self._stand(site, self._free_at(releases, time_s)))

    def soonest(self, site: CandidatePlacement) -> Reserved | None:
        """Returns nodes to keep for a gang until they have drained, none of them kept yet; None when too few.

        Those that are most free now: the busiest of them is as little busy as can be.

        Args:
            site: What would stand where.
        """
        releases = self._releases(site.cluster)
        here = releases.here
        now = self._free_at(releases, self._now_s)
        open_ = (self._room.hold[here] == 0) & self._room.usable[here]
        now[:, here] *= open_
        # Foreign work never drains: nothing tells that it ends, and nodes kept for nothing would starve everybody.
        drained = (now[:, here] + releases.released(inf)) * open_
        left = np.min(now[:, here] / np.maximum(drained, 1), axis=0, initial=1.0, where=drained > 0)
        busy = np.round(1.0 - left, 6)  # UNCOUNTED cores are all but free whatever is held of them.

        def stand(bound: float) -> tuple[Picked, ...] | None:
            free = now.copy()
            free[:, here] = np.where(busy <= bound, drained, now[:, here])
            return self._stand(site, free)

        found = self._first(np.unique(busy), stand)
        return None if found is None else Reserved(start_s=inf, picked=found.picked)

    def reserve(self, site: CandidatePlacement, reserved: Reserved, duration_s: float, reservation: int) -> None:
        """Keeps room for a job from its start on, for as long as it is expected to run.

        Args:
            duration_s: How long it is expected to run.
            reservation: Its number, counted up from 0.
        """
        assert reservation == len(self._opens_s)
        start_s, ends_s = reserved.start_s, reserved.start_s + duration_s
        self._opens_s.append(start_s if start_s < inf else -inf)
        releases = self._releases(site.cluster)
        if start_s == inf:
            for picked in reserved.picked:
                releases.blocked[picked.rows - releases.here.start] = True
                self._room.keep(picked.rows, reservation)
            return
        self._foreseen = True
        for choice, picked in zip(site.choices, reserved.picked, strict=True):
            flow = _flow([(_pool(choice), picked, ends_s)])
            releases.book(start_s, flow)
            self._uses += [_changes(flow, start_s, -1), _changes(flow, ends_s, 1)]
        rows = np.unique(np.concatenate([picked.rows for picked in reserved.picked]))
        # What is free there now is needed then, unless at the worst moment no less is left.
        nodes = self._room.snapshot.nodes
        totals = np.stack([nodes.chips[rows], nodes.cpu_total_milli[rows], nodes.memory_total_mib[rows]])
        less = (releases.left(self._now_s)[:, rows - releases.here.start] < 0) & (totals < UNCOUNTED)
        # A chip it counts on, of which parts are free now, must not be shared anew.
        left = self._room.whole[rows] + releases.left(start_s)[WHOLE, rows - releases.here.start]
        less[WHOLE] |= left < self._room.chips_shared(rows)
        self._keep(rows[less.any(axis=0)], start_s, reservation)

    def _keep(self, rows: Integers, start_s: float, reservation: int) -> None:
        # A node that an earlier reservation keeps stays its own, but opens to nobody who would still be there at ours.
        for earlier in np.unique(self._room.hold[rows]).tolist():
            if earlier:
                self._opens_s[earlier - 1] = min(self._opens_s[earlier - 1], start_s)
        self._room.keep(rows, reservation)

    def holds_open(self, safe_duration_s: float) -> Flags | None:
        """Returns by reservation whether a job may use the nodes it keeps, None when it may use none.

        Args:
            safe_duration_s: How long the job very likely runs at most.
        """
        if not self._opens_s or safe_duration_s == inf:
            return None
        opened = np.array(self._opens_s) >= self._now_s + safe_duration_s
        return opened if opened.any() else None

    def estimates(self, rows: Integers, sites: Sequence[CandidatePlacement | None]) -> Floats:
        """Returns when waiting jobs are expected to start behind the reservations; infinity when nobody can know.

        Args:
            rows: Their pending rows, in queue order.
            sites: Where each would go, None for nowhere.
        """
        if not self._is_foreseen():
            return np.full(len(rows), inf)
        live, ends_s = self._room.snapshot.live, self._ends_s()
        safe_s = np.where(ends_s == live.ends_s, live.ends_safe_s, ends_s)
        ends_s = spread_ends(live.granted_s, ends_s, safe_s, self._now_s)
        flows = [_changes(flow, None, 1) for flow in (self._live(ends_s), *self._all_flows()[1:])] + self._uses
        changes = Changes(
            at_s=np.concatenate([each.at_s for each in flows]),
            node=np.concatenate([each.node for each in flows]),
            whole=np.concatenate([each.whole for each in flows]),
            cpu_milli=np.concatenate([each.cpu_milli for each in flows]),
        )
        return starts(self._room, self._now_s, changes, self._room.snapshot.pending.duration_s[rows], sites)

    # ---------------------------------------------------------------- the future

    def _is_foreseen(self) -> bool:
        """Returns whether anything at all is known to come free."""
        if self._foreseen is None:
            live = self._room.snapshot.live
            self._foreseen = bool(np.isfinite(live.ends_s).any() or live.stopping.any())
        return self._foreseen

    def _all_flows(self) -> list[_Flow]:
        """Returns what comes free of live attempts, then of jobs started in this plan."""
        if not self._flows:
            nodes, ends_s = self._room.snapshot.nodes, self._ends_s()
            self._flows.append(self._live(ends_s))
            self._whole_s = dict.fromkeys(zip(nodes.share_node.tolist(), nodes.share_chip.tolist(), strict=True), inf)
            node, chip, last_s = self._opened(ends_s)
            self._whole_s.update(zip(zip(node.tolist(), chip.tolist(), strict=True), last_s.tolist(), strict=True))
        if self._new:
            self._flows.append(self._started())
            self._new = []
        return self._flows

    def _started(self) -> _Flow:
        """Returns what comes free of jobs started in this plan; a shared chip when the last of its users ends."""
        flow = _flow([(pool, picked, ends_s) for pool, picked, ends_s, _ in self._new])
        opened: list[tuple[float, int, int]] = []
        first = 0
        for _, picked, ends_s, shared in self._new:
            last = first + len(picked.rows)
            if shared:
                flow.amount[WHOLE, first:last] = 0
            for row, chips in zip(picked.rows.tolist(), shared, strict=False):
                for chip in sorted(set(chips)):
                    known_s = self._whole_s.get((row, chip), -inf)
                    if ends_s > known_s:
                        opened.append((ends_s, row, 1))
                        if known_s > -inf:
                            opened.append((known_s, row, -1))  # It would have been free then.
                    self._whole_s[row, chip] = max(known_s, ends_s)
            first = last
        amount = np.zeros((_RESOURCES, len(opened)), dtype=np.int64)
        amount[WHOLE] = [each[2] for each in opened]
        return _Flow(
            at_s=np.append(flow.at_s, [each[0] for each in opened]),
            node=np.append(flow.node, np.array([each[1] for each in opened], dtype=np.int64)),
            amount=np.concatenate([flow.amount, amount], axis=1),
        )

    def _ends_s(self) -> Floats:
        live = self._room.snapshot.live
        late = live.stopping | (live.ends_s <= self._now_s)
        return np.where(late, self._now_s + STOPPING_S, live.ends_s)

    def _live(self, ends_s: Floats) -> _Flow:
        """Returns what live attempts hold, by when each ends."""
        live = self._room.snapshot.live
        held = np.flatnonzero(live.held_node != NONE)
        held = held[self._room.usable[live.held_node[held]]]
        at_s, node = ends_s[live.held_by[held]], live.held_node[held]
        amount = np.stack([live.held_whole[held], live.held_cpu_milli[held], live.held_memory_mib[held]])
        opened, _, last_s = self._opened(ends_s)
        if len(opened):
            chips = np.zeros((_RESOURCES, len(opened)), dtype=np.int64)
            chips[WHOLE] = 1
            at_s, node = np.append(at_s, last_s), np.append(node, opened)
            amount = np.concatenate([amount, chips], axis=1)
        return _Flow(at_s=at_s, node=node, amount=amount)

    def _opened(self, ends_s: Floats) -> tuple[Integers, Integers, Floats]:
        """Returns the shared chips that nobody uses once all live attempts ended: node, number, and when that is."""
        live, nodes = self._room.snapshot.live, self._room.snapshot.nodes
        held = np.flatnonzero((live.held_node != NONE) & (live.held_chip != NONE))
        held = held[self._room.usable[live.held_node[held]]]
        chips_max = int(nodes.chips.max(initial=0)) + 1
        codes, chip = np.unique(live.held_node[held] * chips_max + live.held_chip[held], return_inverse=True)
        ours = np.bincount(chip, weights=live.held_share_milli[held], minlength=len(codes)).astype(np.int64)
        place = np.searchsorted(nodes.share_node * chips_max + nodes.share_chip, codes)
        last_s = np.full(len(codes), -inf)
        np.maximum.at(last_s, chip, ends_s[live.held_by[held]])
        opened = ours + nodes.share_milli[place] == MILLI
        return codes[opened] // chips_max, codes[opened] % chips_max, last_s[opened]

    def _releases(self, cluster: int) -> _Releases:
        """Returns what comes free on a cluster, the jobs started in this plan included."""
        if cluster not in self._clusters:
            own = np.flatnonzero(self._room.snapshot.nodes.cluster == cluster)
            self._clusters[cluster] = _Releases(int(own[0]) if len(own) else 0, len(own))
        releases, flows = self._clusters[cluster], self._all_flows()
        for flow in flows[releases.seen :]:
            releases.add(flow)
        releases.seen = len(flows)
        return releases

    def _free_at(self, releases: _Releases, time_s: float) -> Integers:
        """Returns what is free for good from a time on, by resource and node row: what reservations will use is not.

        It only ever grows: the first time at which a gang stands can be found by halving, and no job that is given a
        place in it delays a reservation, however long it runs.
        """
        room = self._room
        free = np.stack([room.whole, room.cpu, room.memory])
        own = free[:, releases.here]
        own += releases.left(time_s)
        np.maximum(own, 0, out=own)
        own[:, releases.blocked] = 0
        return free

    def _first(self, times: Floats, stand: Callable[[float], tuple[Picked, ...] | None]) -> Reserved | None:
        """Returns the first of ascending times at which a gang stands; once it does, it always does."""
        found: Reserved | None = None
        low, high = 0, len(times)  # Before `low` it does not stand; at `high` it does, when that is a time.
        middle = len(times) - 1  # One probe refuses a gang that never stands.
        while low < high:
            if self._probes_left <= 0:
                self.spent = True
                return None
            self._probes_left -= 1
            picked = stand(float(times[middle]))
            if picked is None:
                low = middle + 1
            else:
                found, high = Reserved(start_s=float(times[middle]), picked=picked), middle
            middle = (low + high) // 2
        return found

    def _stand(self, site: CandidatePlacement, free: Integers) -> tuple[Picked, ...] | None:
        """Returns where the whole gang stands in what is free, roles of large replicas first; uses `free` up."""
        picked: dict[int, Picked] = {}
        for place in sorted(range(len(site.choices)), key=lambda place: -site.choices[place].wanted.chip_milli):
            choice = site.choices[place]
            pool = _pool(choice)
            caps = pool.caps(free[WHOLE], free[CPU], free[MEMORY])
            # Of nodes with as much room then, those with least room now: the fewest chips are idle until then.
            cost = self._room.whole[pool.rows].astype(np.float64)
            chosen = choose(caps, pool.tree, pool.ask(choice.replicas), cost=cost)
            if chosen is None:
                return None
            picked[place] = Picked(rows=pool.rows[chosen.rows], units=chosen.units)
            free[:, picked[place].rows] -= _flow([(pool, picked[place], inf)]).amount
        return tuple(picked[place] for place in range(len(site.choices)))


def _pool(choice: OptionOnCluster) -> Pool:
    assert choice.pool is not None
    return choice.pool


def _flow(placed: Sequence[tuple[Pool, Picked, float]]) -> _Flow:
    """Returns what comes free of replicas placed; a share of a chip counts as if nobody else used the chip."""
    lengths = [len(picked.rows) for _, picked, _ in placed]
    units = np.concatenate([picked.units for _, picked, _ in placed])
    needs = (pool.need for pool, _, _ in placed)
    rows = ((need.whole, need.share_milli, need.cpu_milli, need.memory_mib) for need in needs)
    whole, share, cpu, memory = (
        np.repeat(np.array(column, dtype=np.int64), lengths) * units for column in zip(*rows, strict=True)
    )
    return _Flow(
        at_s=np.repeat(np.array([ends_s for _, _, ends_s in placed]), lengths),
        node=np.concatenate([picked.rows for _, picked, _ in placed]),
        amount=np.stack([whole - (-share // MILLI), cpu, memory]),
    )


def _changes(flow: _Flow, at_s: float | None, sign: int) -> Changes:
    return Changes(
        at_s=flow.at_s if at_s is None else np.full(len(flow.at_s), at_s),
        node=flow.node,
        whole=sign * flow.amount[WHOLE],
        cpu_milli=sign * flow.amount[CPU],
    )
