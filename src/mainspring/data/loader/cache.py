"""A view's bytes on this machine, within a budget that all its processes share.

Columns, and packets as long as there is room, are kept whole, checked when they come, and named by their content. What
finds no room is read by range from the store: every block is wanted once an epoch, so throwing one out for another
would only move bytes. Room is made of files that nobody has open, the longest unused first.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from mainspring.data.views.view import MappedRanges
from mainspring.domain.errors import InvalidInput, StorageFull
from mainspring.objects import Blob, ObjectStore, fetch_blob, reported

_LOCK = ".lock"  # Hidden, as the names of what is on its way are: neither is counted or thrown out.


class Cache:
    """Brings blobs to a local folder; `files` and `ranges` are what `open_view` takes. For many threads.

    Any number of caches of any processes may share a folder; each takes the budget as the whole folder's.

    Args:
        store: Where the blobs lie.
        folder: The local folder; made when missing.
        budget_bytes: How many bytes may lie there, over 0.

    Raises:
        InvalidInput: The budget is not over 0.
    """

    def __init__(self, store: ObjectStore, folder: Path, budget_bytes: int) -> None:
        if budget_bytes <= 0:
            raise InvalidInput("cache views", on=str(folder), got=f"{budget_bytes} bytes", wanted="over 0")
        self._store = store
        self._folder = folder
        self._budget_bytes = budget_bytes
        self._mapped = MappedRanges(self.files)
        self._held: dict[str, int] = {}  # Open files by blob; the shared lock on one keeps it from being thrown out.
        self._refused: set[str] = set()
        self._guard = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)

    def files(self, blob: Blob) -> Path:
        """Returns the path of a whole, checked blob, brought here if need be.

        Args:
            blob: The blob.

        Raises:
            NotFound: The store does not have it.
            DamagedData: What came is something else.
            StorageFull: There is no room for it, in the budget or on the disk.
        """
        if not self._kept(blob):
            raise StorageFull(
                "cache a view",
                on=str(self._folder),
                got=f"{self._budget_bytes} bytes in all, too few for {blob.size_bytes} more",
                next_step="raise the cache's budget",
            )
        return self._folder / blob.id

    def ranges(self, blob: Blob, offset: int, size_bytes: int) -> memoryview:
        """Returns some of a blob's bytes, from the folder when the blob has room there, else from the store.

        Args:
            blob: The blob.
            offset: Where they begin.
            size_bytes: How many.

        Raises:
            NotFound: The store does not have it.
            DamagedData: It ends before the range does, or what came is something else.
        """
        try:
            kept = self._kept(blob)
        except StorageFull:  # Others write to the disk too: it may be full before the budget is.
            self._refused.add(blob.id)
            kept = False
        if kept:
            return self._mapped(blob, offset, size_bytes)
        return memoryview(self._store.get_range(blob.key, offset=offset, size_bytes=size_bytes))

    def close(self) -> None:
        """Lets others throw out what it held."""
        with self._guard:
            for file in self._held.values():
                os.close(file)
            self._held.clear()

    def _kept(self, blob: Blob) -> bool:
        """Returns whether the blob lies in the folder and stays; brings it if there is room."""
        if blob.id in self._held:
            return True
        if blob.id in self._refused:
            return False
        with self._guard, reported("cache a view", str(self._folder)):
            if blob.id not in self._held and not self._held_here(blob):
                with _locked(self._folder / _LOCK):
                    if not self._room_for(blob):
                        self._refused.add(blob.id)
                        return False
                    fetch_blob(self._store, blob, self._folder)
                    self._held_here(blob)
        return blob.id in self._held

    def _held_here(self, blob: Blob) -> bool:
        """Opens the blob's file and marks it as in use; returns whether it is there."""
        try:
            file = os.open(self._folder / blob.id, os.O_RDONLY)
        except FileNotFoundError:
            return False
        fcntl.flock(file, fcntl.LOCK_SH)
        if os.fstat(file).st_nlink == 0:  # Thrown out between the two calls.
            os.close(file)
            return False
        os.utime(file)
        self._held[blob.id] = file
        return True

    def _room_for(self, blob: Blob) -> bool:
        """Throws out what nobody uses until the blob fits, under the folder's lock; returns whether it does."""
        found = [entry for entry in os.scandir(self._folder) if not entry.name.startswith(".")]
        used_bytes = sum(entry.stat().st_size for entry in found if entry.name != blob.id)
        for entry in sorted(found, key=lambda entry: entry.stat().st_mtime_ns):
            if used_bytes + blob.size_bytes <= self._budget_bytes:
                break
            if entry.name != blob.id and _thrown_out(entry.path):
                used_bytes -= entry.stat().st_size
        return used_bytes + blob.size_bytes <= self._budget_bytes


def _thrown_out(path: str) -> bool:
    """Removes a file unless somebody uses it; returns whether it did."""
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        os.unlink(path)
        return True


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
