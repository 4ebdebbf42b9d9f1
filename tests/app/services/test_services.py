"""A service on real agents, behind its proxy: no robot misses a chunk, whatever becomes of replicas and server."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from mainspring.app.sdk.lab import Lab
from mainspring.app.sdk.services import replica_spec
from mainspring.app.server.programs.service_proxy import ServerDirectory
from mainspring.domain.answers import NewScale, NewService, NewToken, NewVersion, ServiceView
from mainspring.domain.job import LAB
from mainspring.domain.team import TeamRole
from mainspring.robots.proxy.proxy import ServiceProxy
from mainspring.robots.serving.wire import pack, unpack
from tests.app.conftest import until

ROBOTS = 3
POLICY = """
import numpy as np

def act(observation):
    return np.full((4, 2), {value}, dtype=np.float32)
"""


class Robots:
    """Robots that ask and ask, until they are told to end."""

    def __init__(self, servers: str, token: str) -> None:
        self.ended = threading.Event()
        self.answers: list[float] = []
        self.missed: list[str] = []
        self._directory, self._token = ServerDirectory(servers), token
        self._thread = threading.Thread(target=lambda: asyncio.run(self._all()), daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Ends them."""
        self.ended.set()
        self._thread.join(60)

    async def _all(self) -> None:
        proxy = ServiceProxy(self._directory, time.monotonic)
        await proxy.start(socket.create_server(("127.0.0.1", 0)))
        url = f"ws://127.0.0.1:{proxy.port}/v1/services/pick"
        await asyncio.gather(*(self._one(url) for _ in range(ROBOTS)))
        await proxy.stop()

    async def _one(self, url: str) -> None:
        shown = {"Authorization": f"Api-Key {self._token}"}
        async with connect(url, additional_headers=shown, compression=None) as line:
            await line.recv()
            while not self.ended.is_set():
                await line.send(pack({"state": 1.0, "mainspring": {"deadline_ms": 30_000}}))
                answer: Any = await line.recv()
                if isinstance(answer, str):
                    self.missed.append(answer)
                else:
                    self.answers.append(float(unpack(answer)["actions"][0, 0]))
                await asyncio.sleep(0.05)

    def asked(self) -> None:
        """Waits until all have asked again, and nothing was missed."""
        before = len(self.answers)
        until(lambda: len(self.answers) > before + 2 * ROBOTS or bool(self.missed), "robots to be answered")
        assert self.missed == []


@contextmanager
def _asking(lab: Lab, token: str) -> Iterator[Robots]:
    with lab.client() as client:
        robots = Robots(",".join(client.servers.urls), token)
    try:
        yield robots
    finally:
        robots.join()


def _ready(lab: Lab, count: int, version: int) -> ServiceView:
    def look() -> bool:
        seen = lab.service("pick")
        return sum(one.ready and one.version == version for one in seen.members) == count

    until(look, f"{count} replicas of version {version}", wait_s=150)
    return lab.service("pick")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_robot_misses_a_chunk_while_replicas_are_killed_scaled_and_updated_and_the_server_restarts(
    lab: Lab, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    for name, value in (("first", 1.0), ("second", 2.0)):
        (code / f"{name}.py").write_text(POLICY.format(value=value))
    with lab.client() as client:
        token = client.new_token(NewToken(holder="robot", team=LAB, role=TeamRole.VIEWER)).secret
    each = {"chips": 0.2}
    spec = replica_spec(lab, "first:act", name="pick", on=["h100"], each=each, code=code)
    lab.serve(NewService(spec=spec, scale=NewScale(replicas=2)))
    try:
        members = _ready(lab, 2, 1).members
        assert len({one.node for one in members}) == 2
        with _asking(lab, token) as robots:
            robots.asked()
            (rank,) = lab.status(members[0].job).attempts[-1].ranks
            os.kill(rank.pid, signal.SIGKILL)
            robots.asked()
            lab.scale_service("pick", NewScale(replicas=3))
            _ready(lab, 3, 1)
            lab.scale_service("pick", NewScale(replicas=2))
            _ready(lab, 2, 1)
            robots.asked()
            lab.down()
            robots.asked()
            lab.up()
            newer = replica_spec(lab, "second:act", like=lab.service("pick").spec, code=code)
            lab.update_service("pick", NewVersion(spec=newer))
            until(lambda: lab.service("pick").version_before is None, "the update", wait_s=150)
            robots.asked()
            assert robots.answers[-1] == 2.0
            bad = replica_spec(lab, "third:act", like=newer, code=code)
            lab.update_service("pick", NewVersion(spec=bad))
            until(lambda: "went back to version 2" in lab.service("pick").reason, "the way back", wait_s=150)
            robots.asked()
            assert robots.answers[-1] == 2.0
        assert robots.missed == []
    finally:
        lab.up()
        lab.stop_service("pick")
