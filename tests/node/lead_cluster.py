"""A cluster in memory, on virtual time, whose agents speak the wire's messages with a real `Lead`.

Ranks keep step: one takes a step when all of its generation live and move. Lines have delays, keep order, and may be
cut; an agent that is cut off ends its ranks after a lease; a store and a controller may be away. What must hold is
asserted where it could break: see `_check_start`, and `lead_promises`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from mainspring.domain import wire
from mainspring.domain.ids import NodeName
from mainspring.domain.wire.events.leads import GenerationResumedEvent
from mainspring.node.lead import effects
from mainspring.node.lead.lead import Lead, Phase
from tests.node import lead_agents as world
from tests.node.lead_agents import Agent, Rank, places
from tests.node.lead_promises import Promises


class Cluster:
    """The attempt's world. `run` lets time pass; faults are methods."""

    def __init__(
        self,
        seed: int,
        told: wire.Orders,
        *,
        last: int = 10**9,
        reconnects: bool = True,
        repeats: float = 0.0,
        cost_s: float = 0.0,
    ) -> None:
        self.dice = np.random.default_rng(seed)
        self.now_s = 1_000.0
        self.told = told
        self.last = last
        self.reconnects = reconnects
        self.cost_s = cost_s  # What a snapshot and its copy each cost their node, beside what blocks ranks.
        self.repeats = repeats  # How often what an agent says arrives again, later and out of order.
        self.lead = Lead(told, self.instant)
        per_agent = len(told.ranks) // told.agents
        self.agents = {
            number: Agent(number=number, places=places(number, per_agent, len(told.ranks)))
            for number in range(told.agents)
        }
        self.lines = 0
        self.sent_s: dict[tuple[int, int], float] = {}
        self.durable: dict[int, int] = {}  # Step -> generation it was taken in.
        self.store_up = self.controller_up = True
        self.engine_sees = False  # Whether the controller is told of agents that have ended.
        self.events: list[wire.LeadEvent] = []
        self.manifests: list[effects.WriteManifest] = []
        self.promises = Promises()
        self.leave_orders: list[wire.LeaveAt] = []
        self.store_orders: list[wire.StoreStep] = []
        self.silent_stores = False  # Whether agents never answer them.
        self.trace: list[str] = []
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._numbered = 0
        self._failing: set[int] = set()
        self._every(world.TICK_S, lambda: self.feed(effects.Tick()))
        self._every(world.HEARTBEAT_S, self._heartbeat)
        self._every(world.STEP_S, self._step)
        self._every(world.PROGRESS_S, self._progress)
        for agent in self.agents.values():
            self.after(self.delay(1.0), partial(self.connect, agent))

    # ------------------------------------------------------------ time

    @property
    def instant(self) -> effects.Instant:
        return effects.Instant(now_s=1e9 + self.now_s, monotonic_s=self.now_s)

    def delay(self, most_s: float = 0.02) -> float:
        return float(self.dice.uniform(0.001, most_s))

    def after(self, seconds: float, do: Callable[[], object]) -> None:
        self._numbered += 1
        heapq.heappush(self._queue, (self.now_s + seconds, self._numbered, do))

    def _every(self, seconds: float, do: Callable[[], None]) -> None:
        def again() -> None:
            do()
            self.after(seconds, again)

        self.after(seconds, again)

    def run(self, seconds: float, *, until: Callable[[], bool] = lambda: False) -> bool:
        """Lets time pass; returns whether `until` came true."""
        end_s = self.now_s + seconds
        while self._queue[0][0] <= end_s:
            self.now_s, _, do = heapq.heappop(self._queue)
            do()
            if until():
                return True
        self.now_s = end_s
        return until()

    # ------------------------------------------------------------ the lead's side

    def feed(self, news: effects.News) -> None:
        if self.lead.over:
            return
        self.promises.learn(news)
        wanted = self.lead.handle(news, self.instant)
        taken = list(self.lead.events)
        self.lead.events.clear()
        for event in taken:
            self.trace.append(f"{self.now_s:.3f} {event.kind} {dict(event.detail)}")
        self.events += taken
        for effect in wanted:
            self._do(effect)

    def _do(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Tell(agent=number, message=message):
                if isinstance(message, wire.PrepareGeneration):
                    self.promises.check_choice(message)
                if isinstance(message, wire.LeaveAt):
                    self.leave_orders.append(message)
                agent = self.agents[number]
                if agent.line and not agent.cut:
                    self._send(agent, lambda: self._obey(agent, message), way=1)
            case effects.FindDurable():
                self.after(self.delay(0.1), self._find)
            case effects.StartCoordinators(generation=generation):
                self.after(0.05, lambda: self.feed(effects.CoordinatorsUp(generation=generation, addresses={})))
            case effects.WriteManifest():
                self.after(self.delay(0.1), partial(self._write, effect))

    def _find(self) -> None:
        if self.store_up:
            self.promises.durable_known = set(sorted(self.durable)[-3:])
        steps = tuple(sorted(self.durable)[-3:]) if self.store_up else None
        self.feed(effects.DurableSeen(steps=steps, reason="away", begins_from=self.told.begins_from))

    def _write(self, effect: effects.WriteManifest) -> None:
        if self.store_up:
            self.manifests.append(effect)
            self.durable[effect.step] = effect.generation
            self.promises.durable_known = set(sorted({*self.promises.durable_known, effect.step})[-3:])
        self.feed(effects.ManifestWritten(step=effect.step, size_bytes=1, failure="" if self.store_up else "away"))

    def _heartbeat(self) -> None:
        seconds = sum(self.lead.seconds(self.instant).values())
        assert seconds <= (self.now_s - 1_000.0) * len(self.agents) * (1 + 1e-9), "the ledger never books too much"
        sent_s = self.now_s
        gone = tuple(agent.number for agent in self.agents.values() if self.engine_sees and not agent.alive)
        if self.controller_up:
            self.after(self.delay(), lambda: self.feed(effects.Acknowledged(sent_s=sent_s, gone=gone)))

    # ------------------------------------------------------------ lines

    def _send(self, agent: Agent, do: Callable[[], None], *, way: int) -> None:
        line = agent.line
        at_s = max(self.now_s + self.delay(), self.sent_s.get((line, way), 0.0))
        self.sent_s[line, way] = at_s

        def arrive() -> None:
            if agent.line == line and agent.alive and not agent.cut:
                agent.heard_s = self.now_s
                do()

        self.after(at_s - self.now_s, arrive)

    def say(self, agent: Agent, message: wire.AgentToLead) -> None:
        if not agent.line or agent.cut:
            return
        self._send(agent, lambda: self.feed(effects.Said(agent=agent.number, message=message)), way=0)
        if self.dice.random() < self.repeats:
            line = agent.line
            self.after(self.delay(3.0), lambda: self._again(agent, line, message))

    def _again(self, agent: Agent, line: int, message: wire.AgentToLead) -> None:
        if agent.line == line and not agent.cut:
            self.feed(effects.Said(agent=agent.number, message=message))

    def connect(self, agent: Agent) -> None:
        if not agent.alive or agent.cut or agent.line:
            return
        self.lines += 1
        agent.line, agent.heard_s = self.lines, self.now_s
        self.feed(
            effects.Joined(
                agent=agent.number,
                node=NodeName(f"n{agent.number}"),
                address=f"10.0.0.{agent.number}:1",
                generation=agent.generation,
                places=agent.places,
                holdings=agent.holdings,
            )
        )
        if agent.leaving_s is not None:
            self.say(agent, wire.AgentLeaving(agent=agent.number, grace_s=max(0.0, agent.leaving_s - self.now_s)))
        if agent.prepared is not None:
            self.say(agent, agent.prepared)
        for rank in agent.ranks.values():
            self.say(agent, wire.RankStarted(generation=rank.generation, rank=rank.place.rank, pid=1))
        for exited in agent.exits.values():
            self.say(agent, exited)

    def hang_up(self, agent: Agent, *, again_s: float | None = 0.3) -> None:
        """Breaks an agent's line; it comes back after a while, or never."""
        if agent.line:
            agent.line = 0
            self.feed(effects.Left(agent=agent.number))
        if again_s is not None:
            self.after(again_s, lambda: self.connect(agent))

    # ------------------------------------------------------------ agents

    def _obey(self, agent: Agent, message: object) -> None:
        match message:
            case wire.PrepareGeneration():
                self._prepare(agent, message)
            case wire.StartRanks():
                self._start(agent, message)
            case wire.LeaveAt():
                for rank in agent.ranks.values():
                    if rank.generation == message.generation:
                        rank.leave_at, rank.then = message.step, message.then
            case wire.SnapshotPace():
                for rank in agent.ranks.values():
                    rank.every = message.every
            case wire.StoreStep():
                self._store(agent, message)
            case wire.DumpStacks():
                for rank in agent.ranks.values():
                    state, top = ("T", "a.py:1 work") if rank.stopped else ("S", "b.py:2 wait")
                    self.say(
                        agent,
                        wire.StacksDumped(
                            generation=message.generation, rank=rank.place.rank, process_state=state, top=top
                        ),
                    )
            case wire.EndAgent():
                agent.ranks = {}
                self.say(agent, wire.AgentDrained(agent=agent.number))
                if self.lead.phase in (Phase.RUNNING, Phase.PREPARING):
                    self.after(0.5, lambda: self.lose(agent))
            case _:
                pass

    def _prepare(self, agent: Agent, order: wire.PrepareGeneration) -> None:
        if order.generation < agent.generation:
            return
        if order.generation > agent.generation:
            agent.generation, agent.order, agent.started, agent.prepared = order.generation, order, False, None
            agent.ranks, agent.exits = {}, {}
            for held in (agent.own, agent.copies):
                for rank in held:
                    held[rank] = [one for one in held[rank] if one.step <= order.step]
        if agent.prepared is not None:
            self.say(agent, agent.prepared)
            return
        self.after(self.delay(0.3), lambda: self._ready(agent, order))

    def _ready(self, agent: Agent, order: wire.PrepareGeneration) -> None:
        if agent.generation != order.generation or not agent.alive:
            return
        reason, corrupt = "", (order.step, order.taken_in) in agent.damaged and order.source == "arena"
        if order.places and order.source == "arena":
            found = {
                one.role_rank
                for holder in order.holders
                for one in holder.holdings
                if self._reaches(agent, self.agents[holder.agent]) and one in self.agents[holder.agent].holdings
            }
            sizes = {one.role_size for holder in order.holders for one in holder.holdings}
            reason = "" if len(sizes) == 1 and len(found) == sizes.pop() else "a peer does not answer"
        elif order.places and order.source == "store" and not self.store_up:
            reason = "the store does not answer"
        ready = not reason and not corrupt
        answer = wire.GenerationPrepared(
            generation=order.generation, agent=agent.number, ready=ready, reason=reason or "bad bytes", corrupt=corrupt
        )
        agent.prepared = answer if ready else None
        self.say(agent, answer)

    def _reaches(self, one: Agent, other: Agent) -> bool:
        return one is other or (one.alive and other.alive and not one.cut and not other.cut)

    def _start(self, agent: Agent, message: wire.StartRanks) -> None:
        order = agent.order
        if order is None or agent.generation != message.generation or agent.started or agent.prepared is None:
            return
        agent.started = True
        for place in order.places:
            rank = Rank(place=place, generation=message.generation, step=order.step, every=message.snapshot_every)
            rank.told = order.step
            agent.ranks[place.rank] = rank
            self.say(agent, wire.RankStarted(generation=message.generation, rank=place.rank, pid=1))
            self.after(world.START_S + self.delay(0.2), partial(setattr, rank, "stepping", True))
        self._check_start(message.generation)

    def _check_start(self, generation: int) -> None:
        """No role rank lives twice, and none of an older generation lives beside one of a newer."""
        seats = [
            (rank.place.role, rank.place.role_rank)
            for agent in self.agents.values()
            for rank in agent.ranks.values()
            if rank.generation == generation
        ]
        assert len(seats) == len(set(seats)), f"two places hold one role rank in generation {generation}: {seats}"
        living = {rank.generation for agent in self.agents.values() for rank in agent.ranks.values()}
        assert living <= {generation}, f"ranks of generations {sorted(living)} live at once"

    def _store(self, agent: Agent, message: wire.StoreStep) -> None:
        self.store_orders.append(message)
        if self.silent_stores:
            return
        for rank, kept in sorted(agent.own.items()):
            mine = [one for one in kept if (one.step, one.generation) == (message.step, message.taken_in)]
            if not mine:
                continue
            answer: wire.AgentToLead = wire.StoreFailed(rank=rank, step=message.step, reason="away")
            if self.store_up:
                answer = wire.ShareStored(rank=rank, step=message.step, file=f"share-{rank}", size_bytes=1)
            self.after(self.delay(0.2), partial(self.say, agent, answer))

    # ------------------------------------------------------------ ranks

    @property
    def living(self) -> list[tuple[Agent, Rank]]:
        return [(agent, rank) for _, agent in sorted(self.agents.items()) for _, rank in sorted(agent.ranks.items())]

    def _step(self) -> None:
        generation = max((rank.generation for _, rank in self.living), default=0)
        gang = [(agent, rank) for agent, rank in self.living if rank.generation == generation]
        size = gang[0][1].place.role_size if gang else 0
        if not gang or generation in self._failing:
            return
        if len(gang) < size:
            if all(rank.stepping for _, rank in gang):
                self._failing.add(generation)
                self.after(world.NOTICE_S, lambda: self._bereft(generation))
            return
        if any(not rank.stepping or rank.stopped for _, rank in gang):
            return
        for agent, rank in gang:
            self.after(self.delay(0.05), partial(self._advance, agent, rank))

    def _advance(self, agent: Agent, rank: Rank) -> None:
        if agent.ranks.get(rank.place.rank) is not rank or rank.stopped or not agent.alive:
            return
        leave = rank.leave_at is not None and rank.step >= max(0, rank.leave_at)
        if not leave and rank.step < self.last:
            rank.step += 1
            leave = rank.leave_at is not None and rank.step >= rank.leave_at
        done = rank.step >= self.last
        if leave or done or rank.step % rank.every == 0:
            self._snapshot(agent, rank)
        if leave or done:
            self._report(agent, rank)
            code = 0 if done else wire.EXIT_PREEMPTED
            self._leave(agent, rank, "", None if rank.then is wire.Then.REJOIN and self.reconnects and leave else code)

    def _bereft(self, generation: int) -> None:
        """A peer is gone: those left fail in the collective they wait in."""
        for agent, rank in self.living:
            if rank.generation == generation and not rank.stopped:
                self._leave(agent, rank, "a peer has closed its connection", None if self.reconnects else 1)
        self._failing.discard(generation)

    def _leave(self, agent: Agent, rank: Rank, words: str, exit_code: int | None) -> None:
        number = rank.place.rank
        if agent.ranks.get(number) is not rank:
            return
        del agent.ranks[number]
        left: wire.RankExited | wire.RankLeft = wire.RankLeft(generation=rank.generation, rank=number, words=words)
        if exit_code is not None:
            left = wire.RankExited(generation=rank.generation, rank=number, exit_code=exit_code, last_words=words)
        if rank.generation == agent.generation:
            agent.exits[number] = left
            self.say(agent, left)

    def _snapshot(self, agent: Agent, rank: Rank) -> None:
        holding = rank.holding
        rank.blocked_s += world.BLOCKED_S
        kept = agent.own.setdefault(holding.rank, [])
        if holding not in kept:
            kept.append(holding)
            del kept[:-2]
        self.say(agent, wire.SnapshotTaken(holding=holding, cost_s=self.cost_s))
        peer = agent.order.peer if agent.order is not None else ""
        if peer:
            other = self.agents[int(peer.split(".")[3].split(":")[0])]
            self.after(self.delay(0.3), lambda: self._copy(agent, other, holding))

    def _copy(self, agent: Agent, other: Agent, holding: wire.Holding) -> None:
        if not self._reaches(agent, other) or agent is other or agent.generation != holding.generation:
            return
        if other.generation > holding.generation:
            return
        copy = replace(holding, copied=True)
        kept = other.copies.setdefault(holding.rank, [])
        kept.append(copy)
        del kept[:-2]
        self.say(other, wire.SnapshotTaken(holding=copy, cost_s=self.cost_s))

    def _progress(self) -> None:
        for agent, rank in self.living:
            self._report(agent, rank)
        for agent in self.agents.values():
            silent = agent.cut or not agent.line
            if agent.alive and not silent:
                agent.heard_s = self.now_s
            if agent.alive and silent and self.now_s - agent.heard_s > world.LEASE_S:
                for rank in list(agent.ranks.values()):
                    self._leave(agent, rank, "", -9)
            if agent.leaving_s is not None and self.now_s >= agent.leaving_s:
                self.lose(agent)

    def _report(self, agent: Agent, rank: Rank) -> None:
        if rank.stepping and rank.step > rank.told and rank.step >= 0:
            rank.told, blocked_s, rank.blocked_s = rank.step, rank.blocked_s, 0.0
            self.say(
                agent,
                wire.RankProgress(
                    generation=rank.generation,
                    rank=rank.place.rank,
                    step=rank.step,
                    time_s=self.now_s,
                    metrics={"loss": 1.0},
                    seconds={"snapshot": blocked_s, "data": 0.01},
                ),
            )

    # ------------------------------------------------------------ faults

    def kill(self, number: int, code: int = -9, words: str = "") -> None:
        """Ends a rank."""
        for agent, rank in self.living:
            if rank.place.rank == number:
                self._leave(agent, rank, words, code)

    def stop_process(self, number: int) -> None:
        """Stops a rank's process, as SIGSTOP does."""
        for _, rank in self.living:
            if rank.place.rank == number:
                rank.stopped = True

    def lose(self, agent: Agent) -> None:
        """A node dies, with all it holds."""
        if agent.alive:
            agent.alive, agent.ranks, agent.own, agent.copies = False, {}, {}, {}
            self.hang_up(agent, again_s=None)

    def cut_off(self, agent: Agent, seconds: float) -> None:
        """A node is cut off, but alive."""
        agent.cut = True
        self.after(self.delay(1.0), lambda: self.hang_up(agent, again_s=None))
        self.after(seconds, lambda: self.heal(agent))

    def heal(self, agent: Agent) -> None:
        agent.cut = False
        if agent.line:
            self.hang_up(agent)
        self.connect(agent)

    def leave(self, agent: Agent, grace_s: float) -> None:
        """A node is taken away on notice."""
        agent.leaving_s = self.now_s + grace_s
        self.say(agent, wire.AgentLeaving(agent=agent.number, grace_s=grace_s))

    def grow(self) -> Agent:
        """A node is added."""
        number = max(self.agents) + 1
        per_agent = len(self.agents[0].places)
        agent = Agent(number=number, places=places(number, per_agent, (number + 1) * per_agent))
        self.agents[number] = agent
        self.connect(agent)
        return agent

    def stop(self, grace_s: float) -> None:
        self.feed(effects.StopAsked(grace_s=grace_s))

    # ------------------------------------------------------------ what was seen

    def of_kind(self, kind: str) -> list[wire.Detail]:
        return [event.detail for event in self.events if event.kind == kind]

    def until(self, kind: str, seconds: float, count: int = 1) -> None:
        """Lets time pass until there are so many events of a kind."""
        assert self.run(seconds, until=lambda: len(self.of_kind(kind)) >= count), "\n".join(self.trace[-40:])

    def until_step(self, step: int, seconds: float = 600.0) -> None:
        assert self.run(seconds, until=lambda: self.lead.step >= step), "\n".join(self.trace[-40:])

    @property
    def resumed(self) -> list[tuple[object, object, object]]:
        return [(one["step"], one["source"], one["ranks"]) for one in self.of_kind(GenerationResumedEvent.kind)]
