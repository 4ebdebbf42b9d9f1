"""The lead's body against a real store: claims, and who is let in."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mainspring.checkpoint import Claim, ShareEntry, newest_claim, put_claim
from mainspring.domain import codec, wire
from mainspring.domain.ids import AttemptId, JobId, NodeName
from mainspring.node.lead.effects import WriteManifest
from mainspring.node.lead_host import LeadHost, manifest_of
from mainspring.node.net.connection import Connection
from mainspring.node.net.controller import ControllerClient
from mainspring.node.snapshots.stores import Stores
from mainspring.node.tasks import Tasks
from mainspring.objects import ObjectStore, open_store
from tests.node.lead_agents import orders

TOKEN = "secret"
JOB = JobId("job-1")
LIMIT_S = 120.0
NOBODY = "http://127.0.0.1:1"  # The controller is away: all this must work without it.


class RealClock:
    def now_s(self) -> float:
        return time.time()

    def monotonic_s(self) -> float:
        return time.monotonic()


def _join(epoch: int = 1) -> wire.AgentJoin:
    return wire.AgentJoin(attempt=AttemptId("attempt-1"), epoch=epoch, agent=0, node=NodeName("n0"))


async def _answer(store: ObjectStore, join: wire.AgentJoin) -> tuple[object | None, str]:
    """Returns the first order an agent that joins is given, None when it is hung up on; and the lead's reason."""
    clock, stores = RealClock(), Stores(store, JOB)
    controller = ControllerClient((NOBODY,), TOKEN, clock, attempt=AttemptId("attempt-1"))
    try:
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
            host = LeadHost(
                orders=orders(1),
                host="127.0.0.1",
                controller=controller,
                stores=stores,
                clock=clock,
                tasks=Tasks(group.create_task),
            )
            running = group.create_task(host.run())

            async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                line = Connection(reader, writer)
                first = await line.receive(wire.AgentJoin, LIMIT_S)
                assert first is not None
                await host.serve(line, first)

            server = await asyncio.start_server(accept, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            line = Connection(*await asyncio.open_connection("127.0.0.1", port))
            line.send(join)
            answer: wire.LeadToAgent | None = wire.Done()
            while isinstance(answer, wire.Done):
                answer = await line.receive(wire.LeadToAgent, LIMIT_S)
            line.close()
            server.close()
            running.cancel()
            return answer, host.reason
    finally:
        await controller.close()
        stores.close()


@pytest.mark.slow
def test_lead_claims_the_jobs_checkpoints_before_its_first_generation(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())
    answer, _ = asyncio.run(_answer(store, _join()))
    assert isinstance(answer, wire.PrepareGeneration)
    assert newest_claim(store, JOB) == Claim(number=1, epoch=1)


@pytest.mark.slow
@pytest.mark.parametrize("newer", [Claim(number=1, epoch=2), Claim(number=2, epoch=1)])
def test_lead_that_sees_a_newer_claim_ends_everything_and_writes_nothing(tmp_path: Path, newer: Claim) -> None:
    store = open_store(tmp_path.as_uri())
    put_claim(store, JOB, newer)
    answer, reason = asyncio.run(_answer(store, _join()))
    assert isinstance(answer, wire.EndAgent)
    assert answer.grace_s == 0.0
    assert reason == "another lead has taken over"
    assert newest_claim(store, JOB) == newer


@pytest.mark.slow
@pytest.mark.parametrize("join", [_join(epoch=7), replace(_join(), attempt=AttemptId("attempt-2"))])
def test_lead_lets_in_nobody_who_follows_another(tmp_path: Path, join: wire.AgentJoin) -> None:
    answer, _ = asyncio.run(_answer(open_store(tmp_path.as_uri()), join))
    assert answer is None


def test_manifest_tells_of_a_share_all_that_was_told_when_it_was_written() -> None:
    entry = ShareEntry(
        rank=0, file="a", size_bytes=90_000, index_offset=80_000, index_bytes=9, index_crc32c=7, segment_bytes=8_192
    )
    stored = codec.unframe(
        codec.frame(wire.ShareStored(step=4, **codec.alike(wire.ShareStored, entry)))[4:], wire.ShareStored
    )
    idle = wire.ShareStored(rank=1, step=4)
    effect = WriteManifest(
        step=4, generation=1, parent_step=-1, begins_from="", shares=(stored, idle), state={}, replace=False
    )
    manifest = manifest_of(effect, orders(2), created_s=5.0)
    assert manifest.shares == (entry,)
    assert manifest.lineage.ranks == 2


def test_share_told_of_by_an_agent_from_before_lies_in_objects_of_the_usual_size() -> None:
    told = codec.from_plain(wire.ShareStored, {"rank": 0, "step": 4, "file": "a"})
    assert told.segment_bytes == wire.SEGMENT_BYTES
