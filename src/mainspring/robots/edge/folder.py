"""A robot's disk as one folder of a file system: what was synced outlives a power loss."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import final

from mainspring.domain.errors import InvalidInput, StorageFull, Unavailable

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_FULL = (errno.ENOSPC, errno.EDQUOT)


@final
class FolderDisk:
    """See `EdgeDisk`.

    Args:
        folder: The agent's own; made when missing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with _told("open the robot's folder", folder):
            folder.mkdir(parents=True, exist_ok=True)

    def path(self, name: str) -> Path:
        """Returns where a file lies."""
        if not _NAME.fullmatch(name):
            raise InvalidInput("name a file on the robot", got=repr(name[:80]), wanted="a plain name")
        return self._folder / name

    def read(self, name: str) -> bytes | None:
        """See `EdgeDisk.read`."""
        with _told("read", self.path(name)):
            try:
                return self.path(name).read_bytes()
            except FileNotFoundError:
                return None

    def size(self, name: str) -> int:
        """See `EdgeDisk.size`."""
        with _told("look at", self.path(name)):
            try:
                return self.path(name).stat().st_size
            except FileNotFoundError:
                return 0

    def append(self, name: str, data: bytes) -> None:
        """See `EdgeDisk.append`."""
        with _told("write", self.path(name)), self.path(name).open("ab") as file:
            file.write(data)

    def remove(self, name: str) -> None:
        """See `EdgeDisk.remove`."""
        with _told("remove", self.path(name)):
            self.path(name).unlink(missing_ok=True)

    def rename(self, name: str, to: str) -> None:
        """See `EdgeDisk.rename`."""
        with _told("rename", self.path(name)):
            self.path(name).replace(self.path(to))

    def sync(self, name: str) -> None:
        """See `EdgeDisk.sync`."""
        with _told("sync", self.path(name)), self.path(name).open("rb") as file:
            os.fsync(file.fileno())

    def sync_names(self) -> None:
        """See `EdgeDisk.sync_names`."""
        with _told("sync", self._folder):
            opened = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(opened)
            finally:
                os.close(opened)

    def names(self) -> Sequence[str]:
        """See `EdgeDisk.names`."""
        with _told("list", self._folder):
            return sorted(path.name for path in self._folder.iterdir() if path.is_file())

    def sha256(self, name: str) -> str:
        """See `EdgeDisk.sha256`."""
        with _told("read", self.path(name)):
            try:
                with self.path(name).open("rb") as file:
                    return hashlib.file_digest(file, "sha256").hexdigest()
            except FileNotFoundError:
                return ""

    def free_bytes(self) -> int:
        """See `EdgeDisk.free_bytes`."""
        with _told("look at", self._folder):
            return shutil.disk_usage(self._folder).free


@contextmanager
def _told(attempted: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind = StorageFull if error.errno in _FULL else Unavailable
        raise kind(f"{attempted} on the robot", on=str(path), got=error.strerror or str(error)) from error
