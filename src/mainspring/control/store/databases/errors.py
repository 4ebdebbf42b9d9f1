"""What a database's own errors mean, in the words of our tree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from mainspring.domain.errors import Busy, DamagedData, InvalidInput, MainspringError, NotAllowed, StorageFull

# Source: PostgreSQL 15, appendix A: codes or, two letters, their classes; the first that fits counts.
_FULL = ("53100",)
_DAMAGED = ("XX001", "XX002")
_DENIED = ("28", "42501")
_UNFIT = ("22",)  # Text with NULs, longer than its column, or a number that is larger: SQLite would keep them.
# Lost or refused connections, read-only servers and transactions that were ended, deadlocks, no room, locks that others
# hold, servers that stop, begin or take too long, and their disks.
_BUSY = ("08", "25", "40", "53", "55", "57", "58")
_LINES_MAX = 3


@contextmanager
def told(attempted: str) -> Iterator[None]:
    """Tells a database's errors as ours; what is our own fault (a wrong statement, a broken constraint) stays.

    Args:
        attempted: What is being done, as a clause.

    Raises:
        StorageFull: No room on the database's disk.
        Busy: It does not answer, or did not end what it was asked.
        NotAllowed: It does not let this user do so.
        DamagedData: What it holds is no database.
        InvalidInput: It cannot hold a value.
    """
    try:
        yield
    except sa.exc.TimeoutError as error:
        raise Busy(attempted, got="no free connection to the database", next_step="try again") from error
    except sa.exc.DBAPIError as error:
        mapped = _mapped(attempted, error)
        if mapped is None:
            raise
        raise mapped from error


@contextmanager
def unfit_told(attempted: str) -> Iterator[None]:
    """Tells of a value that the database cannot hold as `told` does; other errors stay.

    Args:
        attempted: What is being done, as a clause.

    Raises:
        InvalidInput: It cannot hold a value.
    """
    try:
        yield
    except sa.exc.DataError:
        with told(attempted):
            raise


def _mapped(attempted: str, error: sa.exc.DBAPIError) -> MainspringError | None:
    words = " ".join(str(error.orig).split("\n", _LINES_MAX)[:_LINES_MAX])
    code = str(getattr(error.orig, "sqlstate", None) or "")
    answers = isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError)
    if code.startswith(_FULL) or (answers and ("full" in words or "No space left" in words)):
        return StorageFull(attempted, got=words, next_step="free room on the disk that holds the store")
    if code.startswith(_DAMAGED) or type(error) is sa.exc.DatabaseError:
        return DamagedData(attempted, got=words, next_step="put back a copy of the store")
    if code.startswith(_DENIED):
        return NotAllowed(attempted, got=words, next_step="let the server's user own the database")
    if code.startswith(_UNFIT) or isinstance(error, sa.exc.DataError):
        return InvalidInput(attempted, got=words, wanted="values that fit the store")
    if isinstance(error, sa.exc.ProgrammingError) and not code and error.statement is None:
        return InvalidInput(attempted, got=words, wanted="a URL as libpq has it")  # It was not even sent.
    if code.startswith(_BUSY) or answers:
        return Busy(attempted, got=words, next_step="see that the database runs and can be written")
    return None
