"""Policies of releases: the files that were signed, in the object store or in a slot of a robot."""

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
from mainspring.domain.answers.policies.releases import SLOT_RELEASE, PolicyRelease, ReleaseFile, artifact_key
from mainspring.domain.codec import decode
from mainspring.domain.errors import DamagedData, NotFound
from mainspring.objects import ObjectStore
from mainspring.robots.serving.policies.trained import CheckpointPolicy
from mainspring.train.evaluate import policy_from

TEXT_BYTES_MAX = 4 << 20  # What a release says: a thousand files, a hundred and fifty bytes each, is a tenth of it.
_READ_BYTES = 8 << 20
_FOLDERS = ("weights", "tokenizer")
_RECIPE = "recipe.json"
_TEXTS = (_RECIPE, "facts.json")
_ATTEMPTED = "read a release"


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
    said = b"".join(_verified(store, ReleaseFile(path="release", sha256=sha256, size_bytes=_short(size_bytes, sha256))))
    release = decode(PolicyRelease, said)
    for file in _needed(release):
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as opened:
            opened.writelines(_verified(store, file))
    return _opened(release, folder, tokenizer=tokenizer, batch_max=batch_max)


def load_slot(folder: Path, *, tokenizer: Path | None, batch_max: int) -> CheckpointPolicy:
    """Returns the policy of the release in a slot of a robot: `release.json`, which its agent found signed, and beside
    it the files that it names.

    Args:
        tokenizer: See `load_release`.

    Raises:
        NotFound: There is no release in it, or a file of it is gone.
        DamagedData: A file holds other bytes than were signed.
        InvalidInput: It holds no policy that acts.
    """
    place = folder / SLOT_RELEASE
    try:
        _short(place.stat().st_size, str(place))
        release = decode(PolicyRelease, place.read_bytes())
        for file in _needed(release):
            with (folder / file.path).open("rb") as opened:
                found = hashlib.file_digest(opened, "sha256").hexdigest()
            if found != file.sha256:
                raise DamagedData(_ATTEMPTED, on=file.path, got="other bytes than were signed", wanted=file.sha256)
    except OSError as error:
        step = "have the agent install it again: ms robot install"
        raise NotFound(_ATTEMPTED, on=str(folder), got=str(error), wanted="a robot's slot", next_step=step) from error
    return _opened(release, folder, tokenizer=tokenizer, batch_max=batch_max)


def _needed(release: PolicyRelease) -> tuple[ReleaseFile, ...]:
    """Returns the files that a policy is read from, none of whose texts is too long."""
    files = release.content.files
    for file in files:
        if file.path in _TEXTS:
            _short(file.size_bytes, file.path)
    return tuple(file for file in files if file.path in _TEXTS or file.path.partition("/")[0] in _FOLDERS)


def _opened(release: PolicyRelease, folder: Path, *, tokenizer: Path | None, batch_max: int) -> CheckpointPolicy:
    """Returns the policy of a release, all of whose files lie below a folder as the release names them."""
    state: dict[str, Any] = {}
    for file in release.content.files:
        if file.path in _TEXTS:
            text = (folder / file.path).read_text(encoding="utf-8")
            state |= {"recipe": text} if file.path == _RECIPE else json.loads(text)
    roots = sorted({Path(*Path(file.path).parts[:2]) for file in release.content.files if _is_in(file, "weights")})
    arrays = {name: array for root in roots for name, array in _arrays(folder / root).items()}
    own = next((folder / file.path for file in release.content.files if _is_in(file, "tokenizer")), None)
    policy = policy_from(state, arrays)
    return CheckpointPolicy(policy, name=release.reference, tokenizer=tokenizer or own, batch_max=batch_max)


def _is_in(file: ReleaseFile, folder: str) -> bool:
    return file.path.startswith(f"{folder}/")


def _short(size_bytes: int, what: str) -> int:
    """Returns a size that a text may have."""
    if size_bytes > TEXT_BYTES_MAX:
        raise DamagedData(_ATTEMPTED, on=what, got=f"{size_bytes} bytes", wanted="a text")
    return size_bytes


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


def _verified(store: ObjectStore, file: ReleaseFile) -> Iterator[bytes]:
    """Yields a file's bytes; raises at their end where they are others."""
    found, key = hashlib.sha256(), artifact_key(file.sha256)
    for offset in range(0, file.size_bytes, _READ_BYTES):
        data = store.get_range(key, offset=offset, size_bytes=min(_READ_BYTES, file.size_bytes - offset))
        found.update(data)
        yield data
    if found.hexdigest() != file.sha256:
        raise DamagedData(_ATTEMPTED, on=file.path, got="other bytes than were signed", wanted=file.sha256[:16])
