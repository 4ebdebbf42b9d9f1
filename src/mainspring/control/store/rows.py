"""Rows of tables as values and back: a field is the column of its name, read and written by the field's type.

A field that names a row of another table drops the column's `_id`. What is neither scalar nor enum is JSON text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, EnumType
from functools import lru_cache, partial
from operator import attrgetter, itemgetter
from types import NoneType
from typing import Any, Generic, TypeVar, cast, final, get_args, get_type_hints

import sqlalchemy as sa
from sqlalchemy.sql.compiler import SQLCompiler

from mainspring.domain.codec import decode, encode

STATEMENTS_KEPT = 64  # More than there are tables.
TEXTS_KEPT = 1_024  # Texts of a column read once: most jobs have the same metrics and results, none.
COPIED_MIN = 256  # Rows; below, a statement of its own costs more than it saves.
_OWN = "own_row"
_SCALARS = (str, int, float, bool)
Value = TypeVar("Value")


def read_text(kind: type[Value], text: str) -> Value:
    """Returns the value that a column of JSON text holds.

    Args:
        text: As `text_of` wrote it.
    """
    return decode(kind, text.encode())


def text_of(value: object) -> str:
    """Returns a value as a column of JSON text.

    Args:
        value: Anything `codec.encode` takes.
    """
    return encode(value).decode()


class RowMapping(Generic[Value]):
    """How values of one dataclass are rows of one table, which may have more columns.

    Args:
        kind: The dataclass; a field may be None exactly where its column may.
    """

    def __init__(self, kind: type[Value], table: sa.Table) -> None:
        hints = get_type_hints(kind)
        self._kind, self._readers = kind, {name: read for name in hints if (read := _reader(hints[name])) is not None}
        self.columns = {name: table.c[name if name in table.c else f"{name}_id"] for name in hints}
        self.select = sa.select(*self.columns.values())
        self._found = attrgetter(*(column.name for column in self.columns.values()))

    def read(self, connection: sa.Connection, query: sa.Select[Any] | Prepared, **given: object) -> tuple[Value, ...]:
        """Returns the values that a query finds, in its order.

        Args:
            query: Made of `select`.
            **given: Values of its parameters, where it has any.
        """
        if isinstance(query, Prepared):
            return tuple(map(self._made, query.run(connection, **given)))
        return tuple(map(self._made, connection.execute(query, given)))

    def value(self, row: sa.Row[Any]) -> Value:
        """Returns a row as a value.

        Args:
            row: As selected, with the table's own names of columns.
        """
        return self._made(self._found(row))

    def _made(self, columns: Iterable[Any]) -> Value:
        found = dict(zip(self.columns, columns, strict=True))
        for name, read in self._readers.items():
            if found[name] is not None:
                found[name] = read(found[name])
        return self._kind(**found)

    def row(self, values: Mapping[str, object]) -> dict[str, object]:
        """Returns some fields as columns to write.

        Args:
            values: By name of the field.
        """
        return {self.columns[name].name: _written(value) for name, value in values.items()}


def _reader(hint: Any) -> Callable[[Any], object] | None:
    if NoneType in get_args(hint):
        (hint,) = (arm for arm in get_args(hint) if arm is not NoneType)
    kind = getattr(hint, "__supertype__", hint)
    if kind is bool:
        return bool  # SQLite knows 0 and 1.
    if kind in _SCALARS:
        return None
    if isinstance(kind, EnumType):
        return {member.value: member for member in cast(type[Enum], kind)}.__getitem__
    return lru_cache(maxsize=TEXTS_KEPT)(partial(read_text, kind))


def _written(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    return value if value is None or isinstance(value, _SCALARS) else text_of(value)


@final
class Prepared:
    """A statement that is looked at once: SQLAlchemy's own way looks at each of its columns every time it runs.

    Args:
        statement: Its parameters are of `bindparam`, and scalars, no lists; so are the columns that it finds.
    """

    def __init__(self, statement: sa.Select[Any]) -> None:
        self._statement = statement
        self._made: dict[str, tuple[str, Sequence[str] | None, Mapping[str, object]]] = {}

    def run(self, connection: sa.Connection, **given: object) -> sa.CursorResult[Any]:
        """Returns what it finds, as the database's driver tells it: truth may be 0 or 1.

        Args:
            **given: Its parameters.
        """
        name = connection.dialect.name
        if name not in self._made:
            made = self._statement.compile(dialect=connection.dialect)
            assert isinstance(made, SQLCompiler)
            self._made[name] = made.string, made.positiontup, made.params
        text, order, fixed = self._made[name]
        return connection.exec_driver_sql(text, _given(order, {**fixed, **given}))


def change_row(connection: sa.Connection, table: sa.Table, own: str, columns: Mapping[str, object]) -> None:
    """Changes some columns of the row with an id, if there is one.

    Args:
        connection: From `Store.write`.
        own: The id.
        columns: By name, as the database's driver takes them.
    """
    text, order = _change(table, connection.dialect, tuple(columns))
    connection.exec_driver_sql(text, _given(order, {_OWN: own, **columns}))


def add_rows(
    connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, object]], *, unless_there: bool = False
) -> int:
    """Adds rows that name the same columns; SQLAlchemy's own way looks at each value of each row.

    Args:
        connection: From `Store.write`.
        rows: By name of the column, as the database's driver takes them.
        unless_there: Whether to leave out rows that would break a unique index.

    Returns:
        How many were added.
    """
    text, order, defaults = _insertion(table, connection.dialect, tuple(rows[0]))
    if len(rows) >= COPIED_MIN and not unless_there and connection.dialect.name == "postgresql":
        return _copy_rows(connection, table, rows, defaults)
    text += " ON CONFLICT DO NOTHING" if unless_there else ""
    whole = [{**defaults, **row} for row in rows] if defaults else rows
    given = [*map(itemgetter(*order), whole)] if order else [*map(dict, whole)]
    return connection.exec_driver_sql(text, given).rowcount


def _copy_rows(
    connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, object]], defaults: Mapping[str, object]
) -> int:
    """Adds rows to a table of PostgreSQL without a statement for each.

    Args:
        defaults: Of columns that the rows do not name.

    Source: PostgreSQL, "Populating a Database: Use COPY"; psycopg, "Using COPY TO and COPY FROM".
    """
    dialect, names = connection.dialect, tuple(rows[0])
    quoted = dialect.identifier_preparer
    columns = ", ".join(quoted.format_column(table.c[name]) for name in (*names, *defaults))
    same = tuple(defaults.values())
    text = f"COPY {quoted.format_table(table)} ({columns}) FROM STDIN"
    assert dialect.dbapi is not None
    errors = dialect.dbapi.Error
    driver: Any = connection.connection.driver_connection
    try:
        with driver.cursor() as cursor, cursor.copy(text) as copy:
            for row in rows:
                copy.write_row([*map(row.__getitem__, names), *same])
    except errors as error:  # As SQLAlchemy tells those of its own statements.
        raise sa.exc.DBAPIError.instance(text, None, error, errors, dialect=dialect) from error
    return len(rows)


def _given(order: Sequence[str] | None, given: Mapping[str, object]) -> Any:
    """Returns parameters as a driver takes them: in an order, or by name."""
    return dict(given) if order is None else tuple(given[name] for name in order)


@lru_cache(maxsize=STATEMENTS_KEPT)
def _change(table: sa.Table, dialect: sa.Dialect, names: tuple[str, ...]) -> tuple[str, Sequence[str] | None]:
    """Returns a statement, and the order of its parameters where they have no names."""
    changed = sa.update(table).where(table.c.id == sa.bindparam(_OWN))
    made = changed.compile(dialect=dialect, column_keys=list(names))
    assert isinstance(made, SQLCompiler)
    return made.string, made.positiontup


@lru_cache(maxsize=STATEMENTS_KEPT)
def _insertion(
    table: sa.Table, dialect: sa.Dialect, names: tuple[str, ...]
) -> tuple[str, Sequence[str] | None, Mapping[str, object]]:
    """Returns a statement, the order of its parameters where they have no names, and those that have defaults."""
    made = sa.insert(table).inline().compile(dialect=dialect, column_keys=list(names))
    assert isinstance(made, SQLCompiler)
    # No statement gives them by itself: tables here have no other kind of default.
    given = {column.name: column.default for column in made.insert_prefetch}
    defaults = {name: default.arg for name, default in given.items() if isinstance(default, sa.ColumnDefault)}
    return made.string, made.positiontup, defaults
