"""Version comparison: what differs between two versions."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from mainspring.data.catalog.fragments import read_fragments
from mainspring.data.catalog.log import Version
from mainspring.data.catalog.queries import sealed
from mainspring.data.features import Features
from mainspring.objects import ObjectStore

_SHOWN = ["id", "source", "task", "success", "frames", "seconds"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Difference:
    """What one version holds that another does not.

    Args:
        before: Name of the first.
        after: Name of the second.
        added: Episodes that only the second holds: id, source, task, success, frames, seconds; in id order.
        removed: Episodes that only the first holds, likewise.
        kept: How many both hold.
        features_before: What each step of the first's episodes holds.
        features_after: What each step of the second's episodes holds.
    """

    before: str
    after: str
    added: pa.Table
    removed: pa.Table
    kept: int
    features_before: Features
    features_after: Features


def diff(store: ObjectStore, before: Version, after: Version) -> Difference:
    """Returns what differs between two versions, of one dataset or of two.

    Args:
        store: Where they lie.
        before: The first.
        after: The second.
    """
    shared = set(before.fragments) & set(after.fragments)
    old = read_fragments(store, [part for part in before.fragments if part not in shared], _SHOWN)
    new = read_fragments(store, [part for part in after.fragments if part not in shared], _SHOWN)
    # A version holds each episode once, so what is in a shared fragment is in no other fragment of either.
    with sealed() as database:
        database.register("old", old)
        database.register("new", new)
        added = database.sql("FROM new ANTI JOIN old USING (id) ORDER BY id").to_arrow_table()
        removed = database.sql("FROM old ANTI JOIN new USING (id) ORDER BY id").to_arrow_table()
    return Difference(
        before=before.name,
        after=after.name,
        added=added,
        removed=removed,
        kept=before.episodes - removed.num_rows,
        features_before=before.features,
        features_after=after.features,
    )
