"""Which episodes train and which are held out: by a hash, so that an episode stays on its side in every version.

Episodes that belong together (of one session, one scene) leak from side to side unless they go together: the hash is of
what they share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3

from mainspring.data.catalog.fragments import Mask
from mainspring.data.catalog.log import Version
from mainspring.data.catalog.queries import sealed
from mainspring.data.catalog.versions import episode_table
from mainspring.domain.errors import InvalidInput
from mainspring.objects import ObjectStore

_GROUPED_BY = ["id", "source", "task", "robot", "started_ns", "metadata", "columns"]  # What may be asked of a group.
_SPAN = 1 << 64
_BOTH_SIDES = """
    SELECT min(id) FILTER (held_out), min(id) FILTER (NOT held_out) FROM sides
    GROUP BY recording HAVING bool_or(held_out) AND NOT bool_and(held_out) ORDER BY 1 LIMIT 1
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sides:
    """A version's episodes on two sides.

    Args:
        episodes: One row each, in id order: id, group, held_out.
        held_out: How many are held out.
    """

    episodes: pa.Table
    held_out: int


def split_of(keys: Sequence[str], fraction: float) -> Mask:
    """Returns whether each key is held out: always the same for one key and fraction, whatever else there is.

    A key held out at one fraction is held out at every larger one.

    Args:
        keys: Ids of episodes, or of groups of them.
        fraction: Share to hold out, 0 to 1.

    Raises:
        InvalidInput: The fraction is outside its range.
    """
    if not 0.0 <= fraction <= 1.0:
        raise InvalidInput("split episodes", got=str(fraction), wanted="a fraction from 0 to 1")
    if fraction == 1.0:
        return np.ones(len(keys), np.bool_)
    draws = np.frombuffer(b"".join(blake3(key.encode()).digest(length=8) for key in keys), ">u8")
    held: Mask = draws < np.uint64(int(fraction * _SPAN))
    return held


def split(store: ObjectStore, version: Version, fraction: float, *, group: str = "id") -> Sides:
    """Returns a version's episodes on two sides, checked: no group and no recording lies on both.

    Args:
        store: Where the version lies.
        version: The version.
        fraction: Share of groups to hold out, 0 to 1.
        group: SQL for what episodes that belong together have in common, such as "metadata['session']"; where it is
            null, an episode is a group by itself.

    Raises:
        InvalidInput: The group is no expression, or equal recordings, as two episodes, would lie on both sides.
    """
    with sealed() as database:
        database.register("episodes", episode_table(store, version, _GROUPED_BY))
        try:
            grouped = database.table("episodes").project(
                f'id, coalesce(({group}\n)::VARCHAR, id) AS "group", columns."check" AS recording'
            )
            table = grouped.order("id").to_arrow_table()
        except duckdb.Error as error:
            got = str(error).partition("\n")[0][:300]
            raise InvalidInput(
                "split episodes", on=group[:200], got=got, wanted=f"an expression over {', '.join(_GROUPED_BY)}"
            ) from error
        names = pc.unique(table["group"])
        held = pa.array(split_of(names.to_pylist(), fraction)).take(pc.index_in(table["group"], value_set=names))
        table = table.append_column("held_out", held)
        database.register("sides", table)
        for leak in database.sql(_BOTH_SIDES).fetchall():
            raise InvalidInput(
                "split episodes",
                on=version.name,
                got=f"one recording on both sides, as {leak[0]} and {leak[1]}",
                next_step="remove one of them, or group by something they share",
            )
    return Sides(episodes=table.drop(["recording"]), held_out=pc.sum(table["held_out"]).as_py() or 0)
