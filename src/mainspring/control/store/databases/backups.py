"""Copies of a store: made before its tables change, the newest few kept."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import sqlalchemy as sa

from mainspring.control.store.databases.opening import is_sqlite
from mainspring.domain.errors import StorageFull, Unavailable

KEPT_MAX = 5  # More than the releases anybody goes back by; an operator who wants more copies them elsewhere.
_DUMP_S_MAX = 3_600.0
_WORDS_MAX = 500
_PAGES = 4_096  # At a time: a writer waits for no longer than these take.
_OWNERS, _FOLDER = 0o600, 0o700
_DEBIANS = Path("/usr/lib/postgresql")


class BackUp(Protocol):
    """Makes a copy of a store before its tables change."""

    def __call__(self, url: sa.URL, revision: str) -> None:
        """Returns once there is a copy.

        Args:
            revision: Of its tables.

        Raises:
            Unavailable: There is none; nothing may change then.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Backups:
    """A folder of copies, named by when they were made and of what revision.

    Args:
        folder: Made when it is absent, for its owner alone.
        now_s: When the process that makes them began.
    """

    folder: Path
    now_s: float

    def __call__(self, url: sa.URL, revision: str) -> None:
        """Makes one, and removes those that are older than the newest few.

        Args:
            revision: Of the store's tables, as they are.

        Raises:
            StorageFull: It does not fit.
            Unavailable: The database gave none.
        """
        stamp = datetime.fromtimestamp(self.now_s, UTC).strftime("%Y%m%dT%H%M%SZ")
        made = self.folder / f"store-{stamp}-{revision}.{'db' if is_sqlite(url) else 'dump'}"
        draft = made.with_name(f".{made.name}.{os.getpid()}")
        try:
            self.folder.mkdir(mode=_FOLDER, parents=True, exist_ok=True)
            os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _OWNERS))
            _copy_sqlite(url, draft) if is_sqlite(url) else _dump_postgresql(url, draft)
            with draft.open("rb") as file:
                os.fsync(file.fileno())
            draft.rename(made)
        except (OSError, sqlite3.Error) as error:
            raise StorageFull("back up the store", on=str(made), got=str(error)) from error
        finally:
            draft.unlink(missing_ok=True)
        for old in sorted(self.folder.glob("store-*"))[:-KEPT_MAX]:
            old.unlink()


def _copy_sqlite(url: sa.URL, draft: Path) -> None:
    with closing(sqlite3.connect(str(url.database))) as store, closing(sqlite3.connect(draft)) as copy:
        store.backup(copy, pages=_PAGES)


def _dump_postgresql(url: sa.URL, draft: Path) -> None:
    program = _pg_dump()
    if program is None:
        raise _failed("no pg_dump here")
    # A password would be seen by `ps`: pg_dump finds it where psycopg does, in PGPASSWORD or a passfile.
    plain = url.set(drivername="postgresql", password=None).render_as_string()
    try:
        done = subprocess.run(
            [program, "--format=custom", f"--file={draft}", f"--dbname={plain}", "--no-password"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_DUMP_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _failed(f"no end of pg_dump after {_DUMP_S_MAX:.0f} s") from error
    if done.returncode:
        raise _failed(done.stderr.strip()[-_WORDS_MAX:])


def _failed(got: str) -> Unavailable:
    return Unavailable(
        "back up the store",
        got=got,
        wanted="a copy before its tables change",
        next_step="install the server's postgresql-client, or copy the store by yourself and then: ms up --no-backup",
    )


def _pg_dump() -> str | None:
    """Returns the newest pg_dump: it copies servers of its own version and of older ones."""
    for folder in sorted(_DEBIANS.glob("[0-9]*"), key=lambda path: float(path.name), reverse=True):
        if (folder / "bin" / "pg_dump").exists():
            return str(folder / "bin" / "pg_dump")
    return shutil.which("pg_dump")
