"""Local files: how they appear whole, and what their errors mean."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from mainspring.domain.errors import Conflict, MainspringError, NotAllowed, NotFound, StorageFull, Unavailable

READABLE = 0o644  # Temporary files start as 0600; objects are for everybody whom the folder lets in.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Gives a file to write that appears at `path` when the block ends well, and nowhere when it does not.

    Args:
        path: Where it appears; its folder is made when missing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".fetching-")
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, READABLE)
            yield file
        os.rename(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def reported(attempted: str, on: str) -> Iterator[None]:
    """Turns the operating system's errors inside the block into ours.

    Args:
        attempted: What is being done.
        on: The thing it is done to.
    """
    try:
        yield
    except OSError as error:
        raise os_error(attempted, on, error) from error


def sync_path(path: Path) -> None:
    """Has what was written to a file, or to the list of a folder, outlive the machine's power.

    Args:
        path: The file or folder.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def os_error(attempted: str, on: str, error: OSError) -> MainspringError:
    """Returns one of our errors for one of the operating system's.

    Args:
        attempted: What was being done.
        on: The thing it was done to.
        error: What came.
    """
    got = error.strerror or str(error)
    if error.errno in _FULL:
        return StorageFull(attempted, on=on, got=got, next_step="free some room or choose another store")
    match error:
        case FileNotFoundError():
            return NotFound(attempted, on=on, got="nothing there")
        case FileExistsError() | NotADirectoryError() | IsADirectoryError():
            return Conflict(attempted, on=on, got=got, wanted="no key that is a folder of another")
        case PermissionError():
            return NotAllowed(attempted, on=on, got=got)
        case _:
            return Unavailable(attempted, on=on, got=got)
