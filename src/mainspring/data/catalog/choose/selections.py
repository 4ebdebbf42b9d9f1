"""Versions chosen from versions: what a condition leaves of one, and several put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainspring.data.catalog.fragments import READERS, Fragment, chunked, masked, read_fragments
from mainspring.data.catalog.log import Origin, Version, VersionCandidate, place_of, resolve
from mainspring.data.catalog.queries import matching
from mainspring.data.catalog.versions import prepare_whole, publish
from mainspring.domain.errors import InvalidInput
from mainspring.objects import ObjectStore

_NOTHING: Mapping[str, pa.Table] = MappingProxyType({})


def choose(
    store: ObjectStore,
    version: Version,
    where: str,
    *,
    dataset: str,
    joined: Mapping[str, pa.Table] = _NOTHING,
    origin: Origin | None = None,
) -> VersionCandidate:
    """Returns the episodes for which a condition holds, as a candidate. No row is written again, only which stay.

    Args:
        store: Where the catalog lies.
        version: What is chosen from.
        where: SQL over the columns of an episode; see `queries.matching`.
        dataset: The dataset it is for: another, or the version's own when that is its newest.
        joined: More columns by name; see `queries.matching`.
        origin: How it came to be, if not by this condition.

    Raises:
        InvalidInput: The condition is not one, or holds for no episode.
    """
    hit = matching(store, version.fragments, where, joined)
    with ThreadPoolExecutor(READERS, "masks") as pool:
        masks = chunked(version.fragments, hit)
        kept = [
            part for part in pool.map(lambda part, mask: masked(store, part, mask), version.fragments, masks) if part
        ]
    if not kept:
        raise InvalidInput("choose episodes", on=where[:200], got="none", wanted=f"some of {version.name}")
    origin = origin or Origin(kind="filter", detail=where)
    return prepare_whole(store, dataset, kept, version.features, parent=version.name, origin=origin)


def select(
    store: ObjectStore,
    version: Version,
    where: str,
    *,
    dataset: str,
    joined: Mapping[str, pa.Table] = _NOTHING,
    origin: Origin | None = None,
) -> Version:
    """Returns the version that holds the episodes for which a condition holds, freezing it if it is new.

    Args:
        store: Where the catalog lies.
        version: What is chosen from.
        where: SQL over the columns of an episode; see `queries.matching`.
        dataset: The dataset it is for.
        joined: More columns by name; see `queries.matching`.
        origin: How it came to be, if not by this condition.

    Raises:
        InvalidInput: The condition is not one, or holds for no episode.
        Conflict: It is for the version's own dataset, which has a newer version.
    """
    return publish(store, choose(store, version, where, dataset=dataset, joined=joined, origin=origin))


def merge(store: ObjectStore, names: Sequence[str], *, dataset: str) -> Version:
    """Returns the version that holds the episodes of several, each once, freezing it if it is new.

    Args:
        store: Where the catalog lies.
        names: See `merged`.
        dataset: The dataset it is for.

    Raises:
        InvalidInput: See `merged`.
        NotFound: See `merged`.
        Conflict: One of them is of the same dataset, and is not its newest.
    """
    return publish(store, merged(store, names, dataset=dataset))


def merged(store: ObjectStore, names: Sequence[str], *, dataset: str) -> VersionCandidate:
    """Returns the episodes of several versions, each once, as a candidate.

    Args:
        store: Where the catalog lies.
        names: Names of two or more versions; of an episode that several hold, the first one's row stays.
        dataset: The dataset it is for.

    Raises:
        InvalidInput: There are fewer than two, or their episodes have different features.
        NotFound: There is no such version.
    """
    inputs = [resolve(store, name) for name in names]
    if len({version.name for version in inputs}) < 2:
        raise InvalidInput("merge versions", got=", ".join(names)[:200], wanted="two or more")
    features = inputs[0].features
    for version in inputs[1:]:
        if version.features != features:
            raise InvalidInput("merge versions", on=version.name, got=str(version.features), wanted=str(features))
    fragments: list[Fragment] = []
    for version in inputs:
        fragments += _unheld(store, fragments, version)
    own = [version.name for version in inputs if place_of(version.name).dataset == dataset]
    parent = own[0] if own else inputs[0].name
    return prepare_whole(
        store,
        dataset,
        fragments,
        features,
        parent=parent,
        origin=Origin(kind="merge", inputs=tuple(version.name for version in inputs)),
    )


def _unheld(store: ObjectStore, held: list[Fragment], version: Version) -> list[Fragment]:
    """Returns what a version holds that `held` does not."""
    theirs = [fragment for fragment in version.fragments if fragment not in held]
    ids = read_fragments(store, theirs, ["id"])["id"]
    new = np.ones(len(ids), np.bool_)
    for fragment in held:
        new &= ~pc.is_in(ids, value_set=read_fragments(store, [fragment], ["id"])["id"].combine_chunks()).to_numpy()
    kept = (masked(store, part, mask) for part, mask in zip(theirs, chunked(theirs, new), strict=True))
    return [fragment for fragment in kept if fragment]
