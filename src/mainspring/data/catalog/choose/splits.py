"""Train and holdout splits: a share of every task, and no episode ever changes its side.

Episodes that belong together (of one session, one scene) leak from side to side unless they go together: sides are
those of groups. A side that was used is kept, under `sides/<fraction and group>/`, each object holding all that are
known; new groups fill up what is missing of each task's share, in the order of a hash. So the same history gives the
same sides.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from blake3 import blake3
from numpy.typing import NDArray

from mainspring.data.catalog.fragments import Mask
from mainspring.data.catalog.log import Version
from mainspring.data.catalog.queries import sealed
from mainspring.data.catalog.versions import episode_table
from mainspring.domain.errors import Conflict, DamagedData, InvalidInput, NotFound
from mainspring.objects import ObjectStore

_GROUPED_BY = ["id", "source", "task", "robot", "started_ns", "metadata", "columns"]  # What may be asked of a group.
_TRIES_MAX = 16  # Each lost try means that somebody else has kept sides.
_KEPT_MAX = 2  # Objects of known sides: the newest, and the one that somebody may be reading.
_LETTERS = 32
_UNKNOWN, _TRAINS, _HELD = -1, 0, 1
_GROUPS = """
    SELECT "group", count(*) AS episodes, min(task) AS task FROM grouped GROUP BY "group" ORDER BY "group"
"""
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

    @property
    def ids_held_out(self) -> pa.Array:
        """Returns the ids of the episodes held out, in order."""
        return self.episodes.filter(self.episodes["held_out"])["id"].combine_chunks()

    @property
    def id(self) -> str:
        """Returns the hash of which episodes are held out."""
        return blake3("\n".join(self.ids_held_out.to_pylist()).encode()).hexdigest()[:_LETTERS]


def split(
    store: ObjectStore,
    version: Version,
    fraction: float,
    *,
    group: str = "id",
    keep: bool = False,
    before: Callable[[], Mapping[str, bool]] = dict,
) -> Sides:
    """Returns a version's episodes on two sides, checked: no group and no recording lies on both.

    Of each task, as near to the fraction of its episodes as groups that are known to be on a side allow. One group is
    held out if there are two, and one always trains.

    Args:
        store: Where the version lies.
        version: The version.
        fraction: Share of episodes to hold out, 0 to 1.
        group: SQL for what episodes that belong together have in common, such as "metadata['session']"; where it is
            null, an episode is a group by itself.
        keep: Whether each group stays on its side from now on, in every version.
        before: Whether each episode is held out that had a side before sides were kept, by id.

    Raises:
        InvalidInput: The fraction is outside its range, the group is no expression, or equal recordings, as two
            episodes, would lie on both sides.
        Conflict: Others keep sides all the time.
    """
    if not 0.0 <= fraction <= 1.0:
        raise InvalidInput("split episodes", got=str(fraction), wanted="a fraction from 0 to 1")
    with sealed() as database:
        table = _grouped(store, version, group, database)
        database.register("grouped", table)
        groups = database.sql(_GROUPS).to_arrow_table()
        folder = f"sides/{blake3(json.dumps([fraction, group]).encode()).hexdigest()[:_LETTERS]}"
        for _ in range(_TRIES_MAX):
            known = _Known.read(store, folder) or _Known.before(table, before())
            held = _sides(groups, known, fraction)
            found = table.append_column("held_out", pa.array(held).take(pc.index_in(table["group"], groups["group"])))
            database.register("sides", found)
            _check_leaks(database, version)
            if not keep or known.added(store, folder, groups["group"].to_pylist(), held):
                return Sides(
                    episodes=found.drop(["recording", "task"]), held_out=pc.sum(found["held_out"]).as_py() or 0
                )
    raise Conflict("split episodes", on=version.name, got="others who split at once", next_step="try again")


def _grouped(store: ObjectStore, version: Version, group: str, database: duckdb.DuckDBPyConnection) -> pa.Table:
    """Returns id, task, group and recording of each episode, in id order."""
    database.register("episodes", episode_table(store, version, _GROUPED_BY))
    try:
        grouped = database.table("episodes").project(
            f'id, task, coalesce(({group}\n)::VARCHAR, id) AS "group", columns."check" AS recording'
        )
        return grouped.order("id").to_arrow_table()
    except duckdb.Error as error:
        raise InvalidInput(
            "split episodes",
            on=group[:200],
            got=str(error).partition("\n")[0][:300],
            wanted=f"an expression over {', '.join(_GROUPED_BY)}",
        ) from error


def _check_leaks(database: duckdb.DuckDBPyConnection, version: Version) -> None:
    for leak in database.sql(_BOTH_SIDES).fetchall():
        raise InvalidInput(
            "split episodes",
            on=version.name,
            got=f"one recording on both sides, as {leak[0]} and {leak[1]}",
            next_step="remove one of them, or group by something they share",
        )


def _sides(groups: pa.Table, known: _Known, fraction: float) -> Mask:
    """Returns whether each group is held out: known ones as they are, new ones so that each task has its share."""
    names, tasks = groups["group"].to_pylist(), groups["task"].fill_null("").to_pylist()
    counts = groups["episodes"].to_numpy()
    side = np.array([known.sides.get(name, _UNKNOWN) for name in names], np.int8)
    draws = [b"" if name in known.sides else blake3(name.encode()).digest() for name in names]
    task_names, task_of = np.unique(np.array(tasks, np.object_), return_inverse=True)
    missing = _targets(task_names.tolist(), np.bincount(task_of, counts).astype(np.float64), fraction)
    np.subtract.at(missing, task_of[side == _HELD], counts[side == _HELD])
    for at in sorted(np.flatnonzero(side == _UNKNOWN).tolist(), key=lambda at: draws[at]):
        task = task_of[at]
        side[at] = _HELD if 2 * missing[task] >= counts[at] else _TRAINS
        missing[task] -= counts[at] * (side[at] == _HELD)
    _both_sides(side, draws, fraction)
    held: Mask = side == _HELD
    return held


def _targets(tasks: list[str], episodes: NDArray[np.float64], fraction: float) -> NDArray[np.float64]:
    """Returns how many episodes of each task to hold out: whole numbers that add up, by the largest remainder."""
    exact = fraction * episodes
    whole = np.floor(exact + 1e-9)
    left = int(np.floor(exact.sum() + 0.5) - whole.sum())
    order = sorted(range(len(tasks)), key=lambda at: (-(exact[at] - whole[at]), blake3(tasks[at].encode()).digest()))
    whole[order[: max(0, left)]] += 1
    return whole


def _both_sides(side: NDArray[np.int8], draws: list[bytes], fraction: float) -> None:
    """Moves one new group to a side that has none, where that side is wanted."""
    fresh = sorted((at for at in range(len(side)) if draws[at]), key=lambda at: draws[at])
    if len(side) < 2 or not fresh:
        if len(side) == 1 and fresh and fraction < 1.0:
            side[:] = _TRAINS
        return
    if fraction > 0.0 and not (side == _HELD).any():
        side[fresh[0]] = _HELD
    elif fraction < 1.0 and not (side == _TRAINS).any():
        side[fresh[-1]] = _TRAINS


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """Groups that are on a side: by name, and the number of the object that says so."""

    number: int
    sides: dict[str, int]

    @staticmethod
    def before(table: pa.Table, held: Mapping[str, bool]) -> _Known:
        """Returns the sides of groups some of whose episodes had one."""
        sides: dict[str, int] = {}
        for id, group in zip(table["id"].to_pylist(), table["group"].to_pylist(), strict=True) if held else ():
            if id in held:
                sides[group] = max(sides.get(group, _TRAINS), int(held[id]))
        return _Known(number=0, sides=sides)

    @staticmethod
    def read(store: ObjectStore, folder: str) -> _Known | None:
        """Returns what is kept, None when nothing is."""
        for entry in reversed(store.list(folder)):
            try:
                table = pq.read_table(pa.BufferReader(store.get(entry.key)))
                return _Known(
                    number=int(entry.key.rpartition("/")[2].partition(".")[0]),
                    sides=dict(zip(table["group"].to_pylist(), map(int, table["held_out"].to_pylist()), strict=True)),
                )
            except NotFound:
                continue  # Somebody has just kept more, and removed it; the one before is as true.
            except (pa.ArrowException, OSError, ValueError, KeyError) as error:
                raise DamagedData("read which episodes are held out", on=entry.key, got=str(error)[:200]) from error
        return None

    def added(self, store: ObjectStore, folder: str, names: list[str], held: Mask) -> bool:
        """Keeps the sides of groups too; returns whether nobody else did so meanwhile."""
        fresh = {name: int(out) for name, out in zip(names, held.tolist(), strict=True) if name not in self.sides}
        if not fresh and self.number:
            return True
        whole = sorted({**self.sides, **fresh}.items())
        table = pa.table({"group": [name for name, _ in whole], "held_out": [bool(out) for _, out in whole]})
        sink = io.BytesIO()
        pq.write_table(table, sink, compression="zstd")
        key = f"{folder}/{self.number + 1:010d}.parquet"
        if not store.put_if_absent(key, sink.getbuffer()):
            return False
        keys = [entry.key for entry in store.list(folder)]
        if keys[-1] != key:  # Others have gone on so far that this number was free again.
            store.delete(key)
            return False
        for old in keys[:-_KEPT_MAX]:
            store.delete(old)
        return True
