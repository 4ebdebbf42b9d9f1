"""What a checkpoint is on disk: names of its files, its manifest, its checksums.

    checkpoints/<job>/<step, 12 digits>/<attempt>-<epoch>-<generation>-<rank>.bin   data of one rank, shards end to end
    checkpoints/<job>/<step, 12 digits>/manifest.jsonl                              written last, only if absent

The manifest is two lines of JSON: the `Manifest`, then the crc32c of that first line. It names no devices: a restore
onto any mesh is a plan of byte ranges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from mainspring.domain import codec
from mainspring.domain.errors import DamagedData, MainspringError
from mainspring.domain.ids import AttemptId, JobId
from mainspring.domain.wire import Detail, Shard

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.jsonl"
KEEP_STEPS = 3  # The newest, one to fall back to, and one for the case that both were written by a sick node.
_CRC_CHUNK_BYTES = 16 << 20  # The checksum holds the interpreter: 16 MiB keep it for about a millisecond at a time.


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One durable step.

    Args:
        job: The job it belongs to.
        attempt: The attempt that saved it.
        step: The step it was taken at.
        created_s: When it became durable, seconds since the Unix epoch.
        state: The program's own small facts.
        shards: Every shard, each with its file and crc32c.
        version: Of this format.
    """

    job: JobId
    attempt: AttemptId
    step: int
    created_s: float
    shards: tuple[Shard, ...]
    state: Detail = field(default_factory=dict)
    version: int = FORMAT_VERSION

    @property
    def size_bytes(self) -> int:
        """Returns the bytes of all shards."""
        return sum(shard.size_bytes for shard in self.shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seal:
    crc32c: int


def manifest_bytes(manifest: Manifest) -> bytes:
    """Returns a manifest as it is stored.

    Args:
        manifest: The manifest.
    """
    body = codec.encode(manifest)
    return body + b"\n" + codec.encode(_Seal(crc32c=google_crc32c.value(body))) + b"\n"


def manifest_from(data: bytes, on: str) -> Manifest:
    """Returns the manifest stored as `data`.

    Args:
        data: What was stored.
        on: Its key, for messages.

    Raises:
        DamagedData: It is not whole, or of another version.
    """
    body, _, rest = data.partition(b"\n")
    try:
        sealed = codec.decode(_Seal, rest).crc32c
        if sealed != google_crc32c.value(body):
            raise DamagedData("read a manifest", on=on, got="a crc32c that differs from its content")
        manifest = codec.decode(Manifest, body)
    except MainspringError as error:
        if isinstance(error, DamagedData):
            raise
        raise DamagedData("read a manifest", on=on, got=str(error)) from error
    if manifest.version != FORMAT_VERSION:
        raise DamagedData("read a manifest", on=on, got=f"version {manifest.version}", wanted=f"{FORMAT_VERSION}")
    return manifest


def crc32c_of(data: NDArray[np.uint8]) -> int:
    """Returns the crc32c of bytes.

    Args:
        data: A one-dimensional contiguous array.

    Source: RFC 3720, appendix B.4 (Castagnoli).
    """
    crc = 0
    for start in range(0, len(data), _CRC_CHUNK_BYTES):
        crc = google_crc32c.extend(crc, data[start : start + _CRC_CHUNK_BYTES])
    return int(crc)


def checked_shard(data: NDArray[np.uint8], shard: Shard, on: str) -> None:
    """Checks a shard's bytes against its checksum.

    Args:
        data: Its bytes.
        shard: What they should be.
        on: Where they came from, for the message.

    Raises:
        DamagedData: They differ.
    """
    got = crc32c_of(data)
    if len(data) != shard.size_bytes or got != shard.crc32c:
        raise DamagedData(
            f"read shard {shard.path} at {shard.start}",
            on=on,
            got=f"crc32c {got:08x} of {len(data)} bytes",
            wanted=f"{shard.crc32c & 0xFFFFFFFF:08x} of {shard.size_bytes}",
        )


def dtype_named(name: str) -> np.dtype[Any]:
    """Returns the dtype of plain numbers called `name`.

    Args:
        name: NumPy's or ml_dtypes' name.

    Raises:
        DamagedData: No such type of numbers.
    """
    try:
        dtype = np.dtype(name)
    except TypeError:
        import ml_dtypes  # Only where such an array exists: it comes with JAX, not with every install.

        kind = getattr(ml_dtypes, name, None)
        if not isinstance(kind, type):
            raise DamagedData("read an array", got=f"dtype {name[:80]!r}", wanted="a type of numbers") from None
        return np.dtype(kind)
    if not (dtype.kind in "biufc" or dtype.isbuiltin == 2):
        raise DamagedData("read an array", got=f"dtype {name[:80]!r}", wanted="a type of numbers")
    return dtype


def by_path(shards: tuple[Shard, ...]) -> Mapping[str, tuple[Shard, ...]]:
    """Returns shards grouped by path, each place once (the first copy counts).

    Args:
        shards: A manifest's shards.
    """
    places: dict[str, dict[tuple[int, ...], Shard]] = {}
    for shard in shards:
        places.setdefault(shard.path, {}).setdefault(shard.start, shard)
    return {path: tuple(found.values()) for path, found in sorted(places.items())}
