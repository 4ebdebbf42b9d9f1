"""The store: one database, one writer at a time, and the leader's lease that guards what the loop writes.

Decides how transactions begin and end; what is written in them is left to `ledger`, what is read to `records`, and what
differs between databases to `databases`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock, local
from typing import Generic, TypeVar, cast, final

import sqlalchemy as sa

from mainspring.control.store.databases.backups import mark_of
from mainspring.control.store.databases.errors import told, unfit_told
from mainspring.control.store.databases.migrating import BackUp, migrate, migrate_down, newest_revision, revision_of
from mainspring.control.store.databases.opening import is_sqlite, new_engine, parsed_url, reading, require_safe
from mainspring.control.store.databases.owners import OwnedFile
from mainspring.control.store.rows import Prepared
from mainspring.control.store.schema import leases
from mainspring.domain.errors import Conflict, MainspringError, NotFound

PIECES_MAX = 64  # More than the API has threads.
_WRITER = "writer"
_WRITERS_TURN = Prepared(sa.select(leases.c.epoch).where(leases.c.name == _WRITER).with_for_update())
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

    def over(self, now_s: float) -> bool:
        """Returns whether another may take it: it was given back, or not renewed in time."""
        return not self.holder or self.expires_s <= now_s


class Store:
    """Transactions on one database.

    Args:
        engine: A SQLAlchemy engine whose tables are there; see `open_store`.
        shared: Whether several servers may work with it at once, one of which leads; None for what its database allows.
    """

    def __init__(self, engine: sa.Engine, *, shared: bool | None = None) -> None:
        self.engine = engine
        own_file = is_sqlite(engine.url)
        self.shared = not own_file if shared is None else shared
        # SQLite lets waiting writers poll, and of PostgreSQL each would hold a connection: a lock lets the writers of
        # this process queue instead.
        self._turn = Lock()
        self._reader = reading(engine)
        self._own = local()
        self._owned: OwnedFile | None = None
        # What keeps the lead waits for no other work of this process.
        self._keeping = engine if own_file else new_engine(engine.url, kept=1, most=1)

    def own(self, now_s: float) -> None:
        """Sees to it that no other server works with a store that cannot be shared; nothing, with one that can.

        Raises:
            Conflict: Another server does; it is named.
        """
        if not self.shared and self._owned is None:
            self._owned = OwnedFile(Path(str(self.engine.url.database)), now_s=now_s)

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Yields a connection that sees one instant of the store, and writes nothing.

        Raises:
            Unavailable: The database does not answer.
        """
        if self._joined is not None:
            yield self._joined
            return
        with told("read the store"), self._reader.connect() as connection:
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
        with self._turn, told("write the store"), self.engine.connect() as connection:
            connection = connection.execution_options(writes=True)
            with connection.begin():
                # One row locked by every writer, first, gives PostgreSQL the order that SQLite has by nature.
                _WRITERS_TURN.run(connection)
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
    def joining(self) -> bool:
        """Returns whether what this thread writes is part of something larger."""
        return self._joined is not None

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
            row = connection.execute(sa.select(leases).where(leases.c.name == _LEADER).with_for_update()).one()
            held = Lease(holder=row.holder, epoch=row.epoch, expires_s=row.expires_s)
            if held.holder != holder and not held.over(now_s) and held != stale:
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

    def keep(self, lease: Lease, *, now_s: float, lease_s: float) -> Lease | None:
        """Returns a held lease, renewed while others write; None where it is not held any more.

        Of a store that is shared: it takes no turn among the writers, and no connection that others use.

        Args:
            lease: As `lead` gave it.
            lease_s: For how long it is asked.

        Raises:
            Unavailable: The database does not answer.
        """
        assert self.shared
        own = (leases.c.name == _LEADER, leases.c.holder == lease.holder, leases.c.epoch == lease.epoch)
        with told("keep the lead"), self._keeping.begin() as connection:
            done = connection.execute(sa.update(leases).where(*own).values(expires_s=now_s + lease_s))
        return replace(lease, expires_s=now_s + lease_s) if done.rowcount else None

    def leader(self) -> Lease:
        """Returns the lease as it stands; its holder is "" when nobody leads."""
        with self.read() as connection:
            row = connection.execute(sa.select(leases).where(leases.c.name == _LEADER)).one()
        return Lease(holder=row.holder, epoch=row.epoch, expires_s=row.expires_s)

    def resign(self, lease: Lease) -> None:
        """Gives the lease back, so that the next leader need not wait for it to expire; forgets a lost one.

        When it would have expired stays, so that others see for how long nobody has led.

        Args:
            lease: As `lead` gave it.
        """
        with self.write() as connection:
            connection.execute(
                sa.update(leases)
                .where(leases.c.name == _LEADER, leases.c.holder == lease.holder, leases.c.epoch == lease.epoch)
                .values(holder="")
            )

    def agree(self, name: str, secret: str) -> None:
        """Returns if every server that shares this store has the same secret in a file of its home; the first one says.

        Args:
            name: Of the file.
            secret: What it holds; a part of its hash is kept.

        Raises:
            Conflict: It is not what the others have.
        """
        if not self.shared:
            return
        mark = mark_of(secret)
        with self.write() as connection:
            found = sa.select(leases.c.holder).where(leases.c.name == name)
            known = connection.execute(found).scalar()
            if known is None:
                connection.execute(sa.insert(leases).values(name=name, holder=mark, epoch=0, expires_s=0.0))
        if known not in (None, mark):
            raise Conflict(
                "share the store",
                on=f"the file {name!r} of this home",
                got="another one than the servers have that use this store",
                next_step="copy the file from the home of one of them",
            )

    def close(self) -> None:
        """Closes every connection, and lets another server have it."""
        self.engine.dispose()
        self._keeping.dispose()
        if self._owned is not None:
            self._owned.close()
            self._owned = None


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

    Each piece is written whole or not at all: one that fails by an error of ours, or says what the database cannot
    hold, leaves the others alone.

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
        (answer,) = self.ask_each([item])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def ask_each(self, items: Iterable[Item]) -> Sequence[Value | Exception]:
        """Returns what writing each of some pieces returned, or the error that kept it from being written."""
        own: list[_Piece[Item, Value]] = [_Piece(item) for item in items]
        self._pieces.extend(own)
        with self._turn:
            while not all(piece.done for piece in own):
                self._write_some()
        return [cast(Value, piece.result) if piece.error is None else piece.error for piece in own]

    def _write_some(self) -> None:
        pieces = [self._pieces.popleft() for _ in range(min(len(self._pieces), PIECES_MAX))]
        try:
            with self._store.write() as connection:
                if len(pieces) == 1 and not self._store.joining:  # All that its error undoes is its own.
                    (pieces[0].result,) = self._write(connection, [pieces[0].item])
                elif not self._written(connection, pieces):
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
            with unfit_told("write the store"), connection.begin_nested():
                results = self._write(connection, [piece.item for piece in pieces])
        except MainspringError as error:
            if len(pieces) == 1:
                pieces[0].error = error
            return len(pieces) == 1
        for piece, result in zip(pieces, results, strict=True):
            piece.result = result
        return True


def each(act: Callable[[Item], Value], items: Iterable[Item | Exception]) -> list[Value | Exception]:
    """Returns what comes of each item, or the error that it is or that it ends in."""
    found: list[Value | Exception] = []
    for item in items:
        try:
            found.append(item if isinstance(item, Exception) else act(item))
        except Exception as error:  # noqa: BLE001  It is told to whom it concerns.
            found.append(error)
    return found


def open_store(url: str, back_up: BackUp | None = None, *, owned_s: float | None = None) -> Store:
    """Returns the store at a database URL, its tables brought up to date.

    Args:
        url: "sqlite:////absolute/path.db", or "postgresql://...", as libpq has it.
        back_up: Copies the store before its tables change; None to make no copy.
        owned_s: The time, for a server: no other may then work with a store that cannot be shared. None for others.

    Raises:
        InvalidInput: Not a URL, a database that lives in memory only, or one that is set up to lose what it was given.
        NotFound: The database's driver is not installed.
        NotAllowed: The database lets this user make no tables.
        Conflict: A newer release has changed the tables, or another server works with a store that cannot be shared.
        DamagedData: The file is no database.
        Unavailable: The database does not answer, or no copy could be made.
    """
    store = Store(new_engine(parsed_url(url)))
    try:
        with told("open the store"):
            if owned_s is not None:
                store.own(owned_s)
            with store.engine.connect() as connection:
                require_safe(connection)
            migrate(store.engine, back_up)
            if owned_s is not None and not store.shared:
                store.resign(store.leader())  # Whoever led it before is gone.
    except BaseException:
        store.close()
        raise
    return store


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSeen:
    """What a store is.

    Args:
        kind: Of database.
        revision: Of its tables, "" where there are none.
        newest: The revision that this release reads.
    """

    kind: str
    revision: str
    newest: str


def look_at(url: str) -> StoreSeen:
    """Returns what the store at a database URL is, and leaves it as it is.

    Args:
        url: As of `open_store`.

    Raises:
        NotFound: There is none.
        MainspringError: As `open_store`.
    """
    parsed = parsed_url(url)
    if is_sqlite(parsed) and not Path(str(parsed.database)).exists():
        raise NotFound("look at the store", on=str(parsed.database), next_step="ms up makes it")
    engine = new_engine(parsed)
    try:
        with told("look at the store"):
            found = revision_of(engine)
    finally:
        engine.dispose()
    return StoreSeen(kind=parsed.get_backend_name(), revision=found or "", newest=newest_revision())


def bring_back(url: str, revision: str, back_up: BackUp | None, *, now_s: float) -> None:
    """Brings a store's tables back to what an older release reads.

    Args:
        url: As of `open_store`.
        revision: Of the tables that it reads.
        back_up: Copies the store before; None to make no copy.

    Raises:
        Conflict: A server works with it.
        NotFound: There is no such revision, or the store is older than that.
        MainspringError: As `open_store`.
    """
    store = Store(new_engine(parsed_url(url)))
    try:
        with told("bring the store back"):
            store.own(now_s)
            leader = store.leader()
            if store.shared and not leader.over(now_s):
                got = f"{leader.holder}, which leads"
                raise Conflict("bring the store back", got=got, wanted="no server that runs", next_step="ms down")
            migrate_down(store.engine, revision, back_up)
    finally:
        store.close()


def _check_lease(connection: sa.Connection, lease: Lease) -> None:
    row = connection.execute(sa.select(leases).where(leases.c.name == _LEADER)).one()
    if (row.holder, row.epoch) != (lease.holder, lease.epoch):
        raise Conflict(
            "write as the leader",
            got=f"epoch {lease.epoch} of {lease.holder}",
            wanted=f"epoch {row.epoch} of {row.holder or 'nobody'}",
            next_step="look again as a follower",
        )
