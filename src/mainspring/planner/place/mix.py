"""Job mix: what usually comes, and what it makes free capacity worth, on nodes of each chip type."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import gcd

import numpy as np

from mainspring.domain.job import ANY_CHIP, MILLI, Option
from mainspring.planner.facts.snapshot import Floats, Snapshot

SHAPES_MAX = 256  # Shapes looked at, the heaviest; beyond them shapes are too rare to keep room for.
NEEDS_MAX = 64  # Distinct needs kept, the heaviest: FGD's mix of 95 % of a trace's pods has about 40.
OFFERS = 40  # Shares offered to a chip before it is judged; figures change little between 24 and 48.
GRID = 256  # Steps in which parts of a whole are tabulated.
WHOLE_MAX = 1_024  # Free chips told apart on one node; beyond, no job is kept out by a few of them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one unit takes on one node.

    Args:
        share_milli: Thousandths of one chip, which others may share; over 0 only where `whole` is 0.
    """

    whole: int = 0
    share_milli: int = 0
    cpu_milli: int = 0
    memory_mib: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Demand:
    """What usually comes, by chip type: the first dimension, of `beside` the second.

    Args:
        worth: By thousandths free on a chip: how much of them will be used, in chips.
        several: Which part of the chips asked for is asked for by units that want several together.
        stray: By whole chips free: how many of them such units leave behind, on average over all units.
        beside: Cores (milli) and memory (MiB), one row each, that come with a chip on average.
        missed: By part of the cores, or memory, that is lacking (`GRID` steps): which part of the chips it strands.
    """

    worth: Floats
    several: Floats
    stray: Floats
    beside: Floats
    beside_spread: Floats
    missed: Floats


def demand(snapshot: Snapshot) -> Demand:
    """Returns what usually comes, as the snapshot's weighted shapes say."""
    count = len(snapshot.chips)
    largest = np.zeros(count, dtype=np.int64)
    nodes = snapshot.nodes
    np.maximum.at(largest, nodes.chip, nodes.chips)
    needs = _needs(snapshot, largest.tolist())
    known = Demand(
        worth=np.zeros((count, MILLI + 1)),
        several=np.zeros(count),
        stray=np.zeros((count, min(int(largest.max(initial=0)), WHOLE_MAX) + 1)),
        beside=np.zeros((2, count)),
        beside_spread=np.zeros((2, count)),
        missed=np.zeros((2, count, GRID + 1)),
    )
    worths: dict[tuple[tuple[int, float], ...], Floats] = {}
    for chip in range(count):
        own = [(need, weight) for (of, need), weight in needs.items() if of == chip]
        if not own:
            continue
        pieces: dict[int, float] = defaultdict(float)
        for need, weight in own:
            pieces[need.share_milli or MILLI] += weight * max(need.whole, 1)
        total = sum(pieces.values())
        parts = tuple(sorted((milli, weight / total) for milli, weight in pieces.items()))
        if parts not in worths:
            worths[parts] = _worth(parts)
        known.worth[chip] = worths[parts]
        free = np.arange(known.stray.shape[1])
        for need, weight in own:
            if need.whole > 1:
                part = weight * need.whole / total
                known.several[chip] += part
                known.stray[chip] += part * (free % need.whole)
        weights = np.array([weight for _, weight in own])
        chips = np.array([need.whole + need.share_milli / MILLI for need, _ in own])
        beside = np.array([[need.cpu_milli, need.memory_mib] for need, _ in own], dtype=np.float64).T
        used = weights @ chips
        known.beside[:, chip] = beside @ weights / used
        # Units come until their chips add up to one: only what differs from the average of their chips spreads.
        apart = beside - known.beside[:, [chip]] * chips
        known.beside_spread[:, chip] = apart**2 @ weights / used
        for row in range(len(beside)):
            known.missed[row, chip] = _missed(weights * beside[row], weights * chips)
    return known


def _needs(snapshot: Snapshot, largest: list[int]) -> dict[tuple[int, Need], float]:
    """Returns how often units that use chips come, by chip type and need; the heaviest only."""
    rows: dict[str, tuple[int, ...]] = {chip: (row,) for row, chip in enumerate(snapshot.chips)}
    rows[ANY_CHIP] = tuple(range(len(snapshot.chips)))
    weights: dict[tuple[int, Need], float] = defaultdict(float)
    whole: dict[Need, float] = defaultdict(float)
    heaviest = np.argsort(-snapshot.shape_weight, kind="stable")[:SHAPES_MAX].tolist()
    for shape in heaviest:
        weight = float(snapshot.shape_weight[shape])
        for role in snapshot.shapes[shape].roles if weight > 0 else ():
            for option in role.options:
                for chip in rows.get(option.chip, ()):
                    need, units = _unit(option, largest[chip])
                    if need is not None:
                        weights[chip, need] += weight * option.replicas * units
                        whole[need] += weight * option.replicas * units
    kept = set(sorted(whole, key=lambda need: (-whole[need], _key(need)))[:NEEDS_MAX])
    # In one order, whatever came first: sums of fractions depend on it, and ties on their last digit.
    ordered = sorted(weights, key=lambda key: (key[0], _key(key[1])))
    return {key: weights[key] for key in ordered if key[1] in kept}


def _key(need: Need) -> tuple[int, int, int, int]:
    return need.whole, need.share_milli, need.cpu_milli, need.memory_mib


def _unit(option: Option, largest: int) -> tuple[Need | None, int]:
    """Returns what a replica takes on one node, and on how many; None when it takes no chips there."""
    asked = option.chip_milli
    if not asked or not largest:
        return None, 0
    if asked < MILLI:
        return Need(share_milli=asked, cpu_milli=option.cpu_milli, memory_mib=option.memory_mib), 1
    nodes = -(-asked // (largest * MILLI))
    whole = min(asked // MILLI, largest)
    return Need(whole=whole, cpu_milli=option.cpu_milli // nodes, memory_mib=option.memory_mib // nodes), nodes


def _missed(amounts: Floats, chips: Floats) -> Floats:
    """Returns, by part of all cores (or memory) that is lacking, which part of the chips stays unused for it.

    Jobs with few cores for their chips still find room when those with many no longer do, so the hungriest go first.

    Args:
        amounts: What jobs of each need ask for in all.
        chips: Chips they use in all.
    """
    asking = np.flatnonzero(amounts)
    hungriest = asking[np.argsort(-amounts[asking] / chips[asking], kind="stable")]
    lacking = np.append(0.0, np.cumsum(amounts[hungriest]))
    if not len(asking):
        return np.zeros(GRID + 1)
    unused = np.append(0.0, np.cumsum(chips[hungriest])) / chips.sum()
    missed: Floats = np.interp(np.linspace(0.0, 1.0, GRID + 1), lacking / lacking[-1], unused)
    return missed


def _worth(parts: tuple[tuple[int, float], ...]) -> Floats:
    """Returns, by thousandths free on a chip, how much of them is used after `OFFERS` shares were offered to it.

    At each offer the chip takes the share when that promises more than to wait: `V'(r) = E max(V(r), s + V(r - s))`;
    before the offer, a free chip may be taken whole. What is free matters only in steps of the greatest common divisor
    of all sizes.

    Args:
        parts: Thousandths of a piece of a chip, and how often it comes; these sum to 1.

    Source: the dynamic programme of the stochastic knapsack with a deadline, Papastavrou, Rajagopalan and Kleywegt,
        "The dynamic and stochastic knapsack problem with deadlines", Management Science 42(12), 1996.
    """
    whole = sum(weight for milli, weight in parts if milli == MILLI)
    shares = [(milli, weight) for milli, weight in parts if milli < MILLI]
    step = gcd(MILLI, *(milli for milli, _ in shares))
    worth = np.zeros(MILLI // step + 1)
    worth[-1] = float(whole > 0)
    if shares:
        size = np.array([[milli // step] for milli, _ in shares], dtype=np.int64)
        often = np.array([weight for _, weight in shares])
        often /= often.sum()
        left = np.arange(len(worth)) - size
        gain = np.where(left >= 0, size * (step / MILLI), -np.inf)
        left = np.maximum(left, 0)
        worth[-1] = 0.0
        for _ in range(OFFERS):
            worth = often @ np.maximum(worth, gain + worth[left])
            worth[-1] = whole + (1.0 - whole) * worth[-1]
    return np.append(np.repeat(worth[:-1], step), worth[-1])
