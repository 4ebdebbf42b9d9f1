from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import pytest
from tests.data.intake.making import (
    HEIGHT,
    IMAGE_NS,
    JOINT_NS,
    JOINTS,
    SECOND_NS,
    START_NS,
    WIDTH,
    arm,
    episode_of,
    gray,
    images,
    joints,
    mapped,
    numbered,
    raw_images,
    recipe,
    said,
    video,
    write_log,
)
from tests.data.readers.logs import ROS2, Sent, ros2, stamp, write_mcap

from mainspring.data.episode import Episode, columns_to_parquet
from mainspring.data.gates.doctor import examined
from mainspring.data.intake.logs.recipe import Align, CameraPart, Cut, CutBy, Fact, RecipePart
from mainspring.data.video.frames import frames_in
from mainspring.data.video.pictures import PngEncoder
from mainspring.domain.errors import DamagedData, InvalidInput


def pictures(episode: Episode) -> list[np.ndarray[Any, Any]]:
    """What each step shows."""
    (seen,) = episode.videos
    assert seen.index is not None
    frames = [frame.to_ndarray(format="rgb24") for frame in frames_in(seen.path, seen.index)]
    shown = range(len(episode.time_ns)) if seen.shown is None else seen.shown.tolist()
    return [frames[number] for number in shown]


def assert_shows(episode: Episode, numbers: list[int]) -> None:
    for picture, number in zip(pictures(episode), numbers, strict=True):
        assert abs(int(np.median(picture)) - int(gray(number)[0, 0, 0])) <= 3


def nearest_images(at: np.ndarray[Any, Any]) -> list[int]:
    """The number of the image nearest to each time from the first image on, the earlier of two."""
    return [-((IMAGE_NS // 2 - time) // IMAGE_NS) for time in at.tolist()]


def test_log_becomes_an_episode_at_the_recipe_s_rate(tmp_path: Path) -> None:
    episode = episode_of(write_log(tmp_path / "a.mcap", arm()), recipe(20), tmp_path / "out")
    assert np.diff(episode.time_ns).tolist() == [50_000_000] * (len(episode.time_ns) - 1)
    assert episode.time_ns[0] == START_NS
    at_s = (episode.time_ns - START_NS) / SECOND_NS
    assert episode.columns["state"] == pytest.approx(np.stack([at_s, 2 * at_s, 3 * at_s], axis=1))
    assert episode.columns["action"][:, 0].tolist() == np.floor(at_s * 20 + 1e-9).tolist()
    assert episode.features.names("state") == JOINTS
    assert episode.features.names("action") == ("arm/command.data[0]", "arm/command.data[1]")
    assert (episode.task, episode.robot, episode.success) == ("reach", "arm", None)
    assert examined(episode).reasons == ()


def test_log_aligned_by_interpolation_gives_values_between_messages(tmp_path: Path) -> None:
    by = recipe(30, align=Align.INTERPOLATE)
    episode = episode_of(write_log(tmp_path / "a.mcap", arm()), by, tmp_path / "out")
    at_s = (episode.time_ns - START_NS) / SECOND_NS
    assert episode.columns["state"][:, 0] == pytest.approx(at_s, abs=1e-9)


def test_joints_are_picked_by_name_whoever_sends_them_in_whatever_order(tmp_path: Path) -> None:
    sent = [one for one in arm() if one[0] != "/joint_states"]
    for step in range(200):
        names = ("wrist", "shoulder", "elbow") if step % 4 else ("elbow", "wrist", "shoulder")
        sent.append(joints(START_NS + step * JOINT_NS, step / 100, names))
        sent.append(joints(START_NS + step * JOINT_NS + 1_000_000, 99.0, ("wrist",)))  # A gripper's own publisher.
    episode = episode_of(write_log(tmp_path / "a.mcap", sent), recipe(20), tmp_path / "out")
    at_s = (episode.time_ns - START_NS) / SECOND_NS
    assert episode.columns["state"] == pytest.approx(np.stack([at_s, 2 * at_s, 3 * at_s], axis=1))


def test_messages_of_several_widths_are_refused_without_names_to_pick_by(tmp_path: Path) -> None:
    sent = [*arm(), joints(START_NS + SECOND_NS + 1, 0.0, ("wrist",))]
    part = RecipePart(topic="/joint_states", field="position", tolerance_ms=20)
    with pytest.raises(DamagedData, match="vectors of 3 and of 1"):
        mapped(write_log(tmp_path / "a.mcap", sent), recipe(state=part), tmp_path / "out")


def test_stamp_in_the_header_is_the_clock_when_the_recipe_says_so(tmp_path: Path) -> None:
    late = [(topic, time_ns + 7_000_000 * (number % 2), data) for number, (topic, time_ns, data) in enumerate(arm())]
    part = RecipePart(topic="/joint_states", field="position", tolerance_ms=20, stamp="header.stamp")
    episode = episode_of(write_log(tmp_path / "a.mcap", late), recipe(20, state=part), tmp_path / "out")
    at_s = (episode.time_ns - START_NS) / SECOND_NS
    assert episode.columns["state"][:, 0] == pytest.approx(at_s, abs=0.011)


@pytest.mark.parametrize("codec", ["mjpeg", "png"])
def test_compressed_images_stay_as_they_are_and_are_held_by_naming_them_again(tmp_path: Path, codec: str) -> None:
    log = write_log(tmp_path / "a.mcap", [*arm(), *images(50, codec)])
    episode = episode_of(log, recipe(50, camera="/camera/compressed"), tmp_path / "out")
    (seen,) = episode.videos
    assert seen.index is not None
    assert (seen.index.codec, seen.shown, seen.index.frames) == (codec, None, len(episode.time_ns))
    places = {*zip(seen.index.offset.tolist(), seen.index.size_bytes.tolist(), strict=True)}
    assert len(places) < seen.index.frames
    assert seen.path.stat().st_size == sum(size_bytes for _, size_bytes in places)
    at = episode.time_ns - START_NS
    assert_shows(episode, nearest_images(at))
    assert [(camera.height, camera.width) for camera in episode.features.cameras] == [(HEIGHT, WIDTH)]
    assert examined(episode).reasons == ()


@pytest.mark.parametrize("rate_hz", [5, 25, 50])
def test_video_packets_are_kept_once_and_each_step_names_its_frame(tmp_path: Path, rate_hz: int) -> None:
    log = write_log(tmp_path / "a.mcap", [*arm(), *video(50)])
    episode = episode_of(log, recipe(rate_hz, camera="/video"), tmp_path / "out")
    at = episode.time_ns - START_NS
    assert_shows(episode, nearest_images(at))
    (seen,) = episode.videos
    assert (seen.shown is None) == (rate_hz == 25)
    assert examined(episode).reasons == ()
    assert (b"camera:front" in columns_to_parquet(episode)) == (rate_hz != 25)


def test_video_that_begins_between_key_frames_is_used_from_the_first_one_on(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.mcap", [*arm(), *video(50, first=3)])
    episode = episode_of(log, recipe(25, camera="/video"), tmp_path / "out")
    assert episode.time_ns[0] == START_NS + 10 * IMAGE_NS
    assert_shows(episode, list(range(10, 10 + len(episode.time_ns))))


def test_video_without_a_key_frame_is_refused(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.mcap", [*arm(), *video(9, first=1)])
    with pytest.raises(DamagedData, match="without a key frame"):
        mapped(log, recipe(25, camera="/video"), tmp_path / "out")


def test_raw_images_become_png_and_lose_nothing(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.mcap", [*arm(), *raw_images(40)])
    episode = episode_of(log, recipe(25, camera="/raw"), tmp_path / "out")
    for number, picture in enumerate(pictures(episode)):
        assert np.array_equal(picture, numbered(number))


def test_raw_images_of_an_encoding_that_is_not_read_are_refused_by_name(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.mcap", [*arm(), *raw_images(40, "bayer_rggb8")])
    with pytest.raises(InvalidInput, match=r"bayer_rggb8.*rgb8"):
        mapped(log, recipe(25, camera="/raw"), tmp_path / "out")


def test_log_cut_at_gaps_gives_an_episode_for_each_stretch(tmp_path: Path) -> None:
    sent = [*arm(1.0), *arm(2.0, begin_ns=START_NS + 5 * SECOND_NS)]
    cut = Cut(by=CutBy.GAP, gap_s=1.0)
    found = mapped(write_log(tmp_path / "a.mcap", sent), recipe(cut=cut), tmp_path / "out")
    assert [one.name for one in found] == ["a.mcap#0000", "a.mcap#0001"]
    lengths = [len(one.episode.time_ns) for one in found if one.episode]
    assert lengths[0] == pytest.approx(20, abs=1)
    assert lengths[1] == pytest.approx(40, abs=1)


def test_log_cut_by_a_flag_takes_each_episode_s_own_task_success_and_images(tmp_path: Path) -> None:
    sent = [*arm(6.0), *images(150)]
    for number, begin_s in enumerate((1, 3)):
        begin_ns = START_NS + begin_s * SECOND_NS
        sent.append(said("/task", begin_ns - JOINT_NS, f"task {number}"))
        sent += [said("/recording", begin_ns, True), said("/recording", begin_ns + SECOND_NS, False)]
        sent.append(said("/success", begin_ns + SECOND_NS + JOINT_NS, number == 0))
    by = recipe(
        25,
        camera="/camera/compressed",
        cut=Cut(by=CutBy.FLAG, topic="/recording"),
        task=Fact(topic="/task"),
        success=Fact(topic="/success"),
    )
    found = [one.episode for one in mapped(write_log(tmp_path / "a.mcap", sent), by, tmp_path / "out")]
    assert [(one.task, one.success, len(one.time_ns)) for one in found if one] == [
        ("task 0", True, 25),
        ("task 1", False, 25),
    ]
    assert found[0] is not None
    assert found[1] is not None
    assert_shows(found[0], list(range(25, 50)))
    assert_shows(found[1], list(range(75, 100)))
    assert found[0].videos[0].path.stat().st_size < sum(len(data) for _, _, data in images(150)) / 4


def test_log_cut_by_marks_begins_at_starts_and_ends_at_stops(tmp_path: Path) -> None:
    sent = arm(6.0)
    sent += [said("/start", START_NS + second * SECOND_NS, 0) for second in (1, 3)]
    sent += [said("/stop", START_NS + 2 * SECOND_NS, 0)]
    by = recipe(cut=Cut(by=CutBy.MARKS, start="/start", stop="/stop"))
    found = [one.episode for one in mapped(write_log(tmp_path / "a.mcap", sent), by, tmp_path / "out")]
    spans = [(one.time_ns[[0, -1]] - START_NS) / SECOND_NS for one in found if one]
    assert spans[0].tolist() == [1.0, 2.0]
    assert spans[1].tolist() == pytest.approx([3.0, 6.0], abs=0.1)


def test_log_whose_flag_is_never_raised_holds_no_episode(tmp_path: Path) -> None:
    sent = [*arm(), said("/recording", START_NS, False)]
    by = recipe(cut=Cut(by=CutBy.FLAG, topic="/recording"))
    (found,) = mapped(write_log(tmp_path / "a.mcap", sent), by, tmp_path / "out")
    assert found.episode is None
    assert "finds no episode" in found.reason


def test_stream_that_falls_silent_is_refused_naming_the_step_and_the_distance(tmp_path: Path) -> None:
    silent = [one for one in arm() if not (one[0] == "/joint_states" and 50 <= (one[1] - START_NS) // JOINT_NS < 80)]
    (found,) = mapped(write_log(tmp_path / "a.mcap", silent), recipe(), tmp_path / "out")
    assert "/joint_states" in found.reason
    assert "nearest within 20 ms" in found.reason


def test_clock_that_jumps_back_is_refused_and_repeated_times_are_dropped_and_noted(tmp_path: Path) -> None:
    repeated = [*arm(), joints(START_NS + JOINT_NS, 77.0)]
    (found,) = mapped(write_log(tmp_path / "a.mcap", repeated), recipe(), tmp_path / "out")
    assert found.note == "1 messages on /joint_states with the time of one before"
    assert found.episode is not None
    assert 77.0 not in found.episode.columns["state"]
    part = RecipePart(topic="/joint_states", field="position", tolerance_ms=20, stamp="header.stamp")
    back = [*arm(1.0), *[(topic, time_ns + SECOND_NS, data) for topic, time_ns, data in arm(1.0)]]
    with pytest.raises(DamagedData, match=r"/joint_states; got a clock that jumps back by 0\.99"):
        mapped(write_log(tmp_path / "b.mcap", back), recipe(state=part), tmp_path / "out")


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (RecipePart(topic="/joint_state", field="position", tolerance_ms=1), "did you mean '/joint_states'"),
        (RecipePart(topic="/joint_states", field="postion", tolerance_ms=1), "did you mean 'position'"),
        (RecipePart(topic="/joint_states", field="position", stamp="header", tolerance_ms=1), "header"),
        (RecipePart(topic="/joint_states", field="position", stamp="effort", tolerance_ms=1), "one of header.stamp"),
        (RecipePart(topic="/joint_states", field="header.frame_id", tolerance_ms=20), "got text; wanted numbers"),
        (
            RecipePart(topic="/joint_states", field="position", names=("a",), tolerance_ms=20),
            "got 3 values; wanted 1 names",
        ),
    ],
)
def test_recipe_that_does_not_fit_the_log_names_the_nearest(tmp_path: Path, part: RecipePart, message: str) -> None:
    log = write_log(tmp_path / "a.mcap", arm())
    with pytest.raises(InvalidInput, match=message):
        mapped(log, recipe(state=part), tmp_path / "out")


def test_topic_that_holds_no_images_is_refused_as_a_camera(tmp_path: Path) -> None:
    by = replace(recipe(), cameras={"front": CameraPart(topic="/joint_states", tolerance_ms=1)})
    with pytest.raises(InvalidInput, match="wanted images"):
        mapped(write_log(tmp_path / "a.mcap", arm()), by, tmp_path / "out")


def test_two_topics_of_one_name_and_two_types_are_refused(tmp_path: Path) -> None:
    kinds = {"/arm/command": ("A", "json", "jsonschema", b"{}"), "/arm/command#2": ("B", "json", "jsonschema", b"[]")}
    sent = [("/arm/command", 0, b'{"data": [1]}'), ("/arm/command#2", 1, b'{"data": [1]}')]
    log = write_mcap(tmp_path / "a.mcap", kinds, sent)
    by = replace(recipe(), columns={"action": recipe().columns["action"]})
    with pytest.raises(DamagedData, match="/arm/command"):
        mapped(log, by, tmp_path / "out")


def depth_images(count: int, said: str) -> Iterator[Sent]:
    """Pictures of distances as `compressedDepth` sends them: a header, then a PNG of 16 bits."""
    for number in range(count):
        time_ns = START_NS + number * IMAGE_NS
        png, header = PngEncoder().encode(distances(number)), bytes(12)
        message = ros2(
            "sensor_msgs/CompressedImage",
            header=ros2("std_msgs/Header", stamp=stamp(time_ns), frame_id="camera"),
            format=said,
            data=np.frombuffer(header + png, np.uint8),
        )
        yield "/camera/compressed", time_ns, bytes(ROS2.serialize_cdr(message, "sensor_msgs/msg/CompressedImage"))


def distances(number: int) -> np.ndarray[Any, np.dtype[np.uint16]]:
    return (np.arange(HEIGHT * WIDTH, dtype=np.uint16) * 31 + 997 * number).reshape(HEIGHT, WIDTH)


def test_distances_of_16_bits_are_kept_as_they_were_sent(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.mcap", [*arm(), *depth_images(40, "16UC1; compressedDepth png")])
    episode = episode_of(log, recipe(25, camera="/camera/compressed"), tmp_path / "out")
    (video,) = episode.videos
    assert video.index is not None
    for number, (offset, size) in enumerate(zip(video.index.offset, video.index.size_bytes, strict=True)):
        png = video.path.read_bytes()[offset : offset + size]
        assert np.array_equal(imagecodecs.png_decode(png), distances(number))


@pytest.mark.parametrize("said", ["32FC1; compressedDepth png", "16UC1; compressedDepth rvl"])
def test_distances_that_were_rounded_or_packed_otherwise_are_refused_by_name(tmp_path: Path, said: str) -> None:
    sent = [*arm(), *depth_images(40, said)]
    if "rvl" in said:
        sent = [(topic, at, data.replace(b"\x89PNG", b"RVL!")) for topic, at, data in sent]
    log = write_log(tmp_path / "a.mcap", sent)
    with pytest.raises(InvalidInput, match=said):
        mapped(log, recipe(25, camera="/camera/compressed"), tmp_path / "out")
