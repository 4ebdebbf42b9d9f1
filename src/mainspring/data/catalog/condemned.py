"""Deletion intents: what a garbage collection is about to delete, said before, so that a commit under way can tell.

The collector says which blobs it condemns, then looks once more for what names them, then deletes the rest. A writer
first stores what names its blobs, then asks here. In whichever order the four steps fall, the collector sees the name
or the writer sees the sentence: no commit names a blob that is deleted under it. Records are kept for the grace age
after the deletion, for writers that put their blobs before it and name them after.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mainspring.data.catalog.fragments import Mask, Prefixes, prefixes_of
from mainspring.domain.errors import NotFound, Unavailable
from mainspring.objects import Blob, ObjectStore

OPEN = "gc/open"
CLOSED = "gc/closed"
LOOKS_MAX = 8  # A look fails only when a collection ends between the list and the read.
REQUESTS_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Condemned:
    """Prefixes of blobs' ids, sorted: about to be deleted, and deleted not long ago."""

    open: Prefixes
    closed: Prefixes


def condemned(store: ObjectStore) -> Condemned:
    """Returns what garbage collections have condemned.

    Args:
        store: Where the blobs lie.

    Raises:
        Unavailable: Collections ended `LOOKS_MAX` times while this looked.
    """
    for _ in range(LOOKS_MAX):
        keys = [entry.key for entry in store.list("gc")]
        try:
            read = {key: np.frombuffer(store.get(key), "<u8").astype(np.uint64) for key in keys}
        except NotFound:
            continue
        sides = {side: [part for key, part in read.items() if key.startswith(side)] for side in (OPEN, CLOSED)}
        return Condemned(open=_sorted(sides[OPEN]), closed=_sorted(sides[CLOSED]))
    raise Unavailable("look for a garbage collection", on="gc", got="records that come and go")


def confirm(store: ObjectStore, ids: Sequence[str] | pa.StringArray) -> None:
    """Returns when every one of these blobs is safe from collections: call it after storing what names them.

    Args:
        store: Where they lie.
        ids: The blobs' ids.

    Raises:
        Unavailable: A collection deletes some of them now, or has deleted them; what made them must make them again.
    """
    found = condemned(store)
    if not len(found.open) and not len(found.closed):
        return
    ids = ids if isinstance(ids, pa.StringArray) else pa.array(ids, pa.string())
    prefixes = prefixes_of(ids)
    if isin(prefixes, found.open).any():
        raise Unavailable(
            "use stored blobs",
            got="a garbage collection that is deleting some of them",
            next_step="do the same again when it has ended",
        )
    doubtful: list[str] = ids.filter(pa.array(isin(prefixes, found.closed))).to_pylist()
    with ThreadPoolExecutor(REQUESTS_AT_ONCE, "confirm") as pool:
        sizes = list(pool.map(lambda id: store.size(Blob(id=id, size_bytes=0).key), doubtful))
    lost = [id for id, size in zip(doubtful, sizes, strict=True) if size is None]
    if lost:
        raise Unavailable(
            "use stored blobs",
            on=lost[0],
            got=f"{len(lost)} that were collected as garbage since they were stored",
            next_step="do the same again from the beginning, so that they are stored once more",
        )


def isin(prefixes: Prefixes, among: Prefixes) -> Mask:
    """Returns whether each prefix is among some.

    Args:
        prefixes: Any.
        among: Sorted.
    """
    if not len(among):
        return np.zeros(len(prefixes), np.bool_)
    at = np.searchsorted(among, prefixes)
    at[at == len(among)] = 0
    hit: Mask = among[at] == prefixes
    return hit


def _sorted(parts: list[Prefixes]) -> Prefixes:
    return np.sort(np.concatenate([np.zeros(0, np.uint64), *parts]))
