"""Questions in SQL over the episodes of a version, answered by DuckDB on all cores, sealed off from everything else."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Timer
from types import MappingProxyType

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainspring.data.catalog.fragments import ROWS, Fragment, Mask, read_fragments
from mainspring.domain.errors import InvalidInput
from mainspring.domain.ids import checked_name
from mainspring.objects import ObjectStore

WHERE_LENGTH_MAX = 10_000
QUERY_S_MAX = 60.0  # A condition over a million episodes takes a second; one that joins them with themselves, days.
QUERY_MEMORY = "2GB"
_NOTHING: Mapping[str, pa.Table] = MappingProxyType({})


@contextmanager
def sealed() -> Iterator[duckdb.DuckDBPyConnection]:
    """Gives a database in memory that sees no file, no network and no setting, and gives up after `QUERY_S_MAX`."""
    config: dict[str, str | bool | int | float | list[str]] = {
        "enable_external_access": False,
        "lock_configuration": True,
        "threads": len(os.sched_getaffinity(0)),
        "memory_limit": QUERY_MEMORY,
    }
    with duckdb.connect(config=config) as connection:
        timer = Timer(QUERY_S_MAX, connection.interrupt)
        timer.daemon = True
        timer.start()
        try:
            yield connection
        finally:
            timer.cancel()


def matching(
    store: ObjectStore, fragments: Sequence[Fragment], where: str, joined: Mapping[str, pa.Table] = _NOTHING
) -> Mask:
    """Returns whether a condition holds, for each row that fragments keep, one fragment after the other.

    Args:
        store: Where they lie.
        fragments: Any number.
        where: SQL over the columns of an episode, such as "success and seconds > 2 and metadata['site'] = 'lab'". It
            sees nothing else.
        joined: More columns by name, each a table with `id` and values: one named "quality" with a column "score" is
            asked as "quality.score > 0.5", and is null for episodes it does not have.

    Raises:
        InvalidInput: The condition is not one, or a joined table has no ids, or an id twice.
    """
    if len(where) > WHERE_LENGTH_MAX:
        raise InvalidInput("query a version", got=f"{len(where)} letters", wanted=f"at most {WHERE_LENGTH_MAX}")
    for name, table in joined.items():
        _check_joined(name, table)
    kept = sum(fragment.episodes for fragment in fragments)
    mask = np.zeros(kept, np.bool_)
    with sealed() as connection:
        try:
            columns = _columns_in(connection, where)
            if joined:
                columns = tuple(dict.fromkeys(("id", *columns)))
            episodes = read_fragments(store, fragments, columns) if columns else pa.table({})
            episodes = (
                episodes.append_column("row", pa.array(np.arange(kept)))
                if columns
                else pa.table({"row": pa.array(np.arange(kept))})
            )
            connection.register("episodes", episodes)
            for name, table in joined.items():
                connection.register(f"joined {name}", table)
            more = "".join(f', "joined {name}" AS "{name}"' for name in joined)
            tables = "".join(f' LEFT JOIN "joined {name}" USING (id)' for name in joined)
            relation = connection.sql(f"SELECT episodes.*{more} FROM episodes{tables}")  # Names are checked above.
            mask[relation.filter(where).project('"row"').fetchnumpy()["row"]] = True
        except duckdb.InterruptException as error:
            raise InvalidInput("query a version", on=where[:200], got=f"no answer in {QUERY_S_MAX:.0f} s") from error
        except duckdb.Error as error:
            raise InvalidInput(
                "query a version",
                on=where[:200],
                got=str(error).partition("\n")[0][:300],
                wanted=f"a condition over {', '.join([*ROWS.names, *joined])}",
            ) from error
    return mask


def _columns_in(connection: duckdb.DuckDBPyConnection, where: str) -> tuple[str, ...]:
    """Returns which columns a condition names, perhaps more; all when it cannot be told."""
    asked = connection.execute("SELECT json_serialize_sql($1)", [f"SELECT 1 FROM episodes WHERE ({where}\n)"])
    (text,) = asked.fetchall()[0]
    tree = json.loads(text)
    if tree.get("error") or '"class":"STAR"' in text:
        return tuple(ROWS.names)
    named = {name.lower() for name in _names_in(tree)}
    return tuple(name for name in ROWS.names if name in named)


def _names_in(tree: object) -> Iterator[str]:
    if isinstance(tree, dict):
        yield from tree.get("column_names", ())
        tree = list(tree.values())
    for part in tree if isinstance(tree, list) else ():
        yield from _names_in(part)


def _check_joined(name: str, table: pa.Table) -> None:
    checked_name(name, "joined table")
    if name in (*ROWS.names, "row", "episodes"):
        raise InvalidInput("join values to episodes", on=name, wanted="a name that no column of an episode has")
    if "id" not in table.column_names or pc.count_distinct(table["id"]).as_py() != table.num_rows:
        raise InvalidInput("join values to episodes", on=name, wanted="a column id, each value once")
