"""Pictures for the tests of formats that hold them one by one."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from mainspring.data.episode import VideoFile
from mainspring.data.video.frames import frames_in
from mainspring.data.video.packets import index_of_video


def jpegs(count: int, height: int = 24, width: int = 32) -> list[bytes]:
    """Pictures of several lengths, as JPEG."""
    context: Any = av.CodecContext.create("mjpeg", "w")
    context.width, context.height, context.pix_fmt, context.time_base = width, height, "yuvj420p", Fraction(1, 25)
    found = []
    for number in range(count):
        image = np.random.default_rng(number).integers(0, 8 * (number + 1), (height, width, 3), dtype=np.uint8)
        frame = av.VideoFrame.from_ndarray(image, format="rgb24").reformat(format="yuvj420p")
        frame.pts = number
        found += [bytes(packet) for packet in context.encode(frame)]
    return found


def pixels_of(video: VideoFile) -> NDArray[Any]:
    """Every frame of a camera whose pictures were kept without loss."""
    index = index_of_video(video, 0)
    frames = list(frames_in(video.path, index))
    kind = frames[0].format.name
    return np.stack([frame.to_ndarray(format="gray16le" if "16" in kind else kind) for frame in frames])
