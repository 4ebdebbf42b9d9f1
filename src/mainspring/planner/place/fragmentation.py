"""Fragmentation: how much less of a node the jobs that usually come will be able to use after a placement.

Each state of a node has a loss, in chips: what will stay unused of its free chips when jobs of the usual mix have
filled it. A place costs the loss it adds. Three things strand chips:

- remainders of shared chips, which no usual share fills: see `mix` for what a remainder is worth;
- cores or memory that run out first: what the jobs still to come will ask for is known as a mean and a variance, so
  that a node's lack shows long before a single job no longer fits; it strands few chips at first, for jobs that ask
  for little still find room, and more and more the deeper it gets, so that one deep lack is worse than two shallow;
- free chips that jobs wanting several together leave behind. Others use most of these.

Why this fills a cluster better than FGD (Weng et al., "Beware of Fragmentation", USENIX ATC 2023), as
`benchmarks.planner_openb` shows: FGD counts the free chips that one more job of the mix could not use now. That is nil
until a node is all but spent, so jobs that are greedy for cores go anywhere while it still matters; and a remainder is
worth to it what the next job alone makes of it, so that it closes chips with a poor fit that two later shares would
have filled. Here a node is judged by its end. Without the second part the figure falls below FGD's; with remainders
judged by one share, or without the third part where jobs of several chips abound, most of the lead goes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np

from mainspring.domain.job import MILLI
from mainspring.planner.facts.snapshot import UNCOUNTED, Flags, Floats, Integers, Snapshot
from mainspring.planner.place.mix import GRID, Demand, Need, demand

__all__ = ["Fragmentation", "Need", "State", "Taken"]

STRAY = 1 / 16  # Part of the chips left behind by jobs that want several which is lost; others use the rest.
TIGHT = 1e-6  # Among places of equal loss, a chip less left free on the node; cores count a hundredth of that.
LOGISTIC = 3**0.5 / np.pi  # Scale of the logistic distribution of variance 1, which stands in for the normal one.


class State(NamedTuple):
    """What is free on a node; nodes of equal state are alike to every placement.

    Args:
        chip: Index of the chip type.
        chips: How many chips the node has.
        whole: How many of them nobody uses any part of.
        shares: Thousandths free of each partly used chip, ascending.
        cpu_milli: Cores free, `UNCOUNTED` when nobody counts.
        memory_mib: Memory free, `UNCOUNTED` when nobody counts.
    """

    chip: int
    chips: int
    whole: int
    shares: tuple[int, ...]
    cpu_milli: int
    memory_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What units leave behind on a node.

    Args:
        state: What is free afterwards.
        opened: For each unit of a share, thousandths that were free on the chip it takes, 1,000 for a whole one.
    """

    state: State
    opened: tuple[int, ...] = ()


class Fragmentation:
    """Scores placements by what they leave useful.

    Args:
        snapshot: Whose shapes say what usually comes.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._demand: Demand = demand(snapshot)
        self._openings: dict[int, Floats] = {}

    def scores(self, states: Sequence[State], need: Need) -> Floats:
        """Returns what one unit costs on a node of each state, infinity where it does not fit: lower is better.

        Args:
            states: What is free on the nodes.
            need: What the unit takes.
        """
        if not states:
            return np.zeros(0)
        chip, whole, partly, beside = _columns(states)
        worth = self._demand.worth
        takes = np.array([[need.cpu_milli], [need.memory_mib]])
        fitting: Flags = (beside[0] >= need.cpu_milli) & (beside[1] >= need.memory_mib)
        if need.share_milli:
            opening = self._opening(need.share_milli)
            on_partly = opening[chip[:, None], partly].min(axis=1, initial=inf)
            on_whole = opening[chip, MILLI]
            fresh = np.where(whole > 0, on_whole + self._breaking(chip, whole), inf) < on_partly
            fitting &= fresh | (on_partly < inf)
            less = np.where(fresh, on_whole, np.where(fitting, on_partly, 0.0))
            broken: Integers = fresh.astype(np.int64)
        else:
            fitting &= whole >= need.whole
            less = need.whole * worth[chip, MILLI]
            broken = np.full(len(states), need.whole)
        # Rows are before and after.
        whole = np.stack([whole, np.maximum(whole - broken, 0)])
        free = whole[0] + partly.sum(axis=1) / MILLI
        free = np.stack([free, free - (need.whole + need.share_milli / MILLI)])
        use = whole[0] * worth[chip, MILLI] + worth[chip[:, None], partly].sum(axis=1)
        use = np.maximum(np.stack([use, use - less]), 0.0)
        loss = self._loss(chip, whole, free, use, np.stack([beside, beside - takes]))
        costs = loss[1] - loss[0] + _tightness(free[1], beside[0] - need.cpu_milli)
        # Equal places must tie exactly: the last digits are noise of the arithmetic.
        return np.where(fitting, np.round(costs, 12), inf)

    def after(self, state: State, need: Need, units: int = 1) -> Taken:
        """Returns what units that fit leave behind; each share takes the chip on which it spoils least.

        Args:
            state: What is free on the node.
            need: What each unit takes.
        """
        whole, shares, opened = state.whole - units * need.whole, list(state.shares), []
        for _ in range(units if need.share_milli else 0):
            free = self._chip_for(state.chip, whole, shares, need.share_milli)
            if free == MILLI:
                whole -= 1
            else:
                shares.remove(free)
            opened.append(free)
            if free > need.share_milli:
                insort(shares, free - need.share_milli)
        cpu = state.cpu_milli if state.cpu_milli == UNCOUNTED else state.cpu_milli - units * need.cpu_milli
        memory = state.memory_mib if state.memory_mib == UNCOUNTED else state.memory_mib - units * need.memory_mib
        assert min(whole, cpu, memory) >= 0
        left = state._replace(whole=whole, shares=tuple(shares), cpu_milli=cpu, memory_mib=memory)
        return Taken(state=left, opened=tuple(opened))

    def _chip_for(self, chip: int, whole: int, shares: list[int], milli: int) -> int:
        opening = self._opening(milli)[chip]
        best, free = inf, MILLI
        for partly in shares[bisect_left(shares, milli) :]:
            if opening[partly] < best:
                best, free = opening.item(partly), partly
        if whole and opening[MILLI] + self._breaking(np.array([chip]), np.array([whole]))[0] < best:
            return MILLI
        return free

    def _opening(self, milli: int) -> Floats:
        """Returns by chip type and thousandths free on a chip the worth a share takes from it; infinity: no room."""
        known = self._openings.get(milli)
        if known is None:
            worth = self._demand.worth
            known = self._openings[milli] = np.full_like(worth, inf)
            known[:, milli:] = worth[:, milli:] - worth[:, : MILLI + 1 - milli]
        return known

    def _breaking(self, chip: Integers, whole: Integers) -> Floats:
        """Returns what it costs, apart from its worth, that one of the whole chips no longer is."""
        stray = self._demand.stray
        most = stray.shape[1] - 1
        kept, left = stray[chip, np.minimum(whole, most)], stray[chip, np.minimum(np.maximum(whole - 1, 0), most)]
        costs: Floats = STRAY * (self._demand.several[chip] + left - kept)
        return costs

    def _loss(self, chip: Integers, whole: Integers, free: Floats, use: Floats, beside: Integers) -> Floats:
        """Returns how many of the chips free now will stay unused; rows are before and after.

        Args:
            chip: Index of the chip type.
            whole: Chips of which nothing is used.
            free: Chips free, parts included.
            use: How many of these the usual mix would use, were there cores and memory without end.
            beside: Cores and memory free.
        """
        known = self._demand
        loss: Floats = free - use
        if known.beside.any():
            lacking = _lacking(use[:, None], beside, known.beside[:, chip], known.beside_spread[:, chip])
            place = np.minimum(lacking, 1.0) * GRID
            step = np.minimum(place.astype(np.int64), GRID - 1)
            rows = np.arange(2)[:, None]
            low, high = known.missed[rows, chip, step], known.missed[rows, chip, step + 1]
            loss += use * (low + (place - step) * (high - low)).max(axis=1)
        stray = known.stray[chip, np.minimum(whole, known.stray.shape[1] - 1)]
        loss += STRAY * (known.several[chip] * (free - whole) + stray)
        return loss


def _columns(states: Sequence[State]) -> tuple[Integers, Integers, Integers, Integers]:
    """Returns columns: chip type, whole chips, free thousandths of partly used chips, cores and memory."""
    chip, _, whole, shares, cpu, memory = zip(*states, strict=True)
    width = max(map(len, shares))
    # Full chips make up the width: nothing is free on them.
    partly = np.array([each + (0,) * (width - len(each)) for each in shares], dtype=np.int64)
    return np.array(chip), np.array(whole), partly, np.array([cpu, memory])


def _lacking(chips: Floats, have: Integers, mean: Floats, spread: Floats) -> Floats:
    """Returns which part of what comes with chips is expected to be lacking.

    Args:
        chips: How many chips will be used.
        mean: What comes with a chip, on average.
    """
    wanted = chips * mean
    scale = LOGISTIC * np.sqrt(chips * spread) + 1e-9 * wanted + 1e-9
    lacking: Floats = scale * np.logaddexp(0.0, (wanted - have) / scale) / (wanted + 1e-9)
    return np.where(wanted > 0, lacking, 0.0)


def _tightness(free: Floats, cpu: Integers) -> Floats:
    cores = np.where(cpu < UNCOUNTED // 2, np.maximum(cpu, 0) / MILLI, 0.0)
    free = np.maximum(free, 0.0)
    tight: Floats = TIGHT * (free / (1.0 + free) + 0.01 * cores / (1.0 + cores))
    return tight
