"""What a training loop pays for its session: CPU time of the training thread per step, beside the same loop without it.

Run as `python -m benchmarks.runtime_overhead [--quick]`. Everything is on: steps, the timed iterator, a report with
metrics, the question whether a snapshot is due; an agent in another process answers on a real socket. A step works on
arrays larger than the caches for a while (steps of several lengths), so that the session's code is not found warm; the
clock runs only between one step's work and the next's. `step_us` is the worst of all lengths.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

import numpy as np

from mainspring.domain import codec, wire
from mainspring.domain.ids import AttemptId, JobId, RoleName
from mainspring.session import Session

RUNS = 5
PACES_S = (0.0, 0.002, 0.02, 0.15)  # From a toy model's step to one that is longer than the time between two reports.
STEPS = (50_000, 500, 50, 15)
ARRAY_BYTES = 16 << 20  # Three of them push everything else out of a core's own caches.
EVERY = 64
START_LIMIT_S = 10.0


def answer(path: str) -> None:
    """The agent: welcomes one rank and answers its reports until it hangs up."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(path)
    server.listen()
    line, _ = server.accept()
    with line, line.makefile("rb") as stream:
        while header := stream.read(codec.FRAME_HEADER_BYTES):
            message = codec.unframe(stream.read(codec.frame_length(header)), wire.Hello | wire.StepReport)
            if isinstance(message, wire.Hello):
                reply: object = wire.Welcome(
                    job=JobId("job"),
                    attempt=AttemptId("attempt"),
                    role=RoleName("main"),
                    rank=0,
                    world_size=1,
                    local_rank=0,
                    generation=1,
                    coordinator="",
                    arena_path="",
                    snapshot_every=EVERY,
                )
            else:
                reply = wire.StepReply(snapshot_every=EVERY)
            line.sendall(codec.frame(reply))


def joined(path: Path) -> Session:
    """Returns a session with an agent in a process of its own."""
    subprocess.Popen([sys.executable, "-m", "benchmarks.runtime_overhead", "--agent", str(path)])
    over_s = time.monotonic() + START_LIMIT_S
    while not path.exists():
        assert time.monotonic() < over_s, "the agent did not start"
        time.sleep(0.01)
    return Session(str(path), pid=os.getpid(), stopwatch=time.monotonic)


class Work:
    """A step's work."""

    def __init__(self) -> None:
        self.arrays = [np.ones(ARRAY_BYTES // 4, np.float32) for _ in range(3)]

    def __call__(self, pace_s: float) -> None:
        """Works for at least that long."""
        over_s = time.perf_counter() + pace_s
        while time.perf_counter() < over_s:
            np.add(self.arrays[0], self.arrays[1], out=self.arrays[2])


def empty(work: Work, first: int, last: int, pace_s: float) -> float:
    """The loop alone; returns the CPU seconds it took between its steps' work."""
    spent_s = 0.0
    batches: Iterator[int] = repeat(0)
    mark_s = time.thread_time()
    for _ in range(first, last):
        next(batches)
        spent_s += time.thread_time() - mark_s
        if pace_s:
            work(pace_s)
        mark_s = time.thread_time()
    return spent_s + time.thread_time() - mark_s


def full(session: Session, work: Work, first: int, last: int, pace_s: float) -> float:
    """The same loop under the session."""
    spent_s = 0.0
    batches = session.timed(repeat(0))
    mark_s = time.thread_time()
    for step in session.steps(first, last):
        next(batches)
        spent_s += time.thread_time() - mark_s
        if pace_s:
            work(pace_s)
        mark_s = time.thread_time()
        session.report(step, {"loss": 0.5, "gradient_norm": 1.25, "learning_rate": 1e-3, "steps": last})
        if session.snapshot_due(step):
            pass
    return spent_s + time.thread_time() - mark_s


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--agent", default="")
    options = parser.parse_args()
    if options.agent:
        answer(options.agent)
        return
    divisor = 5 if options.quick else 1
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        session = joined(Path(folder) / "agent.sock")
        work, at = Work(), 0
        for pace_s, count in zip(PACES_S, STEPS, strict=True):
            steps = max(count // divisor, 3)
            ours, bare = [], []
            for _ in range(RUNS):
                bare.append(empty(work, at, at + steps, pace_s) / steps * 1e6)
                ours.append(full(session, work, at, at + steps, pace_s) / steps * 1e6)
                at += steps
            name = f"at_{pace_s * 1e3:g}_ms_us"
            figures[name] = statistics.median(ours) - statistics.median(bare)
            print(f"steps of {pace_s * 1e3:5g} ms: {figures[name]:6.1f} us (empty loop {statistics.median(bare):.1f})")
        session.close()
    print(
        json.dumps({"step_us": round(max(figures.values()), 2), **{name: round(us, 2) for name, us in figures.items()}})
    )


if __name__ == "__main__":
    main()
