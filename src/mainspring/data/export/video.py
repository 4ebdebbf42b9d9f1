"""Videos on their way out: packets copied where a format takes them as they are, frames encoded again where not."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from mainspring.data.episode import Integers
from mainspring.data.video.frames import frames_in, frames_shown
from mainspring.data.video.packet import packet_of
from mainspring.data.video.packets import PacketIndex
from mainspring.domain.errors import DamagedData

MP4_CODECS = ("av1", "h264", "hevc", "mjpeg", "mpeg4", "vp9")  # What MP4 holds and the usual readers decode.
CODED_AGAIN = "h264"
_QUALITY = 16  # x264's constant rate factor: no difference that eyes find, at about twice the size of the default.
_GROUP = 10  # Frames from one key frame to the next of what is encoded again: random access stays cheap.
_START = b"\0\0\0\1"
_FOUR_LETTERS = {"av1": b"AV01", "vp9": b"VP90"}  # In IVF, the plainest file of packets.
_MPEG4_HEADERS = (b"\0\0\1\xb0", b"\0\0\1\0", b"\0\0\1\x20")  # A sequence, an object, a layer begins.
_EVEN_FORMATS = ("yuv420p", "yuvj420p", "nv12")
_SUBSAMPLED = {"yuv420p10le": "yuv420p10le", "yuv422p": "yuv422p", "yuvj422p": "yuv422p", "yuv444p": "yuv444p"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CodedPicture:
    """A coded picture: its bytes, the frame it shows, and whether decoding can begin at it."""

    data: bytes
    frame: int
    key: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VideoPart:
    """What one episode adds to a video.

    Args:
        path: The file its packets lie in.
        index: Where.
        shown: [T] the frame each step shows.
        again: Whether its frames are encoded again.
    """

    path: Path
    index: PacketIndex
    shown: Integers
    again: bool


def packets_in(path: Path, index: PacketIndex, *, annex_b: bool) -> Iterator[CodedPicture]:
    """Yields a track's packets in the order they are decoded.

    Args:
        path: The file they lie in.
        index: Where.
        annex_b: Whether a decoder that is told nothing else must find its headers in the packets themselves; those
            of h264 and h265 then begin with start codes instead of lengths.

    Raises:
        DamagedData: A packet does not hold together.
    """
    headers = _headers(index) if annex_b else _Headers()
    rows = zip(index.frame.tolist(), index.offset.tolist(), index.size_bytes.tolist(), index.key.tolist(), strict=True)
    with open(path, "rb") as file:
        for frame, offset, size_bytes, key in rows:
            file.seek(offset)
            data = file.read(size_bytes)
            if len(data) != size_bytes:
                raise DamagedData("read a video", on=path.name, got=f"{len(data)} bytes of a packet of {size_bytes}")
            yield CodedPicture(data=headers.given(data, key=key) if annex_b else data, frame=frame, key=key)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Headers:
    """What a decoder must know before a key frame, and how long the lengths before units are; 0 for start codes."""

    units: tuple[bytes, ...] = ()
    length_bytes: int = 0
    plain: bytes = b""
    codec: str = ""

    def given(self, data: bytes, *, key: bool) -> bytes:
        """Returns a packet as one that stands by itself."""
        if self.length_bytes:
            units = _units(data, self.length_bytes)
            first = self.units if key and units and units[0] not in self.units else ()
            return b"".join(_START + unit for unit in (*first, *units))
        return self.plain + data if key and self.plain and not self._has_own(data) else data

    def _has_own(self, data: bytes) -> bool:
        """Returns whether a packet begins with headers of its own, which may say more than those beside the packets."""
        if self.codec == "av1":
            place = 2 if data[:2] == b"\x12\0" else 0  # Behind a temporal delimiter.
            return (data[place] >> 3) & 15 == 1 if place < len(data) else False
        return self.plain in data[: len(self.plain) + 64] or (self.codec == "mpeg4" and data[:4] in _MPEG4_HEADERS)


def _headers(index: PacketIndex) -> _Headers:
    """Returns the headers of a track. Source: ISO/IEC 14496-15, 5.3.3.1 and 8.3.3.1; AV1 in ISOBMFF, 2.3.3."""
    extra, codec = index.extradata, index.codec
    if codec in ("h264", "hevc") and extra[:1] == b"\1":
        return _avc(extra) if codec == "h264" else _hevc(extra)
    if codec == "av1" and extra[:1] == b"\x81":
        return _Headers(plain=extra[4:], codec=codec)
    return _Headers(plain=extra if codec in ("h264", "hevc", "mpeg4") else b"", codec=codec)


def _avc(extra: bytes) -> _Headers:
    units: list[bytes] = []
    at, count = 6, extra[5] & 31
    for last in (False, True):
        for _ in range(count):
            size = int.from_bytes(extra[at : at + 2], "big")
            units.append(extra[at + 2 : at + 2 + size])
            at += 2 + size
        if not last:
            count, at = (extra[at] if at < len(extra) else 0), at + 1
    return _Headers(units=tuple(units), length_bytes=(extra[4] & 3) + 1)


def _hevc(extra: bytes) -> _Headers:
    units: list[bytes] = []
    at = 23
    for _ in range(extra[22] if len(extra) > 22 else 0):
        count, at = int.from_bytes(extra[at + 1 : at + 3], "big"), at + 3
        for _ in range(count):
            size = int.from_bytes(extra[at : at + 2], "big")
            units.append(extra[at + 2 : at + 2 + size])
            at += 2 + size
    return _Headers(units=tuple(units), length_bytes=(extra[21] & 3) + 1)


def _units(data: bytes, length_bytes: int) -> list[bytes]:
    units: list[bytes] = []
    at = 0
    while at + length_bytes <= len(data):
        size = int.from_bytes(data[at : at + length_bytes], "big")
        at += length_bytes
        if at + size > len(data):
            raise DamagedData("read a video", got="a unit that is longer than its packet", wanted="h264 or h265")
        units.append(data[at : at + size])
        at += size
    return units


def step_packets(part: VideoPart) -> Iterator[bytes]:
    """Yields the packet that each step shows, of a track whose packets stand by themselves.

    Args:
        part: The episode's frames.

    Raises:
        DamagedData: A packet does not hold together.
    """
    index = part.index
    place = np.zeros(index.frames, np.int64)
    place[index.frame] = np.arange(len(index.frame))
    with open(part.path, "rb") as file:
        for row in place[part.shown].tolist():
            file.seek(int(index.offset[row]))
            data = file.read(int(index.size_bytes[row]))
            if len(data) != index.size_bytes[row]:
                raise DamagedData("read a picture", on=part.path.name, got=f"{len(data)} bytes of it")
            yield data


def packets_again(frames: Iterable[Any], rate: Fraction) -> Iterator[CodedPicture]:
    """Yields frames encoded again as h264 with start codes and headers, in order, none leaning on a later one.

    Args:
        frames: PyAV's, all of one size.
        rate: Frames per second.

    Raises:
        DamagedData: A frame cannot be encoded.
    """
    context: Any = None
    number = 0
    try:
        for frame in frames:
            if context is None:
                context = _encoder(frame, rate)
            ready = frame if frame.format.name == context.pix_fmt else frame.reformat(format=context.pix_fmt)
            ready.pts, ready.time_base = number, 1 / rate
            ready.pict_type = 0  # What the source's frame was is not what this one must be.
            yield from _coded(context.encode(ready))
            number += 1
        if context is not None:
            yield from _coded(context.encode(None))
    except av.FFmpegError as error:
        raise DamagedData("encode a video", got=str(error)[:200]) from error


def _coded(packets: Iterable[Any]) -> Iterator[CodedPicture]:
    for packet in packets:
        yield CodedPicture(data=bytes(packet), frame=int(packet.pts), key=bool(packet.is_keyframe))


def _encoder(frame: Any, rate: Fraction) -> Any:
    name = frame.format.name
    even = frame.width % 2 == 0 and frame.height % 2 == 0
    context: Any = av.CodecContext.create("libx264", "w")
    context.width, context.height = frame.width, frame.height
    context.pix_fmt = _SUBSAMPLED.get(name, "yuv420p") if even else "yuv444p"
    if name in _EVEN_FORMATS and not even:
        context.pix_fmt = "yuv444p"
    context.time_base, context.framerate, context.thread_count = 1 / rate, rate, 1
    context.options = {
        "crf": str(_QUALITY),
        "x264-params": f"keyint={_GROUP}:min-keyint={_GROUP}:scenecut=0:bframes=0:annexb=1:repeat-headers=1:threads=1",
    }
    return context


def part_packets(part: VideoPart, rate: Fraction, *, annex_b: bool = True) -> Iterator[CodedPicture]:
    """Yields the packets of an episode's video: copied, or encoded again, one for each step then.

    Args:
        part: The episode's part.
        rate: Frames per second.
        annex_b: See `packets_in`.
    """
    if part.again:
        return packets_again(frames_shown(part.path, part.index, part.shown), rate)
    return packets_in(part.path, part.index, annex_b=annex_b)


def write_mp4(path: Path, parts: Iterable[VideoPart], rate: Fraction) -> int:
    """Writes episodes' videos one after the other into an MP4, each frame at its step's time.

    Args:
        path: The file.
        parts: Of one codec and size.
        rate: Frames per second.

    Returns:
        How many frames it has.

    Raises:
        DamagedData: Packets cannot be written, or are not what they should be.
    """
    begin = 0
    tick = 1 / rate
    try:
        with av.open(str(path), "w", format="mp4", options={"movflags": "+faststart"}) as container:
            stream: Any = None
            delay = 0
            for part in parts:
                if stream is None:
                    stream = _stream(container, part, tick)
                    delay = 0 if part.again else delay_of(part.index)
                for number, packet in enumerate(part_packets(part, rate)):
                    coded = packet_of(packet.data)
                    coded.stream, coded.time_base, coded.duration = stream, tick, 1
                    coded.pts, coded.dts = begin + packet.frame, begin + number - delay
                    coded.is_keyframe = packet.key
                    container.mux_one(coded)
                begin += len(part.shown)
    except av.FFmpegError as error:
        raise DamagedData("write a video", on=path.name, got=str(error)[:200]) from error
    return begin


def delay_of(index: PacketIndex) -> int:
    """Returns how many packets more than frames shown a decoder must have seen, at most.

    Args:
        index: A track's packets.
    """
    return max(0, int((np.arange(len(index.frame)) - index.frame).max(initial=0)))


def _stream(container: Any, part: VideoPart, tick: Fraction) -> Any:
    """Returns a stream for packets of a part's codec.

    What MP4 must be told of AV1 and VP9 beside their packets, FFmpeg finds out when it reads them from a file.
    """
    index = part.index
    codec = CODED_AGAIN if part.again else index.codec
    if codec not in _FOUR_LETTERS:
        return container.add_mux_stream(codec, width=index.width, height=index.height, time_base=tick)
    first = next(packets_in(part.path, index, annex_b=True)).data
    head = struct.pack("<4sHH4sHHIIII", b"DKIF", 0, 32, _FOUR_LETTERS[codec], index.width, index.height, 30, 1, 1, 0)
    with av.open(io.BytesIO(head + struct.pack("<IQ", len(first), 0) + first), format="ivf") as file:
        stream = container.add_stream_from_template(file.streams.video[0], opaque=True)
        stream.time_base = tick
        return stream


def frames_at(path: Path, index: PacketIndex, wanted: Integers) -> Iterator[Any]:
    """Yields some frames of a track, decoding no more than leads to them.

    Args:
        path: The file its packets lie in.
        index: Where.
        wanted: [N] frame numbers, each greater than the one before.
    """
    cuts = [index.cut(number, 1) for number in wanted.tolist()]
    if sum(len(cut.frame) for cut in cuts) >= len(index.frame):
        yield from frames_shown(path, index, wanted)
        return
    for cut in cuts:
        yield from frames_in(path, cut)


def rgb_of(frame: Any) -> NDArray[np.uint8]:
    """Returns a frame's pixels, [H, W, 3] RGB.

    Args:
        frame: PyAV's.
    """
    pixels: NDArray[np.uint8] = frame.to_ndarray(format="rgb24")
    return pixels


def first_frame(part: VideoPart) -> Any:
    """Returns the first frame of an episode's video, as PyAV's.

    Args:
        part: The episode's part.

    Raises:
        DamagedData: It cannot be decoded.
    """
    return next(frames_at(part.path, part.index, np.zeros(1, np.int64)))
