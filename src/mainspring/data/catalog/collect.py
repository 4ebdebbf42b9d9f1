"""Garbage collection: blobs that nothing names any more, and that are older than the grace age, are deleted.

Safe while others write: see `condemned`. In order: list the blobs; find what is alive; condemn what is old and not
alive; find what is alive once more; delete the rest of the condemned.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mainspring.data.catalog.condemned import CLOSED, OPEN, isin
from mainspring.data.catalog.fragments import BLOB_LETTERS, Mask, Prefixes
from mainspring.data.catalog.keeping import GRACE_S, GRACE_S_MIN
from mainspring.data.catalog.roots import Alive, Walk
from mainspring.domain.errors import InvalidInput, NotFound, Unavailable
from mainspring.domain.ports import Clock
from mainspring.objects import Blob, Data, ObjectStore

REQUESTS_AT_ONCE = 16
SWEPT_AT_ONCE = 1_000
SWEEP_S_MAX = 6 * 3_600.0  # A collection ends itself after this, and after twice this others take it for dead.
COLLECTIONS_MAX = 100
_FOLDERS = [f"blobs/{first:02x}" for first in range(256)]
_NAME = re.compile(r"blobs/[0-9a-f]{2}/[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Some objects: how many, and their bytes."""

    objects: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GcReport:
    """What a garbage collection found, and did unless it was a dry run.

    Args:
        dry_run: Whether nothing was touched.
        alive: Blobs that something names.
        young: Blobs that nothing names, but too young to be judged.
        garbage: The rest: deleted, or what would be.
        documents: Keys of old candidates, views of versions that are gone, and old journals that name garbage; deleted
            too.
        left: How many of the garbage are left to the next collection, because this one took too long.
        freed: Names of the deleted versions whose grace is over.
    """

    dry_run: bool
    alive: Counted
    young: Counted
    garbage: Counted
    left: int
    documents: tuple[str, ...]
    freed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Listed:
    """Blobs of a listing, as columns; `ids` is [N, 32]."""

    ids: NDArray[np.uint8]
    prefixes: Prefixes
    size_bytes: NDArray[np.int64]
    modified_s: NDArray[np.float64]

    def counted(self, mask: Mask) -> Counted:
        return Counted(objects=int(mask.sum()), size_bytes=int(self.size_bytes[mask].sum()))


def gc(
    store: ObjectStore,
    *,
    clock: Clock,
    grace_s: float = GRACE_S,
    dry_run: bool = False,
    extra_roots: Iterable[str] = (),
) -> GcReport:
    """Deletes what nothing names any more, and returns what that was.

    Safe to run at any time beside any number of writers and other collections; one that was killed is finished by the
    next. Whoever stores blobs must store what names them within `grace_s`, and then `confirm` them, as `publish` does.

    Args:
        store: Where the catalog and the blobs lie.
        clock: The time; `now_s` is compared with the ages of objects, so the store's clock must be near it.
        grace_s: Nothing younger is touched.
        dry_run: Whether to touch nothing at all.
        extra_roots: Ids of more blobs to keep.

    Raises:
        InvalidInput: The grace is under `GRACE_S_MIN`.
        DamagedData: Something that names blobs cannot be read; nothing is deleted then.
    """
    if grace_s < GRACE_S_MIN:
        raise InvalidInput("collect garbage", got=f"a grace of {grace_s} s", wanted=f"at least {GRACE_S_MIN:.0f} s")
    started_s, now_s = clock.monotonic_s(), clock.now_s()
    old_s = now_s - grace_s
    walk = Walk(store=store, extra=tuple(extra_roots), young=lambda seen: seen.modified_s > old_s, now_s=now_s)
    with ThreadPoolExecutor(1, "walk") as beside:  # In any order: before anything is deleted there is a second walk.
        walked = beside.submit(walk.alive)
        listed = _listed(store)
        found = walked.result()
    old = listed.modified_s <= old_s
    garbage = old & ~isin(listed.prefixes, found.prefixes)
    left = 0
    if not dry_run and (garbage.any() or found.stale):
        sentence = np.sort(listed.prefixes[garbage])
        name = _condemn(store, sentence, now_s)
        found = walk.alive()
        garbage &= ~isin(listed.prefixes, found.prefixes)
        _sweep(store, _documents(found, listed.prefixes[garbage]))
        blobs = np.flatnonzero(garbage)
        for start in range(0, len(blobs), SWEPT_AT_ONCE):
            if clock.monotonic_s() - started_s > SWEEP_S_MAX:
                left = len(blobs) - start
                break
            _sweep(
                store,
                [
                    Blob(id=listed.ids[at].tobytes().hex(), size_bytes=0).key
                    for at in blobs[start : start + SWEPT_AT_ONCE]
                ],
            )
        _end(store, name, sentence.astype("<u8").data)
    if not dry_run:
        _forget(store, old_s, now_s)
    named = isin(listed.prefixes, found.prefixes)
    return GcReport(
        dry_run=dry_run,
        alive=listed.counted(named),
        young=listed.counted(~named & ~old),
        garbage=listed.counted(garbage),
        left=left,
        documents=tuple(_documents(found, listed.prefixes[garbage])),
        freed=found.freed,
    )


def _listed(store: ObjectStore) -> _Listed:
    """Returns all blobs; folder by folder, so that a listing's objects are never all in memory."""

    def columns(folder: str) -> _Listed:
        blobs = [entry for entry in store.list(folder) if _NAME.fullmatch(entry.key)]
        text = "".join(entry.key[-BLOB_LETTERS:] for entry in blobs)
        ids = np.frombuffer(bytes.fromhex(text), np.uint8).reshape(len(blobs), BLOB_LETTERS // 2)
        return _Listed(
            ids=ids,
            prefixes=ids[:, :8].copy().view(">u8")[:, 0].astype(np.uint64),
            size_bytes=np.array([entry.size_bytes for entry in blobs], np.int64),
            modified_s=np.array([entry.modified_s for entry in blobs], np.float64),
        )

    with ThreadPoolExecutor(REQUESTS_AT_ONCE, "list") as pool:
        parts = list(pool.map(columns, _FOLDERS))
    return _Listed(
        ids=np.concatenate([part.ids for part in parts]),
        prefixes=np.concatenate([part.prefixes for part in parts]),
        size_bytes=np.concatenate([part.size_bytes for part in parts]),
        modified_s=np.concatenate([part.modified_s for part in parts]),
    )


def _condemn(store: ObjectStore, sentence: Prefixes, now_s: float) -> str:
    """Says which blobs are condemned, under a name that no other collection has or had; returns the name."""
    data = sentence.astype("<u8").data
    for place in range(COLLECTIONS_MAX):
        name = f"{int(now_s):012d}-{place:03d}"
        if store.put_if_absent(f"{OPEN}/{name}", data):
            if store.size(f"{CLOSED}/{name}") is None:
                return name
            store.delete(f"{OPEN}/{name}")  # The name of a collection that has ended; its record must stay.
    raise Unavailable("collect garbage", got=f"{COLLECTIONS_MAX} collections that began in this second")


def _end(store: ObjectStore, name: str, data: Data) -> None:
    """Turns a sentence into a record of it; in this order, so that there is always one of the two."""
    store.put(f"{CLOSED}/{name}", data)
    store.delete(f"{OPEN}/{name}")


def _forget(store: ObjectStore, old_s: float, now_s: float) -> None:
    """Ends collections that must be dead, and drops records that are older than any writer under way."""
    for entry in store.list("gc"):
        name = entry.key.rpartition("/")[2]
        if entry.key.startswith(CLOSED) and entry.modified_s <= old_s:
            store.delete(entry.key)
        elif entry.key.startswith(OPEN) and entry.modified_s <= now_s - 2 * SWEEP_S_MAX:
            with contextlib.suppress(NotFound):  # Another collection may do the same.
                _end(store, name, store.get(entry.key))


def _documents(found: Alive, garbage: Prefixes) -> list[str]:
    """Returns which stale documents go: journals only when what they name goes, for else they still save work."""
    garbage = np.sort(garbage)
    return [key for key, named in found.stale.items() if not key.startswith("intake/") or isin(named, garbage).any()]


def _sweep(store: ObjectStore, keys: Sequence[str]) -> None:
    with ThreadPoolExecutor(REQUESTS_AT_ONCE, "sweep") as pool:
        for _ in pool.map(store.delete, keys):
            pass
