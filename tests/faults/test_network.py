"""Nodes apart: one that is cut off fences itself and writes nothing; replicas on two are called in TLS, by ticket."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mainspring.checkpoint import durable_steps, newest_claim, read_manifest
from mainspring.domain.life import AttemptState
from mainspring.domain.wire import Serving
from mainspring.domain.wire.events.leads import GenerationResumedEvent
from mainspring.domain.wire.tickets import SERVICE_SECRET, new_ticket
from mainspring.objects import open_store
from mainspring.robots.proxy.asking import Lines, Robot
from mainspring.robots.proxy.routing import Replicas, Target
from mainspring.robots.serving.wire import pack, unpack
from tests.node.rig import JOB, SOURCE, Rig, gone

pytestmark = pytest.mark.slow
APART = {"steps": 600, "ranks_min": 1, "how": ("apart",), "lease_s": 1.5}


@dataclass
class Island:
    """A network namespace with one cable to here."""

    name: str
    cable: str
    host: str

    @property
    def within(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.name)

    def cut(self) -> None:
        run("ip", "link", "set", self.cable, "down")


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@pytest.fixture
def island() -> Iterator[Island]:
    number = os.getpid() % 250
    island = Island(name=f"ms{os.getpid()}", cable=f"ms{os.getpid()}", host=f"10.77.{number}.1")
    try:
        run("ip", "netns", "add", island.name)
    except (subprocess.CalledProcessError, FileNotFoundError):
        pytest.skip("a node cut off needs network namespaces: run as root with iproute2 (apt-get install iproute2)")
    try:
        run("ip", "link", "add", island.cable, "type", "veth", "peer", "name", "eth0", "netns", island.name)
        run("ip", "addr", "add", f"{island.host}/24", "dev", island.cable)
        run("ip", "link", "set", island.cable, "up")
        for words in ("addr add 10.77.{}.2/24 dev eth0", "link set eth0 up", "link set lo up"):
            run("ip", "-n", island.name, *words.format(number).split())
        yield island
    finally:
        subprocess.run(["ip", "netns", "del", island.name], capture_output=True)
        subprocess.run(["ip", "link", "del", island.cable], capture_output=True)


@pytest.mark.soak
def test_follower_cut_off_ends_its_ranks_before_the_others_go_on_without_it(
    island: Island, make_rig: Callable[..., Rig]
) -> None:
    rig = make_rig(**APART, host=island.host, within={1: island.within})
    rig.wait_step(40)
    cut_off = next(status.pid for status in rig.heartbeats[-1].ranks if status.rank == 1)
    island.cut()
    shrunk = rig.wait_resumed(ranks=1)
    assert gone(cut_off), "a rank of the older generation lived beside the newer one's"
    assert int(shrunk["step"]) > 0
    assert rig.wait_outcome().outcome is AttemptState.SUCCEEDED
    rig.check_results(600, ranks=1)


def test_lead_cut_off_fences_itself_and_writes_nothing_after_its_successor(
    island: Island, make_rig: Callable[..., Rig], tmp_path: Path
) -> None:
    rig = make_rig(**APART, host=island.host, within={1: island.within}, lead=1)
    rig.wait_step(40)
    cut_off = next(status.pid for status in rig.heartbeats[-1].ranks if status.rank == 1)
    island.cut()
    shrunk = rig.wait_resumed(ranks=1)
    assert (rig.epoch, rig.lead) == (2, 0)
    assert int(shrunk["step"]) > 0
    rig.wait(lambda: gone(cut_off), "end of the rank that was cut off")
    assert rig.wait_outcome().outcome is AttemptState.SUCCEEDED
    rig.check_results(600, ranks=1)
    store = open_store(f"file://{tmp_path / 'objects'}")
    claim = newest_claim(store, JOB)
    assert claim is not None
    assert claim.epoch == 2
    resumed_s = next(e.time_s for e in rig.events if e.kind == GenerationResumedEvent.kind and e.detail["ranks"] == 1)
    manifests = [read_manifest(store, JOB, step) for step in durable_steps(store, JOB)]
    assert all(one.lineage.epoch == 2 for one in manifests if one.created_s >= resumed_s)


REACH = """
import numpy as np

def act(observation):
    return np.full((4, 2), observation["state"], np.float32)
"""


async def _called(target: Target, limit_s: float) -> object:
    """Returns what a replica answers to the proxy's end of a line; None where it does not let it in."""
    replicas = Replicas()
    replicas.learn([target])
    robot = Robot(replicas, Lines(message_bytes=1 << 20, monotonic_s=time.monotonic))
    try:
        if await robot.greet(limit_s) is None:
            return None
        answer = await robot.ask(pack({"state": 3.0}))
        assert isinstance(answer, bytes), answer
        return unpack(answer)["actions"][0, 0]
    finally:
        await robot.close()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_replicas_on_two_nodes_answer_in_tls_to_tickets_of_their_own(
    island: Island, make_rig: Callable[..., Rig], tmp_path: Path
) -> None:
    (tmp_path / "reach.py").write_text(REACH)
    rig = make_rig(
        command=(sys.executable, "-m", "mainspring", "serve", "reach:act", "--port", "0"),
        host=island.host,
        within={1: island.within},
        secrets={SERVICE_SECRET: "of this attempt"},
        pythonpath=f"{SOURCE}:{tmp_path}",
    )

    def serving() -> list[Serving]:
        ranks = rig.heartbeats[-1].ranks if rig.heartbeats else ()
        return [rank.serving for rank in ranks if rank.serving is not None and rank.serving.ready]

    rig.wait(lambda: len(serving()) == 2, "two replicas that answer", limit_s=300.0)
    first, second = serving()
    hosts = [one.address.removeprefix("wss://").rpartition(":")[0] for one in (first, second)]
    assert hosts == [island.host, island.host.removesuffix("1") + "2"]
    assert first.certificate != second.certificate
    ticket = new_ticket("of this attempt", time.time() + 60)
    for one, shown, certificate, answer in (
        (first, ticket, first.certificate, 3.0),
        (second, ticket, second.certificate, 3.0),
        (second, "", second.certificate, None),
        (second, new_ticket("of another", time.time() + 60), second.certificate, None),
        (second, ticket, first.certificate, None),
        (second, ticket, "", None),
    ):
        target = Target(address=one.address, ready=True, ticket=shown, certificate=certificate)
        assert asyncio.run(_called(target, 2.0 if answer is None else 20.0)) == answer
