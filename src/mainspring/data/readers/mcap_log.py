"""Reads MCAP files forward, chunk by chunk; with or without an index, and up to where they are whole.

Source: mcap.dev/spec, version 0.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
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
from mainspring.data.readers.definitions import DEFINITION_BYTES_MAX, ros_type
from mainspring.data.readers.layout import LayoutDecoder
from mainspring.data.readers.messages import RECORD_BYTES_MAX, Decoder
from mainspring.data.readers.objects import JsonDecoder, protobuf_decoder
from mainspring.data.readers.topics import Channel, Notes
from mainspring.domain.errors import DamagedData, InvalidInput

MAGIC = b"\x89MCAP0\r\n"
_RECORD = struct.Struct("<BQ")
_MESSAGE = struct.Struct("<BQHIQQ")  # With the record's own opcode and length.
_CHUNK = struct.Struct("<QQQII")  # Start, end, size, checksum, and the length of the compression's name.
_FOOTER = struct.Struct("<BQQQI8s")
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
    """

    channels: dict[int, ChannelRecord]
    schemas: dict[int, Schema]
    counts: dict[int, int] | None
    chunks: dict[int, frozenset[int]]


class McapContainer:
    """One MCAP file; see `Container`.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._chunks: dict[int, frozenset[int]] = {}

    def channels(self, notes: Notes) -> tuple[Channel, ...]:
        """See `Container.channels`."""
        with open(self._path, "rb") as file:
            summary = _summary(file, notes)
        if summary is None or not summary.channels:
            summary = self._scanned(notes)
        self._chunks = summary.chunks
        return tuple(_channel(record, summary) for _, record in sorted(summary.channels.items()))

    def messages(self, wanted: frozenset[int], notes: Notes) -> Iterator[tuple[int, int, bytes]]:
        """See `Container.messages`."""
        for _, block in self._blocks(wanted, notes):
            at, end = 0, len(block)
            while at + _MESSAGE.size <= end:
                opcode, length, channel, _, time_ns, _ = _MESSAGE.unpack_from(block, at)
                first, at = at, at + _RECORD.size + length
                if opcode == Opcode.MESSAGE and channel in wanted:
                    if at > end or length < _MESSAGE.size - _RECORD.size:
                        notes.add("a message is longer than the chunk it is in")
                        break
                    yield channel, time_ns, block[first + _MESSAGE.size : at]

    def _blocks(self, wanted: frozenset[int] | None, notes: Notes) -> Iterator[tuple[int, bytes]]:
        """Yields the place of each chunk, or record outside one, of the data section, and its records.

        Args:
            wanted: The channels whose chunks are wanted; None for all.
            notes: Takes the damage.
        """
        with open(self._path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            if file.read(len(MAGIC)) != MAGIC:
                raise DamagedData("read an MCAP file", on=self._path.name, wanted="a file that begins as one")
            at, checksum, chunked = len(MAGIC), zlib.crc32(MAGIC), False
            while True:
                head = file.read(_RECORD.size)
                opcode, length = _RECORD.unpack(head) if len(head) == _RECORD.size else (0, size)
                if at + len(head) + length > size:
                    notes.add(f"the file was cut off: recovered up to byte {at:,} of {size:,}")
                    return
                if opcode == Opcode.DATA_END:
                    told = int.from_bytes(file.read(4), "little")
                    if told and not chunked and told != checksum:
                        notes.add("the checksum of the data section differs: some values may be wrong")
                    return
                if opcode in (Opcode.FOOTER, 0):
                    notes.add(f"no end of data: recovered up to byte {at:,} of {size:,}")
                    return
                chunked = chunked or opcode == Opcode.CHUNK
                body = None if self._skips(at, wanted) else _wanted_body(file, opcode, length)
                if length > RECORD_BYTES_MAX and opcode in (Opcode.CHUNK, Opcode.MESSAGE):
                    notes.add(f"a record of {length:,} bytes at byte {at:,} was left out")
                if not chunked:
                    checksum = _checksum(file, length, body, zlib.crc32(head, checksum))
                elif body is None:
                    file.seek(length, 1)
                if body is not None:
                    block = _chunk(body, notes, at) if opcode == Opcode.CHUNK else head + body
                    body = None  # Not held while the block is read: both may be large.
                    if block is not None:
                        yield at, block
                at += _RECORD.size + length

    def _skips(self, at: int, wanted: frozenset[int] | None) -> bool:
        """Returns whether the index says that the chunk here holds nothing wanted."""
        inside = self._chunks.get(at)
        return inside is not None and wanted is not None and not inside & wanted

    def _scanned(self, notes: Notes) -> _Summary:
        """Returns the summary of a file without one, from all of its records."""
        found = _Summary(channels={}, schemas={}, counts={}, chunks={})
        assert found.counts is not None
        for place, block in self._blocks(None, notes):
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
                found.chunks[place] = frozenset(inside)
        return found


def _wanted_body(file: BinaryIO, opcode: int, length: int) -> bytes | None:
    """Returns a record's content, or None (and nothing is read) when it is of no use here."""
    if length > RECORD_BYTES_MAX:
        return None
    useful = opcode in (Opcode.CHUNK, Opcode.MESSAGE, Opcode.SCHEMA, Opcode.CHANNEL)
    return file.read(length) if useful else None


def _checksum(file: BinaryIO, length: int, body: bytes | None, checksum: int) -> int:
    """Returns the checksum with a record's content in it, read past when it was of no use."""
    if body is not None:
        return zlib.crc32(body, checksum)
    while length > 0:
        block = file.read(min(length, 1 << 20))
        if not block:
            break
        checksum = zlib.crc32(block, checksum)
        length -= len(block)
    return checksum


def _chunk(body: bytes, notes: Notes, at: int) -> bytes | None:
    """Returns a chunk's records, or notes why not; the chunks after it can be read all the same."""
    try:
        _, _, size, checksum, name_length = _CHUNK.unpack_from(body)
        first = _CHUNK.size + name_length + 8
        name = body[_CHUNK.size : first - 8].decode()
        length = int.from_bytes(body[first - 8 : first], "little")
        if first + length > len(body):
            raise ValueError("its data is longer than the chunk")
        block = decompressed(name, body[first : first + length], size)
        if checksum and zlib.crc32(block) != checksum:
            raise ValueError("its checksum differs")
    except (struct.error, ValueError) as error:
        notes.add(f"the chunk at byte {at:,} was left out: {str(error)[:120]}")
        return None
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
        notes.add("the file does not end as one: its index is lost")
        return None
    if not 0 < start <= end or end - start > RECORD_BYTES_MAX:
        return None
    file.seek(start)
    block = file.read(size - start)
    if checksum and zlib.crc32(block[: -len(MAGIC) - 4]) != checksum:
        notes.add("the checksum of the index differs: read without it")
        return None
    found = _Summary(channels={}, schemas={}, counts={}, chunks={})
    counted = False
    at = 0
    while at + _RECORD.size <= end - start:
        opcode, length = _RECORD.unpack_from(block, at)
        first, at = at + _RECORD.size, at + _RECORD.size + length
        counted = counted or opcode == Opcode.STATISTICS
        if at > end - start or (opcode in _INDEXED and not _record(opcode, block[first:at], found)):
            return None
    return (
        found if counted else _Summary(channels=found.channels, schemas=found.schemas, counts=None, chunks=found.chunks)
    )


def _record(opcode: int, body: bytes, found: _Summary) -> bool:
    """Notes a record of the index, and returns whether it could be read."""
    stream = ReadDataStream(BytesIO(body))
    try:
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


def _channel(record: ChannelRecord, summary: _Summary) -> Channel:
    schema = summary.schemas.get(record.schema_id)
    return Channel(
        id=record.id,
        topic=record.topic,
        type=schema.name if schema else "",
        encoding=record.message_encoding,
        definition=schema.data if schema else b"",
        decoder=partial(_decoder, record, schema),
        count=None if summary.counts is None else summary.counts.get(record.id, 0),
    )


def _decoder(record: ChannelRecord, schema: Schema | None) -> Decoder:
    encoding = record.message_encoding
    if encoding == "json":
        return JsonDecoder()
    if schema is None:
        raise InvalidInput("decode messages", on=record.topic, got=f"{encoding} without a schema", wanted="one")
    if len(schema.data) > DEFINITION_BYTES_MAX:
        got = f"a schema of {len(schema.data):,} bytes"
        raise InvalidInput("decode messages", on=record.topic, got=got, wanted=f"at most {DEFINITION_BYTES_MAX:,}")
    if encoding == "protobuf" and schema.encoding == "protobuf":
        return protobuf_decoder(schema.name, schema.data)
    text = schema.data.decode("utf-8", "replace")
    if encoding == "cdr" and schema.encoding in _ROS2_LANGUAGES:
        return LayoutDecoder(root=ros_type(schema.name, text, schema.encoding, "cdr"), format="cdr")
    if encoding == "ros1" and schema.encoding == "ros1msg":
        return LayoutDecoder(root=ros_type(schema.name, text, schema.encoding, "ros1"), format="ros1")
    raise InvalidInput(
        "decode messages",
        on=record.topic,
        got=f"{encoding or 'no encoding'} described by {schema.encoding or 'nothing'}"[:200],
        wanted="cdr by ros2msg or ros2idl, ros1 by ros1msg, protobuf, or json",
    )
