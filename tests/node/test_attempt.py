"""Whole attempts with real agents, ranks, sockets and object store; only the controller is a few lines of HTTP."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mainspring.domain import wire
from mainspring.domain.ids import AttemptId
from mainspring.domain.life import AttemptState
from mainspring.domain.wire import EventKind

from .rig import JOB, LIMIT_S, Rig, expected_digest

pytestmark = pytest.mark.slow


def ended_in_time(handle: int) -> bool:
    """Waits on a process that is not our child, and closes the handle."""
    ready, _, _ = select.select([handle], [], [], LIMIT_S)
    os.close(handle)
    return bool(ready)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_attempt_with_a_rank_killed_resumes_from_its_arena_and_ends_bitwise_equal(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(steps=80)
    rig.wait_step(25)
    os.kill(rig.heartbeats[-1].ranks[1].pid, signal.SIGKILL)
    last = rig.wait_outcome()
    assert last.outcome is AttemptState.SUCCEEDED, last.reason
    exits = rig.of_kind(EventKind.RANK_EXITED)
    assert [(exited["rank"], exited["exit_code"]) for exited in exits] == [(1, -9)]
    resumed = rig.of_kind(EventKind.GENERATION_RESUMED)
    assert [(r["source"]) for r in resumed] == ["", "arena"]
    assert int(resumed[1]["step"]) >= 20
    assert len(rig.of_kind(EventKind.CAUGHT_UP)) == 1
    results = {name: value for detail in rig.of_kind(EventKind.RESULT) for name, value in detail.items()}
    assert results == {f"digest-{rank}": expected_digest(rank, 80) for rank in range(2)}
    assert rig.of_kind(EventKind.CHECKPOINT_DURABLE)[-1]["step"] == 80
    assert [rig.exit_of(agent).exit_code for agent in range(2)] == [0, 0]


def test_attempt_with_an_agent_killed_is_lost_and_leaves_no_process(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(steps=100_000)
    rig.wait_step(2)
    pids = [rank.pid for rank in rig.heartbeats[-1].ranks]
    os.kill(rig.processes[1].pid, signal.SIGKILL)
    last = rig.wait_outcome()
    assert last.outcome is AttemptState.LOST
    assert rig.of_kind(EventKind.AGENT_LOST) == [{"agent": 1, "node": "n1"}]
    assert rig.exit_of(0).exit_code == 1
    assert all(gone(pid) for pid in pids)


def test_attempt_with_its_newest_durable_step_damaged_resumes_from_the_one_before(make_rig: Callable[..., Rig]) -> None:
    first = make_rig(steps=20)
    assert first.wait_outcome().outcome is AttemptState.SUCCEEDED
    steps = [int(detail["step"]) for detail in first.of_kind(EventKind.CHECKPOINT_DURABLE)]
    assert steps[-1] == 20
    assert len(steps) == 2
    share = next((first.folder / "objects" / "checkpoints" / JOB / f"{20:012d}").glob("*-1.bin"))
    data = bytearray(share.read_bytes())
    data[1000] ^= 1
    share.write_bytes(data)
    second = make_rig(steps=30, attempt=AttemptId("attempt-2"))
    assert second.wait_outcome().outcome is AttemptState.SUCCEEDED
    assert [detail["step"] for detail in second.of_kind(EventKind.CHECKPOINT_CORRUPT)][:1] == [20]
    resumed = second.of_kind(EventKind.GENERATION_RESUMED)
    assert [(detail["step"], detail["source"]) for detail in resumed] == [(steps[0], "store")]
    results = {name: value for detail in second.of_kind(EventKind.RESULT) for name, value in detail.items()}
    assert results == {f"digest-{rank}": expected_digest(rank, 30) for rank in range(2)}


def test_attempt_told_to_stop_saves_and_is_cancelled(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(steps=100_000)
    rig.wait_step(8)
    for process in rig.processes:
        process.send_signal(signal.SIGTERM)
    last = rig.wait_outcome()
    assert last.outcome in (AttemptState.CANCELLED, AttemptState.LOST)
    assert {exited["exit_code"] for exited in rig.of_kind(EventKind.RANK_EXITED)} <= {wire.EXIT_PREEMPTED}
    for process in rig.processes:
        process.wait(timeout=LIMIT_S)


def test_attempt_survives_its_controller_away_and_tells_everything_after(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(steps=80)
    rig.wait_step(2)
    with rig.changed:
        rig.away = True
    store = rig.folder / "objects" / "checkpoints" / JOB / f"{80:012d}" / "manifest.jsonl"
    rig.wait(store.exists, "durable last step")
    with rig.changed:
        rig.away = False
    last = rig.wait_outcome()
    assert last.outcome is AttemptState.SUCCEEDED
    assert [event.sequence for event in rig.events] == list(range(1, len(rig.events) + 1))


def test_attempt_fenced_by_its_controller_ends_at_once(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(steps=100_000)
    rig.wait_step(2)
    pids = [rank.pid for rank in rig.heartbeats[-1].ranks]
    with rig.changed:
        rig.fenced = True
    assert "fenced" in rig.exit_of(0).reason
    assert "fenced" in rig.exit_of(1).reason
    assert all(gone(pid) for pid in pids)


def test_attempt_of_a_plain_program_that_fails_alike_fails_with_its_last_words(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(command=(sys.executable, "-S", "-c", "raise SystemExit('the gripper file is missing')"), agents=1)
    last = rig.wait_outcome()
    assert last.outcome is AttemptState.FAILED
    assert "the gripper file is missing" in last.reason
    assert len(rig.of_kind(EventKind.RANK_EXITED)) == 3


def test_attempt_whose_agent_is_killed_leaves_no_grandchild(make_rig: Callable[..., Rig], tmp_path: Path) -> None:
    note = tmp_path / "grandchild"
    rig = make_rig(command=("sh", "-c", f"sleep 1000 & echo $! > {note}; wait"), agents=1)
    rig.wait(lambda: note.exists() and note.read_text().endswith("\n"), "grandchild")
    grandchild = int(note.read_text())
    handle = os.pidfd_open(grandchild)
    os.kill(rig.processes[0].pid, signal.SIGKILL)
    assert ended_in_time(handle)


def test_attempt_whose_lead_is_killed_ends_on_every_agent(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(steps=100_000)
    rig.wait_step(2)
    pids = [rank.pid for rank in rig.heartbeats[-1].ranks]
    os.kill(rig.processes[0].pid, signal.SIGKILL)
    assert "did not hear from the lead" in rig.exit_of(1).reason
    assert all(gone(pid) for pid in pids)
