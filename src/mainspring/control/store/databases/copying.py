"""Copies of rows from one database to another, whatever kind each is of."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

_ROWS = 2_000  # At a time.
_SEQUENCES = sa.table("sqlite_sequence", sa.column("name"), sa.column("seq"))  # Of tables that had a row.


def copy_rows(source: sa.Connection, target: sa.Connection, progress: Callable[[int, int], object]) -> None:
    """Copies every row of every table, and goes on counting where the source does.

    Args:
        source: Of tables like the target's.
        target: Of empty tables, in a transaction.
        progress: Told how many rows are done, and of how many.
    """
    made = sa.MetaData()
    made.reflect(target)
    tables = [table for table in made.sorted_tables if table.name != "alembic_version"]
    total = sum(source.execute(sa.select(sa.func.count()).select_from(table)).scalar_one() for table in tables)
    done = 0
    for table in tables:
        target.execute(sa.delete(table))  # What a migration puts into a new store is in the old one too.
        found = source.execution_options(yield_per=_ROWS).execute(sa.select(table))
        for rows in found.mappings().partitions():
            target.execute(sa.insert(table), [dict(row) for row in rows])
            done += len(rows)
            progress(done, total)
    for table in tables:
        if (counter := _counter(table)) is not None:
            count_on(target, counter, last_of(source, counter))


def unbounded(connection: sa.Connection) -> None:
    """Lets the statements of a transaction take as long as they do: tables of years are long."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")


def _counter(table: sa.Table) -> sa.Column[int] | None:
    """Returns the column by which a database may number a table's rows."""
    (first, *others) = table.primary_key.columns
    return first if not others and isinstance(first.type, sa.Integer) else None


def last_of(connection: sa.Connection, counter: sa.Column[int]) -> int:
    """Returns the last number that was given out, also to rows that are gone."""
    highest = connection.execute(sa.select(sa.func.max(counter))).scalar() or 0
    if connection.dialect.name == "sqlite":
        counted = connection.execute(sa.select(_SEQUENCES.c.seq).where(_SEQUENCES.c.name == counter.table.name))
        return max(highest, counted.scalar() or 0)
    sequence = _sequence_of(connection, counter)
    return (
        max(highest, connection.exec_driver_sql(f"SELECT last_value FROM {sequence}").scalar_one()) if sequence else 0
    )


def count_on(connection: sa.Connection, counter: sa.Column[int], last: int) -> None:
    """Has the next row of a table numbered higher than `last`, where the database numbers them."""
    if connection.dialect.name == "sqlite":
        own = _SEQUENCES.c.name == counter.table.name
        if connection.execute(sa.select(_SEQUENCES).where(own)).first() is not None:
            connection.execute(sa.update(_SEQUENCES).where(own, _SEQUENCES.c.seq < last).values(seq=last))
        elif last and counter.table.dialect_options["sqlite"]["autoincrement"]:
            connection.execute(sa.insert(_SEQUENCES).values(name=counter.table.name, seq=last))
    elif last and (sequence := _sequence_of(connection, counter)):
        connection.execute(sa.select(sa.func.setval(sequence, last)))


def _sequence_of(connection: sa.Connection, counter: sa.Column[int]) -> str | None:
    named = sa.func.pg_get_serial_sequence(counter.table.name, counter.name)
    return connection.execute(sa.select(named)).scalar()
