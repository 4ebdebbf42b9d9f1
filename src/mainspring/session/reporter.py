"""Background reporter: sends a rank's reports from its own thread, so that the program's only stores numbers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import final

from mainspring.domain.errors import InvalidMessage, Unavailable
from mainspring.domain.wire import StepReply
from mainspring.session.line import ANSWER_LIMIT_S, AgentConnection
from mainspring.session.meter import Meter

REPORT_EVERY_S = 0.1  # Ten reports a second show progress to people and cost a fast loop nothing.
REPEAT_EVERY_S = 0.5  # A long step learns of a stop while it is under way: the newest report is sent again.


@final
class Reporter:
    """Sends reports at most every `REPORT_EVERY_S`, and repeats the newest every `REPEAT_EVERY_S`.

    Args:
        told: Called with each answer, while the line is held.
    """

    def __init__(self, line: AgentConnection, meter: Meter, told: Callable[[StepReply], None]) -> None:
        self._line = line
        self._meter = meter
        self._told = told
        self._wake = threading.Event()
        self._closed = False
        self.failure: Unavailable | InvalidMessage | None = None  # For the program to raise where it reports next.
        self._thread = threading.Thread(target=self._run, name="mainspring-report", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Sends what waits at once. Costs a thread's wake-up, so it is for what is rare."""
        self._wake.set()

    def send(self, *, again: bool = False, rest: bool = False, limit_s: float = ANSWER_LIMIT_S) -> bool:
        """Sends what waits, now; returns whether there was a report.

        Args:
            again: See `Meter.take`.
            rest: See `Meter.take`.
            limit_s: See `AgentConnection.ask`.

        Raises:
            Unavailable: The agent is gone.
            InvalidMessage: It does not speak as agents do.
        """
        with self._line.turn:  # Taken under it: what was noted in one generation is never sent in the next.
            self._line.settle()
            report = self._meter.take(again=again, rest=rest)
            if report is not None:
                self._told(self._line.ask(report, StepReply, limit_s=limit_s))
            return report is not None

    def close(self) -> None:
        """Ends the thread, without waiting for it."""
        self._closed = True
        self._wake.set()

    def _run(self) -> None:
        quiet_s = 0.0
        while True:  # Looks by itself whether there is something to send: to be told every step costs the program more.
            woken = self._wake.wait(REPORT_EVERY_S)
            if self._closed:
                return
            self._wake.clear()
            quiet_s += 0.0 if woken else REPORT_EVERY_S
            try:
                if self.send(again=quiet_s >= REPEAT_EVERY_S):
                    quiet_s = 0.0
            except (Unavailable, InvalidMessage) as error:
                self.failure = error
                return
