from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.data.making import version_of
from tests.robots.logs.making import BASE, RATE_HZ, SECOND, recorded, rules_of

from mainspring.data import annotations_of, episode_rows, freeze_labels
from mainspring.data.catalog.versions import Version
from mainspring.data.intake.logs.clip import CAMERA_PREFIX
from mainspring.data.layers.episode import read_recorded
from mainspring.objects import ObjectStore, open_store
from mainspring.robots.logs.recorder import CAMERA_PREFIX as RECORDED_PREFIX
from mainspring.robots.logs.recorder import LogRecorder
from mainspring.robots.logs.rules import TriggerRule

pytestmark = pytest.mark.slow


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


def taken(store: ObjectStore, folder: Path) -> Version:
    return version_of(store, folder / "clips")


def test_cameras_are_called_alike_by_recorder_and_reader() -> None:
    assert CAMERA_PREFIX == RECORDED_PREFIX


def test_clips_become_episodes_that_know_where_they_are_from(store: ObjectStore, tmp_path: Path) -> None:
    recorded(tmp_path, rules_of())
    (row,) = episode_rows(store, taken(store, tmp_path))
    assert (row.task, row.robot, row.success, row.frames) == ("pick", "arm-1", False, 4 * RATE_HZ + 1)
    said = {key: row.metadata[key] for key in ("robot", "release", "ring", "trigger", "priority")}
    assert said == {
        "robot": "arm-1",
        "release": "arm@3",
        "ring": "canary",
        "trigger": "failed",
        "priority": "standard",
    }
    assert [track.camera for track in row.videos] == ["wrist"]
    episode = read_recorded(store, row, (), tmp_path)
    assert episode.columns["state"][5].tolist() == pytest.approx([5 / 7, 0.05, 0.5])
    assert sum(1 for _ in episode.frames("wrist")) == row.frames


def test_interventions_become_labels_by_themselves_and_once(store: ObjectStore, tmp_path: Path) -> None:
    recorded(tmp_path, rules_of())
    version = taken(store, tmp_path)
    (row,) = episode_rows(store, version)
    taken(store, tmp_path)
    ((annotation,),) = annotations_of(store, [row.id]).values()
    assert (annotation.label, annotation.author) == ("intervention", "ada")
    assert annotation.span == (SECOND, 2 * SECOND)
    assert annotation.made_ns == BASE + 2 * SECOND
    layer = freeze_labels(store, version, ["intervention"])
    assert layer.columns == {"intervention": ("held",)}


def test_a_trigger_within_a_task_makes_an_episode_of_nobodys_verdict(store: ObjectStore, tmp_path: Path) -> None:
    hard = TriggerRule(when="effort > 40", before_s=1.0, after_s=1.0)
    recorder = LogRecorder(tmp_path, rules_of(triggers={"hard": hard}), {"/action": ("left", "right")})
    recorder.task(BASE, "pick")
    for step in range(100):
        recorder.step(BASE + step * SECOND // RATE_HZ, [step, 0.0], [0.0, step % 9])
        recorder.tell(BASE + step * SECOND // RATE_HZ, effort=float(step))
    recorder.close()
    version = taken(store, tmp_path)
    (row,) = episode_rows(store, version)
    assert (row.success, row.metadata["trigger"], row.frames) == (None, "hard", 2 * RATE_HZ + 1)
    assert version.features.columns[0].names == ("left", "right")
    state = read_recorded(store, row, (), tmp_path).columns["state"]
    assert np.array_equal(state[:, 0], np.arange(21, 62))
