"""What the agent does each time that it calls the server: tells what it owes, asks, and does as it is told.

Nothing here takes long, and nothing is owed by it: what the server was not told stays in the journal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from mainspring.domain.answers.policies.robots import RobotReport
from mainspring.domain.errors import MainspringError, NotFound, TooManyRequests, Unavailable
from mainspring.robots.edge.agent import EdgeAgent
from mainspring.robots.edge.ddi import DdiClient
from mainspring.robots.edge.machine import InstallOutcome, Phase

TRIES = 3  # At once: on a line that loses every second call, a visit of four calls would else hardly ever succeed.
RETRY_S = 30.0  # After a visit that failed: a rollback is not to wait for a whole poll more.


@final
class EdgeVisits:
    """The calls of one agent. Used by one thread.

    Args:
        report: What the robot is to tell of itself now.
        confirmed: Whether somebody at the robot has confirmed an action; asked by its name.
    """

    def __init__(
        self,
        agent: EdgeAgent,
        client: DdiClient,
        report: Callable[[], RobotReport],
        *,
        confirmed: Callable[[str], bool] = lambda action: False,
    ) -> None:
        self._agent = agent
        self._client = client
        self._report = report
        self._confirmed = confirmed
        self._reported: RobotReport | None = None
        self._phase = Phase.IDLE
        self.why = ""

    def visit(self) -> float:
        """Calls the server once, and returns in how many seconds to do so again; one that is away changes nothing."""
        report = self._report()
        for _ in range(TRIES):  # What was told is not told again.
            try:
                sleep_s = self._visit(report)
            except MainspringError as error:
                self.why = str(error)
                if isinstance(error, Unavailable) and not isinstance(error, TooManyRequests):
                    continue
                break
            self.why = ""
            return sleep_s
        return RETRY_S

    def _visit(self, report: RobotReport) -> float:
        self._settle()
        if report != self._reported:
            self._client.report(report)
            self._reported = report
        orders = self._client.poll()
        if orders.cancel:
            self._cancel(orders.cancel)
        elif orders.confirm and self._confirmed(orders.confirm):
            self._client.confirmed(orders.confirm, "by hand on the robot")
        elif orders.install:
            self._install(orders.install)
        self._settle()
        return orders.sleep_s

    def _settle(self) -> None:
        """Tells the server how what it wanted ended."""
        while self._agent.journal.told:
            self._client.ended(self._agent.journal.told[0])
            self._agent.told(1)

    def _cancel(self, action: str) -> None:
        journal = self._agent.journal
        if journal.phase is not Phase.IDLE and journal.action == action:
            self._agent.cancel()
        elif (over := self._over(action)) is not None and over.committed:
            self._client.ended(over)  # It came too late: the release runs.
        else:
            self._client.given_up(action)

    def _install(self, action: str) -> None:
        journal = self._agent.journal
        if journal.phase is not Phase.IDLE and journal.action == action:
            if journal.phase is not self._phase:
                self._phase = journal.phase
                self._client.going(action, journal.phase.value)
            return
        if journal.phase is not Phase.IDLE:  # The server knows nothing more of what is being installed.
            self._agent.cancel()
            if self._agent.journal.phase is not Phase.IDLE:  # A trial that must not be ended now.
                return
            self._settle()
        if (over := self._over(action)) is not None:
            self._client.ended(over)  # The server has forgotten, as after a restore.
            return
        try:
            target = self._client.target(action)
        except NotFound:
            return
        if not target:
            why = "the server names no target of TUF"
            self._client.ended(InstallOutcome(action=action, committed=False, why=why))
        elif journal.slots.get(journal.committed) == target:
            self._client.ended(InstallOutcome(action=action, committed=True, why="it runs already"))
        else:
            self._agent.ask(target, action=action)
            self._phase = self._agent.journal.phase
            self._client.going(action, self._phase.value)

    def _over(self, action: str) -> InstallOutcome | None:
        """Returns how an action ended, None for one that has not."""
        journal = self._agent.journal
        for closed in reversed(journal.closed):
            name, _, target = closed.partition(" ")
            if name == action:
                committed = journal.slots.get(journal.committed) == target
                return InstallOutcome(action=action, committed=committed, why="" if committed else "it ended before")
        return None
