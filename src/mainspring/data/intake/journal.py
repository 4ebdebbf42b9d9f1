"""Ingest journal: kept in the store batch by batch, so that a rerun after a kill does only the rest.

`intake/<dataset>/<recipe>/<hash>.parquet` is a batch: a line for each episode found, or for what should have been one.
Until a version holds them, lines carry the episodes' rows (and so keep their blobs from being collected); afterwards
only what it takes to know a recording again.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from blake3 import blake3
from numpy.typing import NDArray

from mainspring.data.catalog.condemned import confirm
from mainspring.data.catalog.fragments import ROWS, blobs_named_in, table_of
from mainspring.data.episode import EpisodeRow
from mainspring.data.features import Features
from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import DamagedData, NotFound, Unavailable
from mainspring.objects import ObjectStore

BATCHES_KEPT_MAX = 32  # A request and a millisecond each whenever an ingest begins.
_KEY = np.dtype("S32")
_HASH_LETTERS = 32
_FEATURES = b"mainspring.features"  # In a batch's schema: hash of each features to the features.
_LINES = pa.schema(
    [
        ("key", pa.binary(32)),  # Content of the unit it was found in.
        ("mark", pa.uint64()),  # How the unit's files looked on disk.
        ("name", pa.string()),
        ("reason", pa.string()),
        ("note", pa.string()),
        ("features", pa.string()),  # Hash of what the steps hold.
        ("episode", pa.string()),
        ("frames", pa.int64()),
    ]
)
_ROW = pa.field("row", pa.struct(list(ROWS)))
_STAGED = pa.field("staged", pa.bool_())

Keys = NDArray[np.bytes_]


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """One episode found, or why there is none.

    Args:
        key: Hash of what decides the unit it was found in.
        mark: Of the unit's files, see `units.mark_of`.
        name: Where it was found.
        reason: Why it is left out; "" when it is sound.
        note: What was passed over.
        row: The episode, when it is sound.
        features: What its steps hold, when it is sound.
    """

    key: str
    mark: int
    name: str
    reason: str = ""
    note: str = ""
    row: EpisodeRow | None = None
    features: Features | None = None


class Journal:
    """The journal of one dataset under one recipe; for one thread, but for `key_of` and `done`.

    Args:
        store: Where it lies.
        dataset: The dataset.
        recipe: The recipe's id.
        held: Ids of the episodes that the dataset's newest version holds.
        features: What its steps hold; None when there is no version.
    """

    def __init__(
        self, store: ObjectStore, dataset: str, recipe: str, *, held: pa.Array, features: Features | None
    ) -> None:
        self._store = store
        self._folder = f"intake/{dataset}/{recipe}"
        self._features: dict[str, Features] = {}
        self._batches: dict[str, pa.Table] = {}
        for entry in store.list(self._folder):
            try:
                self._keep(entry.key, _table_in(entry.key, store.get(entry.key), [*_LINES.names, "row.id"]))
            except NotFound:
                continue  # Another ingest has just joined it with others: that costs no more than work done twice.
        lines = self._table()
        lost = lines.filter(pc.invert(_finished(lines, held, features)))
        self._done = np.setdiff1d(_keys(lines["key"]), _keys(lost["key"]))
        marks = lines["mark"].to_numpy()
        order = np.argsort(marks, kind="stable")
        self._marks, self._marked = marks[order], _keys(lines["key"])[order]

    def key_of(self, mark: int) -> str | None:
        """Returns the key of a unit whose files look as they did when it was read.

        Args:
            mark: How they look.
        """
        place = int(np.searchsorted(self._marks, np.uint64(mark)))
        found = place < len(self._marks) and int(self._marks[place]) == mark
        return bytes(self._marked[place]).decode() if found else None

    def done(self, key: str) -> bool:
        """Returns whether nothing is left to do for a unit but to publish its episodes.

        Args:
            key: The unit.
        """
        wanted = np.array(key.encode(), _KEY)
        place = int(np.searchsorted(self._done, wanted))
        return place < len(self._done) and bool(self._done[place] == wanted)

    def add(self, lines: Sequence[JournalEntry]) -> None:
        """Writes a batch; when this returns, its units need not be read again.

        Args:
            lines: Every line of each unit in it. What their rows name is stored already.

        Raises:
            StorageFull: There is no room.
        """
        features = {hash_of(line.features): line.features for line in lines if line.features}
        columns = {
            "key": [line.key.encode() for line in lines],
            "mark": [line.mark for line in lines],
            "name": [line.name for line in lines],
            "reason": [line.reason for line in lines],
            "note": [line.note for line in lines],
            "features": [hash_of(line.features) if line.features else "" for line in lines],
            "episode": [line.row.id if line.row else "" for line in lines],
            "frames": [line.row.frames if line.row else 0 for line in lines],
        }
        rows = table_of(line.row for line in lines if line.row)
        has_row = np.array([line.row is not None for line in lines], np.bool_)
        structs = pa.StructArray.from_arrays([_whole(column) for column in rows.columns], fields=list(ROWS))
        place = pa.array(np.cumsum(has_row) - 1, mask=~has_row)
        self._put(pa.table(columns, schema=_LINES).append_column(_ROW, structs.take(place)), features)

    def lines(self, keys: Keys) -> pa.Table:
        """Returns the lines of some units, each once: columns of `JournalEntry`, with `features` as a hash and no row.

        Args:
            keys: The units.
        """
        lines = self._table()
        return _once(lines.filter(_within(lines["key"], keys)))

    def features(self, said: str) -> Features:
        """Returns the features that a line means.

        Args:
            said: Its column `features`.
        """
        return self._features[said]

    def rows(self, keys: Keys, features: str, *, held: pa.Array) -> Iterator[pa.Table]:
        """Yields tables of `ROWS`: what some units have for a version and it does not hold.

        Args:
            keys: The units.
            features: What its steps hold, as the lines say it.
            held: Ids of episodes it holds.

        Raises:
            Unavailable: What a batch names was collected as garbage: its units are read again next time.
        """
        lines = self._table()
        wanted = pc.and_(lines["staged"], pc.equal(lines["features"], features))
        wanted = pc.and_not(pc.and_(wanted, _within(lines["key"], keys)), pc.is_in(lines["episode"], held))
        for key, here in zip(sorted(self._batches), self._apart(wanted), strict=True):
            if here.any():
                data = self._store.get(key)
                self._confirm(key, data)
                structs = _whole(_table_in(key, data, ["row"])["row"])
                yield pa.Table.from_arrays(structs.filter(pa.array(here)).flatten(), schema=ROWS)

    def fold(self, held: pa.Array, features: Features | None) -> None:
        """Forgets the rows that a version holds or cannot hold, and joins small batches.

        Units that were refused as a whole are forgotten too: next time somebody may have mended what refused them.
        Killed at any point it loses nothing: what is joined is written before what it was joined from is removed.

        Args:
            held: Ids of the episodes that the newest version holds.
            features: What its steps hold; None when there is no version.
        """
        lines = self._table()
        open_rows = pc.and_not(lines["staged"], pc.is_in(lines["episode"], held))
        if features:
            open_rows = pc.and_(open_rows, pc.equal(lines["features"], hash_of(features)))
        settled = [not here.any() for here in self._apart(open_rows)]
        folding = [key for key, here in zip(sorted(self._batches), settled, strict=True) if here]
        lines = _once(lines.filter(pa.array(np.array(settled, np.bool_)[lines["batch"].to_numpy()])))
        kept = lines.filter(_within(lines["key"], _keys(lines["key"].filter(pc.equal(lines["reason"], "")))))
        if len(folding) <= BATCHES_KEPT_MAX and kept.num_rows == lines.num_rows and not pc.any(kept["staged"]).as_py():
            return
        written = ""
        if kept.num_rows:
            written = self._put(
                kept.select(_LINES.names).append_column(_ROW, pa.nulls(kept.num_rows, _ROW.type)), self._features
            )
        for key in folding:
            if key != written:
                self._store.delete(key)
                del self._batches[key]

    def _table(self) -> pa.Table:
        """Returns all lines in the order of their batches, with the number of each one's batch."""
        batches = [self._batches[key] for key in sorted(self._batches)]
        number = np.repeat(np.arange(len(batches)), [batch.num_rows for batch in batches])
        empty = _LINES.append(_STAGED).empty_table()
        return pa.concat_tables([empty, *batches]).append_column("batch", pa.array(number, pa.int64()))

    def _apart(self, values: pa.ChunkedArray) -> list[NDArray[np.bool_]]:
        """Returns the part of a column of `_table` that belongs to each batch."""
        ends = np.cumsum([self._batches[key].num_rows for key in sorted(self._batches)])
        found: NDArray[np.bool_] = np.asarray(values.to_numpy(), np.bool_)
        return np.split(found, ends[:-1]) if len(ends) else []

    def _keep(self, key: str, table: pa.Table) -> None:
        said = json.loads(table.schema.metadata[_FEATURES])
        self._features |= {name: decode(Features, text.encode()) for name, text in said.items()}
        staged = pc.is_valid(table["row"])
        self._batches[key] = table.select(_LINES.names).append_column(_STAGED, staged).replace_schema_metadata(None)

    def _confirm(self, key: str, data: bytes) -> None:
        """Checks that what a batch names was not collected since it was stored; else the batch goes."""
        try:
            confirm(self._store, blobs_named_in(key, data).ids)
        except Unavailable:
            self._store.delete(key)
            raise

    def _put(self, table: pa.Table, features: Mapping[str, Features]) -> str:
        table = table.replace_schema_metadata(
            {_FEATURES: json.dumps({name: encode(value).decode() for name, value in sorted(features.items())})}
        )
        sink = io.BytesIO()
        pq.write_table(table, sink, compression="zstd")
        data = sink.getbuffer()
        key = f"{self._folder}/{blake3(data).hexdigest()[:_HASH_LETTERS]}.parquet"
        self._store.put_if_absent(key, data)
        self._keep(key, table)
        return key


def _table_in(key: str, data: bytes, columns: list[str]) -> pa.Table:
    try:
        return pq.ParquetFile(pa.BufferReader(data)).read(columns=columns)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DamagedData(
            "read an ingest's journal",
            on=key,
            got=str(error)[:200],
            next_step="delete the object: its recordings are then read again",
        ) from error


def keys_from(letters: bytes | bytearray) -> Keys:
    """Returns keys as an array.

    Args:
        letters: 32 of each, one key after the other.
    """
    return np.frombuffer(letters, _KEY)


def hash_of(features: Features) -> str:
    """Returns how lines say features.

    Args:
        features: The features.
    """
    return blake3(encode(features)).hexdigest()[:_HASH_LETTERS]


def _finished(lines: pa.Table, held: pa.Array, features: Features | None) -> pa.Array:
    """Returns for each line whether it needs no reading: refused, staged, in the version, or not fit for it."""
    finished = pc.or_(pc.not_equal(lines["reason"], ""), pc.or_(lines["staged"], pc.is_in(lines["episode"], held)))
    return finished if features is None else pc.or_(finished, pc.not_equal(lines["features"], hash_of(features)))


def _once(lines: pa.Table) -> pa.Table:
    """Returns each unit's lines from one batch only, where it is in several: from one that keeps its rows."""
    if lines.num_rows == 0:
        return lines
    batch = lines["batch"].to_numpy()
    count = int(batch.max()) + 1
    rank = batch + np.where(np.asarray(lines["staged"].to_numpy(), np.bool_), 0, count)
    units, unit = np.unique(_keys(lines["key"]), return_inverse=True)
    best = np.full(len(units), 2 * count)
    np.minimum.at(best, unit, rank)
    return lines.filter(pa.array(best[unit] % count == batch))


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays([pa.array([], column.type), *column.chunks])


def _keys(column: pa.ChunkedArray) -> Keys:
    """Returns a column of keys as an array, without copying them one by one."""
    whole = _whole(column)
    start = whole.offset * _KEY.itemsize
    return np.frombuffer(whole.buffers()[1], np.uint8)[start : start + len(whole) * _KEY.itemsize].view(_KEY)


def _within(column: pa.ChunkedArray, keys: Keys) -> pa.Array:
    return pa.array(np.isin(_keys(column), keys))
