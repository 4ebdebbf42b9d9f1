"""Runs the lead's state machine: connections to agents, the object store, coordination services, heartbeats."""

from __future__ import annotations

import asyncio
from typing import final

from mainspring.checkpoint import Claim, Lineage, Manifest, ShareEntry
from mainspring.domain import wire
from mainspring.domain.codec import alike
from mainspring.domain.errors import MainspringError
from mainspring.domain.life import AttemptState
from mainspring.domain.ports import Clock
from mainspring.node.coordinator import Coordinators
from mainspring.node.lead.effects import (
    Acknowledged,
    CoordinatorsUp,
    DurableSeen,
    Effect,
    FellQuiet,
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
from mainspring.node.lead.lead import Lead
from mainspring.node.lead.reports import Answered, Reports
from mainspring.node.lead.watch.quiet import QuietLines
from mainspring.node.lead_samples import SampleWriter
from mainspring.node.net.connection import Connection
from mainspring.node.net.controller import ControllerClient
from mainspring.node.snapshots.stores import Stores
from mainspring.node.tasks import Tasks

TICK_S = 0.25  # Fine enough for limits of seconds; a tick costs microseconds a rank.
AGENTS_MAX = 1 << 20  # Agents are numbered from 0 as they are added; far more than any attempt sees.
SOON_S = 0.1  # Events that come together travel together.
OUTCOME_LIMIT_S = 24 * 3600.0  # A controller away for longer has placed the work anew when it is back.


@final
class LeadHost:
    """Leads one attempt. `run` returns when its outcome is known to the controller, or it was fenced.

    Args:
        orders: The attempt's orders.
        host: The address agents and ranks reach this machine under.
        tasks: Runs what takes long; a fault in it ends the agent.
    """

    def __init__(
        self,
        *,
        orders: wire.Orders,
        host: str,
        controller: ControllerClient,
        stores: Stores,
        clock: Clock,
        tasks: Tasks,
    ) -> None:
        self._orders = orders
        self._controller = controller
        self._stores = stores
        self._clock = clock
        self._lead = Lead(orders, self._now())
        self._quiet = QuietLines(orders.lease_s, clock.monotonic_s())
        self._lines: dict[int, Connection] = {}
        self._standbys: list[wire.StandbyAllowed] = []
        self._tasks = tasks
        self._coordinators = Coordinators(host)
        self._reports = Reports(orders, self._lead)
        self._samples = SampleWriter(orders, stores, clock)
        self._eventful = asyncio.Event()
        self._starting = asyncio.Lock()
        self._fenced = asyncio.Event()

    @property
    def outcome(self) -> AttemptState | None:
        """Returns the attempt's outcome, None while it is open or when it was fenced."""
        return None if self._fenced.is_set() else self._lead.outcome

    @property
    def reason(self) -> str:
        """Returns why it ended, for people."""
        return "another lead has taken over" if self._fenced.is_set() else self._lead.reason

    def stop(self, grace_s: float) -> None:
        """Tells the lead that the engine wants the attempt to stop."""
        self._feed(StopAsked(grace_s=grace_s))

    @property
    def _claim(self) -> Claim:
        """Returns what this lead writes by."""
        return Claim(number=self._orders.number, epoch=self._orders.epoch)

    async def run(self) -> None:
        """Leads until the outcome is acknowledged, the attempt is fenced, or the controller was away too long."""
        self._tasks.spawn(self._tick())
        self._tasks.spawn(self._samples.run())
        try:
            await self._report()
        finally:
            self._tasks.cancel()
            await self._samples.last()
            await self._coordinators.stop()
            for line in self._lines.values():
                line.close()

    async def serve(self, line: Connection, join: wire.AgentJoin) -> None:
        """Serves the connection of an agent that has proved itself."""
        if not self._welcome(join):
            line.close()
            return
        older = self._lines.get(join.agent)
        if older is not None:
            older.close()
        self._lines[join.agent] = line
        self._samples.place(join.places)
        self._feed(
            Joined(
                agent=join.agent,
                node=join.node,
                address=join.address,
                generation=join.generation,
                places=join.places,
                holdings=join.holdings,
            )
        )
        self._heard(join.agent)
        for allowed in self._standbys:
            line.send(allowed)
        alive = asyncio.create_task(line.keep_alive(self._orders.lease_s))
        try:
            async for message in line.messages(wire.AgentToLead, self._orders.lease_s):
                if self._lines.get(join.agent) is not line:
                    return  # The agent has come back on another line; what it says there is newer.
                self._heard(join.agent)
                if isinstance(message, wire.StandbyAllowed):
                    self._let_stand_by(message)
                    continue
                if isinstance(message, wire.RankProgress):
                    self._samples.note(message)
                self._feed(Said(agent=join.agent, message=message))
        finally:
            alive.cancel()
            line.close()
            if self._lines.get(join.agent) is line:
                del self._lines[join.agent]
                self._feed(Left(agent=join.agent))

    def _let_stand_by(self, allowed: wire.StandbyAllowed) -> None:
        """Passes on what a role's program allows: agents without its ranks cannot know."""
        if allowed not in self._standbys and len(self._standbys) < len(self._orders.roles):
            self._standbys.append(allowed)
            for line in self._lines.values():
                line.send(allowed)

    def _welcome(self, join: wire.AgentJoin) -> bool:
        mine = (join.attempt, join.epoch) == (self._orders.attempt, self._orders.epoch)
        return mine and 0 <= join.agent < AGENTS_MAX and not self._fenced.is_set()

    def _now(self) -> Instant:
        return Instant(now_s=self._clock.now_s(), monotonic_s=self._clock.monotonic_s())

    def _feed(self, news: News) -> None:
        if self._fenced.is_set():
            return
        for effect in self._lead.handle(news, self._now()):
            self._do(effect)
        if self._reports.collect():
            self._eventful.set()

    def _do(self, effect: Effect) -> None:
        match effect:
            case Tell():
                line = self._lines.get(effect.agent)
                if line is not None:
                    line.send(effect.message)
            case FindDurable():
                self._tasks.spawn(self._find_durable(effect.withdraw_after))
            case StartCoordinators():
                self._tasks.spawn(self._start_coordinators(effect))
            case WriteManifest():
                self._tasks.spawn(self._write_manifest(effect))

    async def _find_durable(self, withdraw_after: int | None) -> None:
        try:
            if not await self._current():
                return
            await self._stores.put_claim(self._claim)
            if withdraw_after is not None:
                await self._stores.withdraw(withdraw_after)
            steps, begins_from = await self._stores.steps(), await self._stores.pinned(self._orders.begins_from)
            self._feed(DurableSeen(steps=steps, begins_from=begins_from))
        except MainspringError as error:
            self._feed(DurableSeen(steps=None, reason=str(error)))

    async def _current(self) -> bool:
        """Returns whether no newer lead has claimed the job's checkpoints; fences this one when one has."""
        newest = await self._stores.newest_claim()
        if newest is not None and newest > self._claim:
            self._fence()
            return False
        return True

    async def _start_coordinators(self, effect: StartCoordinators) -> None:
        async with self._starting:  # One generation's after the other's: they share what is to be ended.
            if effect.generation != self._lead.generation:
                return
            addresses = await self._coordinators.start(effect.sizes)
        self._feed(CoordinatorsUp(generation=effect.generation, addresses=addresses))

    async def _write_manifest(self, effect: WriteManifest) -> None:
        manifest = manifest_of(effect, self._orders, created_s=self._clock.now_s())
        failure = ""
        try:
            if not await self._current():
                return
            await self._stores.commit(manifest, replace_damaged=effect.replace, trusted=effect.trusted)
        except MainspringError as error:
            failure = str(error)
        self._feed(ManifestWritten(step=effect.step, size_bytes=manifest.size_bytes, failure=failure))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for agent in self._quiet.look(self._clock.monotonic_s()):
                self._feed(FellQuiet(agent=agent))
            self._feed(Tick())

    def _heard(self, agent: int) -> None:
        if self._quiet.heard(agent, self._clock.monotonic_s()):
            self._feed(FellQuiet(agent=agent, again=True))

    # ------------------------------------------------------------ heartbeats

    async def _report(self) -> None:
        over_s: float | None = None
        while not self._fenced.is_set():
            over = self._lead.over
            self._eventful.clear()
            sent_s = self._clock.monotonic_s()
            try:
                reply = await self._controller.heartbeat(self._reports.heartbeat(self._now()))
            except MainspringError:
                reply = None  # Away, or not itself: the work goes on, and the events keep.
            if reply is not None:
                told = Acknowledged(sent_s=sent_s, gone=reply.gone, stacks=reply.stacks, profile=reply.profile)
                match self._reports.answered(reply):
                    case Answered.FENCED:
                        self._fence()
                        return
                    case Answered.DONE:
                        return
                    case Answered.MORE:
                        self._feed(told)
                        await asyncio.sleep(SOON_S)
                        continue
                    case Answered.HEARD:
                        self._feed(told)
            if over:
                over_s = over_s if over_s is not None else self._clock.monotonic_s()
                if self._clock.monotonic_s() - over_s > OUTCOME_LIMIT_S:
                    return
            await self._pause(answered=reply is not None)

    async def _pause(self, *, answered: bool) -> None:
        """Waits for the next heartbeat's time, or, while the controller answers, for something to tell."""
        if not answered:
            await asyncio.sleep(self._orders.heartbeat_s)
            return
        try:
            async with asyncio.timeout(self._orders.heartbeat_s):
                await self._eventful.wait()
        except TimeoutError:
            return
        await asyncio.sleep(SOON_S)

    def _fence(self) -> None:
        """Ends all ranks at once: another lead goes on with the attempt, or another attempt with the job."""
        self._fenced.set()
        self._eventful.set()
        for line in self._lines.values():
            line.send(wire.EndAgent(grace_s=0.0, reason=self.reason, fenced=True))


def manifest_of(effect: WriteManifest, orders: wire.Orders, *, created_s: float) -> Manifest:
    """Returns the manifest of a step whose shares are all stored.

    Args:
        effect: What the lead wants written.
        orders: Its attempt's.
        created_s: When the step became durable.
    """
    parent = f"{orders.job}@{effect.parent_step}" if effect.parent_step >= 0 else effect.begins_from
    return Manifest(
        job=orders.job,
        attempt=orders.attempt,
        step=effect.step,
        created_s=created_s,
        shares=tuple(ShareEntry(**alike(ShareEntry, share)) for share in effect.shares if share.file),
        state=effect.state,
        lineage=Lineage(
            code=orders.code.tree,
            commit=orders.code.commit,
            inputs=orders.inputs,
            number=orders.number,
            epoch=orders.epoch,
            generation=effect.generation,
            ranks=len(effect.shares),
            parent=parent,
        ),
    )
