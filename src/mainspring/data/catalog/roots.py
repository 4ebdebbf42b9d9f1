"""Garbage-collection roots: every blob that something in the store names.

Roots are the versions (but for deleted ones whose grace is over and that no pin and no mixture names), the views of
these, young candidates, layers, and young journals of ingests. Where a root says of a blob that it is its "table", the
blob is Parquet, and the blobs named in it are alive too; "keep" beside it says which of its rows count. For the rest, a
root names whatever in it looks like a blob's id: what is kept by mistake costs a little room, and what a newer program
stores there is kept by an older one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from mainspring.data.catalog.fragments import (
    READERS,
    Mask,
    Prefixes,
    blobs_named_in,
    prefixes_of,
    read_blobs_named,
    read_mask,
)
from mainspring.data.catalog.log import (
    REQUESTS_AT_ONCE,
    Deleted,
    Place,
    deleted_key,
    logs,
    place_of,
    version_key,
)
from mainspring.data.catalog.mixtures import mixture, mixtures
from mainspring.domain.codec import decode
from mainspring.domain.errors import DamagedData, NotFound
from mainspring.objects import Blob, ObjectSeen, ObjectStore

_ID = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_PARQUET = b"PAR1"
NAMED_MAX = 10  # Versions in a message; a fragment is often a whole line of versions'.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Alive:
    """What a walk from the roots has found.

    Args:
        prefixes: Of the ids of all blobs that are alive, sorted.
        stale: Keys of objects that count as roots no more: old candidates, views of versions that are gone, and old
            journals, with the prefixes of what each names.
        freed: Names of the deleted versions whose grace is over.
    """

    prefixes: Prefixes
    stale: Mapping[str, Prefixes]
    freed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Table:
    """A table of rows that name blobs; `keeps` are the masks of those who hold it, None among them for all rows."""

    blob: Blob
    rows: int
    keeps: frozenset[Blob | None]


@dataclass(slots=True)
class _Versions:
    """Those that are roots, and those that were until their grace was over."""

    living: list[Place] = field(default_factory=list)
    freed: list[Place] = field(default_factory=list)


@dataclass(slots=True)
class Walk:
    """Walks from the roots, as often as asked; what never changes is read once.

    Args:
        store: What is walked.
        extra: Ids of more blobs that are roots.
        young: Whether an object is younger than the grace age.
        now_s: The time, which graves are compared with.
    """

    store: ObjectStore
    extra: tuple[str, ...]
    young: Callable[[ObjectSeen], bool]
    now_s: float
    _read: dict[str, bytes] = field(default_factory=dict)
    _named: dict[tuple[str, frozenset[Blob | None]], Prefixes] = field(default_factory=dict)

    def alive(self) -> Alive:
        """Returns what is alive now.

        What turns into something else is looked at before what it turns into: a candidate that is gone when it is read
        is a version by then.

        Raises:
            DamagedData: Something that names blobs cannot be read; then nobody knows what is alive.
            NotFound: A table that a version or a layer names is gone.
        """
        drafts: list[bytes] = []
        stale: dict[str, bytes] = {}
        for folder in ("intake", "candidates", "view_shards"):
            for entry, data in self._all(folder):
                if self.young(entry):
                    drafts.append(data)
                else:
                    stale[entry.key] = data
        documents = [data for _, data in self._all("layers")]
        views = list(self._all("views"))
        found = self._living()
        versions = list(self._objects([version_key(place.dataset, place.number) for place in found.living]).values())
        documents += versions
        ids = {json.loads(data)["id"] for data in versions}
        for entry, data in views:
            made_of = json.loads(data).get("version")
            if self.young(entry) or made_of in ids or not isinstance(made_of, str):
                documents.append(data)
            else:
                stale[entry.key] = data
        return Alive(
            prefixes=self._marked(documents, drafts),
            stale={key: _ids_in(data) for key, data in stale.items()},
            freed=tuple(f"{place.dataset}@{place.number}" for place in found.freed),
        )

    def _marked(self, documents: list[bytes], drafts: list[bytes]) -> Prefixes:
        found = [prefixes_of(pa.array(self.extra, pa.string())), *(_ids_in(data) for data in documents + drafts)]
        with ThreadPoolExecutor(READERS, "roots") as pool:
            try:
                found += pool.map(self._named_in, _tables_in(documents))
            except (NotFound, DamagedData) as error:
                raise type(error)(
                    "find what is alive",
                    on=_holders_of(documents, error.on),
                    got=f"{error.on}: {error.got or 'nothing there'}",
                    wanted="the table of its episodes, which says what it keeps; nothing was deleted",
                    next_step="put the object back from a copy of the store, or delete (ms data rm) every version that "
                    "names it: once their grace is over they are not asked any more",
                ) from error
            found += pool.map(self._named_in_draft, _tables_in(drafts))
        return _distinct(found)

    def _named_in(self, table: _Table) -> Prefixes:
        known = (table.blob.id, table.keeps)
        if known not in self._named:
            mask: Mask | None = None
            if None not in table.keeps:
                masks = (read_mask(self.store, keep, table.rows) for keep in table.keeps if keep)
                mask = np.logical_or.reduce(list(masks))
            self._named[known] = _distinct([read_blobs_named(self.store, table.blob, mask).prefixes])
        return self._named[known]

    def _named_in_draft(self, table: _Table) -> Prefixes:
        try:
            return self._named_in(table)
        except NotFound:  # Collected before the draft was written: its writer was told, and it can never be published.
            return np.zeros(0, np.uint64)

    def _all(self, folder: str) -> Iterator[tuple[ObjectSeen, bytes]]:
        """Yields the objects below a folder with their bytes, but for those that go meanwhile."""
        entries = self.store.list(folder)
        found = self._objects([entry.key for entry in entries])
        return ((entry, found[entry.key]) for entry in entries if entry.key in found)

    def _objects(self, keys: list[str]) -> dict[str, bytes]:
        """Returns the bytes of those objects that are there."""

        def read(key: str) -> bytes | None:
            if key in self._read:
                return self._read[key]
            try:
                return self.store.get(key)
            except NotFound:
                return None

        with ThreadPoolExecutor(REQUESTS_AT_ONCE, "roots") as pool:
            found = {key: data for key, data in zip(keys, pool.map(read, keys), strict=True) if data is not None}
        self._read.update((key, data) for key, data in found.items() if key.startswith("catalog/"))
        return found

    def _living(self) -> _Versions:
        """Returns the versions that are roots, and those that were until their grace was over."""
        every = logs(self.store)
        held = self._held()
        found = _Versions()
        for dataset, numbers in every.items():
            for number in numbers.every:
                place = Place(dataset=dataset, number=number)
                gone = number in numbers.deleted and place not in held and self._is_free(place)
                (found.freed if gone else found.living).append(place)
        return found

    def _is_free(self, place: Place) -> bool:
        try:
            return decode(Deleted, self.store.get(deleted_key(place.dataset, place.number))).free_after_s <= self.now_s
        except NotFound:
            return False  # Undeleted since the list was made.

    def _held(self) -> frozenset[Place]:
        """Returns the versions that pins and mixtures name."""
        pinned = (entry.key.split("/") for entry in self.store.list("pins"))
        held = {Place(dataset=parts[1], number=int(parts[2])) for parts in pinned}
        for name in mixtures(self.store):
            try:
                held |= {place_of(component.version) for component in mixture(self.store, name).components}
            except NotFound:
                continue  # Deleted since the list was made.
        return frozenset(held)


def _tables_in(documents: Iterable[bytes]) -> list[_Table]:
    """Returns each table that documents name, with all masks it is named with."""
    found: dict[str, tuple[Blob, int, set[Blob | None]]] = {}
    for data in documents:
        if b'"table"' in data and not data.startswith(_PARQUET):
            for one in _holders(json.loads(data)):
                blob = Blob(id=one["table"]["id"], size_bytes=one["table"]["size_bytes"])
                keep = one.get("keep")
                mask = Blob(id=keep["id"], size_bytes=keep["size_bytes"]) if keep else None
                found.setdefault(blob.id, (blob, one.get("rows", 0), set()))[2].add(mask)
    return [_Table(blob=blob, rows=rows, keeps=frozenset(keeps)) for blob, rows, keeps in found.values()]


def _holders_of(documents: Iterable[bytes], key: str) -> str:
    """Returns which fragments of which versions, or what else, name the object that lies at a key, for people."""
    id = key.rpartition("/")[2].encode()
    named = []
    for data in documents:
        if id not in data:
            continue
        plain = json.loads(data)
        fragments = plain.get("fragments")
        if not fragments:
            named.append(f"a layer by {plain.get('producer', '?')}")
            continue
        at = next(at for at, fragment in enumerate(fragments, 1) if id.decode() in json.dumps(fragment))
        named.append(f"{plain['dataset']}@{plain['number']} (fragment {at} of {len(fragments)})")
    more = f" and {len(named) - NAMED_MAX} more" if len(named) > NAMED_MAX else ""
    return ", ".join(named[:NAMED_MAX]) + more


def _holders(plain: object) -> Iterator[dict[str, Any]]:
    """Yields each object inside JSON that names a table."""
    if isinstance(plain, dict):
        if isinstance(plain.get("table"), dict):
            yield plain
        plain = list(plain.values())
    for part in plain if isinstance(plain, list) else ():
        yield from _holders(part)


def _ids_in(data: bytes) -> Prefixes:
    """Returns the prefixes of whatever in a document looks like a blob's id."""
    if data.startswith(_PARQUET):
        return blobs_named_in("a root", data).prefixes
    return prefixes_of(pa.array([found.decode() for found in _ID.findall(data)], pa.string()))


def _distinct(parts: Iterable[Prefixes]) -> Prefixes:
    every = np.sort(np.concatenate([np.zeros(0, np.uint64), *parts]))
    first = np.ones(len(every), np.bool_)
    first[1:] = every[1:] != every[:-1]
    return every[first]
