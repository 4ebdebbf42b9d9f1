"""Reads TFRecord files and the `tf.train.Example` messages in them, without TensorFlow.

Source: tensorflow/core/lib/io/record_reader.cc and tensorflow/core/example/{example,feature}.proto; protobuf's wire
format, protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from mainspring.domain.errors import DamagedData

RECORDS_MAX = 10_000_000
RECORD_BYTES_MAX = (2 << 30) - 1  # A protobuf message can be no larger.
_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_MASK_DELTA = 0xA282EAD8  # The format stores checksums turned and shifted, as files of checksums confuse checksums.
_VARINT_BYTES_MAX = 10
_LENGTHS = {0: 0, 1: 8, 2: 0, 5: 4}  # Wire type to bytes of the value; 0 where the value itself says.
_GZIP, _ZLIB = b"\x1f\x8b", (b"\x78\x01", b"\x78\x9c", b"\x78\xda")

Values: TypeAlias = "list[bytes] | NDArray[np.float32] | NDArray[np.int64]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Where a record's bytes lie in a file."""

    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The records of a file.

    Args:
        records: Those that can be found.
        problem: Why there may be more; "" when the file ends where its last record does.
    """

    records: tuple[Record, ...]
    problem: str


def scanned(path: Path) -> Scan:
    """Returns where the records of a file lie, by their lengths, whose checksums are verified; nothing else is read.

    Args:
        path: The file.

    Raises:
        DamagedData: It cannot be read.
    """
    records: list[Record] = []
    try:
        size_bytes = path.stat().st_size
        with open(path, "rb") as file:
            offset = 0
            while offset < size_bytes:
                file.seek(offset)
                header = file.read(_HEADER.size)
                if not records and (header[:2] == _GZIP or header[:2] in _ZLIB):
                    return Scan(records=(), problem="a compressed TFRecord file: only plain ones are read")
                problem = _problem(header, size_bytes - offset, len(records))
                if problem:
                    return Scan(records=tuple(records), problem=problem)
                length = _HEADER.unpack(header)[0]
                records.append(Record(offset=offset + _HEADER.size, size_bytes=length))
                offset += _HEADER.size + length + _FOOTER.size
    except OSError as error:
        raise DamagedData("read a TFRecord file", on=path.name, got=str(error)[:200]) from error
    return Scan(records=tuple(records), problem="" if records else "an empty file")


def record_at(path: Path, record: Record, *, on: str) -> bytes:
    """Returns a record's bytes, whose checksum is verified.

    Args:
        path: The file.
        record: Where it lies.
        on: What it is, for messages.

    Raises:
        DamagedData: It is cut off, or its checksum is another's.
    """
    try:
        with open(path, "rb") as file:
            file.seek(record.offset)
            data = file.read(record.size_bytes)
            footer = file.read(_FOOTER.size)
    except OSError as error:
        raise DamagedData("read a TFRecord file", on=on, got=str(error)[:200]) from error
    if len(data) != record.size_bytes or len(footer) != _FOOTER.size:
        raise DamagedData("read a TFRecord file", on=on, got=f"{len(data)} of {record.size_bytes} bytes")
    if _FOOTER.unpack(footer)[0] != masked_crc32c(data):
        raise DamagedData("read a TFRecord file", on=on, got="bytes that its checksum disagrees with")
    return data


def masked_crc32c(data: bytes) -> int:
    """Returns the checksum that the format stores of some bytes.

    Args:
        data: The bytes.
    """
    crc = int(google_crc32c.value(data))
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def features_of(data: bytes, *, on: str) -> Mapping[str, Values]:
    """Returns the features of a `tf.train.Example` or `SequenceExample`, by name; lists of a sequence are joined.

    Args:
        data: The message.
        on: What it is, for messages.

    Raises:
        DamagedData: It is something else.
    """
    found: dict[str, list[Values]] = {}
    try:
        for number, group in _messages(memoryview(data)):
            for _, entry in _messages(group):
                parts = dict(_messages(entry))  # A map's entry: its key and its value.
                name = str(parts.get(1, b""), "utf-8", "replace")
                held = parts.get(2, memoryview(b""))
                lists = [inner for _, inner in _messages(held)] if number == 2 else [held]
                found.setdefault(name, []).extend(map(_values, lists))
        return {name: _joined(parts) for name, parts in found.items()}
    except (ValueError, IndexError, struct.error, OverflowError) as error:
        raise DamagedData("read a tf.train.Example", on=on, got=str(error)[:200]) from error


def _problem(header: bytes, left: int, number: int) -> str:
    if len(header) < _HEADER.size:
        return f"cut off after {number} records"
    length, crc = _HEADER.unpack(header)
    if crc != masked_crc32c(header[:8]):
        return f"record {number} has a length that its checksum disagrees with, so what follows cannot be found"
    if length > RECORD_BYTES_MAX or number >= RECORDS_MAX:
        return f"record {number} of {length} bytes is too many or too large"
    return f"cut off in record {number}" if _HEADER.size + length + _FOOTER.size > left else ""


def _messages(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yields the fields of a message that have a length: their numbers and bytes."""
    place, end = 0, len(data)
    while place < end:
        key, place = _varint(data, place)
        wire = key & 7
        if wire not in _LENGTHS:
            raise ValueError(f"wire type {wire}")
        length = _LENGTHS[wire]
        if wire == 2:
            length, place = _varint(data, place)
        elif wire == 0:
            _, place = _varint(data, place)
        if place + length > end:
            raise ValueError(f"a field of {length} bytes, {end - place} left")
        if wire == 2:
            yield key >> 3, data[place : place + length]
        place += length


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    for _ in range(_VARINT_BYTES_MAX):
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7
    raise ValueError("a number of over ten bytes")


def _values(feature: memoryview) -> Values:
    for kind, inner in _messages(feature):
        if kind == 1:
            return [bytes(value) for number, value in _messages(inner) if number == 1]
        if kind == 2:
            return _numbers(inner, 5)
        if kind == 3:
            return _numbers(inner, 0)
    return []


def _numbers(data: memoryview, wire: int) -> Values:
    """Returns a list of numbers, however it is written: packed, one by one, or both."""
    packed: list[Values] = []
    place, end = 0, len(data)
    while place < end:
        key, place = _varint(data, place)
        if key == (1 << 3 | 2):
            length, place = _varint(data, place)
        elif key == (1 << 3 | wire):
            length = 4 if wire == 5 else _varint(data, place)[1] - place
        else:
            raise ValueError(f"field {key >> 3} in a list of numbers")
        if place + length > end:
            raise ValueError(f"a list of {length} bytes, {end - place} left")
        piece = data[place : place + length]
        packed.append(np.frombuffer(piece, "<f4").astype(np.float32) if wire == 5 else _integers(piece))
        place += length
    return _joined(packed)


def _integers(data: memoryview) -> NDArray[np.int64]:
    """Returns packed varints; negative ones are written as their 64 bits."""
    octets = np.frombuffer(data, np.uint8)
    if not len(octets):
        return np.empty(0, np.int64)
    ends = np.flatnonzero(octets < 128)
    if not len(ends) or ends[-1] != len(octets) - 1:
        raise ValueError("a list of numbers that is cut off")
    begins = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - begins + 1
    if lengths.max() > _VARINT_BYTES_MAX:
        raise ValueError("a number of over ten bytes")
    values = np.zeros(len(ends), np.uint64)
    for place in range(int(lengths.max())):
        here = lengths > place
        values[here] |= (octets[begins[here] + place] & np.uint8(127)).astype(np.uint64) << np.uint64(7 * place)
    return values.view(np.int64)


def _joined(parts: list[Values]) -> Values:
    lists = [part for part in parts if isinstance(part, list)]
    arrays = [part for part in parts if not isinstance(part, list)]
    if lists and not arrays:
        return [value for part in lists for value in part]
    if any(lists):
        raise ValueError("bytes and numbers in one feature")
    numbers: Any = np.concatenate(arrays) if arrays else []
    return cast(Values, numbers)
