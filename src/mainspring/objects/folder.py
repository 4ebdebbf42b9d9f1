"""A folder on a local disk as an object store.

A writer fills a hidden temporary file, makes it durable, then renames it over the key (`put`) or links it to the key
(`put_if_absent`: the kernel lets exactly one link win). While it writes it holds a lock on the temporary file; a file
without a lock belongs to a writer that was killed, and is swept away when a store is opened. Bytes in memory at a
page's address go past the page cache, both ways.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from mainspring.domain.errors import InvalidInput, Unavailable
from mainspring.objects.direct import DIRECT_BYTES_MIN, is_aligned, read_into, write_direct
from mainspring.objects.files import READABLE, reported, sync_path, whole_file
from mainspring.objects.port import (
    IN_MEMORY_BYTES_MAX,
    LISTED_MAX,
    Data,
    ObjectSeen,
    checked_key,
    checked_range,
    ends_early,
    too_large,
)

_HIDDEN = ".writing"  # Starts with a dot, so no key can name it.
_OWNERS = 0o700  # Of a store that is made here; whoever shares one opens it, to those it is for.
_COPY_BYTES = 4 << 20
_CREATE_TRIES_MAX = 8  # A try fails only when a sweep runs between two system calls of ours.


class FolderStore:
    """An `ObjectStore` in a folder, which is made when missing, for its owner alone.

    Args:
        root: Absolute path.

    Raises:
        InvalidInput: The path is not absolute, or is not a folder.
        Unavailable: The folder cannot be made.
    """

    def __init__(self, root: Path) -> None:
        if not root.is_absolute() or (root.exists() and not root.is_dir()):
            raise InvalidInput("open an object store", on=str(root), wanted="the absolute path of a folder")
        self._root = root
        self._hidden = root / _HIDDEN
        with reported("open an object store", str(root)):
            if not root.exists():
                _make_folder(root.parent)
                root.mkdir(mode=_OWNERS, exist_ok=True)
            _make_folder(self._hidden)
            self._sweep()

    def put(self, key: str, data: Data) -> None:
        """See `ObjectStore.put`."""
        with reported("store an object", key):
            self._write(key, lambda file, path: _write_all(file, path, data))

    def put_if_absent(self, key: str, data: Data) -> bool:
        """See `ObjectStore.put_if_absent`."""
        target = self._path(key)
        with reported("store an object", key):
            if target.exists():
                sync_path(target.parent)  # The winner may not have come this far; what we report must last.
                return False
            with self._temporary() as (file, path):
                _write_all(file, path, data)
                _make_folder(target.parent)
                try:
                    os.link(path, target)
                except FileExistsError:
                    return False
                finally:
                    sync_path(target.parent)
            return True

    def put_file(self, key: str, path: Path) -> None:
        """See `ObjectStore.put_file`."""
        with reported("store a file", f"{path} as {key}"), open(path, "rb") as source:
            self._write(key, lambda file, _: _copy_all(file, source))

    def get(self, key: str) -> bytes:
        """See `ObjectStore.get`."""
        with reported("read an object", key), open(self._path(key), "rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes > IN_MEMORY_BYTES_MAX:
                raise too_large(key, size_bytes)
            return file.read()

    def get_range(self, key: str, *, offset: int, size_bytes: int) -> bytes:
        """See `ObjectStore.get_range`."""
        checked_range(key, offset=offset, size_bytes=size_bytes)
        with reported("read a range", key), open(self._path(key), "rb") as file:
            file.seek(offset)
            data = file.read(size_bytes)
            length = os.fstat(file.fileno()).st_size
            if len(data) < size_bytes or offset > length:
                raise ends_early(key, length=length, offset=offset, size_bytes=size_bytes)
            return data

    def get_into(self, key: str, *, offset: int, into: memoryview) -> None:
        """See `ObjectStore.get_into`."""
        checked_range(key, offset=offset, size_bytes=0)
        path, view = self._path(key), into.cast("B")
        with reported("read a range", key):
            got = read_into(path, offset, view)
            if view and got == len(view):
                return
            length = path.stat().st_size
            if got < len(view) or offset > length:
                raise ends_early(key, length=length, offset=offset, size_bytes=len(view))

    def fetch_file(self, key: str, path: Path) -> None:
        """See `ObjectStore.fetch_file`."""
        with (
            reported("fetch an object", f"{key} to {path}"),
            open(self._path(key), "rb") as source,
            whole_file(path) as file,
        ):
            shutil.copyfileobj(source, file, _COPY_BYTES)

    def size(self, key: str) -> int | None:
        """See `ObjectStore.size`."""
        path = self._path(key)
        with reported("look at an object", key):
            try:
                return path.stat().st_size if path.is_file() else None
            except FileNotFoundError:
                return None

    def list(self, prefix: str) -> tuple[ObjectSeen, ...]:
        """See `ObjectStore.list`."""
        folder = self._path(prefix) if prefix else self._root
        seen: list[ObjectSeen] = []
        with reported("list objects", prefix):
            for one in _files_below(str(folder), f"{prefix}/" if prefix else ""):
                seen.append(one)
                if len(seen) > LISTED_MAX:
                    raise InvalidInput("list objects", on=prefix, got=f"over {LISTED_MAX}", wanted="a narrower folder")
        return tuple(sorted(seen, key=lambda entry: entry.key))

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        path = self._path(key)
        with reported("delete an object", key):
            try:
                path.unlink()
            except FileNotFoundError:
                return
            sync_path(path.parent)

    def _path(self, key: str) -> Path:
        return self._root / checked_key(key)

    def _write(self, key: str, fill: Callable[[IO[bytes], Path], None]) -> None:
        target = self._path(key)
        with self._temporary() as (file, path):
            fill(file, path)
            _make_folder(target.parent)
            os.rename(path, target)
            sync_path(target.parent)

    @contextlib.contextmanager
    def _temporary(self) -> Iterator[tuple[IO[bytes], Path]]:
        """Gives a locked temporary file and its path; on leaving, what is still at that path is removed."""
        for _ in range(_CREATE_TRIES_MAX):
            descriptor, name = tempfile.mkstemp(dir=self._hidden)
            path = Path(name)
            with open(descriptor, "wb") as file:
                os.fchmod(descriptor, READABLE)
                fcntl.flock(file, fcntl.LOCK_EX)  # Contended only by a sweep, which never holds it for long.
                if not path.exists():
                    continue  # A sweep took the file for a dead writer's before we had locked it.
                try:
                    yield file, path
                finally:
                    path.unlink(missing_ok=True)
                return
        raise Unavailable("store an object", on=str(self._hidden), got="temporary files that vanish")

    def _sweep(self) -> None:
        for path in sorted(self._hidden.iterdir()):
            with contextlib.suppress(FileNotFoundError, BlockingIOError), open(path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


def _write_all(file: IO[bytes], path: Path, data: Data) -> None:
    """Writes bytes and makes them durable."""
    view = memoryview(data).cast("B")
    direct = len(view) >= DIRECT_BYTES_MIN and is_aligned(view)
    if not (direct and write_direct(path, view)):
        file.write(view)
        _sync_file(file)


def _copy_all(file: IO[bytes], source: IO[bytes]) -> None:
    shutil.copyfileobj(source, file, _COPY_BYTES)
    _sync_file(file)


def _sync_file(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _make_folder(folder: Path) -> None:
    """Makes `folder` and its parents durable, so that an object in it cannot be lost with its folder."""
    missing = [folder, *folder.parents]
    missing = missing[: next(i for i, parent in enumerate(missing) if parent.exists())]
    for parent in reversed(missing):
        parent.mkdir(exist_ok=True)
        sync_path(parent.parent)


def _files_below(folder: str, prefix: str) -> Iterator[ObjectSeen]:
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _files_below(entry.path, f"{prefix}{entry.name}/")
        else:
            with contextlib.suppress(FileNotFoundError):  # Deleted since the folder was read.
                status = entry.stat()
                yield ObjectSeen(key=prefix + entry.name, size_bytes=status.st_size, modified_s=status.st_mtime)
