"""Checkpoint format: keys in an object store, the manifest, and the index of a share.

    checkpoints/<job>/shares/<step>/<file>.<segment>   a share's data, cut every `SEGMENT_BYTES` when it was written
    checkpoints/<job>/shares/<step>/<file>.tail        its index, then the checksums of its pages
    checkpoints/<job>/manifests/<step>                 written last, only if absent: it makes the step real
    checkpoints/<job>/claims/<attempt number>-<epoch>  put by each lead; a lead that sees a larger one writes no more

A share's bytes are numbered as if its data and its tail were one file. The manifest names the shares, not what is in
them, so it stays small whatever the size of the job; each share's index lists its shards. No devices are named: a
restore onto any mesh is a plan of byte ranges.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import google_crc32c
import numpy as np

from mainspring.domain import codec
from mainspring.domain.errors import DamagedData, InvalidInput, MainspringError
from mainspring.domain.ids import AttemptId, JobId
from mainspring.domain.wire import SEGMENT_BYTES, Detail, Part, Shard

FORMAT_VERSION = 2
KEEP_STEPS = 3  # The newest, one to fall back to, and one for the case that both were written by a sick node.
PAGE_BYTES_MIN = 4096  # What a disk reads at least; checksums of smaller pages would save no reading.
PAGE_BYTES_MAX = 1 << 20  # A restore reads whole pages; larger ones would spare nothing worth having.
INDEX_BYTES_MAX = 256 << 20  # Unpacked: over two million shards of one rank.
AXES_MAX = 32  # What NumPy 1 allowed; arrays of learning programs have fewer than ten.


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """What a checkpoint came from.

    Args:
        code: Content id of the code that ran, "" for none.
        commit: Its Git commit, "" when unknown.
        inputs: The data versions the job names.
        number: The attempt's number among its job's.
        epoch: Of the lead that wrote it.
        generation: The membership it was taken in.
        ranks: How many ranks there were.
        parent: "<job>@<step>" of the checkpoint the attempt began from, "" for none.
    """

    code: str = ""
    commit: str = ""
    inputs: tuple[str, ...] = ()
    number: int = 1
    epoch: int = 1
    generation: int = 1
    ranks: int = 1
    parent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareEntry:
    """One rank's share of a step: `size_bytes` in all, its data before `index_offset`.

    Args:
        rank: The place that wrote it.
        file: Its name, see `share_file`.
        size_bytes: Data, index and checksums of pages.
        index_offset: Where the index begins, which is where the data ends.
        index_bytes: Length of the index; what follows it are the checksums of pages.
        index_crc32c: Of the index.
        segment_bytes: Where its data is cut into objects.
    """

    rank: int
    file: str
    size_bytes: int
    index_offset: int
    index_bytes: int
    index_crc32c: int
    segment_bytes: int = SEGMENT_BYTES

    def __post_init__(self) -> None:
        """Checks that the parts lie inside."""
        assert 0 <= self.index_offset <= self.size_bytes - self.index_bytes <= self.size_bytes
        assert self.segment_bytes > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One durable step.

    Args:
        job: The job it belongs to.
        attempt: The attempt that saved it.
        step: The step it was taken at.
        created_s: When it became durable, seconds since the Unix epoch.
        shares: Every share.
        state: The program's own small facts.
        lineage: What it came from.
        version: Of this format.
    """

    job: JobId
    attempt: AttemptId
    step: int
    created_s: float
    shares: tuple[ShareEntry, ...]
    state: Detail = field(default_factory=dict)
    lineage: Lineage = field(default_factory=Lineage)
    version: int = FORMAT_VERSION

    @property
    def size_bytes(self) -> int:
        """Returns the bytes of all shares."""
        return sum(share.size_bytes for share in self.shares)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Claim:
    """Who may write: the newest attempt's newest lead. Claims compare by age.

    Args:
        number: The attempt's number among its job's.
        epoch: The lead's epoch in it.
    """

    number: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seal:
    crc32c: int


@dataclass(frozen=True, slots=True)
class _Array:
    path: str
    dtype: str
    part: Part
    global_shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _IndexHead:
    version: int
    paths: tuple[str, ...]
    dtypes: tuple[str, ...]
    parts: tuple[Part, ...]
    state: Detail


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareIndex:
    """What a share holds.

    Args:
        shards: Its shards; `file` is the share's name and `offset` counts in its data.
        state: The rank's own small facts.
    """

    shards: tuple[Shard, ...]
    state: Mapping[str, str | int | float | bool]


def share_file(claim: Claim, *, generation: int, rank: int) -> str:
    """Returns the name of one rank's share.

    It names who wrote it, so that a step saved anew never changes bytes an older manifest names.

    Args:
        claim: The lead's.
        generation: The generation the snapshot was taken in.
        rank: The place.
    """
    return f"{claim.number:06d}-{claim.epoch:06d}-{generation:06d}-{rank:06d}"


def claim_of(name: str) -> Claim | None:
    """Returns whose claim a share's file or a claim's key was written under, None when the name is none of ours.

    Args:
        name: The last part of the key.
    """
    number, _, rest = name.partition("-")
    epoch = rest.partition("-")[0]
    if not (number.isascii() and number.isdigit() and epoch.isascii() and epoch.isdigit()):
        return None
    return Claim(number=int(number), epoch=int(epoch))


def job_folder(job: JobId) -> str:
    """Returns the folder of everything durable a job has.

    Args:
        job: The job.
    """
    return f"checkpoints/{job}"


def manifest_key(job: JobId, step: int) -> str:
    """Returns the object key of a step's manifest.

    Args:
        job: The job.
        step: The step.
    """
    return f"{job_folder(job)}/manifests/{step:012d}"


def segment_key(job: JobId, step: int, file: str, segment: int) -> str:
    """Returns the object key of one segment of a share's data.

    Args:
        job: The job.
        step: The step.
        file: The share's name.
        segment: Its number, from 0.
    """
    return f"{job_folder(job)}/shares/{step:012d}/{file}.{segment:06d}"


def tail_key(job: JobId, step: int, file: str) -> str:
    """Returns the object key of a share's index and checksums.

    Args:
        job: The job.
        step: The step.
        file: The share's name.
    """
    return f"{job_folder(job)}/shares/{step:012d}/{file}.tail"


def claim_key(job: JobId, claim: Claim) -> str:
    """Returns the object key of a claim.

    Args:
        job: The job.
        claim: The claim.
    """
    return f"{job_folder(job)}/claims/{claim.number:06d}-{claim.epoch:06d}"


def manifest_bytes(manifest: Manifest) -> bytes:
    """Returns a manifest as it is stored: a line of JSON, and a line with that line's crc32c.

    Args:
        manifest: The manifest.

    Raises:
        InvalidInput: It has more shares than a manifest can list.
    """
    body = codec.encode(manifest)
    if len(body) > codec.MESSAGE_BYTES_MAX:
        raise InvalidInput("write a manifest", got=f"{len(manifest.shares)} shares", wanted="fewer")
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
        seal = codec.decode(_Seal, rest)
        if rest != codec.encode(seal) + b"\n" or seal.crc32c != google_crc32c.value(body):
            raise DamagedData("read a manifest", on=on, got="a crc32c that differs from its content")
        manifest = codec.decode(Manifest, body)
    except MainspringError as error:
        if isinstance(error, DamagedData):
            raise
        raise DamagedData("read a manifest", on=on, got=str(error)) from error
    if manifest.version != FORMAT_VERSION:
        raise DamagedData("read a manifest", on=on, got=f"version {manifest.version}", wanted=f"{FORMAT_VERSION}")
    return manifest


def index_bytes(shards: Sequence[Shard], state: Detail) -> bytes:
    """Returns the index of a share as it is stored, packed: names as a line of JSON, then 64-bit numbers.

    For each path: its dtype and part (numbers of the lists in the line), its axes and its global shape. Then for each
    shard: its path's number, offset, bytes, crc32c, page size, start and shape.

    Args:
        shards: The share's shards.
        state: The rank's own small facts.
    """
    dtypes: dict[str, int] = {}
    parts: dict[Part, int] = {}
    arrays: dict[_Array, int] = {}
    of_arrays: list[int] = []
    of_shards: list[int] = []
    for shard in shards:
        array = _Array(shard.path, shard.dtype, shard.part, shard.global_shape)
        if array not in arrays:
            dtype, part = dtypes.setdefault(shard.dtype, len(dtypes)), parts.setdefault(shard.part, len(parts))
            of_arrays += (dtype, part, len(shard.global_shape), *shard.global_shape)
        number = arrays.setdefault(array, len(arrays))
        of_shards += (number, shard.offset, shard.size_bytes, shard.crc32c, shard.page_bytes)
        of_shards += (*shard.start, *shard.shape)
    head = _IndexHead(
        version=FORMAT_VERSION,
        paths=tuple(array.path for array in arrays),
        dtypes=tuple(dtypes),
        parts=tuple(parts),
        state=state,
    )
    return zlib.compress(codec.encode(head) + b"\n" + np.array(of_arrays + of_shards, dtype="<i8").tobytes())


def index_from(data: bytes, share: ShareEntry, on: str) -> ShareIndex:
    """Returns what the index stored as `data` says.

    Args:
        data: What was stored.
        share: The share it is of.
        on: Its key, for messages.

    Raises:
        DamagedData: It does not hold together.
    """
    try:
        if google_crc32c.value(data) != share.index_crc32c:
            raise ValueError("a crc32c that differs from its content")
        unpacker = zlib.decompressobj()
        plain = unpacker.decompress(data, INDEX_BYTES_MAX)
        if not unpacker.eof:
            raise ValueError(f"no end within {INDEX_BYTES_MAX} bytes")
        line, _, rest = plain.partition(b"\n")
        head = codec.decode(_IndexHead, line)
        if head.version != FORMAT_VERSION:
            raise ValueError(f"version {head.version}")
        numbers: list[int] = np.frombuffer(rest, dtype="<i8").tolist()
        at, arrays = 0, []
        for path in head.paths:
            dtype, part, axes = numbers[at : at + 3]
            if min(dtype, part) < 0 or not 0 <= axes <= AXES_MAX:
                raise ValueError(f"an array with {axes} axes")
            at += 3 + axes
            arrays.append(_Array(path, head.dtypes[dtype], head.parts[part], tuple(numbers[at - axes : at])))
        shards = []
        while at < len(numbers):
            array = arrays[numbers[at]]  # A negative number is refused below.
            end = at + 5 + 2 * len(array.global_shape)
            shards.append(_checked_shard(array, numbers[at:end], share))
            at = end
    except (zlib.error, ValueError, IndexError, MainspringError) as error:
        raise DamagedData("read a share's index", on=on, got=str(error)) from error
    return ShareIndex(shards=tuple(shards), state=head.state)


def _checked_shard(array: _Array, entry: list[int], share: ShareEntry) -> Shard:
    axes = len(array.global_shape)
    number, offset, size_bytes, crc32c, page_bytes = entry[:5]
    start, shape = tuple(entry[5 : 5 + axes]), tuple(entry[5 + axes :])
    inside = all(
        low >= 0 and size >= 0 and low + size <= whole
        for low, size, whole in zip(start, shape, array.global_shape, strict=True)
    )
    paged = page_bytes == 0 or (PAGE_BYTES_MIN <= page_bytes <= PAGE_BYTES_MAX and not page_bytes & (page_bytes - 1))
    items = math.prod(shape)
    whole_items = size_bytes == 0 if items == 0 else size_bytes > 0 and size_bytes % items == 0
    if not (number >= 0 and inside and paged and whole_items and 0 <= offset <= share.index_offset - size_bytes):
        raise ValueError(f"a block of {array.path[:200]} that lies outside")
    return Shard(
        path=array.path,
        dtype=array.dtype,
        global_shape=array.global_shape,
        start=start,
        shape=shape,
        offset=offset,
        size_bytes=size_bytes,
        file=share.file,
        crc32c=crc32c,
        part=array.part,
        page_bytes=page_bytes,
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
