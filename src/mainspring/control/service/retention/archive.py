"""The archive: files of the object store, each with the whole lives of many jobs, of which one is read by itself.

A file is JSON Lines, a job a line, each compressed by itself (frames of Zstandard, RFC 8878, which together are one
stream): `zstd -dc` reads all of it, and a range of bytes is one job. Files are numbered, and written once.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import final

import zstandard

from mainspring.domain.answers import JobHistory
from mainspring.domain.codec import MESSAGE_BYTES_MAX, decode, encode
from mainspring.domain.errors import Conflict, DamagedData, NotFound
from mainspring.objects import ObjectStore

_TRIES_MAX = 1_000  # Numbers that others took: of a store that went back, as many as were written since.
_READS_AT_ONCE = 16  # Of an object store that answers in 30 ms: 500 a second.


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Where one job lies in a file of the archive."""

    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a job is in the archive."""

    number: int
    frame: Frame


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveFile:
    """A file that was written.

    Args:
        frames: Of its jobs, in their order.
    """

    number: int
    size_bytes: int
    frames: tuple[Frame, ...]


@final
class Archive:
    """Whole lives of jobs, in an object store."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    def write(self, lives: Sequence[JobHistory], *, number: int) -> ArchiveFile:
        """Writes jobs into a file of their own.

        Args:
            number: Which it is to have; where there is a file of that number already, a later one.

        Raises:
            MainspringError: As `ObjectStore.put_if_absent` does.
        """
        compressor = zstandard.ZstdCompressor(write_content_size=True)
        parts = [compressor.compress(_line(life)) for life in lives]
        frames, offset = list[Frame](), 0
        for part in parts:
            frames.append(Frame(offset=offset, size_bytes=len(part)))
            offset += len(part)
        data = b"".join(parts)
        for taken in range(number, number + _TRIES_MAX):
            if self._objects.put_if_absent(_key(taken), data):
                return ArchiveFile(number=taken, size_bytes=offset, frames=tuple(frames))
        raise Conflict(
            "archive jobs", got=f"files {number} to {taken}, which are there", wanted="a number that is free"
        )

    def read_each(self, places: Sequence[Place]) -> tuple[JobHistory, ...]:
        """Returns the lives of several jobs, in their order, without those that are gone or damaged.

        Raises:
            MainspringError: As `ObjectStore.get_range` does of any other reason.
        """

        def read(place: Place) -> JobHistory | None:
            try:
                return self.read(place.number, place.frame)
            except (NotFound, DamagedData):
                return None

        with ThreadPoolExecutor(_READS_AT_ONCE, "archive") as pool:
            return tuple(life for life in pool.map(read, places) if life is not None)

    def read(self, number: int, frame: Frame) -> JobHistory:
        """Returns one job's life.

        Raises:
            NotFound: There is no such file.
            DamagedData: What lies there is no such thing.
            MainspringError: As `ObjectStore.get_range` does.
        """
        data = self._objects.get_range(_key(number), offset=frame.offset, size_bytes=frame.size_bytes)
        try:
            line = zstandard.ZstdDecompressor().decompress(data, max_output_size=MESSAGE_BYTES_MAX)
        except zstandard.ZstdError as error:
            raise DamagedData("read the archive", on=_key(number), got=f"no frame at {frame.offset}") from error
        return decode(JobHistory, line)


def _line(life: JobHistory) -> bytes:
    """Returns a life as it is kept: of one that no message could hold, without ranks, and without its oldest events."""
    line = encode(life) + b"\n"
    if len(line) > MESSAGE_BYTES_MAX:
        plain = tuple(replace(attempt, ranks=()) for attempt in life.job.attempts)
        life = replace(life, job=replace(life.job, attempts=plain))
        line = encode(life) + b"\n"
    while len(line) > MESSAGE_BYTES_MAX and life.events:
        life = replace(life, events=life.events[len(life.events) // 2 + 1 :])
        line = encode(life) + b"\n"
    return line


def _key(number: int) -> str:
    return f"history/{number:012}.jsonl.zst"
