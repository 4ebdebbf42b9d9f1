"""What goes out and comes in again says the same."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest
from mcap.reader import make_reader
from mcap_ros2.decoder import DecoderFactory
from tests.data.export.making import (
    assert_equal,
    come_in,
    depth_of,
    frames_of_track,
    go_out,
    in_order,
    logged,
    what_is_lost,
)
from tests.data.intake.making import arm, recipe, video, write_log
from tests.data.making import CAMERA, version_of, write_lerobot_v2, write_lerobot_v3
from tests.data.video.making import frames_of, stamped, write_movie

from mainspring.data.catalog.log import Version
from mainspring.data.episode import NANOSECONDS
from mainspring.data.export.survey import ExportRequest
from mainspring.data.intake.ingest import ingest
from mainspring.data.layers.episode import read_recorded
from mainspring.data.recording import EpisodeWriter
from mainspring.domain.errors import InvalidInput
from mainspring.objects import ObjectStore, open_store
from mainspring.testing.time_and_chance import FakeClock

pytestmark = pytest.mark.slow  # Each takes in twice and goes out once.
LENGTHS = [24, 13]
VIDEO_V2 = "videos/chunk-000/observation.images.front/episode_{:06d}.mp4"


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def version(store: ObjectStore, tmp_path: Path) -> Version:
    return version_of(store, write_lerobot_v2(tmp_path / "source", LENGTHS, video=True))


@pytest.mark.parametrize("to", ["lerobot-v3", "lerobot-v2.1"])
def test_lerobot_comes_back_with_equal_values_times_tasks_and_planes(
    store: ObjectStore, version: Version, tmp_path: Path, to: str
) -> None:
    report = go_out(store, version, to, tmp_path / "out")
    assert (report.copied, report.again, report.lost) == (sum(LENGTHS), 0, ())
    again = come_in(tmp_path / "out", tmp_path / "other")
    assert again[1].features == version.features
    assert_equal(tmp_path / "local", (store, version), again, cameras=[CAMERA])


@pytest.mark.parametrize("to", ["lerobot-v3", "lerobot-v2.1"])
def test_h264_with_frames_out_of_order_is_copied_into_lerobot(store: ObjectStore, tmp_path: Path, to: str) -> None:
    source = write_lerobot_v2(tmp_path / "source", LENGTHS, video=True)
    for episode, length in enumerate(LENGTHS):
        pictures = [stamped(100 * episode + frame, height=48, width=64) for frame in range(length)]
        write_movie(source / VIDEO_V2.format(episode), pictures)
    version = version_of(store, source)
    assert go_out(store, version, to, tmp_path / "out").again == 0
    again = come_in(tmp_path / "out", tmp_path / "other")
    assert_equal(tmp_path / "local", (store, version), again, cameras=[CAMERA])


def test_cut_that_begins_between_key_frames_is_encoded_again_and_told_before(
    store: ObjectStore, tmp_path: Path
) -> None:
    source = write_lerobot_v3(tmp_path / "source", [10, 7, 8])
    pictures = [np.full((48, 64, 3), 20 + 6 * frame, np.uint8) for frame in range(25)]
    path = source / "videos" / CAMERA / "chunk-000" / "file-000.mp4"
    write_movie(path, pictures, reordered=False)  # Key frames at 0, 12 and 24.
    version = version_of(store, source)
    lost = what_is_lost(store, version, "lerobot-v3", tmp_path)
    assert "encoded again in 2 episodes, with a loss: its first frames lean on packets before them" in lost
    report = go_out(store, version, "lerobot-v3", tmp_path / "out")
    assert (report.copied, report.again) == (10, 15)
    other, found = come_in(tmp_path / "out", tmp_path / "other")
    assert_equal(tmp_path / "local", (store, version), (other, found))
    for ours, theirs in zip(in_order(store, version), in_order(other, found), strict=True):
        one = read_recorded(store, ours, (), tmp_path / "local").frames(CAMERA)
        two = read_recorded(other, theirs, (), tmp_path / "local").frames(CAMERA)
        assert max(float(np.abs(a.mean() - b.mean())) for a, b in zip(one, two, strict=True)) < 1.5  # A step is 6.


@pytest.mark.parametrize("rate_hz", [30, 10])  # Steps repeat frames, or skip them.
def test_log_goes_to_mcap_and_back_with_every_time_picture_and_fact(
    store: ObjectStore, tmp_path: Path, rate_hz: float
) -> None:
    version = logged(store, tmp_path, rate_hz=rate_hz)
    report = go_out(store, version, "mcap", tmp_path / "out")
    assert (report.lost, report.again) == ((), 0)
    other, found = come_in(tmp_path / "out", tmp_path / "other")
    assert found.features == version.features
    assert_equal(tmp_path / "local", (store, version), (other, found), cameras=["depth", "front", "side"])
    (row,) = in_order(other, found)
    assert row.started_ns % NANOSECONDS == 0
    assert row.started_ns > 0
    assert (row.success, row.task, row.metadata["episode.operator"]) == (True, "reach ☂", "ada")


def test_mcap_keeps_calibration_transforms_and_description_of_the_raw_log(store: ObjectStore, tmp_path: Path) -> None:
    go_out(store, logged(store, tmp_path), "mcap", tmp_path / "out")
    with open(tmp_path / "out" / "episode_000000.mcap", "rb") as file:
        reader = make_reader(file, decoder_factories=[DecoderFactory()])
        found: dict[str, list[object]] = {}
        for _, channel, message, decoded in reader.iter_decoded_messages():
            found.setdefault(channel.topic, []).append(decoded)
            assert message.log_time == message.publish_time
    assert [list(one.k) for one in found["/front/camera_info"]] == [list(range(9))] * 3  # type: ignore[attr-defined]
    assert found["/robot_description"][0].data == "<robot name='arm'/>"  # type: ignore[attr-defined]
    assert len(found["/tf_static"]) == 2
    assert list(found["/observation/state"][0].name) == ["shoulder", "elbow", "wrist"]  # type: ignore[attr-defined]
    assert found["/camera/depth"][3].encoding == "16UC1"  # type: ignore[attr-defined]


def test_times_off_the_rate_stay_in_mcap_and_are_told_of_lerobot(store: ObjectStore, tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path / "raw" / "a.mcap", task="pick", robot="arm", rate_hz=20) as writer:
        for step in range(30):
            values = np.random.default_rng(step).normal(size=3)
            writer.write(1_000 + step * 50_000_000 + (step * 1_234_577) % 4_000_003, values, values)
        writer.finish(success=False)
    version = version_of(store, tmp_path / "raw")
    assert "up to 3." in what_is_lost(store, version, "lerobot-v3", tmp_path)
    with pytest.raises(InvalidInput, match="off the rate"):
        go_out(store, version, "lerobot-v3", tmp_path / "strict", strict=True)
    assert not (tmp_path / "strict").exists()
    go_out(store, version, "mcap", tmp_path / "out", strict=True)
    assert_equal(tmp_path / "local", (store, version), come_in(tmp_path / "out", tmp_path / "other"))


def test_values_of_64_bits_stay_so_and_those_of_32_too(store: ObjectStore, tmp_path: Path) -> None:
    version = logged(store, tmp_path, chained=False)
    go_out(store, version, "lerobot-v2.1", tmp_path / "out", ExportRequest(cameras=()))
    info = json.loads((tmp_path / "out" / "meta" / "info.json").read_text())
    assert {name: info["features"][name]["dtype"] for name in ("observation.state", "action")} == {
        "observation.state": "float64",  # 0.01, 0.02, ... are no floats of 32 bits.
        "action": "float32",
    }
    other, found = come_in(tmp_path / "out", tmp_path / "other")
    one = read_recorded(store, in_order(store, version)[0], (), tmp_path / "local").columns
    two = read_recorded(other, in_order(other, found)[0], (), tmp_path / "local").columns
    assert all(np.array_equal(one[name], two[name]) for name in one)


def test_pictures_and_depth_lie_in_lerobot_tables_as_they_were(store: ObjectStore, tmp_path: Path) -> None:
    version = logged(store, tmp_path)
    lost = what_is_lost(store, version, "lerobot-v3", tmp_path)
    assert "depth: LeRobot has none" in lost
    assert "camera side: its own rate" in lost
    assert "raw logs: /front/camera_info, /robot_description, /tf_static stay behind" in lost
    go_out(store, version, "lerobot-v3", tmp_path / "out")
    table = pq.read_table(tmp_path / "out" / "data" / "chunk-000" / "file-000.parquet")
    coded = [row["bytes"] for row in table["observation.images.depth"].to_pylist()]
    assert coded[0][:8] == b"\x89PNG\r\n\x1a\n"
    stats = json.loads((tmp_path / "out" / "meta" / "stats.json").read_text())["observation.images.depth"]
    assert stats["min"] == [[[float(depth_of(0).min())]]] * 3
    other, found = come_in(tmp_path / "out", tmp_path / "other")
    (ours,), (theirs,) = in_order(store, version), in_order(other, found)
    assert (theirs.task, theirs.success, theirs.robot) == (ours.task, ours.success, ours.robot)
    assert theirs.metadata["operator"] == "ada"
    for camera in ("front", "depth"):
        name = f"observation.images.{camera}"
        shown = frames_of_track(other, theirs, name, tmp_path / "local")
        assert shown == frames_of_track(store, ours, camera, tmp_path / "local")


def test_hdf5_holds_pixels_times_and_facts_as_h5py_reads_them(store: ObjectStore, tmp_path: Path) -> None:
    version = logged(store, tmp_path)
    report = go_out(store, version, "hdf5", tmp_path / "out")
    (row,) = in_order(store, version)
    read = read_recorded(store, row, (), tmp_path / "local")
    with h5py.File(tmp_path / "out" / "episode_0.hdf5") as file:
        assert np.array_equal(file["time_ns"][:], read.time_ns)
        assert np.array_equal(file["observations/qpos"][:], read.columns["state"])
        assert np.array_equal(file["action"][:], read.columns["action"])
        assert file["observations/images/front"].ndim == 2  # JPEG, filled up with zeros.
        assert file["observations/images/front"][0, :3].tobytes() == b"\xff\xd8\xff"
        assert np.array_equal(file["observations/images/side"][7], list(read.frames("side"))[7])
        assert np.array_equal(file["observations/depth_images/depth"][0], depth_of(0))
        assert (file.attrs["task"], bool(file.attrs["success"]), file.attrs["operator"]) == ("reach ☂", True, "ada")
    assert (report.copied, report.again) == (2 * row.frames, row.frames)


@pytest.mark.parametrize("to", ["hdf5", "rlds"])
def test_hdf5_and_rlds_come_back_with_equal_values_times_and_tasks(store: ObjectStore, tmp_path: Path, to: str) -> None:
    version = logged(store, tmp_path)
    go_out(store, version, to, tmp_path / "out")
    other, found = come_in(tmp_path / "out", tmp_path / "other")
    (ours,), (theirs,) = in_order(store, version), in_order(other, found)
    assert (ours.task, ours.success, ours.robot, ours.rate_hz) == (
        theirs.task,
        theirs.success,
        theirs.robot,
        theirs.rate_hz,
    )
    one = read_recorded(store, ours, (), tmp_path / "local")
    two = read_recorded(other, theirs, (), tmp_path / "local")
    assert np.array_equal(one.time_ns, two.time_ns)
    assert all(np.array_equal(one.columns[name], two.columns[name]) for name in one.columns)
    for camera in ("front", "depth"):  # Kept as they are; the other one is drawn from video.
        assert frames_of_track(store, ours, camera, tmp_path / "local") == frames_of_track(
            other, theirs, camera, tmp_path / "local"
        )
    sides = zip(one.frames("side"), two.frames("side"), strict=True)
    assert all(np.array_equal(first, second) for first, second in sides)


def write_coded(path: Path, codec: str, options: dict[str, str], count: int) -> None:
    """Writes numbered pictures with an encoder, none reordered."""
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=20)
        stream.width = stream.height = 64
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.options = options
        for number, frame in enumerate(frames_of([stamped(number, height=64, width=64) for number in range(count)])):
            frame.pts, frame.time_base = number, Fraction(1, 20)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


CODED = {
    "libx265": {"x265-params": "log-level=none:bframes=0:keyint=5:min-keyint=5"},
    "libvpx-vp9": {"cpu-used": "8", "g": "5", "lag-in-frames": "0"},
    "libsvtav1": {"preset": "12", "svtav1-params": "pred-struct=1:keyint=4"},
    "mjpeg": {},
    "mpeg4": {"g": "5"},
    "libx264": {"x264-params": "bframes=0:keyint=5"},
}


@pytest.mark.parametrize("codec", sorted(CODED))
@pytest.mark.parametrize("to", ["lerobot-v3", "mcap"])
def test_video_of_every_codec_goes_out_without_being_encoded_where_the_format_has_it(
    store: ObjectStore, tmp_path: Path, codec: str, to: str
) -> None:
    source = write_lerobot_v2(tmp_path / "source", LENGTHS, video=True)
    info = json.loads((source / "meta" / "info.json").read_text())
    info["features"][CAMERA]["shape"] = [64, 64, 3]
    (source / "meta" / "info.json").write_text(json.dumps(info))
    for episode, length in enumerate(LENGTHS):
        write_coded(source / VIDEO_V2.format(episode), codec, CODED[codec], length)
    version = version_of(store, source)
    report = go_out(store, version, to, tmp_path / "out")
    again = come_in(tmp_path / "out", tmp_path / "other")
    copied = (to, codec) != ("mcap", "mpeg4")  # Foxglove has no MPEG-4 Part 2.
    assert (report.copied, report.again) == ((37, 0) if copied else (0, 37))
    assert bool(report.lost) is not copied
    assert_equal(tmp_path / "local", (store, version), again, cameras=[CAMERA] if copied else ())


@pytest.mark.parametrize("to", ["lerobot-v3", "lerobot-v2.1"])
def test_video_of_messages_with_a_frame_for_each_step_is_copied_into_mp4(
    store: ObjectStore, tmp_path: Path, to: str
) -> None:
    path = write_log(tmp_path / "logs" / "one.mcap", [*arm(), *video(50)])
    version = ingest(path, store, "pick", clock=FakeClock(), recipe=recipe(25, camera="/video")).version
    assert version is not None
    report = go_out(store, version, to, tmp_path / "out")
    assert (report.copied, report.again) == (report.frames, 0)
    other, found = come_in(tmp_path / "out", tmp_path / "other")
    (ours,), (theirs,) = in_order(store, version), in_order(other, found)
    name = "observation.images.front"
    assert frames_of_track(other, theirs, name, tmp_path / "f") == frames_of_track(store, ours, "front", tmp_path / "f")
