"""The lead's state machine: declares generations, chooses where each resumes and who runs in it, decides the outcome.

Pure: `handle` takes one piece of news and the time, and returns what must be done; `lead_host` does it. Parts keep
their state and answer with decisions (`Beginning`, `Ending`, `PlannedChange`), which are followed here. Every message
may be repeated: agents say everything again when they rejoin.

    GATHERING -> (FINDING ->) PREPARING -> RUNNING -> STORING -> DRAINING -> OVER
                     ^          |   ^         |
                     +- WAITING-+   +---------+  a rank failed, an agent is lost, or a planned change
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from mainspring.domain import wire
from mainspring.domain.goodput import TimeUse
from mainspring.domain.life import AttemptState
from mainspring.domain.wire.events import leads
from mainspring.node.lead import effects
from mainspring.node.lead.changes import PlannedChange, PlannedChanges
from mainspring.node.lead.holdings import Holdings
from mainspring.node.lead.members import Members
from mainspring.node.lead.outbox import Beginning, Ending, Outbox, Phase
from mainspring.node.lead.preparation import Preparation
from mainspring.node.lead.resume import Resumption
from mainspring.node.lead.roster import Roster, names
from mainspring.node.lead.running import RunningGeneration
from mainspring.node.lead.saves import Saves

GATHER_LIMIT_S = 600.0  # Engines start all agents or none; past ten minutes one of them is not coming.
GATHER_LEASES = 4.0  # Agents have their orders within a lease or two of the lead; those that take longer join later.
PREPARE_LIMIT_S = 1_800.0  # A node's share of a large checkpoint, 500 GB at 500 MB/s, takes 1,000 s.
STORE_LIMIT_S = 900.0  # The last save of an attempt: as above, with a margin, halved because a share is smaller.
DRAIN_LIMIT_S = 60.0  # Killing ranks takes at most the grace; hanging up takes none.
END_GRACE_S = 2.0  # Ranks that outlive the attempt's outcome have nothing left to save.
LOST_AFTER_LEASES = 1.5  # Agents kill their ranks after one lease; the lead waits longer, so no two sets live at once.
LEFT_GRACE_S = 2.0  # An agent that may go has no ranks left.


@final
class Lead:
    """One attempt, led. Read `events`, `outcome`, `over` and what heartbeats tell after each `handle`."""

    def __init__(self, orders: wire.Orders, now: effects.Instant) -> None:
        self.generation, self.phase = orders.generation, Phase.GATHERING
        self._lease_s = orders.lease_s
        self._outbox = Outbox(now)
        self._roster = Roster({place.agent for place in orders.ranks}, now_s=now.monotonic_s, busy=orders.epoch > 1)
        self._members = Members(orders.roles, orders.ranks)
        self._holdings = Holdings(self._members.roles)
        self._preparation: Preparation | None = None
        self._running = RunningGeneration(orders, self._members, self._roster, self._outbox)
        self._changes = PlannedChanges(self._roster, self._members)
        self._resumption, self._saves = Resumption(), Saves()
        self._ending: Ending | None = None
        self._cause, self._deadline_s = "", now.monotonic_s

    # ------------------------------------------------------------ what others read

    @property
    def events(self) -> list[wire.LeadEvent]:
        """Returns the events not taken yet; whoever takes them clears the list."""
        return self._outbox.events

    @property
    def outcome(self) -> AttemptState | None:
        """Returns how the attempt ends, None while that is open."""
        return self._ending.outcome if self._ending is not None else None

    @property
    def reason(self) -> str:
        """Returns why it ends, for people."""
        return self._ending.reason if self._ending is not None else ""

    @property
    def over(self) -> bool:
        """Returns whether nothing is left to do but report the outcome."""
        return self.phase is Phase.OVER

    @property
    def step(self) -> int:
        """Returns the furthest step any rank has reported, -1 before the first."""
        return self._running.step

    @property
    def metrics(self) -> Mapping[str, float]:
        """Returns the newest metrics of the lowest rank that reports any."""
        return self._running.metrics

    @property
    def rank_status(self) -> tuple[wire.RankStatus, ...]:
        """Returns every place as last seen, but those whose nodes were taken away and that have left."""
        return self._running.status

    @property
    def at_risk(self) -> wire.AtRisk:
        """Returns the work that would be lost now."""
        return self._running.at_risk(self._resumption.choose(self._holdings).step, self._resumption.durable)

    def seconds(self, now: effects.Instant) -> Mapping[str, float]:
        """Returns the ledger: node-seconds since the lead began, by use."""
        return self._running.seconds(now.monotonic_s)

    # ------------------------------------------------------------ the one door

    def handle(self, news: effects.News, now: effects.Instant) -> tuple[effects.Effect, ...]:
        """Takes one piece of news; returns what must be done, in order."""
        self._outbox.open(now)
        match news:
            case effects.Joined():
                self._joined(news)
            case effects.Left() if news.agent in self._roster:
                self._roster.left(news.agent, now.monotonic_s)
                self._holdings.drop(news.agent)
            case effects.Said() if news.agent in self._roster:
                self._said(news.agent, news.message)
            case effects.FellQuiet() if news.agent in self._roster.lasting and self._ending is None:
                self._outbox.event(news.told(self._roster[news.agent].node))
            case effects.StopAsked():
                self._stop(news.grace_s)
            case effects.DurableSeen():
                self._durable_seen(news)
            case effects.CoordinatorsUp() if news.generation == self.generation and self._preparation is not None:
                self._preparation.coordinated(news.addresses)
            case effects.ManifestWritten():
                self._written(news)
            case effects.Acknowledged():
                self._watch_agents(news.gone)
                self._running.ask_stacks(news.stacks)
                self._without(self._roster.acknowledged(news.sent_s))
                self._running.profile(news.profile)
            case effects.Tick():
                self._tick()
            case effects.Left() | effects.Said() | effects.FellQuiet() | effects.CoordinatorsUp():
                pass  # Of an agent that was given up, or an older generation.
        self._advance()
        return self._outbox.take()

    def _said(self, agent: int, message: wire.AgentToLead) -> None:
        if isinstance(message, wire.RankProgress) and message.generation < self.generation:
            self._running.reached_before(message.step)  # What a generation reached just before it was ended.
        if isinstance(message, effects.OF_A_RUN):
            if message.generation != self.generation or not self._running.runs(agent, message.rank):
                return  # Old news of an older generation.
        elif isinstance(message, effects.OF_A_PLACE) and not self._members.of(agent, message.rank):
            return
        match message:
            case wire.RankProgress() if self.phase is Phase.RUNNING:
                self._running.progressed(message)
                self._resumption.stepped()
            case wire.SnapshotTaken(holding=holding):
                if holding.copied or self._members.of(agent, holding.rank):
                    whole = self._holdings.add(agent, holding)
                    safe = self._holdings.safe(holding, agents=len(self._roster.here))
                    self._running.taken(agent, message, whole=whole, safe=safe)
            case wire.GenerationPrepared() if message.generation == self.generation:
                self._prepared(agent, message)
            case wire.RestoreFailed() if self.phase in (Phase.PREPARING, Phase.RUNNING):
                self._unrestored(agent, message.reason, corrupt=message.corrupt)
            case wire.RankStarted() | wire.RankServing():
                self._running.noted(message)
            case wire.RankExited() if self.phase is Phase.RUNNING:
                self._follow(self._running.exited(agent, message))
            case wire.RankLeft() if self.phase is Phase.RUNNING:
                self._running.left(agent, message)
            case wire.StacksDumped():
                self._running.stacks(message)
            case wire.RankResult() | wire.RankUpset() | wire.ProfileKept():
                self._running.told(message)
            case wire.RankTried() if message.generation <= self.generation:
                self._tried(message, late=message.generation < self.generation)
            case wire.ShareStored():
                self._saves.share(message)
            case wire.StoreFailed():
                self._unstored(agent, message)
            case wire.AgentLeaving():
                self._leaving(agent, message.grace_s)
            case wire.AgentDrained():
                self._drained(agent)
            case wire.Unknown():
                self._outbox.unknown(agent, message)
            case wire.RankProgress() | wire.GenerationPrepared() | wire.RestoreFailed() | wire.RankExited():
                pass  # It came too late to matter; below too, or it is for the host, or a mere sign of life.
            case wire.RankTried() | wire.RankLeft() | wire.StandbyAllowed() | wire.Done():
                pass

    # ------------------------------------------------------------ agents

    def _joined(self, news: effects.Joined) -> None:
        if self._roster.joined(news, self._outbox.now_s):
            self._changes.arrived(news.agent, self._outbox.now_s)
            self._running.have(len(self._roster.here))
        self._members.add(news.agent, news.places)
        self._holdings.join(news.agent, news.holdings)
        runs = bool(self._members.active_of(news.agent))
        match self.phase:
            case Phase.PREPARING | Phase.RUNNING if news.generation > self.generation:
                self._begin(Beginning(cause=f"agent {news.agent} knows a newer generation"))
            case Phase.RUNNING if runs and news.generation < self.generation:
                self._begin(Beginning(cause=f"agent {news.agent} came back without its ranks"))
            case Phase.PREPARING | Phase.RUNNING | Phase.STORING:
                self._tell_standing_orders(news.agent, runs=runs)
            case Phase.DRAINING | Phase.OVER:
                self._outbox.tell(news.agent, wire.EndAgent(grace_s=END_GRACE_S, reason=self.reason))
            case Phase.GATHERING | Phase.FINDING | Phase.WAITING:
                pass

    def _tell_standing_orders(self, agent: int, *, runs: bool) -> None:
        """Says again what an agent may have missed while its line was down."""
        if self._preparation is not None:
            self._outbox.tell(agent, self._preparation.order(agent))
            if self.phase is not Phase.PREPARING and runs:
                self._outbox.tell(agent, self._preparation.start(self._running.snapshot_every))
                if self._running.change is not None:
                    self._outbox.tell(agent, self._running.change.message(self.generation, self._outbox.now_s))
        if (save := self._saves.order(agent)) is not None:
            self._outbox.tell(agent, save)

    def _leaving(self, agent: int, grace_s: float) -> None:
        if self._roster.leaving(agent, self._outbox.now_s + grace_s):
            self._outbox.event(leads.AgentLeavingEvent(agent=agent, node=self._roster[agent].node, grace_s=grace_s))
        self._changes.leaving(self._outbox.now_s)

    def _drained(self, agent: int) -> None:
        seen = self._roster[agent]
        self._roster.drained(agent)
        if self.phase in (Phase.DRAINING, Phase.OVER) or seen.lost:
            return
        if seen.leaving_s is None:
            self._outbox.event(leads.AgentLostEvent(agent=agent, node=seen.node))
        self._roster.lose(agent)
        self._holdings.drop(agent)
        self._without((agent,))

    def _watch_agents(self, gone: tuple[int, ...] = ()) -> None:
        """Notices agents that are gone, or silent for too long; going on without them takes the controller's word."""
        if self.phase in (Phase.DRAINING, Phase.OVER):
            return
        patience_s = self._lease_s * LOST_AFTER_LEASES
        reason = f"not heard of for {patience_s:g} s"
        if self.phase is Phase.GATHERING:
            lacking = self._members.propose(self._roster.connected).lacking
            patience_s = GATHER_LIMIT_S if lacking else self._lease_s * GATHER_LEASES
            reason = "never joined"
        noticed = self._roster.notice(self._outbox.now_s, patience_s, gone)
        for agent in noticed:
            self._outbox.event(leads.AgentLostEvent(agent=agent, node=self._roster[agent].node))
        if noticed and self._ending is not None:
            self._drain()  # The outcome stands; only the last save is lost.
        elif noticed:
            lacking = self._members.propose(set(self._roster.lasting) - set(self._roster.doubtful)).lacking
            if lacking:
                reason = "gone" if all(self._roster[agent].gone for agent in noticed) else reason
                reason = f"agents {names(noticed)} {reason}; {lacking}"
                self._end(Ending(outcome=AttemptState.LOST, reason=reason, save=False))

    def _without(self, agents: tuple[int, ...]) -> None:
        """Goes on without agents that are lost, whose ranks have ended."""
        if not agents:
            return
        self._running.have(len(self._roster.here))
        self._saves.abandon()
        if self._preparation is not None:
            self._preparation.answered(agents)
        if not any(self._members.active_of(agent) for agent in agents):
            return
        if self.phase in (Phase.PREPARING, Phase.RUNNING):
            self._running.lost_node()
            self._begin(Beginning(cause=f"lost agents {names(agents)}"))
        elif self.phase is Phase.STORING:
            self._drain()

    # ------------------------------------------------------------ generations

    def _follow(self, decision: Beginning | Ending | PlannedChange | None) -> None:
        if isinstance(decision, Beginning):
            self._begin(decision)
        elif isinstance(decision, Ending):
            self._end(decision)
        elif decision is not None:
            self._running.leave(decision)

    def _begin(self, beginning: Beginning) -> None:
        """Starts the next generation, from the newest step that can be had."""
        if (ending := self._running.ending(beginning.cause)) is not None:
            self._end(ending)
            return
        self.generation = max(self.generation, self._roster.newest_generation) + 1
        self._cause = beginning.cause
        self._running.stop(beginning.use, beginning.closes)
        self._outbox.event(leads.GenerationPreparingEvent(generation=self.generation, cause=beginning.cause))
        self._choose(beginning.hasty)

    def _choose(self, hasty: frozenset[int] = frozenset()) -> None:
        if not self._resumption.known:
            self.phase = Phase.FINDING
            return
        source = self._resumption.choose(self._holdings)
        before = self._holdings.places(source.taken) if source.taken is not None else {}
        among, last = (self._roster.present, self._roster.lasting), self._running.suspects
        proposals = (self._members.propose(agents, last=last, before=before) for agents in among)
        members = min(proposals, key=lambda proposed: bool(proposed.lacking))
        if members.lacking:
            self._end(Ending(outcome=AttemptState.LOST, reason=f"{self._cause}; {members.lacking}", save=False))
            return
        course = self._running.course
        self._resumption.began(source)
        self._holdings.resumed(self.generation, source.step)
        self._saves.rewind(source.step)
        self._members.adopt(members)
        self._running.assign()
        self._preparation = Preparation(
            self.generation, source, self._members, self._roster, self._holdings, course=course, hasty=hasty
        )
        self.phase, self._deadline_s = Phase.PREPARING, self._outbox.now_s + PREPARE_LIMIT_S
        self._outbox.want(effects.StartCoordinators(generation=self.generation, sizes=members.sizes))
        for agent in self._roster.connected:
            self._outbox.tell(agent, self._preparation.order(agent))

    def _durable_seen(self, news: effects.DurableSeen) -> None:
        finding = self.phase is Phase.FINDING
        if not self._resumption.found(news.steps, news.begins_from) and finding:
            self._wait(f"the object store does not answer: {news.reason}")
        elif finding:
            self._choose()
        elif news.steps is None:
            self._resumption.rest(self._outbox.now_s)

    def _wait(self, reason: str) -> None:
        """Tries again later: state exists or may exist, and starting without it would lose work."""
        ending = self._running.ending(reason)
        wait_s = self._resumption.put_off() if ending is None else None
        if wait_s is None:
            self._end(ending or Ending(outcome=AttemptState.LOST, reason=reason, save=False))
            return
        self._running.stop(TimeUse.STARTUP if self.step < 0 else TimeUse.RECOVERY)
        self.phase, self._cause, self._deadline_s = Phase.WAITING, reason, self._outbox.now_s + wait_s

    def _prepared(self, agent: int, message: wire.GenerationPrepared) -> None:
        if self.phase is not Phase.PREPARING or self._preparation is None:
            return
        self._roster.prepared(agent, message.masters)
        if message.ready or not self._members.active_of(agent):
            self._preparation.answered((agent,))
        else:
            self._unrestored(agent, message.reason, corrupt=message.corrupt)

    def _unrestored(self, agent: int, reason: str, *, corrupt: bool) -> None:
        assert self._preparation is not None
        source = self._preparation.source
        words = f"{source.words} on agent {agent}: {reason}"
        if corrupt and source.begins_from:  # There is no older one to pass it over for.
            self._end(Ending(outcome=AttemptState.FAILED, reason=words, save=False))
            return
        if corrupt:
            self._outbox.event(leads.CheckpointCorruptEvent(step=source.step, reason=reason))
        if corrupt and source.taken is not None:
            self._holdings.forget(agent, source.taken)  # Its copies, and replicas elsewhere, may be sound.
        useless = self._resumption.failed(source, corrupt=corrupt)
        if useless is not None:
            self._holdings.pass_over(useless)
        if corrupt:
            self._begin(Beginning(cause=words))
        else:
            self._wait(words)

    def _run(self) -> None:
        assert self._preparation is not None
        source, agents = self._preparation.source, self._members.active_agents
        self.phase = Phase.RUNNING
        self._running.run(self.generation, source.step, from_store=source.name == "store")
        begun, ranks = source.begins_from or source.name, len(self._members.active)
        told = leads.GenerationResumedEvent(generation=self.generation, step=source.step, source=begun, ranks=ranks)
        self._outbox.event(told)
        self._outbox.tell(agents, self._preparation.start(self._running.snapshot_every))
        for agent in agents:
            self._roster.started(agent)

    # ------------------------------------------------------------ durable saves

    def _save(self) -> None:
        if (order := self._saves.start(self._holdings, self._outbox.now_s)) is not None:
            self._outbox.tell(self._saves.agents, order)

    def _tried(self, message: wire.RankTried, *, late: bool) -> None:
        """Takes word of work done more than once; where a device stands alone, goes back to before devices differed."""
        agreed = message.report.agreed_step
        if late and not (message.report.certain and self._holdings.leads_on(agreed + 1, message.generation)):
            return
        failure = self._running.tried(message, late=late)
        self._resumption.agreed(agreed if message.report.equal else -1)
        if failure is None:
            return
        self._holdings.distrust(self._resumption.distrust(agreed, late=late))
        self._saves.distrust()
        if self.phase in (Phase.PREPARING, Phase.RUNNING):
            self._follow(self._running.failed(failure))

    def _unstored(self, agent: int, message: wire.StoreFailed) -> None:
        """Takes note of a share that is not durable; one that newer snapshots have overwritten is no failure."""
        if message.reason == wire.NO_LONGER_HELD and self._holdings.overtaken(agent, message.rank, message.step):
            self._saves.overtaken(message.step, self._outbox.now_s)
        elif self._saves.fail(message.step, self._outbox.now_s):
            self._outbox.event(leads.CheckpointFailedEvent(step=message.step, reason=message.reason))

    def _written(self, news: effects.ManifestWritten) -> None:
        if not news.failure:
            self._saves.written(self._outbox.now_s)
            self._resumption.stored(news.step)
            self._outbox.event(leads.CheckpointDurableEvent(step=news.step, size_bytes=news.size_bytes))
        elif self._saves.unwritten(news.step, self._outbox.now_s):
            self._outbox.event(leads.CheckpointFailedEvent(step=news.step, reason=news.failure))

    # ------------------------------------------------------------ the end

    def _stop(self, grace_s: float) -> None:
        change = self._running.change
        if self._ending is not None or (change is not None and change.outcome is AttemptState.CANCELLED):
            return
        if self.phase is Phase.RUNNING:
            self._follow(self._changes.stop(self._running.course, self._outbox.now_s + grace_s))
        else:
            self._end(Ending(outcome=AttemptState.CANCELLED, reason="stopped before its ranks ran"))

    def _end(self, ending: Ending) -> None:
        if self._ending is not None:
            return
        self._ending = ending
        self._running.end(well=ending.outcome in (AttemptState.SUCCEEDED, AttemptState.CANCELLED))
        if ending.save:
            self.phase, self._deadline_s = Phase.STORING, self._outbox.now_s + STORE_LIMIT_S
        else:
            self._drain()

    def _drain(self) -> None:
        self.phase = Phase.DRAINING
        self._deadline_s = self._outbox.now_s + DRAIN_LIMIT_S
        self._outbox.tell(self._roster.connected, wire.EndAgent(grace_s=END_GRACE_S, reason=self.reason))

    def _over(self) -> None:
        assert self._ending is not None
        self.phase = Phase.OVER
        if self._ending.outcome is AttemptState.SUCCEEDED and self._holdings.distrusted:
            self._ending = Ending(outcome=AttemptState.LOST, reason=f"{self.reason}, on a device that was wrong")
        outcome, blocked_s = self._ending.outcome, self._running.blocked_s
        told = leads.LeadEndedEvent(outcome=outcome, reason=self.reason, step=self.step, snapshot_blocked_s=blocked_s)
        self._outbox.event(told)

    # ------------------------------------------------------------ what follows from where we are

    def _tick(self) -> None:
        self._watch_agents()
        if self.phase is Phase.WAITING and self._late:
            self._begin(Beginning(cause=self._cause, use=TimeUse.STARTUP if self.step < 0 else TimeUse.RECOVERY))
        if self.phase is Phase.PREPARING and self._late and not self._roster.doubtful:
            reason = f"generation {self.generation} was not ready in time"
            self._end(Ending(outcome=AttemptState.LOST, reason=reason, save=False))
        if self.phase is Phase.RUNNING:
            self._follow(self._running.look())
        if self.phase is Phase.RUNNING:
            if self._running.change is None:
                course, suspects = self._running.course, self._running.suspects
                self._follow(self._changes.consider(course, self._outbox.now_s, last=suspects))
            if self._running.all_step:
                idle = self._changes.dismissed(self._holdings)
                self._outbox.tell(idle, wire.EndAgent(grace_s=LEFT_GRACE_S, reason="its node was taken away"))

    def _advance(self) -> None:
        if self.phase is Phase.GATHERING and self._roster.connected == self._roster.here:
            self._begin(Beginning(cause="the first", use=TimeUse.STARTUP))
        prepared = self.phase is Phase.PREPARING and self._preparation is not None and self._preparation.ready
        if prepared and self._roster.settled:
            self._run()
        if self.phase is Phase.RUNNING:
            self._follow(self._running.gone())
        stored = self._saves.finish()
        if stored is not None and stored.divergence is not None and self.phase is Phase.RUNNING:
            self._saves.disown()  # On this step ranks do not agree, so nobody shall have it.
            self._holdings.distrust(self._resumption.durable)
            self._follow(self._running.differ(stored.taken.step, stored.divergence))
        elif stored is not None:
            self._outbox.want(self._resumption.manifest(stored))
        if self.phase is Phase.RUNNING and self._running.all_step and self._saves.due(self._outbox.now_s):
            self._save()
        if self.phase is Phase.STORING:
            self._save()
            if not self._saves.owes(self._holdings.newest_own()) or self._late:
                self._drain()
        writing, owes = self._saves.writing, self._resumption.owes  # A manifest on its way would come after the answer.
        if not writing and (asked := self._resumption.ask(self._outbox.now_s, finding=self.phase is Phase.FINDING)):
            self._outbox.want(asked)
        if self.phase is Phase.DRAINING and (self._roster.all_drained or self._late) and not (writing or owes):
            self._over()

    @property
    def _late(self) -> bool:
        return self._outbox.now_s >= self._deadline_s
