from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.checkpoint import seal
from mainspring.domain import wire
from mainspring.node.snapshots.copies import COPIES_A_PLACE, Copies

from .agents import Block, holding_of, lay_out, place, uncounted


def offer(value: int, *, step: int, rank: int = 0, generation: int = 1, size_bytes: int = 5000) -> wire.CopyBegin:
    data = np.full(size_bytes, value, dtype=np.uint8)
    shards, room_bytes = lay_out([Block(path="x", data=data)])
    whole = np.zeros(room_bytes, dtype=np.uint8)
    whole[:size_bytes] = data
    return wire.CopyBegin(
        holding=holding_of(place(rank, size=4), step=step, generation=generation),
        shards=seal(whole, shards).shards,
        size_bytes=room_bytes,
        state={"step": step},
    )


async def receive(copies: Copies, offered: wire.CopyBegin, value: int) -> wire.Holding | None:
    slot = await copies.begin(offered)
    if slot is None:
        return None
    slot.front(offered.size_bytes)[:] = bytes([value]) * offered.size_bytes
    holding = await copies.keep(slot, offered, uncounted())
    copies.drop(slot)
    return holding


def test_copy_received_is_held_with_its_bytes_and_facts() -> None:
    async def scenario() -> None:
        copies = Copies()
        offered = offer(7, step=5, rank=3)
        holding = await receive(copies, offered, 7)
        assert holding == replace(offered.holding, copied=True)
        assert copies.holdings == (holding,)
        held = copies.hold(5, 1, 3)
        assert held is not None
        assert held.state == {"step": 5}
        assert bytes(held.part(held.shards[0])) == bytes([7]) * 5000
        assert held.intact()
        held.release()
        assert copies.hold(5, 1, 2) is None
        copies.close()

    asyncio.run(scenario())


def test_copy_whose_bytes_are_not_the_senders_is_not_kept_and_the_one_before_stays() -> None:
    async def scenario() -> None:
        copies = Copies()
        assert await receive(copies, offer(1, step=1), 1) is not None
        assert await receive(copies, offer(2, step=2), 3) is None
        assert [holding.step for holding in copies.holdings] == [1]
        assert await receive(copies, offer(2, step=2), 2) is not None
        assert [holding.step for holding in copies.holdings] == [1, 2]
        copies.close()

    asyncio.run(scenario())


def test_copies_of_a_place_are_the_newest_two_and_use_the_same_memory_again() -> None:
    async def scenario() -> None:
        copies = Copies()
        files = set()
        for step in range(1, 8):
            assert await receive(copies, offer(step, step=step), step) is not None
            assert [holding.step for holding in copies.holdings] == list(range(max(1, step - 1), step + 1))
            held = copies.hold(step, 1, 0)
            assert held is not None
            files.add(held.path)
            held.release()
        assert len(files) == COPIES_A_PLACE
        copies.close()

    asyncio.run(scenario())


def test_copy_offered_while_another_of_its_place_travels_never_takes_the_newest_whole_one() -> None:
    async def scenario() -> None:
        copies = Copies()
        assert await receive(copies, offer(1, step=1), 1) is not None
        stalled = await copies.begin(offer(2, step=2))
        assert stalled is not None
        assert await copies.begin(offer(3, step=3)) is None
        assert [holding.step for holding in copies.holdings] == [1]
        copies.drop(stalled)
        assert await receive(copies, offer(3, step=3), 3) is not None
        copies.close()

    asyncio.run(scenario())


def test_copy_of_a_step_that_a_newer_generation_gave_up_is_refused() -> None:
    async def scenario() -> None:
        copies = Copies()
        assert await receive(copies, offer(1, step=1), 1) is not None
        late = offer(3, step=3)
        slot = await copies.begin(late)
        assert slot is not None
        copies.enter(2, 2)
        slot.front(late.size_bytes)[:] = bytes([3]) * late.size_bytes
        assert await copies.keep(slot, late, uncounted()) is None
        assert await copies.begin(offer(3, step=3)) is None
        assert [holding.step for holding in copies.holdings] == [1]
        assert await receive(copies, offer(2, step=2), 2) is not None  # What it goes on from may be copied anew.
        assert await receive(copies, offer(3, step=3, generation=2), 3) is not None
        copies.close()

    asyncio.run(scenario())


def test_entering_a_generation_gives_up_copies_newer_than_the_step_it_goes_on_from() -> None:
    async def scenario() -> None:
        copies = Copies()
        for step in (4, 5):
            await receive(copies, offer(step, step=step), step)
        copies.enter(2, 4)
        assert [holding.step for holding in copies.holdings] == [4]
        copies.close()

    asyncio.run(scenario())


def test_what_older_generations_left_goes_once_a_newer_one_has_saved_twice() -> None:
    async def scenario() -> None:
        copies = Copies()
        for rank in (0, 1):
            await receive(copies, offer(1, step=1, rank=rank), 1)
        copies.enter(2, 1)
        await receive(copies, offer(2, step=2, rank=0, generation=2), 2)
        assert {holding.rank for holding in copies.holdings} == {0, 1}
        await receive(copies, offer(3, step=3, rank=0, generation=2), 3)
        assert [(holding.rank, holding.step) for holding in copies.holdings] == [(0, 2), (0, 3)]
        copies.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "change",
    [{"size_bytes": -1}, {"size_bytes": 64}, {"size_bytes": 1 << 60}],
    ids=["negative", "less than its shards", "more than any memory"],
)
def test_copy_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    async def scenario() -> None:
        copies = Copies()
        assert await copies.begin(replace(offer(1, step=1), **change)) is None
        assert copies.holdings == ()
        copies.close()

    asyncio.run(scenario())


def test_empty_copy_counts_and_carries_the_facts() -> None:
    async def scenario() -> None:
        copies = Copies()
        offered = replace(offer(1, step=1), shards=(), size_bytes=0)
        assert await receive(copies, offered, 0) is not None
        held = copies.hold(1, 1, 0)
        assert held is not None
        assert (held.shards, held.state) == ((), {"step": 1})
        held.release()
        copies.close()

    asyncio.run(scenario())


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["whole", "broken", "hold", "release"])), max_size=25))
def test_newest_whole_copy_of_every_place_is_always_there(operations: list[tuple[int, str]]) -> None:
    async def scenario() -> None:
        copies = Copies()
        newest: dict[int, int] = {}
        held = []
        for step, (rank, operation) in enumerate(operations):
            value = step % 250 + 1
            if operation == "whole" and await receive(copies, offer(value, step=step, rank=rank), value):
                newest[rank] = step
            elif operation == "broken":
                await receive(copies, offer(value, step=step, rank=rank), 0)
            elif operation == "hold" and rank in newest:
                held.append(copies.hold(newest[rank], 1, rank))
            elif operation == "release" and held:
                one = held.pop()
                assert one is not None
                one.release()
            steps = {rank: [one.step for one in copies.holdings if one.rank == rank] for rank in newest}
            assert all(newest[rank] == max(steps[rank]) for rank in newest)
            assert all(len(found) <= COPIES_A_PLACE for found in steps.values())
        copies.close()

    asyncio.run(scenario())
