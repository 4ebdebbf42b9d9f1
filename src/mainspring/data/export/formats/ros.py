"""Messages of ROS 2 as MCAP files hold them: the schemas' words, and their bytes.

Source: the definitions of common_interfaces (Humble) and foxglove_msgs; OMG DDSI-RTPS 2.3, 10.2 (CDR, little-endian).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from mainspring.data.episode import NANOSECONDS, Floats

_BEGIN = b"\x00\x01\x00\x00"  # Little-endian CDR without options; offsets count from behind it.
_SECONDS_MAX = 2**31 - 1
_LINE = "=" * 80
_TIME = f"\n{_LINE}\nMSG: builtin_interfaces/Time\nint32 sec\nuint32 nanosec\n"
_HEADER = f"\n{_LINE}\nMSG: std_msgs/Header\nbuiltin_interfaces/Time stamp\nstring frame_id\n{_TIME}"
_LAYOUT = (
    f"\n{_LINE}\nMSG: std_msgs/MultiArrayLayout\nMultiArrayDimension[] dim\nuint32 data_offset\n"
    f"\n{_LINE}\nMSG: std_msgs/MultiArrayDimension\nstring label\nuint32 size\nuint32 stride\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RosSchema:
    """A type of messages: its name and definition."""

    name: str
    text: str


JOINT_STATE = RosSchema(
    name="sensor_msgs/msg/JointState",
    text="std_msgs/Header header\nstring[] name\nfloat64[] position\nfloat64[] velocity\nfloat64[] effort\n" + _HEADER,
)
MULTI_ARRAY = RosSchema(
    name="std_msgs/msg/Float64MultiArray", text="std_msgs/MultiArrayLayout layout\nfloat64[] data\n" + _LAYOUT
)
COMPRESSED_IMAGE = RosSchema(
    name="sensor_msgs/msg/CompressedImage", text="std_msgs/Header header\nstring format\nuint8[] data\n" + _HEADER
)
COMPRESSED_VIDEO = RosSchema(
    name="foxglove_msgs/msg/CompressedVideo",
    text="builtin_interfaces/Time timestamp\nstring frame_id\nuint8[] data\nstring format\n" + _TIME,
)
IMAGE = RosSchema(
    name="sensor_msgs/msg/Image",
    text="std_msgs/Header header\nuint32 height\nuint32 width\nstring encoding\nuint8 is_bigendian\nuint32 step\n"
    "uint8[] data\n" + _HEADER,
)


@final
class Cdr:
    """Bytes of one message in the making."""

    def __init__(self) -> None:
        self._data = bytearray()

    def number(self, kind: str, value: float) -> Cdr:
        """Adds a number.

        Args:
            kind: Its letter for `struct`.
            value: The number.
        """
        self._align(struct.calcsize(kind))
        self._data += struct.pack(f"<{kind}", value)
        return self

    def time(self, time_ns: int) -> Cdr:
        """Adds a time; zero where its seconds do not fit 31 bits, as of clocks that are none.

        Args:
            time_ns: Nanoseconds.
        """
        seconds, rest = divmod(time_ns, NANOSECONDS)
        seconds, rest = (seconds, rest) if 0 <= seconds <= _SECONDS_MAX else (0, 0)
        return self.number("i", seconds).number("I", rest)

    def text(self, words: str) -> Cdr:
        """Adds text.

        Args:
            words: The text.
        """
        data = words.encode("utf-8", "replace") + b"\0"
        self.number("I", len(data))
        self._data += data
        return self

    def row(self, data: bytes) -> Cdr:
        """Adds a row of bytes.

        Args:
            data: The bytes.
        """
        self.number("I", len(data))
        self._data += data
        return self

    def doubles(self, values: bytes) -> Cdr:
        """Adds a row of doubles.

        Args:
            values: Their bytes, little-endian.
        """
        self.number("I", len(values) // 8)
        if values:
            self._align(8)
            self._data += values
        return self

    def done(self) -> bytes:
        """Returns the message."""
        return _BEGIN + bytes(self._data)

    def _align(self, size: int) -> None:
        self._data += b"\0" * (-len(self._data) % size)


def joint_states(time_ns: Sequence[int], names: Sequence[str], values: Floats) -> list[bytes]:
    """Returns a message for each step.

    Args:
        time_ns: [T].
        names: [D].
        values: [T, D], as positions.
    """
    head = Cdr().time(0).text("")
    head.number("I", len(names))
    for name in names:
        head.text(name)
    head.number("I", len(names))  # How many positions follow.
    return [_joint_state(head.done(), time, row) for time, row in zip(time_ns, _rows(values), strict=True)]


def _joint_state(head: bytes, time_ns: int, row: bytes) -> bytes:
    stamp = Cdr().time(time_ns).done()
    body = bytearray(head)
    body[: len(stamp)] = stamp
    body += b"\0" * (-(len(body) - len(_BEGIN)) % 8) + row + bytes(8)  # Neither velocities nor efforts.
    return bytes(body)


def multi_arrays(values: Floats) -> list[bytes]:
    """Returns a message for each step.

    Args:
        values: [T, D].
    """
    return [Cdr().number("I", 0).number("I", 0).doubles(row).done() for row in _rows(values)]


def compressed_image(time_ns: int, format: str, data: bytes) -> bytes:
    """Returns a message.

    Args:
        time_ns: When it was taken.
        format: "jpeg" or "png".
        data: The picture.
    """
    return Cdr().time(time_ns).text("").text(format).row(data).done()


def compressed_video(time_ns: int, format: str, data: bytes) -> bytes:
    """Returns a message.

    Args:
        time_ns: When it was taken.
        format: "h264", "h265", "vp9" or "av1".
        data: A packet that shows one frame.
    """
    return Cdr().time(time_ns).text("").row(data).text(format).done()


def depth_image(time_ns: int, height: int, width: int, data: bytes) -> bytes:
    """Returns a message.

    Args:
        time_ns: When it was taken.
        height: Pixels.
        width: Pixels.
        data: 16 bits a pixel, little-endian.
    """
    message = Cdr().time(time_ns).text("").number("I", height).number("I", width).text("16UC1")
    return message.number("B", 0).number("I", 2 * width).row(data).done()


def _rows(values: Floats) -> list[bytes]:
    return [row.tobytes() for row in np.ascontiguousarray(values, dtype="<f8")]
