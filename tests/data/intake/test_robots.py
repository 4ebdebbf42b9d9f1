from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.data.making import ROBOTS, copy_humanoid

from mainspring.data.catalog.versions import episode_rows
from mainspring.data.intake.ingest import ingest
from mainspring.data.intake.judge import OUR_FAULT
from mainspring.data.intake.logs.recipe import Align, Cut, CutBy, Fact, MappingRecipe, RecipePart
from mainspring.data.intake.proposals.propose import propose
from mainspring.objects import ObjectStore, open_store
from mainspring.testing.time_and_chance import FakeClock

pytestmark = pytest.mark.skipif(not ROBOTS.exists(), reason="the shared robot recordings are not here")
TURTLES = [f"/turtle{number}" for number in (1, 2)]
TURTLE = MappingRecipe(
    rate_hz=20,
    columns={
        "state": tuple(
            RecipePart(topic=f"{turtle}/pose", field=field, tolerance_ms=20)
            for turtle in TURTLES
            for field in ("x", "y", "theta")
        ),
        "action": tuple(
            RecipePart(topic="/turtle1/cmd_vel", field=field, tolerance_ms=2_000, align=Align.HOLD)
            for field in ("linear.x", "angular.z")
        ),
    },
    task=Fact(text="chase the other turtle"),
    robot=Fact(text="turtle"),
)
CAMERA_INFO = "/kinect_head/rgb/camera_info"
PR2 = MappingRecipe(
    rate_hz=10,
    columns={
        "state": (RecipePart(topic=CAMERA_INFO, field="K", tolerance_ms=100, stamp="header.stamp"),),
        "action": (RecipePart(topic="/l_forearm_cam/camera_info", field="P[0:3]", tolerance_ms=100),),
    },
)
FLIGHT = MappingRecipe(
    rate_hz=50,
    columns={
        "state": (RecipePart(topic="vehicle_attitude", field="q", tolerance_ms=50, align=Align.INTERPOLATE),),
        "action": (RecipePart(topic="actuator_controls_0", field="control[0:4]", tolerance_ms=50),),
    },
    cut=Cut(by=CutBy.GAP, gap_s=0.1),
)
LOGS = [
    ("example-lz4.bag", TURTLE),
    ("example-bz2.bag", TURTLE),
    ("pr1012_camera_info.bag", PR2),
    ("sample_log_small.ulg", FLIGHT),
]


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "recipe"), LOGS)
def test_real_log_becomes_episodes_by_its_recipe(store: ObjectStore, name: str, recipe: MappingRecipe) -> None:
    report = ingest(ROBOTS / "logs" / name, store, "logs", clock=FakeClock(), recipe=recipe)
    assert report.version is not None, report.left_out
    assert report.frames > 100
    rows = episode_rows(store, report.version)
    assert sum(row.frames for row in rows) == report.frames
    assert all(row.raw[0].name == name for row in rows)


@pytest.mark.slow
def test_same_recording_in_two_compressions_is_one_episode(store: ObjectStore, tmp_path: Path) -> None:
    for name in ("example-lz4.bag", "example-bz2.bag"):
        shutil.copy(ROBOTS / "logs" / name, tmp_path / name)
    report = ingest(tmp_path, store, "turtle", clock=FakeClock(), recipe=TURTLE)
    assert report.recordings == 2
    assert report.version is not None
    assert report.version.episodes == 1


def test_proposal_for_the_turtles_can_be_run_at_once(store: ObjectStore) -> None:
    found = propose(ROBOTS / "logs" / "example-lz4.bag")
    assert found.recipe is not None
    report = ingest(ROBOTS / "logs" / "example-lz4.bag", store, "t", clock=FakeClock(), recipe=found.recipe)
    assert report.episodes == 1, report.left_out


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROBOTS / "logs").glob("*")), ids=lambda path: path.name)
def test_every_real_log_has_a_proposal_or_a_reason(path: Path) -> None:
    found = propose(path)
    assert found.text.startswith("#")
    assert found.recipe is not None or found.doubts


@pytest.mark.slow
@pytest.mark.parametrize(("name", "recipe"), LOGS)
def test_real_log_cut_anywhere_is_taken_in_or_refused_with_a_reason(
    tmp_path: Path, name: str, recipe: MappingRecipe
) -> None:
    data = (ROBOTS / "logs" / name).read_bytes()
    dice = np.random.default_rng(len(data))
    (tmp_path / "raw").mkdir()
    for number, cut in enumerate(sorted(dice.integers(0, len(data), 20).tolist())):
        (tmp_path / "raw" / f"{number:02d}-{name}").write_bytes(data[:cut])
    report = ingest(tmp_path / "raw", open_store("memory://"), "cut", clock=FakeClock(), recipe=recipe)
    assert report.recordings == 20
    assert all(entry.reason and OUR_FAULT not in entry.reason for entry in report.left_out)
    assert report.refused + report.episodes > 0


@pytest.mark.slow
def test_humanoid_dataset_is_ingested_whole(store: ObjectStore) -> None:
    report = ingest(ROBOTS / "unitree_g1_bottle", store, "bottle", clock=FakeClock())
    assert (report.episodes, report.frames, report.left_out) == (16, 5_924, ())
    assert report.version is not None
    assert len(report.version.features.names("state")) == len(report.version.features.names("action")) == 26
    assert report.version.features.names("state")[0] == "kLeftShoulderPitch"
    assert report.version.tasks == ("Pick up the yellow bottle on the table.",)


@pytest.mark.slow
def test_humanoid_dataset_cut_anywhere_is_taken_in_or_refused_with_a_reason(store: ObjectStore, tmp_path: Path) -> None:
    dice = np.random.default_rng(3)
    for number in range(4):
        root = copy_humanoid(tmp_path / "raw" / f"{number}", 1)
        files = sorted(path for path in root.rglob("*") if path.is_file())
        path = files[number % len(files)]
        path.write_bytes(path.read_bytes()[: int(dice.integers(path.stat().st_size))])
    report = ingest(tmp_path / "raw", store, "cut", clock=FakeClock())
    assert report.version is None or report.episodes == 0
    assert report.refused >= 4
    assert all(entry.reason and OUR_FAULT not in entry.reason for entry in report.left_out)


def test_arm_dataset_without_its_videos_is_reported_episode_by_episode(store: ObjectStore) -> None:
    report = ingest(ROBOTS / "so101_v3_tabular", store, "arm", clock=FakeClock())
    assert (report.version, report.episodes) == (None, 0)
    assert [entry.source for entry in report.left_out] == [f"episode_{index:06d}" for index in range(4)]
    assert all("no file videos/observation.images.front" in entry.reason for entry in report.left_out)
    assert all("no file videos/observation.images.top" in entry.reason for entry in report.left_out)
    assert store.list("catalog") == ()


def test_folder_of_foreign_logs_without_a_recipe_is_reported_file_by_file(store: ObjectStore) -> None:
    report = ingest(ROBOTS / "logs", store, "logs", clock=FakeClock())
    assert report.version is None
    assert len(report.left_out) == len(list((ROBOTS / "logs").iterdir()))
    assert all("ms data inspect" in entry.reason or ".mcap" in entry.source for entry in report.left_out)
