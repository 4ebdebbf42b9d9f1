"""Training across two processes, with and without a kill: the same parameters, to the last bit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mainspring.app.sdk.lab import Lab, job
from mainspring.checkpoint import Loaded, load
from mainspring.data import EpisodeWriter, ViewRecipe, build_view, ingest
from mainspring.domain.job import JobSpec
from mainspring.domain.life import JobState
from mainspring.testing.time_and_chance import FakeClock
from tests.app.conftest import kill

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

STEPS = 1_600  # Seconds on any machine: a kill comes in time, as leads report once a second.
CHANGES = {"batch_size": 32, "policy": {"width": 32}}


def _view(lab: Lab, tmp_path: Path) -> str:
    """Returns the id of a view of a few made-up episodes."""
    dice = np.random.default_rng(0)
    (tmp_path / "recordings").mkdir()
    for number in range(6):
        path = tmp_path / "recordings" / f"{number}.mcap"
        with EpisodeWriter(path, task="wave", robot="test", rate_hz=50.0) as writer:
            for step in range(80):
                state = dice.normal(size=5)
                writer.write(step * 20_000_000, state, np.tanh(state[:2]))
            writer.finish(success=True)
    report = ingest(tmp_path / "recordings", lab.objects(), "wave", clock=FakeClock())
    assert report.version is not None
    return build_view(lab.objects(), report.version, ViewRecipe(holdout_fraction=0.0), scratch_dir=tmp_path).id


def _spec(lab: Lab, view: str, name: str) -> JobSpec:
    command = [
        "python",
        "-m",
        "mainspring",
        "train",
        "--objects",
        lab.home.objects_url(lab.home.config()),
    ]
    command += ["--view", view, "--cache", str(lab.home.cache), "--recipe", "arm", "--steps", str(STEPS)]
    command += ["--changes", json.dumps(CHANGES)]
    return job(name, command, on=["h100"], replicas=2)


def _end(lab: Lab, job_id: str) -> Loaded:
    checkpoint = load(lab.objects(), lab.status(job_id).id)
    assert checkpoint.step == STEPS
    return checkpoint


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_training_through_a_killed_rank_ends_with_bitwise_equal_parameters(
    lab: Lab, tmp_path: Path, victim: int
) -> None:
    view = _view(lab, tmp_path)
    calm = lab.wait(lab.run(_spec(lab, view, "calm")).id, timeout_s=100)
    stormy = lab.run(_spec(lab, view, "stormy"))
    killed: list[int] = []

    def kill_once(seen: object) -> None:
        now = lab.status(stormy.id)
        if not killed and STEPS // 16 < now.step < STEPS:
            killed.append(now.attempts[-1].ranks[victim].pid)
            kill(killed[0])

    ended = lab.wait(stormy.id, timeout_s=100, on_look=kill_once)
    assert (calm.state, ended.state) == (JobState.SUCCEEDED, JobState.SUCCEEDED)
    assert ended.attempts[-1].generation == 2
    before, after = _end(lab, calm.id), _end(lab, stormy.id)
    assert sorted(before.arrays) == sorted(after.arrays)
    assert len(before.arrays) > 10
    different = [path for path in before.arrays if before.arrays[path].tobytes() != after.arrays[path].tobytes()]
    assert not different
