"""Reading MCAP files that a robot wrote, whole or cut off anywhere: every chunk that is whole, and not a byte more."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import zstandard
from mcap.exceptions import McapError
from mcap.reader import SeekingReader
from mcap.records import Channel, Message, Schema
from mcap.stream_reader import StreamReader
from mcap.writer import MCAP0_MAGIC, Writer

ALL_TIMES = (0, 1 << 64)
RECORD_BYTES_MAX = 64 << 20  # Of one chunk, held in memory: the largest message, four times.
_BROKEN = (McapError, zstandard.ZstdError, struct.error, ValueError, LookupError, EOFError, OverflowError, MemoryError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A message of a file, with what its channel is."""

    topic: str
    encoding: str
    schema: tuple[str, str, bytes]
    names: str
    time_ns: int
    data: bytes


def messages_in(path: Path) -> Iterator[Seen]:
    """Yields a file's messages in its order, up to its end or to where it is damaged or cut off."""
    schemas: dict[int, Schema] = {}
    channels: dict[int, Channel] = {}
    try:
        with path.open("rb") as file:
            reader = StreamReader(file, validate_crcs=True, record_size_limit=RECORD_BYTES_MAX)
            for record in reader.records:
                if isinstance(record, Schema):
                    schemas[record.id] = record
                elif isinstance(record, Channel):
                    channels[record.id] = record
                elif isinstance(record, Message):
                    channel = channels[record.channel_id]
                    schema = schemas.get(channel.schema_id)
                    yield Seen(
                        topic=channel.topic,
                        encoding=channel.message_encoding,
                        schema=(schema.name, schema.encoding, schema.data) if schema else ("", "", b""),
                        names=channel.metadata.get("names", ""),
                        time_ns=record.log_time,
                        data=record.data,
                    )
    except _BROKEN:
        return


def is_whole(path: Path) -> bool:
    """Returns whether a file was closed: it ends as MCAP files do."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - len(MCAP0_MAGIC)))
        return size > 2 * len(MCAP0_MAGIC) and file.read() == MCAP0_MAGIC


def span_of(path: Path) -> tuple[int, int]:
    """Returns the times between which a file's messages lie, by its index; all times where it has none."""
    try:
        with path.open("rb") as file:
            summary = SeekingReader(file, record_size_limit=RECORD_BYTES_MAX).get_summary()
    except (OSError, *_BROKEN):
        summary = None
    if summary is None or summary.statistics is None:
        return ALL_TIMES
    return summary.statistics.message_start_time, summary.statistics.message_end_time


def mend(path: Path) -> int:
    """Makes a file whole that was cut off, of what can be read of it, and returns how many messages that is.

    One of which nothing can be read is removed. May be repeated, and broken off.

    Raises:
        OSError: The disk has no room for it; the file is as it was.
    """
    mended = path.with_suffix(".mending")
    try:
        with mended.open("wb") as file:
            copy = Copy(Writer(file))
            for seen in messages_in(path):
                copy.add(seen)
            copy.finish()
            file.flush()
            os.fsync(file.fileno())
        if copy.count:
            mended.replace(path)
        else:
            path.unlink()
    finally:
        mended.unlink(missing_ok=True)
    return copy.count


class Copy:
    """Writes messages of files into another one, of which it makes the channels anew."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.count = 0
        self._channels: dict[tuple[object, ...], int] = {}
        self._schemas: dict[tuple[str, str, bytes], int] = {}
        writer.start(profile="", library="mainspring")

    def add(self, seen: Seen, *, time_ns: int | None = None) -> None:
        """Adds a message, at its own time or at another."""
        key = (seen.topic, seen.encoding, seen.schema, seen.names)
        if key not in self._channels:
            if seen.schema not in self._schemas and seen.schema[0]:
                self._schemas[seen.schema] = self.writer.register_schema(*seen.schema)
            self._channels[key] = self.writer.register_channel(
                seen.topic,
                seen.encoding,
                self._schemas.get(seen.schema, 0),
                {"names": seen.names} if seen.names else {},
            )
        at_ns = seen.time_ns if time_ns is None else time_ns
        self.writer.add_message(self._channels[key], at_ns, seen.data, at_ns, self.count)
        self.count += 1

    def finish(self) -> None:
        """Writes the file's index."""
        self.writer.finish()  # type: ignore[no-untyped-call]
