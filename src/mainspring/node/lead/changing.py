"""Decides planned changes: growth, nodes that are taken away on notice, and the stop of the whole attempt."""

from __future__ import annotations

from dataclasses import replace
from typing import final

from mainspring.domain import wire
from mainspring.domain.goodput import TimeUse
from mainspring.domain.life import AttemptState
from mainspring.domain.wire import Then
from mainspring.domain.wire.events.leads import AgentLeavingEvent
from mainspring.node.lead.changes import PlannedChange, reserve_s, time_to_leave_s
from mainspring.node.lead.gang import RunningGeneration
from mainspring.node.lead.holdings import Holdings
from mainspring.node.lead.members import Members
from mainspring.node.lead.outbox import Beginning, Outbox
from mainspring.node.lead.roster import Roster

GROW_SETTLE_S = 2.0  # Agents launched together join within seconds: one change takes them all.
LEFT_GRACE_S = 2.0  # An agent that may go has no ranks left.


@final
class Changing:
    """When ranks are asked to leave, and where.

    Args:
        roster: The agents.
        members: Who runs.
        gang: The ranks.
        outbox: Where events and messages go.
    """

    def __init__(self, roster: Roster, members: Members, gang: RunningGeneration, outbox: Outbox) -> None:
        self._roster = roster
        self._members = members
        self._gang = gang
        self._outbox = outbox
        self._consider_s: float | None = None
        self._dismissed: set[int] = set()

    def arrived(self, agent: int) -> None:
        """Takes note of an agent that is new, or was given up: ranks may grow.

        Args:
            agent: The agent.
        """
        self._dismissed.discard(agent)
        self._consider_s = self._outbox.now_s + GROW_SETTLE_S

    def leaving(self, agent: int, grace_s: float) -> None:
        """Takes note that an agent's node is taken away.

        Args:
            agent: The agent.
            grace_s: When.
        """
        seen, leaves_s = self._roster[agent], self._outbox.now_s + grace_s
        if seen.leaving_s is None:
            self._outbox.event(AgentLeavingEvent(agent=agent, node=seen.node, grace_s=grace_s))
        seen.leaving_s = leaves_s if seen.leaving_s is None else min(seen.leaving_s, leaves_s)
        self._consider_s = self._outbox.now_s

    def stop(self, generation: int, grace_s: float) -> None:
        """Asks all ranks to save and exit, because the attempt shall stop.

        Args:
            generation: The generation that runs.
            grace_s: How long they have.
        """
        change = PlannedChange(
            then=Then.EXIT,
            stop_at=self._gang.stop_at,
            deadline_s=self._outbox.now_s + grace_s,
            cause="stopped",
            outcome=AttemptState.CANCELLED,
        )
        self._ask(generation, change)

    def consider(self, generation: int) -> Beginning | None:
        """Asks ranks to leave where the membership could be better; returns what cannot wait for them.

        Args:
            generation: The generation that runs.
        """
        now_s = self._outbox.now_s
        if self._gang.change is not None or self._consider_s is None or now_s < self._consider_s:
            return None
        leaving = [agent for agent in self._members.active_agents if self._roster[agent].leaving_s is not None]
        wanted = self._members.propose(self._roster.lasting, last=self._gang.failures.suspects)
        if leaving:
            return self._without(generation, leaving, wanted.lacking)
        sizes = {str(place.role): place.role_size for place in self._members.active.values()}
        if all(size <= sizes[role] for role, size in wanted.sizes.items()):
            self._consider_s = None
        elif self._gang.all_step and self._gang.pace.step_s and not self._roster.doubtful:
            here, step_s, stop_at = self._gang.progress.here, self._gang.pace.step_s, self._gang.stop_at
            deadline_s = now_s + time_to_leave_s(here, stop_at, step_s)
            cause = f"grows to {sum(wanted.sizes.values())} ranks"
            self._ask(generation, PlannedChange(then=Then.REJOIN, stop_at=stop_at, deadline_s=deadline_s, cause=cause))
        return None

    def _without(self, generation: int, leaving: list[int], lacking: str) -> Beginning | None:
        """Asks ranks to leave because nodes are taken away."""
        now_s = self._outbox.now_s
        leaves_s = min(self._roster[agent].leaving_s or now_s for agent in leaving)
        deadline_s = leaves_s - reserve_s(max(0.0, leaves_s - now_s))
        here, step_s, stop_at = self._gang.progress.here, self._gang.pace.step_s, self._gang.stop_at
        cause = f"agents {', '.join(map(str, leaving[:20]))} leave"
        if lacking:
            change = PlannedChange(
                then=Then.EXIT,
                stop_at=stop_at,
                deadline_s=deadline_s,
                cause=f"preempted: {cause}; {lacking}",
                outcome=AttemptState.CANCELLED,  # Nothing failed: whoever owns the nodes wants them back.
            )
            self._ask(generation, change)
            return None
        if stop_at < 0 or (stop_at - here) * (step_s or 0.0) > deadline_s - now_s:
            return Beginning(cause=cause, use=TimeUse.RESIZE)  # No step to wait for, or no time to.
        self._ask(generation, PlannedChange(then=Then.REJOIN, stop_at=stop_at, deadline_s=deadline_s, cause=cause))
        return None

    def dismiss(self, holdings: Holdings) -> None:
        """Lets agents go that are taken away anyway, once nobody needs them or what they hold.

        Args:
            holdings: What is in memory.
        """
        if not self._gang.all_step:
            return
        newest = holdings.newest()
        for agent in self._roster.connected:
            idle = self._roster[agent].leaving_s is not None and not self._members.active_of(agent)
            if not idle or agent in self._dismissed:
                continue
            if newest is None or agent not in holdings.holders(newest):
                self._dismissed.add(agent)
                self._outbox.tell(agent, wire.EndAgent(grace_s=LEFT_GRACE_S, reason="its node was taken away"))

    def _ask(self, generation: int, change: PlannedChange) -> None:
        before = self._gang.change
        if before is not None and before.stop_at >= 0:
            change = replace(change, stop_at=before.stop_at)  # Some may have left there already.
        self._gang.change, self._consider_s = change, None
        self._outbox.tell(self._members.active_agents, change.message(generation, self._outbox.now_s))
