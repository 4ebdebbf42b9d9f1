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
from mainspring.data.readers.definitions import ros1_digest, ros_type
from mainspring.data.readers.gone import Notes, Stretch
from mainspring.data.readers.layout import LayoutDecoder
from mainspring.data.readers.messages import RECORD_BYTES_MAX, Decoder
from mainspring.data.readers.topics import Channel
from mainspring.domain.errors import DamagedData, InvalidInput

MAGIC = b"#ROSBAG V2.0\n"
_ANY_MAGIC = b"#ROSBAG V"
_HEADER_BYTES_MAX = 4 << 20  # A connection's header holds its definition; a bag header is padded to 4 KiB.
_MESSAGE, _BAG, _INDEX, _CHUNK, _CHUNK_INFO, _CONNECTION = range(2, 8)
_KNOWN = (_BAG, _INDEX, _CHUNK, _CHUNK_INFO, _CONNECTION)
_WORD = struct.Struct("<I")
_TIME = struct.Struct("<II")
_SECOND_NS = 1_000_000_000


@dataclass(slots=True)
class _Found:
    """Connections, how many messages each has, and for each chunk its times and the messages of each connection."""

    connections: dict[int, Mapping[bytes, bytes]] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    chunks: dict[int, tuple[int, int, dict[int, int]]] = field(default_factory=dict)

    def connection(self, header: Mapping[bytes, bytes], data: bytes) -> None:
        number = _word(header, b"conn")
        if number not in self.connections:
            self.connections[number] = {**_fields(data), b"topic": header.get(b"topic", b"")}

    def chunk(self, header: Mapping[bytes, bytes], data: bytes) -> None:
        inside: dict[int, int] = {}
        for number, count in struct.iter_unpack("<II", data[: len(data) // 8 * 8]):
            inside[number] = inside.get(number, 0) + count
            self.counts[number] = self.counts.get(number, 0) + count
        place = int.from_bytes(header.get(b"chunk_pos", b"")[:8], "little")
        self.chunks[place] = (_time_ns(header, b"start_time"), _time_ns(header, b"end_time"), inside)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    """A chunk that was read: its place, its records, and the places of each connection's messages by its index."""

    place: int
    records: bytes
    index: Mapping[int, tuple[tuple[int, int], ...]]


class BagContainer:
    """One ROS 1 bag; see `Container`.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found = _Found()
        self._index_at = 0  # Where the index begins by the bag's own header; 0 when it was never closed.

    def channels(self, notes: Notes) -> tuple[Channel, ...]:
        """See `Container.channels`."""
        with open(self._path, "rb") as file:
            self._index_at = _index_at(file)
            found = _indexed(file, self._index_at)
        if found is None:
            notes.add("the bag has no whole index: read without it")
            found = self._scanned(notes)
        else:
            self._found, notes.told = found, found.counts or None  # Some tools count nothing.
        _compare_digests(found.connections, notes)
        return tuple(
            _channel(number, header, found.counts.get(number, 0))
            for number, header in sorted(found.connections.items())
        )

    def messages(self, wanted: frozenset[int], notes: Notes) -> Iterator[tuple[int, int, bytes]]:
        """See `Container.messages`."""
        for chunk in self._chunks(notes):
            places: dict[int, list[tuple[int, int]]] = {}
            block, at = chunk.records, 0
            for header, first, end in _records(block, notes):
                here, at = at, end
                if header.get(b"op") != b"\x02":
                    continue
                number = _word(header, b"conn")
                if number in wanted:
                    time_ns = _time_ns(header, b"time")
                    places.setdefault(number, []).append((time_ns, here))
                    yield number, time_ns, block[first:end]
            _compare_places(chunk, places, wanted, notes)

    def _chunks(self, notes: Notes) -> Iterator[_Chunk]:
        """Yields each chunk."""
        with open(self._path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            magic = file.read(len(MAGIC))
            if magic != MAGIC:
                old = magic.startswith(_ANY_MAGIC)
                raise DamagedData(
                    "read a ROS 1 bag",
                    on=self._path.name,
                    got=f"format {magic[9:12].decode('ascii', 'replace')}" if old else "another beginning",
                    wanted="a bag of format 2.0" + ("; `rosbag fix` makes one" if old else ""),
                )
            at = len(MAGIC)
            while at < size:
                head = _head(file, at, size)
                operation = -1 if head is None else _operation(head[0])
                if head is None or operation not in _KNOWN:
                    further = min((place for place in self._found.chunks if place > at), default=None)
                    if further is None and head is not None and at < self._index_at <= size:
                        further = head[1] + head[2]  # Of a kind that nobody knows; what stands behind it may be whole.
                        self._note_gone(notes, at, further - at, f"the record at byte {at:,} is of no known kind")
                    if further is None:
                        break
                    notes.add(f"bytes {at:,} to {further:,} are no records: they were left out")
                    at = further
                    continue
                header, first, length = head
                if operation == _CHUNK:
                    try:
                        block = _chunk(file, header, length)
                    except ValueError as error:
                        self._note_chunk(
                            notes,
                            file,
                            at,
                            first + length,
                            f"the chunk at byte {at:,} was left out: {str(error)[:120]}",
                        )
                    else:
                        yield _Chunk(place=at, records=block, index=_index_behind(file, first + length, size))
                elif operation in (_CONNECTION, _CHUNK_INFO):
                    return  # The index begins, so the chunks have ended.
                at = first + length
            if not self._found.chunks and (at < self._index_at or not self._index_at):
                self._note_end(notes, at, size)

    def _note_chunk(self, notes: Notes, file: BinaryIO, at: int, end: int, what: str) -> None:
        """Notes a chunk that cannot be read, with what is known of the messages in it."""
        if told := self._found.chunks.get(at):
            begin_ns, end_ns, inside = told
            notes.lose(Stretch(what=what, counts=tuple(sorted(inside.items())), begin_ns=begin_ns, end_ns=end_ns))
            return
        behind = _index_behind(file, end, file.seek(0, 2))
        if behind:
            times = [time_ns for entries in behind.values() for time_ns, _ in entries]
            notes.lose(
                Stretch(
                    what=what,
                    counts=tuple((number, len(entries)) for number, entries in sorted(behind.items())),
                    begin_ns=min(times, default=0),
                    end_ns=max(times, default=0),
                )
            )
        else:
            self._note_gone(notes, at, end - at, what)

    def _note_gone(self, notes: Notes, at: int, length: int, what: str) -> None:
        notes.lose(Stretch(what=what, lost=length, total=max(self._index_at, at + length)))

    def _note_end(self, notes: Notes, at: int, size: int) -> None:
        """Notes that the chunks end before the index should begin."""
        if not self._index_at:
            notes.lose(Stretch(what=f"never closed: recovered up to byte {at:,} of {size:,}"))
        elif size < self._index_at:
            what = f"cut off: recovered up to byte {at:,} of {self._index_at:,} before its index"
            self._note_gone(notes, at, self._index_at - at, what)
        else:
            what = f"byte {at:,} begins no record: recovered up to there, of {self._index_at:,} before its index"
            self._note_gone(notes, at, self._index_at - at, what)

    def _scanned(self, notes: Notes) -> _Found:
        found = _Found()
        for chunk in self._chunks(notes):
            block = chunk.records
            for header, first, end in _records(block, notes):
                operation = header.get(b"op")
                if operation == bytes([_CONNECTION]):
                    found.connection(header, block[first:end])
                elif operation == bytes([_MESSAGE]):
                    number = _word(header, b"conn")
                    found.counts[number] = found.counts.get(number, 0) + 1
        return found


def _compare_places(
    chunk: _Chunk, places: Mapping[int, list[tuple[int, int]]], wanted: frozenset[int], notes: Notes
) -> None:
    """Notes the messages of a chunk that are not where and when its index tells."""
    if not chunk.index:
        return  # Some tools write none.
    counts = []
    for number in sorted(wanted & chunk.index.keys()):  # Where the file is cut, some have no record left.
        told, read = set(chunk.index.get(number, ())), set(places.get(number, ()))
        if told != read:
            counts.append((number, max(len(told - read), len(read - told))))
    if counts:
        notes.lose(
            Stretch(
                what=f"the chunk at byte {chunk.place:,} holds other messages than its index tells",
                counts=tuple(counts),
            )
        )


def _index_behind(file: BinaryIO, at: int, size: int) -> dict[int, tuple[tuple[int, int], ...]]:
    """Returns time and offset of each connection's messages, by the records that stand behind a chunk."""
    found: dict[int, tuple[tuple[int, int], ...]] = {}
    while (head := _head(file, at, size)) is not None and _operation(head[0]) == _INDEX:
        header, first, length = head
        data = file.read(min(length, RECORD_BYTES_MAX))
        found[_word(header, b"conn")] = tuple(
            (seconds * _SECOND_NS + nanoseconds, offset)
            for seconds, nanoseconds, offset in struct.iter_unpack("<III", data[: len(data) // 12 * 12])
        )
        at = first + length
    return found


def _compare_digests(connections: Mapping[int, Mapping[bytes, bytes]], notes: Notes) -> None:
    """Notes the connections whose definition is not the one that their digest names."""
    for number, header in sorted(connections.items()):
        name, text, digest = (header.get(key, b"") for key in (b"type", b"message_definition", b"md5sum"))
        topic = header.get(b"topic", b"").decode("utf-8", "replace")
        told = digest.decode("ascii", "replace")
        made = ros1_digest(name.decode("utf-8", "replace"), text.decode("utf-8", "replace")) if text else None
        if made is not None and told not in ("*", made) and len(told) == len(made):
            notes.lose(
                Stretch(
                    what=f"the definition of {topic} has the md5sum {made[:8]}, not {told[:8]} as it says: "
                    "values may be wrong",
                    counts=((number, 0),),
                    doubt=True,
                )
            )


def _operation(header: Mapping[bytes, bytes]) -> int:
    value = header.get(b"op", b"")
    return value[0] if len(value) == 1 else -1


def _time_ns(header: Mapping[bytes, bytes], name: bytes) -> int:
    seconds, nanoseconds = _TIME.unpack(header.get(name, bytes(8))[:8].ljust(8, b"\0"))
    return int(seconds * _SECOND_NS + nanoseconds)


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


def _chunk(file: BinaryIO, header: Mapping[bytes, bytes], length: int) -> bytes:
    """Returns a chunk's records; raises `ValueError` when they are not what it says."""
    if length > RECORD_BYTES_MAX:
        raise ValueError(f"it has {length:,} bytes; at most {RECORD_BYTES_MAX:,} are read")
    return decompressed(
        header.get(b"compression", b"none").decode("ascii", "replace"), file.read(length), _word(header, b"size")
    )


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


def _index_at(file: BinaryIO) -> int:
    """Returns where the index begins, by the bag's header."""
    head = _head(file, len(MAGIC), file.seek(0, 2))
    return int.from_bytes(head[0].get(b"index_pos", b"")[:8], "little") if head is not None else 0


def _indexed(file: BinaryIO, at: int) -> _Found | None:
    """Returns what the index at the end tells; None when there is none, or it is not whole."""
    size = file.seek(0, 2)
    bag = _head(file, len(MAGIC), size)
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
            found.chunk(header, data)
        else:
            return None
        at = first + length
    whole = (len(found.connections), len(found.chunks)) == (_word(bag[0], b"conn_count"), _word(bag[0], b"chunk_count"))
    return found if whole else None


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
