"""A real lab for tests: a server process, two pretended clusters, agents and ranks as processes."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from mainspring.app.base.home import Config
from mainspring.app.sdk.lab import Lab, job
from mainspring.domain.answers import JobView
from mainspring.domain.ids import ChipName, ClusterName
from mainspring.domain.job import JobSpec
from mainspring.domain.life import ended
from mainspring.engines.local.config import LocalCluster

# A shell that runs the tests in the background has them ignore interrupts, and so would every process they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

COUNTER = Path(__file__).parent / "counter.py"
WAIT_S = 60.0


def until(true: Callable[[], bool], what: str, *, wait_s: float = WAIT_S) -> None:
    """Waits for a condition, bounded."""
    deadline = time.monotonic() + wait_s
    while not true():
        assert time.monotonic() < deadline, f"waited {wait_s} s for {what}"
        threading.Event().wait(0.05)


def clusters() -> tuple[LocalCluster, ...]:
    return (
        LocalCluster(
            name=ClusterName("alpha"), chip=ChipName("h100"), chips_per_node=1, nodes=2, dollars_per_chip_hour=3.0
        ),
        LocalCluster(
            name=ClusterName("beta"), chip=ChipName("v5e"), chips_per_node=1, nodes=2, dollars_per_chip_hour=1.2
        ),
    )


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with _made_lab(tmp_path / "home") as made:
        yield made


@pytest.fixture(scope="module")
def shared_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One for all tests of a module that leave no more in it than jobs and people of names of their own."""
    with _made_lab(tmp_path_factory.mktemp("shared") / "home") as made:
        yield made


@contextmanager
def _made_lab(home: Path) -> Iterator[Lab]:
    lab = Lab(home)
    lab.home.write_config(Config(clusters=clusters()))
    lab.up(port=0)
    try:
        yield lab
    finally:
        lab.up()
        for view in lab.ps():
            if not ended(view.state):
                lab.stop(view.id)
        with suppress(AssertionError):
            until(lambda: all(ended(view.state) for view in lab.ps()), "jobs to end", wait_s=20)
        lab.down()


def counting(gate: Path, *halts: int, name: str = "count", steps: int = 60, every: int = 7) -> JobSpec:
    """Returns a job of two ranks that halts at its gate after the steps named."""
    words = [sys.executable, str(COUNTER), str(steps), str(every), str(gate), *map(str, halts)]
    return job(name, words, on=["h100", "v5e@0.5"], replicas=2)


def halted(lab: Lab, job_id: str, gate: Path, step: int) -> JobView:
    """Waits until both ranks halt after a step, and the controller knows it; returns the job as it is then."""
    until(lambda: all((gate / f"at-{step}-{rank}").exists() for rank in range(2)), f"ranks to reach step {step}")
    until(lambda: len(_pids(lab.status(job_id))) == 2, "the controller to know every rank's process")
    until(lambda: lab.status(job_id).step == step, "the controller to know the step")
    return lab.status(job_id)


def _pids(view: JobView) -> list[int]:
    return [rank.pid for rank in view.attempts[-1].ranks if rank.alive and rank.pid > 0] if view.attempts else []


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def kinds(lab: Lab, job_id: str) -> list[str]:
    return [event.kind for event in lab.events(job_id)]
