"""The store: one database, one writer at a time, and the leader's lease that guards what the loop writes.

Decides how transactions begin and end and how a database's errors are told; what is written in them is left to
`ledger`, what is read to `records`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock, local
from typing import Any, Generic, TypeVar, cast, final

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from mainspring.control.store.schema import leases
from mainspring.domain.errors import Conflict, DamagedData, InvalidInput, MainspringError, StorageFull, Unavailable

BUSY_S = 10.0  # Longer than any transaction here; a database busy for this long has a stuck writer.
CONNECTIONS_MAX = 40  # As many as the API's threads.
PIECES_MAX = 64  # More than the API has threads.
_WRITER = "writer"
_LEADER = "leader"
Item = TypeVar("Item")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to lead: valid while the store still names this holder and epoch.

    Args:
        epoch: Counts up whenever the lease changes hands.
        expires_s: When another may take it.
    """

    holder: str
    epoch: int
    expires_s: float


class Store:
    """Transactions on one database.

    Args:
        engine: A SQLAlchemy engine whose tables are there; see `open_store`.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        self._sqlite = engine.dialect.name == "sqlite"
        # SQLite lets waiting writers poll; a lock lets the writers of this process queue instead.
        self._turn = Lock()
        isolated = engine if self._sqlite else engine.execution_options(isolation_level="REPEATABLE READ")
        self._reader = isolated
        self._own = local()

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Yields a connection that sees one instant of the store, and writes nothing.

        Raises:
            Unavailable: The database does not answer.
        """
        if self._joined is not None:
            yield self._joined
            return
        with _told("read the store"), self._reader.connect() as connection:
            yield connection

    @contextmanager
    def write(self, lease: Lease | None = None) -> Iterator[sa.Connection]:
        """Yields a connection whose writes all happen, or none; writers take turns.

        Args:
            lease: Held by the loop; nothing is written once another leads.

        Raises:
            Conflict: The lease has passed to another.
            StorageFull: No room on the database's disk.
            Unavailable: The database does not answer.
        """
        if self._joined is not None:
            assert lease is None
            yield self._joined
            return
        with self._turn, _told("write the store"), self.engine.connect() as connection:
            connection = connection.execution_options(writes=True)
            with connection.begin():
                # One row locked by every writer gives databases with many writers the order SQLite has by nature;
                # event sequences then appear in the order they count.
                connection.execute(sa.select(leases.c.epoch).where(leases.c.name == _WRITER).with_for_update())
                if lease is not None:
                    _check_lease(connection, lease)
                yield connection

    @contextmanager
    def joined(self) -> Iterator[sa.Connection]:
        """Yields a connection as `write` does; what this thread reads and writes meanwhile is part of it.

        Raises:
            StorageFull: No room on the database's disk.
            Unavailable: The database does not answer.
        """
        with self.write() as connection:
            self._own.connection = connection
            try:
                yield connection
            finally:
                self._own.connection = None

    @property
    def _joined(self) -> sa.Connection | None:
        return getattr(self._own, "connection", None)

    def lead(self, holder: str, *, now_s: float, lease_s: float, stale: Lease | None = None) -> Lease:
        """Returns the lease, taken or renewed; or as it stands while another holds it.

        Args:
            holder: Who asks; unique to one loop.
            lease_s: For how long it is asked.
            stale: A lease that is over whatever time it tells, for it was not renewed while a lease lasts.
        """
        with self.write() as connection:
            row = connection.execute(sa.select(leases).where(leases.c.name == _LEADER)).one()
            held = Lease(holder=row.holder, epoch=row.epoch, expires_s=row.expires_s)
            if held.holder != holder and held.expires_s > now_s and held != stale:
                return held
            lease = Lease(holder=holder, epoch=row.epoch + (row.holder != holder), expires_s=now_s + lease_s)
            connection.execute(
                sa.update(leases)
                .where(leases.c.name == _LEADER)
                .values(holder=holder, epoch=lease.epoch, expires_s=lease.expires_s)
            )
            return lease

    def renew(self, connection: sa.Connection, lease: Lease, *, now_s: float, lease_s: float) -> Lease:
        """Returns a held lease, renewed in the same transaction as what was written under it.

        Args:
            connection: From `write` with that lease.
            lease: As `lead` gave it.
            lease_s: For how long it is asked.
        """
        connection.execute(sa.update(leases).where(leases.c.name == _LEADER).values(expires_s=now_s + lease_s))
        return replace(lease, expires_s=now_s + lease_s)

    def leader(self) -> Lease:
        """Returns the lease as it stands; its holder is "" when nobody leads."""
        with self.read() as connection:
            row = connection.execute(sa.select(leases).where(leases.c.name == _LEADER)).one()
        return Lease(holder=row.holder, epoch=row.epoch, expires_s=row.expires_s)

    def resign(self, lease: Lease) -> None:
        """Gives the lease back, so that the next leader need not wait for it to expire; forgets a lost one.

        Args:
            lease: As `lead` gave it.
        """
        with self.write() as connection:
            connection.execute(
                sa.update(leases)
                .where(leases.c.name == _LEADER, leases.c.holder == lease.holder, leases.c.epoch == lease.epoch)
                .values(holder="", expires_s=0.0)
            )

    def close(self) -> None:
        """Closes every connection."""
        self.engine.dispose()


class _Piece(Generic[Item, Value]):
    """Something small that waits to be written."""

    def __init__(self, item: Item) -> None:
        self.item = item
        self.done = False
        self.result: Value | None = None
        self.error: Exception | None = None


@final
class Together(Generic[Item, Value]):
    """Writes what many threads ask for at one time in one transaction, so that they wait for one disk together.

    Each piece is written whole or not at all: one that fails by an error of ours leaves the others alone.

    Args:
        write: Called in some thread, with several pieces at once or, after an error of ours, with each by itself; it
            returns as many results.
    """

    def __init__(self, store: Store, write: Callable[[sa.Connection, Sequence[Item]], Sequence[Value]]) -> None:
        self._store = store
        self._write = write
        self._turn = Lock()
        self._pieces: deque[_Piece[Item, Value]] = deque()

    def ask(self, item: Item) -> Value:
        """Returns what writing a piece returned.

        Raises:
            MainspringError: As `write` does, or as `Store.write`.
        """
        piece: _Piece[Item, Value] = _Piece(item)
        self._pieces.append(piece)
        with self._turn:
            while not piece.done:
                self._write_some()
        if piece.error is not None:
            raise piece.error
        return cast(Value, piece.result)

    def _write_some(self) -> None:
        pieces = [self._pieces.popleft() for _ in range(min(len(self._pieces), PIECES_MAX))]
        try:
            with self._store.write() as connection:
                if not self._written(connection, pieces):
                    for piece in pieces:
                        self._written(connection, [piece])
        except Exception as error:  # noqa: BLE001  Whatever it is, it is told to everybody who waits.
            for piece in pieces:
                piece.error = error
        for piece in pieces:
            piece.done = True

    def _written(self, connection: sa.Connection, pieces: Sequence[_Piece[Item, Value]]) -> bool:
        """Returns whether pieces were written together; what failed alone bears its error."""
        try:
            with connection.begin_nested():
                results = self._write(connection, [piece.item for piece in pieces])
        except MainspringError as error:
            if len(pieces) == 1:
                pieces[0].error = error
            return len(pieces) == 1
        for piece, result in zip(pieces, results, strict=True):
            piece.result = result
        return True


def open_store(url: str) -> Store:
    """Returns the store at a database URL, its tables brought up to date.

    Args:
        url: A SQLAlchemy URL: "sqlite:////absolute/path.db", or "postgresql+psycopg://...".

    Raises:
        InvalidInput: Not a URL, or a database that lives in memory only.
        DamagedData: The file is no database.
        Unavailable: The database does not answer.
    """
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        raise InvalidInput(
            "open the store", got="no database URL", wanted="a database URL such as sqlite:////path.db"
        ) from None
    sqlite = parsed.get_backend_name() == "sqlite"
    if sqlite and parsed.database in (None, "", ":memory:"):
        raise InvalidInput("open the store", got=url, wanted="a database in a file, which a restart can find again")
    arguments: dict[str, Any] = {"timeout": BUSY_S} if sqlite else {}
    # A statement's values are people's specs, with the variables of their jobs: errors must not quote them.
    engine = sa.create_engine(
        parsed, connect_args=arguments, pool_size=5, max_overflow=CONNECTIONS_MAX - 5, hide_parameters=True
    )
    if sqlite:
        path = Path(str(parsed.database))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)  # For its owner alone; SQLite gives the files beside it the same mode.
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
    with _told("open the store"):
        _migrate(engine)
    return Store(engine)


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # Transactions begin where `_begin_sqlite` says, not where the driver guesses.
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")  # A grant the disk forgot would be started and unknown.
    connection.execute("PRAGMA foreign_keys=ON")


def _begin_sqlite(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _migrate(engine: sa.Engine) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    with engine.connect() as connection:
        current = MigrationContext.configure(connection).get_current_revision()
    if current == ScriptDirectory.from_config(config).get_current_head():
        return
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _check_lease(connection: sa.Connection, lease: Lease) -> None:
    row = connection.execute(sa.select(leases).where(leases.c.name == _LEADER)).one()
    if (row.holder, row.epoch) != (lease.holder, lease.epoch):
        raise Conflict(
            "write as the leader",
            got=f"epoch {lease.epoch} of {lease.holder}",
            wanted=f"epoch {row.epoch} of {row.holder or 'nobody'}",
            next_step="look again as a follower",
        )


@contextmanager
def _told(attempted: str) -> Iterator[None]:
    """Tells a database's own errors in our words."""
    try:
        yield
    except (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.TimeoutError) as error:
        words = str(getattr(error, "orig", None) or error)
        if "full" in words or "No space left" in words:
            raise StorageFull(attempted, got=words, next_step="free room on the disk that holds the store") from error
        raise Unavailable(attempted, got=words, next_step="see that the database runs and can be written") from error
    except sa.exc.DatabaseError as error:
        if type(error) is not sa.exc.DatabaseError:
            raise  # Its kinds are our own fault: a wrong statement, a broken constraint.
        raise DamagedData(attempted, got=str(error.orig), next_step="put back a copy of the store") from error
