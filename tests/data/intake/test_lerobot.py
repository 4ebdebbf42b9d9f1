from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.data.making import CAMERA, edit_info, write_lerobot_v2, write_lerobot_v3, write_video
from tests.data.readers.lerobot_sets import FEATURES, FRONT, Rows, lerobot_set, picture

from mainspring.data.catalog.versions import episode_rows
from mainspring.data.intake.ingest import ingest
from mainspring.data.options import IngestOptions
from mainspring.data.packs import read_piece
from mainspring.data.video.packets import index_from_parquet
from mainspring.domain.errors import DamagedData, InvalidInput, MainspringError
from mainspring.objects import ObjectStore, open_store
from mainspring.testing.time_and_chance import FakeClock


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


@pytest.mark.parametrize("video", [False, True])
def test_lerobot_v2_is_ingested_with_its_names(store: ObjectStore, tmp_path: Path, video: bool) -> None:
    report = ingest(write_lerobot_v2(tmp_path / "raw", [12, 15], video=video), store, "stack", clock=FakeClock())
    assert report.version is not None
    assert report.left_out == ()
    assert report.version.features.names("state") == ("x", "y", "z")
    assert report.version.features.names("action") == ("left", "right")
    assert [camera.name for camera in report.version.features.cameras] == ([CAMERA] if video else [])
    assert (report.version.tasks, report.frames) == (("stack",), 27)


def test_lerobot_v3_with_shared_files_is_ingested(store: ObjectStore, tmp_path: Path) -> None:
    report = ingest(write_lerobot_v3(tmp_path / "raw", [12, 15, 9]), store, "stack", clock=FakeClock())
    assert report.version is not None
    assert report.left_out == ()
    rows = sorted(episode_rows(store, report.version), key=lambda row: row.source)
    indexes = [index_from_parquet(read_piece(store, row.videos[0].index)) for row in rows]
    assert [index.frames for index in indexes] == [12, 15, 9]
    assert len({row.videos[0].blob for row in rows}) == 1


def damage_cut_video(root: Path) -> None:
    video = root / f"videos/chunk-000/{CAMERA}/episode_000001.mp4"
    write_video(video, [100] * 10)


def damage_no_video(root: Path) -> None:
    (root / f"videos/chunk-000/{CAMERA}/episode_000001.mp4").unlink()


def damage_truncated_video(root: Path) -> None:
    video = root / f"videos/chunk-000/{CAMERA}/episode_000001.mp4"
    video.write_bytes(video.read_bytes()[:700])


def damage_empty_table(root: Path) -> None:
    (root / "data/chunk-000/episode_000001.parquet").write_bytes(b"")


def damage_garbage_table(root: Path) -> None:
    (root / "data/chunk-000/episode_000001.parquet").write_bytes(b"PAR1 and nothing else PAR1")


def _change_table(root: Path, name: str, values: Sequence[object]) -> None:
    path = root / "data/chunk-000/episode_000001.parquet"
    table = pq.read_table(path)
    pq.write_table(table.set_column(table.column_names.index(name), name, pa.array(values)), path)


def damage_nan(root: Path) -> None:
    _change_table(root, "action", [[float("nan"), 1.0]] * 15)


def damage_null(root: Path) -> None:
    _change_table(root, "action", [[1.0, 1.0]] * 14 + [None])


def damage_ragged(root: Path) -> None:
    _change_table(root, "action", [[1.0, 1.0]] * 14 + [[1.0]])


def damage_text(root: Path) -> None:
    _change_table(root, "action", ["left"] * 15)


def damage_frames(root: Path) -> None:
    _change_table(root, "frame_index", [*range(14), 20])


def damage_timestamps(root: Path) -> None:
    _change_table(root, "timestamp", (np.arange(15) / 10).tolist())


def damage_not_listed(root: Path) -> None:
    path = root / "meta" / "episodes.jsonl"
    path.write_text(path.read_text().splitlines()[0])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (damage_cut_video, "5 of 15 frames lost"),
        (damage_no_video, "no file videos/"),
        (damage_truncated_video, "read a video"),
        (damage_empty_table, "an empty file data/"),
        (damage_garbage_table, "Parquet"),
        (damage_nan, "not finite"),
        (damage_null, "empty"),
        (damage_ragged, "several lengths"),
        (damage_text, "numbers"),
        (damage_frames, "frames 0 to 14"),
        (damage_timestamps, "timestamps"),
        (damage_not_listed, "not described"),
    ],
)
def test_lerobot_episode_with_damage_is_left_out_with_its_reason(
    store: ObjectStore, tmp_path: Path, damage: Callable[[Path], None], reason: str
) -> None:
    root = write_lerobot_v2(tmp_path / "raw", [12, 15], video=True)
    damage(root)
    report = ingest(root, store, "stack", clock=FakeClock())
    assert report.episodes == 1
    assert [entry.source for entry in report.left_out] == ["episode_000001"]
    assert reason in report.left_out[0].reason


@pytest.mark.parametrize(
    "changes",
    [
        {"data_path": "../../{episode_index}.parquet"},
        {"data_path": "/etc/{episode_index}.parquet"},
        {"data_path": "data/{episode_index.__class__}.parquet"},
        {"data_path": "data/{episode_index:0999999999d}.parquet"},
        {"data_path": "data/{nothing}.parquet"},
        {"data_path": 7},
        {"codebase_version": "v1.6"},
        {"fps": 0},
        {"fps": "thirty"},
        {"features": {}},
        {"features": {"action": {"dtype": "float32", "shape": [2]}}},
    ],
)
def test_lerobot_description_that_cannot_be_right_is_refused(
    store: ObjectStore, tmp_path: Path, changes: dict[str, object]
) -> None:
    root = write_lerobot_v2(tmp_path / "raw", [12])
    edit_info(root, **changes)
    with pytest.raises((InvalidInput, DamagedData)):
        ingest(root, store, "stack", clock=FakeClock())
    assert store.list("") == ()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"fps": NaN}', json.dumps({"codebase_version": "v2.1"})])
def test_lerobot_description_that_is_no_description_is_refused(store: ObjectStore, tmp_path: Path, text: str) -> None:
    root = write_lerobot_v2(tmp_path / "raw", [12])
    (root / "meta" / "info.json").write_text(text)
    with pytest.raises(MainspringError, match=r"info\.json"):
        ingest(root, store, "stack", clock=FakeClock())


def test_lerobot_link_that_leaves_the_folder_is_not_followed(store: ObjectStore, tmp_path: Path) -> None:
    root = write_lerobot_v2(tmp_path / "raw", [12])
    inside = root / "data/chunk-000/episode_000000.parquet"
    outside = inside.rename(tmp_path / "outside.parquet")
    inside.symlink_to(outside)
    with pytest.raises(InvalidInput, match="inside it"):
        ingest(root, store, "stack", clock=FakeClock())


def test_lerobot_snapshot_of_a_hugging_face_cache_is_read_through_its_links(store: ObjectStore, tmp_path: Path) -> None:
    root = write_lerobot_v2(tmp_path / "cache" / "snapshots" / "abc", [12])
    inside = root / "data/chunk-000/episode_000000.parquet"
    (tmp_path / "cache" / "blobs").mkdir()
    inside.rename(tmp_path / "cache" / "blobs" / "1234")
    inside.symlink_to(tmp_path / "cache" / "blobs" / "1234")
    assert ingest(root, store, "stack", clock=FakeClock()).episodes == 1


def test_set_of_openpi_is_ingested_with_its_pictures_and_says_what_was_chosen(
    store: ObjectStore, tmp_path: Path
) -> None:
    names = {"observation.state": "state", "action": "actions"}
    features = {names[name]: feature for name, feature in FEATURES.items()}
    features["image"] = {"dtype": "image", "shape": [32, 48, 3], "names": ["height", "width", "channel"]}

    def change(_: int, columns: Rows) -> Rows:
        pictures = [{"bytes": picture(number), "path": None} for number in range(len(columns["timestamp"]))]
        return {names.get(name, name): values for name, values in columns.items()} | {"image": pictures}

    root = lerobot_set(tmp_path / "raw", "v2.0", features=features, change=change)
    report = ingest(root, store, "pick", clock=FakeClock())
    assert report.version is not None
    assert (report.episodes, report.refused) == (2, 0)
    assert all("actions taken as the action" in noted.note for noted in report.noted)
    rows = episode_rows(store, report.version)
    assert sorted(index_from_parquet(read_piece(store, row.videos[0].index)).codec for row in rows) == ["png", "png"]
    again = ingest(root, store, "pick", clock=FakeClock())
    assert (again.known, again.added) == (2, 0)


def test_what_is_said_of_a_set_is_remembered_apart(store: ObjectStore, tmp_path: Path) -> None:
    root = lerobot_set(tmp_path / "raw", videos={FRONT: [8, 11], "top": [8, 0]})
    assert ingest(root, store, "stack", clock=FakeClock()).refused == 1
    options = IngestOptions(without_cameras=("top",))
    report = ingest(root, store, "bare", clock=FakeClock(), options=options)
    assert (report.episodes, report.refused, report.known) == (2, 0, 0)
    assert ingest(root, store, "stack", clock=FakeClock()).known == 1  # What was refused is looked at again.


def test_number_that_is_flipped_between_two_ingests_is_read_again(store: ObjectStore, tmp_path: Path) -> None:
    root = lerobot_set(tmp_path / "raw")
    stats = {"action": {"max": [99.0, 99.0]}}
    assert ingest(root, store, "stack", clock=FakeClock()).episodes == 2
    (root / "meta/episodes_stats.jsonl").write_text(json.dumps({"episode_index": 1, "stats": stats}))
    report = ingest(root, store, "stack", clock=FakeClock())
    assert (report.episodes, report.known) == (1, 1)
    assert "where its statistics say 99" in report.left_out[0].reason
    options = IngestOptions(stale_statistics=True)
    assert ingest(root, store, "stack", clock=FakeClock(), options=options).episodes == 2
