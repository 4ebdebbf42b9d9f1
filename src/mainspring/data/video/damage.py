"""Decodes a track as strictly as FFmpeg can, and says which of its frames are damaged.

A packet is damaged when the decoder refuses it, says anything of an error about it, marks its frame as corrupt or gives
none for it, or one of another size. With it are damaged the frames that may depend on it: those up to the next group,
and those of the next group that are shown before its key frame.

A track that begins inside a stream of open groups refers to pictures before its begin: what its first group makes
decoders say is no damage. Most flipped bits of arithmetic coding go unnoticed here as anywhere: they decode to other
pictures.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any

import av
import av.logging
import numpy as np

from mainspring.data.video.frames import Decoding, decoded
from mainspring.data.video.keys import begins_closed, unit_length_bytes
from mainspring.data.video.packets import PacketIndex
from mainspring.domain.errors import DamagedData

_STRICT = "crccheck+bitstream+buffer+explode"  # Not "careful" and beyond: they refuse what odd encoders write.
_RANGES_NAMED = 4


class StrictDecoding:
    """One pass over a track.

    Args:
        path: The file its packets lie in.
        index: Where.
    """

    def __init__(self, path: Path, index: PacketIndex) -> None:
        self._path, self._index = path, index
        self._bad = np.zeros(len(index.frame), np.bool_)
        self._came = np.zeros(index.frames, np.bool_)
        self._packet_of = np.empty(index.frames, np.int64)
        wanted = np.flatnonzero(index.frame >= 0)
        self._packet_of[index.frame[wanted]] = wanted
        self._reason = ""

    def frames(self) -> Iterator[Any]:
        """Yields every frame that the decoder gives, as PyAV's; its `pts` is its number.

        Raises:
            DamagedData: The file cannot be read.
        """
        index = self._index
        try:
            with open(self._path, "rb") as file, _LISTENING:
                for frame in decoded(file, index, self._failed, decode=_heard, err_detect=_STRICT):
                    if frame.pts < 0:
                        continue
                    if (frame.height, frame.width) != (index.height, index.width):
                        self._failed(
                            int(self._packet_of[frame.pts]),
                            f"a frame of {frame.width}x{frame.height}, not {index.width}x{index.height}",
                        )
                    elif frame.is_corrupt:
                        self._failed(int(self._packet_of[frame.pts]), "marked as corrupt by the decoder")
                    elif self._came[frame.pts]:
                        self._failed(int(self._packet_of[frame.pts]), "two frames of one packet")
                    self._came[frame.pts] = True
                    yield frame
        except OSError as error:
            raise DamagedData("decode a video", on=self._path.name, got=str(error)[:200]) from error

    @property
    def damaged(self) -> tuple[int, ...]:
        """Returns the numbers of the frames that are damaged, rising; known when `frames` has ended."""
        bad = self._bad.copy()
        bad[: self._excused()] = False
        bad[self._packet_of[~self._came]] = True
        index = self._index
        starts = [*np.flatnonzero(index.key).tolist(), len(bad)]
        spoilt = np.zeros(len(bad), np.bool_)
        for begin, end in pairwise(starts):
            (places,) = np.nonzero(bad[begin:end])
            if len(places) == 0:
                continue
            spoilt[begin + places[0] : end] = True
            after = slice(end, next((start for start in starts if start > end), end))
            spoilt[after] |= (index.frame[after] >= 0) & (index.frame[after] < index.frame[end : end + 1])
        return tuple(np.sort(index.frame[spoilt & (index.frame >= 0)]).tolist())

    @property
    def what(self) -> str:
        """Returns which frames are damaged and why, in words."""
        numbers = np.array(self.damaged)
        runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
        words = [f"{run[0]} to {run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs[:_RANGES_NAMED]]
        more = f" and {len(runs) - _RANGES_NAMED} more runs" if len(runs) > _RANGES_NAMED else ""
        return f"frames {', '.join(words)}{more}: {self._reason or 'not in its packets'}"

    def _failed(self, packet: int, reason: object) -> None:
        self._bad[packet] = True
        self._reason = self._reason or str(reason)[:120]

    def _excused(self) -> int:
        """Returns how many of the first packets may refer to what lies before the track."""
        if begins_alone(self._path, self._index):
            return 0
        later = np.flatnonzero(self._index.key[1:])
        return int(later[0]) + 1 if len(later) else len(self._index.key)


def begins_alone(path: Path, index: PacketIndex) -> bool:
    """Returns whether nothing in a track can refer to what lies before its first packet.

    Args:
        path: The file its packets lie in.
        index: Where.

    Raises:
        DamagedData: The file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            file.seek(int(index.offset[0]))
            first = file.read(int(index.size_bytes[0]))
    except OSError as error:
        raise DamagedData("decode a video", on=path.name, got=str(error)[:200]) from error
    return begins_closed(index.codec, first, length_bytes=unit_length_bytes(index.codec, index.extradata))


def _heard(context: Any, packet: Any) -> Decoding:
    """Decodes a packet, and returns too what the decoder said of it: some errors it only tells."""
    with av.logging.Capture() as said:
        frames = context.decode(packet)
    errors = [message for level, _, message in said if level <= av.logging.ERROR]
    return Decoding(frames=frames, error=errors[0].strip() if errors else "")


class _Listening:
    """While somebody is inside, errors of FFmpeg reach `_heard`, unless somebody else listens already; for threads.

    What other threads decode meanwhile stays unsaid as it was.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside = 0
        self._ours = False

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1 and av.logging.get_level() is None:
                self._ours = True
                logging.getLogger("libav").setLevel(logging.CRITICAL + 1)
                av.logging.set_skip_repeated(False)
                av.logging.set_level(av.logging.ERROR)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._ours:
                self._ours = False
                av.logging.set_level(None)
                logging.getLogger("libav").setLevel(logging.NOTSET)


_LISTENING = _Listening()
