"""The object-store port: what a caller may rely on, whichever store answers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from mainspring.domain.errors import DamagedData, InvalidInput

Data: TypeAlias = bytes | bytearray | memoryview

KEY_LENGTH_MAX = 900  # S3 and GCS allow 1,024 bytes including the prefix of the store's own URL.
SEGMENT_LENGTH_MAX = 200  # File systems allow 255 bytes a name; temporary names add a suffix.
IN_MEMORY_BYTES_MAX = 1 << 30  # `get` and `get_range` return bytes; larger objects go through files or ranges.
LISTED_MAX = 1_000_000  # About 200 MB of answer; a caller that needs more lists narrower folders.
_SEGMENT = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9._=-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSeen:
    """One object of a listing.

    Args:
        key: Its key.
        size_bytes: Its length.
        modified_s: When it was last stored, by the store's own clock, in seconds since the Unix epoch; some stores
            round it down to a whole second.
    """

    key: str
    size_bytes: int
    modified_s: float


class ObjectStore(Protocol):
    """Immutable-by-convention bytes under keys. Every call blocks, may be repeated, and may be made from many threads.

    A key is segments joined by "/"; see `checked_key`. No key may be a folder of another ("a" and "a/b"): a folder on
    disk refuses that with `Conflict`, remote stores do not notice.

    Visibility: an object appears whole or not at all, and is seen by every later call of every process.
    Durability: when a writing call returns, the bytes survive a crash of process and machine.

    Every call raises `InvalidInput` for a key outside the rules, `NotAllowed` when the credentials do not suffice,
    and `Unavailable` when the store does not answer within the adapter's own bounds; a write has then perhaps
    happened. Writes raise `StorageFull` when there is no room; the object is then as it was before.
    """

    def put(self, key: str, data: Data) -> None:
        """Stores `data` under `key`, in place of what was there. `data` may be any contiguous view of bytes."""

    def put_if_absent(self, key: str, data: Data) -> bool:
        """Stores `data` unless the key exists; returns whether this call stored it.

        Of any number of racing writers exactly one stores. After an answer that was lost on the network, a remote
        store may return False for bytes of our own; a caller to whom this matters compares what is there.
        """

    def put_file(self, key: str, path: Path) -> None:
        """Stores a local file's bytes, in bounded memory.

        Raises:
            NotFound: There is no such file.
        """

    def get(self, key: str) -> bytes:
        """Returns the whole object.

        Raises:
            NotFound: Nothing is stored under the key.
            InvalidInput: It is larger than `IN_MEMORY_BYTES_MAX`.
        """

    def get_range(self, key: str, *, offset: int, size_bytes: int) -> bytes:
        """Returns exactly `size_bytes` bytes from `offset`.

        Raises:
            NotFound: Nothing is stored under the key.
            DamagedData: The object ends before the range does.
            InvalidInput: The range is negative or larger than `IN_MEMORY_BYTES_MAX`.
        """

    def get_into(self, key: str, *, offset: int, into: memoryview) -> None:
        """Fills `into`, contiguous writable bytes of any length, with the object's bytes from `offset`.

        Past every cache, at the store's own speed; a folder does so where `offset` and the address of `into` are
        multiples of `DIRECT_BYTES`. After an error `into` holds anything.

        Raises:
            NotFound: Nothing is stored under the key.
            DamagedData: The object ends before the range does.
            InvalidInput: `offset` is negative.
        """

    def fetch_file(self, key: str, path: Path) -> None:
        """Copies the object to a local file, in bounded memory; the file appears whole or not at all.

        Its folder is made when missing. Not made durable: it is a copy.

        Raises:
            NotFound: Nothing is stored under the key.
        """

    def size(self, key: str) -> int | None:
        """Returns the object's length in bytes, or None when nothing is stored under the key."""

    def list(self, prefix: str) -> tuple[ObjectSeen, ...]:
        """Returns every object below the folder `prefix` ("" for all), in key order; empty when there is none.

        Raises:
            InvalidInput: More than `LISTED_MAX` objects lie there.
        """

    def delete(self, key: str) -> None:
        """Removes the object; does nothing when there is none."""


def checked_key(key: str, *, what: str = "an object key") -> str:
    """Returns `key` if it is safe as a path below any store's root.

    Args:
        key: Segments of letters, digits and "._=-", joined by "/"; none starts with a dot, so that none can climb
            out of the root or meet the store's own hidden files.
        what: What the key is, for the message.

    Raises:
        InvalidInput: The key is empty, too long, or breaks these rules.
    """
    segments = key.split("/")
    if len(key) > KEY_LENGTH_MAX or not all(
        len(segment) <= SEGMENT_LENGTH_MAX and _SEGMENT.fullmatch(segment) for segment in segments
    ):
        raise InvalidInput(
            f"accept {what}",
            got=repr(key[:120]),
            wanted=f"segments of A-Z a-z 0-9 . _ = - joined by '/', none starting with a dot, up to {KEY_LENGTH_MAX}",
        )
    return key


def checked_range(key: str, *, offset: int, size_bytes: int) -> None:
    """Checks the bounds of a range.

    Args:
        key: The object it is of, for the message.
        offset: First byte.
        size_bytes: Length.

    Raises:
        InvalidInput: The range is negative or larger than `IN_MEMORY_BYTES_MAX`.
    """
    if offset < 0 or not 0 <= size_bytes <= IN_MEMORY_BYTES_MAX:
        raise InvalidInput(
            "read a range",
            on=key,
            got=f"{size_bytes} bytes from {offset}",
            wanted=f"0 to {IN_MEMORY_BYTES_MAX} bytes from 0 or later",
        )


def ends_early(key: str, *, length: int, offset: int, size_bytes: int) -> DamagedData:
    """Returns the error for an object that ends before a range of it does.

    Args:
        key: The object.
        length: Its length.
        offset: First byte of the range.
        size_bytes: Length of the range.
    """
    return DamagedData("read a range", on=key, got=f"{length} bytes in all", wanted=f"{size_bytes} bytes at {offset}")


def too_large(key: str, size_bytes: int) -> InvalidInput:
    """Returns the error for an object that does not belong in memory.

    Args:
        key: The object.
        size_bytes: Its length.
    """
    return InvalidInput(
        "read an object into memory",
        on=key,
        got=f"{size_bytes} bytes",
        wanted=f"at most {IN_MEMORY_BYTES_MAX}",
        next_step="use fetch_file or get_range",
    )
