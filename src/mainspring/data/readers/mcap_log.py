"""Reads MCAP files forward, chunk by chunk; with or without an index, and up to where they are whole.

Source: mcap.dev/spec, version 0.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from mcap.data_stream import ReadDataStream
from mcap.exceptions import McapError
from mcap.opcode import Opcode
from mcap.records import Channel as ChannelRecord
from mcap.records import ChunkIndex, Schema, Statistics

from mainspring.data.readers.compression import decompressed
from mainspring.data.readers.definitions import DEFINITION_BYTES_MAX, Given, ros_type
from mainspring.data.readers.gone import Notes, Stretch
from mainspring.data.readers.layout import LayoutDecoder
from mainspring.data.readers.mcap_checks import Index, Lost, checksum_differs, differ, index_after
from mainspring.data.readers.messages import RECORD_BYTES_MAX, Decoder
from mainspring.data.readers.objects import JsonDecoder, protobuf_decoder
from mainspring.data.readers.topics import Channel
from mainspring.domain.errors import DamagedData, InvalidInput

MAGIC = b"\x89MCAP0\r\n"
_RECORD = struct.Struct("<BQ")
_MESSAGE = struct.Struct("<BQHIQQ")  # With the record's own opcode and length.
_CHUNK = struct.Struct("<QQQII")  # Start, end, size, checksum, and the length of the compression's name.
_FOOTER = struct.Struct("<BQQQI8s")
_GUARDED = frozenset((Opcode.HEADER, Opcode.SCHEMA, Opcode.CHANNEL, Opcode.CHUNK))
_KNOWN = frozenset(int(opcode) for opcode in Opcode)
_INDEXED = (Opcode.SCHEMA, Opcode.CHANNEL, Opcode.STATISTICS, Opcode.CHUNK_INDEX)
_BROKEN = (McapError, struct.error, ValueError, LookupError, EOFError, OverflowError)
_ROS2_LANGUAGES = ("ros2msg", "ros2idl")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Summary:
    """What the end of a file, or reading all of it, tells of the rest.

    Args:
        channels: By number.
        schemas: By number.
        counts: Messages of each channel; None when nobody counted.
        chunks: For each chunk's place in the file, the channels in it.
        said: The records of schemas and channels as they lie in the file, by kind and number.
    """

    channels: dict[int, ChannelRecord]
    schemas: dict[int, Schema]
    counts: dict[int, int] | None
    chunks: dict[int, frozenset[int]]
    said: dict[tuple[int, int], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Records that lie together: those of a chunk, or one outside chunks.

    Args:
        place: Of the first byte in the file.
        records: The bytes.
        index: Of a chunk without a checksum: times and offsets of each channel's messages, as the file tells them.
        checked: Whether they agree with a checksum.
    """

    place: int
    records: bytes
    index: Mapping[int, Index] | None = None
    checked: bool = False


class McapContainer:
    """One MCAP file; see `Container`.

    Args:
        path: The file.
        given: Definitions for what it does not define.
    """

    def __init__(self, path: Path, given: Given = ()) -> None:
        self._path = path
        self._given = given
        self._chunks: dict[int, frozenset[int]] = {}
        self._said: dict[tuple[int, int], bytes] = {}
        self._checksum_differs: bool | None = None
        self._guarded = True  # Whether all that was met has a checksum of its own, or stands twice in the file.

    def channels(self, notes: Notes) -> tuple[Channel, ...]:
        """See `Container.channels`."""
        with open(self._path, "rb") as file:
            summary = _summary(file, notes)
        if summary is None or not summary.channels:
            summary = self._scanned(notes)
        else:
            notes.told = summary.counts
            named = {record.schema_id for record in summary.channels.values()} - {0}
            if not named <= summary.schemas.keys():  # Writers may leave schemas out of the index.
                self._chunks = summary.chunks
                summary = replace(summary, schemas=self._scanned(notes).schemas | summary.schemas)
        self._chunks, self._said = summary.chunks, summary.said
        return tuple(_channel(record, summary, self._given) for _, record in sorted(summary.channels.items()))

    def messages(self, wanted: frozenset[int], notes: Notes) -> Iterator[tuple[int, int, bytes]]:
        """See `Container.messages`."""
        for block in self._blocks(wanted, notes):
            records, at, end = block.records, 0, len(block.records)
            places: dict[int, list[tuple[int, int]]] | None = None if block.index is None else {}
            while at + _MESSAGE.size <= end:
                opcode, length, channel, _, time_ns, _ = _MESSAGE.unpack_from(records, at)
                first, at = at, at + _RECORD.size + length
                if opcode != Opcode.MESSAGE:
                    self._compare(opcode, records[first + _RECORD.size : at], notes)
                elif channel in wanted:
                    if at > end or length < _MESSAGE.size - _RECORD.size:
                        notes.add(f"a message in the chunk at byte {block.place:,} is longer than the chunk")
                        break
                    if places is not None:
                        places.setdefault(channel, []).append((time_ns, first))
                    yield channel, time_ns, records[first + _MESSAGE.size : at]
            if block.index is not None and places is not None:
                differ(block.index, places, wanted, f"the chunk at byte {block.place:,}", notes)

    def _compare(self, opcode: int, body: bytes, notes: Notes) -> None:
        """Notes a schema or channel that the index tells otherwise: one of them is damaged, and nobody knows which."""
        if opcode in (Opcode.SCHEMA, Opcode.CHANNEL):
            key = (opcode, int.from_bytes(body[:2], "little"))
            if self._said.get(key, body) != body:
                word = "schema" if opcode == Opcode.SCHEMA else "channel"
                notes.lose(Stretch(what=f"{word} {key[1]} differs from what the index says of it", doubt=True))

    def _blocks(self, wanted: frozenset[int] | None, notes: Notes) -> Iterator[_Block]:
        """Yields each chunk, and record outside one, of the data section.

        Args:
            wanted: The channels whose chunks are wanted; None for all.
            notes: Takes the damage.
        """
        with open(self._path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            if file.read(len(MAGIC)) != MAGIC:
                raise DamagedData("read an MCAP file", on=self._path.name, wanted="a file that begins as one")
            at, lost = len(MAGIC), Lost(size)
            while True:
                head = file.read(_RECORD.size)
                opcode, length = _RECORD.unpack(head) if len(head) == _RECORD.size else (0, size)
                fits = at + len(head) + length <= size
                if fits and opcode == Opcode.MESSAGE_INDEX:
                    if lost.open:
                        lost.add(file.read(min(length, RECORD_BYTES_MAX)))
                    at = file.seek(at + _RECORD.size + length)
                    continue
                lost.flush(notes)
                if fits and opcode in (Opcode.DATA_END, Opcode.FOOTER):
                    break
                if not fits or opcode == 0:
                    further = min((place for place in self._chunks if place > at), default=None)
                    if further is None:
                        self._note_end(notes, at, size, lost)
                        break
                    notes.add(f"bytes {at:,} to {further:,} are no records: they were left out")
                    at = file.seek(further)
                    continue
                self._guarded = self._guarded and opcode in _GUARDED
                body = None if self._skips(at, wanted) else _wanted_body(file, opcode, length)
                if body is not None:
                    lost.seen(opcode, body)
                    block = _block(file, at, head, body, notes, lost)
                    body = None  # Not held while the block is read: both may be large.
                    if block is not None:
                        self._guarded = self._guarded and block.checked
                        yield block
                elif length > RECORD_BYTES_MAX and opcode in (Opcode.CHUNK, Opcode.MESSAGE):
                    lost.begin(at, length, f"a record of {length:,} bytes at byte {at:,} was left out", b"")
                elif opcode not in _KNOWN:
                    lost.suspect(at, length)
                at = file.seek(at + _RECORD.size + length)
            if self._checksum_differs is None:
                self._checksum_differs = fits and opcode == Opcode.DATA_END and checksum_differs(file, at)
        if self._checksum_differs and not notes.stretches:
            what = "the checksum of the data section differs"
            if self._guarded and notes.told is not None:
                notes.add(f"{what}, though not in what was read")
            else:
                notes.lose(Stretch(what=f"{what}: some values may be wrong", doubt=True))

    def _note_end(self, notes: Notes, at: int, size: int, lost: Lost) -> None:
        """Notes that the data section has no end: its recorder was killed, or the file was cut or damaged."""
        if notes.told is not None:
            notes.add(f"byte {at:,} of {size:,} begins no record: read up to there")
        else:
            seconds = max(lost.last_ns - lost.first_ns, 0) / 1e9
            notes.lose(
                Stretch(
                    what=f"never closed, or cut off: recovered up to byte {at:,} of {size:,}, {seconds:.1f} s of it",
                    begin_ns=lost.last_ns,
                )
            )

    def _skips(self, at: int, wanted: frozenset[int] | None) -> bool:
        """Returns whether the index says that the chunk here holds nothing wanted."""
        inside = self._chunks.get(at)
        return inside is not None and wanted is not None and not inside & wanted

    def _scanned(self, notes: Notes) -> _Summary:
        """Returns the summary of a file without one, from all of its records."""
        found = _Summary(channels={}, schemas={}, counts={}, chunks={}, said={})
        assert found.counts is not None
        for each in self._blocks(None, notes):
            block = each.records
            at = records = 0
            inside: set[int] = set()
            while at + _RECORD.size <= len(block):
                opcode, length = _RECORD.unpack_from(block, at)
                first, at = at + _RECORD.size, at + _RECORD.size + length
                if at > len(block):
                    break
                records += 1
                if opcode == Opcode.MESSAGE and length >= 2:
                    channel = int.from_bytes(block[first : first + 2], "little")
                    found.counts[channel] = found.counts.get(channel, 0) + 1
                    inside.add(channel)
                elif opcode in _INDEXED:
                    _record(opcode, block[first:at], found)
            if records > 1:  # A record outside chunks is not worth remembering: there may be millions.
                found.chunks[each.place] = frozenset(inside)
        return found


def _wanted_body(file: BinaryIO, opcode: int, length: int) -> bytes | None:
    """Returns a record's content, or None (and nothing is read) when it is of no use here."""
    if length > RECORD_BYTES_MAX:
        return None
    return file.read(length) if opcode in (Opcode.CHUNK, Opcode.MESSAGE, Opcode.SCHEMA, Opcode.CHANNEL) else None


def _block(file: BinaryIO, at: int, head: bytes, body: bytes, notes: Notes, lost: Lost) -> _Block | None:
    """Returns a record that was read, or the records of a chunk; None when the chunk is damaged."""
    if head[0] != Opcode.CHUNK:
        return _Block(place=at, records=head + body)
    try:
        records = _chunk(body)
    except (struct.error, ValueError) as error:
        lost.begin(at, len(body), f"the chunk at byte {at:,} was left out: {str(error)[:120]}", body[:16])
        return None
    checksum = int.from_bytes(body[24:28], "little")
    return _Block(place=at, records=records, index=None if checksum else index_after(file), checked=checksum != 0)


def _chunk(body: bytes) -> bytes:
    """Returns a chunk's records; raises `ValueError` when they are not what it says."""
    _, _, size, checksum, name_length = _CHUNK.unpack_from(body)
    first = _CHUNK.size + name_length + 8
    name = body[_CHUNK.size : first - 8].decode()
    length = int.from_bytes(body[first - 8 : first], "little")
    if first + length > len(body):
        raise ValueError("its data is longer than the chunk")
    block = decompressed(name, body[first : first + length], size)
    if checksum and zlib.crc32(block) != checksum:
        raise ValueError("its checksum differs")
    return block


def _summary(file: BinaryIO, notes: Notes) -> _Summary | None:
    """Returns the summary of a whole file; None when it has none that can be trusted."""
    size = file.seek(0, 2)
    if size < len(MAGIC) + _FOOTER.size:
        return None
    file.seek(-_FOOTER.size, 2)
    opcode, _, start, _, checksum, magic = _FOOTER.unpack(file.read(_FOOTER.size))
    end = size - _FOOTER.size
    if opcode != Opcode.FOOTER or magic != MAGIC:
        notes.add("its end is missing, and its index with it")
        return None
    if not 0 < start <= end or end - start > RECORD_BYTES_MAX:
        return None
    file.seek(start)
    block = file.read(size - start)
    if checksum and zlib.crc32(block[: -len(MAGIC) - 4]) != checksum:
        notes.add("the checksum of the index differs: read without it")
        return None
    found = _Summary(channels={}, schemas={}, counts={}, chunks={}, said={})
    counted = False
    at = 0
    while at + _RECORD.size <= end - start:
        opcode, length = _RECORD.unpack_from(block, at)
        first, at = at + _RECORD.size, at + _RECORD.size + length
        counted = counted or (opcode == Opcode.STATISTICS and _counts_channels(block[first:at]))
        if at > end - start or (opcode in _INDEXED and not _record(opcode, block[first:at], found)):
            notes.add("the index cannot be read: read without it")
            return None
    return found if counted else replace(found, counts=None)


def _counts_channels(body: bytes) -> bool:
    """Returns whether statistics tell how many messages each channel has; writers may leave that out."""
    return not int.from_bytes(body[:8], "little") or int.from_bytes(body[42:46], "little") > 0


def _record(opcode: int, body: bytes, found: _Summary) -> bool:
    """Notes a record of the index, and returns whether it could be read."""
    stream = ReadDataStream(BytesIO(body))
    try:
        if opcode in (Opcode.SCHEMA, Opcode.CHANNEL):
            found.said[opcode, int.from_bytes(body[:2], "little")] = body
        if opcode == Opcode.SCHEMA:
            schema = Schema.read(stream)
            found.schemas[schema.id] = schema
        elif opcode == Opcode.CHANNEL:
            channel = ChannelRecord.read(stream)
            found.channels[channel.id] = channel
        elif opcode == Opcode.STATISTICS and found.counts is not None:
            found.counts.update(Statistics.read(stream).channel_message_counts)
        elif opcode == Opcode.CHUNK_INDEX:
            index = ChunkIndex.read(stream)
            if index.message_index_offsets:
                found.chunks[index.chunk_start_offset] = frozenset(index.message_index_offsets)
    except _BROKEN:
        return False
    return True


def _channel(record: ChannelRecord, summary: _Summary, given: Given) -> Channel:
    schema = summary.schemas.get(record.schema_id)
    return Channel(
        id=record.id,
        topic=record.topic,
        type=schema.name if schema else "",
        encoding=record.message_encoding,
        definition=schema.data if schema else b"",
        decoder=partial(_decoder, record, schema, given),
        count=None if summary.counts is None else summary.counts.get(record.id, 0),
    )


def _decoder(record: ChannelRecord, schema: Schema | None, given: Given) -> Decoder:
    encoding = record.message_encoding
    if encoding == "json":
        return JsonDecoder()
    if schema is None:
        raise InvalidInput("decode messages", on=record.topic, got=f"{encoding} without a schema", wanted="one")
    if len(schema.data) > DEFINITION_BYTES_MAX:
        raise InvalidInput(
            "decode messages",
            on=record.topic,
            got=f"a schema of {len(schema.data):,} bytes",
            wanted=f"at most {DEFINITION_BYTES_MAX:,}",
        )
    if encoding == "protobuf" and schema.encoding == "protobuf":
        return protobuf_decoder(schema.name, schema.data)
    text = schema.data.decode("utf-8", "replace")
    if encoding == "cdr" and (schema.encoding in _ROS2_LANGUAGES or not text):
        return LayoutDecoder(root=ros_type(schema.name, text, schema.encoding, "cdr", given), format="cdr")
    if encoding == "ros1" and schema.encoding == "ros1msg":
        return LayoutDecoder(root=ros_type(schema.name, text, schema.encoding, "ros1"), format="ros1")
    raise InvalidInput(
        "decode messages",
        on=record.topic,
        got=f"{encoding or 'no encoding'} described by {schema.encoding or 'nothing'}"[:200],
        wanted="cdr by ros2msg or ros2idl, ros1 by ros1msg, protobuf, or json",
    )
