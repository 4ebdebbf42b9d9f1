"""Snapshot interval: from what a snapshot costs and how often nodes fail, both as measured.

The time between snapshots that loses least in the mean is about sqrt(2 x cost x time between failures); later is never
better. Source: J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974; J. T.
Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer Systems
22(3), 2006. But failures are rare, and people feel what one of them loses: so work at risk is bounded too, and a
snapshot that costs next to nothing is taken often.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import final

DAY_S = 86_400.0
PRIOR_FAILURES = 1.0  # What the rate below counts for: as much as one failure seen.
PRIOR_NODE_DAYS = 250.0  # One in so many: 4.0 per 1,000, between Meta's RSC-2 (2.34) and RSC-1 (6.50), near Llama 3's.
INTERVAL_S_MAX = 600.0  # A rate learned over days is no excuse to lose more.
CHEAP = 1e-3  # Of the time since the last: a snapshot that costs less is taken now; no measurement would show it.
AT_RISK_S_MAX = 30.0  # The most work a lost rank may take along, as far as that costs no more than
DEAR = 1e-2  # this part of the time: where snapshots cost more, they are taken the less often.
WORD_S_A_RANK = 1e-3  # The lead hears of snapshots as often as of progress: 2 messages a rank, 50 us each, in 10 %
WORD_S_MAX = 10.0  # of its time; never less often than this because of it.
EVERY_MAX = 1 << 20
COSTS_KEPT = 8  # Snapshots the cost is the median of: the first one, which touches fresh memory, is soon forgotten.
COST_S_MAX = 3_600.0  # Of one message: what is told is measured, and a clock or a peer may be wrong.
STEPS_KEPT = 32  # Reports the time of a step is the median of.
STALLED_S = 2.0  # Word of a move and the next snapshots take less where steps are short.
STALLED_SNAPSHOTS = 4  # As many of every rank with no step in common: they drift further apart than memory reaches.
NOTCH_SLACK = 1.2  # How far past a notch the best must be before the pace slows, so that it does not swing.
LEAST_SNAPSHOTS = 256  # In good order at a pace, before a faster one that copies could not keep is tried again.


@final
class _FailureRate:
    """How often nodes fail: a prior, and what was seen of so many nodes for so long."""

    def __init__(self, nodes: int, now_s: float) -> None:
        self._nodes = nodes
        self._since_s = now_s
        self._node_s = 0.0
        self._failures = 0

    def have(self, nodes: int, now_s: float) -> None:
        self._node_s += self._nodes * max(0.0, now_s - self._since_s)
        self._since_s, self._nodes = now_s, nodes

    def failed(self) -> None:
        self._failures += 1

    def per_day(self, now_s: float) -> float:
        node_s = self._node_s + self._nodes * max(0.0, now_s - self._since_s)
        rate = (PRIOR_FAILURES + self._failures) / (PRIOR_NODE_DAYS + node_s / DAY_S)
        return rate * max(1, self._nodes)


@final
class _Measured:
    """What snapshots cost and steps take, as told of one rank and its node."""

    def __init__(self) -> None:
        self._blocked: deque[float] = deque(maxlen=COSTS_KEPT)
        self._costs: deque[float] = deque(maxlen=COSTS_KEPT)
        self._steps: deque[float] = deque(maxlen=STEPS_KEPT)
        self._blocked_s = self._spent_s = 0.0
        self._taken = 0

    @property
    def blocked_s(self) -> float | None:
        """Returns how long a snapshot blocks a rank, None before one was measured."""
        return statistics.median(self._blocked) if self._blocked else None

    @property
    def cost_s(self) -> float | None:
        """Returns all that a snapshot costs, in seconds of a whole node, None before one was measured."""
        return statistics.median(self._costs) if self._costs else None

    @property
    def step_s(self) -> float | None:
        """Returns how long a step takes, None before two were reported."""
        return statistics.median(self._steps) if self._steps else None

    def snapshot(self) -> None:
        self._taken += 1

    def spent(self, cost_s: float) -> None:
        self._spent_s += min(max(0.0, cost_s), COST_S_MAX)

    def stepped(self, *, steps: int, elapsed_s: float, blocked_s: float) -> None:
        self._blocked_s += blocked_s
        if steps > 0 and elapsed_s > 0:
            self._steps.append(max(0.0, elapsed_s - min(blocked_s, elapsed_s)) / steps)
        if self._taken:
            self._blocked.append(self._blocked_s / self._taken)
            self._costs.append((self._blocked_s + self._spent_s) / self._taken)
            self._taken, self._blocked_s, self._spent_s = 0, 0.0, 0.0


@final
class Pace:
    """The pace of snapshots of one attempt.

    It moves by one factor of two at a time: ranks hear of it at different steps, and of two neighbouring paces every
    second snapshot of the faster is one of the slower, so that the newest two of each always have one in common.

    Args:
        now_s: The time, on the monotonic clock.
    """

    def __init__(self, *, nodes: int, now_s: float) -> None:
        self.every = 1
        """Steps between snapshots."""
        self._rate = _FailureRate(nodes, now_s)
        self._measured = _Measured()
        self._ranks = 0
        self._moved_at = -1
        self._settled = False
        self._whole = self._exposed = -1
        self._behind, self._least = False, 1
        self._in_order = 0
        self._unmoved_s: float | None = None

    @property
    def cost_s(self) -> float | None:
        """Returns all that a snapshot costs, in seconds of a whole node, None before one was measured."""
        return self._measured.cost_s

    @property
    def step_s(self) -> float | None:
        """Returns how long a step takes, None before two were reported."""
        return self._measured.step_s

    def have(self, nodes: int, now_s: float) -> None:
        """Takes note of how many nodes there are from now on."""
        self._rate.have(nodes, now_s)

    def failed(self) -> None:
        """Counts a failure that made ranks start again."""
        self._rate.failed()

    def snapshot(self) -> None:
        """Counts a snapshot of the rank that `stepped` tells of."""
        self._measured.snapshot()

    def spent(self, cost_s: float) -> None:
        """Counts what snapshots took of that rank's node beside blocking it, in seconds of the whole node."""
        self._measured.spent(cost_s)

    def whole(self, step: int, *, safe: bool) -> None:
        """Takes note that every rank's snapshot of a step is there.

        A step that is whole before the copies of the one before have arrived shows a pace they cannot keep.

        Args:
            safe: Whether copies of all of them are there too.
        """
        self._settled = self._settled or step >= self._moved_at
        if safe:
            self._in_order += step > self._whole or step == self._exposed
            self._exposed = -1 if step >= self._exposed else self._exposed
            self._behind = False
        elif step > self._whole:
            self._behind = self._behind or self._exposed >= 0
            self._exposed = step
        self._whole = max(self._whole, step)

    def _stalled(self, now_s: float, step_s: float) -> bool:
        """Returns whether ranks save at this pace and yet no step becomes whole.

        Ranks that do not wait for each other drift apart, and memory keeps the newest two snapshots of each: where
        these are too close together they never meet.
        """
        self._unmoved_s = now_s if self._unmoved_s is None else self._unmoved_s
        patience_s = max(STALLED_S, STALLED_SNAPSHOTS * self.every * step_s)
        return not self._settled and now_s - self._unmoved_s >= patience_s and patience_s < INTERVAL_S_MAX

    def begin(self, ranks: int) -> None:
        """Takes note of a new generation: its ranks start at the present pace, and nothing is whole in it yet.

        Args:
            ranks: How many there are.
        """
        self._ranks = ranks
        self._settled, self._moved_at = False, -1
        self._whole = self._exposed = -1
        self._behind, self._least, self._in_order, self._unmoved_s = False, 1, 0, None

    def stepped(self, *, steps: int, elapsed_s: float, blocked_s: float) -> None:
        """Counts steps of one rank.

        Args:
            steps: How many it took since its report before.
            elapsed_s: In how much time.
            blocked_s: For how much of it snapshots blocked it.
        """
        self._measured.stepped(steps=steps, elapsed_s=elapsed_s, blocked_s=blocked_s)

    def failures_per_day(self, now_s: float) -> float:
        """Returns how many failures a day are to be expected of all nodes."""
        return self._rate.per_day(now_s)

    def interval_s(self, now_s: float) -> float | None:
        """Returns the longest time there shall be between snapshots, None before a snapshot was measured."""
        cost_s, blocked_s = self._measured.cost_s, self._measured.blocked_s
        if cost_s is None or blocked_s is None:
            return None
        best_s = math.sqrt(2.0 * blocked_s * DAY_S / self.failures_per_day(now_s))
        due_s = max(min(cost_s / CHEAP, AT_RISK_S_MAX), cost_s / DEAR)
        return max(min(best_s, due_s, INTERVAL_S_MAX), min(self._ranks * WORD_S_A_RANK, WORD_S_MAX))

    def move(self, now_s: float, *, known_from: int) -> bool:
        """Returns whether `every` has moved by a notch, towards the most steps that fit in the interval.

        That never happens before a step is whole that was taken when all ranks had heard of the last move.

        Args:
            known_from: The first step by which all ranks will have heard of a move made now.
        """
        interval_s, step_s = self.interval_s(now_s), self.step_s
        if interval_s is None or not step_s:
            return False
        stalled = self._stalled(now_s, step_s)
        if not self._settled and not stalled:
            return False
        if self._in_order >= LEAST_SNAPSHOTS:
            self._least, self._in_order = max(1, self._least // 2), 0
        most = min(interval_s / step_s, float(EVERY_MAX))
        behind = stalled or (self._behind and self.every * step_s < INTERVAL_S_MAX)
        if behind or most >= 2 * self.every * NOTCH_SLACK:
            self.every *= 2
            self._least = self.every if behind else self._least
            self._behind = False
        elif most < self.every and self.every > self._least:
            self.every //= 2
        else:
            return False
        self._settled, self._moved_at, self._unmoved_s, self._in_order = False, known_from, now_s, 0
        return True
