"""Images that arrive as messages: which kinds are read, and how they become packets in one file for each episode.

JPEG and PNG stay as they are; h264, h265, VP9 and AV1 packets too, with those that lead to them; raw images become
PNG, which loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from mainspring.data.episode import Integers, VideoFile
from mainspring.data.readers.messages import Messages, Topic
from mainspring.data.video.keys import begins_group
from mainspring.data.video.packet import IMAGE_PIXELS_MAX
from mainspring.data.video.packets import PacketIndex
from mainspring.data.video.pictures import PngEncoder, picture_codec, picture_size
from mainspring.domain.errors import DamagedData, InvalidInput
from mainspring.objects.files import reported

_PACKET_CODECS: Mapping[str, str] = MappingProxyType(
    {"h264": "h264", "h265": "hevc", "hevc": "hevc", "av1": "av1", "vp9": "vp9"}
)
_COMPRESSED = ("format", "data")
_DEPTH, _DEPTH_HEADER_BYTES = "compressedDepth", 12  # A kind, and two numbers that only 32FC1 needs.
_RAW = ("height", "width", "encoding", "step", "data")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pixel:
    """How a raw image's pixels lie in memory; `flip` when blue comes first."""

    channels: int = 1
    bytes_each: int = 1
    flip: bool = False


# Source: sensor_msgs/image_encodings.hpp of ROS 2. Without Bayer patterns and YUV: PNG cannot hold them as they are.
_PIXELS: Mapping[str, _Pixel] = MappingProxyType(
    {
        "rgb8": _Pixel(channels=3),
        "bgr8": _Pixel(channels=3, flip=True),
        "8UC3": _Pixel(channels=3, flip=True),  # OpenCV's order.
        "rgba8": _Pixel(channels=4),
        "bgra8": _Pixel(channels=4, flip=True),
        "mono8": _Pixel(),
        "8UC1": _Pixel(),
        "mono16": _Pixel(bytes_each=2),
        "16UC1": _Pixel(bytes_each=2),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageKind:
    """What a topic's messages hold.

    Args:
        fields: Which of them are needed to make packets.
        chained: Whether a packet may depend on those before it.
    """

    fields: tuple[str, ...]
    chained: bool = False


def image_kind(topic: Topic) -> ImageKind | None:
    """Returns what kind of images a topic's messages are, or None when they are none.

    Args:
        topic: The topic.
    """
    paths = {field.path for field in topic.fields}
    if {*_RAW} <= paths:
        return ImageKind(fields=(*_RAW, *({"is_bigendian"} & paths)))
    if {*_COMPRESSED} <= paths:
        return ImageKind(fields=_COMPRESSED, chained=topic.type.endswith("CompressedVideo"))
    return None


def keys_of(messages: Messages) -> list[bool]:
    """Returns which packets of video decoding can begin at.

    Args:
        messages: With format and data.

    Raises:
        InvalidInput: The video is of a codec that is not read.
    """
    formats, packets = messages.fields["format"], messages.fields["data"]
    return [_is_key(_codec(messages.topic, kind, b""), data) for kind, data in zip(formats, packets, strict=True)]


class CameraPackets:
    """Writes a camera's packets for all episodes of a log in one pass over its messages.

    Args:
        topic: Where they are.
        kind: Of its images.
        shown: For each episode, [T] the number of the message that each step shows; never falling.
        key: Numbers of the messages that decoding can begin at, when they are chained; one is at the first shown or
            before.
        count: How many messages there are.
        folder: Where the files go.
        prefix: Of their names.
    """

    def __init__(
        self,
        topic: str,
        kind: ImageKind,
        shown: list[Integers],
        key: Integers,
        *,
        count: int,
        folder: Path,
        prefix: str,
    ) -> None:
        self._topic, self._kind, self._shown, self._count = topic, kind, shown, count
        numbers = [self._needed(steps, key) for steps in shown]
        self._numbers = np.concatenate([*numbers, np.empty(0, np.int64)])
        self._bounds = np.cumsum([0, *map(len, numbers)])
        self._order = np.argsort(self._numbers, kind="stable")
        self._episode = np.repeat(np.arange(len(shown)), np.diff(self._bounds))
        self._offset = np.zeros(len(self._numbers), np.int64)
        self._size_bytes = np.zeros(len(self._numbers), np.int32)
        self._place = self._seen = 0
        self._packets = _Packets(topic)
        self._files = _PacketFiles(folder, prefix)

    def take(self, messages: Messages) -> None:
        """Writes what is needed of the topic's next messages.

        Args:
            messages: With the fields of the kind.

        Raises:
            DamagedData: An image does not hold together, or is of another codec than those before.
            InvalidInput: It is of a kind that is not read.
            StorageFull: The disk is full.
        """
        end = self._seen + len(messages)
        while self._place < len(self._order):
            entry = int(self._order[self._place])
            number = int(self._numbers[entry])
            if number >= end:
                break
            data = self._packets.of(messages, number - self._seen)
            while self._place < len(self._order) and self._numbers[entry := int(self._order[self._place])] == number:
                self._write(entry, data)
                self._place += 1
        self._seen = end

    def finish(self, camera: str) -> list[VideoFile]:
        """Returns each episode's frames.

        Args:
            camera: Its name.

        Raises:
            DamagedData: There were fewer messages than before, or the first image cannot be decoded.
        """
        self._files.close()
        if self._seen != self._count:  # Then their numbers mean other images.
            raise DamagedData(
                "read a camera",
                on=self._topic,
                got=f"{self._seen} messages, {self._count} when it was read before",
                wanted="a file that nobody changes",
            )
        height, width = self._packets.size
        return [self._video(camera, episode, height, width) for episode in range(len(self._shown))]

    def close(self) -> None:
        """Closes its files."""
        self._files.close()

    def _needed(self, shown: Integers, key: Integers) -> Integers:
        if not self._kind.chained:
            return np.unique(shown)
        return np.arange(key[np.searchsorted(key, shown[0], side="right") - 1], shown[-1] + 1)

    def _write(self, entry: int, data: bytes) -> None:
        episode = int(self._episode[entry])
        last = entry + 1 == self._bounds[episode + 1]
        self._offset[entry], self._size_bytes[entry] = self._files.write(episode, data, last=bool(last)), len(data)

    def _video(self, camera: str, episode: int, height: int, width: int) -> VideoFile:
        here = slice(int(self._bounds[episode]), int(self._bounds[episode + 1]))
        number, shown = self._numbers[here], self._shown[episode]
        offset, size_bytes = self._offset[here], self._size_bytes[here]
        steps: Integers | None = None
        if self._kind.chained:
            frame = np.maximum(number - shown[0], -1)
            steps = shown - shown[0]
            key = np.zeros(len(number), np.bool_)
            key[0] = True
        else:  # Whole images: one that is shown again is named again.
            place = np.searchsorted(number, shown)
            offset, size_bytes, frame = offset[place], size_bytes[place], np.arange(len(shown))
            key = np.ones(len(shown), np.bool_)
        plain = steps is None or np.array_equal(steps, np.arange(len(shown)))
        return VideoFile(
            camera=camera,
            path=self._files.path(episode),
            index=PacketIndex(
                codec=self._packets.codec,
                extradata=b"",
                height=height,
                width=width,
                frame=frame.astype(np.int32),
                offset=offset,
                size_bytes=size_bytes,
                key=key,
            ),
            shown=None if plain or steps is None else steps.astype(np.int32),
        )


class _Packets:
    """Makes packets of a topic's messages, all of one codec."""

    def __init__(self, topic: str) -> None:
        self.codec = ""
        self._topic, self._first, self._encoder = topic, b"", PngEncoder()

    @property
    def size(self) -> tuple[int, int]:
        """Returns the height and width of the first image, zeros when there was none."""
        return picture_size(self.codec, self._first, on=self._topic) if self._first else (0, 0)

    def of(self, messages: Messages, row: int) -> bytes:
        fields: Mapping[str, Any] = messages.fields
        if "encoding" in fields:
            data, codec = self._encoder.encode(_pixels(self._topic, fields, row)), "png"
        else:
            data = fields["data"][row]
            if _DEPTH in fields["format"][row]:
                data = _depth_png(self._topic, fields["format"][row], data)
            codec = _codec(self._topic, fields["format"][row], data)
        if not data or codec != (self.codec or codec):
            raise DamagedData("read a camera", on=self._topic, got=f"{len(data)} bytes of {codec}", wanted=self.codec)
        self.codec, self._first = codec, self._first or data
        return data


class _PacketFiles:
    """A file of packets for each episode, open from its first to its last."""

    def __init__(self, folder: Path, prefix: str) -> None:
        self._folder, self._prefix = folder, prefix
        self._open: dict[int, IO[bytes]] = {}
        self._closing = ExitStack()  # Closes what an error leaves open.

    def path(self, episode: int) -> Path:
        return self._folder / f"{self._prefix}-{episode:06d}.packets"

    def write(self, episode: int, data: bytes, *, last: bool) -> int:
        """Returns where in its episode's file the packet lies now."""
        file = self._open.get(episode)
        with reported("write a camera's packets", str(self._folder)):
            if file is None:
                file = self._closing.enter_context(open(self.path(episode), "wb"))  # noqa: SIM115
                self._open[episode] = file
            offset = file.tell()
            file.write(data)
            if last:
                file.close()  # A log of many episodes would hold too many files open.
                del self._open[episode]
        return offset

    def close(self) -> None:
        with reported("write a camera's packets", str(self._folder)):
            self._closing.close()


def _pixels(topic: str, fields: Mapping[str, Any], row: int) -> NDArray[Any]:
    """Returns a raw image's pixels, red first, in this machine's order of bytes."""
    height, width, step = (int(fields[name][row]) for name in ("height", "width", "step"))
    encoding, data = fields["encoding"][row], fields["data"][row]
    pixel = _PIXELS.get(encoding)
    if pixel is None:
        step_next = "record depth as 16UC1, in millimetres" if encoding in ("32FC1", "64FC1") else ""
        got, wanted = f"encoding {encoding[:40]!r}, which no lossless picture holds", f"one of {', '.join(_PIXELS)}"
        raise InvalidInput("read a camera", on=topic, got=got, wanted=wanted, next_step=step_next)
    line = width * pixel.channels * pixel.bytes_each
    if not 0 < height * width <= IMAGE_PIXELS_MAX or step < line or len(data) < height * step:
        got = f"{len(data)} bytes, {step} a line"
        raise DamagedData("read a camera", on=topic, got=got, wanted=f"{width}x{height} of {encoding}")
    image = np.frombuffer(data, np.uint8, height * step).reshape(height, step)[:, :line]
    if pixel.bytes_each == 2:
        big = bool(fields["is_bigendian"][row]) if "is_bigendian" in fields else False
        return np.ascontiguousarray(image).view(">u2" if big else "<u2").astype(np.uint16)
    if pixel.channels > 1:
        image = image.reshape(height, width, pixel.channels)
        return image[:, :, [2, 1, 0, 3][: pixel.channels]] if pixel.flip else image
    return image


def _depth_png(topic: str, said: str, data: bytes) -> bytes:
    """Returns the 16 bit PNG inside a message of depth, which begins with a header of how it was made.

    Source: github.com/ros-perception/image_transport_plugins, `compressed_depth_image_transport` of its version Jazzy.
    """
    png = data[_DEPTH_HEADER_BYTES:]
    if not said.strip().startswith("16UC1") or picture_codec(png) != "png":
        raise InvalidInput(
            "read a camera",
            on=topic,
            got=f"format {said[:60]!r}",
            wanted="16UC1; compressedDepth png: distances of 32FC1 are rounded, and RVL is not read",
            next_step="record depth as 16UC1",
        )
    return png


def _codec(topic: str, said: str, data: bytes) -> str:
    """Returns FFmpeg's name for what a compressed image is: what its bytes show, else what it says."""
    codec = picture_codec(data) or _PACKET_CODECS.get(said.strip().lower())
    if codec is None:
        raise InvalidInput(
            "read a camera",
            on=topic,
            got=f"format {said[:40]!r}, bytes {data[:4].hex()}",
            wanted=f"JPEG, PNG, {', '.join(sorted(_PACKET_CODECS))}",
        )
    return codec


def _is_key(codec: str, data: bytes) -> bool:
    """Returns whether a packet begins a group of pictures: of AV1, by a sequence header (AV1 specification 5.3: 1)."""
    return _av1_type(data) == 1 if codec == "av1" else bool(begins_group(codec, data))


def _av1_type(data: bytes) -> int:
    """Returns the type of the first unit that is no temporal delimiter."""
    place = 0
    while place < len(data):
        kind = (data[place] >> 3) & 15
        if kind != 2:
            return kind
        place += 1 + ((data[place] >> 2) & 1) + 1  # Header, extension, and a length of 0 in one byte.
    return 0
