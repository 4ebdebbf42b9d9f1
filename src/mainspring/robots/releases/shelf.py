"""Files of releases in the object store, by the hash of their bytes."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import final

from mainspring.domain.answers.policies.releases import ReleaseFile, artifact_key
from mainspring.objects import ObjectStore


@final
class ReleaseShelf:
    """Files of one release, put where they are missing."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.files: list[ReleaseFile] = []
        self.moved_bytes = 0

    def add(self, path: str, data: bytes) -> None:
        """Adds bytes."""
        file = ReleaseFile(path=path, sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))
        if self._is_new(file):
            self._store.put_if_absent(artifact_key(file.sha256), data)

    def add_file(self, path: str, local: Path) -> None:
        """Adds a local file."""
        with local.open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
        file = ReleaseFile(path=path, sha256=found, size_bytes=local.stat().st_size)
        if self._is_new(file):
            self._store.put_file(artifact_key(file.sha256), local)

    def _is_new(self, file: ReleaseFile) -> bool:
        self.files.append(file)
        missing = self._store.size(artifact_key(file.sha256)) is None
        self.moved_bytes += file.size_bytes if missing else 0
        return missing
