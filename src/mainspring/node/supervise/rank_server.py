"""Server of one rank process: its Unix socket, who it is in each generation, the answers to what it asks."""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, final

from mainspring.domain import wire
from mainspring.domain.errors import Unavailable
from mainspring.domain.ids import RoleName
from mainspring.node.net.connection import Connection
from mainspring.node.process.ranks import RankProcess
from mainspring.node.snapshots.arena import Arena
from mainspring.node.snapshots.work import SnapshotWork
from mainspring.node.supervise.profiles import Profiles
from mainspring.node.supervise.rank_files import RankSockets, Serve

HELLO_LIMIT_S = 10.0  # The session says hello as it connects.
RESULTS_KEPT_MAX = 100  # To be told again when the lead's line was down.
SERVED_KEPT_MAX = 16  # An arena holds two snapshots; generations older than that many are long resumed from elsewhere.
RECONNECTS_MAX = 16  # Then a fresh process: what frameworks leak by reconnecting stays bounded, on both sides.


@dataclass(slots=True)
class RankSlot:
    """What the agent knows of one of its places, across generations and processes.

    Args:
        place: Who runs there in this generation, None while it stands by.
        local_rank: Its place among its role's ranks on this node.
        coordinator: The JAX service of its role in this generation.
        served: Generations it had a rank in, newest last.
        progress: Its newest progress that the lead has not been told.
        samples: Its step reports since then one by one, where they are kept.
        told: What the lead was told last of its progress, but for where its time went, and samples.
        told_s: When that was.
        serving: What the lead was told last of how it serves.
        serving_s: When that was.
        stepped_in: The newest generation it has reported a step of.
        results: What its program gave as results, and told of steps that went wrong, newest last; of words that all is
            well, which come again and again, the newest alone.
        results_told: How many it gave and told, in all generations.
    """

    rank: int
    arena: Arena
    place: wire.RankPlace | None = None
    local_rank: int = 0
    local_ranks: tuple[int, ...] = ()
    coordinator: str = ""
    served: deque[int] = field(default_factory=lambda: deque(maxlen=SERVED_KEPT_MAX))
    progress: wire.RankProgress | None = None
    samples: list[wire.StepSample] = field(default_factory=list)
    told: wire.RankProgress | None = None
    told_s: float = 0.0
    serving: wire.RankServing | None = None
    serving_s: float = 0.0
    stepped_in: int = 0
    results: list[wire.RankResult | wire.RankUpset | wire.RankTried] = field(default_factory=list)
    results_told: int = 0

    def keep_result(self, values: wire.Detail) -> wire.RankResult:
        """Returns a result as the lead is told it, now and after every break of the line."""
        self.results_told += 1
        result = wire.RankResult(rank=self.rank, values=values, sequence=self.results_told)
        self._keep(result)
        return result

    def keep_upset(self, report: wire.UpsetReport) -> wire.RankUpset:
        """Returns word of a step that went wrong, as the lead is told it, now and after every break of the line."""
        self.results_told += 1
        upset = wire.RankUpset(rank=self.rank, report=report, sequence=self.results_told)
        self._keep(upset)
        return upset

    def keep_tried(self, report: wire.StepTried, generation: int) -> wire.RankTried:
        """Returns word of work done more than once, as the lead is told it, now and after every break of the line."""
        self.results_told += 1
        sequence = self.results_told
        tried = wire.RankTried(generation=generation, rank=self.rank, report=report, sequence=sequence)
        if report.equal:
            self.results = [each for each in self.results if not _all_is_well(each)]
        self._keep(tried)
        return tried

    def _keep(self, told: wire.RankResult | wire.RankUpset | wire.RankTried) -> None:
        self.results = [*self.results[-RESULTS_KEPT_MAX + 1 :], told]


def _all_is_well(told: wire.RankResult | wire.RankUpset | wire.RankTried) -> bool:
    return isinstance(told, wire.RankTried) and told.report.equal


class ViewAccess(Protocol):
    """What gives ranks credentials to read views by."""

    async def for_view(self, view: str) -> wire.StoreCredentials | wire.ViewRefused:
        """Returns those for a view, or why there are none."""


class Supervisor(Protocol):
    """What a process's conversation needs of the supervisor of its agent's ranks."""

    def is_current(self, life: RankConnection) -> bool:
        """Returns whether the process belongs to the generation that is running."""

    def welcome(self, life: RankConnection) -> wire.Welcome:
        """Returns who the process is."""

    def step_reply(self, life: RankConnection) -> wire.StepReply:
        """Returns whether, when and how programs must leave, and the pace of snapshots."""

    def stepped(self, desk: RankSlot, report: wire.StepReport) -> None:
        """Takes a step report."""

    def serves(self, desk: RankSlot, report: wire.ServingReport) -> None:
        """Takes word of how a rank serves."""

    def idle(self, life: RankConnection) -> None:
        """Takes word that the process waits for the next generation."""

    def tell_lead(self, message: wire.AgentToLead) -> None:
        """Sends a message to the lead."""

    @property
    def views(self) -> ViewAccess | None:
        """Returns what gives credentials to read views by, None where programs use what they have."""


class SnapshotService(Protocol):
    """What a process's conversation needs of what outlives it, and of what that costs."""

    work: SnapshotWork
    profiles: Profiles

    def saved(self, desk: RankSlot, holding: wire.Holding) -> None:
        """Takes word of a snapshot that is whole in the arena."""

    async def plan(self, desk: RankSlot, request: wire.RestoreRequest) -> wire.RestorePlan | wire.FetchFailed:
        """Returns where the state lies that the generation resumes from."""

    async def fetch(self, desk: RankSlot, request: wire.FetchPieces) -> wire.PiecesFetched | wire.FetchFailed:
        """Returns bytes of it."""


@final
class RankConnection:
    """A process from its start to its end: of a place, or standing by for one."""

    def __init__(
        self, role: RoleName, process: RankProcess, supervisor: Supervisor, snapshots: SnapshotService
    ) -> None:
        self.role = role
        self.process = process
        self.desk: RankSlot | None = None
        self.hello: wire.Hello | None = None
        self.generation = 0  # The newest it was welcomed to.
        self.left = -1  # The newest it has left; 0 for one that stands by.
        self.reconnected = 0
        self.over = False
        self.idled = asyncio.Event()  # Set while it waits for a generation, and for good when it has ended.
        self.profile: wire.ProfileWanted | None = None
        self.watch: asyncio.Task[None] | None = None
        self._supervisor = supervisor
        self._snapshots = snapshots
        self._welcomed = asyncio.Event()
        self._sockets: RankSockets | None = None

    @property
    def idle(self) -> bool:
        """Returns whether it waits for a generation."""
        return not self.over and self.left >= self.generation

    @property
    def program(self) -> int:
        """Returns the id of the process that speaks to us, which may be a child of the one we started."""
        return self.hello.pid if self.hello is not None else self.process.pid

    @property
    def may_reconnect(self) -> bool:
        """Returns whether its program can go on as a rank of another generation."""
        return self.hello is not None and self.hello.reconnects and self.reconnected < RECONNECTS_MAX

    async def listen(self, path: str) -> None:
        """Opens its socket.

        Args:
            path: The Unix socket's path; see `RankSockets`.

        Raises:
            Unavailable: Its folder cannot be written.
        """
        self._sockets = RankSockets(self.process.account, path)
        try:
            doors: dict[str, Serve] = {"": self._serve}
            if self._supervisor.views is not None:
                doors[wire.VIEWS_SUFFIX] = self._serve_view
            await self._sockets.listen(doors)
        except OSError as error:
            raise Unavailable("open a rank's socket", on=path, got=str(error)) from error

    def assign(self, desk: RankSlot, generation: int) -> None:
        """Gives it a place in a generation; if it waits for one, its program goes on."""
        self.reconnected += self.generation > 0
        self.desk, self.generation = desk, generation
        self.idled.clear()
        welcomed, self._welcomed = self._welcomed, asyncio.Event()
        welcomed.set()

    def exited(self, exit_code: int) -> wire.RankExited:
        """Returns what the lead is told of its end in a place."""
        assert self.desk is not None
        words = self.process.last_words
        return wire.RankExited(generation=self.generation, rank=self.desk.rank, exit_code=exit_code, last_words=words)

    def close(self) -> None:
        """Ends its conversations: the process is gone."""
        self.over = True
        self.idled.set()
        self._welcomed.set()
        if self._sockets is not None:
            self._sockets.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = Connection(reader, writer, self._snapshots.work.read)
        try:
            hello = await line.receive(wire.Hello, HELLO_LIMIT_S)
            if hello is None:
                return
            self.hello = hello
            await self._next(line, after=0)
            async for message in line.messages(wire.NextGeneration | wire.RankRequest):
                if isinstance(message, wire.NextGeneration):
                    await self._next(line, after=message.after)
                    continue
                answer = await self._answer(message)
                if answer is None:
                    return
                line.send(answer)
        finally:
            line.close()

    async def _serve_view(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one question of any of the program's processes, of whatever generation."""
        line = Connection(reader, writer, self._snapshots.work.read)
        wanted = await line.receive(wire.ViewWanted, HELLO_LIMIT_S)
        if wanted is not None and self._supervisor.views is not None:
            line.send(await self._supervisor.views.for_view(wanted.view))
        line.close()

    async def _next(self, line: Connection, *, after: int) -> None:
        """Answers with a `Welcome` once the process has a place in a generation after that one."""
        while not self.over:
            if self.generation > after and self._supervisor.is_current(self):
                line.send(self._supervisor.welcome(self))
                return
            self.left = max(after, self.generation)  # One that was over before its program heard of it is left too.
            self.idled.set()
            self._supervisor.idle(self)
            await self._welcomed.wait()

    async def _answer(self, message: wire.RankRequest) -> wire.RankResponse | None:
        desk = self.desk
        assert desk is not None
        if not self._supervisor.is_current(self):
            return self._answer_of_the_past(message)
        match message:
            case wire.StepReport():
                self._supervisor.stepped(desk, message)
                return self._supervisor.step_reply(self)
            case wire.ServingReport():
                self._supervisor.serves(desk, message)
                return self._supervisor.step_reply(self)
            case wire.SnapshotBegin():
                slot = await desk.arena.begin(message.size_bytes)
                if slot.offset < 0:
                    self._supervisor.tell_lead(wire.StoreFailed(rank=desk.rank, step=message.step, reason=slot.reason))
                return slot
            case wire.SnapshotCommit():
                holding = self._holding(desk, message.step)
                if holding is None or not desk.arena.commit(message, holding):
                    return None
                self._snapshots.saved(desk, holding)
                return wire.Done()
            case wire.RestoreRequest():
                return await self._snapshots.plan(desk, message)
            case wire.FetchPieces():
                return await self._snapshots.fetch(desk, message)
            case wire.ResultReport():
                self._supervisor.tell_lead(desk.keep_result(self.process.log.masks.facts(message.values)))
                return wire.Done()
            case wire.ProfileBegin():
                return self._snapshots.profiles.begin(desk.rank, message)
            case wire.ProfileCommit():
                failure = self.process.log.masks.masked(message.failure)
                self._snapshots.profiles.commit(desk.rank, replace(message, failure=failure))
                return wire.Done()
            case wire.UpsetReport():
                words = self.process.log.masks.masked(message.words)
                self._supervisor.tell_lead(desk.keep_upset(replace(message, words=words)))
                return wire.Done()
            case wire.StepTried():
                device = self.process.log.masks.masked(message.device)
                self._supervisor.tell_lead(desk.keep_tried(replace(message, device=device), self.generation))
                return wire.Done()
            case wire.Unknown():
                return wire.Done()  # A newer session asks what this agent cannot do; it learns so by an answer.

    def _holding(self, desk: RankSlot, step: int) -> wire.Holding | None:
        place = desk.place
        if place is None:
            return None
        return wire.Holding(
            step=step,
            generation=self.generation,
            rank=desk.rank,
            role=place.role,
            role_rank=place.role_rank,
            role_size=place.role_size,
        )

    def _answer_of_the_past(self, message: wire.RankRequest) -> wire.RankResponse:
        """Answers a process whose generation is over, so that it leaves it unharmed: nothing it says counts."""
        over = f"generation {self.generation} is over"
        match message:
            case wire.StepReport() | wire.ServingReport():
                return self._supervisor.step_reply(self)
            case wire.SnapshotBegin():
                return wire.SnapshotSlot(offset=-1, reason=over)
            case wire.SnapshotCommit() | wire.ResultReport() | wire.UpsetReport() | wire.StepTried() | wire.Unknown():
                return wire.Done()
            case wire.ProfileBegin():
                return wire.ProfileSlot(reason=over)
            case wire.ProfileCommit():
                return wire.Done()
            case wire.RestoreRequest() | wire.FetchPieces():
                return wire.FetchFailed(reason=over, corrupt=False)


def signal_all(lives: Sequence[RankConnection], number: signal.Signals) -> None:
    """Signals the groups of some processes."""
    for life in lives:
        life.process.signal(number)


async def ended_all(lives: Sequence[RankConnection], limit_s: float) -> None:
    """Waits until some processes have ended."""
    watches = [life.watch for life in lives if life.watch is not None]
    if watches:
        await asyncio.wait(watches, timeout=limit_s)
