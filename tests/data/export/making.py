"""Versions that go out and come in again, and how they are compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.data.intake.making import (
    IMAGE_NS,
    START_NS,
    VIDEO_KIND,
    arm,
    images,
    recipe,
    video,
    write_log,
)
from tests.data.readers.logs import ROS2, Kind, Sent, definition, ros2, stamp
from tests.data.video.making import planes_of

from mainspring.data.catalog.log import Version
from mainspring.data.catalog.versions import episode_rows
from mainspring.data.episode import EpisodeRow, shown_at
from mainspring.data.export.export import ExportTo, prepare_export, write_export
from mainspring.data.export.run import ExportReport
from mainspring.data.export.survey import ExportRequest
from mainspring.data.intake.ingest import ingest
from mainspring.data.intake.logs.recipe import CameraPart, Fact, MappingRecipe, recipe_from_yaml
from mainspring.data.layers.episode import read_recorded
from mainspring.data.packs import read_piece
from mainspring.data.video.frames import frames_shown
from mainspring.data.video.packets import index_from_parquet
from mainspring.objects import ObjectStore, fetch_blob, open_store
from mainspring.testing.time_and_chance import FakeClock

DEPTH_HEIGHT, DEPTH_WIDTH = 20, 24
DEPTH_KIND: Kind = ("sensor_msgs/msg/Image", "cdr", "ros2msg", definition("sensor_msgs/msg/Image"))
CALIBRATION_KIND: Kind = ("sensor_msgs/msg/CameraInfo", "cdr", "ros2msg", definition("sensor_msgs/msg/CameraInfo"))
TRANSFORM_KIND: Kind = ("tf2_msgs/msg/TFMessage", "cdr", "ros2msg", definition("tf2_msgs/msg/TFMessage"))
TEXT_KIND: Kind = ("std_msgs/msg/String", "cdr", "ros2msg", definition("std_msgs/msg/String"))


def go_out(
    store: ObjectStore, version: Version, to: str, dest: Path, request: ExportRequest | None = None, **more: Any
) -> ExportReport:
    """Exports a version to a folder."""
    scratch = dest.parent / "scratch"
    export = prepare_export(store, version, ExportTo(to), request or ExportRequest(), scratch=scratch)
    return write_export(store, export, lambda: open_store(str(dest)), scratch=scratch, **more)


def what_is_lost(
    store: ObjectStore, version: Version, to: str, folder: Path, request: ExportRequest | None = None
) -> str:
    """Returns what a format would not hold, in lines."""
    return "\n".join(
        prepare_export(store, version, ExportTo(to), request or ExportRequest(), scratch=folder / "scratch").lost
    )


def come_in(source: Path, url: Path) -> tuple[ObjectStore, Version]:
    """Ingests an export into a store of its own, by the recipe beside it where there is one."""
    store = open_store(str(url))
    told = source / "recipe.yaml"
    report = ingest(source, store, "pick", clock=FakeClock(), recipe=recipe_from_yaml(told) if told.is_file() else None)
    assert report.version is not None, report.left_out
    assert report.refused == 0, report.left_out
    return store, report.version


def in_order(store: ObjectStore, version: Version) -> list[EpisodeRow]:
    return sorted(episode_rows(store, version), key=lambda row: row.source)


def frames_of_track(store: ObjectStore, row: EpisodeRow, camera: str, folder: Path) -> list[str]:
    """Returns the hash of each step's decoded planes, before any conversion of colour."""
    track = next(one for one in row.videos if one.camera == camera)
    index = index_from_parquet(read_piece(store, track.index))
    shown = shown_at(read_recorded(store, row, (), folder).table, camera)
    return [planes_of(frame) for frame in frames_shown(fetch_blob(store, track.blob, folder), index, shown)]


def assert_equal(
    folder: Path, ours: tuple[ObjectStore, Version], theirs: tuple[ObjectStore, Version], *, cameras: Sequence[str] = ()
) -> None:
    """Checks that two versions say the same; cameras, by their names in the second, that they show the same."""
    rows = [in_order(*ours), in_order(*theirs)]
    assert len(rows[0]) == len(rows[1])
    names = {
        one.name: other.name for one, other in zip(ours[1].features.cameras, theirs[1].features.cameras, strict=False)
    }
    for first, second in zip(*rows, strict=True):
        told = [(row.task, row.robot, row.success, row.frames, row.rate_hz) for row in (first, second)]
        assert told[0] == told[1]
        one, other = read_recorded(ours[0], first, (), folder), read_recorded(theirs[0], second, (), folder)
        assert np.array_equal(one.time_ns, other.time_ns)
        for name, values in one.columns.items():
            assert np.array_equal(values, other.columns[name], equal_nan=True), name
        for mine, its in names.items():
            if its in cameras:
                before = frames_of_track(ours[0], first, mine, folder)
                assert before == frames_of_track(theirs[0], second, its, folder), mine


def depth_of(number: int) -> Any:
    return (np.arange(DEPTH_HEIGHT * DEPTH_WIDTH) * 131 + 7 * number).reshape(DEPTH_HEIGHT, DEPTH_WIDTH) % 65_536


def depth(count: int) -> list[Sent]:
    """Pictures of 16 bits at 25 Hz."""
    sent: list[Sent] = []
    for number in range(count):
        time_ns = START_NS + number * IMAGE_NS
        message = ros2(
            "sensor_msgs/Image",
            header=ros2("std_msgs/Header", stamp=stamp(time_ns), frame_id=""),
            height=DEPTH_HEIGHT,
            width=DEPTH_WIDTH,
            encoding="16UC1",
            is_bigendian=0,
            step=2 * DEPTH_WIDTH,
            data=np.frombuffer(depth_of(number).astype("<u2").tobytes(), np.uint8),
        )
        sent.append(("/depth", time_ns, bytes(ROS2.serialize_cdr(message, "sensor_msgs/msg/Image"))))
    return sent


def beside() -> list[Sent]:
    """Calibration once a second; that, transforms and a description before the first step too; and one too late."""
    header = ros2("std_msgs/Header", stamp=stamp(START_NS), frame_id="camera")
    region = ros2("sensor_msgs/RegionOfInterest", x_offset=0, y_offset=0, height=0, width=0, do_rectify=False)
    calibration = ros2(
        "sensor_msgs/CameraInfo",
        header=header,
        height=32,
        width=48,
        distortion_model="plumb_bob",
        d=np.zeros(5),
        k=np.arange(9.0),
        r=np.eye(3).reshape(-1),
        p=np.zeros(12),
        binning_x=0,
        binning_y=0,
        roi=region,
    )
    transforms = ros2("tf2_msgs/TFMessage", transforms=[])
    shape = ros2("std_msgs/String", data="<robot name='arm'/>")
    coded = {
        "/front/camera_info": (calibration, "sensor_msgs/msg/CameraInfo"),
        "/tf_static": (transforms, "tf2_msgs/msg/TFMessage"),
        "/robot_description": (shape, "std_msgs/msg/String"),
    }
    data = {topic: bytes(ROS2.serialize_cdr(message, kind)) for topic, (message, kind) in coded.items()}
    early, late = START_NS - 1_000_000_000, START_NS + 60_000_000_000
    said = [(topic, early - 1, data[topic]) for topic in ("/tf_static", "/front/camera_info")]
    said += [(topic, early, data[topic]) for topic in ("/tf_static", "/front/camera_info", "/robot_description")]
    times = (START_NS, START_NS + 1_000_000_000, late)
    return [*said, *(("/front/camera_info", time_ns, data["/front/camera_info"]) for time_ns in times)]


def logged(store: ObjectStore, folder: Path, *, chained: bool = True, rate_hz: float = 30) -> Version:
    """A version of one episode of a log: JPEG, depth, and where wanted h264, all at 25 Hz."""
    sent = [*arm(), *images(50), *depth(50), *beside(), *(video(50, begin_ns=START_NS) if chained else ())]
    more: dict[str, Kind] = {
        "/depth": DEPTH_KIND,
        "/front/camera_info": CALIBRATION_KIND,
        "/tf_static": TRANSFORM_KIND,
        "/robot_description": TEXT_KIND,
        "/video": VIDEO_KIND,
    }
    path = write_log(folder / "logs" / "one.mcap", sent, more)
    topics = {"front": "/camera/compressed", "depth": "/depth"} | ({"side": "/video"} if chained else {})
    plain = recipe(rate_hz, success=Fact(text="true"))
    by = MappingRecipe(
        rate_hz=plain.rate_hz,
        columns=plain.columns,
        cameras={name: CameraPart(topic=topic, tolerance_ms=40) for name, topic in topics.items()},
        task=Fact(text="reach ☂"),
        success=plain.success,
        robot=plain.robot,
        metadata={"operator": "ada"},
    )
    version = ingest(path, store, "pick", clock=FakeClock(), recipe=by).version
    assert version is not None
    return version
