"""One attempt on virtual time: real leads, simulated agents and ranks, and what may happen to them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, final

from mainspring.checkpoint import Claim
from mainspring.domain import wire
from mainspring.domain.errors import Conflict, MainspringError, NotFound
from mainspring.domain.ports import Dice
from mainspring.node.lead.effects import Instant, StopAsked
from mainspring.simulator.nodes.agenda import Agenda, within
from mainspring.simulator.nodes.agents import AgentPrograms
from mainspring.simulator.nodes.devices import DeviceChecks
from mainspring.simulator.nodes.leading import SimulatedLead
from mainspring.simulator.nodes.links import Links
from mainspring.simulator.nodes.object_store import JobStore
from mainspring.simulator.nodes.parts import Agent, RunKey
from mainspring.simulator.nodes.ranks import Ranks
from mainspring.simulator.nodes.rare import Rare
from mainspring.simulator.nodes.releases import as_heard

PULSE_S = 1.0  # How often agents look around: call again, connect again, say that they live.
LEAD_UP_LEASES = 2.0  # As a real agent: how long a lead just named has to answer its agents.
ASK_AGAIN_LEASES = 0.25  # As a real agent: how long one that the controller holds with has.
STOP_PATIENCE = 0.25  # Of the grace: without a word of the lead by then, ranks save what they have.


class Controller(Protocol):
    """The calls that agents and leads make; any may raise `MainspringError`, and has then perhaps acted."""

    def register(self, call: wire.Register, token: str) -> wire.Orders:
        """Returns an agent's orders; see `control`."""

    def heartbeat(self, beat: wire.Heartbeat, token: str, *, newer: bool) -> wire.HeartbeatReply:
        """Takes a lead's report; see `control`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What an attempt's ranks run.

    Args:
        last: The step it ends at.
        reconnects: Whether it goes on in the next generation by itself.
        step_s: How long a step takes.
    """

    last: int
    reconnects: bool = True
    step_s: float = 0.2


@final
class SimulatedAttempt:
    """One attempt's agents, whatever its engine makes of them.

    Args:
        controller: What they call.
        ended: Told when an agent ends by itself: the agent, its exit code, why.
        store: The job's checkpoints.
        seen: Counts what rarely happens.
    """

    def __init__(
        self,
        agenda: Agenda,
        luck: Dice,
        controller: Controller,
        store: JobStore,
        program: Program,
        *,
        ended: Callable[[Agent, int, str], None],
        seen: Counter[Rare],
    ) -> None:
        self.agenda = agenda
        self.luck = luck
        self.store = store
        self.leads: list[SimulatedLead] = []
        self.agents: list[Agent] = []
        self.goes_on = True
        self.links = Links(self)
        self.ranks = Ranks(self, last=program.last, reconnects=program.reconnects, step_s=program.step_s)
        self.lease_s = math.inf
        self.programs = AgentPrograms(self)
        self.checks = DeviceChecks(self)
        self._controller = controller
        self._ended = ended
        self._seen = seen
        self._sizes: dict[RunKey, int] = {}

    # ------------------------------------------------------------ what there is

    def instant_at(self, agent: Agent) -> Instant:
        """Returns the time on both clocks of an agent's node."""
        clock = agent.clock
        return Instant(now_s=self.agenda.clock.now_s() + clock.ahead_s, monotonic_s=self.agenda.now_s + clock.up_s)

    @property
    def living(self) -> list[Agent]:
        """Returns the agents that live."""
        return [agent for agent in self.agents if agent.alive]

    def at_address(self, address: str) -> Agent | None:
        """Returns the agent that lives at an address."""
        return next((agent for agent in self.agents if agent.alive and agent.address == address), None)

    def of_number(self, asking: Agent, number: int) -> Agent | None:
        """Returns the living agent of a number that follows the same lead as the one that asks."""
        return next((one for one in self.living if one.orders is not None and one.number == number), None)

    def followers(self, lead: SimulatedLead) -> list[Agent]:
        """Returns the agents with a line to a lead."""
        return [agent for agent in self.living if agent.line is not None and agent.line.lead is lead]

    def claim_of(self, agent: Agent) -> Claim:
        """Returns what an agent's shares are named by."""
        assert agent.orders is not None
        return Claim(number=agent.orders.number, epoch=agent.orders.epoch)

    def epoch_of(self, agent: Agent) -> int:
        """Returns the epoch of the lead an agent follows."""
        return agent.orders.epoch if agent.orders is not None else 0

    def cut_s(self, one: Agent, other: Agent) -> float:
        """Returns for how long two agents will not hear each other yet, 0 when they do."""
        until_s = 0.0 if one is other else max(one.cut_until_s, other.cut_until_s)
        return max(0.0, until_s - self.agenda.now_s)

    def reach(self, one: Agent, other: Agent) -> bool:
        """Returns whether two agents hear each other now."""
        return one.alive and other.alive and self.cut_s(one, other) == 0

    # ------------------------------------------------------------ generations

    def declared(self, run: RunKey, ranks: int) -> None:
        """Takes note of how many ranks a generation has."""
        self._sizes[run] = ranks

    def size(self, run: RunKey) -> int:
        """Returns how many ranks a generation has."""
        return self._sizes[run]

    def sizes_of(self, generation: int) -> frozenset[int]:
        """Returns how many ranks a generation of this number has, by any lead."""
        return frozenset(ranks for run, ranks in self._sizes.items() if run.generation == generation)

    # ------------------------------------------------------------ between the parts

    def say(self, agent: Agent, message: wire.AgentToLead) -> None:
        """Sends a message to an agent's lead."""
        self.links.say(agent, message)

    def tell(self, lead: SimulatedLead, number: int, message: wire.LeadToAgent) -> None:
        """Sends a lead's message to one of its agents."""
        for agent in self.followers(lead):
            if agent.number == number:
                self.links.tell(agent, lead, message)

    def obey(self, agent: Agent, lead: SimulatedLead, message: wire.LeadToAgent) -> None:
        """Lets an agent do what its lead says."""
        self.programs.obey(agent, lead, message)

    def saw(self, what: Rare) -> None:
        """Counts something that rarely happens."""
        self._seen[what] += 1

    # ------------------------------------------------------------ agents

    def add(self, agent: Agent) -> None:
        """Brings an agent to life."""
        self.agents.append(agent)
        self.agenda.after(
            within(self.luck, 0.01, PULSE_S), lambda: self.agenda.every(PULSE_S, lambda: self._pulse(agent))
        )

    def end_agent(self, agent: Agent, exit_code: int, reason: str) -> None:
        """Ends an agent, with all it holds; its engine learns of it."""
        if agent.alive:
            self.lose(agent)
            self._ended(agent, exit_code, reason)

    def lose(self, agent: Agent) -> None:
        """Ends an agent, with all it holds, as its engine does."""
        if agent.alive:
            self.links.close(agent)
            agent.alive = False
            agent.ranks, agent.own, agent.copies = {}, {}, {}
            for other in self.living:
                if other.line is not None and other.line.lead is agent.leads:
                    self.links.close(other)

    def stop(self, agent: Agent, grace_s: float) -> None:
        """Tells an agent that its engine ends it before long."""
        if agent.leaves_s is not None or not agent.alive:
            return
        agent.leaves_s = self.agenda.now_s + grace_s
        if agent.registering:
            if agent.orders is None:
                self.end_agent(agent, 0, "stopped before it had orders")
            return
        if agent.leads is not None:
            agent.leads.feed(StopAsked(grace_s=grace_s))
        else:
            self.say(agent, wire.AgentLeaving(agent=agent.number, grace_s=grace_s))
        self.agenda.after(grace_s * STOP_PATIENCE, lambda: self.programs.leave_alone(agent))
        self.agenda.after(grace_s, lambda: self.programs.end_ranks(agent))

    def _pulse(self, agent: Agent) -> bool:
        if not agent.alive or not self.goes_on:
            return False
        if agent.registering:
            self._register(agent)
            return agent.alive
        self.links.keep_alive(agent)
        for _, rank in sorted(agent.ranks.items()):
            self.ranks.report(agent, rank)
        if agent.line is None:
            self._connect(agent)
        if agent.line is None and agent.leads is None and self.agenda.now_s - agent.heard_s >= agent.patience_s:
            self.lose_lead(agent)
        return agent.alive

    def lose_lead(self, agent: Agent) -> None:
        """Ends an agent's running ranks, and has it ask for another lead."""
        self.links.close(agent)
        for rank in list(agent.ranks.values()):
            self.ranks.leave(agent, rank, "", -9)
        if agent.leaves_s is not None:
            self.end_agent(agent, 0, "stopped by its engine")
            return
        agent.registering, agent.lost_epoch = True, self.epoch_of(agent)
        self.saw(Rare.LEAD_LOST)

    def _connect(self, agent: Agent) -> None:
        assert agent.orders is not None
        there = self.at_address(agent.orders.lead_address)
        lead = None if there is None else there.leads
        if there is None or lead is None or not lead.hosted or not self.reach(agent, there):
            return
        if lead.orders.epoch == agent.orders.epoch:
            agent.heard_s, agent.patience_s = self.agenda.now_s, self.lease_s
            self.links.join(agent, lead)

    def _register(self, agent: Agent) -> None:
        call = wire.Register(
            allocation=agent.allocation, node=agent.node, address=agent.address, lost_epoch=agent.lost_epoch
        )
        try:
            orders = self._controller.register(call, agent.token)
        except (Conflict, NotFound) as error:
            self.end_agent(agent, 1, str(error))
            return
        except MainspringError:
            return
        if not orders.ready:
            return
        again = orders.epoch == agent.lost_epoch
        self.lease_s = orders.lease_s
        agent.orders, agent.registering = orders, False
        agent.heard_s = self.agenda.now_s
        agent.patience_s = (ASK_AGAIN_LEASES if again else LEAD_UP_LEASES) * orders.lease_s
        if orders.lead and agent.leads is None:
            assert all(one.orders.epoch != orders.epoch for one in self.leads), f"two leads of epoch {orders.epoch}"
            agent.leads = SimulatedLead(self, agent, orders)
            self.leads.append(agent.leads)
        if agent.leaves_s is not None:
            left_s, agent.leaves_s = agent.leaves_s - self.agenda.now_s, None
            self.stop(agent, max(0.0, left_s))

    # ------------------------------------------------------------ leads

    def call_heartbeat(self, lead: SimulatedLead, beat: wire.Heartbeat) -> wire.HeartbeatReply | None:
        """Returns the controller's answer to a report, None where none came."""
        newer = lead.agent.newer.states(self.agenda.now_s)
        try:
            return self._controller.heartbeat(as_heard(beat) if newer else beat, lead.agent.token, newer=newer)
        except MainspringError:
            return None
