"""Reads frames of a video file by their integer number."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import av
import numpy as np
from av.video.reformatter import Interpolation, VideoReformatter
from numpy.typing import NDArray

from mainspring.domain.errors import DamagedData

Pixels: TypeAlias = NDArray[np.uint8]


def check_video(path: Path, *, first_frame: int, frames: int, rate_hz: float, height: int, width: int) -> None:
    """Decodes every frame of a range, so that nobody later finds one that cannot be.

    Args:
        path: The file.
        first_frame: Number of the first frame, counted from the file's start.
        frames: How many must follow without a gap.
        rate_hz: Frames per second.
        height: Pixels wanted.
        width: Pixels wanted.

    Raises:
        DamagedData: A frame is missing, cannot be decoded, or has another size.
    """
    for frame in _frames(path, first_frame=first_frame, frames=frames, rate_hz=rate_hz):
        if (frame.height, frame.width) != (height, width):
            raise DamagedData(
                "decode a video", on=path.name, got=f"{frame.width}x{frame.height}", wanted=f"{width}x{height}"
            )


def read_frames(path: Path, out: Pixels, *, first_frame: int, rate_hz: float) -> None:
    """Decodes and resizes a range of frames, each once.

    Args:
        path: The file.
        out: [T, H, W, 3] where RGB goes; T frames are read, and the aspect of the picture is not kept.
        first_frame: Number of the first frame, counted from the file's start.
        rate_hz: Frames per second.

    Raises:
        DamagedData: A frame is missing or cannot be decoded.
    """
    frames, height, width, _ = out.shape
    reformatter = VideoReformatter()  # Shared: one converter for all frames instead of one for each.
    for index, frame in enumerate(_frames(path, first_frame=first_frame, frames=frames, rate_hz=rate_hz)):
        small = reformatter.reformat(
            frame, width=width, height=height, format="rgb24", interpolation=Interpolation.AREA
        )
        out[index] = small.to_ndarray()


def _frames(path: Path, *, first_frame: int, frames: int, rate_hz: float) -> Iterator[Any]:
    """Yields exactly `frames` frames from `first_frame` on, or raises `DamagedData`."""
    wanted = first_frame
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise DamagedData("decode a video", on=path.name, got="no video stream")
            stream = container.streams.video[0]
            stream.codec_context.thread_count = 1  # Episodes are decoded side by side; threads inside would compete.
            start, base = stream.start_time or 0, stream.time_base
            assert base is not None
            if first_frame:
                container.seek(start + round(first_frame / rate_hz / base), stream=stream, backward=True)
            for frame in container.decode(stream):
                number = -1 if frame.pts is None else round((frame.pts - start) * base * rate_hz)
                if number < first_frame and number >= 0:
                    continue
                if number != wanted:
                    break
                yield frame
                wanted += 1
                if wanted == first_frame + frames:
                    return
    except (av.FFmpegError, ValueError, OSError) as error:
        raise DamagedData(
            "decode a video", on=path.name, got=f"{wanted - first_frame} of {frames} frames, then: {error}"
        ) from error
    raise DamagedData(
        "decode a video", on=path.name, got=f"{wanted - first_frame} frames in order", wanted=f"{frames} frames"
    )
