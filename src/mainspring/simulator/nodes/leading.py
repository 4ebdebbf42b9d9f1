"""Hosting a real lead on virtual time: its effects, its reports, its fencing; as `node.lead_host` does for real."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, final

from mainspring.checkpoint import Claim
from mainspring.domain import wire
from mainspring.domain.life import AttemptState
from mainspring.domain.wire.events.leads import (
    AgentLostEvent,
    DevicesDifferEvent,
    ReplicasDifferEvent,
    UnknownWordEvent,
)
from mainspring.node.lead import effects
from mainspring.node.lead.lead import Lead
from mainspring.node.lead.reports import Answered, Reports
from mainspring.node.net.controller import CALL_LIMIT_S
from mainspring.simulator.nodes.agenda import chance, within
from mainspring.simulator.nodes.object_store import Content, branch_of
from mainspring.simulator.nodes.parts import Agent, RunKey
from mainspring.simulator.nodes.promises import Promises
from mainspring.simulator.nodes.rare import Rare

if TYPE_CHECKING:
    from mainspring.simulator.nodes.attempt import SimulatedAttempt

TICK_S = 0.25  # As for real.
SOON_S = 0.1
STORE_S_MAX = 0.4  # One look at the object store, most times; see `_store_s`.
SLOW_STORE_S_MAX = 60.0  # Longer than it takes until another lead is named.
COORDINATORS_S = 0.05
_MENDED = 0.5  # Of devices that are told to be wrong, those that somebody mends at once.
EFFECTS_KEPT_MAX = 10_000  # A lead of ten agents wants about one a second: hours of it.


@final
class SimulatedLead:
    """One lead, at one agent.

    Args:
        attempt: The attempt it leads.
        agent: Where it runs.
        orders: What made it the lead.
    """

    def __init__(self, attempt: SimulatedAttempt, agent: Agent, orders: wire.Orders) -> None:
        self.agent = agent
        self.orders = orders
        self.lead = Lead(orders, attempt.instant_at(agent))
        self.fenced = self.done = False
        self._told_fenced = False  # It knows of its successor; whether it minds is what is proved.
        self.told: list[wire.LeadEvent] = []
        self.manifests: list[effects.WriteManifest] = []
        self.effects: deque[effects.Effect] = deque(maxlen=EFFECTS_KEPT_MAX)
        self._attempt = attempt
        self._reports = Reports(orders, self.lead)
        self._promises = Promises(len(orders.roles))
        self._claim = Claim(number=orders.number, epoch=orders.epoch)
        self._standbys: list[wire.StandbyAllowed] = []
        attempt.agenda.every(TICK_S, self._tick)
        attempt.agenda.after(SOON_S, self._report)

    @property
    def hosted(self) -> bool:
        """Returns whether it still leads, as far as it knows."""
        return self.agent.alive and not self.fenced and not self.done

    @property
    def claim(self) -> Claim:
        """Returns what shares and manifests under it are named by."""
        return self._claim

    def feed(self, news: effects.News) -> None:
        """Gives the lead one piece of news, and does what it wants."""
        if not self.hosted or self.lead.over:
            return
        match news:
            case effects.Said(message=wire.Unknown()):
                self._hear_idly(news, UnknownWordEvent.kind)
                return
            case effects.Said(message=wire.RankTried(report=wire.StepTried(certain=False))):
                self._hear_idly(news, DevicesDifferEvent.kind)
                return
            case _:
                pass
        self._promises.learn(news)
        wanted = self.lead.handle(news, self._attempt.instant_at(self.agent))
        doubted = self._collect()
        for effect in wanted:
            self._do(effect)
        if doubted is not None:
            self._promises.check_followed(doubted, here=self.lead.generation, ends=self.lead.outcome is not None)
        self._check_over()

    def _check_over(self) -> None:
        if self.lead.over:
            well, run = self.lead.outcome is AttemptState.SUCCEEDED, RunKey(self.orders.epoch, self.lead.generation)
            self._attempt.store.courses.check_over(self._claim, self._attempt.ranks.ended.get(run) if well else None)

    def _hear_idly(self, news: effects.Said, kind: str) -> None:
        """Gives the lead a word of which nothing may come but that it is shown: one that it does not know, or a doubt
        about devices that tells on nobody.
        """
        self.feed(effects.Tick())  # What is due by now is no answer to it.
        if not self.hosted or self.lead.over:
            return
        wanted = self.lead.handle(news, self._attempt.instant_at(self.agent))
        told = [event.kind for event in self.lead.events if event.kind != kind]
        assert not wanted, f"{news} is acted on: {wanted}"
        assert not told, f"{news} is acted on: {told}"
        self._collect()

    def _tick(self) -> bool:
        self.feed(effects.Tick())
        return self.hosted

    def _collect(self) -> int | None:
        """Takes what the lead tells; returns the generation that it is told to be wrong of, None where it is not."""
        doubted = None
        for event in self.lead.events:
            if event.kind == AgentLostEvent.kind:
                self._check_given_up(event.detail["agent"])
            if event.kind == ReplicasDifferEvent.kind:
                self._promises.distrust()
            if event.kind == DevicesDifferEvent.kind and event.detail["certain"]:
                doubted = self._doubt(event.detail)
        self.told += self.lead.events
        self._reports.collect()
        return doubted

    def _doubt(self, told: wire.Detail) -> int:
        """Takes note that the lead tells of devices that stand alone; returns of which generation.

        Raises:
            AssertionError: It names a rank whose device never was wrong.
        """
        generation, step = int(told["generation"]), int(told["step"])
        self._promises.distrust_all()
        if not self._attempt.checks.every:
            return generation  # Somebody makes it up, and not the ranks.
        nodes, ranks = str(told["nodes"]).split(", "), str(told["ranks"]).split(", ")
        for rank in [int(each) for each in ranks if each]:
            devices = [agent.device(rank) for agent in self._attempt.agents if agent.node in nodes]
            assert any(device.faulty for device in devices), f"rank {rank} is innocent: {dict(told)}"
            for device in devices:
                device.lies &= not chance(self._attempt.luck, _MENDED)
        store = self._attempt.store
        store.courses.doubt(self._claim, Content(branch_of(self._claim, generation), step), oldest=store.oldest)
        return generation

    def _check_given_up(self, number: object) -> None:
        """Checks that no rank of an agent lives that is given up: others may soon take its place."""
        for agent in self._attempt.living:
            if agent.orders is not None and (agent.orders.epoch, agent.number) == (self.orders.epoch, number):
                assert not agent.ranks, f"agent {number} is given up, and its ranks {sorted(agent.ranks)} live"

    # ------------------------------------------------------------ effects

    def _do(self, effect: effects.Effect) -> None:
        assert not self._told_fenced, f"the lead of epoch {self.orders.epoch} knows of another, and wants {effect}"
        self.effects.append(effect)
        later, luck = self._attempt.agenda.after, self._attempt.luck
        match effect:
            case effects.Tell(agent=number, message=message):
                if isinstance(message, wire.PrepareGeneration):
                    self._promises.check_choice(message)
                elif isinstance(message, wire.LeaveAt):
                    self._promises.leaves(message)
                elif isinstance(message, wire.StartRanks) and self._promises.starts(message.generation):
                    self._check_start(message.generation)
                self._attempt.tell(self, number, message)
            case effects.FindDurable(withdraw_after=after):
                if after is not None:
                    self._attempt.store.courses.asked(self._claim, after)
                later(self._store_s(), lambda: self._find(after))
            case effects.StartCoordinators(generation=generation, sizes=sizes):
                self._attempt.declared(RunKey(self.orders.epoch, generation), sum(sizes.values()))
                later(COORDINATORS_S, lambda: self._coordinate(generation))
            case effects.WriteManifest():
                self._promises.trusts(effect.trusted)
                later(within(luck, 0.0, self._store_s()), lambda: self._write(effect))

    def _check_start(self, generation: int) -> None:
        begun = self._attempt.programs.begun_from(RunKey(self.orders.epoch, generation))
        if begun is not None:
            self._attempt.store.courses.check_start(self._claim, begun)

    def _store_s(self) -> float:
        luck, slow = self._attempt.luck, self._attempt.store.slow
        return within(luck, 0.0, SLOW_STORE_S_MAX if chance(luck, slow) else STORE_S_MAX)

    def _coordinate(self, generation: int) -> None:
        self.feed(effects.CoordinatorsUp(generation=generation, addresses={}))

    def _find(self, withdraw_after: int | None) -> None:
        store = self._attempt.store
        if not store.up:
            self.feed(effects.DurableSeen(steps=None, reason="the store is away"))
        elif self._current():
            store.put_claim(self._claim)
            if withdraw_after is not None:
                self._attempt.saw(Rare.WITHDRAWN)
                stays = store.withdraw(withdraw_after)
                store.courses.withdrawn(self._claim, withdraw_after, stays=stays)
            self.feed(effects.DurableSeen(steps=store.steps, begins_from=self.orders.begins_from))

    def _current(self) -> bool:
        """Returns whether no newer lead has claimed the job's checkpoints; fences this one when one has."""
        if not self.hosted:
            return False
        newest = self._attempt.store.claim
        if newest is not None and newest > self._claim:
            self._attempt.saw(Rare.MANIFEST_REFUSED)
            self.fence()
            return False
        return True

    def _write(self, manifest: effects.WriteManifest) -> None:
        if not self._attempt.store.up:
            self.feed(effects.ManifestWritten(step=manifest.step, size_bytes=1, failure="the store is away"))
        elif self._current():
            self._attempt.agenda.after(self._store_s(), lambda: self._commit(manifest))

    def _commit(self, manifest: effects.WriteManifest) -> None:
        """Writes what was decided a while ago: who leads may have changed meanwhile, and this lead may be gone."""
        store = self._attempt.store
        if store.up and self.agent.alive:
            self.manifests.append(manifest)
            if not store.commit(manifest, ranks=self._attempt.sizes_of(manifest.generation)):
                self._attempt.saw(Rare.DURABLE_ALREADY)
        failure = "" if store.up else "the store is away"
        self.feed(effects.ManifestWritten(step=manifest.step, size_bytes=1, failure=failure))

    # ------------------------------------------------------------ reports

    def _report(self) -> None:
        if not self.hosted:
            return
        attempt, sent = self._attempt, self._attempt.instant_at(self.agent)
        self._collect()
        reply = attempt.call_heartbeat(self, self._reports.heartbeat(sent))
        if chance(attempt.luck, attempt.links.answers_late):
            delay_s = within(attempt.luck, 0.0, CALL_LIMIT_S)
            attempt.agenda.after(delay_s, lambda: self._answered(reply, sent.monotonic_s))
        else:
            self._answered(reply, sent.monotonic_s)

    def _answered(self, reply: wire.HeartbeatReply | None, sent_s: float) -> None:
        if not self.hosted:
            return
        attempt = self._attempt
        self._told_fenced |= reply is not None and reply.fenced
        answered = None if reply is None else self._reports.answered(reply)
        if reply is not None and answered not in (Answered.FENCED, Answered.DONE):
            self.feed(effects.Acknowledged(sent_s=sent_s, gone=reply.gone, profile=reply.profile))
        match answered:
            case Answered.FENCED:
                self.fence()
            case Answered.DONE:
                self.done = True
                well = self.lead.outcome in (AttemptState.SUCCEEDED, AttemptState.CANCELLED)
                attempt.end_agent(self.agent, 0 if well else 1, self.lead.reason)
            case Answered.MORE:
                attempt.agenda.after(SOON_S, self._report)
            case Answered.HEARD | None:
                attempt.agenda.after(self.orders.heartbeat_s, self._report)

    def fence(self) -> None:
        """Ends all ranks at once: another lead goes on with the attempt, or another attempt with the job."""
        if not self.hosted:
            return
        self.fenced = True
        self._attempt.saw(Rare.LEAD_FENCED)
        told = wire.EndAgent(grace_s=0.0, reason="another lead has taken over", fenced=True)
        for agent in self._attempt.followers(self):
            self._attempt.tell(self, agent.number, told)
        self._attempt.end_agent(self.agent, 1, "another lead has taken over")

    def let_stand_by(self, allowed: wire.StandbyAllowed) -> None:
        """Passes on what a role's program allows."""
        if allowed not in self._standbys:
            self._standbys.append(allowed)
            for agent in self._attempt.followers(self):
                self._attempt.tell(self, agent.number, allowed)
