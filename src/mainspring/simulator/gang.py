"""The agents and the lead of one attempt, on virtual time: they register, report, fail and end as real ones would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from mainspring.control import Control
from mainspring.domain.errors import MainspringError
from mainspring.domain.fleet import AllocationPhase, AllocationSeen, LaunchOrder
from mainspring.domain.ids import AllocationId, AttemptId, ClusterName, NodeName
from mainspring.domain.life import AttemptState
from mainspring.domain.ports import Clock, Dice
from mainspring.domain.wire import EventKind, Heartbeat, HeartbeatReply, LeadEvent, Orders, RankStatus, Register
from mainspring.simulator.cluster import SimulatedCluster, chance, pick

_HELD_BACK_MAX = 8
_LEASE_S = 5.0
_SAVE_STEPS = 5


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
    """

    agent_dies: float = 0.0
    rank_dies: float = 0.0
    call_lost: float = 0.0
    reply_lost: float = 0.0
    held_back: float = 0.0
    program_fails: float = 0.0


@final
class Gang:
    """One attempt's agents.

    Args:
        attempt: The attempt.
        cluster_name: Where its allocations are.
        cluster: That cluster.
        clock: Virtual time.
        dice: Draw its faults.
        steps: How many steps its program takes.
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
    ) -> None:
        self.attempt = attempt
        self.cluster_name = cluster_name
        self.step = -1
        self.told: list[LeadEvent] = []
        self.generation = 0
        self.outcome: AttemptState | None = None
        self._cluster = cluster
        self._clock = clock
        self._dice = dice
        self._steps = steps
        self._orders: dict[int, Orders] = {}
        self._unacknowledged: list[LeadEvent] = []
        self._held_back: list[Heartbeat] = []
        self._furthest = -1
        self._reason = ""
        self._unstepped = True
        self._behind = False
        self._alone_since_s: float | None = None
        self._leaderless = False

    def advance(self, control: Control, running: Mapping[AllocationId, AllocationSeen], faults: GangFaults) -> None:
        """Lets one step of time happen to the gang.

        Args:
            control: The controller it reports to.
            running: What truly runs on its cluster.
            faults: What may go wrong.
        """
        live = {name: order for name, order in self._launched().items() if name in running}
        self._repeat_late_reports(control)
        if not live:
            return
        if chance(self._dice, faults.agent_dies):
            name = sorted(live)[pick(self._dice, len(live))]
            self._cluster.inner.end_agent(name, pick(self._dice, len(live[name].nodes)), exit_code=-9, reason="killed")
        stopping = any(running[name].phase is AllocationPhase.STOPPING for name in live)
        if stopping and self.outcome is None and self._led():
            self._end(AttemptState.CANCELLED, "stopped")
        if len(live) < len(self._launched()) or any(running[name].reason for name in live):
            self._mourn(live)
        self._register(control, live, faults)
        if self._led() and not self._leaderless:
            self._work(faults)
            self._report(control, live, faults)

    def _launched(self) -> dict[AllocationId, LaunchOrder]:
        return {name: order for name, order in self._cluster.orders.items() if order.attempt == self.attempt}

    def _led(self) -> bool:
        """Returns whether the lead has its orders and every agent of the attempt is said to be there."""
        return any(orders.ready and orders.lead for orders in self._orders.values())

    def _mourn(self, live: dict[AllocationId, LaunchOrder]) -> None:
        """Acts on the loss of some agents: a lead that lives gives the attempt up, agents without one end by lease."""
        if self._alone_since_s is None:
            self._alone_since_s = self._clock.monotonic_s()
            self._leaderless = chance(self._dice, 0.5)
        if not self._leaderless and self._led() and self.outcome is None:
            self._end(AttemptState.LOST, "an agent was not heard of")
        elif self._clock.monotonic_s() - self._alone_since_s > _LEASE_S:
            self._end_agents(live, exit_code=1)

    def _end_agents(self, live: dict[AllocationId, LaunchOrder], *, exit_code: int) -> None:
        for name, order in sorted(live.items()):
            for index in range(len(order.nodes)):
                self._cluster.inner.end_agent(name, index, exit_code=exit_code, reason=self._reason or "no lead")

    def _register(self, control: Control, live: dict[AllocationId, LaunchOrder], faults: GangFaults) -> None:
        for name, order in sorted(live.items()):
            for node in order.nodes:
                known = [one for one in self._orders.values() if one.ready]
                if len(known) == len(self._orders) > 0 and self._led() and len(known) == known[0].agents:
                    return
                if chance(self._dice, faults.call_lost):
                    continue
                orders = self._ask(control, name, order, node)
                if orders is not None and not chance(self._dice, faults.reply_lost):
                    self._orders[orders.agent] = orders

    def _ask(self, control: Control, name: AllocationId, order: LaunchOrder, node: NodeName) -> Orders | None:
        call = Register(allocation=name, node=node, address=f"{node}:1")
        try:
            return control.register(call, control.caller(order.token))
        except MainspringError:
            return None

    def _work(self, faults: GangFaults) -> None:
        if self.outcome is not None:
            return
        if self.generation == 0:
            self._furthest = next(one for one in self._orders.values() if one.lead).furthest_step
            self._resume(-1, "the first")
        if self.step >= 0 and chance(self._dice, faults.rank_dies):
            self._event(EventKind.RANK_EXITED, generation=self.generation, rank=0, exit_code=-9, step=self.step)
            self._resume(max(-1, self.step - 2), "a rank was killed")
            return
        if chance(self._dice, faults.program_fails):
            self._end(AttemptState.FAILED, "the program gave up")
            return
        first = self._unstepped
        self.step += 1
        if first:
            self._unstepped = False
            self._event(EventKind.GENERATION_STEPPING, generation=self.generation, step=self.step)
        if self.step % _SAVE_STEPS == _SAVE_STEPS - 1:
            self._event(EventKind.CHECKPOINT_DURABLE, step=self.step, size_bytes=1)
        if self.step > self._furthest:
            if self._behind:
                self._behind = False
                self._event(EventKind.CAUGHT_UP, generation=self.generation, step=self.step)
            self._furthest = self.step
        if self.step >= self._steps:
            self._event(EventKind.RESULT, success=1.0)
            self._end(AttemptState.SUCCEEDED, "every rank ended well")

    def _resume(self, step: int, cause: str) -> None:
        self.generation += 1
        self._event(EventKind.GENERATION_PREPARING, generation=self.generation, cause=cause)
        self._event(EventKind.GENERATION_RESUMED, generation=self.generation, step=step, source="arena")
        self.step = step
        self._unstepped = True
        self._behind = self._furthest >= 0

    def _end(self, outcome: AttemptState, reason: str) -> None:
        self.outcome, self._reason = outcome, reason
        self._event(EventKind.LEAD_ENDED, outcome=outcome.value, reason=reason, step=self.step, snapshot_blocked_s=0.1)

    def _event(self, kind: EventKind, **detail: str | int | float | bool) -> None:
        event = LeadEvent(sequence=len(self.told) + 1, time_s=self._clock.now_s(), kind=kind, detail=detail)
        self.told.append(event)
        self._unacknowledged.append(event)

    def _report(self, control: Control, live: dict[AllocationId, LaunchOrder], faults: GangFaults) -> None:
        orders = next(one for one in self._orders.values() if one.lead)
        beat = Heartbeat(
            attempt=self.attempt,
            epoch=orders.epoch,
            generation=self.generation,
            step=self.step,
            metrics={"loss": 1.0 / (2 + self.step)},
            ranks=tuple(
                RankStatus(rank=place.rank, node=NodeName("n"), pid=place.rank + 1, alive=True, step=self.step)
                for place in orders.ranks
            ),
            events=tuple(self._unacknowledged),
            outcome=self.outcome,
            reason=self._reason,
        )
        if chance(self._dice, faults.call_lost):
            return
        if chance(self._dice, faults.held_back) and len(self._held_back) < _HELD_BACK_MAX:
            self._held_back.append(beat)
        reply = self._send(control, beat)
        if reply is None or chance(self._dice, faults.reply_lost):
            return
        self._unacknowledged = [event for event in self._unacknowledged if event.sequence > reply.acknowledged]
        if reply.fenced or self.outcome is not None:
            self._end_agents(live, exit_code=0)

    def _send(self, control: Control, beat: Heartbeat) -> HeartbeatReply | None:
        order = next(iter(self._launched().values()))
        try:
            return control.heartbeat(beat, control.caller(order.token))
        except MainspringError:
            return None

    def _repeat_late_reports(self, control: Control) -> None:
        """Delivers an old report once more, at times long after its gang has gone."""
        if self._held_back and chance(self._dice, 0.3):
            self._send(control, self._held_back.pop(pick(self._dice, len(self._held_back))))
