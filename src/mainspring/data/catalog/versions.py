"""Version commits: rows are prepared, judged by whoever wants to, then published by put-if-absent.

What others commit in between is never lost: whoever loses a race adds to the winner's version. A commit reads the ids
of what is there and writes what is new; small fragments are put together now and then, so that few are ever read.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3

from mainspring.data.catalog.condemned import confirm
from mainspring.data.catalog.fragments import (
    FRAGMENT_ROWS_MAX,
    READERS,
    ROWS,
    Fragment,
    mask_of,
    masked,
    put_fragment,
    put_fragments,
    read_blobs_named,
    read_fragment,
    read_fragments,
    table_of,
)
from mainspring.data.catalog.lineage import VERSION, record_use
from mainspring.data.catalog.log import (
    NUMBER_MAX,
    TASKS_NAMED_MAX,
    Origin,
    Version,
    VersionCandidate,
    Waiver,
    datasets,
    newest_version,
    newest_versions,
    numbers_of,
    place_of,
    resolve,
    version_key,
    versions,
)
from mainspring.data.catalog.queries import matching
from mainspring.data.episode import EpisodeRow
from mainspring.data.features import Features
from mainspring.domain.codec import decode, encode, from_plain, to_plain
from mainspring.domain.errors import Conflict, InvalidInput, NotFound
from mainspring.domain.ids import EpisodeId, VersionId, checked_name
from mainspring.objects import ObjectStore

COMMIT_TRIES_MAX = 1_000  # With 16 writers each round has one winner: to lose so often has odds of 1e-28.
INGEST = Origin(kind="ingest")
_ID_LETTERS = 32

__all__ = [
    "INGEST",
    "Origin",
    "Version",
    "VersionCandidate",
    "Waiver",
    "candidate",
    "candidates",
    "datasets",
    "episode_rows",
    "episode_table",
    "extend",
    "newest_version",
    "newest_versions",
    "prepare",
    "prepare_whole",
    "publish",
    "query",
    "resolve",
    "versions",
]


def extend(
    store: ObjectStore,
    dataset: str,
    rows: Sequence[EpisodeRow] | pa.Table,
    features: Features,
    origin: Origin = INGEST,
) -> Version:
    """Returns the version that holds the newest version's episodes and `rows`, freezing it if it is new.

    Args:
        store: Where the catalog lies.
        dataset: The dataset; begins to exist with its first version.
        rows: Episodes whose bytes are in the store already. Those it holds already stay as they are.
        features: What each step of these episodes holds.
        origin: How they came to be.

    Raises:
        InvalidInput: The dataset's name cannot be a name, there are no rows, or its episodes have other features.
        Conflict: Others committed `COMMIT_TRIES_MAX` times in between.
        Unavailable: Bytes of these episodes were collected as garbage since they were stored.
    """
    return publish(store, _candidate(store, dataset, rows, features, origin))


def prepare(
    store: ObjectStore,
    dataset: str,
    rows: Sequence[EpisodeRow] | pa.Table,
    features: Features,
    origin: Origin = INGEST,
) -> VersionCandidate:
    """Returns episodes as a candidate for a dataset's next version, kept in the store until it is published.

    Args:
        store: Where the catalog lies.
        dataset: The dataset.
        rows: Episodes whose bytes are in the store already; a table is of `fragments.ROWS`.
        features: What each step of these episodes holds.
        origin: How they came to be.

    Raises:
        InvalidInput: The dataset's name cannot be a name, there are no rows, or its episodes have other features.
    """
    made = _candidate(store, dataset, rows, features, origin)
    store.put(_candidate_key(made), encode(made))
    return made


def prepare_whole(
    store: ObjectStore, dataset: str, fragments: Sequence[Fragment], features: Features, *, parent: str, origin: Origin
) -> VersionCandidate:
    """Returns fragments as a candidate that is to be a version by itself, kept in the store until it is published.

    Args:
        store: Where the catalog lies.
        dataset: The dataset.
        fragments: All episodes of the version to be, each once.
        features: What each step of these episodes holds.
        parent: Name of the version they were chosen from.
        origin: How they were chosen.

    Raises:
        InvalidInput: The dataset's name cannot be a name, or there are no episodes.
    """
    made = _made(store, dataset, tuple(fragments), features, whole=True, parent=parent, origin=origin)
    store.put(_candidate_key(made), encode(made))
    return made


def candidate(store: ObjectStore, dataset: str, id: str) -> VersionCandidate:
    """Returns a candidate that was prepared and not yet published.

    Args:
        store: Where the catalog lies.
        dataset: Its dataset.
        id: Its id.

    Raises:
        NotFound: It was published, was never prepared, or is too old and was collected.
    """
    return decode(VersionCandidate, store.get(f"candidates/{checked_name(dataset, 'dataset')}/{id}.json"))


def candidates(store: ObjectStore, dataset: str) -> tuple[str, ...]:
    """Returns the ids of a dataset's candidates.

    Args:
        store: Where the catalog lies.
        dataset: The dataset.
    """
    entries = store.list(f"candidates/{checked_name(dataset, 'dataset')}")
    return tuple(entry.key.rpartition("/")[2].removesuffix(".json") for entry in entries)


def publish(store: ObjectStore, candidate: VersionCandidate, *, waivers: Sequence[Waiver] = ()) -> Version:
    """Returns the version that a candidate has become. May be repeated: it becomes one version once.

    Safe against others who publish at the same time, and against a garbage collection that runs meanwhile.

    Args:
        store: Where the catalog lies.
        candidate: What is published.
        waivers: Gates that it did not pass, and who let it pass.

    Raises:
        InvalidInput: The dataset's episodes have other features.
        Conflict: The candidate was chosen from a version of the same dataset that is no longer its newest, or others
            committed `COMMIT_TRIES_MAX` times in between.
        Unavailable: Blobs it names were collected as garbage since they were stored.
    """
    known: dict[Fragment, list[str]] = {}
    for _ in range(COMMIT_TRIES_MAX):
        numbers = numbers_of(store, candidate.dataset)
        alive = numbers.alive
        newest = decode(Version, store.get(version_key(candidate.dataset, alive[-1]))) if alive else None
        _check_fits(candidate, newest)
        if candidate.whole:
            fragments, tasks, parent = candidate.fragments, candidate.tasks, candidate.parent
        else:
            fragments = _union(store, newest.fragments if newest else (), candidate.fragments, known)
            tasks = tuple(sorted({*candidate.tasks, *(newest.tasks if newest else ())})[:TASKS_NAMED_MAX])
            parent = newest.name if newest else ""
        number = (numbers.every[-1] if numbers.every else 0) + 1
        version = _version(candidate, number, fragments, tasks=tasks, parent=parent, waivers=tuple(waivers))
        if newest and newest.id == version.id:
            store.delete(_candidate_key(candidate))
            return newest
        _announce(store, candidate, version, newest)
        if store.put_if_absent(version_key(candidate.dataset, number), encode(version)):
            store.delete(_candidate_key(candidate))
            return version
    raise Conflict(
        "publish a version", on=candidate.dataset, got=f"{COMMIT_TRIES_MAX} commits by others", wanted="a quiet moment"
    )


def episode_rows(store: ObjectStore, version: Version | VersionCandidate) -> tuple[EpisodeRow, ...]:
    """Returns a version's episodes, in id order: for few, or for what is shown.

    Args:
        store: Where they lie.
        version: The version, or a candidate.
    """
    rows = episode_table(store, version).to_pylist(maps_as_pydicts="strict")
    return tuple(from_plain(EpisodeRow, row) for row in rows)


def episode_table(
    store: ObjectStore, version: Version | VersionCandidate, columns: Sequence[str] | None = None
) -> pa.Table:
    """Returns a version's episodes as a table of `fragments.ROWS`, in id order.

    Args:
        store: Where they lie.
        version: The version, or a candidate.
        columns: Which columns, in this order; all by default.
    """
    wanted = ROWS.names if columns is None else list(columns)
    if unknown := [name for name in wanted if name not in ROWS.names]:
        raise InvalidInput("read episodes", got=", ".join(unknown)[:200], wanted=f"some of {', '.join(ROWS.names)}")
    table = read_fragments(store, version.fragments, list(dict.fromkeys([*wanted, "id"])))
    if len(version.fragments) > 1:
        table = table.take(pc.sort_indices(table, sort_keys=[("id", "ascending")]))
    return table.select(wanted)


def query(store: ObjectStore, version: Version, where: str) -> tuple[EpisodeId, ...]:
    """Returns the ids of the episodes for which a condition holds, in id order.

    Args:
        store: Where they lie.
        version: The version.
        where: SQL over the columns of `episode_table`, such as "success and seconds > 2". It sees nothing else.

    Raises:
        InvalidInput: The condition is not one.
    """
    hit = matching(store, version.fragments, where)
    ids: list[str] = read_fragments(store, version.fragments, ["id"])["id"].filter(pa.array(hit)).to_pylist()
    return tuple(EpisodeId(id) for id in sorted(ids))


def _candidate(
    store: ObjectStore, dataset: str, rows: Sequence[EpisodeRow] | pa.Table, features: Features, origin: Origin
) -> VersionCandidate:
    checked_name(dataset, "dataset")
    newest = newest_version(store, dataset)
    _check_features(dataset, features, newest)
    return _made(
        store,
        dataset,
        put_fragments(store, rows if isinstance(rows, pa.Table) else table_of(rows)),
        features,
        whole=False,
        parent=newest.name if newest else "",
        origin=origin,
    )


def _made(
    store: ObjectStore,
    dataset: str,
    fragments: tuple[Fragment, ...],
    features: Features,
    *,
    whole: bool,
    parent: str,
    origin: Origin,
) -> VersionCandidate:
    if not fragments:
        raise InvalidInput("freeze a version", on=checked_name(dataset, "dataset"), got="no episodes", wanted="one")
    tasks = pc.unique(read_fragments(store, fragments, ["task"])["task"]).to_pylist()
    said: dict[str, Any] = {
        "dataset": checked_name(dataset, "dataset"),
        "features": features,
        "tasks": tuple(sorted(tasks)[:TASKS_NAMED_MAX]),
        "fragments": fragments,
        "whole": whole,
        "parent": parent,
        "origin": origin,
    }
    return VersionCandidate(id=blake3(encode(said)).hexdigest()[:_ID_LETTERS], **said)


def _check_features(dataset: str, features: Features, newest: Version | None) -> None:
    if newest and newest.features != features:
        raise InvalidInput("extend a dataset", on=dataset, got=str(features), wanted=str(newest.features))


def _check_fits(candidate: VersionCandidate, newest: Version | None) -> None:
    if not candidate.whole:
        _check_features(candidate.dataset, candidate.features, newest)
    elif newest and newest.name != candidate.parent and place_of(candidate.parent).dataset == candidate.dataset:
        raise Conflict(
            "publish a version",
            on=candidate.dataset,
            got=f"one chosen from {candidate.parent} while {newest.name} is the newest",
            next_step=f"choose from {newest.name}, or publish into another dataset",
        )


def _version(
    candidate: VersionCandidate,
    number: int,
    fragments: tuple[Fragment, ...],
    *,
    tasks: tuple[str, ...],
    parent: str,
    waivers: tuple[Waiver, ...],
) -> Version:
    if number > NUMBER_MAX:
        raise InvalidInput("publish a version", on=candidate.dataset, got=f"number {number}", wanted="another dataset")
    episodes = sum(fragment.episodes for fragment in fragments)
    ids_sum = sum(int(fragment.ids_sum, 16) for fragment in fragments) % 2**128
    said = f"{episodes} episodes, ids summing to {ids_sum:032x}"
    return Version(
        dataset=candidate.dataset,
        number=number,
        id=VersionId(blake3(said.encode()).hexdigest()[:_ID_LETTERS]),
        features=candidate.features,
        episodes=episodes,
        frames=sum(fragment.frames for fragment in fragments),
        seconds=sum(fragment.seconds for fragment in fragments),
        size_bytes=sum(fragment.size_bytes for fragment in fragments),
        tasks=tasks,
        fragments=fragments,
        parent=parent,
        origin=candidate.origin,
        waivers=waivers,
    )


def _announce(store: ObjectStore, candidate: VersionCandidate, version: Version, newest: Version | None) -> None:
    """Makes sure that nothing the version names is collected before or while it is committed, and who it comes from.

    What a living version names is safe: it is freed only when the grace after its deletion is over.
    """
    becoming = {**to_plain(candidate), "becoming": to_plain(version.fragments)}
    store.put(_candidate_key(candidate), encode(becoming))  # From here on, young again, it keeps alive what it names.
    made_of = dict.fromkeys(name for name in (version.parent, *version.origin.inputs) if name)
    living = [newest, *(_living(store, name) for name in made_of if not newest or name != newest.name)]
    safe = {fragment.table for one in living if one for fragment in one.fragments}
    new = [fragment for fragment in version.fragments if fragment.table not in safe]
    stored = [fragment.table for fragment in new] + [one.keep for one in version.fragments if one.keep]
    confirm(store, [blob.id for blob in stored])
    named = [read_blobs_named(store, fragment.table, mask_of(store, fragment)).ids for fragment in new]
    confirm(store, pa.concat_arrays([pa.array([], pa.string()), *named]))
    for name in made_of:
        record_use(store, name, VERSION, version.name)


def _living(store: ObjectStore, name: str) -> Version | None:
    try:
        return resolve(store, name)
    except NotFound:
        return None


def _union(
    store: ObjectStore, held: tuple[Fragment, ...], added: tuple[Fragment, ...], known: dict[Fragment, list[str]]
) -> tuple[Fragment, ...]:
    """Returns fragments of all episodes in `held`, and those of `added` that are new; `known` saves reading twice."""
    ids = [read_fragment(store, fragment, ["id"])["id"].combine_chunks() for fragment in added]
    wanted = pa.concat_arrays(ids)

    def in_both(fragment: Fragment) -> list[str]:
        there = read_fragment(store, fragment, ["id"])["id"]
        found: list[str] = there.filter(pc.is_in(there, value_set=wanted)).to_pylist()
        return found

    unread = [fragment for fragment in held if fragment not in known]
    with ThreadPoolExecutor(READERS, "ids") as pool:
        known.update(zip(unread, pool.map(in_both, unread), strict=True))
    twice = pa.array([id for fragment in held for id in known[fragment]], pa.string())
    new = [
        masked(store, fragment, pc.invert(pc.is_in(its, value_set=twice)).to_numpy(zero_copy_only=False))
        for fragment, its in zip(added, ids, strict=True)
    ]
    return _settled(store, [*held, *(fragment for fragment in new if fragment)]) if any(new) else held


def _settled(store: ObjectStore, fragments: list[Fragment]) -> tuple[Fragment, ...]:
    """Returns the same episodes with the last, small fragments in one: fragments grow like the digits of a counter.

    So an episode is rewritten at most once for each doubling up to `FRAGMENT_ROWS_MAX`, and never after.
    """
    start, total = len(fragments) - 1, fragments[-1].episodes
    while start and fragments[start - 1].episodes < 2 * total:
        if total + fragments[start - 1].episodes > FRAGMENT_ROWS_MAX:
            break
        start -= 1
        total += fragments[start].episodes
    if start == len(fragments) - 1:
        return tuple(fragments)
    return (
        *fragments[:start],
        put_fragment(store, pa.concat_tables([read_fragment(store, fragment) for fragment in fragments[start:]])),
    )


def _candidate_key(candidate: VersionCandidate) -> str:
    return f"candidates/{candidate.dataset}/{candidate.id}.json"
