"""The memory of several agents in one process, joined over loopback as agents are, and snapshots to put into it."""

from __future__ import annotations

import asyncio
import math
import mmap
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mainspring.checkpoint import Claim, Lineage, Manifest, ShareEntry
from mainspring.domain import wire
from mainspring.domain.ids import AttemptId, JobId, RoleName
from mainspring.node.net.handshake import Credentials, Listener
from mainspring.node.net.pipes import Pipe
from mainspring.node.snapshots.arena import Arena, Held
from mainspring.node.snapshots.copies import Copies
from mainspring.node.snapshots.peers import Peers
from mainspring.node.snapshots.restores import Restores
from mainspring.node.snapshots.stores import Share, Stores
from mainspring.node.snapshots.work import SnapshotWork
from mainspring.objects import ObjectStore, open_store
from mainspring.testing import FakeClock, SeededDice

ATTEMPT, JOB, MAIN, SECRET = AttemptId("attempt-1"), JobId("job-1"), RoleName("main"), "secret-of-the-peers"
LIMIT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Block:
    """One block of one array, as a program would hand it over."""

    path: str
    data: NDArray[Any]
    start: tuple[int, ...] | None = None
    global_shape: tuple[int, ...] | None = None
    once: bool = True
    elsewhere: bool = False


def place(rank: int, *, size: int, role_rank: int | None = None, agent: int | None = None) -> wire.RankPlace:
    return wire.RankPlace(
        rank=rank,
        role=MAIN,
        role_rank=rank if role_rank is None else role_rank,
        role_size=size,
        agent=rank if agent is None else agent,
    )


def holding_of(where: wire.RankPlace, *, step: int, generation: int) -> wire.Holding:
    return wire.Holding(
        step=step,
        generation=generation,
        rank=where.rank,
        role=where.role,
        role_rank=where.role_rank,
        role_size=where.role_size,
    )


def lay_out(blocks: Sequence[Block]) -> tuple[tuple[wire.Shard, ...], int]:
    shards, end = [], 0
    for block in sorted(blocks, key=lambda block: not block.once):
        shards.append(
            wire.Shard(
                path=block.path,
                dtype=block.data.dtype.name,
                global_shape=block.global_shape or block.data.shape,
                start=block.start or (0,) * block.data.ndim,
                shape=block.data.shape,
                offset=end,
                size_bytes=block.data.nbytes,
                once=block.once,
                elsewhere=block.elsewhere,
            )
        )
        end += -(-block.data.nbytes // 64) * 64
    return tuple(shards), max(end, 64)


async def save(
    arena: Arena,
    where: wire.RankPlace,
    blocks: Sequence[Block],
    *,
    step: int,
    generation: int = 1,
    state: wire.Detail | None = None,
) -> wire.Holding:
    """Saves as a rank does: asks for a slot, writes into the file, commits."""
    shards, size_bytes = lay_out(blocks)
    slot = await arena.begin(size_bytes)
    assert slot.offset >= 0, slot.reason
    file = os.open(arena.path, os.O_RDWR)
    for block, shard in zip(sorted(blocks, key=lambda block: not block.once), shards, strict=True):
        os.pwrite(file, np.ascontiguousarray(block.data).tobytes(), slot.offset + shard.offset)
    os.close(file)
    holding = holding_of(where, step=step, generation=generation)
    commit = wire.SnapshotCommit(step=step, offset=slot.offset, shards=shards, state=state or {})
    assert arena.commit(commit, holding)
    return holding


def credentials(purpose: str, secret: str = SECRET) -> Credentials:
    """Returns what an agent proves itself with; each purpose draws nonces of its own."""
    return Credentials(secret=secret, dice=SeededDice(1, purpose))


def uncounted() -> SnapshotWork:
    """Returns books for a test that does not look at them."""
    return SnapshotWork(cores=1, cpu_s=lambda: 0.0, clock=FakeClock())


def flip(held: Held, path: str) -> None:
    """Flips one bit of a block, behind everybody's back."""
    shard = next(shard for shard in held.shards if shard.path == path)
    with open(held.path, "r+b") as file:
        file.seek(held.offset + shard.offset + shard.size_bytes // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 16]))


@dataclass
class Node:
    """One agent's memory, reachable at `address`."""

    agent: int
    folder: Path
    store: ObjectStore
    secret: str = SECRET
    arenas: dict[int, Arena] = field(default_factory=dict)
    copies: Copies = field(default_factory=Copies)
    work: SnapshotWork = field(default_factory=uncounted)
    told: list[wire.SnapshotTaken] = field(default_factory=list)
    connections: list[Pipe] = field(default_factory=list)
    serving: set[asyncio.Task[None]] = field(default_factory=set)
    address: str = ""

    def __post_init__(self) -> None:
        self.credentials = credentials(f"agent {self.agent}", self.secret)
        self.listener = Listener(self.accept)
        self.peers = Peers(
            credentials=self.credentials,
            arenas=self.arenas,
            copies=self.copies,
            work=self.work,
            tell_lead=self.tell,
        )
        self.stores = Stores(self.store, JOB)
        self.restores = Restores(
            agent=self.agent,
            peers=self.peers,
            stores=self.stores,
            arenas=self.arenas,
            copies=self.copies,
            prefix=lambda role: "",
        )

    def tell(self, message: object) -> None:
        assert isinstance(message, wire.SnapshotTaken)
        self.told.append(message)

    async def listen(self) -> None:
        self.listener.credentials = self.credentials
        await self.listener.listen("127.0.0.1")
        self.address = self.listener.address

    async def accept(self, pipe: Pipe, use: wire.LineUse) -> None:
        assert use is wire.LineUse.PEER
        self.connections.append(pipe)
        task = asyncio.current_task()
        assert task is not None
        self.serving.add(task)
        await self.peers.serve(pipe)

    async def save(
        self,
        where: wire.RankPlace,
        blocks: Sequence[Block],
        *,
        step: int,
        generation: int = 1,
        state: wire.Detail | None = None,
    ) -> wire.Holding:
        arena = self.arenas.setdefault(where.rank, Arena(self.folder))
        return await save(arena, where, blocks, step=step, generation=generation, state=state)

    async def push(self, to: str, holding: wire.Holding) -> None:
        held = self.arenas[holding.rank].hold(holding.step, holding.generation)
        assert held is not None
        try:
            await self.peers.push(to, held)
        finally:
            held.release()

    def flip(self, holding: wire.Holding, path: str) -> None:
        """Damages what this agent holds."""
        if holding.copied:
            held = self.copies.hold(holding.step, holding.generation, holding.rank)
        else:
            held = self.arenas[holding.rank].hold(holding.step, holding.generation)
        assert held is not None
        held.sealed()
        flip(held, path)
        held.release()

    async def store_step(self, *saved: tuple[Node, wire.Holding], generation: int = 1) -> None:
        """Makes a step durable, as the lead and the agents do together."""
        told = []
        for node, holding in saved:
            held = node.arenas[holding.rank].hold(holding.step, holding.generation)
            assert held is not None
            told.append(await node.stores.keep(Share(claim=Claim(number=1, epoch=1), prefix="", held=held)))
            held.release()
        shares = []
        state: dict[str, str | int | float | bool] = {}
        for answer in told:
            assert isinstance(answer, wire.ShareStored), answer
            state.update(answer.state)
            shares += [
                ShareEntry(
                    rank=answer.rank,
                    file=answer.file,
                    size_bytes=answer.size_bytes,
                    index_offset=answer.index_offset,
                    index_bytes=answer.index_bytes,
                    index_crc32c=answer.index_crc32c,
                )
            ]
        manifest = Manifest(
            job=JOB,
            attempt=ATTEMPT,
            step=saved[0][1].step,
            created_s=1.0,
            shares=tuple(shares),
            state=state,
            lineage=Lineage(generation=generation),
        )
        await self.stores.commit(manifest, replace_damaged=False)

    @property
    def holder(self) -> wire.Holder:
        own = [holding for arena in self.arenas.values() for holding in arena.holdings]
        return wire.Holder(agent=self.agent, address=self.address, holdings=(*own, *self.copies.holdings))

    async def down(self) -> None:
        """What a node that is lost does: nothing any more."""
        self.listener.close()
        for pipe in self.connections:
            pipe.close()
        self.peers.close()
        if self.serving:
            await asyncio.wait(self.serving)

    async def close(self) -> None:
        self.restores.release()
        await self.down()
        self.stores.close()
        self.copies.close()
        for arena in self.arenas.values():
            arena.close()


@asynccontextmanager
async def nodes(folder: Path, count: int, work: Callable[[], SnapshotWork] = uncounted) -> AsyncIterator[list[Node]]:
    store = open_store(f"file://{folder / 'objects'}")
    found = [Node(agent, folder, store, work=work()) for agent in range(count)]
    for node in found:
        await node.listen()
    try:
        async with asyncio.timeout(LIMIT_S):
            yield found
    finally:
        for node in found:
            await node.close()


def order(
    holders: Sequence[Node],
    places: Sequence[wire.RankPlace],
    *,
    step: int,
    taken_in: int = 1,
    generation: int = 2,
    source: str = "arena",
) -> wire.PrepareGeneration:
    return wire.PrepareGeneration(
        generation=generation,
        step=step,
        source=source,
        taken_in=taken_in,
        places=tuple(places),
        holders=tuple(node.holder for node in holders),
    )


@dataclass
class Program:
    """A rank's side of a restore: asks for lists, maps what is here, fetches the rest, all of it."""

    restores: Restores
    rank: int
    pieces_bytes: int = 1 << 20
    fetched_bytes: int = 0
    state: wire.Detail = field(default_factory=dict)

    async def plan(self, *, everywhere: bool) -> list[wire.Shard]:
        shards: list[wire.Shard] = []
        while True:
            plan = await self.restores.plan(self.rank, wire.RestoreRequest(everywhere=everywhere, since=len(shards)))
            shards += plan.shards
            self.state = plan.state
            if len(shards) >= plan.total:
                return shards
            assert plan.shards

    async def arrays(self, *, everywhere: bool = False) -> Mapping[str, NDArray[Any]]:
        shards = await self.plan(everywhere=everywhere)
        found: dict[str, NDArray[Any]] = {}
        covered: dict[str, int] = {}
        for number, shard in enumerate(shards):
            block = np.frombuffer(await self.block(number, shard), dtype=shard.dtype).reshape(shard.shape)
            array = found.setdefault(shard.path, np.zeros(shard.global_shape, dtype=shard.dtype))
            array[tuple(slice(low, low + size) for low, size in zip(shard.start, shard.shape, strict=True))] = block
            covered[shard.path] = covered.get(shard.path, 0) + math.prod(shard.shape)
        return {path: array for path, array in found.items() if covered[path] >= array.size}

    async def block(self, number: int, shard: wire.Shard) -> bytes:
        if shard.file:
            return read_file(shard.file, shard.offset, shard.size_bytes)
        pieces = tuple(
            wire.Piece(shard=number, offset=low, size_bytes=min(self.pieces_bytes, shard.size_bytes - low))
            for low in range(0, shard.size_bytes, self.pieces_bytes)
        )
        answer = await self.restores.fetch(self.rank, wire.FetchPieces(pieces=pieces))
        if isinstance(answer, wire.FetchFailed):
            raise FetchRefused(answer)
        assert all(offset % 64 == 0 for offset in answer.offsets)
        self.fetched_bytes += shard.size_bytes
        parts = zip(pieces, answer.offsets, strict=True)
        return b"".join(read_file(answer.file, offset, piece.size_bytes) for piece, offset in parts)


class FetchRefused(Exception):
    """The agent said that bytes cannot be had."""

    def __init__(self, answer: wire.FetchFailed) -> None:
        self.answer = answer
        super().__init__(answer.reason)


def read_file(path: str, offset: int, size_bytes: int) -> bytes:
    if not size_bytes:
        return b""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data[offset : offset + size_bytes]


async def until(condition: Callable[[], bool]) -> None:
    """Waits for what other tasks bring about."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 - what is waited for is not ours to signal.
            await asyncio.sleep(0.005)


def with_copied(holding: wire.Holding) -> wire.Holding:
    return replace(holding, copied=True)


Arrays = dict[str, NDArray[np.float64]]


def arrays(seed: int, *, count: int = 5, rows: int = 60) -> Arrays:
    dice = np.random.default_rng(seed)
    return {f"array/{i}": dice.standard_normal((rows, 100 + i)) for i in range(count)}


def blocks_of(whole: Arrays, rank: int, size: int) -> list[Block]:
    """Rows dealt out evenly, as a sharded trainer does."""
    found = []
    for path, array in whole.items():
        low, high = len(array) * rank // size, len(array) * (rank + 1) // size
        found.append(Block(path=path, data=array[low:high], start=(low, 0), global_shape=array.shape))
    return found


def own_blocks(seed: int, rank: int) -> list[Block]:
    return [Block(path=f"{path}/{rank}", data=data) for path, data in arrays(seed + rank).items()]


def assert_same(found: object, wanted: object) -> None:
    assert isinstance(found, dict)
    assert isinstance(wanted, dict)
    assert sorted(found) == sorted(wanted)
    for path, array in wanted.items():
        np.testing.assert_array_equal(found[path], array)


def by_path(blocks: list[Block]) -> dict[str, object]:
    return {block.path: block.data for block in blocks}
