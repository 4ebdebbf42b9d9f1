"""Reads ROS 1 bags forward, chunk by chunk; with or without an index, and up to where they are whole.

Source: wiki.ros.org/Bags/Format/2.0.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO

from mainspring.data.readers.compression import decompressed
from mainspring.data.readers.definitions import ros_type
from mainspring.data.readers.layout import LayoutDecoder
from mainspring.data.readers.messages import RECORD_BYTES_MAX, Decoder
from mainspring.data.readers.topics import Channel, Notes
from mainspring.domain.errors import DamagedData, InvalidInput

MAGIC = b"#ROSBAG V2.0\n"
_ANY_MAGIC = b"#ROSBAG V"
_HEADER_BYTES_MAX = 4 << 20  # A connection's header holds its definition; a bag header is padded to 4 KiB.
_MESSAGE, _CHUNK, _CHUNK_INFO, _CONNECTION = 2, 5, 6, 7
_WORD = struct.Struct("<I")
_TIME = struct.Struct("<II")
_SECOND_NS = 1_000_000_000


@dataclass(slots=True)
class _Found:
    """Connections, and how many messages each has."""

    connections: dict[int, Mapping[bytes, bytes]] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)

    def connection(self, header: Mapping[bytes, bytes], data: bytes) -> None:
        number = _word(header, b"conn")
        if number not in self.connections:
            self.connections[number] = {**_fields(data), b"topic": header.get(b"topic", b"")}


class BagContainer:
    """One ROS 1 bag; see `Container`.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def channels(self, notes: Notes) -> tuple[Channel, ...]:
        """See `Container.channels`."""
        with open(self._path, "rb") as file:
            found = _indexed(file)
        if found is None:
            notes.add("the bag has no whole index: read without it")
            found = self._scanned(notes)
        return tuple(
            _channel(number, header, found.counts.get(number, 0))
            for number, header in sorted(found.connections.items())
        )

    def messages(self, wanted: frozenset[int], notes: Notes) -> Iterator[tuple[int, int, bytes]]:
        """See `Container.messages`."""
        for block in self._chunks(notes):
            for header, first, end in _records(block, notes):
                if header.get(b"op") != b"\x02":
                    continue
                number = _word(header, b"conn")
                if number in wanted:
                    seconds, nanoseconds = _TIME.unpack(header.get(b"time", bytes(8))[:8].ljust(8, b"\0"))
                    yield number, seconds * _SECOND_NS + nanoseconds, block[first:end]

    def _chunks(self, notes: Notes) -> Iterator[bytes]:
        """Yields the records of each chunk."""
        with open(self._path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            magic = file.read(len(MAGIC))
            if magic != MAGIC:
                old = magic.startswith(_ANY_MAGIC)
                got = f"format {magic[9:12].decode('ascii', 'replace')}" if old else "another beginning"
                wanted = "a bag of format 2.0" + ("; `rosbag fix` makes one" if old else "")
                raise DamagedData("read a ROS 1 bag", on=self._path.name, got=got, wanted=wanted)
            at = len(MAGIC)
            while at < size:
                head = _head(file, at, size)
                if head is None:
                    notes.add(f"the bag was cut off: recovered up to byte {at:,} of {size:,}")
                    return
                header, first, length = head
                operation = header.get(b"op", b"")[:1]
                if operation == bytes([_CHUNK]):
                    block = _chunk(file, header, first, length, notes)
                    if block is not None:
                        yield block
                elif operation in (bytes([_CONNECTION]), bytes([_CHUNK_INFO])):
                    return  # The index begins, so the chunks have ended.
                at = first + length

    def _scanned(self, notes: Notes) -> _Found:
        found = _Found()
        for block in self._chunks(notes):
            for header, first, end in _records(block, notes):
                operation = header.get(b"op")
                if operation == bytes([_CONNECTION]):
                    found.connection(header, block[first:end])
                elif operation == bytes([_MESSAGE]):
                    number = _word(header, b"conn")
                    found.counts[number] = found.counts.get(number, 0) + 1
        return found


def _head(file: BinaryIO, at: int, size: int) -> tuple[Mapping[bytes, bytes], int, int] | None:
    """Returns a record's header, the place of its data, and the data's length; None when it is not whole."""
    file.seek(at)
    word = file.read(4)
    length = _WORD.unpack(word)[0] if len(word) == 4 else size
    if length > _HEADER_BYTES_MAX or at + 8 + length > size:
        return None
    header = _fields(file.read(length))
    data_length: int = _WORD.unpack(file.read(4))[0]
    first = at + 8 + length
    return (header, first, data_length) if first + data_length <= size else None


def _chunk(file: BinaryIO, header: Mapping[bytes, bytes], first: int, length: int, notes: Notes) -> bytes | None:
    """Returns a chunk's records, or notes why not; the chunks after it can be read all the same."""
    try:
        if length > RECORD_BYTES_MAX:
            raise ValueError(f"it has {length:,} bytes; at most {RECORD_BYTES_MAX:,} are read")
        name = header.get(b"compression", b"none").decode("ascii", "replace")
        return decompressed(name, file.read(length), _word(header, b"size"))
    except ValueError as error:
        notes.add(f"the chunk at byte {first:,} was left out: {str(error)[:120]}")
        return None


def _records(block: bytes, notes: Notes) -> Iterator[tuple[Mapping[bytes, bytes], int, int]]:
    """Yields each record's header and the place of its data."""
    at, size = 0, len(block)
    while at + 8 <= size:
        (length,) = _WORD.unpack_from(block, at)
        first = at + 8 + length
        end = first + _WORD.unpack_from(block, first - 4)[0] if first <= size else size + 1
        if end > size:
            notes.add("a record is longer than the chunk it is in")
            return
        yield _fields(block[at + 4 : first - 4]), first, end
        at = end


def _fields(data: bytes) -> dict[bytes, bytes]:
    """Returns the `name=value` fields of a header, as far as they hold together."""
    found: dict[bytes, bytes] = {}
    at, size = 0, len(data)
    while at + 4 <= size:
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        name, equals, value = data[at + 4 : end].partition(b"=")
        if end > size or not equals:
            break
        found[name] = value
        at = end
    return found


def _word(header: Mapping[bytes, bytes], name: bytes) -> int:
    return int.from_bytes(header.get(name, b"")[:4], "little")


def _indexed(file: BinaryIO) -> _Found | None:
    """Returns what the index at the end tells; None when there is none, or it is not whole."""
    size = file.seek(0, 2)
    head = bag = _head(file, len(MAGIC), size)
    at = int.from_bytes(head[0].get(b"index_pos", b"")[:8], "little") if head is not None else 0
    if bag is None or not 0 < at <= size:
        return None
    found = _Found()
    while at < size:
        head = _head(file, at, size)
        if head is None or head[2] > RECORD_BYTES_MAX:
            return None
        header, first, length = head
        data = file.read(length)
        operation = header.get(b"op")
        if operation == bytes([_CONNECTION]):
            found.connection(header, data)
        elif operation == bytes([_CHUNK_INFO]):
            for number, count in struct.iter_unpack("<II", data[: len(data) // 8 * 8]):
                found.counts[number] = found.counts.get(number, 0) + count
        else:
            return None
        at = first + length
    return found if len(found.connections) == _word(bag[0], b"conn_count") else None


def _channel(number: int, header: Mapping[bytes, bytes], count: int) -> Channel:
    name, text = (header.get(key, b"").decode("utf-8", "replace") for key in (b"type", b"message_definition"))
    topic = header.get(b"topic", b"").decode("utf-8", "replace")
    return Channel(
        id=number,
        topic=topic,
        type=name,
        encoding="ros1",
        definition=header.get(b"md5sum", b""),
        decoder=partial(_decoder, topic, name, text),
        count=count,
    )


def _decoder(topic: str, name: str, text: str) -> Decoder:
    if not name:
        raise InvalidInput("decode messages", on=topic, got="no type", wanted="the name and definition of one")
    return LayoutDecoder(root=ros_type(name, text or "\n", "ros1msg", "ros1"), format="ros1")
