"""One agent's ranks, asked by a lead that is this test; a rank's program is this test too, over its socket."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest

from mainspring.domain import wire
from mainspring.domain.ids import AttemptId, JobId, RoleName
from mainspring.domain.job import Code
from mainspring.node.net.connection import Connection
from mainspring.node.process.account import OwnAccount
from mainspring.node.process.limits import MemoryLimits
from mainspring.node.snapshots.arena import Arena
from mainspring.node.snapshots.copies import Copies
from mainspring.node.snapshots.peers import Peers
from mainspring.node.snapshots.stores import Stores
from mainspring.node.supervise.processes import RankProcesses
from mainspring.node.supervise.rank_server import RECONNECTS_MAX, RankSlot
from mainspring.node.supervise.rank_supervisor import RankSupervisor
from mainspring.node.supervise.snapshot_manager import SnapshotManager
from mainspring.objects import open_store
from mainspring.testing import FakeClock
from tests.node.agents import credentials, uncounted

JOB, ATTEMPT, MAIN = JobId("job-1"), AttemptId("attempt-1"), RoleName("main")
SHARD = wire.Shard(path="x", dtype="uint8", global_shape=(4,), start=(0,), shape=(4,), offset=0, size_bytes=4)
SLEEP, LOOKS_MAX = ("sleep", "1000"), 1_000

Kind = TypeVar("Kind")


def place(rank: int, *, agent: int = 0, role_rank: int | None = None, size: int = 4) -> wire.RankPlace:
    return wire.RankPlace(
        rank=rank, role=MAIN, role_rank=rank if role_rank is None else role_rank, role_size=size, agent=agent
    )


@dataclass
class Post:
    """A crew, and what it told its lead."""

    crew: RankSupervisor
    keeper: SnapshotManager
    work: Path
    told: list[object] = field(default_factory=list)
    arena_path: str = ""

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [message for message in self.told if isinstance(message, kind)]

    async def begin(
        self, generation: int, *places: wire.RankPlace, step: int = -1, taken_in: int = 0, reconnect_s: float = 0.0
    ) -> None:
        """Has a generation prepared and started."""
        order = wire.PrepareGeneration(
            generation=generation,
            step=step,
            source="arena" if step >= 0 else "",
            taken_in=taken_in,
            reconnect_s=reconnect_s,
            places=places,
        )
        await self.crew.prepare(order)
        assert self.of(wire.GenerationPrepared)[-1].reason == ""
        await self.crew.start(wire.StartRanks(generation=generation, coordinators={}, snapshot_every=3))

    async def join(self, process: int, *, standby: bool = False, reconnects: bool = False) -> Connection:
        """Speaks as the program of the agent's n-th process."""
        line = Connection(*await asyncio.open_unix_connection(str(self.work / f"{process}.sock")))
        line.send(wire.Hello(pid=1, standby=standby, reconnects=reconnects))
        return line

    async def welcome(self, line: Connection) -> wire.Welcome:
        welcome = await line.receive(wire.Welcome, 5.0)
        assert welcome is not None
        self.arena_path = welcome.arena_path
        return welcome

    async def snapshot(self, line: Connection, step: int, data: bytes) -> wire.SnapshotSlot:
        slot = await ask(line, wire.SnapshotBegin(step=step, size_bytes=4))
        assert isinstance(slot, wire.SnapshotSlot)
        self.write(slot, data)
        assert await ask(line, wire.SnapshotCommit(step=step, offset=slot.offset, shards=(SHARD,))) == wire.Done()
        return slot

    def write(self, slot: wire.SnapshotSlot, data: bytes) -> None:
        with open(self.arena_path, "r+b") as file:
            file.seek(slot.offset)
            file.write(data)


async def ask(line: Connection, message: object) -> object | None:
    line.send(message)
    return await line.receive(wire.RankResponse, 5.0)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(LOOKS_MAX):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the condition did not come about")


@asynccontextmanager
async def posted(
    work: Path, *, ranks: Sequence[int] = (0,), agent: int = 0, command: tuple[str, ...] = SLEEP, ranks_min: int = 0
) -> AsyncIterator[Post]:
    os.mkdir(work)
    orders = wire.Orders(
        ready=True,
        attempt=ATTEMPT,
        job=JOB,
        epoch=1,
        agent=agent,
        agents=2,
        lead=False,
        lead_address="",
        ranks=tuple(place(rank, agent=agent) for rank in ranks),
        roles=(wire.RoleOrders(role=MAIN, command=command, environment={}, ranks_min=ranks_min),),
        code=Code(),
        objects_url="",
        restarts_max=8,
        lease_s=10.0,
        heartbeat_s=1.0,
    )
    told: list[object] = []
    own, arenas = credentials("crew"), {rank: Arena(work) for rank in ranks}
    stores, copies, work_done = Stores(open_store(f"file://{work / 'objects'}"), JOB), Copies(), uncounted()
    keeper = SnapshotManager(
        orders=orders,
        desks={rank: RankSlot(rank=rank, arena=arena) for rank, arena in arenas.items()},
        copies=copies,
        peers=Peers(credentials=own, arenas=arenas, copies=copies, work=work_done, tell_lead=told.append),
        stores=stores,
        work=work_done,
        tell_lead=told.append,
    )
    crew = RankSupervisor(
        orders=orders,
        host="127.0.0.1",
        processes=RankProcesses(
            code=work, reports=work, environment={"PATH": "/bin"}, limits=MemoryLimits(None), account=OwnAccount(work)
        ),
        keeper=keeper,
        tell_lead=told.append,
        clock=FakeClock(),
    )
    try:
        yield Post(crew, keeper, work, told)
    finally:
        await crew.close()
        await keeper.close()
        stores.close()


# ---------------------------------------------------------------- who a rank is


def test_ranks_of_two_agents_are_told_of_one_world_that_meets_where_rank_0_lives(tmp_path: Path) -> None:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    program = f"import os; open('rank-' + os.environ['RANK'], 'w').write(' '.join(os.environ[n] for n in {names}))"
    command = (sys.executable, "-S", "-c", program)

    async def life() -> None:
        async with (
            posted(tmp_path / "a", ranks=(0, 1), command=command) as one,
            posted(tmp_path / "b", ranks=(2, 3), agent=1, command=command) as two,
        ):
            for post, ranks in ((one, (0, 1)), (two, (2, 3))):
                places = tuple(place(rank) for rank in ranks)
                await post.crew.prepare(wire.PrepareGeneration(generation=1, step=-1, source="", places=places))
            assert two.of(wire.GenerationPrepared)[0].masters == {}
            (master,) = one.of(wire.GenerationPrepared)[0].masters.values()
            for post in (one, two):
                await post.crew.start(wire.StartRanks(generation=1, coordinators={}, masters={"main": master}))
            await until(lambda: one.crew.living == two.crew.living == 0)
        host, _, port = master.rpartition(":")
        told = [(tmp_path / folder / f"rank-{n}").read_text() for folder, n in (("a", 0), ("a", 1), ("b", 2), ("b", 3))]
        assert told == [f"{rank} 4 {rank % 2} 2 {host} {port}" for rank in range(4)]
        assert host == "127.0.0.1"
        assert int(port) > 0

    asyncio.run(life())


@pytest.mark.parametrize(("ranks_min", "shrunk"), [(0, 0), (4, 4), (5, 0)])
def test_rank_is_told_how_many_are_left_once_an_agent_is_lost(ranks_min: int, shrunk: int, tmp_path: Path) -> None:
    async def life() -> None:
        async with posted(tmp_path / "work", ranks=(0, 1), ranks_min=ranks_min) as post:
            await post.begin(1, place(0, size=6), place(1, size=6))
            assert (await post.welcome(await post.join(1))).shrunk_size == shrunk

    asyncio.run(life())


def test_place_that_stands_by_has_no_process_and_gets_one_when_it_has_a_rank(tmp_path: Path) -> None:
    async def life() -> None:
        async with posted(tmp_path / "work", ranks=(4, 5)) as post:
            await post.begin(1, place(5, role_rank=1, size=2))
            assert [started.rank for started in post.of(wire.RankStarted)] == [5]
            await post.begin(2, place(4, role_rank=0, size=1))
            welcome = await post.welcome(await post.join(2))
            assert (welcome.rank, welcome.world_size, welcome.local_rank) == (0, 1, 0)
            assert welcome.local_ranks == (0,)
            assert welcome.snapshot_every == 3
            assert post.crew.living == 1

    asyncio.run(life())


# ---------------------------------------------------------------- processes that go on


def test_rank_that_reconnects_goes_on_in_the_same_process_as_another_rank(tmp_path: Path) -> None:
    async def life() -> None:
        async with posted(tmp_path / "work") as post:
            await post.begin(1, place(0, role_rank=2, size=3))
            line = await post.join(1, reconnects=True)
            assert (await post.welcome(line)).rank == 2
            line.send(wire.NextGeneration(after=1))
            await until(lambda: post.of(wire.RankLeft) != [])
            await post.begin(2, place(0, role_rank=0, size=2), reconnect_s=5.0)
            welcome = await post.welcome(line)
            assert (welcome.generation, welcome.rank, welcome.world_size) == (2, 0, 2)
            assert [started.how for started in post.of(wire.RankStarted)] == ["started", "reconnected"]
            assert len({started.pid for started in post.of(wire.RankStarted)}) == 1
            assert post.of(wire.RankExited) == []
            line.close()

    asyncio.run(life())


def test_rank_that_is_to_reconnect_is_told_to_leave_by_its_next_report_and_waited_for(tmp_path: Path) -> None:
    async def life() -> None:
        async with posted(tmp_path / "work") as post:
            await post.begin(1, place(0))
            line = await post.join(1, reconnects=True)
            await post.welcome(line)
            assert await ask(line, wire.StepReport(step=1)) == wire.StepReply(snapshot_every=3)
            preparing = asyncio.create_task(post.begin(2, place(0), reconnect_s=5.0))
            await until(lambda: post.crew.generation == 2)
            reply = await ask(line, wire.StepReport(step=2))
            assert isinstance(reply, wire.StepReply)
            assert (reply.stop, reply.stop_at, reply.then) == (True, -1, wire.Then.REJOIN)
            assert not preparing.done()
            line.send(wire.NextGeneration(after=1))
            assert (await post.welcome(line)).generation == 2
            await preparing
            line.close()

    asyncio.run(life())


@pytest.mark.parametrize("reconnects", [False, True])
def test_rank_that_cannot_or_does_not_reconnect_in_time_is_ended_and_started_anew(
    tmp_path: Path, *, reconnects: bool
) -> None:
    async def life() -> None:
        async with posted(tmp_path / "work") as post:
            await post.begin(1, place(0))
            line = await post.join(1, reconnects=reconnects)
            await post.welcome(line)
            await post.begin(2, place(0), reconnect_s=0.05)
            assert [started.how for started in post.of(wire.RankStarted)] == ["started", "started"]
            assert (await post.welcome(await post.join(2))).generation == 2
            line.close()

    asyncio.run(life())


def test_rank_that_reconnects_over_and_over_gets_a_fresh_process_in_the_end(tmp_path: Path) -> None:
    async def life() -> None:
        async with posted(tmp_path / "work") as post:
            await post.begin(1, place(0))
            line = await post.join(1, reconnects=True)
            await post.welcome(line)
            for generation in range(2, RECONNECTS_MAX + 2):
                line.send(wire.NextGeneration(after=generation - 1))
                await post.begin(generation, place(0), reconnect_s=5.0)
                assert (await post.welcome(line)).generation == generation
            line.send(wire.NextGeneration(after=RECONNECTS_MAX + 1))
            await post.begin(RECONNECTS_MAX + 2, place(0), reconnect_s=5.0)
            assert post.of(wire.RankStarted)[-1].how == "started"
            line.close()

    asyncio.run(life())


def test_rank_that_waits_is_overtaken_by_two_generations_and_joins_the_newer(tmp_path: Path) -> None:
    async def life() -> None:
        async with posted(tmp_path / "work") as post:
            await post.begin(1, place(0))
            line = await post.join(1, reconnects=True)
            await post.welcome(line)
            line.send(wire.NextGeneration(after=1))
            await until(lambda: post.of(wire.RankLeft) != [])
            orders = [
                wire.PrepareGeneration(generation=number, step=-1, source="", reconnect_s=5.0, places=(place(0),))
                for number in (2, 3)
            ]
            await post.crew.prepare(orders[0])
            start = asyncio.create_task(post.crew.start(wire.StartRanks(generation=2, coordinators={})))
            await asyncio.gather(start, post.crew.prepare(orders[1]))  # Before its program has heard of the second.
            await post.crew.start(wire.StartRanks(generation=3, coordinators={}))
            while (welcome := await post.welcome(line)).generation < 3:
                line.send(wire.NextGeneration(after=welcome.generation))
            assert post.of(wire.RankStarted)[-1].how == "reconnected"
            line.close()

    asyncio.run(life())


def test_spare_process_takes_the_place_of_a_rank_that_died(tmp_path: Path) -> None:
    async def life() -> None:
        async with posted(tmp_path / "work") as post:
            await post.begin(1, place(0))
            line = await post.join(1, standby=True)
            await post.welcome(line)
            await ask(line, wire.StepReport(step=1))
            await until((tmp_path / "work" / "2.sock").exists)
            spare = await post.join(2, standby=True)
            waiting = asyncio.create_task(post.welcome(spare))
            await post.crew.dump(wire.DumpStacks(generation=1))
            assert not waiting.done()
            await post.begin(2, place(0))
            assert post.of(wire.RankStarted)[-1].how == "standby"
            assert (await waiting).generation == 2
            assert (tmp_path / "work" / "standby-2.log").exists()
            line.close()
            spare.close()

    asyncio.run(life())


def test_spare_process_is_started_ahead_where_only_other_agents_have_ranks(tmp_path: Path) -> None:
    async def life() -> None:
        async with posted(tmp_path / "work") as post:
            await post.begin(1)
            await post.crew.stand_by(wire.StandbyAllowed(role=MAIN))
            await post.crew.stand_by(wire.StandbyAllowed(role=MAIN))
            spare = await post.join(1, standby=True)
            await post.begin(2, place(0))
            assert [started.how for started in post.of(wire.RankStarted)] == ["standby"]
            assert (await post.welcome(spare)).generation == 2
            assert not (tmp_path / "work" / "2.sock").exists()
            spare.close()

    asyncio.run(life())


def test_program_that_does_not_allow_it_has_no_spare_process(tmp_path: Path) -> None:
    async def life() -> None:
        async with posted(tmp_path / "work") as post:
            await post.begin(1, place(0))
            line = await post.join(1)
            await post.welcome(line)
            await ask(line, wire.StepReport(step=1))
            await ask(line, wire.StepReport(step=2))
            assert not (tmp_path / "work" / "2.sock").exists()
            line.close()

    asyncio.run(life())


# ---------------------------------------------------------------- leaving


def test_ranks_told_to_leave_hear_of_the_step_at_their_next_report(tmp_path: Path) -> None:
    async def life() -> None:
        async with posted(tmp_path / "work") as post:
            await post.begin(1, place(0))
            line = await post.join(1, reconnects=True)
            await post.welcome(line)
            order = wire.LeaveAt(generation=1, step=17, grace_s=9.0, then=wire.Then.REJOIN)
            await post.crew.leave(order)
            reply = await ask(line, wire.StepReport(step=12))
            assert reply == wire.StepReply(stop=True, stop_at=17, grace_s=9.0, then=wire.Then.REJOIN, snapshot_every=3)
            line.send(wire.NextGeneration(after=1))
            await until(lambda: post.of(wire.RankLeft) != [])
            assert post.of(wire.RankLeft)[0].words == ""
            line.close()

    asyncio.run(life())


def test_rank_that_never_joined_is_told_to_leave_by_a_signal_and_ended_after_the_grace(tmp_path: Path) -> None:
    deaf = ("sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.01; done")

    async def life() -> None:
        async with posted(tmp_path / "work") as polite, posted(tmp_path / "other", command=deaf) as rude:
            for post in (polite, rude):
                await post.begin(1, place(0))
            await until(lambda: (tmp_path / "other" / "rank-0.log").read_bytes() != b"")
            for post, grace_s in ((polite, 9.0), (rude, 0.05)):
                await post.crew.leave(wire.LeaveAt(generation=1, step=-1, grace_s=grace_s, then=wire.Then.EXIT))
                await until(lambda post=post: post.of(wire.RankExited) != [])  # type: ignore[misc]
            assert polite.of(wire.RankExited)[0].exit_code == -15
            assert rude.of(wire.RankExited)[0].exit_code == -9

    asyncio.run(life())


# ---------------------------------------------------------------- snapshots


def test_snapshot_under_way_when_a_generation_is_left_is_not_kept(tmp_path: Path) -> None:
    async def life() -> None:
        async with posted(tmp_path / "work") as post:
            await post.begin(1, place(0))
            line = await post.join(1, reconnects=True)
            await post.welcome(line)
            await post.snapshot(line, 5, b"good")
            slot = await ask(line, wire.SnapshotBegin(step=10, size_bytes=4))
            assert isinstance(slot, wire.SnapshotSlot)
            preparing = asyncio.create_task(post.begin(2, place(0), step=5, taken_in=1, reconnect_s=5.0))
            await until(lambda: post.crew.generation == 2)
            commit = wire.SnapshotCommit(step=10, offset=slot.offset, shards=(SHARD,))
            assert await ask(line, commit) == wire.Done()
            line.send(wire.NextGeneration(after=1))
            await post.welcome(line)
            await preparing
            assert [(held.step, held.generation) for held in post.keeper.holdings] == [(5, 1)]
            assert [taken.holding.step for taken in post.of(wire.SnapshotTaken)] == [5]
            plan = await ask(line, wire.RestoreRequest())
            assert isinstance(plan, wire.RestorePlan)
            assert (plan.step, plan.source, len(plan.shards)) == (5, "arena", 1)
            line.close()

    asyncio.run(life())


def test_arena_whose_bytes_changed_after_the_snapshot_is_not_restored(tmp_path: Path) -> None:
    async def life() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max_workers=1))
        async with posted(tmp_path / "work") as post:
            await post.begin(1, place(0))
            line = await post.join(1)
            await post.welcome(line)
            slot = await post.snapshot(line, 3, b"good")
            await asyncio.to_thread(lambda: None)  # Behind whatever the snapshot has given the one worker to do.
            post.write(slot, b"evil")
            order = wire.PrepareGeneration(generation=2, step=3, source="arena", taken_in=1, places=(place(0),))
            await post.crew.prepare(order)
            answers = post.of(wire.GenerationPrepared)
            assert [(answer.ready, answer.corrupt) for answer in answers] == [(True, False), (False, True)]
            line.close()

    asyncio.run(life())


def test_share_of_a_step_is_stored_and_one_that_is_gone_is_said_to_be(tmp_path: Path) -> None:
    async def life() -> None:
        async with posted(tmp_path / "work", ranks=(0, 1)) as post:
            await post.begin(1, place(0, size=1))
            line = await post.join(1)
            await post.welcome(line)
            await post.snapshot(line, 3, b"good")
            await post.keeper.store(wire.StoreStep(step=3, taken_in=1))
            (stored,) = post.of(wire.ShareStored)
            assert (stored.rank, stored.step, stored.file != "") == (0, 3, True)
            await post.keeper.store(wire.StoreStep(step=4, taken_in=1))
            assert post.of(wire.StoreFailed) == [wire.StoreFailed(rank=0, step=4, reason=wire.NO_LONGER_HELD)]
            line.close()

    asyncio.run(life())


def test_crew_tells_a_lead_again_all_it_may_have_missed(tmp_path: Path) -> None:
    async def life() -> None:
        async with posted(tmp_path / "work", ranks=(0, 1)) as post:
            await post.begin(1, place(0), place(1))
            line = await post.join(1, reconnects=True)
            await post.welcome(line)
            await ask(line, wire.StepReport(step=7, metrics={"loss": 0.5}, seconds={"data": 1.0}))
            await ask(line, wire.ResultReport(values={"loss": 0.5}))
            line.send(wire.NextGeneration(after=1))
            await until(lambda: post.of(wire.RankLeft) != [])
            post.told.clear()
            post.crew.retell()
            begun = [wire.GenerationPrepared, wire.RankStarted, wire.RankStarted]
            assert [type(one) for one in post.told] == [*begun, wire.RankProgress, wire.RankLeft, wire.RankResult]
            (progress,) = post.of(wire.RankProgress)
            assert (progress.step, progress.seconds) == (7, {})  # Its times are booked once, or not at all.
            line.close()

    asyncio.run(life())
