"""Kinds: nodes of one block with the same free room are alike, so one of each kind is weighed, not each node.

A fleet of 12,500 nodes is a few dozen kinds while only chips are counted, and some thousand at worst. Weighing is
remembered by kind and need, and so is what a need makes of a kind. Among nodes of one kind the one in the most used
domains comes first, so that whole domains stay whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf, isnan, nan

import numpy as np

from mainspring.domain.job import MILLI
from mainspring.planner.facts.snapshot import NONE, Flags, Floats, Integers
from mainspring.planner.place.fragmentation import Fragmentation, Need, State

_SLOTS = 64  # Kinds a shelf has room for at first.
WEIGHED_MAX = 128  # Kinds weighed at a time; where there are more, those with fewest free chips first. About 0.5 ms.


@dataclass(slots=True, eq=False, kw_only=True)
class NodeClass:
    """Nodes that are alike.

    Args:
        state: What is free on each of its nodes.
        slot: Its place on the shelf, `NONE` when it has none.
        count: How many nodes it has now.
        queue: A heap of the ranks of its nodes; those that left it are dropped when they come up.
        incoming: Ranks not in the heap yet.
        after: What units of a need make of it: the state left, and the free thousandths of the chips they take.
    """

    number: int
    shelf: NodeClassIndex
    state: State
    slot: int = NONE
    count: int = 0
    queue: list[int] = field(default_factory=list)
    incoming: list[Integers] = field(default_factory=list)
    after: dict[tuple[Need, int], tuple[NodeClass, tuple[int, ...]]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Weights:
    """What units of a need cost on each kind of a shelf, by slot; NaN where nobody asked yet."""

    scores: Floats
    numbers: Integers
    version: int = -1


class NodeClassIndex:
    """The kinds of one block and one hold, those with chips to give apart from those without.

    Args:
        hold: 1 + the reservation that keeps its nodes, 0 for none.
    """

    def __init__(self, block: int, hold: int) -> None:
        self.block, self.hold = block, hold
        self.kinds: list[NodeClass] = []
        self.numbers = np.full(_SLOTS, NONE, dtype=np.int64)
        self.whole = np.zeros(_SLOTS, dtype=np.int64)
        self.present: Flags = np.zeros(_SLOTS, dtype=np.bool_)
        self.version = 0
        self.weights: dict[tuple[Need, int], _Weights] = {}

    def show(self, kind: NodeClass) -> None:
        """Puts a kind that has nodes again on the shelf."""
        if kind.slot == NONE:
            if len(self.kinds) == len(self.present):
                self._tidy()
            kind.slot = len(self.kinds)
            self.kinds.append(kind)
            self.numbers[kind.slot] = kind.number
            self.whole[kind.slot] = kind.state.whole
            self.version += 1
        self.present[kind.slot] = True

    def _tidy(self) -> None:
        """Makes slots: those of kinds without nodes when these are many, else twice as many."""
        kept = [kind for kind in self.kinds if kind.count]
        if 2 * len(kept) > len(self.kinds):
            self.numbers = np.concatenate([self.numbers, np.full(len(self.numbers), NONE, dtype=np.int64)])
            self.whole = np.concatenate([self.whole, np.zeros(len(self.whole), dtype=np.int64)])
            self.present = np.concatenate([self.present, np.zeros(len(self.present), dtype=np.bool_)])
            return
        for kind in self.kinds:
            kind.slot = NONE
        for slot, kind in enumerate(kept):
            kind.slot = slot
        self.kinds = kept
        self.numbers[:] = NONE
        self.numbers[: len(kept)] = [kind.number for kind in kept]
        self.whole[: len(kept)] = [kind.state.whole for kind in kept]
        self.present[:] = False
        self.present[: len(kept)] = True


class NodeClasses:
    """Which kind every node is of, kept up to date.

    Args:
        block: Block of each node.
        rank: Place of each node when all are put in the order in which equals are taken.
        states: Columns of what is free on each node: chip type, chips, whole, cores, memory.
        shares: Free thousandths of partly used chips, ascending, by node.
    """

    def __init__(
        self,
        fragmentation: Fragmentation,
        block: Integers,
        rank: Integers,
        states: tuple[Integers, Integers, Integers, Integers, Integers],
        shares: dict[int, tuple[int, ...]],
    ) -> None:
        self._fragmentation = fragmentation
        self._rank = rank
        self._row_of_rank: list[int] = np.argsort(rank).tolist()
        self._known: dict[tuple[int, int, State], NodeClass] = {}
        self._shelves: dict[tuple[int, int, bool], NodeClassIndex] = {}
        self.of: list[NodeClass] = []
        self.number = np.full(len(block), NONE, dtype=np.int64)
        share_ids = {milli: number for number, milli in enumerate(sorted(set(shares.values())), start=1)}
        share = np.zeros(len(block), dtype=np.int64)
        share[list(shares)] = [share_ids[milli] for milli in shares.values()]
        for rows in groups(alike(block, *states, share)[0]):
            first = int(rows[0])
            chip, chips, whole, cpu, memory = (int(column[first]) for column in states)
            state = State(chip, chips, whole, shares.get(first, ()), cpu, memory)
            self.put(rows, self.kind(int(block[first]), 0, state))

    def kind(self, block: int, hold: int, state: State) -> NodeClass:
        """Returns the kind of a state.

        Args:
            block: The block of its nodes.
            hold: 1 + the reservation that keeps them, 0 for none.
            state: What is free on each.
        """
        known = self._known.get((block, hold, state))
        if known is None:
            gives = state.whole > 0 or bool(state.shares)
            shelf = self._shelves.get((block, hold, gives))
            if shelf is None:
                shelf = self._shelves[block, hold, gives] = NodeClassIndex(block, hold)
            known = NodeClass(number=len(self.of), shelf=shelf, state=state)
            self._known[block, hold, state] = known
            self.of.append(known)
        return known

    def after(self, kind: NodeClass, need: Need, units: int) -> tuple[NodeClass, tuple[int, ...]]:
        """Returns what units of a need make of a kind, and for each unit of a share what was free on its chip.

        Args:
            kind: The kind, which has room for them.
        """
        known = kind.after.get((need, units))
        if known is None:
            taken = self._fragmentation.after(kind.state, need, units)
            known = kind.after[need, units] = (self.kind(kind.shelf.block, kind.shelf.hold, taken.state), taken.opened)
        return known

    def put_one(self, row: int, kind: NodeClass) -> None:
        """Makes a node one of a kind."""
        number = self.number.item(row)
        if number != NONE:
            old = self.of[number]
            old.count -= 1
            if not old.count:
                old.shelf.present[old.slot] = False
        self.number[row] = kind.number
        kind.count += 1
        if kind.count == 1:
            kind.shelf.show(kind)
        heappush(kind.queue, self._rank.item(row))

    def put(self, rows: Integers, kind: NodeClass) -> None:
        """Makes nodes, all of one kind until now, nodes of another."""
        number = self.number.item(int(rows[0]))
        if number != NONE:
            old = self.of[number]
            old.count -= len(rows)
            if not old.count:
                old.shelf.present[old.slot] = False
        self.number[rows] = kind.number
        if not kind.count:
            kind.count += len(rows)
            kind.shelf.show(kind)
        else:
            kind.count += len(rows)
        kind.incoming.append(self._rank[rows])

    def shelves(self, blocks: tuple[int, ...], holds: tuple[int, ...], *, chips: bool) -> list[NodeClassIndex]:
        """Returns the shelves of blocks.

        Args:
            holds: The holds: see `NodeClassIndex`.
            chips: Whether only those with chips to give are asked for.
        """
        wanted = (True,) if chips else (True, False)
        keys = [(block, hold, gives) for block in blocks for hold in holds for gives in wanted]
        return [self._shelves[key] for key in keys if key in self._shelves]

    def cheapest(self, shelf: NodeClassIndex, need: Need, units: int) -> tuple[float, int]:
        """Returns what units cost on the best node of a shelf, infinity where none has room; and its rank.

        Args:
            need: What each unit takes.
            units: How many stand on the node.
        """
        weights = self._weights(shelf, need, units)
        cost = np.where(shelf.present, weights.scores, inf)
        best = cost.item(cost.argmin())
        if isnan(best):
            unknown = np.flatnonzero(np.isnan(cost))
            self._weigh(shelf, weights, need, units, unknown[np.argsort(shelf.whole[unknown], kind="stable")])
            cost = np.where(shelf.present & ~np.isnan(weights.scores), weights.scores, inf)
            best = cost.item(cost.argmin())
        if best == inf:
            return inf, NONE
        return best, min(self._first(shelf.kinds[slot]) for slot in (cost == best).nonzero()[0].tolist())

    def row_of(self, rank: int) -> int:
        """Returns the node of a rank."""
        return self._row_of_rank[rank]

    def cost(self, kind: NodeClass, need: Need, units: int) -> float:
        """Returns what units cost on a node of a kind, infinity when it has no room.

        Args:
            kind: The kind; some node is of it.
            need: What each unit takes.
        """
        weights = self._weights(kind.shelf, need, units)
        if isnan(weights.scores[kind.slot]):
            self._weigh(kind.shelf, weights, need, units, np.array([kind.slot]))
        return weights.scores.item(kind.slot)

    def _weights(self, shelf: NodeClassIndex, need: Need, units: int) -> _Weights:
        weights = shelf.weights.get((need, units))
        if weights is None:
            size = len(shelf.present)
            weights = _Weights(np.full(size, nan), np.full(size, NONE, dtype=np.int64))
            shelf.weights[need, units] = weights
        if weights.version != shelf.version:
            if len(weights.scores) < len(shelf.present):
                more = len(shelf.present) - len(weights.scores)
                weights.scores = np.append(weights.scores, np.full(more, nan))
                weights.numbers = np.append(weights.numbers, np.full(more, NONE, dtype=np.int64))
            weights.scores[weights.numbers != shelf.numbers] = nan
            weights.numbers = shelf.numbers.copy()
            weights.version = shelf.version
        return weights

    def _weigh(self, shelf: NodeClassIndex, weights: _Weights, need: Need, units: int, slots: Integers) -> None:
        fitting: list[int] = []
        for slot in slots.tolist():
            if capacity(shelf.kinds[slot].state, need) < units:
                weights.scores[slot] = inf
            else:
                fitting.append(slot)
                if len(fitting) == WEIGHED_MAX:
                    break
        if fitting:
            states = [shelf.kinds[slot].state for slot in fitting]
            weights.scores[fitting] = self._fragmentation.scores(states, several(need, units))

    def _first(self, kind: NodeClass) -> int:
        """Returns the lowest rank of a kind's nodes."""
        queue, number = kind.queue, self.number
        if kind.incoming:
            for ranks in kind.incoming:
                queue.extend(ranks.tolist())
            kind.incoming.clear()
            heapify(queue)
        while number.item(self._row_of_rank[queue[0]]) != kind.number:
            heappop(queue)
        return queue[0]


def alike(*columns: Integers) -> tuple[Integers, Integers]:
    """Returns the class of each row, rows with equal values being of one; and the first row of each class."""
    code = np.zeros(len(columns[0]), dtype=np.int64)
    first = code[:1]
    for column in columns:
        if (column == column[:1]).all():
            continue
        values, own = np.unique(column, return_inverse=True)
        _, first, code = np.unique(code * len(values) + own, return_index=True, return_inverse=True)
    return code, first


def groups(code: Integers) -> list[Integers]:
    """Returns the rows of each class, ascending.

    Args:
        code: Class of each row.
    """
    if not len(code):
        return []
    if (code == code[0]).all():
        return [np.arange(len(code))]
    order = np.argsort(code, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(code[order])) + 1)


def several(need: Need, units: int) -> Need:
    """Returns what units take together on one node; of shares, what one takes."""
    if units == 1 or need.share_milli:
        return need
    return Need(whole=need.whole * units, cpu_milli=need.cpu_milli * units, memory_mib=need.memory_mib * units)


def capacity(state: State, need: Need) -> int:
    """Returns how many units stand on a node.

    Args:
        state: What is free on it.
    """
    rooms = []
    if need.whole:
        rooms.append(state.whole // need.whole)
    elif need.share_milli:
        shared = sum(milli // need.share_milli for milli in state.shares)
        rooms.append(state.whole * (MILLI // need.share_milli) + shared)
    if need.cpu_milli:
        rooms.append(state.cpu_milli // need.cpu_milli)
    if need.memory_mib:
        rooms.append(state.memory_mib // need.memory_mib)
    return min(rooms)
