"""Decodes groups of h264, or single JPEGs, into arrays: one decoder for good, nothing copied that need not be."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mainspring.data.video.coded import Coded
from mainspring.domain.errors import DamagedData

Pixels: TypeAlias = NDArray[np.uint8]
Name: TypeAlias = Callable[[int], str]
_JPEG = b"\xff\xd8\xff"


class GopDecoder:
    """Decodes groups of frames of one size, each into arrays of the caller's; for one thread.

    PyAV is loaded with the first of them: who reads batches that others decode never needs it.
    """

    def __init__(self) -> None:
        self._av: Any = import_module("av")
        self._packets: Any = import_module("mainspring.data.video.packet")
        self._reformatter = self._av.video.reformatter.VideoReformatter()  # One converter, not one for each frame.
        self._contexts: dict[str, Any] = {}

    def decode(self, coded: Coded, out: Iterable[Pixels | None], *, on: str | Name) -> None:
        """Decodes the first frames of a group.

        Args:
            coded: Packets of h264 or JPEG, as their first bytes show, the first a key frame. They may hold several
                groups.
            out: Where each frame goes, as far as it is long: [H*3/2, W] for the planes of YUV 4:2:0 one below the other
                (Y; then U and V, each of half the width, two of their rows in one), or [H, W, 3] for RGB; None for a
                frame that is only decoded on the way. Each in one piece; an array [rows, ...] is such a sequence.
            on: What is decoded, for messages; or a function that says so of a frame, by its number.

        Raises:
            DamagedData: A frame cannot be decoded, or has another size.
        """
        at = begin = 0
        codec = "mjpeg" if bytes(coded.data[: len(_JPEG)]) == _JPEG else "h264"
        context = self._contexts.get(codec) or self._fresh(codec)
        packet_of, data = self._packets.packet_of, coded.data
        try:
            for end, place in zip(coded.ends.tolist(), out, strict=False):
                frames = context.decode(packet_of(data[begin:end]))
                if len(frames) != 1 or frames[0].is_corrupt:
                    raise ValueError(f"{len(frames)} frames of a packet")
                if place is not None:
                    self._copy(frames[0], place)
                at, begin = at + 1, end
        except (self._av.FFmpegError, ValueError) as error:
            del self._contexts[codec]
            raise DamagedData(
                "decode a frame",
                on=f"{on}, frame {at} after it" if isinstance(on, str) else on(at),
                got=str(error)[:200],
            ) from error

    def _copy(self, frame: Any, out: Pixels) -> None:
        assert out.flags.c_contiguous, "a reshaped copy of anything else would take the pixels"
        lines = len(out) if out.ndim == 3 else len(out) * 2 // 3
        if (frame.height, frame.width) != (lines, out.shape[1]):
            raise ValueError(f"a frame of {frame.width}x{frame.height} for a place of {out.shape[1]}x{lines}")
        if out.ndim == 3:
            (rgb,) = self._reformatter.reformat(frame, format="rgb24", threads=1).planes
            _copy_lines(rgb, out, 0, lines, 3 * out.shape[1])
            return
        half, width = lines // 2, out.shape[1] // 2
        luma, first, second = frame.planes
        _copy_lines(luma, out, 0, lines, 2 * width)
        _copy_lines(first, out, 4 * half * width, half, width)
        _copy_lines(second, out, 5 * half * width, half, width)

    def _fresh(self, codec: str) -> Any:
        context = self._contexts[codec] = self._packets.decoder_of(codec)
        context.flags |= self._av.codec.context.Flags.low_delay  # Nothing is reordered: each packet yields its frame.
        return context


def _copy_lines(plane: Any, out: Pixels, at: int, lines: int, size_bytes: int) -> None:
    """Copies a plane's lines, which may be longer than what is shown of them, to a place in `out`, in bytes.

    Each line is one item of NumPy's: it copies them in half the time that it takes for their bytes.
    """
    line = _line(size_bytes)
    np.ndarray((lines,), line, out, at)[:] = np.ndarray((lines,), line, plane, 0, (plane.line_size,))


@cache
def _line(size_bytes: int) -> np.dtype[np.void]:
    return np.dtype((np.void, size_bytes))
