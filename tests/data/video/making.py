"""Frames that say which they are, in pixels that survive any codec."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from mainspring.data.video.frames import plane_lines

ROBOTS = Path(__file__).parents[4] / "shared" / "robots"
BITS = 16
_SIDE = 4  # Four by four squares of black or white.


def stamped(number: int, *, height: int, width: int) -> NDArray[np.uint8]:
    """Returns an RGB image that shows a number."""
    bits = np.array([(number >> bit) & 1 for bit in range(BITS)], np.uint8).reshape(_SIDE, _SIDE) * 200 + 25
    image = np.repeat(np.repeat(bits, height // _SIDE, axis=0), width // _SIDE, axis=1)
    return np.repeat(image[:, :, None], 3, axis=2)


def number_of(image: NDArray[np.uint8]) -> int:
    """Returns the number that an image shows, RGB or the Y plane alone, of any size."""
    gray = image if image.ndim == 2 else image.mean(axis=2)
    height, width = gray.shape
    squares = gray.reshape(_SIDE, height // _SIDE, _SIDE, width // _SIDE).mean(axis=(1, 3))
    return int(sum(1 << bit for bit, white in enumerate((squares > 128).reshape(-1)) if white))


def frames_of(images: Iterable[NDArray[np.uint8]]) -> list[Any]:
    """Returns images as PyAV's frames."""
    return [av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24") for image in images]


def write_movie(path: Path, images: list[NDArray[np.uint8]], *, reordered: bool = True) -> Path:
    """Writes an h264 video, with frames whose packets come in another order than they are shown."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=20)
        stream.height, stream.width, _ = images[0].shape
        stream.pix_fmt = "yuv420p"
        ahead = "mbtree=0:rc-lookahead=0"  # Looking ahead gives other bytes now and then.
        params = f"keyint=12:bframes={3 if reordered else 0}:b-adapt=0:scenecut=0:{ahead}"
        stream.options = {"crf": "12", "x264-params": params}
        for number, frame in enumerate(frames_of(images)):
            frame.pts, frame.time_base = number, Fraction(1, 20)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def scene(count: int, *, size: int, seed: int = 0) -> list[NDArray[np.uint8]]:
    """Returns smooth colour images of slow motion, as a camera sees them."""
    dice = np.random.default_rng(seed)
    y, x = np.mgrid[0:size, 0:size] / size
    across, down, tint = dice.uniform([1, 1, 0.1], [3, 3, 0.3])
    images = []
    for number in range(count):
        gray = 128 + 90 * np.sin(6.28 * (across * x + down * y) + number / 15)
        red, blue = gray * (1 - tint * x), gray * (1 - tint * y)
        images.append(np.stack([red, gray, blue], axis=2).clip(0, 255).astype(np.uint8))
    return images


def planes_of(frame: Any) -> str:
    """Returns a hash of what a decoder gave, plane by plane, before any conversion."""
    return blake3(plane_bytes(frame)).hexdigest()


def plane_bytes(frame: Any) -> bytes:
    """Returns the visible bytes of a frame's planes, as `ffmpeg -f rawvideo` writes them."""
    return b"".join(bytes(plane_lines(frame, number)) for number in range(len(frame.planes)))
