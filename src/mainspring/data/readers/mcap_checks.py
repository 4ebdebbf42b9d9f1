"""MCAP redundancy checks: what a file says twice, compared: indexes of messages, the data section's checksum.

Source: mcap.dev/spec, version 0.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import BinaryIO

import numpy as np
from mcap.opcode import Opcode
from numpy.typing import NDArray

from mainspring.data.readers.gone import TIME_NS_MAX, Notes, Stretch
from mainspring.data.readers.messages import RECORD_BYTES_MAX

Index = NDArray[np.uint64]  # [N, 2]: log time, and offset in the chunk.

_RECORD = struct.Struct("<BQ")
_BLOCK_BYTES = 1 << 20
_ENTRY_BYTES = 16


def index_of(body: bytes) -> tuple[int, Index]:
    """Returns the channel and the entries of a record of `MessageIndex`.

    Args:
        body: Its content.
    """
    count = min(int.from_bytes(body[2:6], "little"), max(len(body) - 6, 0)) // _ENTRY_BYTES
    entries: Index = np.frombuffer(body, "<u8", 2 * count, 6 if count else 0).reshape(-1, 2)
    return int.from_bytes(body[:2], "little"), entries


def index_after(file: BinaryIO) -> Mapping[int, Index] | None:
    """Returns what the records behind a chunk tell of its messages; None when there are none. The file stays there.

    Args:
        file: At the end of the chunk.
    """
    here = file.tell()
    found: dict[int, Index] = {}
    while True:
        head = file.read(_RECORD.size)
        opcode, length = _RECORD.unpack(head) if len(head) == _RECORD.size else (0, 0)
        if opcode != Opcode.MESSAGE_INDEX or length > RECORD_BYTES_MAX:
            break
        channel, entries = index_of(file.read(length))
        found[channel] = entries
    file.seek(here)
    return found or None


def differ(
    index: Mapping[int, Index],
    places: Mapping[int, Sequence[tuple[int, int]]],
    wanted: frozenset[int],
    where: str,
    notes: Notes,
) -> None:
    """Notes the messages of a chunk that are not where and when its index tells.

    Args:
        index: By channel.
        places: Time and offset of the messages that were read, by channel.
        wanted: The channels that were read.
        where: Which chunk, in words.
        notes: Takes what differs.
    """
    counts = []
    for channel in sorted(wanted & (index.keys() | places.keys())):
        told = {(time_ns, offset) for time_ns, offset in index.get(channel, np.empty((0, 2), np.uint64)).tolist()}
        read = set(places.get(channel, ()))
        if told != read:
            counts.append((channel, max(len(told - read), len(read - told))))
    if counts:
        notes.lose(Stretch(what=f"{where} holds other messages than its index tells", counts=tuple(counts)))


def checksum_differs(file: BinaryIO, end: int) -> bool:
    """Returns whether the data section has another checksum than its end tells; not where that tells none.

    Args:
        file: The file.
        end: Where the record is that ends the data section.
    """
    file.seek(end + _RECORD.size)
    told = int.from_bytes(file.read(4), "little")
    if not told:
        return False
    file.seek(0)
    checksum, left = 0, end
    while left > 0 and (block := file.read(min(left, _BLOCK_BYTES))):
        checksum = zlib.crc32(block, checksum)
        left -= len(block)
    return checksum != told


class Lost:
    """The chunk that could not be read last, until the records behind it tell what was in it.

    Args:
        size: Of the file.
    """

    def __init__(self, size: int) -> None:
        self.first_ns = self.last_ns = 0  # Of what was read.
        self._size = size
        self._what = ""
        self._bytes = 0
        self._counts: dict[int, int] = {}
        self._begin_ns, self._end_ns = 0, TIME_NS_MAX
        self._suspected = False

    def seen(self, opcode: int, body: bytes) -> None:
        """Takes in the times of a chunk or message."""
        if opcode == Opcode.CHUNK and len(body) >= 16:
            begin_ns, end_ns = struct.unpack_from("<QQ", body)
        elif opcode == Opcode.MESSAGE and len(body) >= 14:
            begin_ns = end_ns = int.from_bytes(body[6:14], "little")
        else:
            return
        if 0 < end_ns <= TIME_NS_MAX:
            self.first_ns = self.first_ns or begin_ns
            self.last_ns = max(self.last_ns, end_ns)

    def begin(self, at: int, length: int, what: str, times: bytes) -> None:
        """Takes in a chunk or record that cannot be read.

        Args:
            at: Its place.
            length: Its length.
            what: What is wrong with it.
            times: Its first and last time, 8 bytes each, or nothing.
        """
        self._what, self._bytes, self._suspected = what, length, False
        if len(times) == 16:
            begin_ns, end_ns = struct.unpack("<QQ", times)
            if begin_ns <= end_ns <= TIME_NS_MAX:
                self._begin_ns, self._end_ns = begin_ns, end_ns

    def suspect(self, at: int, length: int) -> None:
        """Takes in a record of a kind that nobody knows: a chunk whose first byte was damaged, if an index follows."""
        self.begin(
            at, length, f"the record at byte {at:,} is of no known kind, but an index of messages follows it", b""
        )
        self._suspected = True

    @property
    def open(self) -> bool:
        """Returns whether one waits for what stands behind it."""
        return bool(self._what)

    def add(self, body: bytes) -> None:
        """Takes in the index of messages that stands behind it."""
        if len(body) >= 6:
            channel, entries = index_of(body)
            self._counts[channel] = self._counts.get(channel, 0) + len(entries)

    def flush(self, notes: Notes) -> None:
        """Notes what is gone, once what stands behind it was read."""
        if self._what and not (self._suspected and not self._counts):
            notes.lose(
                Stretch(
                    what=self._what,
                    counts=tuple(sorted(self._counts.items())) or None,
                    lost=self._bytes,
                    total=self._size,
                    begin_ns=self._begin_ns,
                    end_ns=self._end_ns,
                )
            )
        self._what, self._counts, self._suspected = "", {}, False
        self._begin_ns, self._end_ns = 0, TIME_NS_MAX
