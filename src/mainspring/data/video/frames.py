"""Decodes frames of packets: each once, in the order they are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import av
import google_crc32c
import numpy as np
from av.video.reformatter import Interpolation, VideoReformatter
from blake3 import blake3
from numpy.typing import NDArray

from mainspring.data.video.packet import packet_from
from mainspring.data.video.packets import PacketIndex
from mainspring.domain.errors import DamagedData

Pixels: TypeAlias = NDArray[np.uint8]
SCALING = Interpolation.AREA | Interpolation.ACCURATE_RND | Interpolation.BITEXACT  # The same bits on every machine.
_HASH_LETTERS = 32


def frames_in(path: Path, index: PacketIndex) -> Iterator[Any]:
    """Yields the track's frames, as PyAV's, in order; each must be there, but those that the index says are lost.

    A lost frame is what the decoder makes of it; where it makes nothing, the one before it comes again.

    Args:
        path: The file its packets lie in.
        index: Where.

    Raises:
        DamagedData: A frame is missing, cannot be decoded, or has another size.
    """
    wanted = 0
    lost = frozenset(index.lost)
    size = (index.height, index.width)
    before: Any = None
    failed: list[object] = []
    try:
        with open(path, "rb") as file:
            for frame in decoded(file, index, lambda _, error: failed.append(error)):
                number = frame.pts
                if number == wanted and not failed and (frame.height, frame.width) == size:
                    yield frame
                    before = frame if lost else None
                    wanted += 1
                    continue
                if failed and not lost:
                    break
                if number < wanted or (frame.height, frame.width) != size:
                    if number < 0 or number in lost:
                        continue
                    break
                while wanted < number and wanted in lost:
                    yield frame if before is None else before
                    wanted += 1
                if number != wanted:
                    break
                yield frame
                before = frame
                wanted += 1
            while before is not None and wanted in lost:
                yield before
                wanted += 1
    except OSError as error:
        raise DamagedData("decode a video", on=path.name, got=str(error)[:200]) from error
    if wanted != index.frames:
        reason = f", then: {str(failed[0])[:200]}" if failed else " in order"
        raise DamagedData(
            "decode a video",
            on=path.name,
            got=f"{wanted} of {index.frames} frames{reason}",
            wanted=f"{index.frames} of {index.width}x{index.height}",
        )


class PictureHash:
    """A hash of what a decoder gave, before any conversion: size, format and checksums of the planes of each frame.

    Nobody forges pictures against it, so a checksum of each plane will do: hashing all their bytes took 6 % of a build.
    """

    def __init__(self) -> None:
        self._hasher = blake3()

    def add(self, frame: Any) -> None:
        """Adds a frame, PyAV's."""
        sums = " ".join(f"{plane_sum(frame, number):08x}" for number in range(len(frame.planes)))
        self._hasher.update(f"{frame.format.name} {frame.width}x{frame.height} {sums}\n".encode())

    @property
    def text(self) -> str:
        """Returns the hash of the frames so far."""
        return self._hasher.hexdigest()[:_HASH_LETTERS]


def hash_of_frames(path: Path, index: PacketIndex) -> str:
    """Returns the hash of a track's frames as they are decoded now.

    Args:
        path: The file its packets lie in.
        index: Where.

    Raises:
        DamagedData: See `frames_in`.
    """
    pictures = PictureHash()
    for frame in frames_in(path, index):
        pictures.add(frame)
    return pictures.text


def frames_shown(
    path: Path, index: PacketIndex, shown: NDArray[np.int64], *, pictures: PictureHash | None = None
) -> Iterator[Any]:
    """Yields a frame, as PyAV's, for each of some numbers; each frame of the track is decoded once.

    Args:
        path: The file its packets lie in.
        index: Where.
        shown: [R] frame numbers that never fall: a frame may come again, or not at all.
        pictures: Is given every frame of the track once, whether it is shown or not.

    Raises:
        DamagedData: A frame is missing, cannot be decoded, or has another size.
    """
    if len(shown) and (shown[0] < 0 or shown[-1] >= index.frames or (np.diff(shown) < 0).any()):
        raise DamagedData(
            "read a video",
            on=path.name,
            got=f"frames {shown[0]} to {shown[-1]}",
            wanted=f"rising ones of {index.frames}",
        )
    times = np.bincount(shown, minlength=index.frames).tolist()
    for frame, count in zip(frames_in(path, index), times, strict=True):
        if pictures is not None:
            pictures.add(frame)
        yield from repeat(frame, count)


def read_frames(frames: Iterable[Any], out: Pixels) -> None:
    """Resizes frames to RGB.

    Args:
        frames: PyAV's, as many as `out` is long.
        out: [T, H, W, 3]; the aspect of the picture is not kept.
    """
    _, height, width, _ = out.shape
    reformatter = VideoReformatter()  # Shared: one converter for all frames instead of one for each.
    for place, frame in zip(out, frames, strict=True):
        small = reformatter.reformat(
            frame, width=width, height=height, format="rgb24", interpolation=SCALING, threads=1
        )
        place[:] = small.to_ndarray()


def plane_sum(frame: Any, number: int) -> int:
    """Returns the CRC-32C of what is shown of one of a frame's planes.

    Args:
        frame: PyAV's.
        number: Of the plane.
    """
    return int(google_crc32c.extend(0, plane_lines(frame, number)))


def plane_lines(frame: Any, number: int) -> Pixels:
    """Returns what is shown of one of a frame's planes, in one piece; behind its lines may lie anything.

    Args:
        frame: PyAV's.
        number: Of the plane.
    """
    plane = frame.planes[number]
    if plane.line_size < 0:  # Stored from below; PyAV's buffer would begin at its end.
        plane = frame.reformat(format="yuv444p").planes[number]
        size_bytes = int(plane.width)
    else:
        size_bytes = _line_bytes(frame.format.name, frame.width)[number]
    if plane.line_size == size_bytes:
        return np.frombuffer(plane, np.uint8)
    lines = np.ndarray((plane.height, size_bytes), np.uint8, plane, 0, (plane.line_size, 1))
    return np.ascontiguousarray(lines).reshape(-1)


@cache
def _line_bytes(format_name: str, width: int) -> tuple[int, ...]:
    """Returns how many bytes of each plane's lines are shown."""
    kind: Any = av.VideoFormat(format_name, width, 2)
    planes: dict[int, int] = {}
    for component in kind.components:
        planes[component.plane] = planes.get(component.plane, 0) + component.width * -(-component.bits // 8)
    if len(planes) == 1:
        return (-(-width * int(kind.padded_bits_per_pixel) // 8),)
    return tuple(planes[number] for number in sorted(planes))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decoding:
    """What came of a packet: frames, PyAV's, and an error that the decoder told but did not raise; "" without one."""

    frames: list[Any]
    error: str = ""


def decoded(
    file: BinaryIO,
    index: PacketIndex,
    failed: Callable[[int, object], None],
    *,
    decode: Callable[[Any, Any], Decoding] | None = None,
    **options: str,
) -> Iterator[Any]:
    """Yields what a decoder makes of a track, in the order it shows frames; a frame's `pts` is its number.

    Args:
        file: Holds its packets.
        index: Where they lie.
        failed: Told which packet could not be decoded, and why; decoding goes on behind it.
        decode: Called with the decoder and each packet, and None at the end, instead of the decoder itself.
        options: The decoder's, of FFmpeg.
    """
    context = index.decoder(**options)
    shown = index.frame.tolist()
    places = [*zip(index.offset.tolist(), index.size_bytes.tolist(), strict=True), None]
    for at, place in enumerate(places):
        if index.codec == "png" and at and place:  # FFmpeg's adds the last line of one picture to the next's first.
            context = index.decoder(**options)
        try:
            packet = None if place is None else packet_from(file, *place)
            if packet is not None:
                packet.pts = packet.dts = shown[at]
            if decode is None:
                frames, error_told = context.decode(packet), ""
            else:
                found = decode(context, packet)
                frames, error_told = found.frames, found.error
        except (av.FFmpegError, ValueError) as error:
            failed(min(at, len(shown) - 1), error)
            continue
        if error_told:
            failed(min(at, len(shown) - 1), error_told)
        yield from frames
