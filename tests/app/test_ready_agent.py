"""The agent that is started before there is an order for it, as a process of this machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mainspring.app.sdk.lab import Lab, job
from mainspring.domain.life import JobState
from tests.app.conftest import until


def _agent(told: str, cwd: Path) -> int:
    words = (sys.executable, "-m", "mainspring", "agent", "--wait")
    return subprocess.run(words, input=told.encode(), cwd=cwd, timeout=60, check=False).returncode


@pytest.mark.slow
def test_agent_without_an_order_or_of_a_launch_that_was_cut_short_ends_and_leaves_nothing(tmp_path: Path) -> None:
    order = tmp_path / "order.json"
    assert _agent("", tmp_path) == 0
    assert _agent(f"{order}\n", tmp_path) == 0
    assert _agent(f"{order}\n{tmp_path / 'launched.json'}\n", tmp_path) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_what_an_agent_says_that_was_ready_is_beside_its_order(tmp_path: Path) -> None:
    work, launched = tmp_path / "work", tmp_path / "launched.json"
    work.mkdir()
    (work / "order.json").write_text("{")
    launched.touch()
    assert _agent(f"{work / 'order.json'}\n{launched}\n", tmp_path) == 1
    assert "InvalidMessage" in (work / "agent.log").read_text()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_jobs_one_after_the_other_start_on_agents_that_were_ready_and_down_leaves_none(lab: Lab) -> None:
    server = lab.up(port=0).pid
    agents = set()
    for number in range(2):
        until(lambda: len(_waiting(server)) == len(lab.home.config().clusters), "agents that are ready")
        ready = _waiting(server)
        made = lab.run(job(f"job-{number}", [sys.executable, "-c", "import os; print(os.getppid())"], on=["h100"]))
        assert lab.wait(made.id, timeout_s=60).state is JobState.SUCCEEDED
        agents.add(int(b"".join(lab.logs(made.id))))
        assert len(agents & ready) == 1
    ready = _waiting(server)
    lab.down()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ready), "agents without an order to end")


def _waiting(server: int) -> set[int]:
    """Returns agents of a server that wait for an order."""
    children = Path(f"/proc/{server}/task").glob("*/children")
    every = {int(child) for path in children for child in path.read_text().split()}
    return {pid for pid in every if not Path(f"/proc/{pid}/cwd/order.json").exists() and b"--wait" in _words(pid)}


def _words(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
