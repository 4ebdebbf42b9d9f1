from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

import numpy as np
import pytest

from mainspring.checkpoint import Claim, load, share_file
from mainspring.domain import wire
from mainspring.domain.errors import NotFound, StorageFull, Unavailable
from mainspring.node.snapshots.stores import AGAIN, Share, Stores
from mainspring.objects import Data, ObjectSeen, ObjectStore, open_store

from .agents import JOB, Block, Node, nodes, place

CLAIM = Claim(number=2, epoch=3)


@final
@dataclass
class Failing:
    """A store that fails the next writes as told, then works."""

    store: ObjectStore
    failures: list[Exception] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    entered: threading.Event = field(default_factory=threading.Event)
    gate: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    def put(self, key: str, data: Data) -> None:
        self.entered.set()
        self.gate.wait(120)
        if self.failures and not key.endswith(".tail"):
            raise self.failures.pop(0)
        self.writes.append(key)
        self.store.put(key, data)

    def put_if_absent(self, key: str, data: Data) -> bool:
        return self.store.put_if_absent(key, data)

    def put_file(self, key: str, path: Path) -> None:
        self.store.put_file(key, path)

    def get(self, key: str) -> bytes:
        return self.store.get(key)

    def get_range(self, key: str, *, offset: int, size_bytes: int) -> bytes:
        return self.store.get_range(key, offset=offset, size_bytes=size_bytes)

    def get_into(self, key: str, *, offset: int, into: memoryview) -> None:
        self.store.get_into(key, offset=offset, into=into)

    def fetch_file(self, key: str, path: Path) -> None:
        self.store.fetch_file(key, path)

    def size(self, key: str) -> int | None:
        return self.store.size(key)

    def list(self, prefix: str) -> tuple[ObjectSeen, ...]:
        return self.store.list(prefix)

    def delete(self, key: str) -> None:
        self.store.delete(key)


@asynccontextmanager
async def saved(
    folder: Path, *blocks: Block, failures: tuple[Exception, ...] = ()
) -> AsyncIterator[tuple[Failing, Stores, Share]]:
    """A snapshot of step 4, and a store that fails so often."""
    async with nodes(folder, 1) as (node,):
        holding = await node.save(place(0, size=1), blocks, step=4, state={"seed": 7})
        held = node.arenas[0].hold(holding.step, holding.generation)
        assert held is not None
        store = Failing(open_store(f"file://{folder / 'objects'}"), list(failures))
        stores = Stores(store, JOB)
        try:
            yield store, stores, Share(claim=CLAIM, prefix="main/", held=held)
        finally:
            store.gate.set()
            held.release()
            stores.close()


def test_share_kept_is_what_is_saved_once_under_its_roles_name(tmp_path: Path) -> None:
    async def scenario() -> None:
        mine = [Block(path="x", data=np.arange(9.0)), Block(path="y", data=np.arange(5.0), once=False)]
        async with saved(tmp_path, *mine) as (_, stores, share):
            told = await stores.keep(share)
            assert isinstance(told, wire.ShareStored)
            assert told.file == share_file(CLAIM, generation=1, rank=0)
            assert told.state == {"main/seed": 7}
            assert told.size_bytes > told.index_offset >= 72

    asyncio.run(scenario())


def test_share_of_a_rank_with_nothing_to_store_has_no_file_but_its_facts(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with saved(tmp_path, Block(path="x", data=np.arange(9.0), once=False)) as (store, stores, share):
            told = await stores.keep(share)
            assert isinstance(told, wire.ShareStored)
            assert told.replicas_of, "somebody else stores it, and it can be compared"
            wanted = wire.ShareStored(rank=0, step=4, state={"main/seed": 7})
            assert replace(told, replicas_of=0, replicas=()) == wanted
            assert store.writes == []

    asyncio.run(scenario())


def test_step_stored_by_two_agents_is_loaded_whole(tmp_path: Path) -> None:
    async def scenario(node: Node, other: Node) -> None:
        first = await node.save(place(0, size=2), [Block(path="x", data=np.arange(9.0))], step=4)
        second = await other.save(place(1, size=2), [Block(path="y", data=np.arange(5.0))], step=4)
        await node.store_step((node, first), (other, second))
        assert await node.stores.steps() == (4,)

    async def run() -> None:
        async with nodes(tmp_path, 2) as (node, other):
            await scenario(node, other)

    asyncio.run(run())
    loaded = load(open_store(f"file://{tmp_path / 'objects'}"), JOB)
    np.testing.assert_array_equal(loaded.arrays["x"], np.arange(9.0))
    np.testing.assert_array_equal(loaded.arrays["y"], np.arange(5.0))


@pytest.mark.slow
def test_share_is_stored_though_the_store_fails_for_a_while(tmp_path: Path) -> None:
    async def scenario() -> None:
        away = (Unavailable("store"), Unavailable("store"))
        async with saved(tmp_path, Block(path="x", data=np.arange(9.0)), failures=away) as (store, stores, share):
            assert isinstance(await stores.keep(share), wire.ShareStored)
            assert len(store.writes) == 2

    asyncio.run(scenario())


def test_full_store_is_told_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        full = (StorageFull("store an object", on="x"),)
        async with saved(tmp_path, Block(path="x", data=np.arange(9.0)), failures=full) as (_, stores, share):
            async with asyncio.timeout(AGAIN.first_s):
                told = await stores.keep(share)
            assert isinstance(told, wire.StoreFailed)
            assert (told.rank, told.step) == (0, 4)

    asyncio.run(scenario())


def test_close_ends_waiting_for_a_store_that_is_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        away = tuple(Unavailable("store") for _ in range(9))
        async with saved(tmp_path, Block(path="x", data=np.arange(9.0)), failures=away) as (store, stores, share):
            keeping = asyncio.create_task(stores.keep(share))
            await asyncio.to_thread(store.entered.wait, 5.0)
            stores.close()
            async with asyncio.timeout(AGAIN.first_s):
                assert isinstance(await keeping, wire.StoreFailed)

    asyncio.run(scenario())


def test_reads_and_claims_do_not_wait_for_a_share_that_is_being_written(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with saved(tmp_path, Block(path="x", data=np.arange(9.0))) as (store, stores, share):
            store.gate.clear()
            keeping = asyncio.create_task(stores.keep(share))
            await asyncio.to_thread(store.entered.wait, 5.0)
            assert await stores.newest_claim() is None
            await stores.put_claim(CLAIM)
            assert await stores.newest_claim() == CLAIM
            with pytest.raises(NotFound):
                await stores.open(4)
            assert not keeping.done()
            store.gate.set()
            assert isinstance(await keeping, wire.ShareStored)

    asyncio.run(scenario())
