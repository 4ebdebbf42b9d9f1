"""Freshness: how long episodes took from their arrival until they could be trained on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from mainspring.data.catalog.log import Version, resolve, version_key
from mainspring.data.catalog.versions import episode_table
from mainspring.domain.errors import NotFound
from mainspring.objects import ObjectStore

_NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """Seconds from arrival to publication, over the episodes that a version brought.

    Args:
        version: The version.
        episodes: How many it brought.
        median_s: Half of them took less.
        late_s: 95 of 100 took less.
        max_s: The longest.
    """

    version: str
    episodes: int
    median_s: float
    late_s: float
    max_s: float


def freshness(store: ObjectStore, version: Version) -> Freshness:
    """Returns how fresh the episodes were that a version brought beyond its parent.

    Args:
        store: Where it lies; its clock says when the version was published.
        version: The version.

    Raises:
        NotFound: The version is no longer there.
    """
    key = version_key(version.dataset, version.number)
    published_s = next((entry.modified_s for entry in store.list(key.rpartition("/")[0]) if entry.key == key), None)
    if published_s is None:
        raise NotFound("tell the freshness of a version", on=version.name)
    table = episode_table(store, version, ["id", "arrived_ns"])
    if version.parent:
        try:
            held = episode_table(store, resolve(store, version.parent), ["id"])["id"]
            table = table.filter(pc.invert(pc.is_in(table["id"], value_set=held.combine_chunks())))
        except NotFound:
            pass  # The parent was deleted: all episodes count.
    took_s = published_s - table["arrived_ns"].to_numpy() / _NANOSECONDS
    if len(took_s) == 0:
        return Freshness(version=version.name, episodes=0, median_s=0.0, late_s=0.0, max_s=0.0)
    median_s, late_s, max_s = np.quantile(np.maximum(took_s, 0.0), (0.5, 0.95, 1.0)).tolist()
    return Freshness(version=version.name, episodes=len(took_s), median_s=median_s, late_s=late_s, max_s=max_s)
