"""One agent's ranks, asked by a lead that is this test; a rank's program is this test too, over the rank's socket."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from mainspring.checkpoint import Manifest, crc32c_of, share_key
from mainspring.domain import wire
from mainspring.domain.errors import Unavailable
from mainspring.domain.ids import AttemptId, JobId, RoleName
from mainspring.domain.job import Code
from mainspring.node.crew import Crew
from mainspring.node.links import Line
from mainspring.node.stores import Stores
from mainspring.objects import ObjectStore, open_store
from mainspring.objects.folder import FolderStore
from mainspring.testing import FakeClock

JOB, ATTEMPT = JobId("job-1"), AttemptId("attempt-1")
SHARD = wire.Shard(path="x", dtype="uint8", global_shape=(4,), start=(0,), shape=(4,), offset=0, size_bytes=4)
LOOKS_MAX = 1_000


def orders(ranks: Sequence[wire.RankPlace], command: tuple[str, ...] = ("true",)) -> wire.Orders:
    roles = sorted({place.role for place in ranks})
    return wire.Orders(
        ready=True,
        attempt=ATTEMPT,
        job=JOB,
        epoch=1,
        agent=ranks[0].agent,
        agents=2,
        lead=False,
        lead_address="",
        ranks=tuple(ranks),
        roles=tuple(wire.RoleOrders(role=role, command=command, environment={}) for role in roles),
        code=Code(),
        objects_url="",
        restarts_max=8,
        lease_s=10.0,
        heartbeat_s=1.0,
    )


def place(rank: int, *, agent: int, size: int = 4) -> wire.RankPlace:
    return wire.RankPlace(rank=rank, role=RoleName("main"), role_rank=rank, role_size=size, agent=agent)


@dataclass
class Post:
    """A crew, and what it told its lead."""

    crew: Crew
    work: Path
    told: list[object] = field(default_factory=list)
    arena_path: str = ""

    def prepared(self) -> list[wire.GenerationPrepared]:
        return [message for message in self.told if isinstance(message, wire.GenerationPrepared)]

    async def rank(self) -> Line:
        """Joins as the program of rank 0."""
        line = Line(*await asyncio.open_unix_connection(str(self.work / "rank-0.sock")))
        welcome = await ask(line, wire.Hello(pid=1))
        assert isinstance(welcome, wire.Welcome)
        self.arena_path = welcome.arena_path
        return line

    async def snapshot(self, line: Line, step: int, data: bytes) -> wire.SnapshotSlot:
        slot = await ask(line, wire.SnapshotBegin(step=step, size_bytes=4))
        assert isinstance(slot, wire.SnapshotSlot)
        self.write(slot, data)
        assert await ask(line, wire.SnapshotCommit(step=step, offset=slot.offset, shards=(SHARD,))) == wire.Done()
        return slot

    def write(self, slot: wire.SnapshotSlot, data: bytes) -> None:
        with open(self.arena_path, "r+b") as file:
            file.seek(slot.offset)
            file.write(data)


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


async def ask(line: Line, message: object) -> object | None:
    line.send(message)
    return await line.receive(5.0)


@asynccontextmanager
async def posted(work: Path, store: ObjectStore, known: wire.Orders) -> AsyncIterator[Post]:
    told: list[object] = []
    stores = Stores(store, JOB)
    crew = Crew(
        orders=known,
        host="127.0.0.1",
        code=work,
        work=work,
        environment={},
        stores=stores,
        tell_lead=told.append,
        clock=FakeClock(),
    )
    await crew.listen()
    try:
        yield Post(crew, work, told)
    finally:
        await crew.close()
        stores.close()


ONE = orders([place(0, agent=0, size=1)])


def fresh(generation: int) -> wire.PrepareGeneration:
    return wire.PrepareGeneration(generation=generation, step=-1, source="")


def test_snapshot_that_an_older_rank_had_under_way_is_not_kept(tmp_path: Path) -> None:
    async def life() -> None:
        async with posted(made(tmp_path / "work"), open_store(f"file://{tmp_path / 'objects'}"), ONE) as post:
            await post.crew.prepare(fresh(1))
            line = await post.rank()
            slot = await ask(line, wire.SnapshotBegin(step=12, size_bytes=4))
            assert isinstance(slot, wire.SnapshotSlot)
            await post.crew.prepare(fresh(2))
            answer = await ask(line, wire.SnapshotCommit(step=12, offset=slot.offset, shards=(SHARD,)))
            assert answer is None, "it belongs to a course of events that was left"
            assert post.crew.arena_steps == {"0": ()}
            line.close()

    asyncio.run(life())


def test_preparation_asked_for_twice_at_once_fetches_once(tmp_path: Path) -> None:
    class Counting(FolderStore):
        fetched = 0

        def fetch_file(self, key: str, path: Path) -> None:
            self.fetched += 1
            super().fetch_file(key, path)

    async def life() -> None:
        store = Counting(tmp_path / "objects")
        store.put(share_key(JOB, 5, "a.bin"), b"data")
        shard = replace(SHARD, file="a.bin", crc32c=crc32c_of(np.frombuffer(b"data", dtype=np.uint8)))
        manifest = Manifest(job=JOB, attempt=ATTEMPT, step=5, created_s=0.0, shards=(shard,))
        async with posted(made(tmp_path / "work"), store, ONE) as post:
            stores = Stores(store, JOB)
            await stores.commit(manifest, replace_damaged=False)
            stores.close()
            order = wire.PrepareGeneration(generation=1, step=5, source="store")
            await asyncio.gather(post.crew.prepare(order), post.crew.prepare(order))
            assert [answer.reason for answer in post.prepared()] == ["", ""]
            assert store.fetched == 1

    asyncio.run(life())


def test_arena_whose_bytes_changed_after_the_snapshot_is_not_restored(tmp_path: Path) -> None:
    async def life() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max_workers=1))
        async with posted(made(tmp_path / "work"), open_store(f"file://{tmp_path / 'objects'}"), ONE) as post:
            await post.crew.prepare(fresh(1))
            line = await post.rank()
            slot = await post.snapshot(line, 3, b"good")
            await asyncio.to_thread(lambda: None)  # Behind whatever the snapshot has given the one worker to do.
            post.write(slot, b"evil")
            await post.crew.prepare(wire.PrepareGeneration(generation=2, step=3, source="arena"))
            assert [(answer.ready, answer.corrupt) for answer in post.prepared()] == [(True, False), (False, True)]
            line.close()

    asyncio.run(life())


def test_commit_counts_though_older_steps_cannot_be_deleted_now(tmp_path: Path) -> None:
    class Undeletable(FolderStore):
        def delete(self, key: str) -> None:
            raise Unavailable("delete an object", on=key)

    async def life() -> None:
        stores = Stores(Undeletable(tmp_path / "objects"), JOB)
        for step in range(6):
            manifest = Manifest(job=JOB, attempt=ATTEMPT, step=step, created_s=0.0, shards=())
            await stores.commit(manifest, replace_damaged=False)
        assert await stores.steps() == (5, 4, 3, 2, 1, 0)
        stores.close()

    asyncio.run(life())


def test_ranks_of_two_agents_are_told_of_one_world_that_meets_where_rank_0_lives(tmp_path: Path) -> None:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    program = f"import os; open('rank-' + os.environ['RANK'], 'w').write(' '.join(os.environ[n] for n in {names}))"
    command = (sys.executable, "-S", "-c", program)

    async def life() -> None:
        store = open_store(f"file://{tmp_path / 'objects'}")
        first = orders([place(0, agent=0), place(1, agent=0)], command)
        second = orders([place(2, agent=1), place(3, agent=1)], command)
        async with (
            posted(made(tmp_path / "a"), store, first) as one,
            posted(made(tmp_path / "b"), store, second) as two,
        ):
            for post in (one, two):
                await post.crew.prepare(fresh(1))
            assert two.prepared()[0].masters == {}
            (master,) = one.prepared()[0].masters.values()
            for post in (one, two):
                await post.crew.start(wire.StartRanks(generation=1, coordinators={}, masters={"main": master}))
            for _ in range(LOOKS_MAX):
                if one.crew.living == two.crew.living == 0:
                    break
                await asyncio.sleep(0.01)
        host, _, port = master.rpartition(":")
        told = [(tmp_path / folder / f"rank-{n}").read_text() for folder, n in (("a", 0), ("a", 1), ("b", 2), ("b", 3))]
        assert told == [f"{rank} 4 {rank % 2} 2 {host} {port}" for rank in range(4)]
        assert host == "127.0.0.1"
        assert int(port) > 0

    asyncio.run(life())
