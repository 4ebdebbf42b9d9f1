"""Logs of a small robot, whose values say at what time they were true."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import av
import numpy as np
from rosbags.typesys import get_types_from_msg
from tests.data.readers.logs import (
    IMAGE_KIND,
    JOINT_KIND,
    ROS2,
    Kind,
    Sent,
    definition,
    joint_state,
    ros2,
    stamp,
    write_mcap,
)

from mainspring.data.episode import Episode
from mainspring.data.intake.logs.mapping import Mapped, mapped_episodes
from mainspring.data.intake.logs.recipe import Align, CameraPart, Cut, Fact, MappingRecipe, RecipePart
from mainspring.data.readers.log import open_log

JOINTS = ("shoulder", "elbow", "wrist")
HEIGHT, WIDTH = 32, 48
SECOND_NS = 1_000_000_000
START_NS = 1_700_000_000 * SECOND_NS
JOINT_NS = 10_000_000  # 100 Hz
IMAGE_NS = 40_000_000  # 25 Hz
JSON_KIND: Kind = ("Said", "json", "jsonschema", b"{}")
RAW_KIND: Kind = ("sensor_msgs/msg/Image", "cdr", "ros2msg", definition("sensor_msgs/msg/Image"))
_VIDEO = "foxglove_msgs/msg/CompressedVideo"
_VIDEO_TEXT = "builtin_interfaces/Time timestamp\nstring frame_id\nuint8[] data\nstring format"
ROS2.register(get_types_from_msg(_VIDEO_TEXT, _VIDEO))
VIDEO_KIND: Kind = (_VIDEO, "cdr", "ros2msg", definition(_VIDEO))
KINDS: dict[str, Kind] = {
    "/joint_states": JOINT_KIND,
    "/arm/command": JSON_KIND,
    "/camera/compressed": IMAGE_KIND,
    "/video": VIDEO_KIND,
    "/raw": RAW_KIND,
    "/task": JSON_KIND,
    "/success": JSON_KIND,
    "/recording": JSON_KIND,
    "/start": JSON_KIND,
    "/stop": JSON_KIND,
}


def joints(time_ns: int, at_s: float, names: Sequence[str] = JOINTS) -> Sent:
    """A joint state whose first joint says the time, the others twice and three times as much."""
    values = [at_s * (1 + JOINTS.index(name)) for name in names]
    return ("/joint_states", time_ns, joint_state(time_ns, values, names))


def said(topic: str, time_ns: int, data: object) -> Sent:
    return (topic, time_ns, json.dumps({"data": data}).encode())


def gray(number: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A picture that says its number, apart from the others under any codec."""
    return np.full((HEIGHT, WIDTH, 3), 16 + 7 * (number % 32), np.uint8)


@cache
def coded(codec: str, count: int, group: int = 10) -> tuple[bytes, ...]:
    """Packets of numbered pictures; of h264 with parameter sets at each key frame, and none that waits for a later."""
    context: Any = av.CodecContext.create("libx264" if codec == "h264" else codec, "w")
    context.width, context.height, context.time_base = WIDTH, HEIGHT, Fraction(1, 25)
    context.pix_fmt = "yuvj420p" if codec == "mjpeg" else "rgb24" if codec == "png" else "yuv420p"
    if codec == "h264":
        context.options = {
            "crf": "4",
            "tune": "zerolatency",
            "x264-params": f"keyint={group}:min-keyint={group}:scenecut=0:bframes=0:repeat-headers=1",
        }
    packets: list[bytes] = []
    for number in range(count):
        frame = av.VideoFrame.from_ndarray(gray(number), format="rgb24").reformat(format=context.pix_fmt)
        frame.pts = number
        packets += [bytes(packet) for packet in context.encode(frame)]
    packets += [bytes(packet) for packet in context.encode(None)]
    assert len(packets) == count
    return tuple(packets)


def images(count: int, codec: str = "mjpeg", *, begin_ns: int = START_NS, period_ns: int = IMAGE_NS) -> Iterator[Sent]:
    """Compressed pictures at 25 Hz."""
    for number, data in enumerate(coded(codec, count)):
        time_ns = begin_ns + number * period_ns
        header = ros2("std_msgs/Header", stamp=stamp(time_ns), frame_id="camera")
        message = ros2("sensor_msgs/CompressedImage", header=header, format="jpeg", data=np.frombuffer(data, np.uint8))
        yield "/camera/compressed", time_ns, bytes(ROS2.serialize_cdr(message, "sensor_msgs/msg/CompressedImage"))


def video(count: int, *, first: int = 0, begin_ns: int = START_NS, group: int = 10) -> Iterator[Sent]:
    """h264 packets at 25 Hz, from one of them on."""
    for number, data in enumerate(coded("h264", count, group)[first:], first):
        time_ns = begin_ns + number * IMAGE_NS
        yield video_message(time_ns, data)


def video_message(time_ns: int, data: bytes, codec: str = "h264") -> Sent:
    """A packet as a message of compressed video."""
    packet = np.frombuffer(data, np.uint8)
    message = ROS2.types[_VIDEO](timestamp=stamp(time_ns), frame_id="", data=packet, format=codec)
    return "/video", time_ns, bytes(ROS2.serialize_cdr(message, _VIDEO))


def raw_images(count: int, encoding: str = "bgr8") -> Iterator[Sent]:
    """Raw pictures at 25 Hz, with lines longer than what they show."""
    for number in range(count):
        time_ns = START_NS + number * IMAGE_NS
        lines = np.zeros((HEIGHT, WIDTH * 3 + 5), np.uint8)
        lines[:, : WIDTH * 3] = numbered(number)[:, :, ::-1].reshape(HEIGHT, -1)
        message = ros2(
            "sensor_msgs/Image",
            header=ros2("std_msgs/Header", stamp=stamp(time_ns), frame_id=""),
            height=HEIGHT,
            width=WIDTH,
            encoding=encoding,
            is_bigendian=0,
            step=WIDTH * 3 + 5,
            data=lines.reshape(-1),
        )
        yield "/raw", time_ns, bytes(ROS2.serialize_cdr(message, "sensor_msgs/msg/Image"))


def numbered(number: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A coloured picture that says its number."""
    picture = gray(number).copy()
    picture[:, :, 0], picture[:, :, 2] = number, 255 - number
    return picture


def arm(seconds: float = 2.0, *, begin_ns: int = START_NS) -> list[Sent]:
    """Joint states at 100 Hz, and commands at 20 Hz."""
    steps = round(seconds * 100)
    sent = [joints(begin_ns + step * JOINT_NS, step / 100) for step in range(steps)]
    sent += [said("/arm/command", begin_ns + step * 5 * JOINT_NS, [step, -step]) for step in range(steps // 5)]
    return sent


def write_log(
    path: Path, sent: Sequence[Sent], more: Mapping[str, Kind] = MappingProxyType({}), **options: Any
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    topics = {topic for topic, _, _ in sent}
    kinds = {topic: kind for topic, kind in {**KINDS, **more}.items() if topic in topics}
    return write_mcap(path, kinds, sorted(sent, key=lambda one: one[1]), **options)


def recipe(
    rate_hz: float = 20,
    *,
    camera: str = "",
    cut: Cut | None = None,
    task: Fact | None = None,
    success: Fact | None = None,
    state: RecipePart | None = None,
    align: Align = Align.NEAREST,
) -> MappingRecipe:
    """Joints by name as the state, commands held as the action, one camera or none."""
    joint = RecipePart(topic="/joint_states", field="position", names=JOINTS, keys="name", tolerance_ms=20, align=align)
    command = RecipePart(topic="/arm/command", field="data", tolerance_ms=100, align=Align.HOLD)
    return MappingRecipe(
        rate_hz=rate_hz,
        columns={"state": (state or joint,), "action": (command,)},
        cameras={"front": CameraPart(topic=camera, tolerance_ms=40)} if camera else {},
        cut=cut or Cut(),
        task=task or Fact(text="reach"),
        success=success or Fact(),
        robot=Fact(text="arm"),
    )


def mapped(path: Path, by: MappingRecipe, folder: Path) -> list[Mapped]:
    folder.mkdir(exist_ok=True)
    return [*mapped_episodes(open_log(path), by, name=path.name, files=(), said={}, folder=folder)]


def episode_of(path: Path, by: MappingRecipe, folder: Path) -> Episode:
    (found,) = mapped(path, by, folder)
    assert found.episode is not None, found.reason
    return found.episode
