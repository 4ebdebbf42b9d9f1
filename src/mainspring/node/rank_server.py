"""One rank's side of the agent: its Unix socket, its arena, and the answers to what its program asks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

from mainspring.domain import wire
from mainspring.node.arena import Arena
from mainspring.node.links import Line

HELLO_LIMIT_S = 10.0  # The session says hello as it connects.
RESULTS_KEPT_MAX = 100  # To be told again when the lead's line was down.


@dataclass(slots=True)
class RankDesk:
    """What the agent knows of one rank, across generations.

    Args:
        place: Which rank it is.
        local_rank: Its place among its role's ranks on this node.
        arena: Its snapshots.
        restore: What its program resumes from in this generation.
        coordinator: The JAX service of its role in this generation.
        generation: The generation its process belongs to.
        joined: Whether its program speaks to us.
        progress: Its newest progress that the lead has not been told.
        told_s: When the lead was last told of its progress.
        told_generation: The generation that was of.
        results: What its program gave as results, newest last.
        results_told: How many it gave, in all generations.
    """

    place: wire.RankPlace
    local_rank: int
    arena: Arena
    restore: wire.RestorePlan = field(default_factory=lambda: wire.RestorePlan(step=-1))
    coordinator: str = ""
    generation: int = 0
    joined: bool = False
    progress: wire.RankProgress | None = None
    told_s: float = 0.0
    told_generation: int = 0
    results: list[wire.RankResult] = field(default_factory=list)
    results_told: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Duty:
    """What a rank's server needs of its agent.

    Args:
        welcome: Says who the rank is.
        stop: Says whether, and by when, programs must save and exit.
        stepped: Told of every step report.
        tell_lead: Sends a message to the lead.
    """

    welcome: Callable[[RankDesk], wire.Welcome]
    stop: Callable[[], wire.StepReply]
    stepped: Callable[[RankDesk, wire.StepReport], None]
    tell_lead: Callable[[object], None]


@final
class RankServer:
    """Listens on one rank's socket; the socket stays the same through all generations.

    Args:
        desk: The rank.
        duty: The agent.
    """

    def __init__(self, desk: RankDesk, duty: Duty) -> None:
        self._desk = desk
        self._duty = duty
        self._server: asyncio.Server | None = None
        self._sealing: set[asyncio.Task[object]] = set()

    async def listen(self, path: str) -> None:
        """Starts listening.

        Args:
            path: The Unix socket's path, at most 107 bytes.
        """
        self._server = await asyncio.start_unix_server(self._serve, path)

    def close(self) -> None:
        """Stops listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = Line(reader, writer)
        try:
            if not isinstance(await line.receive(HELLO_LIMIT_S), wire.Hello):
                return
            self._desk.joined = True
            generation = self._desk.generation
            line.send(self._duty.welcome(self._desk))
            async for message in line.messages():
                if generation != self._desk.generation:
                    return  # A process of an older generation, about to be gone.
                answer = await self._answer(message)
                if answer is None:
                    return
                line.send(answer)
        finally:
            line.close()

    def _seal(self, step: int) -> None:
        """Computes a snapshot's checksums while the program goes on, so that a restore can tell if bytes changed."""
        held = self._desk.arena.hold(step)
        if held is not None:
            sealing = asyncio.create_task(asyncio.to_thread(held.sealed))
            sealing.add_done_callback(lambda _: held.release())
            self._sealing.add(sealing)
            sealing.add_done_callback(self._sealing.discard)

    async def _answer(self, message: object) -> object | None:
        desk = self._desk
        match message:
            case wire.StepReport():
                self._duty.stepped(desk, message)
                return self._duty.stop()
            case wire.SnapshotBegin():
                slot = await desk.arena.begin(message.size_bytes)
                if slot.offset < 0 and self._sealing:
                    await asyncio.wait(self._sealing)  # Checksums hold a slot for no longer than its copy took.
                    slot = await desk.arena.begin(message.size_bytes)
                if slot.offset < 0:
                    self._duty.tell_lead(wire.StoreFailed(rank=desk.place.rank, step=message.step, reason=slot.reason))
                return slot
            case wire.SnapshotCommit():
                if not desk.arena.commit(message):
                    return None
                self._duty.tell_lead(wire.SnapshotTaken(rank=desk.place.rank, step=message.step))
                self._seal(message.step)
                return wire.Done()
            case wire.RestoreRequest():
                return desk.restore
            case wire.ResultReport():
                desk.results_told += 1
                result = wire.RankResult(rank=desk.place.rank, values=message.values, sequence=desk.results_told)
                desk.results = [*desk.results[-RESULTS_KEPT_MAX + 1 :], result]
                self._duty.tell_lead(result)
                return wire.Done()
            case _:
                return None
