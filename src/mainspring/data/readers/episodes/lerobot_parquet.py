"""Reads rows of a LeRobot dataset's Parquet files, and holds them against what the files say of themselves.

Source: apache/parquet-format, `Statistics` of column chunks, and the checksums of pages where a writer made some.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mainspring.data.episode import Floats, Integers
from mainspring.domain.errors import DamagedData

EPISODE = "episode_index"
_BATCH_ROWS = 16_384  # Decoded at once: some megabytes, and few enough calls.
_PICTURES_AT_ONCE = 32  # Of a camera: at most some tens of megabytes.
_BUFFER_BYTES = 1 << 20
_EXACT_MAX = 1 << 53  # Beyond it doubles skip whole numbers.
_DEPTH_MAX = 8  # Lists in lists.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Rows of one episode, or all of a file's.

    Args:
        table: The rows.
        objections: By column, where the file's own statistics disagree with what is in it.
    """

    table: pa.Table
    objections: Mapping[str, str] = field(default_factory=dict)


def rows_of(path: Path, columns: Sequence[str], *, rows_max: int, episode: int | None = None) -> Rows:
    """Returns some columns of the first rows of a Parquet file; its pages' checksums are verified.

    Args:
        path: The file.
        columns: Their names; those that are missing are left out.
        rows_max: How many rows at most: a small file may hold more of them than any memory does.
        episode: Whose rows; None for all.

    Raises:
        DamagedData: It cannot be read.
    """
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            here = [name for name in dict.fromkeys(columns) if name in file.schema_arrow.names]
            wanted = here if episode is None or EPISODE in here else [*here, EPISODE]
            parts: list[pa.RecordBatch] = []
            objections: dict[str, str] = {}
            left = rows_max
            for group in range(file.num_row_groups):
                if not left or not _may_hold(file, group, episode):
                    continue
                extremes = _Extremes(file, group, wanted)
                for batch in file.iter_batches(_BATCH_ROWS, [group], wanted, use_threads=False):
                    extremes.add(batch)
                    part = batch if episode is None else batch.filter(pc.equal(batch[EPISODE], episode))
                    parts.append(part.select(here).slice(0, left))
                    left -= parts[-1].num_rows
                    if not left:
                        break
                else:
                    objections |= extremes.objections()
            return Rows(
                table=pa.Table.from_batches(parts, pa.schema([file.schema_arrow.field(name) for name in here])),
                objections=objections,
            )
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedData("read a Parquet file", on=path.name, got=str(error)[:200]) from error


def cells_of(path: Path, column: str, *, rows_max: int, episode: int | None) -> Iterator[Any]:
    """Yields a column's cells as Python's values, a few read at a time: each may be a picture.

    Args:
        path: The file.
        column: The column.
        rows_max: How many at most.
        episode: Whose rows; None for all.

    Raises:
        DamagedData: It cannot be read.
    """
    left = rows_max
    try:
        with pq.ParquetFile(path, page_checksum_verification=True, buffer_size=_BUFFER_BYTES) as file:
            wanted = [column] if episode is None else [column, EPISODE]
            groups = [group for group in range(file.num_row_groups) if _may_hold(file, group, episode)]
            for batch in file.iter_batches(_PICTURES_AT_ONCE, groups, wanted, use_threads=False):
                part = batch if episode is None else batch.filter(pc.equal(batch[EPISODE], episode))
                for cell in part[column].slice(0, left):
                    yield cell.as_py()
                left -= min(left, part.num_rows)
                if not left:
                    return
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedData("read a Parquet file", on=path.name, got=str(error)[:200]) from error


def schema_of(path: Path) -> pa.Schema | None:
    """Returns the columns of a Parquet file; None when it cannot be read.

    Args:
        path: The file.
    """
    try:
        return pq.read_schema(path)
    except (pa.ArrowException, OSError, ValueError):
        return None


def rows_in(path: Path) -> int:
    """Returns how many rows a Parquet file has.

    Args:
        path: The file.

    Raises:
        DamagedData: It cannot be read.
    """
    try:
        return int(pq.read_metadata(path).num_rows)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DamagedData("read a Parquet file", on=path.name, got=str(error)[:200]) from error


def whole_column(table: pa.Table, name: str) -> pa.Array:
    """Returns a column in one piece, without dictionaries and names for types.

    Args:
        table: The table.
        name: The column.

    Raises:
        DamagedData: It is missing.
    """
    if name not in table.column_names:
        raise DamagedData("read a column", on=name, got=f"columns {', '.join(table.column_names)}"[:300])
    chunks = table[name].chunks
    column = pa.concat_arrays(chunks) if chunks else pa.array([], table[name].type)
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def numbers(table: pa.Table, name: str) -> Floats:
    """Returns a column of numbers, vectors or arrays as [T, D], the last dimension fastest.

    Args:
        table: A table of T rows.
        name: The column.

    Raises:
        DamagedData: It is missing, holds empty cells or something else than numbers, or its vectors differ in length.
    """
    column = whole_column(table, name)
    for _ in range(_DEPTH_MAX):
        _refuse_empty(column, name)
        kind = column.type
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
            break
        if not pa.types.is_fixed_size_list(kind) and len(pc.unique(column.value_lengths())) > 1:
            raise DamagedData("read a column", on=name, got="vectors of several lengths", wanted="one length")
        column = column.flatten()
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise DamagedData("read a column", on=name, got=f"{column.type}", wanted="numbers")
    flat: Floats = np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)
    if table.num_rows and flat.size % table.num_rows:
        raise DamagedData("read a column", on=name, got=f"{flat.size} values", wanted=f"{table.num_rows} rows of them")
    return flat.reshape(table.num_rows, -1) if table.num_rows else flat.reshape(0, 1)


def is_rounded(table: pa.Table, name: str) -> bool:
    """Returns whether a column holds whole numbers that no double is exactly.

    Args:
        table: The table.
        name: The column, of numbers.
    """
    kind = kind_of(table, name)
    if not (pa.types.is_int64(kind) or pa.types.is_uint64(kind)):
        return False
    return bool(np.abs(numbers(table, name)).max(initial=0.0) > _EXACT_MAX)


def kind_of(table: pa.Table, name: str) -> pa.DataType:
    """Returns how each of a column's numbers is kept.

    Args:
        table: The table.
        name: The column.
    """
    return _leaf(table.schema.field(name).type)[0]


def texts(table: pa.Table, name: str) -> list[str]:
    """Returns a column's cells in words, as JSON where they are more than a text; "" for an empty cell.

    Args:
        table: The table.
        name: The column.
    """
    return [
        "" if cell is None else cell if isinstance(cell, str) else json.dumps(cell, default=str, sort_keys=True)
        for cell in whole_column(table, name).to_pylist()
    ]


def _refuse_empty(column: pa.Array, name: str) -> None:
    if column.null_count:
        first = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise DamagedData(
            "read a column",
            on=name,
            got=f"{column.null_count} empty cells, the first at {first}",
            wanted="a number in each",
        )


def _may_hold(file: pq.ParquetFile, group: int, episode: int | None) -> bool:
    """Returns whether a group of rows may hold some of an episode, by what the file says of its extremes."""
    columns = file.metadata.row_group(group)
    for place in range(columns.num_columns if episode is not None else 0):
        column = columns.column(place)
        if column.path_in_schema == EPISODE and column.statistics is not None and column.statistics.has_min_max:
            return bool(column.statistics.min <= episode <= column.statistics.max)
    return True


class _Extremes:
    """The extremes of a group's columns of numbers, beside what the file says they are."""

    def __init__(self, file: pq.ParquetFile, group: int, columns: Sequence[str]) -> None:
        self._said: dict[str, tuple[float, float]] = {}
        self._found: dict[str, list[tuple[Any, Any]]] = {}
        said = file.metadata.row_group(group)
        leaf = 0
        for part in file.schema_arrow:
            kind, leaves = _leaf(part.type)
            if part.name in columns and leaves == 1 and _compares(kind) and leaf < said.num_columns:
                statistics = said.column(leaf).statistics
                if statistics is not None and statistics.has_min_max:
                    self._said[part.name] = (statistics.min, statistics.max)
                    self._found[part.name] = []
            leaf += leaves

    def add(self, batch: pa.RecordBatch) -> None:
        """Takes more of the group's rows into account."""
        for name, found in self._found.items():
            column = batch[name]
            while pa.types.is_nested(column.type):
                column = column.flatten()
            extremes = pc.min_max(column).as_py()
            if extremes["min"] is not None:
                found.append((extremes["min"], extremes["max"]))

    def objections(self) -> Iterator[tuple[str, str]]:
        """Yields the columns whose extremes are not those the file says, and how."""
        for name, (low, high) in self._said.items():
            if not (found := self._found[name]):
                continue
            here = (min(one[0] for one in found), max(one[1] for one in found))
            if here != (low, high) and not any(map(_is_nan, (*here, low, high))):
                yield name, f"{here[0]:g} to {here[1]:g} where its file's own statistics say {low:g} to {high:g}"


def _leaf(kind: pa.DataType) -> tuple[pa.DataType, int]:
    """Returns the type of a column's values, and how many columns of the file it is."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_dictionary(kind) or not pa.types.is_nested(kind):
        return kind, 1
    parts = [_leaf(kind.field(place).type) for place in range(kind.num_fields)]
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return parts[0][0] if lists and parts else kind, sum(leaves for _, leaves in parts)


def _compares(kind: pa.DataType) -> bool:
    """Returns whether a file's statistics of such values are numbers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind))


def _is_nan(value: Any) -> bool:
    return bool(value != value)


def columns_of_integers(table: pa.Table, name: str) -> Integers:
    """Returns a column of whole numbers, one for each row.

    Args:
        table: The table.
        name: The column.

    Raises:
        DamagedData: It holds something else.
    """
    values = numbers(table, name)
    if values.shape[1] != 1 or not np.array_equal(values, np.round(values)):
        raise DamagedData("read a column", on=name, got=f"shape {values.shape}", wanted="a whole number a row")
    return values[:, 0].astype(np.int64)
