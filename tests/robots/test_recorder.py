from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("metaworld", reason="the sim extra is not installed")

from mainspring.data import ViewRecipe, build_view, episode_rows, ingest, open_view
from mainspring.domain.errors import InvalidInput
from mainspring.objects import open_store
from mainspring.robots.arm import ACTION_NAMES, STATE_NAMES, Arm, Purpose, draw_start
from mainspring.robots.recorder import record_episode, record_episodes
from mainspring.testing.time_and_chance import FakeClock


@pytest.mark.slow
def test_recorded_episodes_are_read_back_as_the_expert_drove_them(tmp_path: Path) -> None:
    finished: list[int] = []
    recorded = record_episodes(tmp_path / "in", count=3, seed=0, progress=finished.append)
    assert finished == [1, 2, 3]
    assert all(episode.success for episode in recorded)
    store = open_store(str(tmp_path / "objects"))
    report = ingest(tmp_path / "in", store, "arm", clock=FakeClock())
    assert report.version is not None
    assert (report.left_out, report.episodes) == ((), 3)
    assert report.version.features.names("state") == STATE_NAMES
    assert report.version.features.names("action") == ACTION_NAMES
    rows = episode_rows(store, report.version)
    assert sorted(row.frames for row in rows) == sorted(episode.steps for episode in recorded)

    manifest = build_view(store, report.version, ViewRecipe(holdout_fraction=0.0), scratch_dir=tmp_path / "scratch")
    view = open_view(store, manifest.id, tmp_path / "cache", "train")
    firsts = [0, *view.episode_ends[:-1].tolist()]
    arm = Arm()
    begun = {arm.reset(draw_start(Purpose.TRAINING, seed=0, index=index)).state.tobytes() for index in range(3)}
    assert {view.take("state", np.array(first)).tobytes() for first in firsts} == begun


@pytest.mark.slow
def test_recorded_twice_is_the_same_file(tmp_path: Path) -> None:
    one, other = (record_episode(tmp_path / name, seed=4, told=False, index=2) for name in ("one", "other"))
    assert one.path.read_bytes() == other.path.read_bytes()


@pytest.mark.parametrize("count", [0, -1, 10**9])
def test_recording_an_impossible_number_of_episodes_is_refused(count: int, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="record episodes"):
        record_episodes(tmp_path, count=count, seed=0, progress=lambda _: None)
