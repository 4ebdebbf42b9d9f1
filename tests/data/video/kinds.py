"""Small videos of every kind that robots' cameras come in, of pictures that move and are full of noise."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

HEIGHT, WIDTH, FRAMES = 48, 64, 24
_MARGIN = 24  # Pixels that the picture moves.
needs_ffmpeg = pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="no ffmpeg: apt-get install ffmpeg")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How a video is encoded, and in which containers it lies around."""

    encoder: str
    pixels: str = "yuv420p"
    options: Mapping[str, str] = field(default_factory=dict)
    containers: tuple[str, ...] = ("mp4", "mkv", "avi")


def _x264(parameters: str) -> Mapping[str, str]:
    return MappingProxyType({"x264-params": f"keyint=8:b-adapt=0:scenecut=0:{parameters}", "preset": "veryfast"})


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "mpeg4": Kind(encoder="mpeg4", options=MappingProxyType({"g": "8", "b": "900k"})),
        "mpeg4 with B-frames": Kind(encoder="mpeg4", options=MappingProxyType({"g": "9", "bf": "2", "b": "900k"})),
        "mjpeg": Kind(encoder="mjpeg", pixels="yuvj422p"),
        "h264": Kind(encoder="libx264", options=_x264("bframes=3")),
        "h264 of open groups": Kind(encoder="libx264", options=_x264("bframes=3:open-gop=1")),
        "h264 of 10 bit": Kind(encoder="libx264", pixels="yuv420p10le", options=_x264("bframes=2")),
        "h264 of full colour": Kind(encoder="libx264", pixels="yuv444p", options=_x264("bframes=2")),
        "h264 of full range": Kind(encoder="libx264", pixels="yuvj420p", options=_x264("bframes=0")),
        "h264 refreshed bit by bit": Kind(encoder="libx264", options=_x264("bframes=0:intra-refresh=1")),
        "hevc": Kind(
            encoder="libx265",
            options=MappingProxyType({"preset": "ultrafast", "x265-params": "keyint=8:bframes=3:log-level=none"}),
            containers=("mp4", "mkv"),
        ),
        "vp9": Kind(
            encoder="libvpx-vp9",
            options=MappingProxyType({"g": "8", "lag-in-frames": "8", "auto-alt-ref": "1", "cpu-used": "8"}),
        ),
        "av1": Kind(encoder="libsvtav1", options=MappingProxyType({"g": "8", "preset": "12"})),
    }
)
FILES = [(name, container) for name, kind in KINDS.items() for container in kind.containers]


@cache
def pictures(count: int = FRAMES) -> tuple[NDArray[np.uint8], ...]:
    """Returns RGB pictures."""
    dice = np.random.default_rng(7)
    wide = dice.integers(0, 256, (HEIGHT + 2 * _MARGIN, WIDTH + 2 * _MARGIN, 3)).astype(np.float64)
    wide = np.mean([np.roll(wide, (down, right), (0, 1)) for down in range(3) for right in range(3)], axis=0)
    made = []
    for number in range(count):
        down, right = (2 * number) % _MARGIN, (3 * number) % _MARGIN
        seen = (wide[down : down + HEIGHT, right : right + WIDTH] - 128) * 2.5 + 128
        made.append((seen + dice.normal(0, 5, seen.shape)).clip(0, 255).astype(np.uint8))
    return tuple(made)


def packets_of(kind: Kind, stream: Any) -> Iterator[Any]:
    """Yields the pictures' packets, as a stream or an encoder gives them."""
    for number, picture in enumerate(pictures()):
        frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format=kind.pixels)
        frame.pts, frame.time_base = number, Fraction(1, 20)
        yield from stream.encode(frame)
    yield from stream.encode(None)


def written(kind: Kind, path: Path, container_options: Mapping[str, str] = MappingProxyType({})) -> Path:
    """Writes the pictures as a video."""
    with av.open(str(path), "w", options=dict(container_options)) as container:
        stream: Any = container.add_stream(kind.encoder, rate=20, options=dict(kind.options))
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, kind.pixels
        for packet in packets_of(kind, stream):
            container.mux(packet)
    return path


def as_ffmpeg_decodes(path: Path, *words: str) -> bytes:
    """Returns all frames' planes, as the `ffmpeg` command decodes them, in the stream's own format."""
    command = ["ffmpeg", "-v", "error", "-i", str(path), *words, "-fps_mode", "passthrough", "-f", "rawvideo", "-"]
    return subprocess.run(command, capture_output=True, check=True).stdout
