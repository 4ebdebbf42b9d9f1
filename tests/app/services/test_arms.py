"""The show: simulated arms on a policy that goes on training, through openpi's own client; none misses a chunk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mainspring.app.sdk.lab import Lab, job
from mainspring.app.sdk.policies.services import replica_spec
from mainspring.data import ViewRecipe, build_view, ingest
from mainspring.domain.answers import NewScale, NewService, NewToken
from mainspring.domain.job import LAB
from mainspring.domain.team import TeamRole
from mainspring.robots.environments.metaworld import MetaWorld
from mainspring.robots.environments.port import EpisodeStart
from mainspring.robots.evaluation.playing import play
from mainspring.robots.recorder import record_episodes
from mainspring.testing.time_and_chance import FakeClock
from tests.app.conftest import until

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(3_000)]

ARMS, TABLES = 20, 2  # As many play at once as share a table.
WAIT_S = 600.0  # Of a machine that does much else.
DEADLINE_MS = 30_000.0  # A chunk that is later is missed: by a time that a machine under load is still within.


class Arms:
    """Arms that play one episode after the other, each with a client of its own."""

    def __init__(self, make_client: Any, address: str, token: str) -> None:
        self._clients = [make_client(host=address, port=None, api_key=token) for _ in range(ARMS)]
        self._ended = threading.Event()
        self.chunks = 0
        self.longest_s = 0.0
        self.policies: set[str] = set()
        self.missed: list[str] = []
        each = ARMS // TABLES
        self._threads = [
            threading.Thread(target=self._play, args=(self._clients[at : at + each], at), daemon=True)
            for at in range(0, ARMS, each)
        ]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Ends them."""
        self._ended.set()
        for thread in self._threads:
            thread.join(WAIT_S)

    def played(self, rounds: int = 3) -> None:
        """Waits until every arm has had some chunks more, and none missed any."""
        before = self.chunks
        until(lambda: self.chunks >= before + rounds * ARMS or bool(self.missed), "chunks", wait_s=WAIT_S)
        assert self.missed == []

    def _play(self, clients: Sequence[Any], first: int) -> None:
        starts = [EpisodeStart(seed=7, index=first + number) for number in range(len(clients))]
        with ThreadPoolExecutor(len(clients)) as pool:

            def actor(seen: Any, call: int) -> Any:
                if self._ended.is_set():
                    raise InterruptedError
                rows = [{"state": seen.state[arm], "before": seen.before[arm]} for arm in range(len(seen.state))]
                chunks = list(pool.map(self._ask, clients, rows))
                return np.stack([*chunks, *[chunks[-1]] * (len(rows) - len(chunks))])  # Some lanes have no arm.

            try:
                while True:
                    play(MetaWorld, actor, starts, films=0, progress=lambda done: None)
            except InterruptedError:
                pass
            except Exception as error:  # noqa: BLE001 # Told where it is looked at.
                self.missed.append(f"{type(error).__name__}: {error}")

    def _ask(self, client: Any, seen: Mapping[str, Any]) -> Any:
        begun_s = time.monotonic()
        answer = client.infer({**seen, "mainspring": {"deadline_ms": DEADLINE_MS}})
        self.longest_s = max(self.longest_s, time.monotonic() - begun_s)
        self.policies.add(answer["mainspring"]["policy"])
        self.chunks += 1
        return answer["actions"]


def _openpi(folder: Path) -> Any:
    """Returns the published client's class; its code is as it is, beside this NumPy."""
    words = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), "openpi-client==0.1.2"]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"the package index did not give openpi-client 0.1.2: {done.stderr[-200:]}")
    sys.path.append(str(folder))
    return import_module("openpi_client.websocket_client_policy").WebsocketClientPolicy


def _view(lab: Lab, folder: Path) -> str:
    record_episodes(folder / "recordings", count=10, seed=0, progress=lambda done: None)
    report = ingest(folder / "recordings", lab.objects(), "pick-place", clock=FakeClock())
    assert report.version is not None
    return build_view(lab.objects(), report.version, ViewRecipe(holdout_fraction=0.0), scratch_dir=folder).id


@contextmanager
def _playing(lab: Lab, client: Any) -> Iterator[Arms]:
    with lab.client() as caller:
        token = caller.new_token(NewToken(holder="arm", team=LAB, role=TeamRole.VIEWER)).secret
    arms = Arms(client, lab.service("pick").address, token)
    try:
        yield arms
    finally:
        arms.join()


def test_twenty_arms_miss_no_chunk_while_training_goes_on_weights_are_swapped_and_a_replica_is_killed(
    lab: Lab, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    client, view = _openpi(tmp_path / "theirs"), _view(lab, tmp_path)
    command = ["python", "-m", "mainspring", "train", "--objects", lab.home.objects_url(lab.home.config())]
    command += ["--view", view, "--cache", str(lab.home.cache), "--recipe", "arm", "--steps", "1000000"]
    trained = lab.run(job("train", command, on=["v5e"])).id
    until(lambda: lab.status(trained).step > 0, "the job to step", wait_s=WAIT_S)
    follow = ("--follow", "--every", "1")
    served: list[Any] = []

    def begun() -> bool:
        try:
            served.append(replica_spec(lab, trained, follow, name="pick", on=["h100"], each={"chips": 0.2}))
        except Exception:  # noqa: BLE001 # It has saved nothing yet.
            return False
        return True

    until(begun, "a durable step", wait_s=WAIT_S)
    lab.serve(NewService(spec=served[0], scale=NewScale(replicas=2)))
    try:
        until(lambda: sum(one.ready for one in lab.service("pick").members) == 2, "two replicas", wait_s=WAIT_S)
        with _playing(lab, client) as arms:
            arms.played()
            until(lambda: len(arms.policies) >= 3 or bool(arms.missed), "two swaps", wait_s=WAIT_S)
            first = lab.service("pick").members[0]
            (rank,) = lab.status(first.job).attempts[-1].ranks
            os.kill(rank.pid, signal.SIGKILL)
            arms.played(6)
        assert arms.missed == []
        record_property("chunks", arms.chunks)
        record_property("longest_s", arms.longest_s)
    finally:
        lab.stop_service("pick")
        lab.stop(trained)
