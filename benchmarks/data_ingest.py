"""Reading MCAP with messages of fixed size into columns, beside `mcap` with `mcap_ros2`; the memory of a large file.

Run as `python -m benchmarks.data_ingest [--quick]`. Both read the same file of ROS 2 messages (Imu, JointState,
Float64MultiArray, in chunks compressed with zstd) to the end and give the same arrays, in turns. Then a process of its
own reads a file of 10 GiB (1 GiB when quick) of such messages and camera images, and its peak memory is measured.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from mcap.writer import CompressionType, Writer
from rosbags.typesys import Stores, get_typestore
from rosbags.typesys.store import Typestore

from mainspring.data.readers.log import open_log

RUNS = 5
JOINTS = tuple(f"joint_{number}" for number in range(7))
WANTED = {
    "/imu": ("linear_acceleration.x", "linear_acceleration.y", "linear_acceleration.z", "orientation_covariance"),
    "/joint_states": ("position", "velocity"),
    "/command": ("data",),
}
IMAGE_BYTES = 150_000  # A camera's JPEG of 640x480.


class Messages:
    """Makes the messages of one step, as CDR."""

    def __init__(self) -> None:
        self.store: Typestore = get_typestore(Stores.ROS2_JAZZY)
        self.values = np.random.default_rng(0)

    def _make(self, package_and_type: str, /, **fields: Any) -> Any:
        return self.store.types[package_and_type.replace("/", "/msg/")](**fields)

    def step(self, time_ns: int) -> dict[str, tuple[str, bytes]]:
        stamp = self._make("builtin_interfaces/Time", sec=time_ns // 10**9, nanosec=time_ns % 10**9)
        header = self._make("std_msgs/Header", stamp=stamp, frame_id="base_link")
        x, y, z, w = self.values.normal(size=4)
        imu = self._make(
            "sensor_msgs/Imu",
            header=header,
            orientation=self._make("geometry_msgs/Quaternion", x=x, y=y, z=z, w=w),
            orientation_covariance=self.values.normal(size=9),
            angular_velocity=self._make("geometry_msgs/Vector3", x=x, y=y, z=z),
            angular_velocity_covariance=np.zeros(9),
            linear_acceleration=self._make("geometry_msgs/Vector3", x=x, y=y, z=z),
            linear_acceleration_covariance=np.zeros(9),
        )
        position, velocity = self.values.normal(size=(2, len(JOINTS)))
        joints = self._make(
            "sensor_msgs/JointState",
            header=header,
            name=list(JOINTS),
            position=position,
            velocity=velocity,
            effort=np.zeros(len(JOINTS)),
        )
        layout = self._make("std_msgs/MultiArrayLayout", dim=[], data_offset=0)
        command = self._make("std_msgs/Float64MultiArray", layout=layout, data=self.values.normal(size=len(JOINTS)))
        made = {
            "/imu": ("sensor_msgs/msg/Imu", imu),
            "/joint_states": ("sensor_msgs/msg/JointState", joints),
            "/command": ("std_msgs/msg/Float64MultiArray", command),
        }
        return {topic: (name, bytes(self.store.serialize_cdr(value, name))) for topic, (name, value) in made.items()}


def definition(store: Typestore, name: str) -> bytes:
    text, _ = store.generate_msgdef(name, ros_version=2)
    return text.encode()


def write(path: Path, messages: Messages, steps: Iterator[int], *, image: bytes = b"") -> None:
    with open(path, "wb") as file:
        writer = Writer(file, compression=CompressionType.NONE if image else CompressionType.ZSTD)
        writer.start(profile="ros2", library="benchmark")
        channels: dict[str, int] = {}
        for step in steps:
            for topic, (name, data) in messages.step(step * 5_000_000).items():
                if topic not in channels:
                    schema = writer.register_schema(name, "ros2msg", definition(messages.store, name))
                    channels[topic] = writer.register_channel(topic, "cdr", schema)
                writer.add_message(channels[topic], step * 5_000_000, data, step * 5_000_000)
            if image:
                if "/camera" not in channels:
                    name = "sensor_msgs/msg/CompressedImage"
                    schema = writer.register_schema(name, "ros2msg", definition(messages.store, name))
                    channels["/camera"] = writer.register_channel("/camera", "cdr", schema)
                writer.add_message(channels["/camera"], step * 5_000_000, image, step * 5_000_000)
        writer.finish()  # type: ignore[no-untyped-call]


def ours(path: Path) -> dict[str, Any]:
    found: dict[str, list[Any]] = {f"{topic} {field}": [] for topic, fields in WANTED.items() for field in fields}
    for batch in open_log(path).batches(WANTED):
        for field, values in batch.fields.items():
            found[f"{batch.topic} {field}"].append(values)
    return {name: np.concatenate(values) for name, values in found.items()}


def peer(path: Path) -> dict[str, Any]:
    from mcap.reader import make_reader
    from mcap_ros2.decoder import DecoderFactory

    found: dict[str, list[Any]] = {f"{topic} {field}": [] for topic, fields in WANTED.items() for field in fields}
    with open(path, "rb") as file:
        reader = make_reader(file, decoder_factories=[DecoderFactory()])
        for _, channel, _, message in reader.iter_decoded_messages(topics=list(WANTED)):
            for field in WANTED[channel.topic]:
                value = message
                for name in field.split("."):
                    value = getattr(value, name)
                found[f"{channel.topic} {field}"].append(value)
    return {name: np.array(values, np.float64) for name, values in found.items()}


def timed(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def image_message(store: Typestore) -> bytes:
    types = store.types
    stamp = types["builtin_interfaces/msg/Time"](sec=0, nanosec=0)
    header = types["std_msgs/msg/Header"](stamp=stamp, frame_id="camera")
    data = np.random.default_rng(1).integers(0, 256, IMAGE_BYTES, np.uint8)
    message = types["sensor_msgs/msg/CompressedImage"](header=header, format="jpeg", data=data)
    return bytes(store.serialize_cdr(message, "sensor_msgs/msg/CompressedImage"))


def read_all(path: Path) -> None:
    """Reads everything once, as a process of its own, and prints its peak memory in MiB."""
    messages = 0
    for batch in open_log(path).batches({**WANTED, "/camera": ("format", "data")}):
        messages += len(batch)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"messages": messages, "rss_mib": peak_mib}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--folder", type=Path, help="where the large file may lie; a temporary folder otherwise")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.read:
        read_all(chosen.read)
        return
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        path, messages = Path(folder, "small.mcap"), Messages()
        steps = 4_000 if chosen.quick else 20_000
        write(path, messages, iter(range(steps)))
        expected, got = peer(path), ours(path)
        assert all(np.array_equal(expected[name], got[name]) for name in expected)
        print(f"{steps:,} steps of 3 messages, {path.stat().st_size / 2**20:.1f} MiB; both give the same arrays")
        seconds: dict[str, list[float]] = {"ours": [], "peer": []}
        for _ in range(RUNS):
            seconds["ours"].append(timed(lambda: ours(path)))
            seconds["peer"].append(timed(lambda: peer(path)))
        median = {name: statistics.median(values) for name, values in seconds.items()}
        for name, value in median.items():
            print(f"{name}: {3 * steps / value:,.0f} messages per CPU-second")
        large = Path(folder, "large.mcap")
        size_bytes = 2**30 if chosen.quick else 10 * 2**30
        image = image_message(messages.store)
        write(large, messages, iter(range(size_bytes // (len(image) + 1_100))), image=image)
        print(f"a file of {large.stat().st_size / 2**30:.2f} GiB is made")
        start = time.perf_counter()
        command = [sys.executable, "-m", "benchmarks.data_ingest", "--read", str(large)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=3_600)
        read_s = time.perf_counter() - start
        figures = json.loads(done.stdout.splitlines()[-1])
        print(f"{figures['messages']:,} messages of it read in {read_s:.1f} s, peak {figures['rss_mib']:.0f} MiB")
        result = {
            "ratio": median["peer"] / median["ours"],
            "rss_mib": figures["rss_mib"],
            "ours_messages_per_cpu_s": 3 * steps / median["ours"],
            "peer_messages_per_cpu_s": 3 * steps / median["peer"],
            "file_gib": large.stat().st_size / 2**30,
            "read_s": read_s,
        }
        print(json.dumps({name: round(value, 3) for name, value in result.items()}))


if __name__ == "__main__":
    main()
