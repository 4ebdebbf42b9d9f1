"""Small logs of every kind, made by the libraries that robots use, and hand-made ULog."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from mcap.writer import CompressionType, IndexType, Writer
from rosbags.rosbag1 import Writer as Bag1Writer
from rosbags.rosbag2 import StoragePlugin
from rosbags.rosbag2 import Writer as Bag2Writer
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from mainspring.data.readers.log import Log, Messages, Values, open_log

ROBOTS = Path(__file__).parents[4] / "shared" / "robots"
ROS2 = get_typestore(Stores.ROS2_JAZZY)
ROS1 = get_typestore(Stores.ROS1_NOETIC)
PERIOD_NS = 10_000_000
JOINTS = tuple(f"joint_{number}" for number in range(7))
POSE = "turtlesim/msg/Pose"
_POSE = get_types_from_msg("float32 x\nfloat32 y\nfloat32 theta", POSE)
ROS1.register(_POSE)
ROS2.register(_POSE)


def ros2(name: str, /, **fields: Any) -> Any:
    """Makes a ROS 2 message; `name` without its "msg"."""
    return ROS2.types[name.replace("/", "/msg/")](**fields)


def stamp(time_ns: int) -> Any:
    return ros2("builtin_interfaces/Time", sec=time_ns // 10**9, nanosec=time_ns % 10**9)


def joint_state(time_ns: int, position: Sequence[float], names: Sequence[str] = JOINTS, frame: str = "base") -> bytes:
    """Returns a JointState as CDR."""
    message = ros2(
        "sensor_msgs/JointState",
        header=ros2("std_msgs/Header", stamp=stamp(time_ns), frame_id=frame),
        name=list(names),
        position=np.array(position, np.float64),
        velocity=np.array(position, np.float64) * 2,
        effort=np.zeros(0),
    )
    return bytes(ROS2.serialize_cdr(message, "sensor_msgs/msg/JointState"))


def image(time_ns: int, data: bytes) -> bytes:
    """Returns a CompressedImage as CDR."""
    header = ros2("std_msgs/Header", stamp=stamp(time_ns), frame_id="camera")
    message = ros2("sensor_msgs/CompressedImage", header=header, format="jpeg", data=np.frombuffer(data, np.uint8))
    return bytes(ROS2.serialize_cdr(message, "sensor_msgs/msg/CompressedImage"))


def definition(name: str) -> bytes:
    """Returns a type's definition as ROS 2 bags carry it."""
    return ROS2.generate_msgdef(name, ros_version=2)[0].encode()


Sent = tuple[str, int, bytes]  # Topic, log time in nanoseconds, content.
Kind = tuple[str, str, str, bytes]  # Type, encoding, and the definition's language and text.


def write_mcap(
    path: Path,
    kinds: Mapping[str, Kind],
    sent: Sequence[Sent],
    *,
    compression: CompressionType = CompressionType.ZSTD,
    chunk_bytes: int = 4_096,
    chunked: bool = True,
    summary: bool = True,
    schemas: bool = True,
    index: bool = True,
    checksums: bool = True,
) -> Path:
    """Writes an MCAP file; a channel for each of `kinds`, whose names may end in "#2" to share a topic."""
    with open(path, "wb") as file:
        writer = Writer(
            file,
            chunk_size=chunk_bytes,
            compression=compression,
            index_types=IndexType.ALL if index else IndexType.NONE,
            use_chunking=chunked,
            use_statistics=summary,
            use_summary_offsets=summary,
            repeat_channels=summary,
            repeat_schemas=summary and schemas,
            enable_crcs=checksums,
            enable_data_crcs=checksums,
        )
        writer.start(profile="", library="tests")
        channels = {}
        for topic, (name, encoding, language, text) in kinds.items():
            schema = writer.register_schema(name, language, text) if name else 0
            channels[topic] = writer.register_channel(topic.partition("#")[0], encoding, schema)
        for topic, time_ns, data in sent:
            writer.add_message(channels[topic], time_ns, data, time_ns)
        writer.finish()  # type: ignore[no-untyped-call]
    return path


JOINT_KIND: Kind = ("sensor_msgs/msg/JointState", "cdr", "ros2msg", definition("sensor_msgs/msg/JointState"))
IMAGE_KIND: Kind = (
    "sensor_msgs/msg/CompressedImage",
    "cdr",
    "ros2msg",
    definition("sensor_msgs/msg/CompressedImage"),
)


def positions(steps: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.random.default_rng(seed).normal(size=(steps, len(JOINTS)))


def robot_mcap(path: Path, steps: int = 50, **options: Any) -> Path:
    """Writes joint states, images of varying size, JSON and Protocol Buffers to one file."""
    sent: list[Sent] = []
    for step, position in enumerate(positions(steps)):
        time_ns = step * PERIOD_NS
        sent.append(("/joint_states", time_ns, joint_state(time_ns, position.tolist())))
        sent.append(("/camera", time_ns, image(time_ns, bytes([step % 256]) * (100 + step % 7))))
        sent.append(("/command", time_ns, json.dumps({"values": position[:2].tolist(), "name": "go"}).encode()))
        sent.append(("/pressure", time_ns, protobuf_message(time_ns, position.tolist())))
    kinds: dict[str, Kind] = {
        "/joint_states": JOINT_KIND,
        "/camera": IMAGE_KIND,
        "/command": ("Command", "json", "jsonschema", b"{}"),
        "/pressure": ("robot.Pressure", "protobuf", "protobuf", protobuf_descriptors()),
    }
    return write_mcap(path, kinds, sent, **options)


def protobuf_descriptors() -> bytes:
    """Returns the descriptors of a message of our own that names a Timestamp."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="robot.proto", package="robot", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    tip = file.message_type.add(name="Tip")
    tip.field.add(name="force", number=1, type=kinds.TYPE_FLOAT, label=kinds.LABEL_OPTIONAL)
    pressure = file.message_type.add(name="Pressure")
    fields: list[tuple[str, Any, Any, str]] = [
        ("stamp", kinds.TYPE_MESSAGE, kinds.LABEL_OPTIONAL, ".google.protobuf.Timestamp"),
        ("cells", kinds.TYPE_DOUBLE, kinds.LABEL_REPEATED, ""),
        ("label", kinds.TYPE_STRING, kinds.LABEL_OPTIONAL, ""),
        ("raw", kinds.TYPE_BYTES, kinds.LABEL_OPTIONAL, ""),
        ("tips", kinds.TYPE_MESSAGE, kinds.LABEL_REPEATED, ".robot.Tip"),
        ("count", kinds.TYPE_INT32, kinds.LABEL_OPTIONAL, ""),
    ]
    for number, (name, kind, label, type_name) in enumerate(fields, 1):
        pressure.field.add(name=name, number=number, type=kind, label=label, type_name=type_name or None)
    times = descriptor_pb2.FileDescriptorProto.FromString(timestamp_pb2.DESCRIPTOR.serialized_pb)
    return bytes(descriptor_pb2.FileDescriptorSet(file=[file, times]).SerializeToString())


def protobuf_message(time_ns: int, cells: Sequence[float]) -> bytes:
    """Returns a message of that type."""
    pool = descriptor_pool.DescriptorPool()
    for file in reversed(descriptor_pb2.FileDescriptorSet.FromString(protobuf_descriptors()).file):
        pool.Add(file)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("robot.Pressure"))
    message = kind(cells=cells, label="grip", raw=b"\0\1", tips=[{"force": 1.5}, {"force": 2.5}], count=-3)
    message.stamp.seconds, message.stamp.nanos = divmod(time_ns, 10**9)
    return bytes(message.SerializeToString())


def robot_bag1(path: Path, steps: int = 50, compression: Literal["", "lz4", "bz2"] = "") -> Path:
    """Writes a ROS 1 bag of poses and texts in small chunks."""
    path.unlink(missing_ok=True)
    bag = Bag1Writer(path)
    if compression:
        bag.set_compression(Bag1Writer.CompressionFormat[compression.upper()])
    bag.chunk_threshold = 1_024
    with bag:
        pose = bag.add_connection("/pose", POSE, typestore=ROS1)
        text = bag.add_connection("/text", "std_msgs/msg/String", typestore=ROS1)
        for step, (x, y, theta) in enumerate(positions(steps)[:, :3].tolist()):
            message = ROS1.types[POSE](x=x, y=y, theta=theta)
            bag.write(pose, step * PERIOD_NS, ROS1.serialize_ros1(message, POSE))
            words = ROS1.types["std_msgs/msg/String"](data="x" * (step % 5))
            bag.write(text, step * PERIOD_NS, ROS1.serialize_ros1(words, "std_msgs/msg/String"))
    return path


def robot_bag2(folder: Path, steps: int = 50, storage: StoragePlugin = StoragePlugin.SQLITE3) -> Path:
    """Writes a ROS 2 bag of joint states and poses."""
    with Bag2Writer(folder, version=9, storage_plugin=storage) as bag:
        joints = bag.add_connection("/joint_states", "sensor_msgs/msg/JointState", typestore=ROS2)
        pose = bag.add_connection("/pose", POSE, typestore=ROS2)
        for step, position in enumerate(positions(steps).tolist()):
            bag.write(joints, step * PERIOD_NS, joint_state(step * PERIOD_NS, position))
            x, y, theta = position[:3]
            bag.write(pose, step * PERIOD_NS, ROS2.serialize_cdr(ROS2.types[POSE](x=x, y=y, theta=theta), POSE))
    return folder


def ulog_record(kind: str, body: bytes) -> bytes:
    return struct.pack("<HB", len(body), ord(kind)) + body


def robot_ulog(path: Path, steps: int = 50) -> Path:
    """Writes a ULog file of one topic with two instances, nested types and last padding left out."""
    parts = [b"ULog\x01\x12\x35\x01" + bytes(8), ulog_record("B", bytes(40))]
    parts.append(ulog_record("F", b"wheel:float speed;uint8_t[4] _padding0;"))
    drive = b"drive:uint64_t timestamp;wheel[2] wheels;float[3] pose;uint8_t gear;uint8_t[3] _padding0;"
    parts.append(ulog_record("F", drive))
    for instance in (0, 1):
        parts.append(ulog_record("A", struct.pack("<BH", instance, 7 + instance) + b"drive"))
    for step, (one, two, *pose) in enumerate(positions(steps)[:, :5].tolist()):
        for instance in (0, 1):
            body = struct.pack("<HQf4xf4x3fB", 7 + instance, step * PERIOD_NS // 1_000, one, two, *pose, step % 4)
            parts.append(ulog_record("D", body))
    path.write_bytes(b"".join(parts))
    return path


def everything(log: Log) -> dict[str, tuple[str, ...]]:
    """Returns all that can be asked of a log."""
    return {topic.name: tuple(field.path for field in topic.fields) for topic in log.topics() if not topic.problem}


def read(path: Path, wanted: Mapping[str, tuple[str, ...]] | None = None) -> list[Messages]:
    log = open_log(path)
    return list(log.batches(everything(log) if wanted is None else wanted))


def column(path: Path, topic: str, field: str) -> Values:
    """Returns one field of all messages of a topic."""
    parts: list[Any] = [batch.fields[field] for batch in read(path, {topic: (field,)})]
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)
    return tuple(value for part in parts for value in part)
