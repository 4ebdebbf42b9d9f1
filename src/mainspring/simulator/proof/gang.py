"""The agents and the leads of one attempt, on virtual time: they register, report, fail and end as real ones would.

An agent whose lead is silent for a lease asks the controller for another; a lead goes on without an agent it lost only
once the controller has answered it since. Agents come late and leave while the others run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

from mainspring.control import Control
from mainspring.domain.errors import Conflict, MainspringError, NotFound
from mainspring.domain.fleet import AllocationPhase, AllocationSeen, LaunchOrder
from mainspring.domain.goodput import TimeUse
from mainspring.domain.ids import AllocationId, AttemptId, ClusterName, NodeName
from mainspring.domain.life import AttemptState
from mainspring.domain.ports import Clock, Dice
from mainspring.domain.wire import (
    Heartbeat,
    HeartbeatReply,
    LeadEvent,
    Orders,
    RankPlace,
    RankStatus,
    Register,
)
from mainspring.domain.wire.events.leads import (
    CaughtUpEvent,
    CheckpointDurableEvent,
    GenerationPreparingEvent,
    GenerationResumedEvent,
    GenerationSteppingEvent,
    LeadEndedEvent,
    OfLeads,
    RankExitedEvent,
    ResultEvent,
)
from mainspring.simulator.proof.cluster import SimulatedCluster, chance, pick

_HELD_BACK_MAX = 8
_SAVE_STEPS = 5
_JOIN_LEASES = 3  # How long a lead waits for those it was told of.
_CUT_S_MAX = 60  # Several leases: long enough for another lead to be named meanwhile.


@dataclass(frozen=True, slots=True, kw_only=True)
class GangFaults:
    """How often things go wrong in one attempt, each step.

    Args:
        agent_dies: One agent is killed.
        rank_dies: A rank is killed; the lead restarts its ranks from two steps before.
        call_lost: A register or heartbeat never arrives.
        reply_lost: It arrives, and its answer is lost.
        held_back: A heartbeat arrives now, and once more later.
        program_fails: The program ends badly.
        lead_cut: The lead and the other agents do not hear each other for a while; half the time it is cut off from the
            controller too.
    """

    agent_dies: float = 0.0
    rank_dies: float = 0.0
    call_lost: float = 0.0
    reply_lost: float = 0.0
    held_back: float = 0.0
    program_fails: float = 0.0
    lead_cut: float = 0.0


@dataclass(slots=True, kw_only=True)
class _Agent:
    """One agent that lives, and since when it has missed its lead."""

    allocation: AllocationId
    node: NodeName
    index: int
    order: LaunchOrder
    stopping: bool = False
    orders: Orders | None = None
    missed_s: float | None = None


@dataclass(slots=True, kw_only=True)
class _Lead:
    """What one lead knows and has told."""

    agent: _Agent
    orders: Orders
    generation: int
    step: int
    furthest: int
    began_s: float
    members: dict[int, tuple[RankPlace, ...]] = field(default_factory=dict)
    told: list[LeadEvent] = field(default_factory=list)
    unacknowledged: list[LeadEvent] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    use: TimeUse = TimeUse.STARTUP
    outcome: AttemptState | None = None
    reason: str = ""
    unsure: bool = False  # Of whether it may go on without those it lost: the controller has not answered since.
    unstepped: bool = True
    behind: bool = False
    over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _LeadCut:
    """Until when a lead and the other agents do not hear each other, and until when the controller does not hear it."""

    lead: _Lead | None = None
    until_s: float = 0.0
    mute_until_s: float = 0.0


@final
class Gang:
    """One attempt's agents.

    Args:
        cluster_name: Where its allocations are.
        steps: How many steps its program takes.
        lease_s: How long an agent lives without a lead.
    """

    def __init__(
        self,
        *,
        attempt: AttemptId,
        cluster_name: ClusterName,
        cluster: SimulatedCluster,
        clock: Clock,
        dice: Dice,
        steps: int,
        lease_s: float,
    ) -> None:
        self.attempt = attempt
        self.cluster_name = cluster_name
        self.acknowledged: dict[int, set[int]] = {}
        self._cluster = cluster
        self._clock = clock
        self._dice = dice
        self._steps = steps
        self._lease_s = lease_s
        self._agents: dict[tuple[AllocationId, NodeName], _Agent] = {}
        self._gone: set[tuple[AllocationId, NodeName]] = set()
        self._leads: list[_Lead] = []
        self._held_back: list[tuple[int, Heartbeat]] = []
        self._saved = -1
        self._cut = _LeadCut()
        self._at_s = clock.monotonic_s()

    @property
    def told(self) -> Sequence[Sequence[LeadEvent]]:
        """Returns what each of its leads told, in order."""
        return [lead.told for lead in self._leads]

    def advance(self, control: Control, running: Mapping[AllocationId, AllocationSeen], faults: GangFaults) -> None:
        """Lets one step of time happen to the gang.

        Args:
            control: The controller it reports to.
            running: What truly runs on its cluster.
            faults: What may go wrong.
        """
        passed_s, self._at_s = self._clock.monotonic_s() - self._at_s, self._clock.monotonic_s()
        self._look(running)
        for lead in self._leads:
            if not lead.over:
                lead.seconds[lead.use] = lead.seconds.get(lead.use, 0.0) + passed_s * len(lead.members)
        self._repeat_late_reports(control)
        if self._agents and chance(self._dice, faults.agent_dies):
            self._end_agent(list(self._agents.values())[pick(self._dice, len(self._agents))], exit_code=-9)
        if chance(self._dice, faults.lead_cut):
            until_s = self._at_s + pick(self._dice, _CUT_S_MAX)
            self._cut = _LeadCut(
                lead=next((lead for lead in self._leads if self._lives(lead)), None),
                until_s=until_s,
                mute_until_s=until_s if chance(self._dice, 0.5) else 0.0,
            )
        for agent in list(self._agents.values()):
            self._advance_agent(control, agent, faults)
        for lead in list(self._leads):
            if self._lives(lead):
                self._advance_lead(lead, faults)
                self._report(control, lead, faults)

    def _look(self, running: Mapping[AllocationId, AllocationSeen]) -> None:
        """Learns which agents live."""
        live: dict[tuple[AllocationId, NodeName], _Agent] = {}
        for name, order in sorted(self._cluster.orders.items()):
            if order.attempt != self.attempt or name not in running or running[name].phase is AllocationPhase.PENDING:
                continue
            for index, node in enumerate(order.nodes):
                if node in running[name].lost_nodes or (name, node) in self._gone:
                    continue
                agent = self._agents.get((name, node)) or _Agent(allocation=name, node=node, index=index, order=order)
                agent.stopping = running[name].phase is AllocationPhase.STOPPING
                live[name, node] = agent
        self._agents = live

    def _end_agent(self, agent: _Agent, *, exit_code: int) -> None:
        key = (agent.allocation, agent.node)
        self._gone.add(key)
        self._agents.pop(key, None)
        self._cluster.inner.end_agent(
            agent.allocation, agent.index, exit_code=exit_code, reason="killed" if exit_code < 0 else "ended"
        )

    def _lives(self, lead: _Lead) -> bool:
        return not lead.over and (lead.agent.allocation, lead.agent.node) in self._agents

    # ---------------------------------------------------------------- agents

    def _advance_agent(self, control: Control, agent: _Agent, faults: GangFaults) -> None:
        if (agent.allocation, agent.node) not in self._agents:
            return
        if agent.orders is None or not agent.orders.ready:
            self._register(control, agent, faults)
            return
        lead = self._lead_of(agent)
        if lead is not None and self._hear_each_other(agent, lead):
            agent.missed_s = None
            if agent.stopping and agent is not lead.agent:
                return  # It leaves; its engine ends it in a moment.
            if agent.orders.agent not in lead.members and lead.outcome is None:
                lead.members[agent.orders.agent] = tuple(
                    place for place in agent.orders.ranks if place.agent == agent.orders.agent
                )
                if lead.generation > 0:
                    self._resume(lead, lead.step, "an agent has come", TimeUse.RESIZE)
            return
        agent.missed_s = self._at_s if agent.missed_s is None else agent.missed_s
        if self._at_s - agent.missed_s >= self._lease_s and not agent.stopping:
            self._register(control, agent, faults, lost_epoch=agent.orders.epoch)

    def _lead_of(self, agent: _Agent) -> _Lead | None:
        assert agent.orders is not None
        found = [lead for lead in self._leads if lead.orders.epoch == agent.orders.epoch]
        return found[0] if found and self._lives(found[0]) else None

    def _hear_each_other(self, agent: _Agent, lead: _Lead) -> bool:
        return agent is lead.agent or lead is not self._cut.lead or self._at_s >= self._cut.until_s

    def _register(self, control: Control, agent: _Agent, faults: GangFaults, *, lost_epoch: int = 0) -> None:
        if chance(self._dice, faults.call_lost):
            return
        call = Register(allocation=agent.allocation, node=agent.node, address=f"{agent.node}:1", lost_epoch=lost_epoch)
        try:
            orders = control.register(call, control.caller(agent.order.token))
        except (Conflict, NotFound):
            self._end_agent(agent, exit_code=1)
            return
        except MainspringError:
            return
        if chance(self._dice, faults.reply_lost):
            return
        if agent.orders is None or orders.epoch != agent.orders.epoch:
            agent.missed_s = None
        agent.orders = orders
        led = any(lead.orders.epoch == orders.epoch for lead in self._leads)
        if orders.ready and orders.lead and not led:
            self._leads.append(
                _Lead(
                    agent=agent,
                    orders=orders,
                    generation=max((lead.generation for lead in self._leads), default=0),
                    step=self._saved,
                    furthest=max(orders.furthest_step, *(lead.furthest for lead in self._leads), -1),
                    began_s=self._at_s,
                )
            )

    # ---------------------------------------------------------------- leads

    def _advance_lead(self, lead: _Lead, faults: GangFaults) -> None:
        if lead.agent.stopping and lead.outcome is None:
            self._end(lead, AttemptState.CANCELLED, "stopped")
        if lead.outcome is not None or self._mourns(lead):
            return
        missing = {place.agent for place in lead.orders.ranks} - lead.members.keys()
        waits = self._at_s - lead.began_s <= _JOIN_LEASES * self._lease_s
        if missing and lead.use is TimeUse.STARTUP and waits:
            return
        if self._short(lead):
            if not waits:
                self._end(lead, AttemptState.LOST, "too few agents are left")
            return
        self._work(lead, faults)

    def _mourns(self, lead: _Lead) -> bool:
        """Drops agents that are gone or leave; returns whether the lead must wait for the controller's word on it."""
        heard: set[int] = set()
        leaving: set[int] = set()
        for agent in self._agents.values():
            if agent.orders is not None and agent.orders.epoch == lead.orders.epoch:
                if agent.stopping and agent is not lead.agent:
                    leaving.add(agent.orders.agent)
                elif self._hear_each_other(agent, lead):
                    heard.add(agent.orders.agent)
        lost = [number for number in lead.members if number not in heard and number not in leaving]
        left = [number for number in lead.members if number in leaving]
        for number in (*lost, *left):
            del lead.members[number]
        if lost:
            lead.unsure, lead.use = True, TimeUse.RECOVERY
        if (lost or left) and lead.generation > 0 and not self._short(lead):
            self._resume(lead, self._saved if lost else lead.step, "lost" if lost else "left", TimeUse.RECOVERY)
        if lost and self._short(lead):
            self._end(lead, AttemptState.LOST, "an agent was not heard of")
        elif left and lead.generation > 0 and self._short(lead):
            self._end(lead, AttemptState.CANCELLED, "nodes it needs are taken away")
        return lead.unsure

    def _short(self, lead: _Lead) -> bool:
        """Returns whether a role has too few ranks to run."""
        counts = Counter(place.role for own in lead.members.values() for place in own)
        return any(counts[role.role] < max(1, role.ranks_min) for role in lead.orders.roles)

    def _work(self, lead: _Lead, faults: GangFaults) -> None:
        if lead.generation == 0 or (lead.unstepped and not lead.told):
            self._resume(lead, self._saved, "the first", TimeUse.STARTUP)
        if lead.step >= 0 and chance(self._dice, faults.rank_dies):
            self._event(lead, RankExitedEvent(generation=lead.generation, rank=0, exit_code=-9, step=lead.step))
            self._resume(lead, max(-1, lead.step - 2), "a rank was killed", TimeUse.RECOVERY)
            return
        if chance(self._dice, faults.program_fails):
            self._end(lead, AttemptState.FAILED, "the program gave up")
            return
        lead.step += 1
        if lead.unstepped:
            lead.unstepped = False
            self._event(lead, GenerationSteppingEvent(generation=lead.generation, step=lead.step))
        lead.use = TimeUse.PRODUCTIVE if lead.step > lead.furthest else TimeUse.REPEATED
        if lead.step % _SAVE_STEPS == _SAVE_STEPS - 1:
            self._saved = lead.step
            self._event(lead, CheckpointDurableEvent(step=lead.step, size_bytes=1))
        if lead.step > lead.furthest:
            if lead.behind:
                lead.behind = False
                self._event(lead, CaughtUpEvent(generation=lead.generation, step=lead.step))
            lead.furthest = lead.step
        if lead.step >= self._steps:
            self._event(lead, ResultEvent(detail={"success": 1.0}))
            self._end(lead, AttemptState.SUCCEEDED, "every rank ended well")

    def _resume(self, lead: _Lead, step: int, cause: str, use: TimeUse) -> None:
        lead.generation += 1
        self._event(lead, GenerationPreparingEvent(generation=lead.generation, cause=cause))
        self._event(lead, GenerationResumedEvent(generation=lead.generation, step=step, source="arena"))
        lead.step, lead.use = step, use
        lead.unstepped = True
        lead.behind = lead.furthest >= 0

    def _end(self, lead: _Lead, outcome: AttemptState, reason: str) -> None:
        lead.outcome, lead.reason, lead.use = outcome, reason, TimeUse.WINDDOWN
        self._event(lead, LeadEndedEvent(outcome=outcome, reason=reason, step=lead.step))

    def _event(self, lead: _Lead, told: OfLeads) -> None:
        event = LeadEvent(
            sequence=len(lead.told) + 1,
            time_s=self._clock.now_s(),
            kind=told.kind,
            detail={"generation": lead.generation, "epoch": lead.orders.epoch, **told.detail},
        )
        lead.told.append(event)
        lead.unacknowledged.append(event)

    # ---------------------------------------------------------------- reports

    def _report(self, control: Control, lead: _Lead, faults: GangFaults) -> None:
        beat = Heartbeat(
            attempt=self.attempt,
            epoch=lead.orders.epoch,
            generation=lead.generation,
            step=lead.step,
            metrics={"loss": 1.0 / (2 + lead.step)},
            ranks=tuple(
                RankStatus(rank=place.rank, node=NodeName("n"), pid=place.rank + 1, alive=True, step=lead.step)
                for own in lead.members.values()
                for place in own
            ),
            events=tuple(lead.unacknowledged),
            outcome=lead.outcome,
            reason=lead.reason,
            seconds=dict(lead.seconds),
        )
        muted = lead is self._cut.lead and self._at_s < self._cut.mute_until_s
        if muted or chance(self._dice, faults.call_lost):
            return
        if chance(self._dice, faults.held_back) and len(self._held_back) < _HELD_BACK_MAX:
            self._held_back.append((lead.orders.agent, beat))
        reply = self._send(control, lead.orders.agent, beat)
        if reply is None or chance(self._dice, faults.reply_lost):
            return
        lead.unsure = False
        lead.unacknowledged = [event for event in lead.unacknowledged if event.sequence > reply.acknowledged]
        if reply.fenced or lead.outcome is not None:
            lead.over = True
            for agent in [agent for agent in self._agents.values() if self._follows(agent, lead)]:
                self._end_agent(agent, exit_code=0)

    def _follows(self, agent: _Agent, lead: _Lead) -> bool:
        own = agent.orders is not None and agent.orders.epoch == lead.orders.epoch
        return agent is lead.agent or (own and self._hear_each_other(agent, lead))

    def _send(self, control: Control, agent: int, beat: Heartbeat) -> HeartbeatReply | None:
        order = next(order for order in self._cluster.orders.values() if order.attempt == self.attempt)
        try:
            reply = control.heartbeat(beat, control.caller(order.token))
        except MainspringError:
            return None
        if not reply.fenced:
            self.acknowledged.setdefault(beat.epoch, set()).add(agent)
        return reply

    def _repeat_late_reports(self, control: Control) -> None:
        """Delivers an old report once more, at times long after its gang has gone."""
        if self._held_back and chance(self._dice, 0.3):
            self._send(control, *self._held_back.pop(pick(self._dice, len(self._held_back))))
