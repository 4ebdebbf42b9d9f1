"""Gangs: the agents of all attempts, as engines start and end them, and what happens to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar, final

from mainspring.control import Control
from mainspring.domain import wire
from mainspring.domain.errors import MainspringError, Unavailable
from mainspring.domain.fleet import AllocationPhase, LaunchOrder
from mainspring.domain.ids import AllocationId, AttemptId, ClusterName, JobId, NodeName
from mainspring.simulator.nodes.agenda import Agenda, chance, pick, within
from mainspring.simulator.nodes.attempt import Controller, Program, SimulatedAttempt
from mainspring.simulator.nodes.devices import DeviceFaults
from mainspring.simulator.nodes.object_store import JobStore
from mainspring.simulator.nodes.parts import Agent, NodeClock
from mainspring.simulator.nodes.rare import Rare
from mainspring.simulator.nodes.releases import Upgrade, as_answered
from mainspring.simulator.proof.cluster import SimulatedCluster
from mainspring.simulator.proof.laws.hearing import Hearing
from mainspring.testing import SeededDice

_CUT_S_MAX = 90  # Several leases: long enough for another lead to be named, or for nobody to be heard, meanwhile.
_STORE_AWAY_S_MAX = 60
_LATE_BEAT_S_MAX = 60
_SKEW_S_MAX, _SKEW_LEAP_S_MAX = 30.0, 4_000.0  # A lease, and over every bound of lead and controller.
_UP_S_MAX = 10_000_000.0  # Four months.
_TOGETHER, _AGAIN_S_MAX = 0.3, 8.0  # Troubles come together: a line breaks too, another rank dies soon after.
_SLOW_COPIES = 0.1
_Answer = TypeVar("_Answer")
_BOOT_S_MAX = 8  # Agents of one allocation do not come at once.
_STEPS_MAX = 40  # Of most jobs:
_LONG, _LONG_STEPS_MAX = 0.4, 240  # some last for many leases.


@dataclass(frozen=True, slots=True, kw_only=True)
class GangFaults:
    """How often things go wrong in one attempt, each second.

    Args:
        skewed: A node's time of day is wrong, by seconds or past every bound; drawn once for each node.
        boot_hangs: An agent never comes to life, each time one begins; half of those do whose launch came late.
        agent_dies: One agent is killed.
        rank_dies: A rank is killed.
        rank_hangs: A rank stops, and lives on.
        program_fails: A rank ends badly, by a fault of the program.
        line_breaks: An agent's line to its lead breaks.
        agent_cut: No other agent hears one for a while; half the time no lead reaches the controller either, and half
            the time its line breaks at once.
        store_away: The object store does not answer for a while.
        memory_damaged: Bytes of an agent's snapshots are not what they were.
        store_damaged: Those of a durable step are not.
        call_lost: A register or heartbeat never arrives.
        reply_lost: It arrives, and its answer is lost.
        held_back: A heartbeat arrives now, and once more much later.
        answers_late: The answer to a heartbeat arrives seconds later.
        repeats: What an agent tells its lead is told again, late.
    """

    skewed: float = 0.0
    boot_hangs: float = 0.0
    agent_dies: float = 0.0
    rank_dies: float = 0.0
    rank_hangs: float = 0.0
    program_fails: float = 0.0
    line_breaks: float = 0.0
    agent_cut: float = 0.0
    store_away: float = 0.0
    memory_damaged: float = 0.0
    store_damaged: float = 0.0
    call_lost: float = 0.0
    reply_lost: float = 0.0
    held_back: float = 0.0
    answers_late: float = 0.0
    repeats: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nodes:
    """What differs from node to node, and from time to time."""

    upgrade: Upgrade
    devices: DeviceFaults


@final
class _Calls(Controller):
    """One attempt's calls to the controller: lost, answered in vain, late and twice, or cut off."""

    def __init__(self, gangs: Gangs, attempt: AttemptId, cluster: ClusterName, luck: SeededDice) -> None:
        self.cluster = cluster
        self.cut_until_s = 0.0
        self._attempt = attempt
        self._gangs = gangs
        self._luck = luck

    def register(self, call: wire.Register, token: str) -> wire.Orders:
        """Registers, where the call arrives."""
        control = self._arrive("register")
        orders = self._gangs.answered(control.register(call, control.entered(token, attempt=self._attempt)))
        self._gangs.hearing.named(orders, self._gangs.agenda.now_s)
        self._return("register")
        return orders

    def heartbeat(self, beat: wire.Heartbeat, token: str, *, newer: bool) -> wire.HeartbeatReply:
        """Reports, where the call arrives."""
        control, gangs = self._arrive("heartbeat"), self._gangs
        if any(event.time_s > gangs.agenda.clock.now_s() for event in beat.events):
            gangs.seen[Rare.FROM_AHEAD] += 1
        if chance(self._luck, gangs.faults.held_back):
            delay_s = float(pick(self._luck, _LATE_BEAT_S_MAX))
            gangs.agenda.after(delay_s, lambda: gangs.beat_again(beat, token, newer=newer))
        reply = control.heartbeat(beat, control.entered(token, attempt=self._attempt), newer=newer)
        reply = gangs.answered(reply)
        if not reply.fenced:
            gangs.hearing.heard(beat, gangs.agenda.now_s)
        self._return("heartbeat")
        return reply

    def _arrive(self, call: str) -> Control:
        gangs = self._gangs
        cut = gangs.is_cut(self.cluster) or gangs.agenda.now_s < self.cut_until_s
        if cut or chance(self._luck, gangs.faults.call_lost):
            raise Unavailable(call, got="no answer")
        return gangs.control()

    def _return(self, call: str) -> None:
        if chance(self._luck, self._gangs.faults.reply_lost):
            raise Unavailable(call, got="no answer, though it was heard")


@final
class Gangs:
    """All agents of one world.

    Args:
        control: Returns the controller that a call reaches now.
        is_cut: Returns whether calls from a cluster reach none.
        say: Writes a line of the trace.
    """

    def __init__(
        self,
        seed: int,
        agenda: Agenda,
        *,
        control: Callable[[], Control],
        is_cut: Callable[[ClusterName], bool],
        say: Callable[[str], None],
        seen: Counter[Rare],
    ) -> None:
        self.faults = GangFaults()
        self.agenda = agenda
        self.control = control
        self.is_cut = is_cut
        self.attempts: dict[AttemptId, SimulatedAttempt] = {}
        self.stores: dict[str, JobStore] = {}
        self.hearing = Hearing()
        self._say = say
        self.seen = seen
        self._seed = seed
        self._hurry = False
        self._luck = SeededDice(seed, "object stores")
        self._nodes = _Nodes(upgrade=Upgrade(seed), devices=DeviceFaults(seed))
        self._agents: dict[tuple[AllocationId, NodeName], Agent] = {}
        self._calls: dict[AttemptId, _Calls] = {}

    def beat_again(self, beat: wire.Heartbeat, token: str, *, newer: bool) -> None:
        """Delivers an old report once more, perhaps long after its attempt has gone."""
        control = self.control()
        try:
            reply = control.heartbeat(beat, control.entered(token, attempt=beat.attempt), newer=newer)
        except MainspringError:
            return
        if reply.fenced:
            self.seen[Rare.REPORT_LATE] += 1
        else:
            self.hearing.heard(beat, self.agenda.now_s)

    @property
    def clusters(self) -> Mapping[AttemptId, ClusterName]:
        """Returns where attempts came to life."""
        return {name: calls.cluster for name, calls in self._calls.items()}

    def answered(self, answer: _Answer) -> _Answer:
        """Returns what an agent reads of a server's answer, which may be of the next release."""
        if not self._nodes.upgrade.server.states(self.agenda.now_s):
            return answer
        self.seen[Rare.SERVER_NEWER] += 1
        return as_answered(answer)

    # ------------------------------------------------------------ as engines have it

    def look(self, name: ClusterName, cluster: SimulatedCluster) -> None:
        """Brings agents to life, tells them to stop, and ends them, as their engine does."""
        running = cluster.running()
        for allocation, order in sorted(cluster.orders.items()):
            seen = running.get(allocation)
            for index, node in enumerate(order.nodes):
                agent = self._agents.get((allocation, node))
                lives = seen is not None and seen.phase is not AllocationPhase.PENDING and node not in seen.lost_nodes
                if agent is None and lives:
                    self._begin(name, cluster, order, index)
                elif agent is not None and agent.alive and not lives:
                    self.attempts[order.attempt].lose(agent)
                elif agent is None or agent.hung or seen is None:
                    continue
                elif seen.phase is AllocationPhase.STOPPING:
                    self.attempts[order.attempt].stop(agent, cluster.inner.grace_left_s(allocation))

    def _begin(self, name: ClusterName, cluster: SimulatedCluster, order: LaunchOrder, index: int) -> None:
        attempt = self.attempts.get(order.attempt)
        if attempt is None:
            self._say(f"{order.attempt} comes to life on {name}")
            attempt = self.attempts[order.attempt] = self._new(name, cluster, order)
        agent = Agent(
            allocation=order.allocation,
            node=order.nodes[index],
            index=index,
            address=f"{order.nodes[index]}.{order.allocation}:1",
            clock=self._clock(name, order.nodes[index]),
            newer=self._nodes.upgrade.of(f"{order.nodes[index]} of {name}"),
            devices=self._nodes.devices.of(name, order.nodes[index]),
            token=order.token,
        )
        self._agents[order.allocation, agent.node] = agent
        luck = attempt.luck
        if chance(luck, max(self.faults.boot_hangs, 0.5 * (order.allocation in cluster.late))):
            self.seen[Rare.BOOT_HUNG] += 1
            agent.hung = True
            return
        delay_s = float(pick(luck, _BOOT_S_MAX)) if chance(luck, 0.3) else within(luck, 0.0, 1.0)
        self.agenda.after(delay_s, lambda: attempt.add(agent) if agent.alive else None)

    def _clock(self, name: ClusterName, node: NodeName) -> NodeClock:
        """Returns a node's clocks: machines have been up for as long as they have, and who sets their time may err."""
        luck = SeededDice(self._seed, f"clocks of {node} of {name}")
        most_s = _SKEW_S_MAX if chance(luck, 0.7) else _SKEW_LEAP_S_MAX
        ahead_s = within(luck, -most_s, most_s) if chance(luck, self.faults.skewed) else 0.0
        return NodeClock(ahead_s=ahead_s, up_s=within(luck, 0.0, _UP_S_MAX))

    def _new(self, name: ClusterName, cluster: SimulatedCluster, order: LaunchOrder) -> SimulatedAttempt:
        luck, of_job = SeededDice(self._seed, f"gang {order.attempt}"), SeededDice(self._seed, f"job {order.job}")
        calls = self._calls[order.attempt] = _Calls(self, order.attempt, name, luck)
        long = chance(of_job, _LONG) and not self._hurry
        last = 2 + pick(of_job, _LONG_STEPS_MAX if long else _STEPS_MAX)

        def ended(agent: Agent, exit_code: int, reason: str) -> None:
            cluster.inner.end_agent(agent.allocation, agent.index, exit_code=exit_code, reason=reason)

        made = SimulatedAttempt(
            self.agenda,
            luck,
            calls,
            self.stores.setdefault(order.job, JobStore()),
            Program(last=last, reconnects=chance(of_job, 0.5), step_s=within(of_job, 0.3, 1.5)),
            ended=ended,
            seen=self.seen,
        )
        made.ranks.slow_copies = _SLOW_COPIES
        made.checks.every = self._nodes.devices.check_every(JobId(order.job))
        made.checks.repeats = self._nodes.devices.repeats(JobId(order.job))
        return made

    # ------------------------------------------------------------ what happens to them

    def mischief(self) -> None:
        """Lets the world do its worst to every attempt for a second."""
        for name, attempt in sorted(self.attempts.items()):
            if attempt.living:
                self._harm(name, attempt)
        for _, store in sorted(self.stores.items()):
            self._harm_store(store)

    def _harm(self, name: AttemptId, attempt: SimulatedAttempt) -> None:
        faults, luck, agents = self.faults, attempt.luck, attempt.living
        attempt.links.repeats, attempt.links.answers_late = faults.repeats, faults.answers_late
        agent = agents[pick(luck, len(agents))]
        ranks = attempt.ranks.living
        if ranks and chance(luck, faults.rank_dies):
            self._kill_rank(attempt)
            if chance(luck, _TOGETHER):
                attempt.links.close(agent)
            if chance(luck, _TOGETHER):
                self.agenda.after(within(luck, 1.0, _AGAIN_S_MAX), lambda: self._kill_rank(attempt))
        elif ranks and chance(luck, faults.program_fails):
            attempt.ranks.leave(*ranks[pick(luck, len(ranks))], "ValueError: a bad batch", 1)
        elif ranks and chance(luck, faults.rank_hangs):
            rank = ranks[pick(luck, len(ranks))][1]
            rank.stopped = rank.reported  # Nothing tells a program that hangs before from one that compiles for long.
        if chance(luck, faults.line_breaks):
            attempt.links.close(agent)
        if chance(luck, faults.agent_cut):
            if chance(luck, 0.5):  # Its lead goes on, and perhaps without it.
                agent = next((one for one in agents if one.ranks and one.leads is None), agent)
            agent.cut_until_s = self.agenda.now_s + pick(luck, _CUT_S_MAX)
            if chance(luck, 0.5):
                self._calls[name].cut_until_s = agent.cut_until_s
            if chance(luck, 0.5):
                attempt.links.close(agent)
        if chance(luck, faults.memory_damaged):
            agent.damage()
        if chance(luck, faults.agent_dies):
            attempt.end_agent(agent, -9, "killed")
        self._nodes.devices.harm(attempt)

    def _kill_rank(self, attempt: SimulatedAttempt) -> None:
        ranks, luck = attempt.ranks.living, attempt.luck
        if ranks and not self._hurry:
            attempt.ranks.leave(*ranks[pick(luck, len(ranks))], "", -1 - pick(luck, 30))

    def finish(self, attempt: AttemptId) -> None:
        """Lets an attempt's program come to its end early, if it runs: nobody knows how long one runs."""
        if attempt in self.attempts:
            self.attempts[attempt].ranks.finish()

    def _harm_store(self, store: JobStore) -> None:
        luck = self._luck
        if store.up and chance(luck, self.faults.store_away):
            store.up = False
            self.agenda.after(float(pick(luck, _STORE_AWAY_S_MAX)), lambda: _back(store))
        if store.steps and chance(luck, self.faults.store_damaged):
            store.damaged.add(store.steps[0])

    def heal(self) -> None:
        """Ends what would go on by itself once faults stop, and lets programs come to their ends soon."""
        self._hurry = True
        for _, attempt in sorted(self.attempts.items()):
            attempt.ranks.finish()
            for agent in attempt.agents:
                agent.cut_until_s = 0.0
        for calls in self._calls.values():
            calls.cut_until_s = 0.0
        for store in self.stores.values():
            store.up = True
        self._nodes.devices.mend()


def _back(store: JobStore) -> None:
    store.up = True
