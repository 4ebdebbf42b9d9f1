from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.domain import codec, wire
from mainspring.domain.errors import NotFound
from mainspring.domain.ids import JobId, RoleName
from mainspring.node.snapshots.peers import SHARDS_MAX
from mainspring.node.snapshots.restores import Restores
from mainspring.node.snapshots.stores import Stores

from .agents import (
    JOB,
    Block,
    FetchRefused,
    Program,
    arrays,
    assert_same,
    blocks_of,
    by_path,
    nodes,
    order,
    own_blocks,
    place,
    read_file,
    until,
)

# ---------------------------------------------------------------- where it comes from


def test_rank_whose_snapshot_is_here_maps_it_and_fetches_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 1) as (node,):
            for rank in (0, 1):
                await node.save(place(rank, size=2), own_blocks(1, rank), step=4, state={"who": rank})
            await node.restores.prepare(order([node], [place(0, size=2), place(1, size=2)], step=4))
            for rank in (0, 1):
                program = Program(node.restores, rank)
                assert_same(await program.arrays(), by_path(own_blocks(1, rank)))
                assert (program.fetched_bytes, program.state) == (0, {"who": rank})

    asyncio.run(scenario())


def test_fresh_start_has_nothing_to_restore(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 1) as (node,):
            await node.restores.prepare(order([], [place(0, size=1)], step=-1))
            assert (await node.restores.plan(0, wire.RestoreRequest())).step == -1

    asyncio.run(scenario())


def test_rank_on_a_spare_node_gets_the_lost_nodes_state_from_its_copy(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 3) as (lost, peer, spare):
            mine = own_blocks(1, 0)
            await lost.push(peer.address, await lost.save(place(0, size=2), mine, step=4, state={"who": 0}))
            await peer.save(place(1, size=2), own_blocks(1, 1), step=4)
            await lost.down()
            await spare.restores.prepare(order([peer], [place(2, size=2, role_rank=0)], step=4))
            program = Program(spare.restores, 2)
            assert_same(await program.arrays(), by_path(mine))
            assert program.state == {"who": 0}

    asyncio.run(scenario())


def test_replicated_blocks_come_from_any_rank_when_everywhere_is_asked_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 3) as (lost, peer, spare):
            shared = [Block(path="shared", data=np.arange(70_000.0), elsewhere=True)]
            holding = await lost.save(place(0, size=2), [*shared, *own_blocks(1, 0)], step=4)
            await lost.push(peer.address, holding)
            await peer.save(place(1, size=2), [*shared, *own_blocks(1, 1)], step=4)
            await lost.down()
            await spare.restores.prepare(order([peer], [place(2, size=2, role_rank=0)], step=4))
            program = Program(spare.restores, 2)
            assert "shared" not in await program.arrays()
            found = await program.arrays(everywhere=True)
            assert_same(found, by_path([*shared, *own_blocks(1, 0), *own_blocks(1, 1)]))

    asyncio.run(scenario())


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 3), (4, 1), (1, 2)])
def test_another_number_of_ranks_gets_the_same_arrays(tmp_path: Path, before: int, after: int) -> None:
    async def scenario() -> None:
        whole = arrays(3)
        async with nodes(tmp_path, max(before, after)) as found:
            for rank in range(before):
                await found[rank].save(
                    place(rank, size=before), blocks_of(whole, rank, before), step=4, state={"seed": 5}
                )
            for rank in range(after):
                node = found[rank]
                await node.restores.prepare(order(found[:before], [place(rank, size=after)], step=4))
                program = Program(node.restores, rank)
                assert_same(await program.arrays(everywhere=True), whole)
                assert program.state == {"seed": 5}

    asyncio.run(scenario())


def test_shrink_onto_one_node_reads_the_other_places_arenas_there_by_mapping(tmp_path: Path) -> None:
    async def scenario() -> None:
        whole = arrays(3)
        async with nodes(tmp_path, 1) as (node,):
            for rank in (0, 1):
                await node.save(place(rank, size=2, agent=0), blocks_of(whole, rank, 2), step=4)
            await node.restores.prepare(order([node], [place(1, size=1, role_rank=0, agent=0)], step=4))
            program = Program(node.restores, 1)
            assert_same(await program.arrays(), whole)
            assert program.fetched_bytes == 0

    asyncio.run(scenario())


def test_two_agents_restore_from_each_other_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        whole = arrays(3, rows=2000)
        async with nodes(tmp_path, 2) as both:
            for rank, node in enumerate(both):
                await node.save(place(rank, size=2), blocks_of(whole, rank, 2), step=4)
            told = order(both, [place(0, size=1, agent=0)], step=4), order(both, [place(1, size=1, agent=1)], step=4)
            await asyncio.gather(*(node.restores.prepare(one) for node, one in zip(both, told, strict=True)))
            programs = [Program(node.restores, rank) for rank, node in enumerate(both)]
            found = await asyncio.gather(*(program.arrays(everywhere=True) for program in programs))
            for one in found:
                assert_same(one, whole)

    asyncio.run(scenario())


def test_roles_do_not_see_each_others_state(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 2) as (node, other):
            sampler = replace(place(1, size=1, role_rank=0, agent=0), role=RoleName("sampler"))
            main = place(0, size=1, agent=0)
            await node.save(main, own_blocks(1, 0), step=4, state={"who": "main"})
            await node.save(sampler, own_blocks(1, 1), step=4, state={"who": "sampler"})
            for restoring in (node, other):
                await restoring.restores.prepare(order([node], [main, sampler], step=4))
                for rank in (0, 1):
                    program = Program(restoring.restores, rank)
                    assert_same(await program.arrays(everywhere=True), by_path(own_blocks(1, rank)))
                    assert program.state == {"who": ("main", "sampler")[rank]}

    asyncio.run(scenario())


def test_plan_with_long_paths_keeps_its_messages_small(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 2) as (own, other):
            many = [Block(path=f"{i:09}" * 400, data=np.full(3, float(i))) for i in range(1500)]
            await other.save(place(1, size=2), many, step=4)
            await own.restores.prepare(order([other], [place(0, size=2, role_rank=1)], step=4))
            page = await own.restores.plan(0, wire.RestoreRequest())
            assert len(codec.frame(page)) < codec.MESSAGE_BYTES_MAX // 2
            shards = await Program(own.restores, 0).plan(everywhere=False)
            assert [shard.path for shard in shards] == [block.path for block in many]

    asyncio.run(scenario())


@pytest.mark.slow
def test_plan_longer_than_a_message_comes_in_pages_with_the_same_numbers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 2) as (own, other):
            many = [Block(path=f"a/{i}", data=np.full(3, float(i))) for i in range(SHARDS_MAX + 50)]
            await other.save(place(1, size=2), many, step=4)
            await own.restores.prepare(order([other], [place(0, size=2, role_rank=1)], step=4))
            program = Program(own.restores, 0)
            shards = await program.plan(everywhere=False)
            assert [shard.path for shard in shards] == [block.path for block in many]
            assert await program.block(4020, shards[4020]) == many[4020].data.tobytes()

    asyncio.run(scenario())


# ---------------------------------------------------------------- the store


def test_stored_step_is_read_from_memory_where_that_still_has_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 2) as (node, other):
            whole = arrays(3)
            saved = []
            for rank, one in enumerate((node, other)):
                saved.append((one, await one.save(place(rank, size=2), blocks_of(whole, rank, 2), step=4)))
            await node.store_step(*saved)
            await node.restores.prepare(order([], [place(0, size=1)], step=4, source="store"))
            program = Program(node.restores, 0)
            assert_same(await program.arrays(), whole)
            assert program.fetched_bytes == sum(block.data.nbytes for block in blocks_of(whole, 1, 2))

    asyncio.run(scenario())


def test_flipped_bit_in_the_store_is_told_and_memory_that_has_the_bytes_is_used_instead(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 2) as (node, fresh):
            mine = own_blocks(1, 0)
            await node.store_step((node, await node.save(place(0, size=1), mine, step=4)))
            damage(next((tmp_path / "objects").rglob("*.000000")))
            told = order([], [place(0, size=1)], step=4, source="store")
            await node.restores.prepare(told)
            assert_same(await Program(node.restores, 0).arrays(), by_path(mine))
            await fresh.restores.prepare(told)
            with pytest.raises(FetchRefused) as refused:
                await Program(fresh.restores, 0).arrays()
            assert refused.value.answer.corrupt

    asyncio.run(scenario())


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def test_step_the_store_does_not_have_is_not_found(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 1) as (node,):
            with pytest.raises(NotFound):
                await node.restores.prepare(order([], [place(0, size=1)], step=4, source="store"))

    asyncio.run(scenario())


@pytest.mark.parametrize("prefix", ["", "learner/"])
def test_checkpoint_of_another_name_is_given_with_its_own_step_to_every_role(tmp_path: Path, prefix: str) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 2) as (node, other):
            mine = own_blocks(1, 0)
            await other.store_step((other, await other.save(place(0, size=1), mine, step=900, state={"seed": 5})))
            node.restores = Restores(
                agent=0,
                peers=node.peers,
                stores=Stores(node.store, JobId("job-student")),
                arenas=node.arenas,
                copies=node.copies,
                prefix=lambda role: prefix,
            )
            told = replace(order([], [place(0, size=1)], step=-1, source="store"), begins_from=f"{JOB}@900")
            await node.restores.prepare(told)
            plan = await node.restores.plan(0, wire.RestoreRequest())
            assert (plan.step, plan.source, plan.state) == (900, "store", {"seed": 5})
            assert_same(await Program(node.restores, 0).arrays(), by_path(mine))

    asyncio.run(scenario())


@pytest.mark.parametrize("begins_from", [f"{JOB}@900", JOB, "nobody@1", "nobody"])
def test_checkpoint_to_begin_from_that_is_not_there_is_not_found(tmp_path: Path, begins_from: str) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 1) as (node,):
            told = replace(order([], [place(0, size=1)], step=-1, source="store"), begins_from=begins_from)
            with pytest.raises(NotFound):
                await node.restores.prepare(told)

    asyncio.run(scenario())


# ---------------------------------------------------------------- bounds


@pytest.mark.slow
@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=20))
def test_any_runs_of_bytes_of_a_peers_snapshot_come_as_they_are(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[int, float, float]]
) -> None:
    async def scenario() -> None:
        dice = np.random.default_rng(1)
        sizes = (0, 1000, 300_000, 9 << 20)
        mine = [Block(path=str(i), data=dice.integers(0, 255, size, np.uint8)) for i, size in enumerate(sizes)]
        async with nodes(tmp_path_factory.mktemp("runs"), 2) as (owner, spare):
            await owner.save(place(0, size=1), mine, step=4)
            await spare.restores.prepare(order([owner], [place(1, size=1, role_rank=0, agent=1)], step=4))
            await spare.restores.plan(1, wire.RestoreRequest())
            pieces = []
            for number, first, second in runs:
                low, high = sorted((int(first * sizes[number]), int(second * sizes[number])))
                pieces.append(wire.Piece(shard=number, offset=low, size_bytes=high - low))
            answer = await spare.restores.fetch(1, wire.FetchPieces(pieces=tuple(pieces)))
            assert isinstance(answer, wire.PiecesFetched), answer
            for piece, offset in zip(pieces, answer.offsets, strict=True):
                wanted = mine[piece.shard].data[piece.offset : piece.offset + piece.size_bytes].tobytes()
                assert read_file(answer.file, offset, piece.size_bytes) == wanted

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "piece",
    [
        wire.Piece(shard=99, offset=0, size_bytes=1),
        wire.Piece(shard=-1, offset=0, size_bytes=1),
        wire.Piece(shard=0, offset=-1, size_bytes=1),
        wire.Piece(shard=0, offset=0, size_bytes=-1),
        wire.Piece(shard=0, offset=0, size_bytes=1 << 40),
    ],
    ids=str,
)
def test_pieces_outside_the_plan_are_refused(tmp_path: Path, piece: wire.Piece) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 1) as (node,):
            await node.save(place(0, size=1), own_blocks(1, 0), step=4)
            await node.restores.prepare(order([node], [place(0, size=1)], step=4))
            await node.restores.plan(0, wire.RestoreRequest())
            answer = await node.restores.fetch(0, wire.FetchPieces(pieces=(piece,)))
            assert isinstance(answer, wire.FetchFailed)
            assert not answer.corrupt

    asyncio.run(scenario())


def test_staged_bytes_go_as_later_ones_come_and_all_once_ranks_step(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 2) as (owner, spare):
            await owner.save(place(0, size=1), own_blocks(1, 0), step=4)
            await spare.restores.prepare(order([owner], [place(1, size=1, role_rank=0, agent=1)], step=4))
            await spare.restores.plan(1, wire.RestoreRequest())
            before = open_memory()
            files = []
            for number in range(4):
                pieces = (wire.Piece(shard=number, offset=0, size_bytes=40_000),)
                answer = await spare.restores.fetch(1, wire.FetchPieces(pieces=pieces))
                assert isinstance(answer, wire.PiecesFetched)
                files.append(answer.file)
            await until(lambda: len(open_memory() - before) == 2)  # A worker thread may hold the last a moment longer.
            spare.restores.release()
            await until(lambda: not open_memory() - before)
            answer = await spare.restores.fetch(1, wire.FetchPieces(pieces=()))
            assert isinstance(answer, wire.FetchFailed)
            spare.restores.release()

    asyncio.run(scenario())


def open_memory() -> set[int]:
    """Returns the restores' files that this process has open; those of an earlier test may go at any time."""
    found = set()
    for file in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # It was closed just now.
            if "mainspring-restore" in os.readlink(f"/proc/self/fd/{file}"):
                found.add(os.fstat(int(file)).st_ino)
    return found


def test_rank_that_has_no_part_in_the_generation_is_not_found(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 1) as (node,):
            await node.save(place(0, size=1), own_blocks(1, 0), step=4)
            await node.restores.prepare(order([node], [place(0, size=1)], step=4))
            with pytest.raises(NotFound):
                await node.restores.plan(5, wire.RestoreRequest())

    asyncio.run(scenario())
