"""Hashes that clients of DDI want of files beside SHA-256: read once from a file's bytes, and kept."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import sqlalchemy as sa

from mainspring.control.store.robots.tables import file_digests
from mainspring.control.store.rows import add_rows
from mainspring.control.store.store import Store
from mainspring.domain.answers.policies.releases import ReleaseFile, artifact_key
from mainspring.objects import open_store

PIECE_BYTES = 1 << 20  # Read, and handed on, at a time: bounds the memory of a call.


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDigest:
    """Hashes of a file, hexadecimal."""

    sha1: str
    md5: str


@final
class Digests:
    """Files of releases, in the object store of one controller. Used by many threads."""

    def __init__(self, store: Store, objects_url: str) -> None:
        self._store = store
        self._objects_url = objects_url

    def of(self, file: ReleaseFile) -> FileDigest:
        """Returns the hashes of a file."""
        asked = sa.select(file_digests).where(file_digests.c.sha256 == file.sha256)
        with self._store.read() as connection:
            row = connection.execute(asked).first()
        if row is not None:
            return FileDigest(sha1=row.sha1, md5=row.md5)
        sha1, md5 = hashlib.sha1(usedforsecurity=False), hashlib.md5(usedforsecurity=False)
        for piece in self.pieces(file, 0, file.size_bytes):
            sha1.update(piece)
            md5.update(piece)
        made = {"sha256": file.sha256, "sha1": sha1.hexdigest(), "md5": md5.hexdigest()}
        with self._store.write() as connection:
            add_rows(connection, file_digests, [made], unless_there=True)
        return FileDigest(sha1=made["sha1"], md5=made["md5"])

    def pieces(self, file: ReleaseFile, begin: int, end: int) -> Iterator[bytes]:
        """Yields a file's bytes from `begin` up to `end`."""
        store, key = open_store(self._objects_url), artifact_key(file.sha256)
        for offset in range(begin, end, PIECE_BYTES):
            yield store.get_range(key, offset=offset, size_bytes=min(PIECE_BYTES, end - offset))
