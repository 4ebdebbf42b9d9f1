"""Topology-aware placement: where in a tree of domains a gang stands; pure functions on units a row has room for.

A gang goes to the tightest domain that holds all of it, among those to the one it leaves least room in; inside, whole
child domains are filled first and the rest goes to the child it leaves least room in, level by level down to the
nodes. So gangs touch few domains, and what stays free stays whole. Rows lie in the order of the tree, so that every
domain is one range of them and neighbours get neighbouring ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cmp_to_key
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from mainspring.planner.facts.snapshot import NONE, Flags, Floats, Integers

CLUSTER = "cluster"
NODE = "node"
SLICE = "slice"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tree:
    """Rows in domains in wider domains. Depth 0 is the whole, 1 the widest level, `bottom` the single rows.

    Args:
        levels: Names of the levels, widest first.
        domain: Rows are rows, columns levels: dense number of the domain, `NONE` where the row has none.
        order: Rows in the order of the tree.
        starts: For each depth: where each domain begins in `order`. Rows without a domain at a level, but in one domain
            of the level above, make up a domain that is not `placed`.
        placed: For each depth: which of these are domains.
        children: For each depth but the last: where the children of each domain begin one depth below, and their count.
    """

    levels: tuple[str, ...]
    domain: Integers
    order: Integers
    starts: tuple[Integers, ...]
    placed: tuple[Flags, ...]
    children: tuple[Integers, ...]

    @property
    def bottom(self) -> int:
        """Returns the depth of single rows."""
        return len(self.levels) + 1

    def depth(self, level: str | None) -> int:
        """Returns the depth of a level, 0 for None, `NONE` when the tree does not have it."""
        if level is None or level == CLUSTER:
            return 0
        if level == NODE:
            return self.bottom
        return self.levels.index(level) + 1 if level in self.levels else NONE

    def above(self, depth: int, index: int, higher: int) -> int:
        """Returns the domain at a higher level that one lies in.

        Args:
            index: Of the one, at its depth.
        """
        return int(np.searchsorted(self.starts[higher], self.starts[depth][index], side="right")) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a gang wants.

    Args:
        units: How many stand together.
        within: The level that must hold all of them; None for the whole.
        prefer: The level that should; then the next wider one, and so on. None for the tightest.
        group_units: They come in groups of this many; 0 for no groups.
        group_within: The level that must hold each group.
        whole: Groups take whole domains, which have room for exactly one group.
    """

    units: int
    within: str | None = None
    prefer: str | None = None
    group_units: int = 0
    group_within: str | None = None
    whole: bool = False


class Chosen(NamedTuple):
    """Where units stand.

    Args:
        rows: Rows, in the order of the tree.
        units: How many on each.
    """

    rows: Integers
    units: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """Why a gang does not stand.

    Args:
        short_units: How many units are missing where most stand together.
        together: The most that stand together.
        free: How many units there is room for if closeness did not matter.
        apart: Whether that would be enough.
        text: One clause for people.
    """

    short_units: int
    together: int
    free: int
    apart: bool
    text: str


def tree_of(levels: tuple[str, ...], domain: Integers) -> Tree:
    """Returns rows as a tree; levels nobody is placed in are left out.

    Args:
        levels: Names of the columns, in any order.
        domain: Rows are rows: ids of domains, each of which lies in one domain of every wider level; or `NONE`.
    """
    count = len(domain)

    def order_of(one: int, other: int) -> int:
        return _wider(domain[:, one], domain[:, other]) or one - other

    known = [column for column in range(len(levels)) if (domain[:, column] != NONE).any()]
    columns = sorted(known, key=cmp_to_key(order_of))
    packed = np.zeros(count, dtype=np.int64)
    numbered: list[Integers] = [packed]
    for column in columns:
        own = domain[:, column] + 1  # Rows without a domain stay together, before the others.
        packed = np.unique(packed * (int(own.max(initial=0)) + 1) + own, return_inverse=True)[1].reshape(count)
        numbered.append(packed)
    order = np.lexsort((np.arange(count), packed))
    starts = [np.flatnonzero(np.diff(ids[order], prepend=-1)) for ids in numbered]
    placed = [np.ones(len(starts[0]), dtype=np.bool_)]
    placed += [domain[order[start], column] != NONE for start, column in zip(starts[1:], columns, strict=True)]
    starts.append(np.arange(count))
    placed.append(np.ones(count, dtype=np.bool_))
    held = [np.where(domain[:, column] == NONE, NONE, ids) for column, ids in zip(columns, numbered[1:], strict=True)]
    return Tree(
        levels=tuple(levels[column] for column in columns),
        domain=np.stack(held, axis=1) if held else np.zeros((count, 0), dtype=np.int64),
        order=order,
        starts=tuple(starts),
        placed=tuple(placed),
        children=tuple(np.append(np.searchsorted(lower, upper), len(lower)) for upper, lower in pairwise(starts)),
    )


def _wider(one: Integers, other: Integers) -> int:
    """Returns less than 0 when one level is wider than another: it has fewer domains where rows are in both."""
    both = (one != NONE) & (other != NONE)
    fewer = len(np.unique(one[both])) - len(np.unique(other[both]))
    return fewer or int(np.count_nonzero(other != NONE)) - int(np.count_nonzero(one != NONE))


class _Room:
    """How many units each domain of a tree has room for, as an ask counts them.

    At the level of its groups only whole groups count; above it, what the groups below add up to.
    """

    def __init__(self, caps: Integers, tree: Tree, ask: Ask) -> None:
        self.tree, self.ask = tree, ask
        self.within = tree.depth(ask.within)
        self.group = tree.depth(ask.group_within) if ask.group_units else 0
        self.caps = caps[tree.order]
        for depth in (self.within, self.group):
            if depth != NONE and not tree.placed[depth].all():
                sizes = np.diff(np.append(tree.starts[depth], len(self.caps)))
                self.caps = np.where(np.repeat(tree.placed[depth], sizes), self.caps, 0)
        if self.group != NONE:
            # Groups in domains as wide as the one that holds them all, or wider, are in one anyway.
            self.group = max(self.group, self.within)
        self._raw: dict[int, Integers] = {tree.bottom: self.caps}
        self._counted: dict[int, Integers] = {}

    @property
    def sound(self) -> bool:
        """Returns whether the tree has the levels asked for, and rows at all."""
        return self.within != NONE and self.group != NONE and len(self.caps) > 0

    def raw(self, depth: int) -> Integers:
        """Returns units by domain, groups or not."""
        if depth not in self._raw:
            self._raw[depth] = np.add.reduceat(self.raw(depth + 1), self.tree.children[depth][:-1])
        return self._raw[depth]

    def counted(self, depth: int) -> Integers:
        """Returns units by domain, as the ask counts them."""
        each = self.ask.group_units
        if not each or depth > self.group:
            return self.raw(depth)
        if depth not in self._counted:
            raw = self.raw(self.group)
            counted = np.where(raw == each, each, 0) if self.ask.whole else raw - raw % each
            if depth < self.group:
                begins = np.searchsorted(self.tree.starts[self.group], self.tree.starts[depth])
                counted = np.add.reduceat(counted, begins)
            self._counted[depth] = counted
        return self._counted[depth]

    def tightest(self, depth: int, units: int, cost: Floats | None) -> int:
        """Returns the domain that units leave least room in; then the one in the fullest domains above; `NONE`."""
        have = self.counted(depth)
        found = np.flatnonzero(have >= units)
        if not len(found):
            return NONE
        found = _least(found, have[found])
        if cost is not None and depth == self.tree.bottom:
            found = _least(found, cost[found])
        for higher in range(depth - 1, 0, -1):
            if len(found) == 1:
                break
            above = np.searchsorted(self.tree.starts[higher], self.tree.starts[depth][found], side="right") - 1
            found = _least(found, self.raw(higher)[above])
        return int(found[0])


def _least(found: Integers, by: Integers | Floats) -> Integers:
    least: Integers = found[by == by.min()]
    return least


def most(caps: Integers, tree: Tree, ask: Ask) -> int:
    """Returns the most units that stand together, a multiple of the group when they come in groups.

    It may be more than asked for.

    Args:
        caps: How many units each row has room for.
        tree: The rows.
    """
    room = _Room(caps, tree, ask)
    if not room.sound:
        return 0
    together = int(room.counted(room.within).max())
    return together - together % ask.group_units if ask.group_units else together


def choose(caps: Integers, tree: Tree, ask: Ask, *, cost: Floats | None = None) -> Chosen | None:
    """Returns where exactly the units asked for stand, or None when they do not.

    Args:
        caps: How many units each row has room for.
        tree: The rows.
        cost: By row: among rows with as much room, those of least cost are taken.
    """
    room = _Room(caps, tree, ask)
    if not room.sound or ask.units <= 0 or (ask.group_units and ask.units % ask.group_units):
        return None
    if int(room.counted(room.within).max()) < ask.units:
        return None
    by_place = None if cost is None else cost[tree.order]
    wished = tree.depth(ask.prefer) if ask.prefer is not None else NONE
    tightest = tree.bottom if wished == NONE else max(wished, room.within)
    for depth in range(tightest, room.within - 1, -1):
        index = room.tightest(depth, ask.units, by_place)
        if index != NONE:
            places, units = _fill(room, depth, index, ask.units, by_place)
            return Chosen(tree.order[places], units)
    raise AssertionError("the level that must hold all of them does")


def _fill(room: _Room, depth: int, index: int, units: int, cost: Floats | None) -> Chosen:
    """Returns the places in the tree's order that units take in a domain that has room for them."""
    tree = room.tree
    taken = np.zeros(len(room.caps), dtype=np.int64)
    left = [(depth, index, units)]
    while left:
        depth, index, units = left.pop()
        starts = tree.starts[depth]
        first, last = int(starts[index]), int(starts[index + 1]) if index + 1 < len(starts) else len(taken)
        if units == room.raw(depth)[index]:
            taken[first:last] = room.caps[first:last]
            continue
        if depth == tree.bottom:
            taken[first] = units
            continue
        begin, end = tree.children[depth][index : index + 2].tolist()
        at_bottom = depth + 1 == tree.bottom
        have = room.counted(depth + 1)[begin:end]
        amounts = _split(have, units, cost[begin:end] if at_bottom and cost is not None else None)
        if at_bottom:
            taken[begin:end] = amounts
        else:
            children = np.flatnonzero(amounts)
            left += [
                (depth + 1, begin + child, amount)
                for child, amount in zip(children.tolist(), amounts[children].tolist(), strict=True)
            ]
    places = np.flatnonzero(taken)
    return Chosen(places, taken[places])


def _split(have: Integers, units: int, cost: Floats | None) -> Integers:
    """Returns units by child: the roomiest are filled, the rest goes where it leaves least room."""
    amounts = np.zeros(len(have), dtype=np.int64)
    rest = units
    left = have
    if int(have.max()) < units:
        order = np.argsort(-have, kind="stable") if cost is None else np.lexsort((cost, -have))
        filled = np.cumsum(have[order])
        whole = int(np.searchsorted(filled, units))  # The child after these completes the request.
        amounts[order[:whole]] = have[order[:whole]]
        rest = units - int(filled[whole - 1])
        left = np.where(amounts > 0, 0, have)
    found = np.flatnonzero(left >= rest)
    found = _least(found, left[found])
    if cost is not None:
        found = _least(found, cost[found])
    amounts[found[0]] = rest
    return amounts


def shortfall(caps: Integers, tree: Tree, ask: Ask) -> Shortfall | None:
    """Returns why the units asked for do not stand together, in numbers that prove it; None when they do.

    Args:
        caps: How many units each row has room for.
        tree: The rows.
    """
    together, each = most(caps, tree, ask), ask.group_units
    whole = not each or ask.units % each == 0
    if together >= ask.units and whole:
        return None
    where = "the cluster" if ask.within in (None, CLUSTER) else f"the roomiest {ask.within}"
    if not whole:
        text = f"it comes in groups of {each}, which {ask.units} is not a multiple of"
    elif ask.whole:
        text = f"{where} has {together // each} of the {ask.units // each} whole {ask.group_within}s of {each}"
    elif each:
        groups = f"{together // each} of the {ask.units // each} groups of {each}, each in one {ask.group_within}"
        text = f"{where} has room for {groups}"
    else:
        text = f"{where} has room for {together} of {ask.units}"
    free = int(caps.sum())
    missing = ask.units - together if whole else ask.units % each
    return Shortfall(short_units=missing, together=together, free=free, apart=free >= ask.units, text=text)
