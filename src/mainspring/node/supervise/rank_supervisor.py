"""Rank supervision on one agent: ranks prepared, started, watched, stopped and answered for, as the lead says."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import final

from mainspring.domain import wire
from mainspring.domain.errors import DamagedData, MainspringError, NotFound
from mainspring.domain.ids import RoleName
from mainspring.domain.ports import Clock
from mainspring.node.net.connection import address_of, free_port, host_port
from mainspring.node.process.stacks import STUCK, dumped, process_state
from mainspring.node.supervise.processes import RankProcesses
from mainspring.node.supervise.rank_server import RankConnection, RankSlot, ViewAccess, ended_all, signal_all
from mainspring.node.supervise.snapshot_manager import SnapshotManager
from mainspring.node.supervise.standby import Standbys
from mainspring.node.tasks import Tasks

PROGRESS_EVERY_S = 0.5  # What people and the lead see; the session itself reports up to ten times a second.
RANKS_AT_FULL_PACE = 1_000  # Beyond, each rank's progress is told less often, so that the lead's load stays the same.
SAMPLES_TOLD_MAX = 256  # Step reports told at once: twice what comes between two tellings of 12,000 ranks.


@dataclass(slots=True)
class _Generation:
    """What has come of one generation here; nothing of it counts in the next.

    Args:
        prepared: The answer it was given, once that is good.
        started: Whether ranks were started.
        leave: When they shall leave, None while nobody asks.
        leave_by_s: Until when, on the monotonic clock.
        left: Who has left while its process goes on.
    """

    order: wire.PrepareGeneration
    prepared: wire.GenerationPrepared | None = None
    started: bool = False
    leave: wire.LeaveAt | None = None
    leave_by_s: float = 0.0
    exits: dict[int, wire.RankExited] = field(default_factory=dict)
    left: dict[int, wire.RankLeft] = field(default_factory=dict)


@final
class RankSupervisor:
    """All ranks of one agent.

    Args:
        orders: The attempt's orders.
        host: The address other agents and ranks reach this machine under.
        tell_lead: Sends a message to the lead.
        views: What gives ranks credentials to read views by; None where they use what they have.
    """

    def __init__(
        self,
        *,
        orders: wire.Orders,
        host: str,
        processes: RankProcesses,
        keeper: SnapshotManager,
        tell_lead: Callable[[wire.AgentToLead], None],
        clock: Clock,
        views: ViewAccess | None = None,
    ) -> None:
        self.tell_lead = tell_lead
        self.views = views
        self._orders = orders
        self._host = host
        self._processes = processes
        self._keeper = keeper
        self._clock = clock
        self._desks = keeper.desks
        self._assigned: dict[int, RankConnection] = {}  # Places that have a living process.
        self._standbys = Standbys(lambda role: self._begin(role, {}))
        self._allowed: set[RoleName] = set()  # Roles whose program said so here.
        self._changing = asyncio.Lock()
        self._now = _Generation(wire.PrepareGeneration(generation=0, step=-1, source=""))
        self._every = 1
        self._tasks = Tasks()

    @property
    def generation(self) -> int:
        """Returns the newest generation the lead has declared."""
        return self._now.order.generation

    @property
    def agent(self) -> int:
        """Returns the agent's number."""
        return self._orders.agent

    @property
    def living(self) -> int:
        """Returns how many of its places have a living process."""
        return len(self._assigned)

    def adopt(self, orders: wire.Orders) -> None:
        """Follows another lead from now on."""
        self._orders = orders
        self._processes.secrets.renew(orders.secrets)

    def retell(self) -> None:
        """Tells the lead again what it may have missed while the line was down."""
        if self._now.prepared is not None:
            self.tell_lead(self._now.prepared)
        for rank, life in self._assigned.items():
            if life.generation == self.generation:
                self.tell_lead(wire.RankStarted(generation=self.generation, rank=rank, pid=life.process.pid))
        for desk in self._desks.values():
            if desk.told is not None and desk.told.generation == self.generation:
                self.tell_lead(desk.told)
            if desk.serving is not None and desk.serving.generation == self.generation:
                self.tell_lead(desk.serving)
        for role in sorted(self._allowed):
            self.tell_lead(wire.StandbyAllowed(role=role))
        ends: list[wire.AgentToLead] = [*self._now.left.values(), *self._now.exits.values()]
        for message in ends:
            self.tell_lead(message)
        for desk in self._desks.values():
            for result in desk.results:
                self.tell_lead(result)

    # ------------------------------------------------------------ generations

    async def prepare(self, order: wire.PrepareGeneration) -> None:
        """Ends older ranks, makes the step ready, and tells the lead; repeats its answer when asked again.

        Ranks whose program can go on in the next generation are waited for, and stay when they come in time.
        """
        if order.generation > self.generation:
            self._now = _Generation(order)  # What older processes still have under way counts no more.
        async with self._changing:
            if order.generation != self.generation:
                return
            answer = self._now.prepared or await self._make_ready(order)
            if order.generation == self.generation:
                self._now.prepared = answer if answer.ready else None
                self.tell_lead(answer)
                if answer.ready and not order.places:
                    self._keeper.copy_resumed(order)  # Others do so once they step: until then it would slow them.

    async def _make_ready(self, order: wire.PrepareGeneration) -> wire.GenerationPrepared:
        self._assign(order)
        reason, corrupt = "", False
        try:
            await self._leave_older(order)
            for desk in self._desks.values():
                self._tell_progress(desk)
            await self._keeper.prepare(order)
        except (DamagedData, NotFound) as error:
            reason, corrupt = str(error), True
        except (MainspringError, OSError) as error:
            reason = str(error)
        first = [place.role for place in order.places if place.role_rank == 0]
        return wire.GenerationPrepared(
            generation=order.generation,
            agent=self._orders.agent,
            ready=not reason,
            reason=reason,
            corrupt=corrupt,
            masters={role: address_of(self._host, free_port(self._host)) for role in first},
        )

    def _assign(self, order: wire.PrepareGeneration) -> None:
        """Gives every place its rank in the generation, or none."""
        for desk in self._desks.values():
            desk.place = None
        for place in order.places:
            desk = self._desks[place.rank]
            desk.place, desk.results = place, []
            desk.served.append(order.generation)
            desk.local_ranks = tuple(sorted(other.role_rank for other in order.places if other.role == place.role))
            desk.local_rank = desk.local_ranks.index(place.role_rank)

    async def _leave_older(self, order: wire.PrepareGeneration) -> None:
        """Waits for processes that go on in this generation; ends the others.

        Raises:
            Unavailable: A process cannot be ended.
        """
        staying: list[RankConnection] = []
        going: list[RankConnection] = []
        for rank, life in self._assigned.items():
            wanted = self._desks[rank].place is not None and order.reconnect_s > 0
            stays = wanted and life.may_reconnect and process_state(life.program) not in STUCK
            (staying if stays else going).append(life)
        signal_all(going, signal.SIGKILL)
        if staying:
            idled = [asyncio.ensure_future(life.idled.wait()) for life in staying]
            await asyncio.wait(idled, timeout=order.reconnect_s)
            for waiting in idled:
                waiting.cancel()
        await self._processes.kill([*going, *(life for life in staying if not life.idle)])

    async def start(self, order: wire.StartRanks) -> None:
        """Starts this generation's ranks, once: in processes that reconnect, in spare ones, else in new ones."""
        async with self._changing:
            if order.generation != self.generation or self._now.prepared is None or self._now.started:
                return
            self._now.started = True
            self._every = order.snapshot_every
            for rank, desk in self._desks.items():
                if desk.place is not None:
                    desk.coordinator = order.coordinators.get(desk.place.role, "")
                    await self._start_rank(rank, desk, desk.place, order)

    async def _start_rank(self, rank: int, desk: RankSlot, place: wire.RankPlace, order: wire.StartRanks) -> None:
        life, how = self._assigned.get(rank), "reconnected"
        if life is None:
            life, how = self._standbys.take(place.role), "standby"
            if life is not None:
                self._processes.adopt(life, rank)
        if life is None:
            how = "started"
            life = await self._begin(place.role, self._variables(desk, place, order), rank=rank)
        self._assigned[rank] = life
        life.assign(desk, order.generation)
        if life.process.pid:
            self.tell_lead(wire.RankStarted(generation=order.generation, rank=rank, pid=life.process.pid, how=how))

    def _variables(self, desk: RankSlot, place: wire.RankPlace, order: wire.StartRanks) -> Mapping[str, str]:
        host, port = host_port(order.masters.get(place.role, address_of(self._host, 0)))
        return {
            "RANK": str(place.role_rank),
            "WORLD_SIZE": str(place.role_size),
            "LOCAL_RANK": str(desk.local_rank),
            "LOCAL_WORLD_SIZE": str(len(desk.local_ranks)),
            "MASTER_ADDR": host,
            "MASTER_PORT": str(port),
        }

    # ------------------------------------------------------------ processes

    async def _begin(self, role: RoleName, variables: Mapping[str, str], *, rank: int | None = None) -> RankConnection:
        """Returns a process of the role's program."""
        life = await self._processes.start(self._role_orders(role), variables, self, self._keeper, rank=rank)
        life.watch = asyncio.create_task(self._watch(life))
        return life

    async def _watch(self, life: RankConnection) -> None:
        self._tell_exit(life, await life.process.doomed())
        exit_code = await life.process.ended()
        self._processes.ended(life)
        if life.desk is None:
            self._standbys.lost(life)
        elif self._assigned.get(life.desk.rank) is life:
            del self._assigned[life.desk.rank]
        self._tell_exit(life, exit_code)

    def _tell_exit(self, life: RankConnection, exit_code: int | None) -> None:
        desk = life.desk
        if exit_code is not None and desk is not None and self.is_current(life) and desk.rank not in self._now.exits:
            self._tell_progress(desk)
            self._now.exits[desk.rank] = life.exited(exit_code)
            self.tell_lead(self._now.exits[desk.rank])

    async def end_ranks(self, *, grace_s: float) -> None:
        """Ends every process: asked first when there is a grace, then by force.

        Raises:
            Unavailable: A process cannot be ended.
        """
        await self._processes.end(grace_s=grace_s)

    async def end_running(self) -> None:
        """Ends by force every process that is a rank now; those that wait for a generation can do no harm and stay.

        Raises:
            Unavailable: A process cannot be ended.
        """
        await self._processes.end_running()

    # ------------------------------------------------------------ leaving

    async def leave(self, order: wire.LeaveAt) -> None:
        """Tells programs to finish a step, save, and leave; those that never joined get SIGTERM instead.

        Args:
            order: What the lead wants; a repeated one changes only the bound.
        """
        if order.generation != self.generation:
            return
        first = self._now.leave is None
        self._now.leave, self._now.leave_by_s = order, self._clock.monotonic_s() + order.grace_s
        lives = list(self._assigned.values())
        if first:
            signal_all([life for life in lives if life.hello is None], signal.SIGTERM)
        if order.then is wire.Then.EXIT:
            await ended_all(lives, order.grace_s)
            if self._now.leave is order:
                await self._processes.kill([life for life in lives if self.is_current(life)])

    @property
    def told_to_leave(self) -> bool:
        """Returns whether this generation's ranks have been told to leave."""
        return self._now.leave is not None

    async def dump(self, order: wire.DumpStacks) -> None:
        """Tells the lead where every rank of the generation is."""
        if order.generation == self.generation:
            lives = [life for life in self._assigned.values() if self.is_current(life)]
            await asyncio.gather(*(self._dump_one(life) for life in lives))

    async def _dump_one(self, life: RankConnection) -> None:
        assert life.desk is not None
        seen = await dumped(life.process, life.program)
        self.tell_lead(
            wire.StacksDumped(
                generation=life.generation,
                rank=life.desk.rank,
                process_state=seen.process_state,
                top=seen.top,
                stacks=seen.text,
            )
        )

    def profile(self, order: wire.TakeProfile) -> None:
        """Has some of the generation's ranks profile their next steps, once they report."""
        for rank, life in self._assigned.items():
            known = life.profile is not None and life.profile.id == order.id
            if order.generation == self.generation and rank in order.ranks and self.is_current(life) and not known:
                life.profile = wire.ProfileWanted(id=order.id, steps=order.steps)
                if life.hello is None:
                    failure = "its program never joined"
                    self.tell_lead(wire.ProfileKept(rank=rank, id=order.id, failure=failure))

    def pace(self, order: wire.SnapshotPace) -> None:
        """Lets ranks snapshot at another pace from now on."""
        self._every = order.every

    # ------------------------------------------------------------ what ranks ask (see `Supervisor`)

    def is_current(self, life: RankConnection) -> bool:
        """Returns whether the process belongs to the generation that is running; see `Supervisor`."""
        return life.generation == self.generation

    def welcome(self, life: RankConnection) -> wire.Welcome:
        """Returns who the process is; see `Supervisor`."""
        desk = life.desk
        assert desk is not None
        assert desk.place is not None
        return wire.Welcome(
            job=self._orders.job,
            attempt=self._orders.attempt,
            role=desk.place.role,
            rank=desk.place.role_rank,
            world_size=desk.place.role_size,
            local_rank=desk.local_rank,
            generation=life.generation,
            coordinator=desk.coordinator,
            arena_path=desk.arena.path,
            local_ranks=desk.local_ranks,
            snapshot_every=self._every,
            shrunk_size=self._shrunk_size(desk.place, len(desk.local_ranks)),
        )

    def _shrunk_size(self, place: wire.RankPlace, ranks_each: int) -> int:
        """Returns how many ranks a place's role goes on with once an agent is lost; each has as many as this one."""
        return self._role_orders(place.role).size(place.role_size - ranks_each, full=place.role_size)

    def _role_orders(self, role: RoleName) -> wire.RoleOrders:
        return next(orders for orders in self._orders.roles if orders.role == role)

    def step_reply(self, life: RankConnection) -> wire.StepReply:
        """Returns whether, when and how programs must leave, and the pace of snapshots; see `Supervisor`."""
        if not self.is_current(life):
            return wire.StepReply(stop=True, then=wire.Then.REJOIN, snapshot_every=self._every)
        leave = self._now.leave
        if leave is None:
            return wire.StepReply(snapshot_every=self._every, profile=life.profile)
        grace_s = max(0.0, self._now.leave_by_s - self._clock.monotonic_s())
        return wire.StepReply(
            stop=True, stop_at=leave.step, grace_s=grace_s, then=leave.then, snapshot_every=self._every
        )

    def idle(self, life: RankConnection) -> None:
        """Tells the lead that a rank has left its generation; see `Supervisor`."""
        desk = life.desk
        if desk is None or not self.is_current(life):
            return
        self._tell_progress(desk)
        words = "" if self._now.leave is not None else life.process.log.last_words
        self._now.left[desk.rank] = wire.RankLeft(generation=life.generation, rank=desk.rank, words=words)
        self.tell_lead(self._now.left[desk.rank])

    def stepped(self, desk: RankSlot, report: wire.StepReport) -> None:
        """Tells the lead of progress, not more often than it needs; see `Supervisor`."""
        untold, now_s = desk.progress, self._clock.now_s()
        self._keep_sample(desk, report, now_s)
        seconds = dict(untold.seconds) if untold is not None else {}
        for use, spent_s in report.seconds.items():
            seconds[use] = seconds.get(use, 0.0) + spent_s
        desk.progress = wire.RankProgress(
            generation=self.generation,
            rank=desk.rank,
            step=report.step,
            time_s=now_s - report.ago_s,
            metrics=report.metrics or (untold.metrics if untold is not None else {}),
            seconds=seconds,
        )
        fresh = desk.stepped_in != self.generation
        if fresh:
            desk.stepped_in = self.generation
            self._generation_steps()
        if fresh or self._clock.monotonic_s() - desk.told_s >= self._progress_every_s():
            self._tell_progress(desk)

    def serves(self, desk: RankSlot, report: wire.ServingReport) -> None:
        """Tells the lead how a rank serves: at once what clients are sent by, its load as often as progress."""
        told, now_s = desk.serving, self._clock.monotonic_s()
        before = None if told is None or told.generation != self.generation else told.serving
        now = report.serving.at(self._host)  # A program cannot send clients to other machines.
        same = before is not None and (before.address, before.ready) == (now.address, now.ready)
        if not same or now_s - desk.serving_s >= self._progress_every_s():
            desk.serving = wire.RankServing(generation=self.generation, rank=desk.rank, serving=now)
            desk.serving_s = now_s
            self.tell_lead(desk.serving)

    def _keep_sample(self, desk: RankSlot, report: wire.StepReport, now_s: float) -> None:
        """Keeps a step report of a role's first rank for the lead; one that is only repeated says nothing new."""
        place = desk.place
        newest = desk.samples[-1].step if desk.samples else desk.told.step if desk.told is not None else -1
        fresh = desk.stepped_in != self.generation or report.step > newest or report.metrics or report.not_finite
        if place is None or place.role_rank != 0 or not fresh:
            return
        if len(desk.samples) >= SAMPLES_TOLD_MAX:
            del desk.samples[::2]  # The lead is away: every second of those that wait says as much of a curve.
        desk.samples.append(
            wire.StepSample(
                step=report.step,
                time_s=now_s - report.ago_s,
                metrics=report.metrics,
                seconds=report.seconds,
                not_finite=report.not_finite,
            )
        )

    def _generation_steps(self) -> None:
        """Once all ranks here step: gives up what was staged, copies what was resumed from, starts spare processes."""
        desks = [desk for desk in self._desks.values() if desk.place is not None]
        if any(desk.stepped_in != self.generation for desk in desks):
            return
        self._keeper.release()
        self._keeper.copy_resumed(self._now.order)
        for desk in desks:
            life = self._assigned.get(desk.rank)
            if life is not None and life.hello is not None and life.hello.standby:
                self._allowed.add(life.role)
        for role in sorted(self._allowed):
            self.tell_lead(wire.StandbyAllowed(role=role))
            self._tasks.spawn(self._standbys.fill(role))

    async def stand_by(self, allowed: wire.StandbyAllowed) -> None:
        """Starts a spare process ahead where a place stands by."""
        idle = [place for place in self._orders.ranks if place.agent == self.agent and place.rank not in self._assigned]
        if any(place.role == allowed.role for place in idle):
            await self._standbys.fill(allowed.role)

    def _progress_every_s(self) -> float:
        sizes = {desk.place.role: desk.place.role_size for desk in self._desks.values() if desk.place is not None}
        return PROGRESS_EVERY_S * max(1.0, sum(sizes.values()) / RANKS_AT_FULL_PACE)

    def _tell_progress(self, desk: RankSlot) -> None:
        if desk.progress is not None:
            self.tell_lead(replace(desk.progress, samples=tuple(desk.samples)))
            desk.told, desk.told_s = replace(desk.progress, seconds={}), self._clock.monotonic_s()
            desk.progress = None
            desk.samples = []

    async def close(self) -> None:
        """Ends what is left: ranks, sockets, the guard."""
        self._tasks.cancel()
        await self._processes.close()
