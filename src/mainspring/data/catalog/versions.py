"""Datasets and their versions: immutable manifests in the object store, committed by put-if-absent.

`catalog/<dataset>/<number>.json` is the dataset's log. A version's id is the hash of its episodes' ids, so equal
content is one version whoever froze it. The episodes themselves are rows of a Parquet blob.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3

from mainspring.data.episode import EpisodeRow, Features
from mainspring.domain.codec import decode, encode, from_plain, to_plain
from mainspring.domain.errors import Conflict, InvalidInput, NotFound, nearest
from mainspring.domain.ids import EpisodeId, VersionId, checked_name
from mainspring.objects import Blob, ObjectStore, get_blob, put_blob

COMMIT_TRIES_MAX = 64  # Every lost race means that somebody else has committed; 64 in a row is a fault.
NUMBER_MAX = 999_999
TASKS_NAMED_MAX = 100
_ID_LETTERS = 32
_BLOB = pa.struct([("id", pa.string()), ("size_bytes", pa.int64())])
_SEALED: Mapping[str, str | bool | int | float | list[str]] = MappingProxyType(
    {"enable_external_access": False, "lock_configuration": True, "threads": 1}
)
_ROWS = pa.schema(
    [
        ("id", pa.string()),
        ("source", pa.string()),
        ("task", pa.string()),
        ("robot", pa.string()),
        ("success", pa.bool_()),
        ("rate_hz", pa.float64()),
        ("frames", pa.int64()),
        ("seconds", pa.float64()),
        ("columns", _BLOB),
        ("videos", pa.list_(pa.struct([("camera", pa.string()), ("blob", _BLOB), ("first_frame", pa.int64())]))),
        ("raw", pa.list_(pa.struct([("name", pa.string()), ("blob", _BLOB)]))),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One frozen, numbered list of episodes.

    Args:
        dataset: Its dataset.
        number: Its place in the dataset's log, from 1.
        id: Hash of the episodes' ids; also names the version in lineage.
        features: What each step of every episode holds.
        episodes: How many.
        frames: Steps in all of them.
        seconds: Time in all of them.
        size_bytes: Bytes of raw files and columns, each counted once.
        tasks: The tasks, in order, at most `TASKS_NAMED_MAX`.
        table: The rows.
    """

    dataset: str
    number: int
    id: VersionId
    features: Features
    episodes: int
    frames: int
    seconds: float
    size_bytes: int
    tasks: tuple[str, ...]
    table: Blob

    @property
    def name(self) -> str:
        """Returns the name that means this version for ever, such as "pick@3"."""
        return f"{self.dataset}@{self.number}"


def extend(store: ObjectStore, dataset: str, rows: Sequence[EpisodeRow], features: Features) -> Version:
    """Returns the version that holds the newest version's episodes and `rows`, freezing it if it is new.

    Safe against others who do the same: whoever loses a race adds to the winner's version.

    Args:
        store: Where the catalog lies.
        dataset: The dataset; begins to exist with its first version.
        rows: Episodes whose bytes are in the store already. Those it holds already stay as they are.
        features: What each step of these episodes holds.

    Raises:
        InvalidInput: The dataset's name cannot be a name, there are no rows, or its episodes have other features.
        Conflict: Others committed `COMMIT_TRIES_MAX` times in between.
    """
    checked_name(dataset, "dataset")
    if not rows:
        raise InvalidInput("freeze a version", on=dataset, got="no episodes", wanted="at least one")
    for _ in range(COMMIT_TRIES_MAX):
        newest = newest_version(store, dataset)
        held = episode_rows(store, newest) if newest else ()
        if newest and newest.features != features:
            raise InvalidInput("extend a dataset", on=dataset, got=str(features), wanted=str(newest.features))
        union = {row.id: row for row in (*rows, *held)}
        version = _frozen(store, dataset, (newest.number if newest else 0) + 1, union, features)
        if newest and newest.id == version.id:
            return newest
        if store.put_if_absent(_key(dataset, version.number), encode(version)):
            return version
    raise Conflict("freeze a version", on=dataset, got=f"{COMMIT_TRIES_MAX} commits by others", wanted="a quiet moment")


def datasets(store: ObjectStore) -> tuple[str, ...]:
    """Returns the names of all datasets, in order.

    Args:
        store: Where the catalog lies.
    """
    return tuple(sorted({entry.key.split("/")[1] for entry in store.list("catalog")}))


def newest_versions(store: ObjectStore) -> tuple[Version, ...]:
    """Returns the newest version of every dataset, in name order.

    Args:
        store: Where the catalog lies.
    """
    newest = (newest_version(store, dataset) for dataset in datasets(store))
    return tuple(version for version in newest if version)


def versions(store: ObjectStore, dataset: str) -> tuple[Version, ...]:
    """Returns every version of a dataset, oldest first.

    Args:
        store: Where the catalog lies.
        dataset: The dataset.
    """
    entries = store.list(f"catalog/{checked_name(dataset, 'dataset')}")
    return tuple(decode(Version, store.get(entry.key)) for entry in entries)


def newest_version(store: ObjectStore, dataset: str) -> Version | None:
    """Returns a dataset's newest version, or None when there is no such dataset.

    Args:
        store: Where the catalog lies.
        dataset: The dataset.
    """
    entries = store.list(f"catalog/{checked_name(dataset, 'dataset')}")
    return decode(Version, store.get(entries[-1].key)) if entries else None


def resolve(store: ObjectStore, name: str) -> Version:
    """Returns the version a name means.

    Args:
        store: Where the catalog lies.
        name: "dataset@3", or "dataset" for its newest.

    Raises:
        InvalidInput: The name has another form.
        NotFound: There is no such dataset or version.
    """
    dataset, at, number = name.partition("@")
    checked_name(dataset, "dataset")
    if at and not (number.isdecimal() and number.isascii() and 1 <= int(number[:9]) <= NUMBER_MAX):
        raise InvalidInput("read a version's name", got=repr(name[:80]), wanted="dataset or dataset@number")
    newest = newest_version(store, dataset)
    if newest is None:
        raise NotFound("find a dataset", on=dataset, wanted=nearest(dataset, datasets(store)))
    if not at or int(number) == newest.number:
        return newest
    if int(number) > newest.number:
        raise NotFound("find a version", on=name, wanted=f"{dataset}@1 to {newest.name}")
    return decode(Version, store.get(_key(dataset, int(number))))


def episode_rows(store: ObjectStore, version: Version) -> tuple[EpisodeRow, ...]:
    """Returns a version's episodes, in id order.

    Args:
        store: Where they lie.
        version: The version.
    """
    return tuple(from_plain(EpisodeRow, row) for row in episode_table(store, version).to_pylist())


def episode_table(store: ObjectStore, version: Version) -> pa.Table:
    """Returns a version's episodes as a table: id, source, task, robot, success, rate_hz, frames, seconds and files.

    Args:
        store: Where they lie.
        version: The version.
    """
    return pq.read_table(io.BytesIO(get_blob(store, version.table)))


def query(store: ObjectStore, version: Version, where: str) -> tuple[EpisodeId, ...]:
    """Returns the ids of the episodes for which a condition holds, in id order.

    Args:
        store: Where they lie.
        version: The version.
        where: SQL over the columns of `episode_table`, such as "success and seconds > 2". It sees nothing else.

    Raises:
        InvalidInput: The condition is not one.
    """
    episodes = episode_table(store, version)
    with duckdb.connect(config=dict(_SEALED)) as connection:
        connection.register("episodes", episodes)
        try:
            relation = connection.table("episodes").filter(where).project("id").order("id")
            return tuple(EpisodeId(row[0]) for row in relation.fetchall())
        except duckdb.Error as error:
            got = str(error).partition("\n")[0][:300]
            raise InvalidInput(
                "query a version",
                on=where[:200],
                got=got,
                wanted=f"a condition over {', '.join(_ROWS.names)}",
            ) from error


def _frozen(
    store: ObjectStore, dataset: str, number: int, union: dict[EpisodeId, EpisodeRow], features: Features
) -> Version:
    rows = [union[key] for key in sorted(union)]
    table = pa.Table.from_pylist([to_plain(row) for row in rows], schema=_ROWS)
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    blobs = {blob for row in rows for blob in (row.columns, *(file.blob for file in row.raw))}
    return Version(
        dataset=dataset,
        number=number,
        id=VersionId(blake3("\n".join(row.id for row in rows).encode()).hexdigest()[:_ID_LETTERS]),
        features=features,
        episodes=len(rows),
        frames=sum(row.frames for row in rows),
        seconds=sum(row.seconds for row in rows),
        size_bytes=sum(blob.size_bytes for blob in blobs),
        tasks=tuple(sorted({row.task for row in rows})[:TASKS_NAMED_MAX]),
        table=put_blob(store, sink.getvalue()),
    )


def _key(dataset: str, number: int) -> str:
    return f"catalog/{dataset}/{number:06d}.json"
