"""A gigabyte of weights swapped under 20 robots that ask twice a second.

Run as `python -m benchmarks.serve_swap [--quick]`. Two checkpoints of 1 GB lie in an object store that is a folder; the
server serves the first, with a policy that waits for 20 ms as for an accelerator and takes up to 16 observations, and
follows the job. A second into each round the second checkpoint is shown to it, which it reads, verifies and puts in
use. Robots and what they send are those of `serve_load`; each wants its chunk 50 ms after it sent.

`missed`: chunks that came later, or not at all, of all rounds (wanted: 0). `swap_s`: from when the checkpoint was there
until the first batch with it could begin, a look every 0.5 s among it (wanted: <= 10); median of three rounds. `loop_s`
is the time of 6,000,000 turns of `total += i * i % 7` (0.20 s is the reference). `--quick` takes 100 MB and rounds of
5 s in place of 15.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import socket
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.control_submit import loop_s
from benchmarks.running import run
from benchmarks.serve_load import BATCH, CHUNK, drive

from mainspring.app.base.system import SystemClock, SystemDice, tune_for_serving
from mainspring.checkpoint import Claim, Manifest, commit, load, seal, share_file, write_share
from mainspring.domain.ids import AttemptId, JobId
from mainspring.domain.wire import Part, Shard
from mainspring.objects import ObjectStore, aligned_buffer, open_store
from mainspring.robots.serving.following import REST_S, follow
from mainspring.robots.serving.policy import Asked, FloatArray, PolicyFacts
from mainspring.robots.serving.server import PolicyServer

JOB = JobId("job-1")
ROUNDS, ROUND_S, QUICK_S = 3, 15.0, 5.0
SIZE, QUICK_SIZE, ARRAYS = 1 << 30, 100 << 20, 16
ROBOTS, EVERY_S, POLICY_S, LOOK_S = 20, 0.5, 0.02, 0.5


class Waiting:
    """A policy of some weights."""

    def __init__(self, step: int, weights: Mapping[str, Any]) -> None:
        self.weights = weights
        self.facts = PolicyFacts(name=f"{JOB}@{step}", batch_max=BATCH)

    def infer(self, asked: Sequence[Asked]) -> FloatArray:
        time.sleep(POLICY_S)
        return np.stack([CHUNK] * len(asked))


def save(store: ObjectStore, step: int, size_bytes: int) -> None:
    """Leaves a checkpoint as a job would."""
    each = size_bytes // ARRAYS // 4096 * 4096
    shards = [
        Shard(
            path=f"weights/{number}",
            dtype="float32",
            global_shape=(each // 4,),
            start=(0,),
            shape=(each // 4,),
            offset=number * each,
            size_bytes=each,
            part=Part.WEIGHTS,
        )
        for number in range(ARRAYS)
    ]
    data = np.frombuffer(aligned_buffer(each * ARRAYS), np.uint8)
    data.view(np.float32)[:] = step
    entry = write_share(
        store,
        job=JOB,
        step=step,
        file=share_file(Claim(number=1, epoch=1), generation=1, rank=0),
        rank=0,
        data=data,
        shards=shards,
        sealed=partial(seal, data, shards),
        state={},
    )
    manifest = Manifest(job=JOB, attempt=AttemptId("attempt-1"), step=step, created_s=0.0, shares=(entry,))
    assert commit(store, manifest, replace=False)


def serve(told: Connection, folder: str, shown: Any) -> None:
    """The server; tells its port, then when the second checkpoint is in use."""
    store = open_store(folder)

    async def main() -> None:
        policy = Waiting(1, load(store, JOB, 1).arrays)
        server = PolicyServer(policy, clock=SystemClock(), dice=SystemDice())
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        tune_for_serving()
        await server.start(listening)
        told.send(server.port)
        following = asyncio.create_task(
            follow(
                server,
                begun=1,
                newest=lambda: int(shown.value),
                load=lambda step: Waiting(step, load(store, JOB, step, rest=lambda: time.sleep(REST_S)).arrays),
                every_s=LOOK_S,
            )
        )
        while server.policy_version == 1:  # noqa: ASYNC110 # Nobody is told but robots.
            await asyncio.sleep(0.01)
        told.send(time.monotonic())
        await following

    asyncio.run(main())


def one_round(folder: Path, seconds: float) -> Mapping[str, float]:
    """Returns what was missed, and how long the swap took."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    shown = spawn.Value("i", 1)
    process = spawn.Process(target=serve, args=(there, str(folder), shown), daemon=True)
    process.start()
    url = f"ws://127.0.0.1:{here.recv()}"

    async def robots() -> Mapping[str, float]:
        driving = asyncio.create_task(drive(url, ROBOTS, seconds, EVERY_S))
        await asyncio.sleep(1.0)
        shown_s = time.monotonic()
        shown.value = 2
        used_s = await asyncio.to_thread(here.recv)
        seen = await driving
        return {"missed": seen.missed, "swap_s": used_s - shown_s, "chunks": len(seen.trips_s)}

    try:
        return asyncio.run(robots())
    finally:
        process.terminate()
        process.join()


def measure(folder: Path, *, quick: bool) -> Mapping[str, float]:
    """Returns the figures."""
    before_s = loop_s()
    for step in (1, 2):
        save(open_store(str(folder)), step, QUICK_SIZE if quick else SIZE)
    rounds = [one_round(folder, QUICK_S if quick else ROUND_S) for _ in range(ROUNDS)]
    return {
        "missed": sum(each["missed"] for each in rounds),
        "chunks": sum(each["chunks"] for each in rounds),
        "swap_s": statistics.median(each["swap_s"] for each in rounds),
        "loop_s": (before_s + loop_s()) / 2,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="100 MB, and rounds of 5 s")
    given = parser.parse_args()
    run("serve-swap", "", partial(measure, quick=given.quick))


if __name__ == "__main__":
    main()
