from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.app.base.system import SystemClock
from mainspring.checkpoint.share import table_crc32c
from mainspring.domain import wire
from mainspring.domain.errors import InvalidMessage, MainspringError, Unavailable
from mainspring.node.net.connection import host_port
from mainspring.node.net.handshake import Listener, call
from mainspring.node.net.pipes import PART_LIMIT_S, Pipe, sealed_frame
from mainspring.node.snapshots.peers import SHARDS_MAX, copied_runs
from mainspring.node.snapshots.work import SnapshotWork

from .agents import Block, Node, credentials, lay_out, nodes, place, until, with_copied

ME = place(0, size=2)


def blocks(seed: int, *, count: int = 6, size: int = 20_000) -> list[Block]:
    dice = np.random.default_rng(seed)
    return [Block(path=f"array/{index}", data=dice.standard_normal(size + index)) for index in range(count)]


def test_copy_that_is_pushed_costs_both_nodes_and_each_tells_of_its_own(tmp_path: Path) -> None:
    def counted() -> SnapshotWork:
        return SnapshotWork(cores=2, cpu_s=time.thread_time, clock=SystemClock())

    async def scenario() -> None:
        async with nodes(tmp_path, 2, counted) as (one, two):
            holding = await one.save(ME, blocks(1), step=3)
            await one.push(two.address, holding)
            await until(lambda: bool(two.told))
            assert two.told[0].cost_s > 0.0
            assert one.work.take() > 0.0
            assert one.work.take() == 0.0

    asyncio.run(scenario())


@asynccontextmanager
async def proxy(
    to: str, change: Callable[[bytes], bytes], change_back: Callable[[bytes], bytes] = bytes
) -> AsyncIterator[str]:
    """Gives the address of a wire that changes what goes to an agent, or what comes back from it."""

    async def pump(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, through: Callable[[bytes], bytes]
    ) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(through(data))
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, here = await asyncio.open_connection(*host_port(to))
        await asyncio.gather(pump(reader, here, change), pump(there, writer, change_back))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@asynccontextmanager
async def impostor(answers: Sequence[object], raw: bytes = b"") -> AsyncIterator[str]:
    """Gives the address of a peer that knows the secret, then says what it was told to say, whatever it is asked."""

    over = asyncio.Event()

    async def serve(pipe: Pipe, use: wire.LineUse) -> None:
        for answer in answers:
            await pipe.receive(wire.PeerRequest, 5.0)
            pipe.send_bytes(sealed_frame(answer) + raw)
        await over.wait()
        pipe.close()

    listener = Listener(serve)
    listener.credentials = credentials("impostor")
    await listener.listen("127.0.0.1")
    try:
        yield listener.address
    finally:
        over.set()
        listener.close()
        await asyncio.sleep(0)


# ---------------------------------------------------------------- copies


def test_push_brings_what_no_other_node_has_and_tells_the_lead(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 2) as (own, peer):
            mine = [
                Block(path="shared", data=np.arange(3000.0), elsewhere=True),
                Block(path="own", data=np.arange(50_000.0)),
                Block(path="replica", data=np.arange(70.0), once=False),
                Block(path="mine", data=np.arange(9, dtype=np.int8)),
            ]
            holding = await own.save(ME, mine, step=3, state={"step": 3})
            await own.push(peer.address, holding)
            assert peer.told == [wire.SnapshotTaken(holding=with_copied(holding))]
            held = peer.copies.hold(3, 1, 0)
            assert held is not None
            assert held.state == {"step": 3}
            found = {shard.path: bytes(held.part(shard)) for shard in held.shards}
            assert found == {block.path: block.data.tobytes() for block in mine if block.path in ("own", "mine")}
            held.release()

    asyncio.run(scenario())


def test_push_of_a_snapshot_that_all_others_have_is_a_header_and_counts(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 2) as (own, peer):
            holding = await own.save(ME, [Block(path="x", data=np.arange(9.0), elsewhere=True)], step=3)
            await own.push(peer.address, holding)
            assert [taken.holding for taken in peer.told] == [with_copied(holding)]

    asyncio.run(scenario())


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 9000), st.booleans(), st.booleans()), max_size=30),
)
def test_runs_of_a_copy_give_every_block_its_own_bytes_and_little_else(sizes: list[tuple[int, bool, bool]]) -> None:
    arrays = [
        Block(path=str(i), data=np.full(size, i + 1, dtype=np.uint8), once=once, elsewhere=elsewhere)
        for i, (size, once, elsewhere) in enumerate(sizes)
    ]
    shards, size_bytes = lay_out(arrays)
    whole = np.zeros(size_bytes, dtype=np.uint8)
    for shard in shards:
        whole[shard.offset : shard.offset + shard.size_bytes] = int(shard.path) + 1
    runs = copied_runs(shards)
    copy = b"".join(whole[offset : offset + size].tobytes() for offset, size in runs.runs)
    assert len(copy) == runs.size_bytes
    kept = {shard.path for shard in shards if shard.once and not shard.elsewhere}
    assert {shard.path for shard in runs.shards} == kept
    for shard in runs.shards:
        value = int(shard.path) + 1
        assert copy[shard.offset : shard.offset + shard.size_bytes] == bytes([value]) * shard.size_bytes
    needed = sum(shard.size_bytes for shard in runs.shards)
    assert runs.size_bytes <= needed + len(sizes) * (4096 + 128)


@pytest.mark.slow
def test_bit_flipped_in_flight_is_noticed_and_the_copy_sent_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 2) as (own, peer):
            seen = 0

            def change(data: bytes) -> bytes:
                nonlocal seen
                before, seen = seen, seen + len(data)
                if before <= 500_000 < seen:  # Once, in the midst of the first copy's bytes.
                    at = 500_000 - before
                    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
                return data

            async with proxy(peer.address, change) as address:
                peer.listener.address = address  # As others know it.
                holding = await own.save(ME, blocks(1), step=1)
                await own.push(address, holding)
            assert seen > 1_500_000
            assert len(peer.told) == 1
            held = peer.copies.hold(1, 1, 0)
            assert held is not None
            assert held.intact()
            held.release()

    asyncio.run(scenario())


def test_bit_flipped_in_the_arena_after_sealing_is_never_copied(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 2) as (own, peer):
            holding = await own.save(ME, blocks(1), step=1)
            own.flip(holding, "array/3")
            pushing = asyncio.create_task(own.push(peer.address, holding))
            newer = await own.save(ME, blocks(2), step=2)
            await until(lambda: len(peer.connections) > 0)
            await own.push(peer.address, newer)
            await pushing
            assert [taken.holding.step for taken in peer.told] == [2]

    asyncio.run(scenario())


@pytest.mark.slow
def test_copy_for_a_peer_that_comes_later_is_delivered_then(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 2) as (own, peer):
            peer.listener.credentials = None  # As before its first answer of the controller.
            holding = await own.save(ME, blocks(1), step=1)
            pushing = asyncio.create_task(own.push(peer.address, holding))
            await asyncio.sleep(0.05)
            assert not pushing.done()
            peer.listener.credentials = peer.credentials
            await pushing
            assert len(peer.told) == 1

    asyncio.run(scenario())


def test_push_that_is_superseded_before_it_is_delivered_is_given_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 1) as (own,):
            held = []
            for step in range(1, 4):
                await own.save(ME, blocks(step), step=step)
                held.append(own.arenas[0].hold(step, 1))
            pushes = []
            for one in held:
                assert one is not None
                pushes.append(asyncio.create_task(own.peers.push("127.0.0.1:9", one)))  # Nobody listens there.
                await asyncio.to_thread(one.sealed)
            await asyncio.wait(pushes[:2])
            assert not pushes[2].done()
            pushes[2].cancel()
            await asyncio.wait(pushes)
            for one in held:
                assert one is not None
                one.release()

    asyncio.run(scenario())


@pytest.mark.slow
def test_copy_to_a_peer_that_takes_nothing_gives_its_slot_to_training_in_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        stalled: list[Pipe] = []

        async def serve(pipe: Pipe, use: wire.LineUse) -> None:
            await pipe.receive(wire.PeerRequest, 5.0)
            stalled.append(pipe)
            pipe.send(wire.Done())  # From here on the peer is as if stopped: its socket fills up.

        listener = Listener(serve)
        listener.credentials = credentials("stalled")
        await listener.listen("127.0.0.1")
        async with nodes(tmp_path, 1) as (own,):
            big = [Block(path="x", data=np.ones(40 << 20, dtype=np.uint8))]
            first = await own.save(ME, big, step=1)
            storing = own.arenas[0].hold(1, 1)  # As if being stored, slowly.
            pushing = asyncio.create_task(own.push(listener.address, first))
            await until(lambda: len(stalled) == 1)
            second = await own.save(ME, big, step=2)
            waiting = asyncio.create_task(own.push(listener.address, second))
            await own.save(ME, big, step=3)
            async with asyncio.timeout(PART_LIMIT_S + 1.0):
                slot = await own.arenas[0].begin(100)
            assert slot.offset >= 0
            assert storing is not None
            storing.release()
            for task in (pushing, waiting):
                task.cancel()
            await asyncio.wait([pushing, waiting])
            for pipe in stalled:
                pipe.close()
        listener.close()

    asyncio.run(scenario())


def test_memory_of_snapshots_and_copies_is_as_stated(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 2) as (own, peer):
            size_bytes = 4 << 20
            before = memory_bytes()
            for step in range(1, 8):
                mine = [Block(path="x", data=np.full(size_bytes, step, dtype=np.uint8))]
                await own.push(peer.address, await own.save(ME, mine, step=step))
            assert memory_bytes() - before == 3 * size_bytes + 2 * size_bytes

    asyncio.run(scenario())


def memory_bytes() -> int:
    """Returns what this process's files in memory occupy; a file is open as often as it is mapped."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if "memfd:mainspring" in os.readlink(f"/proc/self/fd/{name}"):
                seen = os.stat(f"/proc/self/fd/{name}")
                found[seen.st_ino] = seen.st_blocks * 512
    return sum(found.values())


def test_asking_with_another_secret_is_unavailable(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 1) as (own,):
            stranger = Node(9, tmp_path, own.store, secret="guess")
            with pytest.raises(Unavailable):
                await stranger.peers.index(own.address, 1, 1)
            stranger.stores.close()

    asyncio.run(scenario())


# ---------------------------------------------------------------- bytes on request


@pytest.mark.slow
def test_index_lists_snapshots_and_copies_sealed_with_their_facts_over_as_many_pages_as_it_takes(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 3) as (first, second, asking):
            many = [Block(path=f"a/{i}", data=np.full(2, i)) for i in range(SHARDS_MAX + 10)]
            holding = await first.save(ME, many, step=1, state={"who": 0})
            await first.push(second.address, holding)
            await second.save(place(1, size=2), blocks(1), step=1, state={"who": 1})
            found = await asking.peers.index(second.address, 1, 1)
            assert found.states == {"0": {"who": 0}, "1": {"who": 1}}
            copied = [entry.shard.path for entry in found.entries if entry.copied]
            assert copied == [block.path for block in many]
            own = [entry.shard for entry in found.entries if (entry.rank, entry.copied) == (1, False)]
            assert [shard.path for shard in own] == [block.path for block in blocks(1)]
            assert all(shard.crc32c >= 0 for shard in own)
            assert (await asking.peers.index(second.address, 2, 1)).entries == ()

    asyncio.run(scenario())


def test_bytes_and_checksums_of_a_peers_snapshot_are_what_it_has(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 2) as (own, asking):
            await own.save(ME, blocks(1), step=1)
            shard = (await asking.peers.index(own.address, 1, 1)).entries[0].shard
            request = wire.BytesRequest(step=1, taken_in=1, rank=0, copied=False, offset=80, size_bytes=800)
            room = bytearray(800)
            await asking.peers.read(own.address, request, memoryview(room))
            assert room == blocks(1)[0].data[10:110].tobytes()
            pages = bytearray(4 * -(-shard.size_bytes // shard.page_bytes))
            table = replace(request, checksums=True, offset=0, size_bytes=len(pages))
            await asking.peers.read(own.address, table, memoryview(pages))
            assert table_crc32c(np.frombuffer(pages, dtype="<u4")) == shard.crc32c

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "change",
    [{"step": 2}, {"taken_in": 2}, {"rank": 5}, {"copied": True}, {"offset": 1 << 40}, {"offset": -8}],
    ids=str,
)
def test_bytes_nobody_has_are_unavailable_and_the_peer_stays_of_use(tmp_path: Path, change: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 2) as (own, asking):
            await own.save(ME, blocks(1), step=1)
            request = wire.BytesRequest(step=1, taken_in=1, rank=0, copied=False, offset=0, size_bytes=8)
            with pytest.raises(Unavailable):
                await asking.peers.read(own.address, replace(request, **change), memoryview(bytearray(8)))
            await asking.peers.read(own.address, request, memoryview(bytearray(8)))

    asyncio.run(scenario())


SHARD = wire.Shard(path="x", dtype="uint8", global_shape=(8,), start=(0,), shape=(8,), offset=0, size_bytes=8, crc32c=1)


def entry(**change: object) -> wire.IndexEntry:
    return wire.IndexEntry(rank=0, copied=False, shard=replace(SHARD, **change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "answer",
    [
        wire.Done(),
        wire.Index(entries=(), total=5),
        wire.Index(entries=(), total=-1),
        wire.Index(entries=(), total=1 << 40),
        wire.Index(entries=(entry(size_bytes=1 << 60),), total=1),
        wire.Index(entries=(entry(size_bytes=-8),), total=1),
        wire.Index(entries=(entry(start=(4,)),), total=1),
        wire.Index(entries=(entry(shape=(-1,)),), total=1),
        wire.Index(entries=(entry(start=(0, 0)),), total=1),
        wire.Index(entries=(entry(offset=-1),), total=1),
        wire.Index(entries=(entry(crc32c=-1),), total=1),
        wire.Index(entries=(entry(page_bytes=3),), total=1),
    ],
    ids=lambda answer: str(answer)[-60:],
)
def test_index_that_cannot_be_is_refused(tmp_path: Path, answer: object) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 1) as (asking,), impostor([answer]) as address:
            with pytest.raises(InvalidMessage):
                await asking.peers.index(address, 1, 1)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("answer", "raw"),
    [
        (wire.BytesFollow(size_bytes=1 << 40), b""),
        (wire.BytesFollow(size_bytes=-1), b""),
        (wire.BytesFollow(size_bytes=4), b"1234"),
        (wire.Done(), b""),
    ],
    ids=str,
)
def test_answer_of_another_length_than_asked_for_is_refused(tmp_path: Path, answer: object, raw: bytes) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path, 1) as (asking,), impostor([answer], raw) as address:
            request = wire.BytesRequest(step=1, taken_in=1, rank=0, copied=False, offset=0, size_bytes=8)
            with pytest.raises(MainspringError):
                await asking.peers.read(address, request, memoryview(bytearray(8)))

    asyncio.run(scenario())


@pytest.mark.slow
@settings(max_examples=25)
@given(st.binary(max_size=300))
def test_bytes_that_are_no_message_end_the_connection_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    async def scenario() -> None:
        async with nodes(tmp_path_factory.mktemp("noise"), 2) as (own, asking):
            await own.save(ME, blocks(1, count=1), step=1)
            pipe = await call(own.address, wire.LineUse.PEER, asking.credentials)
            pipe.send_bytes(data)
            pipe.release().write_eof()
            with contextlib.suppress(Unavailable):
                await pipe.receive_into(memoryview(bytearray(1)))
            assert len((await asking.peers.index(own.address, 1, 1)).entries) == 1
            pipe.close()

    asyncio.run(scenario())
