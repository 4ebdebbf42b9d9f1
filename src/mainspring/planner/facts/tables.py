"""Tables made, copied and kept by the definitions of their columns in `snapshot`: nothing here names a column."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from mainspring.planner.facts.snapshot import Column, Integers, sealed

Made = TypeVar("Made")


@cache
def columns(kind: type, of: str | None = None) -> Mapping[str, Column]:
    """Returns the array columns of a table by name, with their types.

    Args:
        kind: One of the tables of `snapshot`.
        of: Only those whose rows are of this kind, see `Column`; all of them when None.
    """
    found: dict[str, Column] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        marks = getattr(hint, "__metadata__", ())
        array = hint.__origin__ if marks else hint
        if get_origin(array) is np.ndarray:
            (dtype,) = get_args(get_args(array)[1])
            found[name] = replace(marks[0] if marks else Column(), dtype=dtype)
    return {name: column for name, column in found.items() if of in (None, column.of)}


def table_of(kind: type[Made], **values: Any) -> Made:
    """Returns a table, its columns of the types they are declared with, sealed.

    Args:
        kind: One of the tables of `snapshot`.
        **values: One for each field; a column is an array or a list.
    """
    declared: type = kind
    for name, column in columns(declared).items():
        values[name] = sealed(np.asarray(values[name], dtype=column.dtype))
    return kind(**values)


def filled(kind: type, count: int, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns equal rows as columns.

    Args:
        kind: One of the tables of `snapshot`.
        values: What each row holds, by column; what its column is filled with where nothing is said.
    """
    return {
        name: np.full(count, values.get(name, column.fill), dtype=column.dtype)
        for name, column in columns(kind, "").items()
    }


def taken(table: Made, rows: Integers, of: str = "") -> Made:
    """Returns some rows of a table; columns whose rows are of other kinds stay as they are.

    Args:
        table: One of the tables of `snapshot`.
        rows: Which, in order.
        of: Of which kind the rows are, see `Column`; tuples are of the table's own kind.
    """
    kind: type = type(table)
    found = {}
    for field in fields(kind):
        column = columns(kind).get(field.name)
        if of == (column.of if column else ""):
            found[field.name] = _rows(getattr(table, field.name), rows)
    return replace(table, **found)  # type: ignore[type-var]


def _rows(column: Any, rows: Integers) -> Any:
    return tuple(column[each] for each in rows.tolist()) if isinstance(column, tuple) else sealed(column[rows])


class GrowableTable:
    """Rows that come and go, in columns, read out in the order of a key.

    Args:
        columns: Each column by name.
    """

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._columns: dict[str, NDArray[Any]] = {name: np.zeros(64, dtype=of.dtype) for name, of in columns.items()}
        self._fills = {name: column.fill for name, column in columns.items()}
        self._free: list[int] = list(range(63, -1, -1))
        self._order: list[tuple[float, str, int]] = []
        self._late: list[tuple[float, str, int]] = []
        self._entry: dict[str, tuple[float, str, int]] = {}

    def __len__(self) -> int:
        return len(self._entry)

    def __contains__(self, name: str) -> bool:
        return name in self._entry

    def put(self, name: str, key: float, values: Mapping[str, float]) -> None:
        """Adds a row.

        Args:
            name: Its name, not in the table yet.
            key: Rows are read out by key, then name.
            values: By column; where nothing is said, what the column is filled with.
        """
        if not self._free:
            size = len(next(iter(self._columns.values())))
            for column, old in self._columns.items():
                self._columns[column] = np.concatenate([old, np.zeros_like(old)])
            self._free = list(range(2 * size - 1, size - 1, -1))
        row = self._free.pop()
        for column, fill in self._fills.items():
            self._columns[column][row] = values.get(column, fill)
        self._entry[name] = (key, name, row)
        self._late.append(self._entry[name])

    def set(self, name: str, column: str, value: float) -> None:
        """Changes one value."""
        self._columns[column][self._entry[name][2]] = value

    def write(self, row: int, column: str, value: float) -> None:
        """Changes one value.

        Args:
            row: Where it lies, see `rows`.
        """
        self._columns[column][row] = value

    def drop(self, name: str) -> None:
        """Takes a row away."""
        self._settle()
        entry = self._entry.pop(name)
        del self._order[bisect_left(self._order, entry)]
        self._free.append(entry[2])

    def names(self) -> list[str]:
        """Returns the names of all rows, in order."""
        self._settle()
        return [entry[1] for entry in self._order]

    def rows(self) -> Integers:
        """Returns where the rows lie in `column`, in order."""
        self._settle()
        return np.fromiter((entry[2] for entry in self._order), dtype=np.int64, count=len(self._order))

    def column(self, name: str, rows: Integers) -> NDArray[Any]:
        """Returns one column's values, sealed.

        Args:
            rows: See `rows`.
        """
        values = self._columns[name][rows]
        values.setflags(write=False)
        return values

    def _settle(self) -> None:
        if len(self._late) > 64:
            self._order.extend(self._late)
            self._order.sort()
        else:
            for entry in self._late:
                insort(self._order, entry)
        self._late = []
