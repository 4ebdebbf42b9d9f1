"""Fragments: immutable Parquet blobs of episode rows, read by column, with a mask of the rows a version keeps.

A fragment is small enough to rewrite and large enough that a million episodes are a handful. What a version says of
its episodes in sum (frames, seconds, its id) is the sum over its fragments, so that a commit reads only what it adds.
"""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from mainspring.data.episode import EpisodeRow
from mainspring.data.loss import LOST
from mainspring.domain.codec import to_plain
from mainspring.domain.errors import DamagedData, InvalidInput
from mainspring.objects import Blob, ObjectStore, get_blob, put_blob

FRAGMENT_ROWS_MAX = 1 << 17  # About 15 MB: rewritten in a second, and a million episodes are eight.
WHOLE_BYTES_MAX = 8 << 20  # Smaller blobs are read whole and checked by their name, larger ones by column and page.
READERS = 4  # Fragments read side by side: hides a remote store's latency, and bounds what is held at once.
EPISODE_LETTERS = 32
BLOB_LETTERS = 64
_BLOB = pa.struct([("id", pa.string()), ("size_bytes", pa.int64())])
PIECE = pa.struct([("blob", _BLOB), ("offset", pa.int64()), ("size_bytes", pa.int64()), ("check", pa.string())])
ROWS = pa.schema(
    [
        ("id", pa.string()),
        ("source", pa.string()),
        ("task", pa.string()),
        ("robot", pa.string()),
        ("success", pa.bool_()),
        ("rate_hz", pa.float64()),
        ("frames", pa.int64()),
        ("seconds", pa.float64()),
        ("started_ns", pa.int64()),
        ("arrived_ns", pa.int64()),
        ("metadata", pa.map_(pa.string(), pa.string())),
        ("columns", PIECE),
        ("videos", pa.list_(pa.struct([("camera", pa.string()), ("blob", _BLOB), ("index", PIECE)]))),
        ("raw", pa.list_(pa.struct([("name", pa.string()), ("blob", _BLOB)]))),
    ]
)
_DICTIONARIES = [
    "task",
    "robot",
    "metadata.key_value.key",
    "metadata.key_value.value",
    "columns.blob.id",
    "videos.list.element.camera",
    "videos.list.element.index.blob.id",
]  # What repeats from row to row; ids that never do only cost time there.
_MEASURED = [
    "id",
    "frames",
    "seconds",
    "metadata",
    "columns.size_bytes",
    "videos.list.element.blob.id",
    "videos.list.element.blob.size_bytes",
    "raw.list.element.blob.id",
    "raw.list.element.blob.size_bytes",
]
_NIBBLES = np.full(256, 255, np.uint8)
_NIBBLES[[ord(letter) for letter in "0123456789abcdef"]] = range(16)

Mask = NDArray[np.bool_]
Prefixes = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """Some of a version's episodes.

    Args:
        table: Parquet of `ROWS`, in id order, each id once.
        rows: How many it has.
        keep: One bit for each row, packed, first row in the highest bit of the first byte; None when all are kept.
        episodes: Rows kept.
        frames: Steps in the kept rows.
        seconds: Time in the kept rows.
        size_bytes: Bytes of their columns, and of their raw files and videos, each file counted once.
        ids_sum: Sum of the kept ids as numbers, modulo 2^128, in hexadecimal: equal sets of ids have equal sums, in
            whatever fragments they lie. It guards against accident; who forges episodes could forge it too.
        lossy: Of the kept rows, those whose recording has lost something.
    """

    table: Blob
    rows: int
    keep: Blob | None
    episodes: int
    frames: int
    seconds: float
    size_bytes: int
    ids_sum: str
    lossy: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlobsNamed:
    """Blobs that a table names, as often as it names them: their ids, and their sizes."""

    ids: pa.StringArray
    size_bytes: NDArray[np.int64]

    @property
    def prefixes(self) -> Prefixes:
        """Returns the first 64 bits of each id."""
        return prefixes_of(self.ids)


def table_of(rows: Iterable[EpisodeRow]) -> pa.Table:
    """Returns rows as a table of `ROWS`.

    Args:
        rows: Any episodes.
    """
    return pa.Table.from_pylist([to_plain(row) for row in rows], schema=ROWS)


def put_fragment(store: ObjectStore, table: pa.Table) -> Fragment:
    """Stores rows and returns the fragment that keeps all of them.

    Args:
        store: Where to.
        table: Of `ROWS`, at least one row, at most `FRAGMENT_ROWS_MAX`; put in id order, the first of each id kept.

    Raises:
        InvalidInput: Its columns are others, or an id is not an episode's.
    """
    if table.schema != ROWS:
        raise InvalidInput("store episode rows", got=str(table.schema)[:300], wanted=f"columns {', '.join(ROWS.names)}")
    assert 0 < table.num_rows <= FRAGMENT_ROWS_MAX, table.num_rows
    table = _in_id_order(table)
    sink = io.BytesIO()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        use_dictionary=_DICTIONARIES,
        row_group_size=FRAGMENT_ROWS_MAX,
        write_page_checksum=True,
    )
    return _measured(table, blob=put_blob(store, sink.getbuffer()), rows=table.num_rows, keep=None)


def put_fragments(store: ObjectStore, table: pa.Table) -> tuple[Fragment, ...]:
    """Stores any number of rows, in as many fragments as they need.

    Args:
        store: Where to.
        table: Of `ROWS`; the first row of each id is kept.

    Raises:
        InvalidInput: Its columns are others, or an id is not an episode's.
    """
    if table.num_rows > FRAGMENT_ROWS_MAX:
        table = _in_id_order(table)  # So that no id comes in two fragments.
    starts = range(0, table.num_rows, FRAGMENT_ROWS_MAX)
    return tuple(put_fragment(store, table.slice(start, FRAGMENT_ROWS_MAX)) for start in starts)


def read_fragment(store: ObjectStore, fragment: Fragment, columns: Sequence[str] | None = None) -> pa.Table:
    """Returns the rows a fragment keeps, in id order.

    Args:
        store: Where it lies.
        fragment: Which.
        columns: Names or dotted paths of the columns wanted; all by default.

    Raises:
        NotFound: It is not there.
        DamagedData: What is there is something else.
    """
    table = _read(store, fragment.table, columns)
    mask = mask_of(store, fragment)
    return table if mask is None else table.filter(pa.array(mask))


def read_fragments(store: ObjectStore, fragments: Sequence[Fragment], columns: Sequence[str]) -> pa.Table:
    """Returns the rows that fragments keep, one fragment after the other.

    Args:
        store: Where they lie.
        fragments: Any number.
        columns: Names of the columns wanted, at least one.

    Raises:
        NotFound: One is not there.
        DamagedData: What is there is something else.
    """
    empty = pa.schema([ROWS.field(name) for name in columns]).empty_table()
    with ThreadPoolExecutor(READERS, "fragments") as pool:
        return pa.concat_tables([empty, *pool.map(lambda one: read_fragment(store, one, columns), fragments)])


def masked(store: ObjectStore, fragment: Fragment, kept: Mask) -> Fragment | None:
    """Returns a fragment that keeps fewer rows of the same table, or None when it would keep none.

    Args:
        store: Where it lies.
        fragment: Which.
        kept: Whether it stays, for each row that `fragment` keeps.

    Raises:
        DamagedData: The stored table is not what its name says.
    """
    assert len(kept) == fragment.episodes, (len(kept), fragment.episodes)
    if kept.all():
        return fragment
    if not kept.any():
        return None
    mask = mask_of(store, fragment)
    if mask is None:
        mask = kept
    else:
        mask[mask] = kept
    return _measured(
        _read(store, fragment.table, _MEASURED).filter(pa.array(mask)),
        blob=fragment.table,
        rows=fragment.rows,
        keep=put_blob(store, np.packbits(mask).data),
    )


def mask_of(store: ObjectStore, fragment: Fragment) -> Mask | None:
    """Returns which rows of its table a fragment keeps; None means all.

    Args:
        store: Where it lies.
        fragment: Which.

    Raises:
        DamagedData: The stored mask is of another length.
    """
    return None if fragment.keep is None else read_mask(store, fragment.keep, fragment.rows)


def read_mask(store: ObjectStore, keep: Blob, rows: int) -> Mask:
    """Returns a stored mask.

    Args:
        store: Where it lies.
        keep: Its blob.
        rows: How many rows it is for.

    Raises:
        DamagedData: It is of another length.
    """
    packed = np.frombuffer(get_blob(store, keep), np.uint8)
    if len(packed) != -(-rows // 8):
        raise DamagedData("read a mask", on=keep.key, got=f"{len(packed)} bytes", wanted=f"{rows} bits")
    return np.unpackbits(packed, count=rows).astype(np.bool_)


def read_blobs_named(store: ObjectStore, table: Blob, mask: Mask | None) -> BlobsNamed:
    """Returns every blob that rows of a stored Parquet table name: each pair of columns `id` and `size_bytes`.

    Args:
        store: Where it lies.
        table: Any Parquet blob.
        mask: Which rows count; None for all.

    Raises:
        NotFound: It is not there.
        DamagedData: What is there is no Parquet, or is damaged.
    """
    with _reported(table.key):
        return _named_in(_opened(store, table), mask)


def blobs_named_in(name: str, data: bytes) -> BlobsNamed:
    """Returns every blob that the rows of a Parquet file name, as `read_blobs_named`.

    Args:
        name: What it is, for the message.
        data: The file.

    Raises:
        DamagedData: It is no Parquet, or is damaged.
    """
    with _reported(name):
        return _named_in(pq.ParquetFile(pa.BufferReader(data)), None)


def _named_in(file: pq.ParquetFile, mask: Mask | None) -> BlobsNamed:
    paths = [file.schema.column(index).path for index in range(len(file.schema))]
    ids = [path for path in paths if path.endswith(".id") and f"{path[:-2]}size_bytes" in paths]
    if not ids:
        return _joined([])
    table = file.read(columns=[*ids, *(f"{path[:-2]}size_bytes" for path in ids)])
    if mask is not None:
        table = table.filter(pa.array(mask))
    return _joined(found for column in table.columns for chunk in column.chunks for found in _blobs_inside(chunk))


def prefixes_of(ids: pa.StringArray) -> Prefixes:
    """Returns the first 64 bits of hexadecimal ids: enough to tell blobs apart where mistaking two keeps both.

    Args:
        ids: Each `BLOB_LETTERS` long, of which 16 are looked at.

    Raises:
        DamagedData: One is not.
    """
    return _from_hex(ids, BLOB_LETTERS, first=16).view(">u8")[:, 0].astype(np.uint64)


class _Ranges(io.RawIOBase):
    """A stored blob as a file that is read by ranges. Its bytes are checked page by page, by who reads them."""

    def __init__(self, store: ObjectStore, blob: Blob) -> None:
        self._store = store
        self._blob = blob
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._blob.size_bytes}[whence] + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._blob.size_bytes - self._at)
        count = left if size is None or size < 0 else min(size, left)
        data = self._store.get_range(self._blob.key, offset=self._at, size_bytes=count) if count else b""
        self._at += count
        return data


@contextlib.contextmanager
def _reported(on: str) -> Iterator[None]:
    """Turns Arrow's errors inside the block into ours."""
    try:
        yield
    except (pa.ArrowException, OSError, EOFError) as error:
        raise DamagedData("read a table of episodes", on=on, got=str(error).partition("\n")[0][:300]) from error


def _opened(store: ObjectStore, table: Blob) -> pq.ParquetFile:
    small = table.size_bytes <= WHOLE_BYTES_MAX
    file = pa.BufferReader(get_blob(store, table)) if small else pa.PythonFile(_Ranges(store, table), "r")
    return pq.ParquetFile(file, page_checksum_verification=True, pre_buffer=not small)


def _read(store: ObjectStore, table: Blob, columns: Sequence[str] | None) -> pa.Table:
    with _reported(table.key):
        return _opened(store, table).read(columns=None if columns is None else list(columns))


def _in_id_order(table: pa.Table) -> pa.Table:
    order = pc.sort_indices(table, sort_keys=[("id", "ascending")])  # Stable, so the first of equal ids comes first.
    ids = table["id"].combine_chunks().take(order)
    new = np.ones(len(ids), np.bool_)
    new[1:] = pc.not_equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False)
    if new.all() and np.array_equal(order.to_numpy(), np.arange(len(ids))):
        return table
    return table.take(order.filter(pa.array(new)))


def _measured(table: pa.Table, *, blob: Blob, rows: int, keep: Blob | None) -> Fragment:
    """Returns the fragment whose kept rows are `table`, which has at least `_MEASURED`."""
    parts = (pc.struct_field(chunk.flatten(), "blob") for name in ("videos", "raw") for chunk in table[name].chunks)
    files = _joined(found for part in parts for found in _blobs_inside(part))
    prefixes = files.prefixes
    order = np.argsort(prefixes)
    first = np.ones(len(order), np.bool_)
    first[1:] = np.diff(prefixes[order]) != 0
    columns = pc.sum(pc.struct_field(table["columns"], "size_bytes")).as_py()
    lanes = (
        _from_hex(table["id"].combine_chunks(), EPISODE_LETTERS, first=EPISODE_LETTERS)
        .view(">u4")
        .sum(axis=0, dtype=np.uint64)
    )
    total = sum(int(lane) << (96 - 32 * place) for place, lane in enumerate(lanes)) % 2**128
    return Fragment(
        table=blob,
        rows=rows,
        keep=keep,
        episodes=table.num_rows,
        frames=pc.sum(table["frames"]).as_py(),
        seconds=pc.sum(table["seconds"]).as_py(),
        size_bytes=columns + int(files.size_bytes[order][first].sum()),
        ids_sum=f"{total:032x}",
        lossy=table.num_rows - pc.map_lookup(table["metadata"], LOST, "first").null_count,
    )


def _blobs_inside(array: Any) -> Iterator[BlobsNamed]:
    if pa.types.is_struct(array.type):
        fields = {array.type.field(index).name: part for index, part in enumerate(array.flatten())}
        if {"id", "size_bytes"} <= fields.keys() and pa.types.is_string(fields["id"].type):
            yield BlobsNamed(
                ids=fields["id"].drop_null(), size_bytes=fields["size_bytes"].drop_null().to_numpy(zero_copy_only=False)
            )
        for part in fields.values():
            yield from _blobs_inside(part)
    elif pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        yield from _blobs_inside(array.flatten())


def _joined(parts: Iterable[BlobsNamed]) -> BlobsNamed:
    parts = list(parts)
    return BlobsNamed(
        ids=pa.concat_arrays([pa.array([], pa.string()), *(part.ids for part in parts)]),
        size_bytes=np.concatenate([np.zeros(0, np.int64), *(part.size_bytes for part in parts)]),
    )


def _from_hex(ids: pa.StringArray, letters: int, *, first: int) -> NDArray[np.uint8]:
    """Returns [N, first / 2] bytes, of the first letters of ids that have `letters` each."""
    count = len(ids)
    offsets = np.frombuffer(ids.buffers()[1], np.int32, count + 1, 4 * ids.offset) if count else np.zeros(1, np.int32)
    if ids.null_count or (np.diff(offsets) != letters).any():
        raise DamagedData("read ids", got=str(ids.slice(0, 3).to_pylist())[:200], wanted=f"{letters} letters each")
    if not count:
        return np.zeros((0, first // 2), np.uint8)
    text = np.frombuffer(ids.buffers()[2], np.uint8, count * letters, int(offsets[0])).reshape(count, letters)
    nibbles = _NIBBLES[text[:, :first]]
    if nibbles.max() > 15:
        wrong = int((nibbles > 15).any(axis=1).argmax())
        raise DamagedData("read ids", got=repr(ids[wrong].as_py()), wanted=f"{letters} hexadecimal letters")
    nibbles[:, 0::2] <<= 4
    packed: NDArray[np.uint8] = nibbles[:, 0::2] | nibbles[:, 1::2]
    return packed


def chunked(parts: Sequence[Fragment], values: Mask) -> Iterator[Mask]:
    """Yields the part of `values` that belongs to each fragment's kept rows, one fragment after the other.

    Args:
        parts: Fragments, as they were read.
        values: One for each row they keep together.
    """
    for part, end in zip(parts, itertools.accumulate(part.episodes for part in parts), strict=True):
        yield values[end - part.episodes : end]
