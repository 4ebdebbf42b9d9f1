"""Start estimates far back in the queue: chips as a fluid, one lane for each cluster and chip.

A lane knows how many of its chips are free from when to when, for units of each size: chips that lie about one on each
node are of no use to jobs that want eight together. Waiting jobs take theirs in queue order, each at the first time at
which they stay free for as long as it is expected to run: conservative backfill, blind to which node and to topology.
Beyond a bound, jobs start at the rate at which those before them drain.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from statistics import NormalDist

import numpy as np

from mainspring.domain.job import MILLI
from mainspring.planner.facts.durations import SAFE_QUANTILE
from mainspring.planner.facts.snapshot import NONE, Flags, Floats, Integers
from mainspring.planner.place.candidates import CandidatePlacement
from mainspring.planner.place.free_capacity import FreeCapacity

RUNS_MAX = 1_000  # Runs of equal jobs placed one by one, over all lanes.
STEPS_MAX = 256  # Times at which a lane's free chips change; more are gathered, each into the next one kept.
SIZES_MAX = 8  # Sizes of units told apart; those between count as the next larger one kept.
_CHANCE: Floats = (np.arange(512) + 0.5) / 512
_NORMAL: Floats = np.array([NormalDist().inv_cdf(chance) for chance in _CHANCE.tolist()])
_SAFE_Z = NormalDist().inv_cdf(SAFE_QUANTILE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Changes:
    """What comes free or gets used, one row each, in any order.

    Args:
        at_s: When, infinity for never.
        node: On which node row.
        whole: Whole chips, less than 0 for what gets used.
    """

    at_s: Floats
    node: Integers
    whole: Integers
    cpu_milli: Integers


def starts(
    room: FreeCapacity, now_s: float, changes: Changes, duration_s: Floats, sites: Sequence[CandidatePlacement | None]
) -> Floats:
    """Returns when waiting jobs are expected to start, always after now; infinity when nobody can know.

    Args:
        room: What is free now.
        changes: What is known to come free or to be used.
        duration_s: How long each job is expected to run, in queue order.
        sites: Where each would go, None for nowhere.
    """
    keys = list(map(id, sites))  # Jobs of one shape share one site.
    distinct = dict(zip(keys, sites, strict=True))
    number = {key: place for place, key in enumerate(distinct)}
    asks = np.array([_asked(site) for site in distinct.values()], dtype=np.int64).reshape(-1, 4)
    cluster, chip, milli, unit = asks[[number[key] for key in keys]].T
    found = np.full(len(sites), inf)
    runs_left = RUNS_MAX
    for own_cluster, own_chip in np.unique(asks[asks[:, 0] != NONE, :2], axis=0).tolist():
        own = np.flatnonzero((cluster == own_cluster) & (chip == own_chip))
        asked = np.bincount(unit[own], weights=milli[own]).astype(np.float64)
        lane = _Lane(room, now_s, changes, own_cluster, own_chip, asked)
        found[own], runs = lane.starts(milli[own], unit[own], duration_s[own], runs_left)
        runs_left -= runs
    return found


def spread_ends(granted_s: Floats, ends_s: Floats, safe_s: Floats, now_s: float) -> Floats:
    """Returns when each attempt ends, where those that started together and are expected to end together do not.

    Which of a thousand equal jobs ends first nobody knows, but that they do not all end at their mean is certain: the
    k-th of n is given the (k - 1/2) / n quantile of those that still run. Runtimes are taken as lognormal with their
    mean and safe quantile; all other attempts keep their expected end.

    Source: David & Nagaraja, "Order Statistics" (2003), 4.6: quantiles as approximate means of order statistics.

    Args:
        ends_s: When each is expected to end, infinity when nobody can know.
        safe_s: When each has very likely ended.
    """
    spread = ends_s.copy()
    own = np.flatnonzero((ends_s < inf) & (ends_s > np.maximum(now_s, granted_s)))
    if not len(own):
        return spread
    keys = np.round(np.stack([granted_s[own], ends_s[own], np.minimum(safe_s[own], 1e18)]))
    order = np.lexsort(keys)
    first = np.append(0, np.flatnonzero((keys[:, order[1:]] != keys[:, order[:-1]]).any(axis=0)) + 1)
    sizes = np.diff(np.append(first, len(own)))
    place, count = np.empty(len(own)), np.empty(len(own))
    place[order] = np.arange(len(own)) - np.repeat(first, sizes) + 0.5
    count[order] = np.repeat(sizes, sizes)
    mean_s = ends_s[own] - granted_s[own]
    # For a lognormal, log(quantile / mean) = z deviation - deviation^2 / 2; no quantile is further than at deviation z.
    further = np.clip(np.log((safe_s[own] - granted_s[own]) / mean_s), 0.0, _SAFE_Z**2 / 2)
    deviation = _SAFE_Z - np.sqrt(_SAFE_Z**2 - 2 * further)
    several = np.flatnonzero((count > 1) & (deviation > 0))
    own, mean_s, deviation = own[several], mean_s[several], deviation[several]
    middle = np.log(mean_s) - deviation**2 / 2
    ran = (np.log(np.maximum(now_s - granted_s[own], 1e-9)) - middle) / deviation
    ended = np.interp(ran, _NORMAL, _CHANCE, left=0.0)
    chance = ended + (1 - ended) * (place / count)[several]
    ends = granted_s[own] + np.exp(middle + deviation * np.interp(chance, _CHANCE, _NORMAL))
    spread[own] = np.maximum(ends, now_s)
    return spread


def _asked(site: CandidatePlacement | None) -> tuple[int, int, int, int]:
    """Returns cluster, chip, how much a site takes in all, and on one node: of its main chip, or of cores (milli)."""
    if site is None:
        return NONE, NONE, 0, 0
    chip, milli = max(site.charge.chips, key=lambda charged: charged[1], default=(NONE, 0))
    if chip == NONE:
        unit = max(choice.wanted.cpu_milli for choice in site.choices)
        return site.cluster, NONE, sum(choice.replicas * choice.wanted.cpu_milli for choice in site.choices), unit
    pools = (choice.pool for choice in site.choices if choice.chip == chip)
    unit = max(pool.need.whole for pool in pools if pool is not None)
    return site.cluster, chip, milli, max(1, unit) * MILLI


class _Lane:
    """What is free of one kind of chip on one cluster, from each of some times on; the first is now."""

    def __init__(
        self, room: FreeCapacity, now_s: float, changes: Changes, cluster: int, chip: int, asked: Floats
    ) -> None:
        nodes = room.snapshot.nodes
        inside: Flags = room.usable & (nodes.cluster == cluster)
        if chip != NONE:
            inside = inside & (nodes.chip == chip)
        own = np.flatnonzero(inside[changes.node] & (changes.at_s < inf))
        at_s = np.maximum(changes.at_s[own], now_s)
        times = np.unique(np.append(at_s, now_s))
        if len(times) > STEPS_MAX:
            times = times[np.linspace(0, len(times) - 1, STEPS_MAX).astype(np.int64)]
        rows = np.flatnonzero(inside)
        free = np.zeros((len(times), len(rows)), dtype=np.int64)
        amount = changes.cpu_milli[own] if chip == NONE else changes.whole[own] * MILLI
        np.add.at(free, (np.searchsorted(times, at_s), np.searchsorted(rows, changes.node[own])), amount)
        free[0] += room.cpu[rows] if chip == NONE else room.whole[rows] * MILLI
        np.maximum(np.cumsum(free, axis=0, out=free), 0, out=free)
        sizes = np.flatnonzero(asked)
        if len(sizes) > SIZES_MAX:
            sizes = np.sort(sizes[np.argsort(-asked[sizes], kind="stable")[:SIZES_MAX]])
        self._sizes = sizes
        self._times: list[float] = times.tolist()
        self._free = np.stack([(free // size).sum(axis=1) * size for size in sizes.tolist()])
        self._hints_s: dict[tuple[int, int, float], float] = {}  # No equal job finds room before.

    def starts(self, milli: Integers, unit: Integers, duration_s: Floats, runs_max: int) -> tuple[Floats, int]:
        """Returns when jobs start, and how many runs of equal ones were placed to know.

        Args:
            milli: What each takes in all, in queue order.
            unit: What each takes on one node.
            runs_max: How many runs may be placed; what comes after starts as those before it drain.
        """
        size = np.minimum(np.searchsorted(self._sizes, unit), len(self._sizes) - 1)
        # Unknown durations are infinite: they are equal, though their difference is not zero.
        differs = (np.diff(milli) != 0) | (np.diff(size) != 0) | (duration_s[1:] != duration_s[:-1])
        begins = np.append(0, np.flatnonzero(differs) + 1)
        counts = np.diff(np.append(begins, len(milli)))
        runs = min(len(begins), runs_max)
        placed: list[float] = []
        for begin, count in zip(begins[:runs].tolist(), counts[:runs].tolist(), strict=True):
            placed += self._place(int(size[begin]), max(1, int(milli[begin])), float(duration_s[begin]), count)
        found = np.full(len(milli), inf)
        found[: len(placed)] = placed
        if len(placed) < len(milli):
            found[len(placed) :] = self._drained(placed, milli[len(placed) :], duration_s[len(placed) :])
        return found, runs

    def _place(self, size: int, milli: int, duration_s: float, count: int) -> list[float]:
        """Takes room for equal jobs, each at the first time after now that has it, and returns these times."""
        times = self._times
        index = max(1, bisect_left(times, self._hints_s.get((size, milli, duration_s), -inf)))
        placed: list[float] = []
        while len(placed) < count and index < len(times):
            end_s = times[index] + duration_s
            stop = bisect_left(times, end_s, index + 1)
            window = self._free[size, index:stop]
            short = np.flatnonzero(window < milli)
            if len(short):
                index += int(short[-1]) + 1  # A start before would run into the last of them.
                continue
            taken = min(count - len(placed), int(window.min()) // milli)
            placed += [times[index]] * taken
            if end_s < inf and (stop == len(times) or (times[stop] > end_s and len(times) < STEPS_MAX)):
                times.insert(stop, end_s)
                self._free = np.insert(self._free, stop, self._free[:, stop - 1], axis=1)
            self._take(size, slice(index, stop), taken * milli)
        self._hints_s[size, milli, duration_s] = times[index] if index < len(times) else inf
        return placed + [inf] * (count - len(placed))

    def _take(self, size: int, steps: slice, milli: int) -> None:
        """Takes units of one size: first what is of no use to larger ones."""
        self._free[: size + 1, steps] -= milli
        np.minimum(self._free[size + 1 :, steps], self._free[size, steps], out=self._free[size + 1 :, steps])

    def _drained(self, placed: list[float], milli: Integers, duration_s: Floats) -> Floats:
        """Returns when jobs start behind those placed: after the work before them, at all chips' rate."""
        capacity = int(self._free[0, -1])
        if capacity <= 0:
            return np.full(len(milli), inf)
        front_s = max((start_s for start_s in placed if start_s < inf), default=self._times[0])
        work_s = milli * duration_s / capacity
        ahead_s = np.append(0.0, np.cumsum(work_s)[:-1])
        return np.where(milli <= capacity, front_s + ahead_s, inf)
