"""Real agents, killed as they enter each state of their journal: each has a slot that runs, and comes through."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event

import pytest

from mainspring.robots.edge.machine import Phase
from tests.robots.agents_world import RUN, WAIT_S, Lived, Robot, Served, again_and_again, each_state, lives


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path / "server")
    yield made
    made.close()


@pytest.mark.slow
def test_agents_killed_at_each_state_of_their_journal_have_a_slot_that_runs_and_come_through(
    served: Served, tmp_path: Path
) -> None:
    kills = each_state()
    assert lives(served, tmp_path, kills) == Lived(agents=len(Phase), kills=len(Phase))


@pytest.mark.slow
def test_policy_server_that_cannot_be_started_is_told_and_started_once_it_can(served: Served, tmp_path: Path) -> None:
    served.publish(b"first")
    robot = Robot(served, tmp_path / "robot", "arm-1")
    config = json.loads((robot.folder / "edge.json").read_bytes())
    command = ["/bin/sh", "-c", f"touch {tmp_path}/runs; exec sleep 600"]
    (robot.folder / "edge.json").write_text(json.dumps({**config, "command": command}))
    (robot.folder / "slots").write_bytes(b"no folder")
    agent = robot.start(RUN)
    try:
        until = time.monotonic() + WAIT_S
        while (report := served.control.robots.show("arm-1").report) is None or report.healthy:
            assert agent.poll() is None, robot.log
            assert time.monotonic() < until, robot.log
            Event().wait(0.1)
        (robot.folder / "slots").unlink()
        while not (tmp_path / "runs").exists():
            assert agent.poll() is None, robot.log
            assert time.monotonic() < until, robot.log
            Event().wait(0.1)
    finally:
        agent.terminate()
        with suppress(subprocess.TimeoutExpired):
            agent.wait(60.0)
        agent.kill()
        agent.wait()


@pytest.mark.soak
def test_twenty_agents_killed_again_and_again_have_a_slot_that_runs_and_come_through(
    served: Served, tmp_path: Path
) -> None:
    kills = again_and_again(20)
    assert {kill.phase for own in kills for kill in own} == set(Phase)
    assert lives(served, tmp_path, kills) == Lived(agents=20, kills=sum(map(len, kills)))
