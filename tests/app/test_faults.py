"""Faults against real processes: whatever dies, the work goes on and nothing is lost or doubled."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from mainspring.app.sdk.lab import Lab
from mainspring.app.server.daemon import running
from mainspring.control import Settings
from mainspring.control.state.accounting import Spent, spent
from mainspring.domain.answers import JobView
from mainspring.domain.goodput import TimeUse
from mainspring.domain.life import AttemptState, JobState
from mainspring.domain.wire.events.leads import (
    CheckpointCorruptEvent,
    CheckpointDurableEvent,
    CheckpointFailedEvent,
    GenerationResumedEvent,
    GenerationSteppingEvent,
)
from tests.app.conftest import counting, halted, kill, kinds, until

pytestmark = pytest.mark.slow
LEASE_S = Settings().lease_s


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    folder = tmp_path / "gate"
    folder.mkdir()
    return folder


def _numbers(view: JobView) -> dict[str, object]:
    return {name: value for name, value in view.result.items() if name.startswith("number_")}


def test_job_with_a_killed_rank_ends_with_the_same_numbers(lab: Lab, gate: Path) -> None:
    calm = lab.wait(lab.run(counting(gate, name="calm")).id, timeout_s=60)
    stormy = lab.run(counting(gate, 30, name="stormy"))
    victim = halted(lab, stormy.id, gate, 30).attempts[-1].ranks[1].pid
    kill(victim)
    (gate / "go-30").touch()
    ended = lab.wait(stormy.id, timeout_s=60)
    assert (calm.state, ended.state) == (JobState.SUCCEEDED, JobState.SUCCEEDED)
    assert _numbers(ended) == _numbers(calm)
    assert len(_numbers(calm)) == 2
    assert ended.result["generation"] == 2
    assert len(ended.attempts) == 1
    assert len(_spent(lab, stormy.id).recoveries_s) == 1


def test_goodput_counts_the_steps_a_kill_repeats(lab: Lab, gate: Path) -> None:
    view = lab.run(counting(gate, 30))
    kill(halted(lab, view.id, gate, 30).attempts[-1].ranks[0].pid)
    until(lambda: _resumed(lab, view.id) == [-1, 28], "the second generation")
    (gate / "go-30").touch()
    lab.wait(view.id, timeout_s=60)
    assert _spent(lab, view.id).repeated_steps == 2
    goodput = lab.goodput(view.id)
    assert sum(goodput.seconds.values()) == pytest.approx(goodput.allocated_s, rel=1e-6)
    assert min(goodput.seconds[use] for use in (TimeUse.PRODUCTIVE, TimeUse.STARTUP, TimeUse.RECOVERY)) > 0


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_job_with_a_killed_agent_goes_on_in_a_new_attempt(lab: Lab, gate: Path, victim: int) -> None:
    view = lab.run(counting(gate, 30))
    before = halted(lab, view.id, gate, 30)
    until(lambda: CheckpointDurableEvent.kind in kinds(lab, view.id), "a durable checkpoint")
    killed_s = time.time()
    kill(_agent_of(before.attempts[-1].ranks[victim].pid))
    until(lambda: len(lab.status(view.id).attempts) == 2, "the second attempt")
    (gate / "go-30").touch()
    ended = lab.wait(view.id, timeout_s=90)
    assert ended.state is JobState.SUCCEEDED
    assert [attempt.state for attempt in ended.attempts] == [AttemptState.LOST, AttemptState.SUCCEEDED]
    assert (ended.attempts[0].ended_s or 0.0) - killed_s < LEASE_S, "its cluster saw the agent go at once"
    assert _resumed(lab, view.id)[-1] > 0
    assert _spent(lab, view.id).repeated_steps == 30 - _resumed(lab, view.id)[-1]
    assert all(not _lives(rank.pid) for rank in before.attempts[-1].ranks)


def test_elastic_job_with_a_killed_agent_goes_on_without_it_long_before_its_lease(lab: Lab, gate: Path) -> None:
    spec = counting(gate, 30)
    (role,) = spec.roles
    options = tuple(replace(option, replicas_min=1) for option in role.options)
    view = lab.run(replace(spec, roles=(replace(role, options=options),)))
    before = halted(lab, view.id, gate, 30)
    killed_s = time.time()
    kill(_agent_of(before.attempts[-1].ranks[1].pid))
    until(lambda: len(_resumed(lab, view.id)) == 2, "the second generation")
    resumed = [event for event in lab.events(view.id) if event.kind == GenerationResumedEvent.kind]
    assert resumed[1].time_s - killed_s < LEASE_S / 2, "its cluster saw the agent go, and the lead was told"
    (gate / "go-30").touch()
    ended = lab.wait(view.id, timeout_s=60)
    assert (ended.state, len(ended.attempts)) == (JobState.SUCCEEDED, 1)
    assert not _lives(before.attempts[-1].ranks[1].pid)


def test_job_outlives_a_killed_controller_and_starts_nothing_twice(lab: Lab, gate: Path) -> None:
    view = lab.run(counting(gate, 30))
    halted(lab, view.id, gate, 30)
    record = lab.home.server()
    assert record is not None
    kill(record.pid)
    until(lambda: not running(record, lab.home), "the server to be gone")
    (gate / "go-30").touch()
    lab.up()
    ended = lab.wait(view.id, timeout_s=60)
    assert ended.state is JobState.SUCCEEDED
    assert len(ended.attempts) == 1
    assert ended.attempts[0].generation == 1
    assert kinds(lab, view.id).count(GenerationSteppingEvent.kind) == 1


@pytest.mark.soak
def test_job_with_a_corrupted_checkpoint_resumes_from_the_one_before_and_says_so(lab: Lab, gate: Path) -> None:
    view = lab.run(counting(gate, 10, 30, every=10))
    until(lambda: _durable(lab, view.id) == [10], "the first durable checkpoint")
    (gate / "go-10").touch()
    until(lambda: _durable(lab, view.id) == [10, 30], "the second durable checkpoint")
    before = halted(lab, view.id, gate, 30)
    folder = lab.home.path / "objects" / "checkpoints" / view.id / "shares" / f"{30:012d}"
    share = next(path for path in sorted(folder.iterdir()) if path.suffix != ".tail")
    data = bytearray(share.read_bytes())
    data[0] ^= 1
    share.write_bytes(data)
    kill(_agent_of(before.attempts[-1].ranks[1].pid))
    (gate / "go-30").touch()
    ended = lab.wait(view.id, timeout_s=90)
    assert ended.state is JobState.SUCCEEDED
    events = lab.events(view.id)
    assert [event.detail["step"] for event in events if event.kind == CheckpointCorruptEvent.kind] == [30]
    assert _resumed(lab, view.id)[-1] == 10


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MB, mounted where the lab will keep its objects."""
    folder = tmp_path / "home" / "objects"
    folder.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("a full disk needs the right to mount a tmpfs: run the tests as root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_job_goes_on_when_the_disk_is_full_and_checkpoints_once_there_is_room(
    small_disk: Path, lab: Lab, gate: Path
) -> None:
    view = lab.run(counting(gate, 5, 30))
    halted(lab, view.id, gate, 5)
    with suppress(OSError):
        (small_disk / ".ballast").write_bytes(b"x" * (1 << 20))
    (gate / "go-5").touch()
    until(lambda: CheckpointFailedEvent.kind in kinds(lab, view.id), "a checkpoint that failed")
    assert CheckpointDurableEvent.kind not in kinds(lab, view.id)
    failed = next(event for event in lab.events(view.id) if event.kind == CheckpointFailedEvent.kind)
    assert "No space left" in str(failed.detail["reason"])
    (small_disk / ".ballast").unlink()
    (gate / "go-30").touch()
    ended = lab.wait(view.id, timeout_s=60)
    assert ended.state is JobState.SUCCEEDED
    assert _durable(lab, view.id)[-1] == 56


def test_stop_lets_ranks_save_and_leaves_no_process(lab: Lab, gate: Path) -> None:
    view = lab.run(counting(gate, 30, steps=100_000, every=100_000))
    before = halted(lab, view.id, gate, 30)
    lab.stop(view.id)
    (gate / "go-30").touch()
    ended = lab.wait(view.id, timeout_s=60)
    assert ended.state is JobState.CANCELLED
    told = "\n".join(f"{event.time_s:.2f} {event.kind} {event.detail}" for event in lab.events(view.id))
    assert _durable(lab, view.id) == [ended.step], f"what they saved because they were asked to stop:\n{told}"
    assert all(not _lives(rank.pid) for rank in before.attempts[-1].ranks)


def _spent(lab: Lab, job_id: str) -> Spent:
    told = spent(lab.events(job_id), time.time())
    assert told is not None
    return told


def _resumed(lab: Lab, job_id: str) -> list[int]:
    return [int(event.detail["step"]) for event in lab.events(job_id) if event.kind == GenerationResumedEvent.kind]


def _durable(lab: Lab, job_id: str) -> list[int]:
    return [int(e.detail["step"]) for e in lab.events(job_id) if e.kind == CheckpointDurableEvent.kind]


def _agent_of(rank_pid: int) -> int:
    return int(Path(f"/proc/{rank_pid}/stat").read_text().rpartition(")")[2].split()[1])


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
