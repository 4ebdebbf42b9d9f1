"""A month of a fleet: gangs that run, what faults cost them, and nodes that go and come back.

Time is virtual, one thread, one seed. Work is counted in node-seconds: what is not useful is badput, whatever ate it.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import Protocol, final

import numpy as np

from mainspring.simulator.health.faults import DAY_S, Drawn, Fault, FaultKind, FaultModel

HANG_S = 15.0  # Until ranks that do nothing are seen to: the runtime does that, with health or without.
LOST_S = 5.0  # Until ranks that are gone are.
FLAP_S = 10.0  # What ranks wait for a link that goes and comes back.
REBOOT_S = 900.0


class Out(Enum):
    """Why nobody can have a node."""

    DOWN = "down"
    CLOSED = "closed"


@dataclass(slots=True)
class _Node:
    """How one node is.

    Args:
        gang: Which it works in, -1 for none.
        out: Why nobody can have it; nothing where somebody can.
        broken: Whether ranks die that start there.
        slow: How many faults slow it down.
        corrupt: Whether it computes wrongly.
        cured: Whether it was replaced, so that it is no lemon any more.
    """

    gang: int = -1
    out: set[Out] = field(default_factory=set)
    broken: bool = False
    slow: int = 0
    corrupt: bool = False
    cured: bool = False


@dataclass(slots=True)
class _Gang:
    """One job's nodes, and what came of them.

    Args:
        wanted: How many it asks for; with fewer it goes on with less.
        avoided: Nodes where its ranks did not come up: the runtime keeps a job from those, with health or without.
        since_s: Until when `useful_s` is counted.
        paused_s: Until when it makes no progress.
        clean_s: What was useful before it began to compute wrongly, None while it does not.
    """

    wanted: int
    rows: set[int] = field(default_factory=set)
    avoided: set[int] = field(default_factory=set)
    since_s: float = 0.0
    paused_s: float = 0.0
    useful_s: float = 0.0
    clean_s: float | None = None


class Watching(Protocol):
    """Who is told of faults, and has nodes looked after."""

    def begun(self, fault: Fault, operation: Operation) -> None:
        """Hears of a fault that did something, or looks as if it had."""

    def well(self, row: int, operation: Operation) -> None:
        """Hears that nothing of a node is wrong any more: it started anew, or was repaired."""


@final
class Nobody:
    """Nothing watches: people see after a while that something has failed, and repair it."""

    def begun(self, fault: Fault, operation: Operation) -> None:
        """Has somebody see it later."""
        noticed_s = noticed(fault, operation.model, operation.dice(fault))
        if noticed_s is not None:
            operation.later(noticed_s, self._seen, fault, operation)

    def _seen(self, fault: Fault, operation: Operation) -> None:
        if operation.is_ill(fault.row):
            operation.close(fault.row)
            operation.repair(fault.row, self._open)

    def _open(self, row: int, operation: Operation) -> None:
        operation.open(row)

    def well(self, row: int, operation: Operation) -> None:
        """Does nothing."""


@final
class Operation:
    """Runs one fleet through its faults.

    Args:
        drawn: What happens.
        watching: Who closes nodes.
        seed: Of what is drawn besides: how long repairs take, which spare is taken.
    """

    def __init__(self, model: FaultModel, drawn: Drawn, watching: Watching, seed: int) -> None:
        self.model, self.now_s = model, 0.0
        self._seed, self._repairs = seed, Counter[int]()
        self._drawn, self._watching = drawn, watching
        self._agenda: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._count = count()
        self.nodes = [_Node() for _ in range(model.nodes)]
        self._gangs = [_Gang(wanted=size) for times, size in model.gangs for _ in range(times)]
        self._idle: list[int] = list(range(model.nodes))
        for number in range(len(self._gangs)):
            self._fill(number)

    def run(self) -> float:
        """Returns which part of all node-time was not useful."""
        end_s = self.model.days * DAY_S
        for fault in self._drawn.faults:
            heapq.heappush(self._agenda, (fault.at_s, next(self._count), self._begin, (fault,)))
        while self._agenda and self._agenda[0][0] <= end_s:
            self.now_s, _, act, given = heapq.heappop(self._agenda)
            act(*given)
        self.now_s = end_s
        useful_s = 0.0
        for number, gang in enumerate(self._gangs):
            self._settle(number)
            useful_s += gang.useful_s if gang.clean_s is None else gang.clean_s
        return 1.0 - useful_s / (self.model.nodes * end_s)

    def later(self, after_s: float, act: Callable[..., None], *given: object) -> None:
        """Has something done after a while."""
        heapq.heappush(self._agenda, (self.now_s + after_s, next(self._count), act, given))

    def close(self, row: int) -> None:
        """Keeps everybody from a node; its gang goes on with another."""
        self._put_out(row, Out.CLOSED)

    def open(self, row: int) -> None:
        """Lets everybody have a node again, unless it is down."""
        self._let_in(row, Out.CLOSED)

    def restart(self, row: int, then: Callable[[int, Operation], None]) -> None:
        """Starts a closed node anew, which cures what does not stay."""
        self.later(REBOOT_S, self._restarted, row, then)

    def repair(self, row: int, then: Callable[[int, Operation], None]) -> None:
        """Has people repair a node, or replace it, after which nothing is wrong with it; one that is open again by then
        they leave as it is.
        """
        self._repairs[row] += 1
        dice = np.random.default_rng([self._seed, 1, row, self._repairs[row]])
        self.later(self.model.repair_s(dice), self._repaired, row, then)

    def is_ill(self, row: int) -> bool:
        """Returns whether something is wrong with a node now."""
        node = self.nodes[row]
        return node.broken or node.slow > 0 or node.corrupt

    def is_lemon(self, row: int) -> bool:
        """Returns whether a node fails again and again, and was not replaced yet."""
        return row in self._drawn.lemons and not self.nodes[row].cured

    def dice(self, fault: Fault) -> np.random.Generator:
        """Returns what is drawn of a fault: the same whoever watches."""
        return np.random.default_rng([self._seed, 0, fault.number])

    # ---------------------------------------------------------------- what happens

    def _begin(self, fault: Fault) -> None:
        node = self.nodes[fault.row]
        if fault.kind is FaultKind.SWITCH:
            rows = range(fault.row, fault.row + self.model.leaf_nodes)
            self._lose(rows)
            self.later(fault.lasts_s, self._back, rows)
        elif node.out or (fault.lemon and node.cured):
            return
        elif fault.kind is FaultKind.SLOW:
            self._slow(fault.row, 1)
            if not fault.stays:
                self.later(fault.lasts_s, self._fast_again, fault)
        elif fault.kind is FaultKind.CORRUPTION:
            self._corrupt(fault.row)
        elif fault.times > 1:
            for after_s in flaps(fault, self.dice(fault)):
                self.later(after_s, self._wait, fault.row)
        elif fault.kind is not FaultKind.ALARM:
            self._crash(fault)
        self._watching.begun(fault, self)

    def _crash(self, fault: Fault) -> None:
        node = self.nodes[fault.row]
        node.broken = node.broken or fault.stays
        if fault.kind is FaultKind.HOST:
            self._lose([fault.row])
            if not fault.stays:
                self.later(REBOOT_S, self._back, [fault.row])
        elif node.gang >= 0:
            self._stop(node.gang, HANG_S if fault.kind is FaultKind.HANG else LOST_S)

    def _corrupt(self, row: int) -> None:
        node = self.nodes[row]
        node.corrupt = True
        if node.gang >= 0:
            self._settle(node.gang)
            gang = self._gangs[node.gang]
            gang.clean_s = gang.useful_s if gang.clean_s is None else gang.clean_s

    def _lose(self, rows: Iterable[int]) -> None:
        """Has nodes gone that nobody took out of their gangs before."""
        hit = {self.nodes[row].gang for row in rows} - {-1}
        for number in sorted(hit):
            self._stop(number, LOST_S)
        for row in rows:
            self._put_out(row, Out.DOWN)

    def _back(self, rows: Iterable[int]) -> None:
        """Has nodes come back by themselves."""
        for row in rows:
            self._let_in(row, Out.DOWN)
            self._watching.well(row, self)

    def _wait(self, row: int) -> None:
        if self.nodes[row].gang >= 0:
            self._pause(self.nodes[row].gang, FLAP_S)

    def _slow(self, row: int, more: int) -> None:
        if self.nodes[row].gang >= 0:
            self._settle(self.nodes[row].gang)
        self.nodes[row].slow += more

    def _fast_again(self, fault: Fault) -> None:
        if self.nodes[fault.row].slow:
            self._slow(fault.row, -1)
            self._watching.well(fault.row, self)

    def _restarted(self, row: int, then: Callable[[int, Operation], None]) -> None:
        if not self.is_ill(row):
            self._watching.well(row, self)
        then(row, self)

    def _repaired(self, row: int, then: Callable[[int, Operation], None]) -> None:
        node = self.nodes[row]
        if Out.CLOSED not in node.out:
            return
        node.broken, node.corrupt, node.slow, node.cured = False, False, 0, True
        for gang in self._gangs:
            gang.avoided.discard(row)
        self._let_in(row, Out.DOWN)
        self._watching.well(row, self)
        then(row, self)

    # ---------------------------------------------------------------- gangs

    def _put_out(self, row: int, why: Out) -> None:
        """Takes a node from whoever has it; its gang goes on with another one, or with one less."""
        node = self.nodes[row]
        was_out = bool(node.out)
        node.out.add(why)
        if was_out:
            return
        number = node.gang
        if number < 0:
            self._idle.remove(row)
            return
        gang = self._gangs[number]
        self._leave(number, row)
        self._fill(number)
        if gang.paused_s <= self.now_s:  # One that starts anyway starts with others.
            self._pause(number, self._restart_s(gang))

    def _let_in(self, row: int, why: Out) -> None:
        node = self.nodes[row]
        if why not in node.out:
            return
        node.out.discard(why)
        if node.out:
            return
        self._idle.append(row)
        for number, gang in enumerate(self._gangs):
            if len(gang.rows) < gang.wanted:
                self._fill(number)
                self._pause(number, self._restart_s(gang))
                return

    def _stop(self, number: int, seen_s: float) -> None:
        """Has a gang's ranks start again, from the last step that was kept."""
        gang = self._gangs[number]
        self._settle(number)
        if gang.paused_s <= self.now_s:
            gang.useful_s -= min(gang.useful_s, self.model.unsaved_s * len(gang.rows))
        self._pause(number, seen_s + self._restart_s(gang))
        self.later(gang.paused_s - self.now_s, self._started, number)

    def _started(self, number: int) -> None:
        """Looks whether ranks came up: where a node of theirs is broken they did not, and another takes its place."""
        gang = self._gangs[number]
        bad = sorted(row for row in gang.rows if self.nodes[row].broken)
        if not bad:
            return
        for row in bad:
            self._leave(number, row)
        gang.avoided.update(bad)
        self._idle += bad  # Somebody else may have them: nobody says that they are broken.
        self._fill(number)
        self._stop(number, LOST_S)

    def _leave(self, number: int, row: int) -> None:
        """Has a gang go on without a node; where that computed wrongly, from what was right before."""
        gang, node = self._gangs[number], self.nodes[row]
        self._settle(number)
        gang.rows.discard(row)
        node.gang = -1
        if node.corrupt and gang.clean_s is not None:
            gang.useful_s, gang.clean_s = gang.clean_s, None

    def _fill(self, number: int) -> None:
        gang = self._gangs[number]
        self._settle(number)
        free = [row for row in self._idle if row not in gang.avoided][: gang.wanted - len(gang.rows)]
        for row in free:  # Who waited longest.
            self._idle.remove(row)
            self.nodes[row].gang = number
            gang.rows.add(row)
            if self.nodes[row].corrupt:
                gang.clean_s = gang.useful_s if gang.clean_s is None else gang.clean_s

    def _pause(self, number: int, seconds: float) -> None:
        self._settle(number)
        gang = self._gangs[number]
        gang.paused_s = max(gang.paused_s, self.now_s + seconds)

    def _restart_s(self, gang: _Gang) -> float:
        return self.model.restart_s + self.model.restart_node_s * gang.wanted

    def _settle(self, number: int) -> None:
        """Counts what came of a gang until now."""
        gang = self._gangs[number]
        went_s = self.now_s - max(gang.since_s, min(gang.paused_s, self.now_s))
        factor = self.model.slow_factor if any(self.nodes[row].slow for row in gang.rows) else 1.0
        gang.useful_s += went_s * factor * len(gang.rows)
        gang.since_s = self.now_s


def flaps(fault: Fault, dice: np.random.Generator) -> list[float]:
    """Returns how long after its begin each of a fault's short ones comes; the first comes with it."""
    return [0.0, *(float(after_s) for after_s in np.sort(dice.uniform(0.0, fault.lasts_s, fault.times - 1)))]


def noticed(fault: Fault, model: FaultModel, dice: np.random.Generator) -> float | None:
    """Returns after how long people see a fault by themselves; None where it is gone by then."""
    mean_s = model.corruption_noticed_s if fault.kind is FaultKind.CORRUPTION else model.noticed_s
    return float(dice.exponential(mean_s)) if fault.stays else None
