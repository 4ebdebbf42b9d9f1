"""The lead's mind: declares generations, chooses what each resumes from and who runs in it, decides the outcome.

A pure state machine: `handle` takes one piece of news and the time, and returns what must be done. It does no I/O and
reads no clock; `lead_host` does both. Every message may be repeated: agents say everything again when they rejoin.

    GATHERING -> (FINDING ->) PREPARING -> RUNNING -> STORING -> DRAINING -> OVER
                     ^          |   ^         |
                     +- WAITING-+   +---------+  a rank failed, an agent is lost, or a planned change
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import final

from mainspring.domain import wire
from mainspring.domain.goodput import TimeUse
from mainspring.domain.life import AttemptState
from mainspring.domain.ports import Backoff
from mainspring.domain.wire.events import leads
from mainspring.node.lead import effects
from mainspring.node.lead.changing import Changing
from mainspring.node.lead.gang import RunningGeneration
from mainspring.node.lead.holdings import Holdings
from mainspring.node.lead.members import Members
from mainspring.node.lead.outbox import Beginning, Ending, Outbox
from mainspring.node.lead.resume import Briefing, ResumeSource, Resumption
from mainspring.node.lead.roster import Roster
from mainspring.node.lead.saves import Saving

GATHER_LIMIT_S = 600.0  # Engines start all agents or none; past ten minutes one of them is not coming.
GATHER_LEASES = 4.0  # Agents have their orders within a lease or two of the lead; those that take longer join later.
PREPARE_LIMIT_S = 1_800.0  # A node's share of a large checkpoint, 500 GB at 500 MB/s, takes 1,000 s.
STORE_LIMIT_S = 900.0  # The last save of an attempt: as above, with a margin, halved because a share is smaller.
DRAIN_LIMIT_S = 60.0  # Killing ranks takes at most the grace; hanging up takes none.
END_GRACE_S = 2.0  # Ranks that outlive the attempt's outcome have nothing left to save.
LOST_AFTER_LEASES = 1.5  # Agents kill their ranks after one lease; the lead waits longer, so no two sets live at once.
STORE_TRIES_MAX = 8  # With the waits below: four minutes of a store that does not answer while state is needed.
AGAIN = Backoff(first_s=1.0, cap_s=60.0)
RECONNECT_S_MIN = 5.0  # A rank learns within 40 ms that a peer's process is gone, once it next speaks to it;
RECONNECT_STEPS = 2.0  # which it does in every step.
RECONNECT_S_MAX = 60.0  # Starting a process anew takes about as long, compilation included.
NAMES_MAX = 20  # Agents named in one reason; a thousand lost agents are one fact.
_OF_A_RUN = wire.RankStarted | wire.RankExited | wire.RankLeft | wire.RestoreFailed | wire.StacksDumped
_OF_A_PLACE = wire.RankResult | wire.ShareStored | wire.StoreFailed


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
    """One attempt, led. Read `events`, `outcome`, `over` and what heartbeats tell after each `handle`.

    Args:
        orders: The attempt's orders.
        now: When leading begins.
    """

    def __init__(self, orders: wire.Orders, now: effects.Instant) -> None:
        self.outcome: AttemptState | None = None
        self.reason = ""
        self.generation = 0
        self.phase = Phase.GATHERING
        self._orders = orders
        self._outbox = Outbox(now)
        agents = {place.agent for place in orders.ranks}
        self._roster = Roster(agents, now_s=now.monotonic_s, busy=orders.epoch > 1)
        self._members = Members(orders.roles, orders.ranks)
        self._holdings = Holdings(self._members.roles)
        self._resumption = Resumption()
        self._gang = RunningGeneration(orders, self._members, self._roster, self._outbox)
        self._changing = Changing(self._roster, self._members, self._gang, self._outbox)
        self._saving = Saving(self._holdings, self._resumption, self._outbox)
        self._source = ResumeSource()
        self._briefing: Briefing | None = None
        self._addresses: Mapping[str, str] | None = None
        self._unready: set[int] = set()
        self._newest_seen = 0
        self._cause = ""
        self._tries = 0
        self._deadline_s = now.monotonic_s

    # ------------------------------------------------------------ what others read

    @property
    def events(self) -> list[wire.LeadEvent]:
        """Returns the events not taken yet; whoever takes them clears the list."""
        return self._outbox.events

    @property
    def over(self) -> bool:
        """Returns whether nothing is left to do but report the outcome."""
        return self.phase is Phase.OVER

    @property
    def step(self) -> int:
        """Returns the furthest step any rank has reported, -1 before the first."""
        return self._gang.progress.furthest

    @property
    def metrics(self) -> Mapping[str, float]:
        """Returns the newest metrics of the lowest rank that reports any."""
        return self._gang.metrics

    @property
    def rank_status(self) -> tuple[wire.RankStatus, ...]:
        """Returns every place as last seen, but those whose nodes were taken away and that have left."""
        return self._gang.status

    def seconds(self, now: effects.Instant) -> Mapping[str, float]:
        """Returns the ledger: node-seconds since the lead began, by use."""
        return self._gang.ledger.seconds(now.monotonic_s)

    # ------------------------------------------------------------ the one door

    def handle(self, news: effects.News, now: effects.Instant) -> tuple[effects.Effect, ...]:
        """Takes one piece of news; returns what must be done, in order."""
        self._outbox.now, self._outbox.effects = now, []
        match news:
            case effects.Joined():
                self._joined(news)
            case effects.Left():
                if news.agent in self._roster:
                    self._roster.left(news.agent, now.monotonic_s)
                    self._holdings.drop(news.agent)
            case effects.Said():
                if news.agent in self._roster:
                    self._said(news.agent, news.message)
            case effects.StopAsked():
                self._stop(news.grace_s)
            case effects.DurableSeen():
                self._durable_seen(news)
            case effects.CoordinatorsUp():
                if news.generation == self.generation:
                    self._addresses = news.addresses
            case effects.ManifestWritten():
                self._saving.written(news)
            case effects.Acknowledged():
                self._watch_agents(news.gone)
                self._without(self._roster.acknowledged(news.sent_s))
            case effects.Tick():
                self._tick()
        self._advance()
        return tuple(self._outbox.effects)

    def _said(self, agent: int, message: wire.AgentToLead) -> None:
        if isinstance(message, _OF_A_RUN):
            if message.generation != self.generation or not self._gang.runs(agent, message.rank):
                return  # Old news of an older generation.
        elif isinstance(message, _OF_A_PLACE) and not self._members.of(agent, message.rank):
            return
        match message:
            case wire.RankProgress():
                self._progressed(agent, message)
            case wire.SnapshotTaken(holding=holding):
                if holding.copied or self._members.of(agent, holding.rank):
                    whole = self._holdings.add(agent, holding)
                    safe = self._holdings.safe(holding, agents=len(self._roster.here))
                    self._gang.taken(holding, whole=whole, safe=safe)
            case wire.GenerationPrepared():
                if message.generation == self.generation:
                    self._prepared(agent, message)
            case wire.RestoreFailed():
                if self.phase in (Phase.PREPARING, Phase.RUNNING):
                    self._unrestored(agent, message.reason, corrupt=message.corrupt)
            case wire.RankStarted():
                self._gang.ranks[message.rank].pid = message.pid
            case wire.RankExited():
                if self.phase is Phase.RUNNING:
                    self._follow(self._gang.exited(agent, message))
            case wire.RankLeft():
                if self.phase is Phase.RUNNING:
                    self._gang.left(agent, message)
            case wire.StacksDumped():
                self._gang.stacks(message)
            case wire.RankResult():
                self._gang.result(message)
            case wire.ShareStored():
                self._saving.saves.share(message)
            case wire.StoreFailed():
                self._saving.failed(agent, message)
            case wire.AgentLeaving():
                self._changing.leaving(agent, message.grace_s)
            case wire.AgentDrained():
                self._drained(agent)
            case wire.StandbyAllowed() | wire.Done():
                pass  # The host passes on the one; the other says that the agent lives.

    def _progressed(self, agent: int, message: wire.RankProgress) -> None:
        if message.generation == self.generation and self._gang.runs(agent, message.rank):
            if self.phase is Phase.RUNNING:
                self._gang.progressed(message)
                self._tries = 0
        elif message.generation < self.generation:  # What it reached just before it was ended.
            self._gang.progress.furthest = max(self._gang.progress.furthest, message.step)

    # ------------------------------------------------------------ agents

    def _joined(self, news: effects.Joined) -> None:
        if self._roster.joined(news, self._outbox.now_s):
            self._changing.arrived(news.agent)
            self._gang.have(len(self._roster.here))
        self._members.add(news.agent, news.places)
        self._holdings.join(news.agent, news.holdings)
        self._newest_seen = max(self._newest_seen, news.generation)
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
        if self._briefing is not None:
            self._outbox.tell(agent, self._briefing.order(agent))
        if self.phase is not Phase.PREPARING and runs:
            self._outbox.tell(agent, self._start())
            if self._gang.change is not None:
                self._outbox.tell(agent, self._gang.change.message(self.generation, self._outbox.now_s))
        self._saving.tell((agent,))

    def _drained(self, agent: int) -> None:
        seen = self._roster[agent]
        seen.drained = True
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
        patience_s = self._orders.lease_s * LOST_AFTER_LEASES
        reason = f"not heard of for {patience_s:g} s"
        if self.phase is Phase.GATHERING:
            lacking = self._members.propose(self._roster.connected).lacking
            patience_s = GATHER_LIMIT_S if lacking else self._orders.lease_s * GATHER_LEASES
            reason = "never joined"
        noticed = self._roster.notice(self._outbox.now_s, patience_s, gone)
        for agent in noticed:
            self._outbox.event(leads.AgentLostEvent(agent=agent, node=self._roster[agent].node))
        if noticed and self.outcome is not None:
            self._drain()  # The outcome stands; only the last save is lost.
        elif noticed:
            lacking = self._members.propose(set(self._roster.lasting) - set(self._roster.doubtful)).lacking
            if lacking:
                reason = "gone" if all(self._roster[agent].gone for agent in noticed) else reason
                reason = f"agents {_names(noticed)} {reason}; {lacking}"
                self._end(Ending(outcome=AttemptState.LOST, reason=reason, save=False))

    def _without(self, agents: tuple[int, ...]) -> None:
        """Goes on without agents that are lost, whose ranks have ended."""
        if not agents:
            return
        self._gang.have(len(self._roster.here))
        self._saving.saves.abandon()
        self._unready.difference_update(agents)
        if not any(self._members.active_of(agent) for agent in agents):
            return
        if self.phase in (Phase.PREPARING, Phase.RUNNING):
            self._gang.pace.failed()
            self._begin(Beginning(cause=f"lost agents {_names(agents)}"))
        elif self.phase is Phase.STORING:
            self._drain()

    # ------------------------------------------------------------ generations

    def _follow(self, decision: Beginning | Ending | None) -> None:
        if isinstance(decision, Beginning):
            self._begin(decision)
        elif decision is not None:
            self._end(decision)

    def _begin(self, beginning: Beginning) -> None:
        """Starts the next generation, from the newest step that can be had."""
        if self._ended_by_change(beginning.cause):
            return
        self.generation = self._newest_seen = max(self.generation, self._newest_seen) + 1
        self._cause = beginning.cause
        self._gang.stop(beginning.use, beginning.closes)
        self._outbox.event(leads.GenerationPreparingEvent(generation=self.generation, cause=beginning.cause))
        self._choose(beginning.hasty)

    def _ended_by_change(self, cause: str) -> bool:
        """Returns whether the attempt was about to end: then it does so now, instead of beginning anew."""
        change = self._gang.change
        if change is None or change.outcome is None:
            return False
        self._end(Ending(outcome=change.outcome, reason=f"{change.cause}; {cause}"))
        return True

    def _choose(self, hasty: frozenset[int] = frozenset()) -> None:
        if not self._resumption.known:
            self.phase = Phase.FINDING
            self._outbox.effects.append(effects.FindDurable())
            return
        source = self._resumption.choose(self._holdings)
        before = self._holdings.places(source.taken) if source.taken is not None else {}
        among, last = (self._roster.present, self._roster.lasting), self._gang.failures.suspects
        proposals = (self._members.propose(agents, last=last, before=before) for agents in among)
        members = min(proposals, key=lambda proposed: bool(proposed.lacking))
        if members.lacking:
            reason = f"{self._cause}; {members.lacking}"
            self._end(Ending(outcome=AttemptState.LOST, reason=reason, save=False))
            return
        stepped = self._gang.all_step
        self._source = source
        self._saving.began(source)
        self._holdings.resumed(self.generation, source.step)
        self._saving.saves.rewind(source.step)
        self._members.adopt(members)
        self._gang.seat()
        self._briefing = Briefing(
            generation=self.generation,
            source=source,
            members=self._members,
            roster=self._roster,
            holdings=self._holdings,
            sparing=stepped,
            reconnect_s=min(max(RECONNECT_S_MIN, RECONNECT_STEPS * (self._gang.pace.step_s or 0.0)), RECONNECT_S_MAX),
            hasty=hasty,
        )
        self.phase, self._addresses = Phase.PREPARING, None
        self._deadline_s = self._outbox.now_s + PREPARE_LIMIT_S
        here = self._roster.here
        self._unready = {agent for agent in here if self._members.active_of(agent) or self._roster[agent].busy}
        self._outbox.effects.append(effects.StartCoordinators(generation=self.generation, sizes=members.sizes))
        for agent in self._roster.connected:
            self._outbox.tell(agent, self._briefing.order(agent))

    def _start(self) -> wire.StartRanks:
        seen = [self._roster[agent] for agent in self._members.active_agents]
        return wire.StartRanks(
            generation=self.generation,
            coordinators=self._addresses or {},
            masters={role: place for agent in seen for role, place in agent.masters.items()},
            snapshot_every=self._gang.pace.every,
        )

    def _durable_seen(self, news: effects.DurableSeen) -> None:
        if self.phase is not Phase.FINDING:
            return
        if news.steps is None:
            self._wait(f"the object store does not answer: {news.reason}")
        else:
            self._resumption.found(news.steps, news.begins_from)
            self._tries = 0
            self._choose()

    def _wait(self, reason: str) -> None:
        """Tries again later: state exists or may exist, and starting without it would lose work."""
        if self._ended_by_change(reason):
            return
        self._tries += 1
        if self._tries > STORE_TRIES_MAX:
            self._end(Ending(outcome=AttemptState.LOST, reason=reason, save=False))
            return
        self._gang.stop(TimeUse.STARTUP if self.step < 0 else TimeUse.RECOVERY)
        self.phase, self._cause = Phase.WAITING, reason
        self._deadline_s = self._outbox.now_s + AGAIN.wait_s(self._tries)

    def _prepared(self, agent: int, message: wire.GenerationPrepared) -> None:
        if self.phase is not Phase.PREPARING:
            return
        self._roster[agent].busy, self._roster[agent].masters = False, message.masters
        if message.ready or not self._members.active_of(agent):
            self._unready.discard(agent)
        else:
            self._unrestored(agent, message.reason, corrupt=message.corrupt)

    def _unrestored(self, agent: int, reason: str, *, corrupt: bool) -> None:
        words = f"{self._source.words} on agent {agent}: {reason}"
        if corrupt and not self._source.begins_from:
            self._outbox.event(leads.CheckpointCorruptEvent(step=self._source.step, reason=reason))
        if corrupt and self._source.begins_from:  # There is no older one to pass it over for.
            self._end(Ending(outcome=AttemptState.FAILED, reason=words, save=False))
        elif self._resumption.failed(self._source, agent, self._holdings, corrupt=corrupt):
            self._wait(words)
        else:
            self._begin(Beginning(cause=words))

    def _run(self) -> None:
        self.phase = Phase.RUNNING
        self._gang.run(self.generation, self._source.step, from_store=self._source.name == "store")
        self._outbox.event(
            leads.GenerationResumedEvent(
                generation=self.generation,
                step=self._source.step,
                source=self._source.begins_from or self._source.name,
                ranks=len(self._members.active),
            )
        )
        start = self._start()
        for agent in self._members.active_agents:
            self._roster[agent].busy = True
            self._outbox.tell(agent, start)

    # ------------------------------------------------------------ the end

    def _stop(self, grace_s: float) -> None:
        change = self._gang.change
        if self.outcome is not None or (change is not None and change.outcome is AttemptState.CANCELLED):
            return
        if self.phase is Phase.RUNNING:
            self._changing.stop(self.generation, grace_s)
        else:
            self._end(Ending(outcome=AttemptState.CANCELLED, reason="stopped before its ranks ran"))

    def _end(self, ending: Ending) -> None:
        if self.outcome is not None:
            return
        self.outcome, self.reason = ending.outcome, ending.reason
        self._gang.end(well=ending.outcome in (AttemptState.SUCCEEDED, AttemptState.CANCELLED))
        if ending.save:
            self.phase = Phase.STORING
            self._deadline_s = self._outbox.now_s + STORE_LIMIT_S
        else:
            self._drain()

    def _drain(self) -> None:
        self.phase = Phase.DRAINING
        self._deadline_s = self._outbox.now_s + DRAIN_LIMIT_S
        self._outbox.tell(self._roster.connected, wire.EndAgent(grace_s=END_GRACE_S, reason=self.reason))

    def _over(self) -> None:
        assert self.outcome is not None
        self.phase = Phase.OVER
        blocked_s = self._gang.progress.blocked_s
        self._outbox.event(
            leads.LeadEndedEvent(outcome=self.outcome, reason=self.reason, step=self.step, snapshot_blocked_s=blocked_s)
        )

    # ------------------------------------------------------------ what follows from where we are

    def _tick(self) -> None:
        self._watch_agents()
        if self.phase is Phase.WAITING and self._late:
            self._begin(Beginning(cause=self._cause, use=TimeUse.STARTUP if self.step < 0 else TimeUse.RECOVERY))
        if self.phase is Phase.PREPARING and self._late and not self._roster.doubtful:
            reason = f"generation {self.generation} was not ready in time"
            self._end(Ending(outcome=AttemptState.LOST, reason=reason, save=False))
        if self.phase is Phase.RUNNING:
            self._follow(self._gang.look())
        if self.phase is Phase.RUNNING:
            self._follow(self._changing.consider(self.generation))
            self._changing.dismiss(self._holdings)

    def _advance(self) -> None:
        if self.phase is Phase.GATHERING and self._roster.connected == self._roster.here:
            self._begin(Beginning(cause="the first", use=TimeUse.STARTUP))
        if self.phase is Phase.PREPARING and not self._unready and self._roster.settled and self._addresses is not None:
            self._run()
        if self.phase is Phase.RUNNING:
            self._follow(self._gang.gone())
        self._saving.finish()
        if self.phase is Phase.RUNNING and self._gang.all_step and self._saving.saves.due(self._outbox.now_s):
            self._saving.start()
        if self.phase is Phase.STORING:
            self._saving.start()
            if not self._saving.owes or self._late:
                self._drain()
        if self.phase is Phase.DRAINING and (self._drained_all or self._late) and not self._saving.saves.writing:
            self._over()

    @property
    def _late(self) -> bool:
        return self._outbox.now_s >= self._deadline_s

    @property
    def _drained_all(self) -> bool:
        return all(self._roster[agent].drained for agent in self._roster.connected)


def _names(agents: tuple[int, ...]) -> str:
    return ", ".join(map(str, agents[:NAMES_MAX]))
