"""The programs `docs/runtime.md` shows: how little they change, and that they do what they did, whatever happens."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.session.agent import Agent, welcome

from mainspring.domain import wire
from mainspring.domain.wire import EXIT_PREEMPTED
from mainspring.node.net.connection import free_port

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "runtime"
TRIES_MAX = 5
CHANGED_MAX = 14
STEPS = 300
KINDS = ["jax", "torch"]


def code_of(program: str) -> list[str]:
    """Returns a program's lines without its own description and without empty ones."""
    return [line for line in (EXAMPLES / program).read_text().splitlines()[1:] if line.strip()]


def environment(folder: Path, socket: str = "") -> dict[str, str]:
    """Returns what torchrun, or an agent, gives a rank that is alone."""
    port = str(free_port("127.0.0.1"))
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    paths = {"PYTHONPATH": str(ROOT / "src"), "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled")}
    return {**os.environ, **alone, **paths, "JAX_PLATFORMS": "cpu", "MAINSPRING_SOCKET": socket}


def ended(program: str, folder: Path, socket: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a program to its end."""
    return subprocess.run(
        [sys.executable, str(EXAMPLES / program)],
        env=environment(folder, socket),
        capture_output=True,
        text=True,
        timeout=90,
    )


def last_words(program: str, folder: Path, *, socket: str = "") -> str:
    """Runs a program to its good end; returns the last line it printed, "" for none."""
    done = ended(program, folder, socket)
    assert done.returncode == 0, done.stderr[-3000:]
    return ([line for line in done.stdout.splitlines() if line.startswith("step")] or [""])[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_examples_change_fewer_than_fifteen_lines(kind: str) -> None:
    before, after = code_of(f"{kind}_before.py"), code_of(f"{kind}_after.py")
    codes = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    assert 0 < sum(max(i2 - i1, j2 - j1) for tag, i1, i2, j1, j2 in codes if tag != "equal") <= CHANGED_MAX


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_example_alone_and_stopped_half_way_ends_as_the_loop_it_was(kind: str, tmp_path: Path, agent: Agent) -> None:
    pytest.importorskip(kind, reason=f"{kind} is not installed")
    before = last_words(f"{kind}_before.py", tmp_path)
    assert before.startswith(f"step {STEPS}: loss ")
    assert last_words(f"{kind}_after.py", tmp_path) == before
    agent.reply = wire.StepReply(stop=True, stop_at=STEPS // 2, snapshot_every=10**6)
    codes: list[int] = []
    while EXIT_PREEMPTED not in codes and len(codes) < TRIES_MAX:  # It may be done before a word reaches it.
        agent.welcomes.put(welcome(rank=0, world_size=1, every=10**6))
        codes.append(ended(f"{kind}_after.py", tmp_path, agent.path).returncode)
    assert codes[-1] == EXIT_PREEMPTED, codes
    commit = agent.all(wire.SnapshotCommit)[-1]
    assert STEPS // 2 <= commit.step < STEPS
    agent.resume_from(commit)
    agent.reply = wire.StepReply(snapshot_every=10**6)
    agent.welcomes.put(welcome(rank=0, world_size=1, every=10**6))
    assert last_words(f"{kind}_after.py", tmp_path, socket=agent.path) == before
    assert agent.all(wire.StepReport)[-1].step == agent.all(wire.SnapshotCommit)[-1].step == STEPS
