"""The ring: MCAP files of some seconds each, in a folder, of which the oldest goes whenever room is needed.

A chunk is written, and synced, each second at least: a loss of power costs that much, and what is left is a readable
file, which the next start makes whole. All of them together never take more than they may.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, final

from mcap.writer import Writer

from mainspring.domain.errors import InvalidInput
from mainspring.robots.logs.reading import Copy, Seen, is_whole, mend, messages_in, span_of

FLUSH_NS = 1_000_000_000  # What a loss of power costs at most.
CHUNK_BYTES = 256 << 10  # Larger ones compress hardly better, and are held in memory.
SEGMENTS = 16  # Of a full ring: the oldest sixteenth goes at once.
MESSAGE_BYTES_MAX = 16 << 20  # An uncompressed picture of 8 megapixels has 24 MB; nobody keeps those.
_RECORD_BYTES = 64  # What a message takes beside its bytes, with its index.


@dataclass(slots=True, kw_only=True)
class _Segment:
    """A file, and the times between which its messages lie: its name says less, for a robot's clock is set."""

    path: Path
    size_bytes: int
    span: tuple[int, int]


@final
class Ring:
    """Messages of the last while, on disk. Used by one thread.

    Args:
        folder: Its own; made when missing.
        bytes_max: What it takes at most.
        latched: Topics whose value stays until it is said again: each file begins with it.
    """

    def __init__(self, folder: Path, bytes_max: int, latched: frozenset[str] = frozenset()) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.mended = 0
        self.lost = 0  # Messages for which there was no room.
        self._folder = folder
        self._bytes_max = bytes_max
        self._segment_bytes = bytes_max // SEGMENTS
        self._segments = [
            _Segment(path=path, size_bytes=path.stat().st_size, span=span_of(path)) for path in self._left_over()
        ]
        self._latched = latched
        self._last: dict[str, Seen] = {}
        self._file: IO[bytes] | None = None
        self._copy: Copy | None = None
        self._span = (0, 0)  # Of what is being written.
        self._written = self._flushed_ns = 0

    @property
    def size_bytes(self) -> int:
        """Returns what it takes of the disk, with what is not written yet."""
        return sum(segment.size_bytes for segment in self._segments) + self._written

    def write(self, seen: Seen) -> None:
        """Adds a message.

        Raises:
            InvalidInput: It is too large.
        """
        if len(seen.data) > min(MESSAGE_BYTES_MAX, self._segment_bytes // 2):
            raise InvalidInput("record a message", on=seen.topic, got=f"{len(seen.data)} bytes", wanted="a smaller one")
        size = len(seen.data) + _RECORD_BYTES
        try:
            if self._copy is None or self._written + size > self._segment_bytes:
                self._begin(seen.time_ns)
            assert self._copy is not None
            self._copy.add(seen)
            self._span = (min(self._span[0], seen.time_ns), max(self._span[1], seen.time_ns))
            self._written += size
            if seen.topic in self._latched:
                self._last[seen.topic] = seen
            if abs(seen.time_ns - self._flushed_ns) >= FLUSH_NS:
                self.flush()
                self._flushed_ns = seen.time_ns
        except OSError:  # The disk is full, of what others wrote: the oldest file makes room.
            self.lost += 1
            self._drop_writer()
            self._remove_oldest()

    def flush(self) -> None:
        """Returns once everything outlives a loss of power."""
        if self._copy is not None and self._file is not None:
            self._copy.writer.flush()  # type: ignore[no-untyped-call]
            os.fdatasync(self._file.fileno())

    def close(self) -> None:
        """Ends the file that is being written; without room for its end, the next start makes it whole."""
        try:
            self._end()
        except OSError:
            self._drop_writer()

    def _end(self) -> None:
        if self._copy is not None and self._file is not None:
            self._copy.finish()
            self._file.flush()
            os.fdatasync(self._file.fileno())
            self._file.close()
            self._closed(Path(self._file.name))

    def between(self, begin_ns: int, end_ns: int) -> Iterator[Seen]:
        """Yields messages of a stretch of time, file by file; before them what was latched when it began."""
        try:
            self.flush()
        except OSError:  # The disk is full: what it has of the file is read.
            self._drop_writer()
        spans = [(segment.path, segment.span) for segment in self._segments]
        spans += [(Path(self._file.name), self._span)] if self._file else []
        held: dict[str, Seen] = {}
        begun = False
        for path, (first_ns, last_ns) in spans:
            if last_ns < begin_ns or first_ns > end_ns:
                continue
            for seen in messages_in(path):
                if begin_ns <= seen.time_ns <= end_ns:
                    if not begun:
                        yield from (replace(one, time_ns=begin_ns) for one in held.values())
                        begun = True
                    yield seen
                elif not begun and seen.topic in self._latched:
                    held[seen.topic] = seen

    def _begin(self, time_ns: int) -> None:
        self._end()
        while self._segments and self.size_bytes + self._segment_bytes > self._bytes_max:
            self._remove_oldest()
        newest = int(self._segments[-1].path.stem) if self._segments else 0
        path = self._folder / f"{max(time_ns, newest + 1):020d}.mcap"
        self._file = path.open("wb")
        self._copy = Copy(Writer(self._file, chunk_size=CHUNK_BYTES))
        self._written, self._flushed_ns, self._span = 0, time_ns, (time_ns, time_ns)
        for seen in self._last.values():
            self._copy.add(seen, time_ns=time_ns)
            self._written += len(seen.data) + _RECORD_BYTES

    def _drop_writer(self) -> None:
        if self._file is not None:
            path = Path(self._file.name)
            try:
                self._file.close()
            except OSError:
                self._file = None  # What it still held is lost with the room for it.
            self._closed(path)

    def _closed(self, path: Path) -> None:
        self._file = self._copy = None
        self._written = 0
        if path.exists():
            self._segments.append(_Segment(path=path, size_bytes=path.stat().st_size, span=self._span))

    def _remove_oldest(self) -> None:
        if self._segments:
            self._segments.pop(0).path.unlink(missing_ok=True)

    def _left_over(self) -> list[Path]:
        """Returns the files of before; one that was cut off is made whole where there is room for that."""
        for path in self._folder.glob("*.mending"):
            path.unlink()
        for path in sorted(self._folder.glob("*.mcap")):
            if not is_whole(path):
                with suppress(OSError):  # It is read as far as it goes.
                    self.mended += mend(path)
        return sorted(self._folder.glob("*.mcap"))
