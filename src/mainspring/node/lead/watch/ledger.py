"""Time accounting: where an attempt's node-seconds went since the lead's start, each booked once, to one use.

Outside of running, the lead itself knows the use. While ranks run, one rank's reports tell: what it measured, and for
the rest steps, which are productive, repeated, or slowed down. Time since its last report is open: it is booked when
the next report comes, or to whatever ended the generation.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping
from typing import final

from mainspring.domain.goodput import TimeUse

MEASURED = (TimeUse.COMPILE, TimeUse.DATA, TimeUse.SNAPSHOT, TimeUse.RESTORE)
STRAGGLER_FROM = 1.5  # Times the usual step; what a step takes beyond is somebody's slowness.
STEPS_KEPT = 64  # Reports the usual step is the median of.


@final
class TimeLedger:
    """The books of one lead.

    Args:
        nodes: How many nodes the attempt has.
        now_s: When the lead begins, on the monotonic clock.
    """

    def __init__(self, *, nodes: int, now_s: float) -> None:
        self._booked = dict.fromkeys(TimeUse, 0.0)
        self._nodes = nodes
        self._since_s = now_s
        self._use = TimeUse.STARTUP
        self._running = False
        self._stepping = False
        self._serving = False
        self._open_node_s = self._open_s = 0.0
        self._step = self._before = -1
        self._steps: deque[float] = deque(maxlen=STEPS_KEPT)

    def seconds(self, now_s: float) -> Mapping[str, float]:
        """Returns all node-seconds so far, by use; time that is open counts as what it most likely is."""
        self._pass(now_s)
        shown = dict(self._booked)
        shown[self._likely] += self._open_node_s
        return {use.value: seconds for use, seconds in shown.items() if seconds > 0}

    def have(self, nodes: int, now_s: float) -> None:
        """Takes note of how many nodes the attempt has from now on."""
        self._pass(now_s)
        self._nodes = nodes

    def enter(self, use: TimeUse, now_s: float, *, closes: TimeUse | None = None) -> None:
        """Books the time from now on to `use`, until ranks step.

        Args:
            use: Why ranks do not run.
            closes: What the time since the last report went into, where it is not `use` either.
        """
        self._pass(now_s)
        self._book(closes or use, self._open_node_s)
        self._open_node_s = self._open_s = 0.0
        self._use, self._running = use, False

    def run(self, step: int, before: int, now_s: float) -> None:
        """Takes note that a generation's ranks run: their time is open until the first report.

        Args:
            step: The step they resume at.
            before: The furthest step there was before.
        """
        self._pass(now_s)
        self._running, self._stepping, self._serving = True, False, False
        self._step, self._before = step, before

    def stepped(self, step: int, measured: Mapping[str, float], now_s: float) -> None:
        """Books the time since the last report.

        Args:
            step: The step the rank has come to.
            measured: What it measured since its last report, in seconds.
        """
        self._pass(now_s)
        if not self._running or self._open_s <= 0:
            return
        node_s, wall_s = self._open_node_s, self._open_s
        self._open_node_s = self._open_s = 0.0
        known = {use: max(0.0, measured.get(use.value, 0.0)) for use in MEASURED}
        scale = min(1.0, wall_s / max(sum(known.values()), 1e-9))  # Reports jitter: never book more than there is.
        parts = {use: seconds * scale / wall_s for use, seconds in known.items()}
        rest_s = max(0.0, 1.0 - sum(parts.values())) * wall_s
        count = max(0, step - self._step)
        usual_s = statistics.median(self._steps) if self._steps else None
        stepping_s = rest_s
        if not self._stepping:  # Most of this was not steps: ranks came up.
            stepping_s = min(rest_s, count * (usual_s or 0.0))
            self._book(self._use, node_s * (rest_s - stepping_s) / wall_s)
            self._stepping = True
        elif count:
            self._steps.append(rest_s / count)
        for use, part in parts.items():
            self._book(use, node_s * part)
        self._book_steps(node_s * stepping_s / wall_s, stepping_s, usual_s, step, count)
        self._step = max(self._step, step)

    def served(self, now_s: float, *, ready: bool) -> None:
        """Books the time since the last word of a program that serves: it is productive while it is ready.

        Args:
            ready: Whether it is, from now on.
        """
        self._pass(now_s)
        if self._running and not self._stepping:
            self._book(self._likely, self._open_node_s)
            self._open_node_s = self._open_s = 0.0
            self._serving = ready

    def end(self, now_s: float, *, well: bool) -> None:
        """Takes note that ranks have ended and the attempt winds down.

        Args:
            well: Whether they did what they were for: a program that never reports steps is productive throughout.
        """
        self._pass(now_s)
        self.enter(TimeUse.WINDDOWN, now_s, closes=self._likely if self._stepping or not well else TimeUse.PRODUCTIVE)

    @property
    def _likely(self) -> TimeUse:
        if self._running and self._serving and not self._stepping:
            return TimeUse.PRODUCTIVE
        if not self._running or not self._stepping:
            return self._use
        return TimeUse.REPEATED if self._step < self._before else TimeUse.PRODUCTIVE

    def _book_steps(self, node_s: float, seconds: float, usual_s: float | None, step: int, count: int) -> None:
        """Books time that went into steps: slowness first, then what was done before."""
        if usual_s is not None and count and seconds > count * STRAGGLER_FROM * usual_s:
            slow = node_s * (1.0 - count * STRAGGLER_FROM * usual_s / seconds)
            self._book(TimeUse.STRAGGLER, slow)
            node_s -= slow
        again = max(0, min(step, self._before) - self._step)
        repeated = node_s * again / count if count else 0.0
        self._book(TimeUse.REPEATED, repeated)
        self._book(TimeUse.PRODUCTIVE, node_s - repeated)

    def _pass(self, now_s: float) -> None:
        elapsed_s = max(0.0, now_s - self._since_s)
        self._since_s = max(self._since_s, now_s)
        if self._running:
            self._open_s += elapsed_s
            self._open_node_s += elapsed_s * self._nodes
        else:
            self._book(self._use, elapsed_s * self._nodes)

    def _book(self, use: TimeUse, node_s: float) -> None:
        self._booked[use] += max(0.0, node_s)
