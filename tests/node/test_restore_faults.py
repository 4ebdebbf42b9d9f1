from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mainspring.domain import wire
from mainspring.domain.errors import DamagedData, Unavailable
from mainspring.node.net.pipes import PART_LIMIT_S

from .agents import (
    FetchRefused,
    Node,
    Program,
    arrays,
    assert_same,
    blocks_of,
    by_path,
    nodes,
    order,
    own_blocks,
    place,
    with_copied,
)
from .test_peers import impostor, proxy


def test_flipped_bit_in_the_own_arena_is_restored_from_the_copy(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 2) as (node, peer):
            holding = await node.save(place(0, size=1), own_blocks(1, 0), step=4)
            await node.push(peer.address, holding)
            holders = [node, peer]
            told = order(holders, [place(0, size=1)], step=4)
            node.flip(holding, "array/2/0")
            await node.restores.prepare(told)
            assert node.arenas[0].holdings == ()
            assert_same(await Program(node.restores, 0).arrays(), by_path(own_blocks(1, 0)))

    asyncio.run(scenario())


def test_flipped_bit_in_the_only_snapshot_is_told_before_anybody_reads_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 1) as (node,):
            holding = await node.save(place(0, size=1), own_blocks(1, 0), step=4)
            told = order([node], [place(0, size=1)], step=4)
            node.flip(holding, "array/0/0")
            with pytest.raises(DamagedData):
                await node.restores.prepare(told)
            with pytest.raises(Unavailable):
                await node.restores.plan(0, wire.RestoreRequest())

    asyncio.run(scenario())


def test_flipped_bit_in_a_peers_snapshot_costs_one_block_its_source_and_no_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 4) as (owner, damaged, whole, spare):
            mine = own_blocks(1, 0)
            holding = await owner.save(place(0, size=1), mine, step=4)
            await owner.push(damaged.address, holding)
            await owner.push(whole.address, holding)
            await owner.down()
            damaged.flip(with_copied(holding), "array/1/0")
            await spare.restores.prepare(order([damaged, whole], [place(1, size=1, role_rank=0, agent=3)], step=4))
            assert_same(await Program(spare.restores, 1).arrays(), by_path(mine))
            await whole.down()
            answers = [await damaged_block(spare, number) for number in range(5)]
            assert [answer is None or answer.corrupt for answer in answers] == [True] * 5
            assert sum(answer is not None for answer in answers) == 1

    asyncio.run(scenario())


async def damaged_block(node: Node, number: int) -> wire.FetchFailed | None:
    """Returns why a block cannot be had, None when it can."""
    program = Program(node.restores, 1)
    shards = await program.plan(everywhere=False)
    try:
        await program.block(number, shards[number])
    except FetchRefused as refused:
        return refused.answer
    return None


@pytest.mark.slow
@pytest.mark.parametrize("at", [2, 30, 400, 1_500, 2_500, 3_000, 100_000, 200_000])
def test_bit_flipped_in_flight_is_never_handed_out(tmp_path: Path, at: int) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 2) as (owner, spare):
            mine = own_blocks(1, 0)
            await owner.save(place(0, size=1), mine, step=4, state={"seed": 7})
            seen = 0

            def change(data: bytes) -> bytes:
                nonlocal seen
                low, seen = seen, seen + len(data)
                if low <= at < seen:
                    return data[: at - low] + bytes([data[at - low] ^ 1]) + data[at - low + 1 :]
                return data

            async with proxy(owner.address, bytes, change) as address:
                owner.address = owner.listener.address = address
                await spare.restores.prepare(order([owner], [place(1, size=1, role_rank=0, agent=1)], step=4))
                program = Program(spare.restores, 1)
                try:
                    shards = await program.plan(everywhere=False)
                    found = [await program.block(number, shard) for number, shard in enumerate(shards)]
                except FetchRefused:
                    assert seen > at
                else:
                    assert (shards, program.state) == ([], {})  # The list itself was refused.
                    assert found == []

    asyncio.run(scenario())


def test_peer_that_is_lost_after_the_plan_is_replaced_by_the_next_holder(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 3) as (owner, keeper, spare):
            mine = own_blocks(1, 0)
            holding = await owner.save(place(0, size=1), mine, step=4)
            await owner.push(keeper.address, holding)
            await spare.restores.prepare(order([owner, keeper], [place(1, size=1, role_rank=0, agent=2)], step=4))
            program = Program(spare.restores, 1)
            shards = await program.plan(everywhere=False)
            await owner.down()
            assert await program.block(0, shards[0]) == mine[0].data.tobytes()
            await keeper.down()
            with pytest.raises(FetchRefused) as refused:
                await program.block(1, shards[1])
            assert not refused.value.answer.corrupt

    asyncio.run(scenario())


def test_state_that_only_lost_agents_held_comes_from_the_store_when_that_has_the_same_step(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 3) as (first, second, spare):
            whole = arrays(3)
            saved = []
            for rank, node in enumerate((first, second)):
                saved.append((node, await node.save(place(rank, size=2), blocks_of(whole, rank, 2), step=4)))
            await spare.store_step(*saved)
            told = order([first, second], [place(2, size=1, role_rank=0)], step=4)
            await first.down()
            await spare.restores.prepare(told)
            program = Program(spare.restores, 2)
            shards = await program.plan(everywhere=True)
            await second.down()
            assert len(shards) == 10
            assert_same(await program.arrays(everywhere=True), whole)

    asyncio.run(scenario())


def test_state_that_nobody_holds_any_more_is_unavailable(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 3) as (first, second, spare):
            for rank, node in enumerate((first, second)):
                await node.save(place(rank, size=2), blocks_of(arrays(3), rank, 2), step=4)
            told = order([first, second], [place(2, size=1, role_rank=0)], step=4)
            await first.down()
            await spare.restores.prepare(told)
            with pytest.raises(Unavailable, match="nobody who still has it"):
                await spare.restores.plan(2, wire.RestoreRequest(everywhere=True))

    asyncio.run(scenario())


def test_rank_whose_snapshot_nobody_holds_makes_the_step_unready(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 2) as (node, other):
            await other.save(place(1, size=2), own_blocks(1, 1), step=4)
            with pytest.raises(Unavailable):
                await node.restores.prepare(order([other], [place(0, size=2)], step=4))

    asyncio.run(scenario())


def test_hostile_list_of_a_peer_is_passed_over_for_an_honest_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        bad = wire.Shard(
            path="array/0/0", dtype="float64", global_shape=(1,), start=(0,), shape=(1 << 50,), offset=0, size_bytes=8
        )
        lies = wire.Index(entries=(wire.IndexEntry(rank=0, copied=False, shard=bad),), total=1, states={"0": {}})
        async with nodes(tmp_path, 3) as (owner, keeper, spare), impostor([lies]) as address:
            mine = own_blocks(1, 0)
            await owner.push(keeper.address, await owner.save(place(0, size=1), mine, step=4))
            owner.address = address
            await spare.restores.prepare(order([owner, keeper], [place(1, size=1, role_rank=0, agent=2)], step=4))
            assert_same(await Program(spare.restores, 1).arrays(), by_path(mine))

    asyncio.run(scenario())


STOPPED = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.node.agents import Node, own_blocks, place
from mainspring.objects import open_store

async def main():
    node = Node(0, Path(sys.argv[2]), open_store("file://" + sys.argv[2] + "/objects"))
    await node.listen()
    await node.save(place(0, size=1), own_blocks(1, 0), step=4)
    print(node.address, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.slow
def test_peer_process_that_is_stopped_costs_a_bounded_wait_once(tmp_path: Path) -> None:
    async def scenario(process: subprocess.Popen[str], address: str) -> None:
        async with nodes(tmp_path, 3) as (owner, keeper, spare):
            mine = own_blocks(1, 0)
            await owner.push(keeper.address, await owner.save(place(0, size=1), mine, step=4))
            owner.address = address
            await spare.restores.prepare(order([owner, keeper], [place(1, size=1, role_rank=0, agent=2)], step=4))
            program = Program(spare.restores, 1)
            shards = await program.plan(everywhere=False)
            process.send_signal(signal.SIGSTOP)
            begun = time.monotonic()
            first = asyncio.create_task(program.block(0, shards[0]))
            assert await first == mine[0].data.tobytes()
            assert time.monotonic() - begun < 3 * PART_LIMIT_S
            begun = time.monotonic()
            assert_same(await program.arrays(), by_path(mine))
            assert time.monotonic() - begun < PART_LIMIT_S

    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED, str(root), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root / "src")},
    )
    try:
        assert process.stdout is not None
        asyncio.run(scenario(process, process.stdout.readline().strip()))
    finally:
        process.kill()
        process.wait()
