"""LeRobot statistics: what a dataset says of each episode's numbers, and whether they agree.

Statistics of pictures are made of samples, quantiles are estimates; neither is looked at.
Source: `lerobot/datasets/compute_stats.py` of versions 0.1 to 0.6; of v2.0, statistics of the whole set only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from mainspring.data.episode import Floats

LOW, HIGH, MEAN, SPREAD, COUNT = "min", "max", "mean", "std", "count"
KINDS = (LOW, HIGH, MEAN, SPREAD, COUNT)
_SAME = 2e-6  # Of the largest value: 16 units in the last place of a float32, as sums in another order differ.
_DIM_WORDS_MAX = 4_096

Packed: TypeAlias = tuple[tuple[str, str, bytes], ...]  # Column, kind, doubles: small, and a value.


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection:
    """A column that is not what is said of it.

    Args:
        column: The dataset's name of it.
        text: What is said, and what is so.
    """

    column: str
    text: str


def packed(plain: object, columns: Sequence[str]) -> Packed:
    """Returns what is said of some columns, as JSON gives it.

    Args:
        plain: Column to kind to numbers.
        columns: Which; a column whose name holds slashes may be nested by them.
    """
    found: list[tuple[str, str, bytes]] = []
    for column in columns:
        said = _under(plain, column)
        if not isinstance(said, Mapping):
            continue
        for kind in KINDS:
            if kind in said and (values := _doubles(said[kind])) is not None:
                found.append((column, kind, values.tobytes()))
    return tuple(found)


def packed_rows(table: pa.Table, columns: Sequence[str]) -> list[Packed]:
    """Returns what is said of some columns in each row of a table of episodes.

    Args:
        table: With "stats/<column>/<kind>".
        columns: Which.
    """
    rows: list[list[tuple[str, str, bytes]]] = [[] for _ in range(table.num_rows)]
    for column in columns:
        for kind in KINDS:
            name = f"stats/{column}/{kind}"
            if name not in table.column_names:
                continue
            for row, said in zip(rows, table[name].to_pylist(), strict=True):
                if (values := _doubles(said)) is not None:
                    row.append((column, kind, values.tobytes()))
    return [tuple(row) for row in rows]


def objections(
    said: Packed, values: Mapping[str, Floats], kept: Mapping[str, pa.DataType], *, whole: bool
) -> Iterator[Objection]:
    """Yields the columns that are not what is said of them, the first disagreement of each.

    Args:
        said: What is said.
        values: [T, D] by column, as they were read.
        kept: How each of their numbers was kept: some statistics of small numbers overflowed in their makers.
        whole: Whether it is said of these rows alone; else of more, and they must lie between its extremes.
    """
    by_column: dict[str, dict[str, Floats]] = {}
    for column, kind, data in said:
        if column in kept and kind not in _overflowing(kept[column]):
            by_column.setdefault(column, {})[kind] = np.frombuffer(data, np.float64)
    for column, kinds in by_column.items():
        if column in values and len(values[column]):
            text = _disagreement(values[column], kinds) if whole else _beyond(values[column], kinds)
            if text:
                yield Objection(column=column, text=text)


def _overflowing(kind: pa.DataType) -> tuple[str, ...]:
    """Returns the statistics that LeRobot's tools made of squares or sums in a column's own narrow type."""
    return (MEAN, SPREAD) if pa.types.is_float16(kind) else (SPREAD,) if pa.types.is_integer(kind) else ()


def _disagreement(values: Floats, said: Mapping[str, Floats]) -> str:
    rows, dims = values.shape
    if COUNT in said and len(said[COUNT]) == 1:
        count = said[COUNT][0]
        if count == rows - 1:  # The row that is too many is told of elsewhere.
            values = values[:-1]
        elif count not in (rows, rows + 1):
            return f"{rows} rows where its statistics say {count:g}"
    if wide := [kind for kind in (LOW, HIGH, MEAN, SPREAD) if kind in said and len(said[kind]) != dims]:
        return f"{dims} dimensions where its statistics have {len(said[wide[0]])}"
    if not np.isfinite(values).all():
        return ""  # The doctor tells which.
    near = _SAME * np.abs(values).max(axis=0) + np.finfo(np.float32).tiny
    singles = values.astype(np.float32)  # Sums of singles drift, and are what LeRobot's tools say.
    for kind, found in {LOW: values.min(axis=0), HIGH: values.max(axis=0)}.items():
        if kind in said and (text := _first(kind, found, said[kind], np.abs(found - said[kind]) > near)):
            return text
    if MEAN in said:
        means = np.stack([values.mean(axis=0), singles.mean(axis=0, dtype=np.float32)])
        if text := _first(MEAN, means[0], said[MEAN], _outside(said[MEAN], means, near)):
            return text
    return _spread_disagreement(values, singles, said) if SPREAD in said else ""


def _spread_disagreement(values: Floats, singles: np.typing.NDArray[np.float32], said: Mapping[str, Floats]) -> str:
    """Compares variances: as the mean of squared distances, or as mean square less squared mean, which cancels."""
    variance = values.var(axis=0)
    told = said[SPREAD] ** 2
    mean = singles.mean(axis=0, dtype=np.float32)
    square = (singles * singles).mean(axis=0, dtype=np.float32)
    ways = np.stack([variance, singles.var(axis=0, dtype=np.float32), np.maximum(0, square - mean * mean)])
    near = 2 * _SAME * np.abs(values).max(axis=0) ** 2 + np.finfo(np.float32).tiny
    sample = variance * len(values) / max(1, len(values) - 1)  # What pandas and PyTorch call the deviation.
    wrong = _outside(told, ways, near) & (np.abs(told - sample) > near)
    return _first(SPREAD, np.sqrt(variance), said[SPREAD], wrong)


def _outside(said: Floats, found: Floats, near: Floats) -> np.typing.NDArray[np.bool_]:
    """Returns where a number is not between the ways to compute it."""
    wrong: np.typing.NDArray[np.bool_] = (said < found.min(axis=0) - near) | (said > found.max(axis=0) + near)
    return wrong


def _beyond(values: Floats, said: Mapping[str, Floats]) -> str:
    """Returns where values lie beyond what is said of more than them."""
    if not np.isfinite(values).all():
        return ""
    near = _SAME * np.abs(values).max(axis=0) + np.finfo(np.float32).tiny
    low, high = values.min(axis=0), values.max(axis=0)
    for kind, found, sign in ((LOW, low, -1.0), (HIGH, high, 1.0)):
        beyond = kind in said and len(said[kind]) == values.shape[1]
        if beyond and (text := _first(kind, found, said[kind], sign * (found - said[kind]) > near)):
            return text
    return ""


def _first(kind: str, found: Floats, said: Floats, wrong: np.typing.NDArray[np.bool_]) -> str:
    """Returns the first disagreement in words; what is no number says nothing."""
    places = np.flatnonzero(wrong & np.isfinite(said))
    if not len(places):
        return ""
    dim = int(places[0])
    more = f", and in {len(places) - 1} more" if len(places) > 1 else ""
    return f"{kind} {found[dim]:.7g} where its statistics say {said[dim]:.7g} in dimension {dim}{more}"


def _under(plain: object, column: str) -> object:
    """Returns what is said of a column, nested by the slashes in its name where it is not found whole."""
    if isinstance(plain, Mapping) and column in plain:
        return plain[column]
    for part in column.split("/"):
        if not isinstance(plain, Mapping):
            return None
        plain = plain.get(part)
    return plain


def _doubles(said: object) -> Floats | None:
    """Returns numbers however they are nested; None where they are none, or too many."""
    try:
        values: Floats = np.asarray(said, np.float64).reshape(-1)
    except (TypeError, ValueError, OverflowError):
        return None
    return values if 0 < values.size <= _DIM_WORDS_MAX else None
