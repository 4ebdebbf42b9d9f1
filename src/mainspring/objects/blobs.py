"""Content-addressed bytes: an object named by the BLAKE3 hash of what it holds, checked whenever it is read."""

from __future__ import annotations

import fcntl
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from mainspring.domain.errors import DamagedData, InvalidInput
from mainspring.objects.files import reported
from mainspring.objects.port import Data, ObjectStore

BLOBS = "blobs"  # The folder of them all.
_HEX = frozenset("0123456789abcdef")
_HASH_LETTERS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """Names bytes by their content.

    Args:
        id: BLAKE3 of the bytes, 64 hexadecimal letters.
        size_bytes: How many there are.
    """

    id: str
    size_bytes: int

    def __post_init__(self) -> None:
        """Checks the id, which becomes part of keys and file names.

        Raises:
            InvalidInput: It is not a hash.
        """
        if len(self.id) != _HASH_LETTERS or not _HEX.issuperset(self.id) or self.size_bytes < 0:
            raise InvalidInput("accept a content id", got=repr(self.id[:80]), wanted="64 hexadecimal letters")

    @property
    def key(self) -> str:
        """Returns where an object store keeps these bytes."""
        return f"{BLOBS}/{self.id[:2]}/{self.id}"


def blob_of(data: Data) -> Blob:
    """Returns the name of bytes.

    Args:
        data: The bytes.
    """
    return Blob(id=blake3(data).hexdigest(), size_bytes=memoryview(data).nbytes)


def blob_of_file(path: Path) -> Blob:
    """Returns the name of a file's bytes, read in bounded memory.

    Args:
        path: The file.

    Raises:
        NotFound: There is no such file.
    """
    with reported("read a file", str(path)):
        return Blob(id=blake3().update_mmap(path).hexdigest(), size_bytes=path.stat().st_size)


def put_blob(store: ObjectStore, data: Data) -> Blob:
    """Stores bytes under their own name; does nothing when they are there already.

    Args:
        store: Where to.
        data: The bytes.
    """
    blob = blob_of(data)
    store.put_if_absent(blob.key, data)
    return blob


def put_blob_file(store: ObjectStore, path: Path, blob: Blob) -> None:
    """Stores a file under the name of its bytes; does nothing when they are there already.

    Args:
        store: Where to.
        path: The file, which nobody may be changing.
        blob: What `blob_of_file` returned for it.

    Raises:
        NotFound: There is no such file.
    """
    if store.size(blob.key) is None:
        store.put_file(blob.key, path)


def get_blob(store: ObjectStore, blob: Blob) -> bytes:
    """Returns the bytes a name stands for.

    Args:
        store: Where they lie.
        blob: Their name.

    Raises:
        NotFound: They are not there.
        DamagedData: What is there is something else.
    """
    data = store.get(blob.key)
    _checked(blob_of(data), blob)
    return data


def fetch_blob(store: ObjectStore, blob: Blob, folder: Path) -> Path:
    """Returns the path of a local, checked copy of the bytes, fetched unless it is there already.

    Any number of processes may ask for the same blob at once: one fetches, the others wait for it. A fetcher that is
    killed lets go of its lock.

    Args:
        store: Where they lie.
        blob: Their name.
        folder: The local cache; made when missing.

    Raises:
        NotFound: They are not there.
        DamagedData: What came is something else.
        StorageFull: The local disk is full.
    """
    path = folder / blob.id
    if path.exists():
        return path
    arriving = folder / f".arriving-{blob.id}"
    with reported("fetch a blob", str(path)):
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / f".lock-{blob.id}", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                store.fetch_file(blob.key, arriving)
                try:
                    _checked(blob_of_file(arriving), blob)
                    arriving.rename(path)
                finally:
                    arriving.unlink(missing_ok=True)
    return path


def _checked(found: Blob, wanted: Blob) -> None:
    if found != wanted:
        raise DamagedData("read a blob", on=wanted.key, got=f"bytes of {found.id[:16]}", wanted=wanted.id[:16])
