"""An object store that hangs, refuses or comes back empty: training goes on, and what it reached is durable in the end.

The store is an S3 server in a process of its own, reached over HTTP, stopped and killed by signals.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from mainspring.domain.life import AttemptState
from mainspring.domain.wire.events.leads import CheckpointDurableEvent, GenerationResumedEvent
from tests.node.rig import Rig

pytest.importorskip("moto", reason="an S3 server is needed: pip install 'moto[server]'")
pytestmark = pytest.mark.slow
UP_LIMIT_S = 120.0


@dataclass
class S3:
    """An S3 server on loopback, with one bucket, "lab"."""

    port: int
    process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }

    def up(self) -> None:
        words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until_s = time.monotonic() + UP_LIMIT_S
        while True:
            try:
                httpx.put(f"http://127.0.0.1:{self.port}/lab", timeout=5).raise_for_status()
                return
            except httpx.HTTPError:
                assert time.monotonic() < until_s, "the S3 server did not come up"

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def down(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def s3() -> Iterator[S3]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    server = S3(port=port)
    server.up()
    yield server
    server.down()


def attempt(make_rig: Callable[..., Rig], s3: S3, steps: int) -> Rig:
    return make_rig(steps=steps, how=("reconnects",), objects_url="s3://lab/objects", environment=s3.environment)


def test_store_that_hangs_neither_stops_training_nor_loses_the_end(make_rig: Callable[..., Rig], s3: S3) -> None:
    rig = attempt(make_rig, s3, 400)
    rig.wait_event(CheckpointDurableEvent.kind)
    s3.signal(signal.SIGSTOP)
    rig.wait_step(rig.heartbeats[-1].step + 100)
    rig.signal_rank(1, signal.SIGKILL)
    rig.wait_stepping(2)
    assert rig.of_kind(GenerationResumedEvent.kind)[-1]["source"] == "arena"
    s3.signal(signal.SIGCONT)
    assert rig.wait_outcome().outcome is AttemptState.SUCCEEDED
    rig.check_results(400, ranks=2)
    assert int(rig.of_kind(CheckpointDurableEvent.kind)[-1]["step"]) == 400


@pytest.mark.soak
def test_store_that_refuses_and_comes_back_empty_has_the_end_all_the_same(make_rig: Callable[..., Rig], s3: S3) -> None:
    rig = attempt(make_rig, s3, 400)
    rig.wait_event(CheckpointDurableEvent.kind)
    s3.down()
    rig.wait_step(rig.heartbeats[-1].step + 100)
    s3.up()
    assert rig.wait_outcome().outcome is AttemptState.SUCCEEDED
    rig.check_results(400, ranks=2)
    assert int(rig.of_kind(CheckpointDurableEvent.kind)[-1]["step"]) == 400


def test_new_attempt_resumes_from_the_store_over_http(make_rig: Callable[..., Rig], s3: S3, tmp_path: Path) -> None:
    rig = attempt(make_rig, s3, 100_000)
    rig.wait_step(60)
    for agent in range(2):
        rig.preempt(agent, 10.0)
    rig.wait_outcome()
    saved = int(rig.of_kind(CheckpointDurableEvent.kind)[-1]["step"])
    again = make_rig(
        steps=saved + 40,
        attempt="attempt-2",
        number=2,
        objects_url="s3://lab/objects",
        environment=s3.environment,
    )
    assert again.wait_outcome().outcome is AttemptState.SUCCEEDED
    resumed = again.of_kind(GenerationResumedEvent.kind)[0]
    assert (resumed["step"], resumed["source"]) == (saved, "store")
    again.check_results(saved + 40, ranks=2)
