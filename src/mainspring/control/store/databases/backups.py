"""Back-ups: what a store holds at one instant, in one file, whatever database it is in.

The file is a SQLite database of the store's own tables, which any tool can read, with a header at its end. Of SQLite
its pages are copied, of PostgreSQL the rows: so one kind of file serves both, and a store moves from one to the other.
While it is made others read and write. Of SQLite the copy holds one read transaction open, without which each write by
another would make it begin anew; of PostgreSQL it reads in one REPEATABLE READ transaction.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from errno import EDQUOT, ENOSPC
from pathlib import Path

import sqlalchemy as sa
from blake3 import blake3

from mainspring.control.store.databases.copying import copy_rows, unbounded
from mainspring.control.store.databases.errors import told
from mainspring.control.store.databases.migrating import build, revision_in
from mainspring.control.store.databases.opening import is_sqlite, new_engine, reading
from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import DamagedData, InvalidMessage, NotFound, StorageFull, Unavailable

KEPT_MAX = 5  # More than the releases anybody goes back by; an operator who wants more copies them elsewhere.
HEADER_BYTES = 1_024  # At the end of the file, filled up with spaces; what it tells takes a third of that.
_MAGIC = b"mainspring back-up 1\n"
_PAGES = 4_096  # Between two words of progress: 16 MiB.
_OWNERS, _FOLDER = 0o600, 0o700
_MARK_LETTERS = 12  # Of a hash: enough to tell two apart, and nothing to guess the rest by.
_PART_BYTES = 1 << 20
_FULL = (ENOSPC, EDQUOT)
_BACK_UP, _READ = "back up the store", "read a back-up"

Progress = Callable[[int, int], object]
"""Told how much is done, and of how much; of what there is nothing to count, 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """Who makes a back-up.

    Args:
        release: Of this program.
        key: Mark of the home's `key`, by which agents that run are known again; "" where there is none.
        now_s: When it is begun.
    """

    release: str
    key: str
    now_s: float

    @property
    def stamp(self) -> str:
        """Returns when, as a part of a file's name that sorts by time."""
        return datetime.fromtimestamp(self.now_s, UTC).strftime("%Y%m%dT%H%M%SZ")


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupHeader:
    """What a back-up is.

    Args:
        release: That made it.
        revision: Of the tables in it.
        made_s: When it was begun: nothing in it is younger, but what was written meanwhile may be.
        database: Where the store was: "sqlite" or "postgresql".
        sequence: Of the newest event in it.
        jobs: How many there are in it.
        key: Mark of the home's `key`, "" where there was none.
        size_bytes: Of the database that comes before the header.
        blake3: Of the same bytes.
    """

    release: str
    revision: str
    made_s: float
    database: str
    sequence: int
    jobs: int
    key: str
    size_bytes: int
    blake3: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Backups:
    """A folder of back-ups made before tables change, named by when and of what revision; the newest few are kept.

    Args:
        folder: Made when it is absent, for its owner alone.
    """

    folder: Path
    maker: Maker

    def __call__(self, url: sa.URL, revision: str) -> None:
        """Makes one, and removes those that are older than the newest few.

        Args:
            revision: Of the store's tables, as they are.

        Raises:
            MainspringError: As of `back_up`.
        """
        self.folder.mkdir(mode=_FOLDER, parents=True, exist_ok=True)
        back_up(url, self.folder / f"store-{self.maker.stamp}-{revision}.db", self.maker)
        for old in sorted(self.folder.glob("store-*"))[:-KEPT_MAX]:
            old.unlink()


def mark_of(secret: str) -> str:
    """Returns what tells a secret from another, and nothing of it."""
    return hashlib.sha256(secret.encode()).hexdigest()[:_MARK_LETTERS]


def back_up(url: sa.URL, path: Path, maker: Maker, progress: Progress = lambda done, total: None) -> BackupHeader:
    """Copies a store as it is at one instant, while others work with it; returns what the copy is.

    Args:
        path: Where to; what is there is replaced once the copy is whole, checked and on the disk.

    Raises:
        NotFound: There is no store.
        DamagedData: What the store holds does not hold together.
        StorageFull: It does not fit.
        Unavailable: The database does not answer.
    """
    if is_sqlite(url) and not Path(str(url.database)).exists():
        raise NotFound(_BACK_UP, on=str(url.database), next_step="ms up makes it")
    with drafted(path) as draft:
        (_copy_pages if is_sqlite(url) else _copy_rows)(url, draft, progress)
        header = _header(draft, url, maker)
        with draft.open("ab") as file:
            file.write((_MAGIC + encode(header)).ljust(HEADER_BYTES))
            file.flush()
            os.fsync(file.fileno())
    return header


def read_header(path: Path) -> BackupHeader:
    """Returns what a back-up tells of itself.

    Raises:
        NotFound: There is no such file.
        DamagedData: It is no back-up, or cut off.
    """
    try:
        with path.open("rb") as file:
            size_bytes = file.seek(0, os.SEEK_END) - HEADER_BYTES
            file.seek(max(0, size_bytes))
            head = file.read()
    except FileNotFoundError as error:
        raise NotFound(_READ, on=str(path)) from error
    if not head.startswith(_MAGIC):
        raise _damaged(path, "no header at its end")
    try:
        header = decode(BackupHeader, head.removeprefix(_MAGIC))
    except InvalidMessage as error:
        raise _damaged(path, f"a header that cannot be read: {error.got}") from error
    if header.size_bytes != size_bytes:
        raise _damaged(path, f"{size_bytes} bytes before the header, which tells of {header.size_bytes}")
    return header


def unpack(path: Path, target: Path, progress: Progress) -> BackupHeader:
    """Writes the database in a back-up to a file; returns what it is, once each byte was found to be what it was.

    Args:
        target: A file that is there, and empty.

    Raises:
        NotFound: There is no such back-up.
        DamagedData: It is none, or not what it was.
    """
    header, found, done = read_header(path), blake3(), 0
    with path.open("rb") as source, target.open("wb") as copy:
        while part := source.read(min(_PART_BYTES, header.size_bytes - done)):
            found.update(part)
            copy.write(part)
            done += len(part)
            progress(done, header.size_bytes)
        copy.flush()
        os.fsync(copy.fileno())
    if found.hexdigest() != header.blake3:
        raise _damaged(path, "other bytes than it was made of")
    return header


@contextmanager
def drafted(path: Path, attempted: str = _BACK_UP) -> Iterator[Path]:
    """Yields an empty file for its owner alone, which takes the place of another when all went well.

    Args:
        path: Of the other; it need not be there.
        attempted: What is done, as a clause.

    Raises:
        NotFound: There is no folder for it.
        StorageFull: It does not fit.
        Unavailable: It cannot be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _OWNERS))
        yield draft
        draft.rename(path)
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
    except FileNotFoundError as error:
        raise NotFound(attempted, on=str(path), got=f"no folder {path.parent}") from error
    except (OSError, sqlite3.Error) as error:
        full = getattr(error, "errno", 0) in _FULL or getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL
        raise (StorageFull if full else Unavailable)(attempted, on=str(path), got=str(error)) from error
    finally:
        for each in draft.parent.glob(f"{draft.name}*"):  # SQLite's own files beside it too.
            each.unlink()


def _copy_pages(url: sa.URL, draft: Path, progress: Progress) -> None:
    with closing(sqlite3.connect(str(url.database))) as store, closing(sqlite3.connect(draft)) as copy:
        store.execute("BEGIN")
        store.execute("SELECT count(*) FROM sqlite_master").fetchone()  # From here on it sees one instant.
        store.backup(copy, pages=_PAGES, progress=lambda _, left, total: progress(total - left, total))
        copy.execute("PRAGMA journal_mode=DELETE")  # One file, whole by itself.


def _copy_rows(url: sa.URL, draft: Path, progress: Progress) -> None:
    source, target = new_engine(url), sa.create_engine(f"sqlite:///{draft}")
    try:
        with told(_BACK_UP), reading(source).connect() as store, target.begin() as copy:
            unbounded(store)
            revision = revision_in(store)
            if revision is not None:
                build(copy, revision)
                copy_rows(store, copy, progress)
    finally:
        source.dispose()
        target.dispose()


def _header(draft: Path, url: sa.URL, maker: Maker) -> BackupHeader:
    with closing(sqlite3.connect(draft)) as copy:
        if not copy.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone():
            raise NotFound(_BACK_UP, on=url.render_as_string(), got="a database without a store")
        (said,) = copy.execute("PRAGMA integrity_check(1)").fetchone()
        if said != "ok":
            raise DamagedData(_BACK_UP, on=url.render_as_string(), got=said, next_step="ms restore an older back-up")
        (revision,) = copy.execute("SELECT version_num FROM alembic_version").fetchone()
        (sequence,) = copy.execute("SELECT coalesce(max(sequence), 0) FROM events").fetchone()
        (jobs,) = copy.execute("SELECT count(*) FROM jobs").fetchone()
    found = blake3()
    found.update_mmap(draft)
    return BackupHeader(
        release=maker.release,
        revision=revision,
        made_s=maker.now_s,
        database=url.get_backend_name(),
        sequence=sequence,
        jobs=jobs,
        key=maker.key,
        size_bytes=draft.stat().st_size,
        blake3=found.hexdigest(),
    )


def _damaged(path: Path, got: str) -> DamagedData:
    return DamagedData(_READ, on=str(path), got=got, wanted="a file that ms backup made, whole")
