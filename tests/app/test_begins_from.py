"""Jobs that begin from a checkpoint of another job, or from one that was imported."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from mainspring.app.cli.main import app
from mainspring.app.sdk.lab import Lab
from mainspring.checkpoint import read_manifest
from mainspring.domain.answers import JobView
from mainspring.domain.errors import InvalidInput, NotFound
from mainspring.domain.ids import JobId
from mainspring.domain.life import JobState
from mainspring.domain.wire.events.leads import GenerationResumedEvent

from .conftest import COUNTER, WAIT_S, counting

STEPS, EVERY = 60, 7


@pytest.fixture(scope="module")
def lab(shared_lab: Lab) -> Lab:
    return shared_lab


def counted(start: float, first: int, last: int) -> float:
    """Returns what a rank of the counter makes of a number in some steps."""
    number = np.array([start])
    for step in range(first + 1, last + 1):
        number = np.sin(number * 3.0 + step)
    return float(number[0])


def ended_well(lab: Lab, job: str) -> JobView:
    done = lab.wait(job, timeout_s=WAIT_S)
    assert done.state is JobState.SUCCEEDED, done.reason
    return done


def sources(lab: Lab, job: str) -> list[object]:
    events = lab.events(job)
    return [event.detail["source"] for event in events if event.kind == GenerationResumedEvent.kind]


@pytest.mark.slow
def test_job_goes_on_from_another_jobs_checkpoint_and_its_own_name_it_as_their_parent(lab: Lab, tmp_path: Path) -> None:
    first = lab.run(counting(tmp_path, name="teacher", steps=STEPS, every=EVERY))
    ended_well(lab, first.id)
    saved = STEPS // EVERY * EVERY
    spec = counting(tmp_path, name="student", steps=2 * STEPS, every=EVERY)
    with pytest.raises(NotFound, match="did you mean 'teacher'"):
        lab.run(spec, begins_from="teachr")
    with pytest.raises(NotFound, match=f"one of {saved}"):
        lab.run(replace(spec, begins_from=f"teacher@{saved + 1}"))
    with pytest.raises(InvalidInput, match="NAME@STEP"):
        lab.run(spec, begins_from="teacher@last")
    second = lab.run(spec, begins_from="teacher")
    assert second.spec.begins_from == f"{first.id}@{saved}"
    done = ended_well(lab, second.id)
    assert done.result["number_1"] == counted(2.0, 0, 2 * STEPS)
    assert sources(lab, second.id) == [f"{first.id}@{saved}"]
    last = 2 * STEPS // EVERY * EVERY
    assert read_manifest(lab.objects(), JobId(second.id), last).lineage.parent == f"{first.id}@{saved}"


@pytest.mark.slow
def test_job_that_comes_after_another_begins_from_the_newest_step_that_saves(lab: Lab, tmp_path: Path) -> None:
    first = lab.run(counting(tmp_path, name="mentor", steps=STEPS, every=EVERY))
    second = lab.run(counting(tmp_path, steps=2 * STEPS), after=["mentor"], begins_from="mentor")
    assert second.spec.begins_from == first.id
    ended_well(lab, second.id)
    assert sources(lab, second.id) == [f"{first.id}@{STEPS // EVERY * EVERY}"]


@pytest.mark.slow
def test_job_begins_from_an_imported_file_and_fails_clearly_once_that_is_damaged(lab: Lab, tmp_path: Path) -> None:
    numbers = {"number/0": np.array([0.25])}
    save_file(numbers, tmp_path / "weights.safetensors")

    def ms(*words: str) -> str:
        done = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["--home", str(lab.home.path), *words])
        assert done.exception is None, (done.exception, done.output)
        return done.stdout

    ms("checkpoint", "import", str(tmp_path / "weights.safetensors"), "--job", "base", "--step", "10")
    command = ("--", sys.executable, str(COUNTER), "30", "7", str(tmp_path))
    ms("run", "--on", "h100", "--no-code", "--name", "tuned", "--from", "base", "--wait", *command)
    done = lab.status("tuned")
    assert done.spec.begins_from == "base@10"
    assert done.result["number_0"] == counted(0.25, 10, 30)
    for share in lab.objects().list("checkpoints/base/shares"):
        lab.objects().put(share.key, b"nothing of the kind")
    broken = lab.wait(lab.again("tuned").id, timeout_s=WAIT_S)
    assert broken.state is JobState.FAILED
    assert "base@10, from which the job begins" in broken.reason
    assert len(broken.attempts) == 1
