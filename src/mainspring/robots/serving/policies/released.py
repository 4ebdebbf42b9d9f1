"""Policies of releases: the files that were signed, by the hash of what a release says."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mainspring.checkpoint.format import dtype_named
from mainspring.checkpoint.interop import Block, Region
from mainspring.checkpoint.safetensors import SafetensorsSource
from mainspring.domain.answers.policies.releases import PolicyRelease, ReleaseFile, artifact_key
from mainspring.domain.codec import decode
from mainspring.domain.errors import DamagedData, NotFound
from mainspring.objects import ObjectStore
from mainspring.robots.serving.policies.trained import CheckpointPolicy
from mainspring.train.evaluate import policy_from

TEXT_BYTES_MAX = 4 << 20  # What a release says: a thousand files, a hundred and fifty bytes each, is a tenth of it.
_READ_BYTES = 8 << 20
_FOLDERS = ("weights", "tokenizer")


def load_release(
    store: ObjectStore, sha256: str, folder: Path, *, tokenizer: Path | None, batch_max: int
) -> CheckpointPolicy:
    """Returns the policy of a release.

    Args:
        sha256: Of what the release says, which lies in the store as its files do.
        folder: For its files; nothing of it is needed afterwards.
        tokenizer: See `CheckpointPolicy`; the release's own where it has one and this is None.

    Raises:
        NotFound: There is no such release in the store, or a file of it is gone.
        DamagedData: It, or a file, holds other bytes than were signed.
        InvalidInput: It holds no policy that acts.
    """
    size_bytes = store.size(artifact_key(sha256))
    if size_bytes is None:
        raise NotFound("find a release", on=sha256[:16], got="none in this store", next_step="ms release show RELEASE")
    said = _whole(store, ReleaseFile(path="release", sha256=sha256, size_bytes=size_bytes))
    release = decode(PolicyRelease, said)
    state: dict[str, Any] = {}
    for file in release.content.files:
        if file.path == "facts.json":
            state |= json.loads(_whole(store, file))
        elif file.path == "recipe.json":
            state["recipe"] = _whole(store, file).decode()
        elif file.path.partition("/")[0] in _FOLDERS:
            _fetch(store, file, folder / file.path)
    arrays = {name: array for root in sorted(folder.glob("weights/*")) for name, array in _arrays(root).items()}
    own = next(iter(sorted(folder.glob("tokenizer/*"))), None)
    policy = policy_from(state, arrays)
    return CheckpointPolicy(policy, name=release.reference, tokenizer=tokenizer or own, batch_max=batch_max)


def _arrays(root: Path) -> dict[str, NDArray[Any]]:
    source = SafetensorsSource(root)
    found = {array.path: np.empty(array.shape, dtype_named(array.dtype)) for array in source.arrays}
    source.read(
        [
            Block(array=each, region=Region(start=(0,) * len(each.shape), shape=each.shape), elements=found[each.path])
            for each in source.arrays
        ]
    )
    return found


def _whole(store: ObjectStore, file: ReleaseFile) -> bytes:
    if file.size_bytes > TEXT_BYTES_MAX:
        raise DamagedData("read a release", on=file.path, got=f"{file.size_bytes} bytes", wanted="a text")
    return b"".join(_verified(store, file))


def _fetch(store: ObjectStore, file: ReleaseFile, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as opened:
        opened.writelines(_verified(store, file))


def _verified(store: ObjectStore, file: ReleaseFile) -> Iterator[bytes]:
    """Yields a file's bytes; raises at their end where they are others."""
    found, key = hashlib.sha256(), artifact_key(file.sha256)
    for offset in range(0, file.size_bytes, _READ_BYTES):
        data = store.get_range(key, offset=offset, size_bytes=min(_READ_BYTES, file.size_bytes - offset))
        found.update(data)
        yield data
    if found.hexdigest() != file.sha256:
        raise DamagedData("read a release", on=file.path, got="other bytes than were signed", wanted=file.sha256[:16])
