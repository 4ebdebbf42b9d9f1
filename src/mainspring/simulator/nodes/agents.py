"""What simulated agents do when their lead says so; as `node.agent` and `node.supervise` do for real."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, final

from mainspring.domain import wire
from mainspring.simulator.nodes.agenda import within
from mainspring.simulator.nodes.leading import SimulatedLead
from mainspring.simulator.nodes.object_store import Content, branch_of, stored
from mainspring.simulator.nodes.parts import Agent, Rank, RunKey

if TYPE_CHECKING:
    from mainspring.simulator.nodes.attempt import SimulatedAttempt

READY_S_MAX = 0.3
SHARE_S_MAX = 0.2
_FRESH = Content("", -1)


@final
class AgentPrograms:
    """What agents of one attempt do."""

    def __init__(self, attempt: SimulatedAttempt) -> None:
        self.silent_stores = False  # Whether orders to store are never answered.
        self.wrong: dict[int, int] = {}  # Agents on whose nodes replicas come out wrong, and from which step on.
        self._attempt = attempt
        self._states: dict[RunKey, Content] = {}

    def obey(self, agent: Agent, lead: SimulatedLead, message: wire.LeadToAgent) -> None:
        """Does what a lead says."""
        match message:
            case wire.PrepareGeneration():
                self._prepare(agent, lead, message)
            case wire.StartRanks():
                self._start(agent, message)
            case wire.LeaveAt():
                self._leave(agent, message)
            case wire.SnapshotPace():
                for rank in agent.ranks.values():
                    rank.every = message.every
            case wire.StoreStep():
                self._store(agent, message)
            case wire.DumpStacks():
                self._dump(agent, message)
            case wire.EndAgent():
                self._end(agent, message)
            case wire.StandbyAllowed() | wire.TakeProfile() | wire.Done() | wire.Unknown():
                pass

    # ------------------------------------------------------------ generations

    def _prepare(self, agent: Agent, lead: SimulatedLead, order: wire.PrepareGeneration) -> None:
        if order.generation < agent.generation:
            return
        if order.generation > agent.generation:
            agent.generation, agent.order, agent.started, agent.prepared = order.generation, order, False, None
            agent.ranks, agent.exits = {}, {}
            for held in (agent.own, agent.copies):
                for rank in held:
                    held[rank] = [one for one in held[rank] if one.holding.step <= order.step]
        if agent.prepared is not None:
            self._attempt.say(agent, agent.prepared)
            return
        delay_s = within(self._attempt.luck, 0.0, READY_S_MAX)
        self._attempt.agenda.after(delay_s, lambda: self._ready(agent, lead, order))

    def _ready(self, agent: Agent, lead: SimulatedLead, order: wire.PrepareGeneration) -> None:
        if agent.generation != order.generation or agent.order is not order or not agent.alive:
            return
        state = self._restored(agent, order)
        reason = state if isinstance(state, str) else ""
        answer = wire.GenerationPrepared(
            generation=order.generation,
            agent=agent.number,
            ready=not reason,
            reason=reason,
            corrupt=reason in ("damaged", "it is gone"),
        )
        agent.prepared = None if reason else answer
        if isinstance(state, Content) and order.places:
            run = RunKey(self._attempt.epoch_of(agent), order.generation)
            same = self._states.setdefault(run, state)
            assert same == state, f"generation {run} begins from {same} and from {state}"
            branch = branch_of(self._attempt.claim_of(agent), order.generation)
            self._attempt.store.courses.began(branch, state)
        self._attempt.say(agent, answer)

    def _restored(self, agent: Agent, order: wire.PrepareGeneration) -> Content | str:
        """Returns the state to begin from, or why it cannot be had."""
        store = self._attempt.store
        if not order.places or not order.source:
            return Content(f"fresh {agent.orders.number if agent.orders else 0}", -1) if order.places else _FRESH
        if order.source == "arena":
            return self._attempt.ranks.restored(agent, order)
        if not store.up:
            return "the store does not answer"
        if order.begins_from:
            return Content(order.begins_from, -1)
        return store.content(order.step) or "it is gone"

    def begun_from(self, run: RunKey) -> Content | None:
        """Returns what a generation begins from, None while no agent has it."""
        return self._states.get(run)

    def _start(self, agent: Agent, message: wire.StartRanks) -> None:
        order = agent.order
        if order is None or agent.generation != message.generation or agent.started or agent.prepared is None:
            return
        agent.started = True
        if order.places:
            run = RunKey(self._attempt.epoch_of(agent), order.generation)
            self._attempt.ranks.start(agent, order, self._states[run], message.snapshot_every)

    def _leave(self, agent: Agent, message: wire.LeaveAt) -> None:
        if message.generation == agent.generation:
            agent.told_to_leave = agent.generation
            for rank in agent.ranks.values():
                rank.leave_at, rank.then = message.step, message.then

    def leave_alone(self, agent: Agent) -> None:
        """Has ranks save what they have, when no lead has said how the agent is to leave."""
        if agent.alive and agent.told_to_leave != agent.generation:
            self._leave(agent, wire.LeaveAt(generation=agent.generation, step=-1, grace_s=0.0, then=wire.Then.EXIT))

    def end_ranks(self, agent: Agent) -> None:
        """Ends all ranks of an agent by force."""
        for rank in list(agent.ranks.values()):
            self._attempt.ranks.leave(agent, rank, "", -9)

    # ------------------------------------------------------------ the rest

    def _store(self, agent: Agent, message: wire.StoreStep) -> None:
        if self.silent_stores or agent.orders is None:
            return
        for number, kept in sorted(agent.own.items()):
            mine = [
                one for one in kept if (one.holding.step, one.holding.generation) == (message.step, message.taken_in)
            ]
            if mine:
                delay_s = within(self._attempt.luck, 0.0, SHARE_S_MAX)
                self._attempt.agenda.after(delay_s, partial(self._keep, agent, number, message, mine[0].content))

    def _keep(self, agent: Agent, rank: int, message: wire.StoreStep, content: Content) -> None:
        answer: wire.AgentToLead = wire.StoreFailed(rank=rank, step=message.step, reason="away")
        if not agent.alive or agent.orders is None:
            return
        if self._attempt.store.up:
            claim = self._attempt.claim_of(agent)
            file = self._attempt.store.keep(claim, generation=message.taken_in, rank=rank, content=content)
            wrong = f"on agent {agent.number}" if content.step >= self.wrong.get(agent.number, math.inf) else ""
            answer = stored(rank, content, file, wrong=wrong)
        self._attempt.say(agent, answer)

    def _dump(self, agent: Agent, message: wire.DumpStacks) -> None:
        for rank in _of(agent, message.generation):
            state, top = ("T", "a.py:1 work") if rank.stopped else ("S", "b.py:2 wait")
            self._attempt.say(
                agent,
                wire.StacksDumped(generation=message.generation, rank=rank.place.rank, process_state=state, top=top),
            )

    def _end(self, agent: Agent, message: wire.EndAgent) -> None:
        if message.fenced and agent.leads is None:
            self._attempt.lose_lead(agent)
            return
        agent.ranks = {}
        self._attempt.say(agent, wire.AgentDrained(agent=agent.number))
        if agent.leads is None:
            self._attempt.agenda.after(0.1, lambda: self._attempt.end_agent(agent, 0, message.reason))


def _of(agent: Agent, generation: int) -> list[Rank]:
    return [rank for rank in agent.ranks.values() if rank.run.generation == generation]
