"""Lineage: what made a version, and what was made of it: versions, mixtures, views, runs, checkpoints.

Up, a version says itself what it was made of. Down, `uses/<dataset>/<number>/<kind>/<id>` is stored before the thing it
names, so that no use is missed; a version that another writer's took the number of does not say so itself, and is
passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from mainspring.data.catalog.log import Version, folder_of, place_of, version_key
from mainspring.domain.codec import decode
from mainspring.domain.errors import InvalidInput, NotFound
from mainspring.domain.ids import checked_name
from mainspring.objects import ObjectStore, checked_key

_USES = "uses"
LINKS_MAX = 100_000  # A lineage of more is no answer for people, and bounds a walk.
VERSION = "version"

_Far: TypeAlias = tuple[str, str]  # A kind and an id.


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One step of a lineage.

    Args:
        of: Name of the version on the near side.
        kind: What is on the far side: "version", "mixture", "view", "run", "checkpoint", ...
        id: Its name or id.
        depth: Steps from where the walk began, from 1.
    """

    of: str
    kind: str
    id: str
    depth: int


def record_use(store: ObjectStore, version: str, kind: str, id: str) -> None:
    """Records that something is made of a version, or reads it. May be repeated; best done before the thing exists.

    Args:
        store: Where the catalog lies.
        version: Its whole name, such as "pick@3".
        kind: What uses it: "view", "run", "checkpoint", ...
        id: Its id: segments joined by "/"; a version's name for a version.

    Raises:
        InvalidInput: The kind or id cannot be one, or the version's name has no number.
    """
    key = f"{folder_of(place_of(version), _USES)}/{checked_name(kind, 'kind')}/{id.replace('@', '/')}"
    store.put_if_absent(checked_key(key, what="the id of a use"), b"")


def ancestors(store: ObjectStore, version: Version) -> tuple[Link, ...]:
    """Returns every version that a version was made of, nearest first; deleted ones too.

    Args:
        store: Where the catalog lies.
        version: The version.
    """

    def above(name: str) -> Iterator[_Far]:
        found = version if name == version.name else _version(store, name)
        for made_of in _made_of(found) if found else ():
            yield VERSION, made_of

    return _walked(version.name, above)


def descendants(store: ObjectStore, version: Version) -> tuple[Link, ...]:
    """Returns everything that was made of a version, and of what was made of it, nearest first.

    Args:
        store: Where the catalog lies.
        version: The version.
    """

    def below(name: str) -> Iterator[_Far]:
        folder = folder_of(place_of(name), _USES)
        for entry in store.list(folder):
            kind, _, id = entry.key.removeprefix(f"{folder}/").partition("/")
            if kind != VERSION:
                yield kind, id
            elif (found := _version(store, "@".join(id.rsplit("/", 1)))) and name in _made_of(found):
                yield kind, found.name

    return _walked(version.name, below)


def _walked(start: str, next_to: Callable[[str], Iterator[_Far]]) -> tuple[Link, ...]:
    links: list[Link] = []
    seen, border, depth = {start}, [start], 0
    while border:
        depth += 1
        for of in border:
            links += [Link(of=of, kind=kind, id=id, depth=depth) for kind, id in next_to(of)]
            if len(links) > LINKS_MAX:
                raise InvalidInput("follow a lineage", on=start, got=f"over {LINKS_MAX} links")
        border = [link.id for link in links if link.depth == depth and link.kind == VERSION]
        border = [name for name in dict.fromkeys(border) if name not in seen]
        seen.update(border)
    return tuple(links)


def _made_of(version: Version) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in (version.parent, *version.origin.inputs) if name))


def _version(store: ObjectStore, name: str) -> Version | None:
    place = place_of(name)
    try:
        return decode(Version, store.get(version_key(place.dataset, place.number)))
    except NotFound:
        return None
