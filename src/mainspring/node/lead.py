"""The lead's mind: declares generations, chooses what each resumes from, paces durable saves, decides the outcome.

A pure state machine: `handle` takes one piece of news and the time, and returns what must be done. It does no I/O and
reads no clock; `lead_host` does both. Every message may be repeated: agents say everything again when they rejoin.

    GATHERING -> (FINDING ->) PREPARING -> RUNNING -> STORING -> DRAINING -> OVER
                     ^          |   ^         |
                     +- WAITING-+   +---------+  a rank failed
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import final

from mainspring.checkpoint import KEEP_STEPS
from mainspring.domain import wire
from mainspring.domain.ids import NodeName
from mainspring.domain.life import AttemptState
from mainspring.domain.wire import EventKind
from mainspring.node.effects import (
    CoordinatorsUp,
    DurableSeen,
    Effect,
    FindDurable,
    Instant,
    Joined,
    Left,
    ManifestWritten,
    News,
    Said,
    StartCoordinators,
    StopAsked,
    Tell,
    Tick,
    WriteManifest,
)
from mainspring.node.progress import AgentSeen, Failures, Progress, RankSeen
from mainspring.node.saves import Saves

GATHER_LIMIT_S = 600.0  # Engines start all agents or none; past ten minutes one of them is not coming.
PREPARE_LIMIT_S = 1_800.0  # A node's share of a large checkpoint, 500 GB at 500 MB/s, takes 1,000 s.
STORE_LIMIT_S = 900.0  # The last save of an attempt: as above, with a margin, halved because a share is smaller.
DRAIN_LIMIT_S = 60.0  # Killing ranks takes at most the grace; hanging up takes none.
END_GRACE_S = 2.0  # Ranks that outlive the attempt's outcome have nothing left to save.
LOST_AFTER_LEASES = 1.5  # Agents kill their ranks after one lease; the lead waits longer, so no two sets live at once.
STORE_TRIES_MAX = 8  # With the waits below: four minutes of a store that does not answer while state is needed.
WAIT_S_MAX = 60.0
ARENA_STEPS_KNOWN = 2  # An arena keeps the newest snapshot and the one before.


class Phase(Enum):
    """Where the attempt stands, as the lead sees it."""

    GATHERING = "gathering"
    FINDING = "finding"
    WAITING = "waiting"
    PREPARING = "preparing"
    RUNNING = "running"
    STORING = "storing"
    DRAINING = "draining"
    OVER = "over"


@final
class Lead:
    """One attempt, led. Read `events`, `outcome`, `over` and `heartbeat` after each `handle`.

    Args:
        orders: The attempt's orders.
        now: When leading begins.
    """

    def __init__(self, orders: wire.Orders, now: Instant) -> None:
        self.events: list[wire.LeadEvent] = []
        self.outcome: AttemptState | None = None
        self.reason = ""
        self.generation = 0
        self.phase = Phase.GATHERING
        self._orders = orders
        self._now = now
        self._effects: list[Effect] = []
        self._deadline_s = now.monotonic_s + GATHER_LIMIT_S
        self._agents = {agent: AgentSeen(left_s=now.monotonic_s) for agent in range(orders.agents)}
        self._ranks = {place.rank: RankSeen(agent=place.agent) for place in sorted(orders.ranks, key=lambda p: p.rank)}
        self._durable: list[int] | None = None  # As many as the store keeps.
        self._passed_over: set[int] = set()
        self._resume_step, self._source = -1, ""
        self._addresses: Mapping[str, str] | None = None
        self._progress = Progress(reached=orders.furthest_step)
        self._failures = Failures(restarts_max=orders.restarts_max)
        self._cause = ""
        self._tries = 0
        self._stop_deadline_s: float | None = None
        self._saves = Saves(tuple(self._ranks))
        self._sequence = 0

    # ------------------------------------------------------------ what others read

    @property
    def over(self) -> bool:
        """Returns whether nothing is left to do but report the outcome."""
        return self.phase is Phase.OVER

    @property
    def step(self) -> int:
        """Returns the furthest step any rank has reported, -1 before the first."""
        return self._progress.furthest

    @property
    def metrics(self) -> Mapping[str, float]:
        """Returns the newest metrics of the lowest rank that reports any."""
        return next((rank.metrics for rank in self._ranks.values() if rank.metrics), {})

    @property
    def rank_status(self) -> tuple[wire.RankStatus, ...]:
        """Returns every rank as last seen."""
        return tuple(
            wire.RankStatus(
                rank=number,
                node=NodeName(self._agents[rank.agent].node),
                pid=rank.pid,
                alive=rank.pid > 0 and rank.exit_code is None,
                step=rank.step,
            )
            for number, rank in self._ranks.items()
        )

    # ------------------------------------------------------------ the one door

    def handle(self, news: News, now: Instant) -> tuple[Effect, ...]:
        """Takes one piece of news; returns what must be done, in order.

        Args:
            news: What happened.
            now: When.
        """
        self._now, self._effects = now, []
        match news:
            case Joined():
                self._joined(news)
            case Left(agent=agent):
                self._agents[agent].connected = False
                self._agents[agent].left_s = now.monotonic_s
            case Said():
                self._said(news.agent, news.message)
            case StopAsked():
                self._stop(news.grace_s)
            case DurableSeen():
                self._durable_seen(news)
            case CoordinatorsUp():
                if news.generation == self.generation:
                    self._addresses = news.addresses
            case ManifestWritten():
                self._manifest_written(news)
            case Tick():
                pass
        self._advance()
        return tuple(self._effects)

    def _said(self, agent: int, message: object) -> None:
        state = self._agents[agent]
        stale = isinstance(message, (wire.SnapshotTaken, wire.ShardsStored)) and (
            self.phase is Phase.PREPARING and not state.prepared and message.step > self._resume_step
        )
        if stale:
            return  # It belongs to a course of events that the new generation has left.
        match message:
            case wire.GenerationPrepared(generation=self.generation):
                self._prepared(agent, message)
            case wire.RankStarted(generation=self.generation) if self._of(agent, message.rank):
                self._ranks[message.rank].pid = message.pid
            case wire.RankExited(generation=self.generation) if self._of(agent, message.rank):
                self._exited(message)
            case wire.RankProgress(generation=self.generation) if self._of(agent, message.rank):
                self._progressed(message)
            case wire.RankProgress():  # What an older generation reached just before it was ended.
                self._progress.furthest = max(self._progress.furthest, message.step)
            case wire.RankResult() if self._of(agent, message.rank):
                if message.sequence > self._ranks[message.rank].results:
                    self._ranks[message.rank].results = message.sequence
                    self._event(EventKind.RESULT, **dict(message.values))
            case wire.SnapshotTaken() if self._of(agent, message.rank):
                self._hold(message.rank, message.step)
            case wire.ShardsStored() if self._of(agent, message.rank):
                self._saves.share(message)
            case wire.StoreFailed() if self._of(agent, message.rank):
                if self._saves.fail(message.step, self._now.monotonic_s):
                    self._event(EventKind.CHECKPOINT_FAILED, step=message.step, reason=message.reason)
            case wire.AgentDrained():
                self._drained(agent)
            case _:
                pass  # Old news of an older generation, or a newer peer's.

    def _of(self, agent: int, rank: int) -> bool:
        return rank in self._ranks and self._ranks[rank].agent == agent

    # ------------------------------------------------------------ agents

    def _joined(self, news: Joined) -> None:
        self._agents[news.agent].connected = True
        self._agents[news.agent].node = news.node
        for rank, steps in news.arena_steps.items():
            if self._of(news.agent, rank):
                self._ranks[rank].arena = []
                for step in sorted(steps):
                    self._hold(rank, step)
        match self.phase:
            case Phase.PREPARING:
                self._tell(news.agent, self._preparation())
            case Phase.RUNNING | Phase.STORING:
                self._tell(news.agent, self._preparation())
                self._tell(news.agent, self._start())
                if self._saves.step is not None:
                    self._tell(news.agent, wire.StoreStep(step=self._saves.step))
            case Phase.DRAINING | Phase.OVER:
                self._tell(news.agent, wire.EndAgent(grace_s=END_GRACE_S, reason=self.reason))
            case Phase.GATHERING | Phase.FINDING | Phase.WAITING:
                pass

    def _hold(self, rank: int, step: int) -> None:
        arena = self._ranks[rank].arena
        self._ranks[rank].arena = sorted({*arena, step})[-ARENA_STEPS_KNOWN:]

    def _drained(self, agent: int) -> None:
        self._agents[agent].drained = True
        if self.phase not in (Phase.DRAINING, Phase.OVER):
            self._lose(agent, "was told to stop by its engine")

    def _lose(self, agent: int, reason: str) -> None:
        self._event(EventKind.AGENT_LOST, agent=agent, node=self._agents[agent].node)
        self._end(AttemptState.LOST, f"agent {agent} {reason}", save=False)

    def _stop(self, grace_s: float) -> None:
        if self._stop_deadline_s is not None or self.outcome is not None:
            return
        self._stop_deadline_s = self._now.monotonic_s + grace_s
        if self.phase is not Phase.RUNNING:
            self._end(AttemptState.CANCELLED, "stopped before its ranks ran", save=False)

    # ------------------------------------------------------------ generations

    def _begin(self, cause: str) -> None:
        """Starts the next generation, from the newest step that can be had."""
        self.generation += 1
        self._cause = cause
        self._event(EventKind.GENERATION_PREPARING, generation=self.generation, cause=cause)
        self._choose()

    def _choose(self) -> None:
        arena = self._common_step()
        if self._durable is None and arena < 0:
            self.phase = Phase.FINDING
            self._effects.append(FindDurable())
            return
        stored = max(set(self._durable or ()) - self._passed_over, default=-1)
        self._resume_step = max(arena, stored)
        self._source = "" if self._resume_step < 0 else "arena" if arena >= stored else "store"
        self.phase = Phase.PREPARING
        self._deadline_s = self._now.monotonic_s + PREPARE_LIMIT_S
        self._addresses = None
        self._saves.rewind(self._resume_step)
        for rank in self._ranks.values():
            rank.pid, rank.exit_code = 0, None
            rank.arena = [step for step in rank.arena if step <= self._resume_step]
        self._effects.append(StartCoordinators(generation=self.generation))
        for number, agent in self._agents.items():
            agent.prepared = False
            self._tell(number, self._preparation())

    def _common_step(self) -> int:
        """Returns the newest step every rank's arena holds, or -1."""
        held = [set(rank.arena) for rank in self._ranks.values()]
        return max(set.intersection(*held), default=-1) if held else -1

    def _preparation(self) -> wire.PrepareGeneration:
        return wire.PrepareGeneration(generation=self.generation, step=self._resume_step, source=self._source)

    def _start(self) -> wire.StartRanks:
        masters = {role: place for agent in self._agents.values() for role, place in agent.masters.items()}
        return wire.StartRanks(generation=self.generation, coordinators=self._addresses or {}, masters=masters)

    def _durable_seen(self, news: DurableSeen) -> None:
        if self.phase is not Phase.FINDING:
            return
        if news.steps is None:
            self._wait(f"the object store does not answer: {news.reason}")
        else:
            self._durable, self._tries = list(news.steps), 0
            self._choose()

    def _wait(self, reason: str) -> None:
        """Tries again later: state exists or may exist, and starting without it would lose work."""
        self._tries += 1
        if self._tries > STORE_TRIES_MAX:
            self._end(AttemptState.LOST, reason, save=False)
            return
        self.phase = Phase.WAITING
        self._cause = reason
        self._deadline_s = self._now.monotonic_s + min(2.0 ** (self._tries - 1), WAIT_S_MAX)

    def _prepared(self, agent: int, message: wire.GenerationPrepared) -> None:
        if self.phase is not Phase.PREPARING:
            return
        if message.ready:
            self._agents[agent].prepared, self._agents[agent].masters = True, message.masters
            return
        reason = f"step {self._resume_step} on agent {agent}: {message.reason}"
        if message.corrupt:
            self._event(EventKind.CHECKPOINT_CORRUPT, step=self._resume_step, reason=message.reason)
        if self._source == "arena":
            for rank in self._ranks.values():
                if rank.agent == agent and self._resume_step in rank.arena:
                    rank.arena.remove(self._resume_step)
        elif message.corrupt:
            self._passed_over.add(self._resume_step)
        else:
            self._wait(reason)
            return
        self._begin(reason)

    # ------------------------------------------------------------ ranks

    def _progressed(self, message: wire.RankProgress) -> None:
        rank = self._ranks[message.rank]
        rank.step = message.step
        rank.metrics = message.metrics or rank.metrics
        if message.rank == min(self._ranks):
            self._progress.blocked_s += message.snapshot_blocked_s
        for kind in self._progress.stepped(message.step):
            self._event(kind, generation=self.generation, step=message.step)

    def _exited(self, message: wire.RankExited) -> None:
        rank = self._ranks[message.rank]
        if self.phase is not Phase.RUNNING or rank.exit_code is not None:
            return
        rank.exit_code = message.exit_code
        if message.exit_code == 0:
            return
        self._event(
            EventKind.RANK_EXITED,
            generation=self.generation,
            rank=message.rank,
            exit_code=message.exit_code,
            step=self.step,
            last_words=message.last_words,
        )
        if self._stop_deadline_s is not None:
            return
        verdict = self._failures.another(message, self.step)
        if verdict.outcome is None:
            self._begin(verdict.reason)
        else:
            self._end(verdict.outcome, verdict.reason)

    # ------------------------------------------------------------ saves

    def _start_save(self) -> None:
        step = self._common_step()
        if self._saves.start(step, self._now.monotonic_s):
            for number in self._agents:
                self._tell(number, wire.StoreStep(step=step))

    def _finish_save(self) -> None:
        stored = self._saves.finish()
        if stored is not None:
            replace = stored.step in self._passed_over
            self._effects.append(
                WriteManifest(step=stored.step, shards=stored.shards, state=stored.state, replace=replace)
            )

    def _manifest_written(self, news: ManifestWritten) -> None:
        if news.failure:
            self._saves.writing = False
            if self._saves.fail(news.step, self._now.monotonic_s):
                self._event(EventKind.CHECKPOINT_FAILED, step=news.step, reason=news.failure)
            return
        self._saves.end()
        self._durable = sorted({*(self._durable or ()), news.step})[-KEEP_STEPS:]
        self._passed_over.discard(news.step)
        self._event(EventKind.CHECKPOINT_DURABLE, step=news.step, size_bytes=news.size_bytes)

    # ------------------------------------------------------------ the end

    def _end(self, outcome: AttemptState, reason: str, *, save: bool = True) -> None:
        if self.outcome is not None:
            return
        self.outcome, self.reason = outcome, reason
        if save:
            self.phase = Phase.STORING
            self._deadline_s = self._now.monotonic_s + STORE_LIMIT_S
            return
        self._drain()

    def _drain(self) -> None:
        self.phase = Phase.DRAINING
        self._deadline_s = self._now.monotonic_s + DRAIN_LIMIT_S
        for number in self._agents:
            self._tell(number, wire.EndAgent(grace_s=END_GRACE_S, reason=self.reason))

    def _over(self) -> None:
        assert self.outcome is not None
        self.phase = Phase.OVER
        self._event(
            EventKind.LEAD_ENDED,
            outcome=self.outcome.value,
            reason=self.reason,
            step=self.step,
            snapshot_blocked_s=self._progress.blocked_s,
        )

    # ------------------------------------------------------------ what follows from where we are

    def _advance(self) -> None:
        if self.phase is Phase.GATHERING and all(agent.connected for agent in self._agents.values()):
            self._begin("the first")
        elif self.phase is Phase.GATHERING and self._late():
            missing = [str(number) for number, agent in self._agents.items() if not agent.connected]
            self._end(AttemptState.LOST, f"agents {', '.join(missing[:20])} never joined", save=False)
        elif self.phase is Phase.WAITING and self._late():
            self._begin(self._cause)
        elif self.phase is Phase.PREPARING and self._addresses is not None and self._all_prepared():
            self._run()
        elif self.phase is Phase.PREPARING and self._late():
            self._end(AttemptState.LOST, f"generation {self.generation} was not ready in time", save=False)
        if self.phase is Phase.RUNNING:
            self._watch_ranks()
        self._watch_agents()
        self._finish_save()
        if self.phase is Phase.RUNNING and self._saves.due(self._now.monotonic_s):
            self._start_save()
        if self.phase is Phase.STORING:
            self._start_save()
            if not self._saves.owes(self._common_step()) or self._late():
                self._drain()
        if self.phase is Phase.DRAINING and (self._all_drained() or self._late()) and not self._saves.writing:
            self._over()

    def _late(self) -> bool:
        return self._now.monotonic_s >= self._deadline_s

    def _all_prepared(self) -> bool:
        return all(agent.prepared for agent in self._agents.values())

    def _all_drained(self) -> bool:
        return all(agent.drained or not agent.connected for agent in self._agents.values())

    def _run(self) -> None:
        self.phase = Phase.RUNNING
        self._tries = 0
        self._progress.new_generation()
        self._event(
            EventKind.GENERATION_RESUMED, generation=self.generation, step=self._resume_step, source=self._source
        )
        for number in self._agents:
            self._tell(number, self._start())

    def _watch_ranks(self) -> None:
        codes = [rank.exit_code for rank in self._ranks.values()]
        if all(code == 0 for code in codes):
            self._end(AttemptState.SUCCEEDED, "every rank ended well")
        elif self._stop_deadline_s is not None:
            ended = all(code is not None for code in codes)
            if ended or self._now.monotonic_s >= self._stop_deadline_s:
                self._end(AttemptState.CANCELLED, "stopped" if ended else "stopped; ranks outlived the grace")

    def _watch_agents(self) -> None:
        if self.phase in (Phase.GATHERING, Phase.DRAINING, Phase.OVER):
            return
        patience_s = self._orders.lease_s * LOST_AFTER_LEASES
        for number, agent in self._agents.items():
            if not agent.connected and self._now.monotonic_s - agent.left_s > patience_s:
                if self.outcome is None:
                    self._lose(number, f"was not heard of for {patience_s:g} s")
                else:
                    self._drain()  # The outcome stands; only the last save is lost.
                return

    def _tell(self, agent: int, message: object) -> None:
        self._effects.append(Tell(agent=agent, message=message))

    def _event(self, kind: EventKind, **detail: str | int | float | bool) -> None:
        self._sequence += 1
        self.events.append(wire.LeadEvent(sequence=self._sequence, time_s=self._now.now_s, kind=kind, detail=detail))
