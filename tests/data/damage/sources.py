"""One small source of every kind that is read, each made by its own tools or as they make it; what else reads it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import av
import h5py
import numpy as np
import pyarrow.parquet as pq
from mcap.writer import CompressionType
from rosbags.rosbag1 import Writer as Bag1Writer
from rosbags.rosbag2 import StoragePlugin
from rosbags.rosbag2 import Writer as Bag2Writer
from tests.data.damage import readers
from tests.data.intake import making
from tests.data.making import ROBOTS, copy_humanoid, record, write_lerobot_v2, write_lerobot_v3
from tests.data.readers import test_hdf5, test_rlds, test_zarr
from tests.data.readers.logs import ROS1, ROS2, Sent, joint_state, stamp, ulog_record
from tests.data.video.kinds import FRAMES, HEIGHT, KINDS, WIDTH, packets_of, written

from mainspring.data.intake.logs.recipe import Align, CameraPart, MappingRecipe, RecipePart
from mainspring.data.options import DEFAULT, IngestOptions

SECONDS = 1.5
JOINT_STATE = "sensor_msgs/msg/JointState"
_DRIVE = b"drive:uint64_t timestamp;float[3] pose;float speed;uint8_t gear;uint8_t[7] _padding0;"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A small sound source.

    Args:
        make: Writes it into a folder that is there.
        objection: What a reader that is not ours, or a number beside the data, has against it; "" for nothing.
        recipe: How it is read, where that must be said.
        options: What else must be said.
        large: Whether it takes seconds, and so is left to the soak.
    """

    make: Callable[[Path], object]
    objection: Callable[[Path], str]
    recipe: MappingRecipe | None = None
    options: IngestOptions = DEFAULT
    large: bool = False


def _arm() -> list[Sent]:
    return making.arm(SECONDS)


def _video() -> list[Sent]:
    """Packets of h264 at 25 Hz, as a camera's driver sends them."""
    kind = KINDS["h264 of full range"]
    context: Any = av.CodecContext.create(kind.encoder, "w")
    context.width, context.height, context.pix_fmt = WIDTH, HEIGHT, kind.pixels
    context.options = {**kind.options, "tune": "zerolatency"}
    context.options["x264-params"] += ":repeat-headers=1:bframes=0"
    context.framerate = 25
    sent = []
    for number, packet in enumerate(packets_of(kind, context)):
        time_ns = making.START_NS + number * making.IMAGE_NS
        name = "foxglove_msgs/msg/CompressedVideo"
        data = np.frombuffer(bytes(packet), np.uint8)
        message = ROS2.types[name](timestamp=stamp(time_ns), frame_id="", data=data, format="h264")
        sent.append(("/video", time_ns, bytes(ROS2.serialize_cdr(message, name))))
    return sent


def _mcap(more: Callable[[], Sequence[Sent]], folder: Path, **options: Any) -> None:
    making.write_log(folder / "a.mcap", [*_arm(), *more()], **options)


def _nothing() -> list[Sent]:
    return []


def _images() -> list[Sent]:
    return list(making.images(round(25 * SECONDS)))


def _bag1(folder: Path, compression: str) -> None:
    bag = Bag1Writer(folder / "a.bag")
    if compression:
        bag.set_compression(Bag1Writer.CompressionFormat[compression.upper()])
    bag.chunk_threshold = 4_096
    types = ROS1.types
    with bag:
        topics = [bag.add_connection(name, JOINT_STATE, typestore=ROS1) for name in ("/joint_states", "/arm/command")]
        for step in range(round(SECONDS * 100)):
            time_ns = making.START_NS + step * making.JOINT_NS
            time = types["builtin_interfaces/msg/Time"](sec=time_ns // 10**9, nanosec=time_ns % 10**9)
            header = types["std_msgs/msg/Header"](seq=step, stamp=time, frame_id="base")
            values = np.array([step, 2 * step, 3 * step]) / 100
            message = types[JOINT_STATE](
                header=header, name=list(making.JOINTS), position=values, velocity=values, effort=values[:0]
            )
            data = ROS1.serialize_ros1(message, JOINT_STATE)
            for topic in topics[: 1 if step % 5 else 2]:
                bag.write(topic, time_ns, data)


def _bag2(folder: Path, storage: StoragePlugin) -> None:
    with Bag2Writer(folder / "bag", version=9, storage_plugin=storage) as bag:
        topics = [bag.add_connection(name, JOINT_STATE, typestore=ROS2) for name in ("/joint_states", "/arm/command")]
        for step in range(round(SECONDS * 100)):
            time_ns = making.START_NS + step * making.JOINT_NS
            data = joint_state(time_ns, [step / 100, step / 50, step / 30], making.JOINTS)
            for topic in topics[: 1 if step % 5 else 2]:
                bag.write(topic, time_ns, data)


def _ulog(folder: Path) -> None:
    parts = [b"ULog\x01\x12\x35\x01" + bytes(8), ulog_record("B", bytes(40)), ulog_record("F", _DRIVE)]
    parts += [ulog_record("A", bytes([instance, 7 + instance, 0]) + b"drive") for instance in (0, 1)]
    for step in range(round(SECONDS * 100)):
        time = np.uint64(1_000_000 + step * 10_000).tobytes()
        values = np.array([step / 100, step / 50, step / 30, step], "<f4").tobytes()
        for instance in (0, 1):
            parts.append(ulog_record("D", bytes([7 + instance, 0]) + time + values + bytes([step % 4])))
        if step % 20 == 0:
            parts.append(ulog_record("S", bytes.fromhex("2f731320250cbb12")))
    (folder / "a.ulg").write_bytes(b"".join(parts))


def _statistics(rows: Any) -> dict[str, dict[str, list[float]]]:
    found = {}
    for name in ("observation.state", "action"):
        values = np.array(rows[name].to_pylist(), np.float32)
        numbers = {"min": values.min(0), "max": values.max(0), "mean": values.mean(0), "std": values.std(0)}
        found[name] = {key: [float(each) for each in value] for key, value in numbers.items()}
        found[name]["count"] = [len(values)]
    return found


def _lerobot_v2(folder: Path, codec: str) -> None:
    root = write_lerobot_v2(folder / "set", [FRAMES, FRAMES], video=True)
    lines = []
    for episode in range(2):
        rows = pq.read_table(root / f"data/chunk-000/episode_{episode:06d}.parquet")
        lines.append(json.dumps({"episode_index": episode, "stats": _statistics(rows)}))
    (root / "meta/episodes_stats.jsonl").write_text("\n".join(lines))
    for path in root.rglob("*.mp4"):
        written(KINDS[codec], path)


def _lerobot_v3(folder: Path, codec: str) -> None:
    root = write_lerobot_v3(folder / "set", [FRAMES])
    listed = root / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(listed)
    for name, numbers in _statistics(pq.read_table(root / "data/chunk-000/file-000.parquet")).items():
        for key, values in numbers.items():
            table = table.append_column(f"stats/{name}/{key}", [[values]])
    pq.write_table(table, listed)
    for path in root.rglob("*.mp4"):
        written(KINDS[codec], path)


def _hdf5_checked(folder: Path) -> None:
    path = folder / "episode_0.hdf5"
    test_hdf5.aloha(path, fletcher32=True, compression="gzip")
    with h5py.File(path, "r+") as file:
        pictures = file["observations/images/cam_high"][:]
        del file["observations/images/cam_high"]
        file.create_dataset("observations/images/cam_high", data=pictures, chunks=(1, 24, 32, 3), fletcher32=True)


def _zarr_zip(folder: Path) -> None:
    shutil.rmtree(test_zarr.zipped(test_zarr.push(folder / "push")).with_suffix(""))


def _rlds(folder: Path) -> None:
    test_rlds.dataset(folder / "pick", [[test_rlds.episode_of(0)], [test_rlds.episode_of(1)]])


def _bag_recipe() -> MappingRecipe:
    joint = RecipePart(topic="/joint_states", field="position", tolerance_ms=20)
    command = RecipePart(topic="/arm/command", field="position", tolerance_ms=100, align=Align.HOLD)
    return MappingRecipe(rate_hz=20, columns={"state": (joint,), "action": (command,)})


def _ulog_recipe() -> MappingRecipe:
    joint = RecipePart(topic="drive", field="pose", tolerance_ms=20)
    command = RecipePart(topic="drive/1", field="speed", tolerance_ms=100, align=Align.HOLD)
    return MappingRecipe(rate_hz=20, columns={"state": (joint,), "action": (command,)})


def _camera(topic: str) -> MappingRecipe:
    recipe = making.recipe(20)
    return MappingRecipe(
        rate_hz=20,
        columns=recipe.columns,
        cameras={"front": CameraPart(topic=topic, tolerance_ms=60)},
        task=recipe.task,
        robot=recipe.robot,
    )


def _log(more: Callable[[], Sequence[Sent]] = _nothing, recipe: MappingRecipe | None = None, **options: Any) -> Source:
    return Source(
        make=partial(_mcap, more, **options), objection=readers.mcap_objects, recipe=recipe or making.recipe(20)
    )


def _copied(name: str, folder: Path) -> None:
    shutil.copy(ROBOTS / "logs" / name, folder / name)


_TEN_HZ = IngestOptions(rate_hz=10.0)
_NONE, _LZ4, _ZSTD = CompressionType.NONE, CompressionType.LZ4, CompressionType.ZSTD
_JPEG, _H264 = _camera("/camera/compressed"), _camera("/video")
SOURCES: Mapping[str, Source] = MappingProxyType(
    {
        "MCAP of our recorder": Source(make=lambda to: record(to / "a.mcap"), objection=readers.mcap_objects),
        "MCAP zstd": _log(),
        "MCAP lz4, no checksums": _log(compression=_LZ4, checksums=False),
        "MCAP uncompressed, no checksums": _log(compression=_NONE, checksums=False),
        "MCAP unchunked": _log(chunked=False),
        "MCAP without summary": _log(summary=False, index=False),
        "MCAP with JPEG": _log(_images, _JPEG),
        "MCAP with JPEG, no checksums": _log(_images, _JPEG, checksums=False, compression=_NONE),
        "MCAP with h264, no checksums": _log(_video, _H264, checksums=False, compression=_NONE),
        "ROS 1 bag": Source(make=partial(_bag1, compression=""), objection=readers.bag1_objects, recipe=_bag_recipe()),
        "ROS 1 bag bz2": Source(
            make=partial(_bag1, compression="bz2"), objection=readers.bag1_objects, recipe=_bag_recipe()
        ),
        "ROS 1 bag lz4": Source(
            make=partial(_bag1, compression="lz4"), objection=readers.bag1_objects, recipe=_bag_recipe()
        ),
        "ROS 2 bag of SQLite": Source(
            make=partial(_bag2, storage=StoragePlugin.SQLITE3), objection=readers.bag2_objects, recipe=_bag_recipe()
        ),
        "ROS 2 bag of MCAP": Source(
            make=partial(_bag2, storage=StoragePlugin.MCAP), objection=readers.bag2_objects, recipe=_bag_recipe()
        ),
        "ULog": Source(make=_ulog, objection=readers.ulog_objects, recipe=_ulog_recipe()),
        "LeRobot v2.1 h264": Source(make=partial(_lerobot_v2, codec="h264"), objection=readers.lerobot_objects),
        "LeRobot v2.1 av1": Source(make=partial(_lerobot_v2, codec="av1"), objection=readers.lerobot_objects),
        "HDF5": Source(make=lambda to: test_hdf5.aloha(to / "episode_0.hdf5"), objection=readers.hdf5_objects),
        "HDF5 with checksums": Source(
            make=_hdf5_checked,
            objection=readers.hdf5_objects,
        ),
        "Zarr": Source(
            make=lambda to: test_zarr.push(to / "push.zarr"), objection=readers.zarr_objects, options=_TEN_HZ
        ),
        "Zarr 3": Source(
            make=lambda to: test_zarr.push(to / "push.zarr", 3), objection=readers.zarr_objects, options=_TEN_HZ
        ),
        "Zarr zip": Source(make=_zarr_zip, objection=readers.zarr_objects, options=_TEN_HZ),
        "RLDS": Source(make=_rlds, objection=readers.rlds_objects, options=_TEN_HZ),
        "LeRobot v3 h264": Source(make=partial(_lerobot_v3, codec="h264"), objection=readers.lerobot_objects),
    }
)
REAL: Mapping[str, Source] = MappingProxyType(
    {
        "a real humanoid's episode": Source(
            make=lambda to: copy_humanoid(to / "set", 1), objection=readers.lerobot_objects, large=True
        ),
    }
    if ROBOTS.exists()
    else {}
)
