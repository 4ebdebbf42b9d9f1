"""Reads PX4 ULog files forward, also those with appended data, up to where they are whole.

pyulog, the library for them, holds the whole file in memory, so only its tests' role is left to it.
Source: docs.px4.io, "ULog File Format", version 1.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO

from mainspring.data.readers.definitions import NUMBERS
from mainspring.data.readers.gone import Notes, Stretch
from mainspring.data.readers.layout import LayoutDecoder
from mainspring.data.readers.messages import DEPTH_MAX, Decoder
from mainspring.data.readers.topics import Channel
from mainspring.data.readers.types import TypeNode
from mainspring.domain.errors import DamagedData, InvalidInput

MAGIC = b"ULog\x01\x12\x35"
_HEADER_BYTES = 16
_MESSAGE = struct.Struct("<HB")
_SYNC = b"\x08\x00S\x2f\x73\x13\x20\x25\x0c\xbb\x12"
_SYNC_BLOCK_BYTES = 1 << 20
_KNOWN = frozenset(b"BFIMPQARDLCSO")
_FORMATS_MAX = 65_536
_FORMAT = re.compile(r"([\w-]+):(.*)", re.DOTALL)
_FIELD = re.compile(r"([\w-]+)(?:\[(\d{1,6})\])?\s+(\w+)")
_TYPES = {
    "bool": "bool",
    "char": "char",
    "int8_t": "int8",
    "uint8_t": "uint8",
    "int16_t": "int16",
    "uint16_t": "uint16",
    "int32_t": "int32",
    "uint32_t": "uint32",
    "int64_t": "int64",
    "uint64_t": "uint64",
    "float": "float32",
    "double": "float64",
}
_TIME = struct.Struct("<Q")
_APPENDED = 1
_MICROSECOND_NS = 1_000
_TIME_MAX = 2**63 // _MICROSECOND_NS  # Microseconds that still fit as nanoseconds.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """Of a topic's messages: where their time is, and how long they may be; writers leave the last padding out."""

    time_at: int
    bytes_min: int
    bytes_max: int


@dataclass(slots=True)
class _Found:
    """Formats by name, subscriptions by number, how many messages each has, and what the recorder dropped."""

    formats: dict[str, str] = field(default_factory=dict)
    subscribed: dict[int, tuple[str, int]] = field(default_factory=dict)
    shapes: dict[int, _Shape | None] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    dropped: list[tuple[int, int]] = field(default_factory=list)  # When, in microseconds, and milliseconds.
    first_us: int = -1
    last_us: int = 0
    stray: int = 0
    stray_bytes: int = 0

    def take(self, kind: int, body: bytes) -> None:
        """Takes in what is no data."""
        if kind == ord("F") and len(self.formats) < _FORMATS_MAX:
            if match := _FORMAT.fullmatch(body.decode("utf-8", "replace")):
                self.formats.setdefault(match.group(1), match.group(2))
        elif kind == ord("A") and len(body) >= 3:
            name, number = body[3:].decode("utf-8", "replace"), int.from_bytes(body[1:3], "little")
            if number not in self.subscribed:
                self.subscribed[number] = (name, body[0])
                self.shapes[number] = _shape(name, self.formats)
        elif kind == ord("O") and len(body) >= 2:
            self.dropped.append((self.last_us, int.from_bytes(body[:2], "little")))

    def data(self, body: bytes) -> None:
        """Counts a message."""
        number = int.from_bytes(body[:2], "little")
        if number not in self.subscribed:
            self.stray += 1
            self.stray_bytes += len(body) + _MESSAGE.size
            return
        self.counts[number] = self.counts.get(number, 0) + 1
        shape = self.shapes[number]
        if shape is not None and shape.bytes_min <= len(body) - 2 <= shape.bytes_max:
            (time_us,) = _TIME.unpack_from(body, 2 + shape.time_at)
            if time_us < _TIME_MAX:
                self.first_us = time_us if self.first_us < 0 else self.first_us
                self.last_us = max(self.last_us, time_us)


class UlogContainer:
    """One ULog file; see `Container`.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def channels(self, notes: Notes) -> tuple[Channel, ...]:
        """See `Container.channels`."""
        found = _Found()
        for kind, body in self._records(notes):
            if kind == ord("D"):
                found.data(body)
            else:
                found.take(kind, body)
        if found.stray:
            notes.lose(
                Stretch(
                    what=f"{found.stray:,} messages of topics that were never announced",
                    lost=found.stray_bytes,
                    total=self._path.stat().st_size,
                )
            )
        whole_ms = (found.last_us - found.first_us) // 1_000 + 1
        for at_us, lost_ms in found.dropped:
            begin_ns = at_us * _MICROSECOND_NS
            notes.lose(
                Stretch(
                    what="the recorder could not keep up and said so",
                    lost=lost_ms,
                    total=max(whole_ms, lost_ms),
                    unit="milliseconds",
                    begin_ns=begin_ns,
                    end_ns=begin_ns + lost_ms * 1_000 * _MICROSECOND_NS,
                )
            )
        return tuple(_channel(number, found) for number in sorted(found.subscribed))

    def messages(self, wanted: frozenset[int], notes: Notes) -> Iterator[tuple[int, int, bytes]]:
        """See `Container.messages`."""
        found = _Found()
        odd: dict[int, int] = {}
        for kind, body in self._records(notes):
            if kind != ord("D"):
                found.take(kind, body)
                continue
            number = int.from_bytes(body[:2], "little")
            shape = found.shapes.get(number)
            if shape is None or number not in wanted:
                continue
            if not shape.bytes_min <= len(body) - 2 <= shape.bytes_max:
                odd[number] = odd.get(number, 0) + 1
                continue
            (time_us,) = _TIME.unpack_from(body, 2 + shape.time_at)
            yield number, min(time_us, _TIME_MAX) * _MICROSECOND_NS, body[2:]
        for number, count in sorted(odd.items()):
            notes.lose(
                Stretch(
                    what=f"{count:,} messages of {found.subscribed[number][0]} are not as long as their format",
                    counts=((number, count),),
                )
            )

    def _records(self, notes: Notes) -> Iterator[tuple[int, bytes]]:
        """Yields the type and content of each message of the file."""
        with open(self._path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            if not file.read(_HEADER_BYTES).startswith(MAGIC) or size < _HEADER_BYTES:
                raise DamagedData("read a ULog file", on=self._path.name, wanted="a file that begins as one")
            ends = [size]
            at = _HEADER_BYTES
            while at < size:
                end = next(end for end in ends if end > at)  # Appended data begins anew at each of them.
                head = file.read(_MESSAGE.size)
                length, kind = _MESSAGE.unpack(head) if len(head) == _MESSAGE.size else (size, 0)
                if kind in _KNOWN and at + _MESSAGE.size + length <= end:
                    body = file.read(length)
                    at += _MESSAGE.size + length
                    if kind == ord("B") and ends == [size]:
                        self._check_flags(body)
                        ends = sorted({*_appended(body, at, size), size})
                    yield kind, body
                    continue
                further = _synchronised(file, at, end)
                if further == size and (kind in _KNOWN or len(head) < _MESSAGE.size):
                    what = f"it ends inside a message, at byte {at:,}: power was cut, or the file was"
                    notes.lose(Stretch(what=what))
                else:
                    what = f"bytes {at:,} to {further:,} of {size:,} are no messages: they were left out"
                    notes.lose(Stretch(what=what, lost=further - at, total=size))
                at = file.seek(further)

    def _check_flags(self, body: bytes) -> None:
        """Refuses a log that says it cannot be read by who does not know what its flags mean."""
        flags = body[8:16]
        if flags and (flags[0] & ~_APPENDED or any(flags[1:])):
            raise DamagedData(
                "read a ULog file",
                on=self._path.name,
                got=f"incompatible flags {flags.hex()}",
                wanted="no flag but the one for appended data",
            )


def _appended(body: bytes, at: int, size: int) -> list[int]:
    """Returns where data was appended after a crash: three places, 0 where there is none."""
    places = struct.unpack_from("<3Q", body, 16) if len(body) >= 40 and body[8] & 1 else ()
    return [place for place in places if at < place < size]


def _synchronised(file: BinaryIO, at: int, end: int) -> int:
    """Returns where the next synchronisation message begins, after bytes that are no message; the end without one."""
    at += 1
    while at < end:
        file.seek(at)
        block = file.read(min(_SYNC_BLOCK_BYTES, end - at))
        found = block.find(_SYNC)
        if found >= 0:
            return at + found
        at += max(len(block) - len(_SYNC) + 1, 1) if at + len(block) < end else end
    return end


def _fields(text: str) -> list[tuple[str, int | None, str]]:
    """Returns type, count and name of each field of a format."""
    return [
        (match.group(1), int(match.group(2)) if match.group(2) else None, match.group(3))
        for part in text.split(";")
        if (match := _FIELD.fullmatch(part.strip()))
    ]


def _shape(name: str, formats: dict[str, str]) -> _Shape | None:
    """Returns the shape of a topic's messages; None when they have no time, or their format cannot be understood."""
    place, time_at, padding = 0, None, 0
    for kind, count, field_name in _fields(formats.get(name, "")):
        if field_name == "timestamp" and kind == "uint64_t" and count is None:
            time_at = place
        try:
            size = (_node(kind, formats, 1).fixed or 0) * (1 if count is None else count)
        except InvalidInput:
            return None
        place += size
        padding = padding + size if field_name.startswith("_padding") else 0
    return None if time_at is None else _Shape(time_at=time_at, bytes_min=place - padding, bytes_max=place)


def _node(name: str, formats: dict[str, str], depth: int) -> TypeNode:
    if name in _TYPES:
        return NUMBERS[_TYPES[name]]
    if name not in formats or depth > DEPTH_MAX:
        raise InvalidInput(
            "read a message definition",
            on=name[:200],
            got="a type without a format" if depth <= DEPTH_MAX else f"types nested deeper than {DEPTH_MAX}",
            wanted="a format in the log",
        )
    fields = []
    for kind, count, field_name in _fields(formats[name]):
        inner = _node(kind, formats, depth + 1)
        fields.append((field_name, inner if count is None else TypeNode(kind="row", element=inner, count=count)))
    if depth == 0 and fields and fields[-1][0].startswith("_padding"):
        fields.pop()  # Writers leave the last padding out of their messages.
    return TypeNode(kind="struct", fields=tuple(fields))


def _channel(number: int, found: _Found) -> Channel:
    name, instance = found.subscribed[number]
    return Channel(
        id=number,
        topic=f"{name}/{instance}" if instance else name,
        type=name,
        encoding="ulog",
        definition=found.formats.get(name, "").encode(),
        decoder=partial(_decoder, name, found.formats),
        count=found.counts.get(number, 0),
    )


def _decoder(name: str, formats: dict[str, str]) -> Decoder:
    root = _node(name, formats, 0)
    if _shape(name, formats) is None:
        raise InvalidInput("decode messages", on=name, got="a format without a time", wanted="uint64_t timestamp")
    return LayoutDecoder(root=root, format="ulog")
