"""Who works with a SQLite file: one server at a time, which others can name.

A lock on a file beside the store says so: the kernel lets go of it when its process ends, however it ends. PostgreSQL
has no owner: servers share it, and one of them leads.
"""

from __future__ import annotations

import fcntl
import os
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, final

from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import Conflict, InvalidMessage

_OWNERS = 0o600


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOwner:
    """A process that works with a store.

    Args:
        since_s: When it began to.
    """

    pid: int
    host: str
    since_s: float

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since_s, UTC).isoformat(sep=" ", timespec="seconds")
        return f"process {self.pid} on {self.host}, which has it since {since}"


@final
class OwnedFile:
    """A SQLite file that this process alone works with, until it is closed or the process ends.

    Args:
        path: The store's file.

    Raises:
        Conflict: Another process does; it is named.
    """

    def __init__(self, path: Path, *, now_s: float) -> None:
        self._file = _opened(path.with_name(f"{path.name}-owner"))
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with self._file:
                owner = _named(self._file)
            raise Conflict(
                "open the store",
                on=str(path),
                got=str(owner or "another process that has it"),
                wanted="one server at a time, as SQLite has it",
                next_step="use that one or stop it, give this one a store of its own, or share one in PostgreSQL",
            ) from None
        self._file.truncate(0)
        self._file.write(encode(StoreOwner(pid=os.getpid(), host=socket.gethostname(), since_s=now_s)))
        self._file.flush()

    def close(self) -> None:
        """Lets the next one work with it."""
        self._file.close()


def _opened(path: Path) -> IO[bytes]:
    return open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWNERS), "r+b", buffering=0)


def _named(file: IO[bytes]) -> StoreOwner | None:
    """Returns who wrote a file; None where it is just being written."""
    try:
        return decode(StoreOwner, file.read())
    except InvalidMessage:
        return None
