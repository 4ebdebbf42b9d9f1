from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.domain import wire
from mainspring.node.snapshots.arena import SLOT_WAIT_S, SLOTS, Arena, Held

from .agents import Block, flip, holding_of, place, read_file, save, until

ME = place(0, size=1)


@contextmanager
def arena_in(folder: Path) -> Iterator[Arena]:
    arena = Arena(folder)
    try:
        yield arena
    finally:
        arena.close()


def block(value: int, size_bytes: int = 1000) -> Block:
    return Block(path="x", data=np.full(size_bytes, value, dtype=np.uint8))


def test_snapshot_committed_is_held_with_its_bytes_facts_and_holding(tmp_path: Path) -> None:
    async def scenario(arena: Arena) -> None:
        holding = await save(arena, ME, [block(7)], step=5, generation=3, state={"step": 5})
        held = arena.hold(5, 3)
        assert held is not None
        assert held.holding == holding
        assert held.state == {"step": 5}
        assert read_file(held.path, held.offset, 1000) == bytes([7]) * 1000
        assert bytes(held.part(held.shards[0])) == bytes([7]) * 1000
        assert arena.hold(5, 2) is None
        assert arena.hold(4, 3) is None
        held.release()

    with arena_in(tmp_path) as arena:
        asyncio.run(scenario(arena))


def test_arena_of_three_slots_keeps_the_newest_two_while_a_third_is_written(tmp_path: Path) -> None:
    async def scenario(arena: Arena) -> None:
        for step in range(1, 8):
            await save(arena, ME, [block(step)], step=step)
            kept = [holding.step for holding in arena.holdings]
            assert kept == list(range(max(1, step - 2), step + 1))
            assert (await arena.begin(1000)).offset >= 0
            assert [holding.step for holding in arena.holdings][-2:] == kept[-2:]

    with arena_in(tmp_path) as arena:
        asyncio.run(scenario(arena))


def test_same_step_of_two_generations_is_two_snapshots(tmp_path: Path) -> None:
    async def scenario(arena: Arena) -> None:
        await save(arena, ME, [block(1)], step=5, generation=1)
        await save(arena, ME, [block(2)], step=5, generation=2)
        await save(arena, ME, [block(3)], step=5, generation=2)
        assert [(holding.step, holding.generation) for holding in arena.holdings] == [(5, 1), (5, 2)]
        for generation, value in ((1, 1), (2, 3)):
            held = arena.hold(5, generation)
            assert held is not None
            assert held.data[0] == value
            held.release()

    with arena_in(tmp_path) as arena:
        asyncio.run(scenario(arena))


def test_discard_after_a_step_gives_up_newer_ones_and_says_so_to_who_holds_them(tmp_path: Path) -> None:
    async def scenario(arena: Arena) -> None:
        for step in (1, 2, 3):
            await save(arena, ME, [block(step)], step=step)
        held = arena.hold(3, 1)
        assert held is not None
        current = [held.current]
        arena.discard_after(2)
        assert [*current, held.current] == [True, False]
        assert [holding.step for holding in arena.holdings] == [1, 2]
        held.release()
        await save(arena, ME, [block(9)], step=3)
        assert [holding.step for holding in arena.holdings] == [1, 2, 3]

    with arena_in(tmp_path) as arena:
        asyncio.run(scenario(arena))


def test_flipped_bit_in_a_snapshot_shows(tmp_path: Path) -> None:
    async def scenario(arena: Arena) -> None:
        await save(arena, ME, [Block(path="x", data=np.arange(100_000))], step=1)
        held = arena.hold(1, 1)
        assert held is not None
        assert held.intact()
        flip(held, "x")
        assert not held.intact()
        held.release()

    with arena_in(tmp_path) as arena:
        asyncio.run(scenario(arena))


@pytest.mark.parametrize(
    "change", [{"offset": 1 << 40}, {"offset": -1}, {"size_bytes": 1 << 40}, {"size_bytes": -1}], ids=str
)
def test_commit_of_shards_outside_the_slot_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    async def scenario(arena: Arena) -> None:
        slot = await arena.begin(1000)
        shard = wire.Shard(path="x", dtype="uint8", global_shape=(4,), start=(0,), shape=(4,), offset=0, size_bytes=4)
        commit = wire.SnapshotCommit(step=1, offset=slot.offset, shards=(shard,))
        bad = replace(commit, shards=(replace(shard, **change),))
        holding = holding_of(ME, step=1, generation=1)
        assert not arena.commit(bad, holding)
        assert not arena.commit(replace(commit, offset=12345), holding)
        assert not arena.commit(replace(commit, step=2), holding)
        assert arena.holdings == ()
        assert arena.commit(commit, holding)
        assert not arena.commit(commit, holding)

    with arena_in(tmp_path) as arena:
        asyncio.run(scenario(arena))


def test_begin_with_every_old_slot_held_tells_their_holders_and_gets_the_first_that_is_let_go(tmp_path: Path) -> None:
    async def scenario(arena: Arena) -> None:
        for step in range(1, SLOTS + 1):
            await save(arena, ME, [block(step)], step=step)
        old = [held for step in range(1, SLOTS) if (held := arena.hold(step, 1)) is not None]
        assert not any(held.wanted for held in old)
        beginning = asyncio.create_task(arena.begin(1000))
        await until(lambda: all(held.wanted for held in old))
        assert not beginning.done()
        old[-1].release()
        assert (await beginning).offset >= 0
        assert [holding.step for holding in arena.holdings] == [1, SLOTS]
        assert not old[0].wanted
        old[0].release()

    with arena_in(tmp_path) as arena:
        asyncio.run(scenario(arena))


@pytest.mark.slow
def test_begin_with_every_old_slot_held_for_long_answers_within_its_bound(tmp_path: Path) -> None:
    async def scenario(arena: Arena) -> None:
        for step in range(1, SLOTS + 1):
            await save(arena, ME, [block(step)], step=step)
        old = [arena.hold(step, 1) for step in range(1, SLOTS)]
        async with asyncio.timeout(SLOT_WAIT_S + 3.0):
            answer = await arena.begin(1000)
        assert answer.offset == -1
        assert "being stored" in answer.reason
        for held in old:
            assert held is not None
            held.release()
        assert (await arena.begin(1000)).offset >= 0

    with arena_in(tmp_path) as arena:
        asyncio.run(scenario(arena))


def test_arena_whose_state_grows_gives_the_memory_of_outgrown_slots_back(tmp_path: Path) -> None:
    async def scenario(arena: Arena) -> None:
        for step, size_bytes in enumerate([1 << 20] * 3 + [5 << 20] * 3 + [9 << 20] * 3):
            await save(arena, ME, [block(step, size_bytes)], step=step)
        used = os.stat(arena.path).st_blocks * 512
        assert used <= SLOTS * (10 << 20)
        assert [holding.step for holding in arena.holdings] == [6, 7, 8]

    with arena_in(tmp_path) as arena:
        asyncio.run(scenario(arena))


def test_slots_yet_to_come_are_there_before_they_are_asked_for(tmp_path: Path) -> None:
    async def scenario(arena: Arena) -> None:
        size_bytes = 34 << 20
        await save(arena, ME, [block(1, size_bytes)], step=1)
        await until(lambda: os.stat(arena.path).st_blocks * 512 == SLOTS * size_bytes)
        offsets = []
        for step in (2, 3):
            offsets.append((await arena.begin(size_bytes)).offset)
            await save(arena, ME, [block(step, size_bytes)], step=step)
        assert sorted(offsets) == [size_bytes, 2 * size_bytes]
        for step in (1, 2, 3):
            held = arena.hold(step, 1)
            assert held is not None
            assert set(held.data[:size_bytes:4096]) == {step}
            held.release()
        assert os.stat(arena.path).st_blocks * 512 == SLOTS * size_bytes

    with arena_in(tmp_path) as arena:
        asyncio.run(scenario(arena))


def test_snapshot_written_while_its_memory_is_made_is_what_was_written(tmp_path: Path) -> None:
    async def scenario(arena: Arena) -> None:
        for step in range(1, 7):
            await save(arena, ME, [block(step, 40 << 20)], step=step)
            held = arena.hold(step, 1)
            assert held is not None
            assert set(held.data[: 40 << 20 : 4096]) == {step}
            held.release()

    with arena_in(tmp_path) as arena:
        asyncio.run(scenario(arena))


def test_snapshot_larger_than_any_memory_is_told_why_it_has_no_room(tmp_path: Path) -> None:
    with arena_in(tmp_path) as arena:
        answer = asyncio.run(arena.begin(1 << 60))
    assert answer.offset == -1
    assert "no room" in answer.reason


@settings(max_examples=40)
@given(st.lists(st.sampled_from(["save", "hold", "release", "discard", "killed"]), max_size=25))
def test_slots_handed_out_are_never_the_newest_snapshot_nor_one_that_is_held(operations: list[str]) -> None:
    async def scenario(arena: Arena) -> None:
        held: list[Held] = []
        step = 0
        for operation in operations:
            if operation in ("save", "killed") and len(held) < SLOTS - 1:
                newest = arena.holdings[-1:]
                slot = await arena.begin(1000)
                assert slot.offset >= 0
                assert slot.offset not in [one.offset for one in held]
                assert set(newest) <= set(arena.holdings)
                if operation == "save":
                    step += 1
                    commit = wire.SnapshotCommit(step=step, offset=slot.offset, shards=())
                    assert arena.commit(commit, holding_of(ME, step=step, generation=1))
            elif operation == "hold" and arena.holdings:
                found = arena.hold(arena.holdings[0].step, 1)
                assert found is not None
                held.append(found)
            elif operation == "release" and held:
                held.pop().release()
            elif operation == "discard":
                arena.discard_after(step - 1)
            assert len(arena.holdings) <= SLOTS
        for one in held:
            one.release()

    with arena_in(Path("/nonexistent")) as arena:
        asyncio.run(scenario(arena))
