from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mcap.writer import Writer

from mainspring.data.catalog.versions import episode_rows
from mainspring.data.ingest.intake import PROCESSES_PAY_BYTES, IngestProgress, ingest
from mainspring.domain.errors import DamagedData, InvalidInput, MainspringError, NotFound
from mainspring.objects import ObjectStore, get_blob, open_store

from .making import (
    CAMERA,
    PERIOD_NS,
    ROBOTS,
    edit_info,
    record,
    record_many,
    write_lerobot_v2,
    write_lerobot_v3,
    write_video,
)

needs_robots = pytest.mark.skipif(not ROBOTS.exists(), reason="the shared robot recordings are not here")


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


def test_source_ingested_keeps_columns_facts_and_raw_bytes(store: ObjectStore, tmp_path: Path) -> None:
    source = record_many(tmp_path / "raw", 3)
    report = ingest(source, store, "pick")
    assert report.version is not None
    assert (report.episodes, report.added, report.frames, report.left_out) == (3, 3, 69, ())
    assert (report.version.name, report.version.episodes, report.version.frames) == ("pick@1", 3, 69)
    for row in episode_rows(store, report.version):
        assert get_blob(store, row.raw[0].blob) == (source / row.source).read_bytes()
        table = pq.read_table(pa.BufferReader(get_blob(store, row.columns)))
        assert table["frame"].to_pylist() == list(range(row.frames))
        assert table["time_ns"].to_pylist() == [step * PERIOD_NS for step in range(row.frames)]
        assert row.seconds == pytest.approx((row.frames - 1) / 20)


def test_source_ingested_again_makes_the_same_version(store: ObjectStore, tmp_path: Path) -> None:
    source = record_many(tmp_path / "raw", 3)
    first = ingest(source, store, "pick")
    stored = store.list("")
    again = ingest(source, store, "pick")
    assert again.version == first.version
    assert again.added == 0
    assert store.list("") == stored


def test_source_ingested_elsewhere_makes_the_same_ids(store: ObjectStore, tmp_path: Path) -> None:
    here = ingest(record_many(tmp_path / "raw", 3), store, "pick")
    there = ingest(record_many(tmp_path / "moved", 3), open_store("memory://"), "other")
    assert here.version is not None
    assert there.version is not None
    assert here.version.id == there.version.id


def test_source_with_more_episodes_extends_the_dataset(store: ObjectStore, tmp_path: Path) -> None:
    ingest(record_many(tmp_path / "raw", 2), store, "pick")
    record_many(tmp_path / "raw", 4)
    report = ingest(tmp_path / "raw", store, "pick")
    assert report.version is not None
    assert (report.version.number, report.version.episodes, report.added) == (2, 4, 2)


def test_damaged_recordings_are_reported_and_left_out(store: ObjectStore, tmp_path: Path) -> None:
    source = record_many(tmp_path / "raw", 4)
    (source / "001.mcap").write_bytes((source / "001.mcap").read_bytes()[:-100])
    (source / "002.mcap").write_bytes(b"")
    (source / "old.bag").write_bytes(b"#ROSBAG V2.0")
    progress: list[IngestProgress] = []
    report = ingest(source, store, "pick", progress=progress.append)
    assert report.version is not None
    assert {row.source for row in episode_rows(store, report.version)} == {"000.mcap", "003.mcap"}
    assert [entry.source for entry in report.left_out] == ["001.mcap", "002.mcap", "old.bag"]
    assert "empty file" in report.left_out[1].reason
    assert "ROS 1 bags are not yet read" in report.left_out[2].reason
    assert [entry.done for entry in progress] == [1, 2, 3, 4, 5]
    assert [bool(entry.reason) for entry in progress] == [False, True, True, False, True]


def raw_recording(path: Path, times_ns: list[int], values: str = "1.0") -> None:
    path.parent.mkdir(exist_ok=True)
    with open(path, "wb") as file:
        writer = Writer(file)
        writer.start()
        schema = writer.register_schema("vector", "jsonschema", b"{}")
        channels = [writer.register_channel(topic, "json", schema) for topic in ("/observation/state", "/action")]
        for time_ns in times_ns:
            for channel in channels:
                writer.add_message(channel, time_ns, b'{"values": [%s]}' % values.encode(), time_ns)
        writer.add_metadata("episode", {"task": "t", "robot": "r", "rate_hz": "20.0"})
        writer.finish()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("times", "values", "reason"),
    [
        ([0, 1, 2, 2, 3], "1.0", "time does not advance after step 2"),
        ([0, 1, 2, 1, 3], "1.0", "time does not advance after step 2"),
        ([0, 1, 2, 3, 4], "NaN", "not finite, first at step 0"),
        ([0, 1, 2, 3, 4], "1e999", "not finite"),
        ([0, 2, 4, 6, 8], "1.0", "10.00 steps per second, declared 20"),
        ([*range(100), *range(111, 300)], "1.0", "a gap of 0.600 s after step 99"),
        ([0], "1.0", "1 steps, wanted at least 2"),
    ],
)
def test_recording_the_doctor_refuses_names_its_reason(
    store: ObjectStore, tmp_path: Path, times: list[int], values: str, reason: str
) -> None:
    raw_recording(tmp_path / "raw" / "a.mcap", [step * PERIOD_NS for step in times], values)
    report = ingest(tmp_path / "raw", store, "pick")
    assert report.version is None
    assert reason in report.left_out[0].reason


def test_recording_with_other_features_than_the_rest_is_left_out(store: ObjectStore, tmp_path: Path) -> None:
    source = record_many(tmp_path / "raw", 3)
    record(source / "odd.mcap", state_dims=9)
    report = ingest(source, store, "pick")
    assert report.episodes == 3
    assert [entry.source for entry in report.left_out] == ["odd.mcap"]
    assert "state 9" in report.left_out[0].reason
    record(tmp_path / "later" / "odd.mcap", state_dims=9)
    later = ingest(tmp_path / "later", store, "pick")
    assert (later.episodes, later.version) == (0, report.version)


@pytest.mark.slow
def test_source_with_much_to_parse_is_read_by_processes(store: ObjectStore, tmp_path: Path) -> None:
    source = record_many(tmp_path / "raw", 2)
    small = ingest(source, open_store("memory://"), "pick")
    (source / "large.mcap").write_bytes(bytes(PROCESSES_PAY_BYTES))
    report = ingest(source, store, "pick")
    assert report.version is not None
    assert small.version is not None
    assert report.version.id == small.version.id
    assert [entry.source for entry in report.left_out] == ["large.mcap"]


def test_path_that_is_no_source_is_refused_by_name(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "notes.txt").write_text("hello")
    (tmp_path / "one.bag").write_bytes(b"#ROSBAG V2.0")
    with pytest.raises(NotFound):
        ingest(tmp_path / "nowhere", store, "pick")
    for path in ("empty", "text", "text/notes.txt", "one.bag"):
        with pytest.raises(InvalidInput, match=r"LeRobot v2\.1"):
            ingest(tmp_path / path, store, "pick")
    with pytest.raises(InvalidInput):
        ingest(record(tmp_path / "raw" / "a.mcap"), store, "Bad Name")


@pytest.mark.parametrize("video", [False, True])
def test_lerobot_v2_is_ingested_with_its_names(store: ObjectStore, tmp_path: Path, video: bool) -> None:
    report = ingest(write_lerobot_v2(tmp_path / "raw", [12, 15], video=video), store, "stack")
    assert report.version is not None
    assert report.left_out == ()
    assert report.version.features.state_names == ("x", "y", "z")
    assert report.version.features.action_names == ("left", "right")
    assert [camera.name for camera in report.version.features.cameras] == ([CAMERA] if video else [])
    assert (report.version.tasks, report.frames) == (("stack",), 27)


def test_lerobot_v3_with_shared_files_is_ingested(store: ObjectStore, tmp_path: Path) -> None:
    report = ingest(write_lerobot_v3(tmp_path / "raw", [12, 15, 9]), store, "stack")
    assert report.version is not None
    assert report.left_out == ()
    rows = sorted(episode_rows(store, report.version), key=lambda row: row.source)
    assert [row.videos[0].first_frame for row in rows] == [0, 12, 27]
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
        (damage_cut_video, "10 frames in order"),
        (damage_no_video, "no file videos/"),
        (damage_truncated_video, "decode a video"),
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
    store: ObjectStore, tmp_path: Path, damage: object, reason: str
) -> None:
    root = write_lerobot_v2(tmp_path / "raw", [12, 15], video=True)
    assert callable(damage)
    damage(root)
    report = ingest(root, store, "stack")
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
        ingest(root, store, "stack")
    assert store.list("") == ()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"fps": NaN}', json.dumps({"codebase_version": "v2.1"})])
def test_lerobot_description_that_is_no_description_is_refused(store: ObjectStore, tmp_path: Path, text: str) -> None:
    root = write_lerobot_v2(tmp_path / "raw", [12])
    (root / "meta" / "info.json").write_text(text)
    with pytest.raises(MainspringError, match=r"info\.json"):
        ingest(root, store, "stack")


def test_lerobot_link_that_leaves_the_folder_is_not_followed(store: ObjectStore, tmp_path: Path) -> None:
    root = write_lerobot_v2(tmp_path / "raw", [12])
    inside = root / "data/chunk-000/episode_000000.parquet"
    outside = inside.rename(tmp_path / "outside.parquet")
    inside.symlink_to(outside)
    with pytest.raises(InvalidInput, match="inside it"):
        ingest(root, store, "stack")


def test_lerobot_snapshot_of_a_hugging_face_cache_is_read_through_its_links(store: ObjectStore, tmp_path: Path) -> None:
    root = write_lerobot_v2(tmp_path / "cache" / "snapshots" / "abc", [12])
    inside = root / "data/chunk-000/episode_000000.parquet"
    (tmp_path / "cache" / "blobs").mkdir()
    inside.rename(tmp_path / "cache" / "blobs" / "1234")
    inside.symlink_to(tmp_path / "cache" / "blobs" / "1234")
    assert ingest(root, store, "stack").episodes == 1


@needs_robots
@pytest.mark.slow
def test_humanoid_dataset_is_ingested_whole(store: ObjectStore) -> None:
    report = ingest(ROBOTS / "unitree_g1_bottle", store, "bottle")
    assert (report.episodes, report.frames, report.left_out) == (16, 5_924, ())
    assert report.version is not None
    assert len(report.version.features.state_names) == len(report.version.features.action_names) == 26
    assert report.version.features.state_names[0] == "kLeftShoulderPitch"
    assert report.version.tasks == ("Pick up the yellow bottle on the table.",)


@needs_robots
def test_arm_dataset_without_its_videos_is_reported_episode_by_episode(store: ObjectStore) -> None:
    report = ingest(ROBOTS / "so101_v3_tabular", store, "arm")
    assert (report.version, report.episodes) == (None, 0)
    assert [entry.source for entry in report.left_out] == [f"episode_{index:06d}" for index in range(4)]
    assert all("no file videos/observation.images.front" in entry.reason for entry in report.left_out)
    assert all("no file videos/observation.images.top" in entry.reason for entry in report.left_out)
    assert store.list("catalog") == ()


@needs_robots
def test_folder_of_foreign_logs_is_reported_file_by_file(store: ObjectStore) -> None:
    report = ingest(ROBOTS / "logs", store, "logs")
    assert report.version is None
    assert len(report.left_out) == len(list((ROBOTS / "logs").iterdir()))
