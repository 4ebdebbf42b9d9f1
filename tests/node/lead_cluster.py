"""A simulated attempt as tests of the lead want it: agents by number, and what the newest lead has told.

What must hold is asserted where it could break: see `simulator.nodes`, and `lead_controller`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from mainspring.checkpoint import Claim
from mainspring.domain import wire
from mainspring.domain.ids import AllocationId, NodeName
from mainspring.domain.wire.events.leads import GenerationResumedEvent
from mainspring.node.lead import effects
from mainspring.node.lead.lead import Lead
from mainspring.simulator.nodes.agenda import Agenda, within
from mainspring.simulator.nodes.attempt import Program, SimulatedAttempt
from mainspring.simulator.nodes.leading import SimulatedLead
from mainspring.simulator.nodes.object_store import Content, JobStore, stored
from mainspring.simulator.nodes.parts import Agent, Rank
from mainspring.simulator.nodes.rare import Rare
from mainspring.testing import FakeClock, SeededDice
from tests.node.lead_agents import STEP_S
from tests.node.lead_controller import StandInController

BEGAN_S = 1_000.0
FORM_S_MAX = 5.0  # Agents look around once a second.
EARLIER = Claim(number=0, epoch=1)  # The job's attempt before this one.

Message = TypeVar("Message", bound=wire.LeadToAgent)


class Cluster:
    """One attempt, whose first lead has just begun. `run` lets time pass; faults are methods."""

    def __init__(
        self,
        seed: int,
        told: wire.Orders,
        *,
        last: int = 10**9,
        reconnects: bool = True,
        repeats: float = 0.0,
        cost_s: float = 0.0,
        store: JobStore | None = None,
    ) -> None:
        self.agenda = Agenda(FakeClock())
        self.controller = StandInController(told, self.agenda, self._gone)
        self.engine_sees = False  # Whether the controller is told of agents that have ended.
        self.agents: dict[int, Agent] = {}
        self.seen: Counter[Rare] = Counter()
        self.attempt = SimulatedAttempt(
            self.agenda,
            SeededDice(seed, "attempt"),
            self.controller,
            store or JobStore(),
            Program(last=last, reconnects=reconnects, step_s=STEP_S),
            ended=lambda agent, exit_code, reason: None,
            seen=self.seen,
        )
        self.store, self.ranks = self.attempt.store, self.attempt.ranks
        self.store.slow = 0.0
        self.attempt.links.repeats, self.ranks.cost_s = repeats, cost_s
        self._ranks = len(told.ranks)
        self._began_s = 0.0
        for _ in range(told.agents):
            self.grow()
        assert self.run(FORM_S_MAX, until=lambda: bool(self.leads))
        self._began_s = self.agenda.now_s

    def _gone(self) -> tuple[int, ...]:
        return tuple(number for number, agent in self.agents.items() if self.engine_sees and not agent.alive)

    # ------------------------------------------------------------ time

    @property
    def now_s(self) -> float:
        return BEGAN_S + self.agenda.now_s - self._began_s

    @property
    def instant(self) -> effects.Instant:
        return effects.Instant(now_s=self.agenda.clock.now_s(), monotonic_s=self.agenda.now_s)

    def after(self, seconds: float, do: Callable[[], object]) -> None:
        self.agenda.after(seconds, do)

    def run(self, seconds: float, *, until: Callable[[], bool] = lambda: False) -> bool:
        """Lets time pass; returns whether `until` came true."""
        return self.agenda.run(seconds, until=until)

    def until(self, kind: str, seconds: float, count: int = 1) -> None:
        """Lets time pass until the newest lead has told of so many events of a kind."""
        assert self.run(seconds, until=lambda: len(self.of_kind(kind)) >= count), "\n".join(self.trace[-40:])

    def until_step(self, step: int, seconds: float = 600.0) -> None:
        assert self.run(seconds, until=lambda: self.lead.step >= step), "\n".join(self.trace[-40:])

    def until_led(self, *, epoch: int, seconds: float) -> None:
        """Lets time pass until there is a lead of an epoch."""
        assert self.run(seconds, until=lambda: self.leads[-1].orders.epoch >= epoch), "\n".join(self.trace[-40:])

    # ------------------------------------------------------------ the lead

    @property
    def leads(self) -> list[SimulatedLead]:
        return self.attempt.leads

    @property
    def lead(self) -> Lead:
        """Returns the newest."""
        return self.leads[-1].lead

    @property
    def done(self) -> bool:
        """Returns whether the controller knows how the attempt ended."""
        return self.leads[-1].done

    def feed(self, news: effects.News) -> None:
        self.leads[-1].feed(news)

    def stop(self, grace_s: float) -> None:
        self.attempt.stop(self.leads[-1].agent, grace_s)

    @property
    def events(self) -> list[wire.LeadEvent]:
        """Returns what the newest lead has told."""
        return self.leads[-1].told

    def of_kind(self, kind: str) -> list[wire.Detail]:
        return [event.detail for event in self.events if event.kind == kind]

    @property
    def resumed(self) -> list[tuple[object, object, object]]:
        return [(one["step"], one["source"], one["ranks"]) for one in self.of_kind(GenerationResumedEvent.kind)]

    @property
    def trace(self) -> list[str]:
        told = [(lead.orders.epoch, event) for lead in self.leads for event in lead.told]
        return [f"{event.time_s:.3f} {epoch} {event.kind} {dict(event.detail)}" for epoch, event in told]

    @property
    def manifests(self) -> list[effects.WriteManifest]:
        return [manifest for lead in self.leads for manifest in lead.manifests]

    @property
    def leave_orders(self) -> list[wire.LeaveAt]:
        return self._told(wire.LeaveAt)

    @property
    def store_orders(self) -> list[wire.StoreStep]:
        return self._told(wire.StoreStep)

    def _told(self, kind: type[Message]) -> list[Message]:
        told = [effect.message for effect in self.leads[-1].effects if isinstance(effect, effects.Tell)]
        return [message for message in told if isinstance(message, kind)]

    # ------------------------------------------------------------ the store

    def save_before(self, *steps: int) -> None:
        """Makes steps durable, as an earlier attempt did."""
        for step in steps:
            content, shares = Content("earlier", step), []
            for rank in range(self._ranks):
                shares.append(stored(rank, content, self.store.keep(EARLIER, generation=1, rank=rank, content=content)))
            manifest = effects.WriteManifest(
                step=step, generation=1, parent_step=-1, begins_from="", shares=tuple(shares), state={}, replace=False
            )
            assert self.store.commit(manifest, ranks={self._ranks})

    # ------------------------------------------------------------ ranks

    @property
    def living(self) -> list[tuple[Agent, Rank]]:
        return self.ranks.living

    def kill(self, number: int, code: int = -9, words: str = "") -> None:
        """Ends a rank."""
        for agent, rank in self.living:
            if rank.place.rank == number:
                self.ranks.leave(agent, rank, words, code)

    def stop_process(self, number: int) -> None:
        """Stops a rank's process, as SIGSTOP does."""
        for _, rank in self.living:
            if rank.place.rank == number:
                rank.stopped = True

    # ------------------------------------------------------------ agents

    def lose(self, agent: Agent) -> None:
        """A node dies, with all it holds, and the lead if that is there."""
        self.attempt.lose(agent)

    def cut_off(self, agent: Agent, seconds: float, *, controller: bool = False, silent: bool = False) -> None:
        """A node is cut off from the others, perhaps from the controller too, but alive.

        Its line breaks within a second; a `silent` one is given up by both its ends after a lease.
        """
        agent.cut_until_s = self.agenda.now_s + seconds
        if controller:
            self.controller.cut_until_s[agent.token] = agent.cut_until_s
        if not silent:
            self.after(within(self.attempt.luck, 0.0, 1.0), lambda: self.attempt.links.close(agent))

    def heal(self, agent: Agent) -> None:
        agent.cut_until_s = 0.0
        self.controller.cut_until_s.pop(agent.token, None)

    def hang_up(self, agent: Agent, *, again_s: float = 0.0) -> None:
        """Breaks an agent's line; it is back within a second after a while in which the agent reaches no other."""
        self.attempt.links.close(agent)
        agent.cut_until_s = max(agent.cut_until_s, self.agenda.now_s + again_s)

    def leave(self, agent: Agent, grace_s: float) -> None:
        """A node is taken away on notice."""
        self.attempt.stop(agent, grace_s)
        self.after(grace_s, lambda: self.lose(agent))

    def grow(self) -> Agent:
        """A node is added."""
        number = len(self.agents)
        node = NodeName(f"n{number}")
        agent = Agent(
            allocation=AllocationId("a"), node=node, index=number, address=f"10.0.0.{number}:1", token=str(node)
        )
        self.agents[number] = agent
        self.attempt.add(agent)
        return agent
