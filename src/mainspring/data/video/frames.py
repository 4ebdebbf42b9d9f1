"""Decodes frames of packets: each once, in the order they are shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import repeat
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import av
import numpy as np
from av.video.reformatter import Interpolation, VideoReformatter
from numpy.typing import NDArray

from mainspring.data.video.packets import PacketIndex
from mainspring.domain.errors import DamagedData

Pixels: TypeAlias = NDArray[np.uint8]
SCALING = Interpolation.AREA | Interpolation.ACCURATE_RND | Interpolation.BITEXACT  # The same bits on every machine.
IMAGE_PIXELS_MAX = 1 << 26  # 8,192 x 8,192; a header that lies must not take the memory.
_DECODERS: Mapping[str, str] = MappingProxyType({"av1": "libdav1d"})  # FFmpeg's own wants hardware.


def frames_in(path: Path, index: PacketIndex) -> Iterator[Any]:
    """Yields the track's frames, as PyAV's, in order; each must be there.

    Args:
        path: The file its packets lie in.
        index: Where.

    Raises:
        DamagedData: A frame is missing, cannot be decoded, or has another size.
    """
    wanted = 0
    try:
        with open(path, "rb") as file:
            for number, frame in _decoded(file, index):
                if number < 0:
                    continue
                if number != wanted or (frame.height, frame.width) != (index.height, index.width):
                    break
                yield frame
                wanted += 1
    except (av.FFmpegError, ValueError, OSError) as error:
        raise DamagedData(
            "decode a video", on=path.name, got=f"{wanted} of {index.frames} frames, then: {str(error)[:200]}"
        ) from error
    if wanted != index.frames:
        raise DamagedData(
            "decode a video",
            on=path.name,
            got=f"{wanted} frames in order",
            wanted=f"{index.frames} of {index.width}x{index.height}",
        )


def frames_shown(path: Path, index: PacketIndex, shown: NDArray[np.int64]) -> Iterator[Any]:
    """Yields a frame, as PyAV's, for each of some numbers; each frame of the track is decoded once.

    Args:
        path: The file its packets lie in.
        index: Where.
        shown: [R] frame numbers that never fall: a frame may come again, or not at all.

    Raises:
        DamagedData: A frame is missing, cannot be decoded, or has another size.
    """
    if len(shown) and (shown[0] < 0 or shown[-1] >= index.frames or (np.diff(shown) < 0).any()):
        got = f"frames {shown[0]} to {shown[-1]}"
        raise DamagedData("read a video", on=path.name, got=got, wanted=f"rising ones of {index.frames}")
    times = np.bincount(shown, minlength=index.frames).tolist()
    for frame, count in zip(frames_in(path, index), times, strict=True):
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


def _decoded(file: Any, index: PacketIndex) -> Iterator[tuple[int, Any]]:
    """Yields (number, frame) in the order they are shown; a decoder hands a packet's time on to its frame."""
    context = _context(index)
    shown = index.frame.tolist()
    for at, (offset, size_bytes) in enumerate(zip(index.offset.tolist(), index.size_bytes.tolist(), strict=True)):
        file.seek(offset)
        packet = av.Packet(file.read(size_bytes))
        packet.pts = packet.dts = shown[at]
        if index.codec == "png":  # FFmpeg's decoder adds the last line of one picture to the first of the next.
            context = _context(index)
        for frame in context.decode(packet):
            yield frame.pts, frame
    for frame in context.decode(None):
        yield frame.pts, frame


def _context(index: PacketIndex) -> Any:
    context: Any = av.CodecContext.create(_DECODERS.get(index.codec, index.codec), "r")
    context.thread_count = 1  # Episodes are decoded side by side; threads inside would compete.
    context.extradata = index.extradata or None
    context.options = {"max_pixels": str(IMAGE_PIXELS_MAX)}
    return context
