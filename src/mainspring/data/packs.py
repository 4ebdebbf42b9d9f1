"""Small things kept together: a piece is a range of a blob, a pack a blob of many pieces.

A million episodes are a million small tables; as objects of their own they would cost a request each to write, to
list and to collect.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Protocol

from blake3 import blake3

from mainspring.domain.errors import DamagedData
from mainspring.objects import Blob, Data, ObjectStore, blob_of, put_blob

PACK_BYTES_MAX = 64 << 20  # One request moves it in a second or less; a thousand of them are a large dataset's tables.
_CHECK_LETTERS = 16  # 64 bits tell damage from soundness; who wants to forge has the blob's own hash against them.


@dataclass(frozen=True, slots=True, kw_only=True)
class PackPiece:
    """Bytes inside a blob.

    Args:
        blob: The blob.
        offset: Where they begin.
        size_bytes: How many.
        check: Start of their BLAKE3 hash, in hexadecimal.
    """

    blob: Blob
    offset: int
    size_bytes: int
    check: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PackPart:
    """Bytes of a pack that is not stored yet: they become a piece with it."""

    offset: int
    size_bytes: int
    check: str


class PackPlaces(Protocol):
    """Turns what `Pack.add` returned into pieces."""

    def __call__(self, part: PackPart) -> PackPiece:
        """Returns the piece."""


class Pack:
    """A blob in the making; for one thread."""

    def __init__(self) -> None:
        self._data = io.BytesIO()

    @property
    def size_bytes(self) -> int:
        """Returns how much it holds; who adds stores it at `PACK_BYTES_MAX`."""
        return self._data.tell()

    def add(self, data: Data) -> PackPart:
        """Adds bytes.

        Args:
            data: The bytes.
        """
        part = PackPart(offset=self._data.tell(), size_bytes=memoryview(data).nbytes, check=_check(data))
        self._data.write(data)
        return part

    def store(self, store: ObjectStore) -> PackPlaces:
        """Stores the pack as a blob, and returns what its parts are now.

        Args:
            store: Where to.

        Raises:
            StorageFull: There is no room.
        """
        blob = put_blob(store, self._data.getbuffer())

        def place(part: PackPart) -> PackPiece:
            return PackPiece(blob=blob, offset=part.offset, size_bytes=part.size_bytes, check=part.check)

        return place


def piece_of(data: Data) -> PackPiece:
    """Returns the piece that bytes are as a blob of their own, stored or not.

    Args:
        data: The bytes.
    """
    return PackPiece(blob=blob_of(data), offset=0, size_bytes=memoryview(data).nbytes, check=_check(data))


def read_piece(store: ObjectStore, piece: PackPiece) -> bytes:
    """Returns a piece's bytes, checked.

    Args:
        store: Where they lie.
        piece: Which.

    Raises:
        NotFound: The blob is not there.
        DamagedData: What is there is something else.
    """
    data = store.get_range(piece.blob.key, offset=piece.offset, size_bytes=piece.size_bytes)
    if _check(data) != piece.check:
        raise DamagedData(
            "read a piece", on=f"{piece.blob.key} at {piece.offset}", got=_check(data), wanted=piece.check
        )
    return data


def _check(data: Data) -> str:
    return blake3(data).hexdigest()[:_CHECK_LETTERS]
