"""The ranks of one agent: prepared, started, stopped and answered for, as the lead says."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import final

from mainspring.checkpoint import Fetched
from mainspring.domain import wire
from mainspring.domain.errors import DamagedData, MainspringError, NotFound, Unavailable
from mainspring.domain.ports import Clock
from mainspring.node.arena import Arena
from mainspring.node.links import free_port, host_port
from mainspring.node.rank_server import Duty, RankDesk, RankServer
from mainspring.node.ranks import LOG_BYTES_MAX, Guard, RankLog, RankProcess
from mainspring.node.stores import Share, Stores

PROGRESS_EVERY_S = 0.5  # What people and the lead see; the session itself reports up to ten times a second.
RANKS_AT_FULL_PACE = 1_000  # Beyond, each rank's progress is told less often, so that the lead's load stays the same.
STOP_GRACE_S = 20.0  # Engines end agents by force after 30 s (Kubernetes' default); the rest is for the last save.


@final
class Crew:
    """All ranks of one agent.

    Args:
        orders: The attempt's orders.
        host: The address other agents and ranks reach this machine under.
        code: Folder the commands run in.
        work: The agent's own folder.
        environment: The variables ranks start from.
        stores: The object store.
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
        environment: Mapping[str, str],
        stores: Stores,
        tell_lead: Callable[[object], None],
        clock: Clock,
    ) -> None:
        self._orders = orders
        self._host = host
        self._code = code
        self._work = work
        self._environment = environment
        self._stores = stores
        self._tell_lead = tell_lead
        self._clock = clock
        self._guard = Guard()
        self._folder = os.open(work, os.O_RDONLY | os.O_DIRECTORY)
        mine = sorted((place for place in orders.ranks if place.agent == orders.agent), key=lambda place: place.rank)
        seen: dict[str, int] = {}
        self._desks: dict[int, RankDesk] = {}
        for place in mine:
            local_rank = seen[place.role] = seen.get(place.role, -1) + 1
            self._desks[place.rank] = RankDesk(place=place, local_rank=local_rank, arena=Arena(work))
        self._local_sizes = {role: last + 1 for role, last in seen.items()}
        self._servers: list[RankServer] = []
        self._living: dict[int, RankProcess] = {}
        self._watches: dict[int, asyncio.Task[None]] = {}
        self._exits: dict[int, wire.RankExited] = {}
        self._generation = 0
        self._preparing = asyncio.Lock()
        self._prepared: wire.GenerationPrepared | None = None
        self._started = False
        self._fetched: Fetched | None = None
        self._stop_at_s: float | None = None
        ranks = sum({place.role: place.role_size for place in mine}.values())
        self._progress_every_s = PROGRESS_EVERY_S * max(1.0, ranks / RANKS_AT_FULL_PACE)

    @property
    def arena_steps(self) -> Mapping[str, tuple[int, ...]]:
        """Returns the steps each rank's arena holds."""
        return {str(rank): desk.arena.steps for rank, desk in self._desks.items()}

    @property
    def living(self) -> int:
        """Returns how many ranks live."""
        return len(self._living)

    async def listen(self) -> None:
        """Opens every rank's socket."""
        duty = Duty(welcome=self._welcome, stop=self._stop_reply, stepped=self._stepped, tell_lead=self._tell_lead)
        for rank, desk in self._desks.items():
            server = RankServer(desk, duty)
            await server.listen(self._socket(rank))
            self._servers.append(server)

    def retell(self) -> None:
        """Tells the lead again what it may have missed while the line was down."""
        if self._prepared is not None:
            self._tell_lead(self._prepared)
        for rank, process in self._living.items():
            self._tell_lead(wire.RankStarted(generation=self._generation, rank=rank, pid=process.pid))
        for desk in self._desks.values():
            for result in desk.results:
                self._tell_lead(result)
        for exited in self._exits.values():
            self._tell_lead(exited)

    # ------------------------------------------------------------ generations

    async def prepare(self, order: wire.PrepareGeneration) -> None:
        """Ends older ranks, makes the step ready, and tells the lead; repeats its answer when asked again.

        Args:
            order: What the lead wants.
        """
        if order.generation > self._generation:
            self._generation, self._prepared, self._started = order.generation, None, False
            for desk in self._desks.values():
                desk.generation = order.generation  # What older processes still have under way counts no more.
        async with self._preparing:
            if order.generation != self._generation:
                return
            answer = self._prepared or await self._make_ready(order)
            if order.generation == self._generation:
                self._prepared = answer if answer.ready else None
                self._tell_lead(answer)

    async def _make_ready(self, order: wire.PrepareGeneration) -> wire.GenerationPrepared:
        await self.end_ranks(grace_s=0.0)
        self._exits = {}
        for desk in self._desks.values():
            self._tell_progress(desk)
            desk.arena.discard_after(order.step)
        reason, corrupt = "", False
        try:
            plans = await self._plans(order)
            for rank, desk in self._desks.items():
                desk.restore = plans[rank]
        except (DamagedData, NotFound) as error:
            reason, corrupt = str(error), True
        except (MainspringError, OSError) as error:
            reason = str(error)
        first = [desk.place.role for desk in self._desks.values() if desk.place.role_rank == 0]
        return wire.GenerationPrepared(
            generation=order.generation,
            agent=self._orders.agent,
            ready=not reason,
            reason=reason,
            corrupt=corrupt,
            masters={role: f"{self._host}:{free_port(self._host)}" for role in first},
        )

    async def _plans(self, order: wire.PrepareGeneration) -> Mapping[int, wire.RestorePlan]:
        if order.step < 0:
            return {rank: wire.RestorePlan(step=-1) for rank in self._desks}
        if order.source == "arena":
            return {rank: await self._plan_from_arena(desk, order.step) for rank, desk in self._desks.items()}
        if self._fetched is None or self._fetched.manifest.step != order.step:
            self._fetched = None
            self._fetched = await self._stores.fetch(order.step, self._work / "restore")
        return {rank: self._plan_from_store(desk, self._fetched) for rank, desk in self._desks.items()}

    async def _plan_from_arena(self, desk: RankDesk, step: int) -> wire.RestorePlan:
        held = desk.arena.hold(step)
        if held is None:
            raise Unavailable("restore from the arena", on=f"rank {desk.place.rank}", got=f"no step {step} in it")
        try:
            if not await asyncio.to_thread(held.intact):
                raise DamagedData("restore from the arena", on=f"rank {desk.place.rank}", got="a crc32c that differs")
            return wire.RestorePlan(step=step, shards=desk.arena.shards_in_file(step), state=held.state, source="arena")
        finally:
            held.release()

    def _plan_from_store(self, desk: RankDesk, fetched: Fetched) -> wire.RestorePlan:
        prefix = self._prefix(desk)
        shards = tuple(
            replace(shard, path=shard.path.removeprefix(prefix), file=str(fetched.files[shard.file]))
            for shard in fetched.manifest.shards
            if shard.path.startswith(prefix)
        )
        state = {
            name.removeprefix(prefix): value
            for name, value in fetched.manifest.state.items()
            if name.startswith(prefix)
        }
        return wire.RestorePlan(step=fetched.manifest.step, shards=shards, state=state, source="store")

    async def start(self, order: wire.StartRanks) -> None:
        """Starts this generation's ranks, once.

        Args:
            order: What the lead wants.
        """
        if order.generation != self._generation or self._prepared is None or self._started:
            return
        self._started = True
        for rank, desk in self._desks.items():
            desk.joined, desk.results = False, []
            desk.coordinator = order.coordinators.get(desk.place.role, "")
            log = RankLog(self._work / f"rank-{rank}.log", bytes_max=LOG_BYTES_MAX)
            process = RankProcess(self._guard, log)
            role = next(role for role in self._orders.roles if role.role == desk.place.role)
            await process.start(role.command, environment=self._variables(desk, role, order), folder=self._code)
            self._living[rank] = process
            self._watches[rank] = asyncio.create_task(self._watch(rank, process, order.generation))
            if process.pid:
                self._tell_lead(wire.RankStarted(generation=order.generation, rank=rank, pid=process.pid))

    def _variables(self, desk: RankDesk, role: wire.RoleOrders, order: wire.StartRanks) -> Mapping[str, str]:
        place = desk.place
        host, port = host_port(order.masters[place.role])
        return {
            "PYTHONUNBUFFERED": "1",  # So that a rank's last words are in its log when it is killed.
            **self._environment,
            **role.environment,
            "MAINSPRING_SOCKET": self._socket(place.rank),
            "RANK": str(place.role_rank),
            "WORLD_SIZE": str(place.role_size),
            "LOCAL_RANK": str(desk.local_rank),
            "LOCAL_WORLD_SIZE": str(self._local_sizes[place.role]),
            "MASTER_ADDR": host,
            "MASTER_PORT": str(port),
        }

    async def _watch(self, rank: int, process: RankProcess, generation: int) -> None:
        exit_code = await process.ended()
        del self._living[rank]
        self._tell_progress(self._desks[rank])
        if generation == self._generation:
            self._exits[rank] = wire.RankExited(
                generation=generation, rank=rank, exit_code=exit_code, last_words=process.last_words
            )
            self._tell_lead(self._exits[rank])

    async def end_ranks(self, *, grace_s: float) -> None:
        """Ends every rank: asked first when there is a grace, then by force. Returns when none lives.

        Args:
            grace_s: How long they may take by themselves.
        """
        watches = list(self._watches.values())
        if grace_s > 0:
            self._signal(signal.SIGTERM)
            await _settled(watches, grace_s)
        self._signal(signal.SIGKILL)
        await _settled(watches, None)
        self._watches = {}

    def _signal(self, number: signal.Signals) -> None:
        for process in list(self._living.values()):
            process.signal(number)

    async def stop(self) -> None:
        """Asks programs to save and exit: those that joined by their next step report, others by SIGTERM."""
        if self._stop_at_s is not None:
            return
        self._stop_at_s = self._clock.monotonic_s() + STOP_GRACE_S
        for rank, process in list(self._living.items()):
            if not self._desks[rank].joined:
                process.signal(signal.SIGTERM)
        await _settled(list(self._watches.values()), STOP_GRACE_S)
        self._signal(signal.SIGKILL)

    # ------------------------------------------------------------ saves

    async def store(self, step: int) -> None:
        """Makes this agent's shares of a step durable, and tells the lead of each.

        Args:
            step: A step every rank's arena holds.
        """
        for rank, desk in self._desks.items():
            held = desk.arena.hold(step)
            if held is None:
                self._tell_lead(wire.StoreFailed(rank=rank, step=step, reason="no longer in the arena"))
                continue
            generation = self._generation
            name = f"{self._orders.attempt}-{self._orders.epoch}-{generation}-{rank}.bin"
            share = Share(rank=rank, step=step, file=name, prefix=self._prefix(desk), held=held)
            try:
                answer = await self._stores.keep(share)
                current = held.current
            finally:
                held.release()
            if generation == self._generation or current:
                self._tell_lead(answer)  # Else the attempt went on from before this step.

    def _prefix(self, desk: RankDesk) -> str:
        return f"{desk.place.role}/" if len(self._orders.roles) > 1 else ""

    # ------------------------------------------------------------ what ranks ask

    def _welcome(self, desk: RankDesk) -> wire.Welcome:
        return wire.Welcome(
            job=self._orders.job,
            attempt=self._orders.attempt,
            role=desk.place.role,
            rank=desk.place.role_rank,
            world_size=desk.place.role_size,
            local_rank=desk.local_rank,
            generation=desk.generation,
            coordinator=desk.coordinator,
            arena_path=desk.arena.path,
        )

    def _stop_reply(self) -> wire.StepReply:
        if self._stop_at_s is None:
            return wire.StepReply()
        return wire.StepReply(stop=True, grace_s=max(0.0, self._stop_at_s - self._clock.monotonic_s()))

    def _stepped(self, desk: RankDesk, report: wire.StepReport) -> None:
        blocked_s = report.snapshot_blocked_s + (desk.progress.snapshot_blocked_s if desk.progress else 0.0)
        desk.progress = wire.RankProgress(
            generation=desk.generation,
            rank=desk.place.rank,
            step=report.step,
            time_s=self._clock.now_s(),
            metrics=report.metrics or (desk.progress.metrics if desk.progress else {}),
            snapshot_blocked_s=blocked_s,
        )
        fresh = desk.told_generation != desk.generation
        if fresh or self._clock.monotonic_s() - desk.told_s >= self._progress_every_s:
            self._tell_progress(desk)

    def _tell_progress(self, desk: RankDesk) -> None:
        if desk.progress is not None:
            self._tell_lead(desk.progress)
            desk.told_s, desk.told_generation = self._clock.monotonic_s(), desk.progress.generation
            desk.progress = None

    def _socket(self, rank: int) -> str:
        # Through our descriptor the path stays short, however deep the folder: Unix sockets allow 107 bytes.
        return f"/proc/{os.getpid()}/fd/{self._folder}/rank-{rank}.sock"

    async def close(self) -> None:
        """Ends what is left: ranks, sockets, the guard."""
        await self.end_ranks(grace_s=0.0)
        for server in self._servers:
            server.close()
        await asyncio.to_thread(self._guard.close)


async def _settled(tasks: Sequence[asyncio.Task[None]], limit_s: float | None) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=limit_s)
