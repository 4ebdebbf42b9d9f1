"""Puts a back-up in the place of a store; the one that was there is kept under another name.

Whatever goes wrong before the end leaves the store as it was.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import sqlalchemy as sa

from mainspring.control.store.databases.backups import BackupHeader, Maker, drafted, read_header, unpack
from mainspring.control.store.databases.copying import copy_rows, unbounded
from mainspring.control.store.databases.errors import told
from mainspring.control.store.databases.migrating import build, require_known, revision_in
from mainspring.control.store.databases.opening import is_sqlite, new_engine, parsed_url
from mainspring.control.store.databases.owners import OwnedFile
from mainspring.control.store.restores.lives import Numbers, begin_life, given_out
from mainspring.control.store.schema import leases
from mainspring.control.store.store import Store, open_store
from mainspring.domain.errors import Conflict

_ATTEMPTED = "restore the store"
_BESIDE = ("", "-wal", "-shm")  # A SQLite database, and what belongs to it while it was not closed.


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What was put back.

    Args:
        backup: What the back-up told of itself.
        kept: Where the store is now that was there, "" where there was none.
    """

    backup: BackupHeader
    kept: str


def restore(
    url: str,
    path: Path,
    maker: Maker,
    *,
    any_key: bool = False,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Restored:
    """Puts a back-up in the place of the store at a database URL, and brings its tables up to date.

    Args:
        url: As of `open_store`.
        path: The back-up.
        maker: Who restores it.
        any_key: Whether to go on although agents that run would not be known again.
        progress: Told how much is done, and of how much.

    Raises:
        NotFound: There is no such file.
        DamagedData: It is no back-up, or not what it was.
        Conflict: A newer release made it, a server works with the store, or the home's `key` is another.
        NotAllowed: The database lets this user keep the old tables under no other name.
        MainspringError: As `open_store`.
    """
    parsed, header = parsed_url(url), read_header(path)
    require_known(header.revision, _ATTEMPTED, release=header.release)
    if header.key != maker.key and not any_key:
        raise Conflict(
            _ATTEMPTED,
            on="the file 'key' of this home",
            got="another one than when the back-up was made" if maker.key else "none",
            wanted="that one: agents that run are known by it",
            next_step="copy it from where it is kept; or, where no job of then runs any more, --any-key",
        )
    if is_sqlite(parsed):
        kept = _restore_file(Path(str(parsed.database)), path, maker, progress)
    else:
        kept = _restore_rows(parsed, path, maker, progress)
    return Restored(backup=header, kept=kept)


def _restore_file(target: Path, path: Path, maker: Maker, progress: Callable[[int, int], object]) -> str:
    target.parent.mkdir(parents=True, exist_ok=True)
    with closing(OwnedFile(target, now_s=maker.now_s)), drafted(target, _ATTEMPTED) as draft:
        header = unpack(path, draft, progress)
        kept = _set_aside(target, maker)
        _begin(f"sqlite:///{draft}", header, maker, _given_out_by(target))
        return kept


def _begin(url: str, header: BackupHeader, maker: Maker, seen: Numbers) -> None:
    """Brings a store that was put back up to date, and lets it know that it went back in time."""
    store = open_store(url)
    with store.write() as connection:
        begin_life(connection, f"restored as of {header.made_s:.0f}", maker.now_s, seen=seen)
    store.resign(store.leader())
    store.close()


def _given_out_by(target: Path) -> Numbers:
    """Returns the last numbers that the SQLite store gave out that was there, none where it cannot be read."""
    there = sa.create_engine("sqlite://", creator=lambda: sqlite3.connect(f"{target.as_uri()}?mode=ro", uri=True))
    try:
        with suppress(sa.exc.DatabaseError), there.connect() as connection:
            return given_out(connection)
    finally:
        there.dispose()
    return Numbers()


def _set_aside(target: Path, maker: Maker) -> str:
    """Gives a SQLite store that is there a second name; returns that."""
    if not target.exists():
        return ""
    kept = target.with_name(f"{target.name}.before-{maker.stamp}")
    if kept.exists():
        raise Conflict(_ATTEMPTED, on=str(kept), got="a store that was kept within this second", next_step="again")
    with suppress(sqlite3.Error), closing(sqlite3.connect(target)) as store:
        store.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # What is not yet in the file itself is then, if it can be.
    for beside in _BESIDE[1:]:
        with suppress(FileNotFoundError):
            target.with_name(target.name + beside).rename(kept.with_name(kept.name + beside))
    os.link(target, kept)
    return str(kept)


def _restore_rows(url: sa.URL, path: Path, maker: Maker, progress: Callable[[int, int], object]) -> str:
    store = Store(new_engine(url))
    with TemporaryDirectory(prefix="mainspring-restore-") as folder:
        draft = Path(folder) / "store.db"
        draft.touch(mode=0o600)
        header = unpack(path, draft, progress)
        source = sa.create_engine(f"sqlite:///{draft}")
        try:
            with told(_ATTEMPTED), source.connect() as rows, store.engine.begin() as connection:
                unbounded(connection)
                epoch = _require_down(connection, maker.now_s)
                seen = given_out(connection)
                kept = _set_apart(connection, f"mainspring_before_{maker.stamp.lower()}")
                build(connection, header.revision)
                copy_rows(rows, connection, progress)
                leader = sa.update(leases).where(leases.c.name == "leader")  # Whoever led what was there is refused.
                connection.execute(leader.values(holder="", expires_s=0.0, epoch=leases.c.epoch + epoch + 1))
        finally:
            source.dispose()
            store.close()
    _begin(url.render_as_string(hide_password=False), header, maker, seen)
    return kept


def _require_down(connection: sa.Connection, now_s: float) -> int:
    """Returns the epoch of who led a store last, if nobody does now."""
    if revision_in(connection) is None:
        return 0
    leader = connection.execute(sa.select(leases).where(leases.c.name == "leader").with_for_update()).one()
    if leader.holder and leader.expires_s > now_s:
        got = f"{leader.holder}, which leads"
        raise Conflict(_ATTEMPTED, got=got, wanted="no server that runs", next_step="ms down, wherever one runs")
    return int(leader.epoch)


def _set_apart(connection: sa.Connection, schema: str) -> str:
    """Moves the tables that are there to a schema of their own; returns its name."""
    if revision_in(connection) is None:
        return ""
    own = sa.inspect(connection).get_table_names()
    connection.exec_driver_sql(f"CREATE SCHEMA {schema}")
    for table in own:
        connection.exec_driver_sql(f'ALTER TABLE "{table}" SET SCHEMA {schema}')
    return f"schema {schema}"
