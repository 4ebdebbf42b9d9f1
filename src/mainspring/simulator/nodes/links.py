"""Lines between agents and leads: late, broken, cut off; in order, but for what is said again."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from mainspring.domain import wire
from mainspring.node.lead import effects
from mainspring.simulator.nodes.agenda import chance, within
from mainspring.simulator.nodes.leading import SimulatedLead
from mainspring.simulator.nodes.parts import Agent, Line
from mainspring.simulator.nodes.releases import word_to_lead

if TYPE_CHECKING:
    from mainspring.simulator.nodes.attempt import SimulatedAttempt

DELAY_S_MAX = 0.02
LATE_S_MAX = 20.0  # What is said twice comes again as late as this, on the same line.
TO_LEAD, TO_AGENT = 0, 1


@final
class Links:
    """Every agent's line to its lead."""

    def __init__(self, attempt: SimulatedAttempt) -> None:
        self._attempt = attempt
        self.repeats = 0.0
        """How often what an agent says arrives once more, late and out of order, as after a line that broke."""
        self.answers_late = 0.0
        """How often the controller's answer to a lead's report takes up to as long as a lead waits for one."""

    def join(self, agent: Agent, lead: SimulatedLead) -> None:
        """Connects an agent to a lead, and says all that it may have missed."""
        self.close(agent)
        orders = agent.orders
        assert orders is not None
        agent.line = Line(lead=lead, heard_s=self._attempt.agenda.now_s)
        lead.feed(
            effects.Joined(
                agent=orders.agent,
                node=agent.node,
                address=agent.address,
                generation=agent.generation,
                places=tuple(place for place in orders.ranks if place.agent == orders.agent),
                holdings=agent.holdings,
            )
        )
        if agent.leaves_s is not None:
            grace_s = max(0.0, agent.leaves_s - self._attempt.agenda.now_s)
            self.say(agent, wire.AgentLeaving(agent=agent.number, grace_s=grace_s))
        if agent.prepared is not None:
            self.say(agent, agent.prepared)
        for rank in agent.ranks.values():
            self.say(agent, wire.RankStarted(generation=rank.run.generation, rank=rank.place.rank, pid=1))
            if rank.reported:
                self._attempt.ranks.tell(agent, rank, {})
        for tried in agent.tried:
            self.say(agent, tried)
        for exited in agent.exits.values():
            self.say(agent, exited)

    def close(self, agent: Agent) -> None:
        """Breaks an agent's line; what is under way on it is lost."""
        line, agent.line = agent.line, None
        if line is not None and line.up:
            line.up = False
            line.lead.feed(effects.Left(agent=agent.number))

    def say(self, agent: Agent, message: wire.AgentToLead) -> None:
        """Sends a message to an agent's lead."""
        line = agent.line
        if line is None or not line.up:
            return
        self._send(agent, line, TO_LEAD, message)
        if agent.newer.states(self._attempt.agenda.now_s):
            word = word_to_lead(self._attempt.luck)
            if word is not None:
                self._send(agent, line, TO_LEAD, word)
        if chance(self._attempt.luck, self.repeats):
            again = effects.Said(agent=agent.number, message=message)
            delay_s = within(self._attempt.luck, 0.0, LATE_S_MAX)
            self._attempt.agenda.after(delay_s, lambda: line.lead.feed(again) if line.up else None)

    def tell(self, agent: Agent, lead: SimulatedLead, message: wire.LeadToAgent) -> None:
        """Sends a message to an agent; nothing happens where it has no line to that lead."""
        line = agent.line
        if line is not None and line.up and line.lead is lead:
            self._send(agent, line, TO_AGENT, message)

    def _send(self, agent: Agent, line: Line, way: int, message: object) -> None:
        now_s = self._attempt.agenda.now_s
        at_s = max(now_s + within(self._attempt.luck, 0.0, DELAY_S_MAX), line.last_s[way])
        line.last_s[way] = at_s
        line.queues[way].append(message)
        self._attempt.agenda.after(at_s - now_s, lambda: self._arrive(agent, line, way))

    def _arrive(self, agent: Agent, line: Line, way: int) -> None:
        if not line.up or not agent.alive or not line.queues[way]:
            return
        wait_s = self._attempt.cut_s(agent, line.lead.agent)
        if wait_s > 0:  # The network keeps it, in order, for as long as both ends keep the line.
            self._attempt.agenda.after(wait_s, lambda: self._arrive(agent, line, way))
            return
        message = line.queues[way].popleft()
        if way == TO_AGENT:
            agent.heard_s, agent.patience_s = self._attempt.agenda.now_s, self._attempt.lease_s
            self._attempt.obey(agent, line.lead, message)  # type: ignore[arg-type]
        elif isinstance(message, wire.StandbyAllowed):
            line.lead.let_stand_by(message)
        else:
            line.lead.feed(effects.Said(agent=agent.number, message=message))  # type: ignore[arg-type]

    def keep_alive(self, agent: Agent) -> None:
        """Lets both ends of an agent's line hear each other, or notice that they have not for a lease."""
        line = agent.line
        if line is None:
            return
        now_s = self._attempt.agenda.now_s
        if not line.lead.hosted:
            self.close(agent)
        elif self._attempt.cut_s(agent, line.lead.agent) == 0:
            line.heard_s = agent.heard_s = now_s
        elif now_s - line.heard_s > self._attempt.lease_s:
            self.close(agent)
