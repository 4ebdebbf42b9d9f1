"""The ranks of one agent: prepared, started, watched, stopped and answered for, as the lead says."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import final

from mainspring.domain import wire
from mainspring.domain.errors import DamagedData, MainspringError, NotFound, Unavailable
from mainspring.domain.ids import RoleName
from mainspring.domain.ports import Clock
from mainspring.node.net.connection import address_of, free_port, host_port
from mainspring.node.process.guard import SOCKET_VARIABLE
from mainspring.node.process.limits import MemoryLimits
from mainspring.node.process.ranks import LOG_BYTES_MAX, Guard, RankLog, RankProcess
from mainspring.node.process.stacks import STUCK, dumped, process_state
from mainspring.node.supervise.rank_server import RankConnection, RankSlot, ended_all, signal_all
from mainspring.node.supervise.snapshot_manager import SnapshotManager
from mainspring.node.supervise.standby import Standbys

PROGRESS_EVERY_S = 0.5  # What people and the lead see; the session itself reports up to ten times a second.
RANKS_AT_FULL_PACE = 1_000  # Beyond, each rank's progress is told less often, so that the lead's load stays the same.
KILL_LIMIT_S = 30.0  # A process the kernel does not let go within this (a dead disk, a driver) makes the node unfit.


@final
class RankSupervisor:
    """All ranks of one agent.

    Args:
        orders: The attempt's orders.
        host: The address other agents and ranks reach this machine under.
        code: Folder the commands run in.
        work: The agent's own folder.
        reports: Where ranks' output goes.
        environment: The variables ranks start from.
        keeper: What outlives ranks.
        limits: Bounds ranks' memory.
        tell_lead: Sends a message to the lead.
        clock: Time.
    """

    def __init__(
        self,
        *,
        orders: wire.Orders,
        host: str,
        code: Path,
        work: Path,
        reports: Path,
        environment: Mapping[str, str],
        keeper: SnapshotManager,
        limits: MemoryLimits,
        tell_lead: Callable[[wire.AgentToLead], None],
        clock: Clock,
    ) -> None:
        self.tell_lead = tell_lead
        self.generation = 0
        self._orders = orders
        self._host = host
        self._code = code
        self._reports = reports
        self._environment = environment
        self._keeper = keeper
        self._limits = limits
        self._clock = clock
        self._folder = os.open(work, os.O_RDONLY | os.O_DIRECTORY)
        self._guard = Guard(self._socket(""))
        self._desks = keeper.desks
        self._seats: dict[int, RankConnection] = {}  # Places that have a living process.
        self._lives: list[RankConnection] = []
        self._count = 0
        self._standbys = Standbys(lambda role: self._begin(role, "", {}))
        self._allowed: set[RoleName] = set()  # Roles whose program said so here.
        self._exits: dict[int, wire.RankExited] = {}
        self._left: dict[int, wire.RankLeft] = {}
        self._changing = asyncio.Lock()
        self._order = wire.PrepareGeneration(generation=0, step=-1, source="")
        self._prepared: wire.GenerationPrepared | None = None
        self._started = False
        self._every = 1
        self._leave: wire.LeaveAt | None = None
        self._leave_by_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def agent(self) -> int:
        """Returns the agent's number."""
        return self._orders.agent

    @property
    def living(self) -> int:
        """Returns how many of its places have a living process."""
        return len(self._seats)

    def adopt(self, orders: wire.Orders) -> None:
        """Follows another lead from now on.

        Args:
            orders: The attempt's orders under that lead.
        """
        self._orders = orders

    def retell(self) -> None:
        """Tells the lead again what it may have missed while the line was down."""
        if self._prepared is not None:
            self.tell_lead(self._prepared)
        for rank, life in self._seats.items():
            if life.generation == self.generation:
                self.tell_lead(wire.RankStarted(generation=self.generation, rank=rank, pid=life.process.pid))
        for role in sorted(self._allowed):
            self.tell_lead(wire.StandbyAllowed(role=role))
        ends: list[wire.AgentToLead] = [*self._left.values(), *self._exits.values()]
        for message in ends:
            self.tell_lead(message)
        for desk in self._desks.values():
            for result in desk.results:
                self.tell_lead(result)

    # ------------------------------------------------------------ generations

    async def prepare(self, order: wire.PrepareGeneration) -> None:
        """Ends older ranks, makes the step ready, and tells the lead; repeats its answer when asked again.

        Ranks whose program can go on in the next generation are waited for, and stay when they come in time.

        Args:
            order: What the lead wants.
        """
        if order.generation > self.generation:
            # What older processes still have under way counts no more.
            self.generation, self._order, self._prepared, self._started = order.generation, order, None, False
            self._leave = None
            self._exits, self._left = {}, {}
        async with self._changing:
            if order.generation != self.generation:
                return
            answer = self._prepared or await self._make_ready(order)
            if order.generation == self.generation:
                self._prepared = answer if answer.ready else None
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
        for rank, life in self._seats.items():
            wanted = self._desks[rank].place is not None and order.reconnect_s > 0
            stays = wanted and life.may_reconnect and process_state(life.program) not in STUCK
            (staying if stays else going).append(life)
        signal_all(going, signal.SIGKILL)
        if staying:
            resting = [asyncio.ensure_future(life.resting.wait()) for life in staying]
            await asyncio.wait(resting, timeout=order.reconnect_s)
            for waiting in resting:
                waiting.cancel()
        await self._kill([*going, *(life for life in staying if not life.rests)])

    async def start(self, order: wire.StartRanks) -> None:
        """Starts this generation's ranks, once: in processes that reconnect, in spare ones, else in new ones.

        Args:
            order: What the lead wants.
        """
        async with self._changing:
            if order.generation != self.generation or self._prepared is None or self._started:
                return
            self._started = True
            self._every = order.snapshot_every
            for rank, desk in self._desks.items():
                if desk.place is not None:
                    desk.coordinator = order.coordinators.get(desk.place.role, "")
                    await self._start_rank(rank, desk, desk.place, order)

    async def _start_rank(self, rank: int, desk: RankSlot, place: wire.RankPlace, order: wire.StartRanks) -> None:
        life, how = self._seats.get(rank), "reconnected"
        if life is None:
            life, how = self._standbys.take(place.role), "standby"
            if life is not None:
                life.process.log.move(self._reports / f"rank-{rank}.log")
        if life is None:
            how = "started"
            life = await self._begin(place.role, f"rank-{rank}.log", self._variables(desk, place, order))
        self._seats[rank] = life
        life.seat(desk, order.generation)
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

    async def _begin(self, role: RoleName, log: str, variables: Mapping[str, str]) -> RankConnection:
        """Returns a process of the role's program."""
        self._count += 1
        orders = next(orders for orders in self._orders.roles if orders.role == role)
        socket = self._socket(f"{self._count}.sock")
        limit = self._limits.limit(orders.memory_mib)
        file = RankLog(self._reports / (log or f"standby-{self._count}.log"), bytes_max=LOG_BYTES_MAX)
        life = RankConnection(role, RankProcess(self._guard, file, socket, limit), self, self._keeper)
        self._lives.append(life)
        await life.listen(socket)
        environment = {
            "PYTHONUNBUFFERED": "1",  # So that a rank's last words are in its log when it is killed.
            **self._environment,
            **orders.environment,
            **variables,
            SOCKET_VARIABLE: socket,
        }
        await life.process.start(orders.command, environment=environment, folder=self._code)
        life.watch = asyncio.create_task(self._watch(life))
        return life

    async def _watch(self, life: RankConnection) -> None:
        self._tell_exit(life, await life.process.doomed())
        exit_code = await life.process.ended()
        life.close()
        self._lives.remove(life)
        if life.desk is None:
            self._standbys.lost(life)
        elif self._seats.get(life.desk.rank) is life:
            del self._seats[life.desk.rank]
        self._tell_exit(life, exit_code)

    def _tell_exit(self, life: RankConnection, exit_code: int | None) -> None:
        desk = life.desk
        if exit_code is not None and desk is not None and self.is_current(life) and desk.rank not in self._exits:
            self._tell_progress(desk)
            self._exits[desk.rank] = life.exited(exit_code)
            self.tell_lead(self._exits[desk.rank])

    async def end_ranks(self, *, grace_s: float) -> None:
        """Ends every process: asked first when there is a grace, then by force.

        Args:
            grace_s: How long they may take by themselves.

        Raises:
            Unavailable: A process cannot be ended.
        """
        if grace_s > 0:
            lives = [life for life in self._lives if not life.rests]  # Those that rest have nothing left to do.
            signal_all(lives, signal.SIGTERM)
            await ended_all(lives, grace_s)
        await self._kill(self._lives)

    async def end_running(self) -> None:
        """Ends by force every process that is a rank now; those that wait for a generation can do no harm and stay.

        Raises:
            Unavailable: A process cannot be ended.
        """
        await self._kill([life for life in self._lives if not life.rests])

    async def _kill(self, lives: Iterable[RankConnection]) -> None:
        mortal = list(lives)
        signal_all(mortal, signal.SIGKILL)
        await ended_all(mortal, KILL_LIMIT_S)
        alive = [life.process.pid for life in mortal if not life.over]
        if alive:
            raise Unavailable("end ranks", on=f"processes {alive[:20]}", got="the kernel does not let them go")

    # ------------------------------------------------------------ leaving

    async def leave(self, order: wire.LeaveAt) -> None:
        """Tells programs to finish a step, save, and leave; those that never joined get SIGTERM instead.

        Args:
            order: What the lead wants; a repeated one changes only the bound.
        """
        if order.generation != self.generation:
            return
        first = self._leave is None
        self._leave, self._leave_by_s = order, self._clock.monotonic_s() + order.grace_s
        lives = list(self._seats.values())
        if first:
            signal_all([life for life in lives if life.hello is None], signal.SIGTERM)
        if order.then is wire.Then.EXIT:
            await ended_all(lives, order.grace_s)
            if self._leave is order:
                await self._kill([life for life in lives if self.is_current(life)])

    @property
    def told_to_leave(self) -> bool:
        """Returns whether this generation's ranks have been told to leave."""
        return self._leave is not None

    async def dump(self, order: wire.DumpStacks) -> None:
        """Tells the lead where every rank of the generation is.

        Args:
            order: What the lead wants.
        """
        if order.generation == self.generation:
            lives = [life for life in self._seats.values() if self.is_current(life)]
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

    def pace(self, order: wire.SnapshotPace) -> None:
        """Lets ranks snapshot at another pace from now on.

        Args:
            order: What the lead wants.
        """
        self._every = order.every

    # ------------------------------------------------------------ what ranks ask (see `Duty`)

    def is_current(self, life: RankConnection) -> bool:
        """Returns whether the process belongs to the generation that is running; see `Duty`."""
        return life.generation == self.generation

    def welcome(self, life: RankConnection) -> wire.Welcome:
        """Returns who the process is; see `Duty`."""
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
        )

    def step_reply(self, life: RankConnection) -> wire.StepReply:
        """Returns whether, when and how programs must leave, and the pace of snapshots; see `Duty`."""
        if not self.is_current(life):
            return wire.StepReply(stop=True, then=wire.Then.REJOIN, snapshot_every=self._every)
        leave = self._leave
        if leave is None:
            return wire.StepReply(snapshot_every=self._every)
        grace_s = max(0.0, self._leave_by_s - self._clock.monotonic_s())
        return wire.StepReply(
            stop=True, stop_at=leave.step, grace_s=grace_s, then=leave.then, snapshot_every=self._every
        )

    def rests(self, life: RankConnection) -> None:
        """Tells the lead that a rank has left its generation; see `Duty`."""
        desk = life.desk
        if desk is None or not self.is_current(life):
            return
        self._tell_progress(desk)
        words = "" if self._leave is not None else life.process.log.last_words
        self._left[desk.rank] = wire.RankLeft(generation=life.generation, rank=desk.rank, words=words)
        self.tell_lead(self._left[desk.rank])

    def stepped(self, desk: RankSlot, report: wire.StepReport) -> None:
        """Tells the lead of progress, not more often than it needs; see `Duty`."""
        untold = desk.progress
        seconds = dict(untold.seconds) if untold is not None else {}
        for use, spent_s in report.seconds.items():
            seconds[use] = seconds.get(use, 0.0) + spent_s
        desk.progress = wire.RankProgress(
            generation=self.generation,
            rank=desk.rank,
            step=report.step,
            time_s=self._clock.now_s(),
            metrics=report.metrics or (untold.metrics if untold is not None else {}),
            seconds=seconds,
        )
        fresh = desk.stepped_in != self.generation
        if fresh:
            desk.stepped_in = self.generation
            self._generation_steps()
        if fresh or self._clock.monotonic_s() - desk.told_s >= self._progress_every_s():
            self._tell_progress(desk)

    def _generation_steps(self) -> None:
        """Once all ranks here step: gives up what was staged, copies what was resumed from, starts spare processes."""
        desks = [desk for desk in self._desks.values() if desk.place is not None]
        if any(desk.stepped_in != self.generation for desk in desks):
            return
        self._keeper.release()
        self._keeper.copy_resumed(self._order)
        for desk in desks:
            life = self._seats.get(desk.rank)
            if life is not None and life.hello is not None and life.hello.standby:
                self._allowed.add(life.role)
        for role in sorted(self._allowed):
            self.tell_lead(wire.StandbyAllowed(role=role))
            self._spawn(self._standbys.fill(role))

    async def stand_by(self, allowed: wire.StandbyAllowed) -> None:
        """Starts a spare process ahead where a place stands by.

        Args:
            allowed: What the lead knows from other agents.
        """
        idle = [place for place in self._orders.ranks if place.agent == self.agent and place.rank not in self._seats]
        if any(place.role == allowed.role for place in idle):
            await self._standbys.fill(allowed.role)

    def _progress_every_s(self) -> float:
        sizes = {desk.place.role: desk.place.role_size for desk in self._desks.values() if desk.place is not None}
        return PROGRESS_EVERY_S * max(1.0, sum(sizes.values()) / RANKS_AT_FULL_PACE)

    def _tell_progress(self, desk: RankSlot) -> None:
        if desk.progress is not None:
            self.tell_lead(desk.progress)
            desk.told_s, desk.progress = self._clock.monotonic_s(), None

    # ------------------------------------------------------------ the rest

    def _socket(self, name: str) -> str:
        # Through our descriptor the path stays short, however deep the folder: Unix sockets allow 107 bytes.
        return f"/proc/{os.getpid()}/fd/{self._folder}/{name}"

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Ends what is left: ranks, sockets, the guard."""
        for task in list(self._tasks):
            task.cancel()
        try:
            await self.end_ranks(grace_s=0.0)
        finally:
            await asyncio.to_thread(self._guard.close)
            os.close(self._folder)
