"""Packets in memory and how they are coded, for who hands them on without decoding them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Coded:
    """Packets one after the other.

    Args:
        data: Their bytes.
        ends: [rows] where each ends, from the first one's begin.
    """

    data: memoryview
    ends: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coding:
    """How frames are encoded.

    Args:
        size: Height and width, in pixels, even.
        gop: Frames in a group.
        quality: x264's constant rate factor, or FFmpeg's JPEG quantiser.
        codec: FFmpeg's name: "h264" or "mjpeg", whose groups are single pictures.
    """

    size: int
    gop: int
    quality: int
    codec: str = "h264"

    def __post_init__(self) -> None:
        """Checks that pictures that are coded alone are in groups of one."""
        assert self.codec == "h264" or self.gop == 1
