"""The logs of datasets: what a version is, how it is named, and which there are.

`catalog/<dataset>/<number>.json` is a dataset's log, written by put-if-absent and never changed; a version that was
deleted has `<number>.deleted.json` beside it, so that its number never means anything else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from mainspring.data.catalog.fragments import Fragment
from mainspring.data.features import Features
from mainspring.domain.codec import decode
from mainspring.domain.errors import InvalidInput, NotFound, nearest
from mainspring.domain.ids import VersionId, checked_name
from mainspring.objects import ObjectStore

NUMBER_MAX = 999_999
TASKS_NAMED_MAX = 100
REQUESTS_AT_ONCE = 16  # A remote store answers in tens of milliseconds; more than this gains little.
_ENTRY = re.compile(r"catalog/([^/]+)/(\d{6})(\.deleted)?\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """How a version came to be.

    Args:
        kind: "ingest", "filter", "merge", or who else made it.
        detail: What it was told, such as the filter's condition.
        inputs: Names of all versions it was made of, besides the one it extends.
    """

    kind: str
    detail: str = ""
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiver:
    """A gate that was not passed, who let it pass all the same, and why."""

    gate: str
    by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One frozen, numbered set of episodes.

    Args:
        dataset: Its dataset.
        number: Its place in the dataset's log, from 1.
        id: Hash of the episodes' ids, however they are stored: equal content is one id, whoever froze it.
        features: What each step of every episode holds.
        episodes: How many.
        frames: Steps in all of them.
        seconds: Time in all of them.
        size_bytes: Bytes of raw files, videos and columns; a file counts once in each fragment that names it.
        tasks: The tasks, in order, at most `TASKS_NAMED_MAX`.
        fragments: The rows.
        parent: Name of the version it extends or was chosen from, "" when there is none.
        origin: How it came to be.
        waivers: Gates that it did not pass.
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
    fragments: tuple[Fragment, ...]
    parent: str
    origin: Origin
    waivers: tuple[Waiver, ...] = ()

    @property
    def name(self) -> str:
        """Returns the name that means this version for ever, such as "pick@3"."""
        return f"{self.dataset}@{self.number}"

    @property
    def lossy(self) -> int:
        """Returns how many of its episodes are of recordings that have lost something."""
        return sum(fragment.lossy for fragment in self.fragments)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionCandidate:
    """Episodes that may become a version once somebody has judged them.

    Args:
        dataset: The dataset it is for.
        id: Hash of everything else it says.
        features: What each step of its episodes holds.
        tasks: Their tasks, in order, at most `TASKS_NAMED_MAX`.
        fragments: Its rows.
        whole: Whether these are all episodes of the version to be, rather than ones to add to the newest.
        parent: Name of the version it is chosen from, or of the newest version when it was prepared; "" for none.
        origin: How it came to be.
    """

    dataset: str
    id: str
    features: Features
    tasks: tuple[str, ...]
    fragments: tuple[Fragment, ...]
    whole: bool
    parent: str
    origin: Origin

    @property
    def episodes(self) -> int:
        """Returns how many episodes it has; some may be in the dataset already."""
        return sum(fragment.episodes for fragment in self.fragments)

    @property
    def lossy(self) -> int:
        """Returns how many of them are of recordings that have lost something."""
        return sum(fragment.lossy for fragment in self.fragments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """A version's grave: when it was deleted, from when on its bytes may go, by whom and why."""

    deleted_s: float
    free_after_s: float
    by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """What a dataset's log holds.

    Args:
        every: All numbers ever given, in order.
        deleted: Those of deleted versions.
    """

    every: tuple[int, ...] = ()
    deleted: frozenset[int] = field(default=frozenset())

    @property
    def alive(self) -> tuple[int, ...]:
        """Returns the numbers of versions that are not deleted, in order."""
        return tuple(number for number in self.every if number not in self.deleted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a version's name says: a dataset, and a number in its log; 0 means the newest."""

    dataset: str
    number: int


def numbers_of(store: ObjectStore, dataset: str) -> Numbers:
    """Returns what a dataset's log holds.

    Args:
        store: Where the catalog lies.
        dataset: The dataset.
    """
    return _logs(entry.key for entry in store.list(f"catalog/{checked_name(dataset, 'dataset')}")).get(
        dataset, Numbers()
    )


def logs(store: ObjectStore) -> dict[str, Numbers]:
    """Returns the logs of all datasets, in name order.

    Args:
        store: Where the catalog lies.
    """
    return _logs(entry.key for entry in store.list("catalog"))


def datasets(store: ObjectStore) -> tuple[str, ...]:
    """Returns the names of all datasets, in order.

    Args:
        store: Where the catalog lies.
    """
    return tuple(dataset for dataset, numbers in logs(store).items() if numbers.alive)


def newest_versions(store: ObjectStore, *, seen: Callable[[str], bool] = lambda _: True) -> tuple[Version, ...]:
    """Returns the newest version of every dataset, in name order.

    Args:
        store: Where the catalog lies.
        seen: Whether whoever asks may know of a dataset.
    """
    alive = {dataset: numbers.alive for dataset, numbers in logs(store).items() if seen(dataset)}
    return _read_all(store, [version_key(dataset, numbers[-1]) for dataset, numbers in alive.items() if numbers])


def versions(store: ObjectStore, dataset: str) -> tuple[Version, ...]:
    """Returns every version of a dataset, oldest first.

    Args:
        store: Where the catalog lies.
        dataset: The dataset.
    """
    return _read_all(store, [version_key(dataset, number) for number in numbers_of(store, dataset).alive])


def newest_version(store: ObjectStore, dataset: str) -> Version | None:
    """Returns a dataset's newest version, or None when there is no such dataset.

    Args:
        store: Where the catalog lies.
        dataset: The dataset.
    """
    alive = numbers_of(store, dataset).alive
    return decode(Version, store.get(version_key(dataset, alive[-1]))) if alive else None


def resolve(store: ObjectStore, name: str, *, seen: Callable[[str], bool] = lambda _: True) -> Version:
    """Returns the version a name means.

    Args:
        store: Where the catalog lies.
        name: "dataset@3", or "dataset" for its newest.
        seen: Whether whoever asks may know of a dataset: another is not there, nor named as near.

    Raises:
        InvalidInput: The name has another form.
        NotFound: There is no such dataset or version, or it was deleted.
    """
    place = place_of(name)
    numbers = numbers_of(store, place.dataset) if seen(place.dataset) else Numbers()
    if not numbers.alive:
        near = nearest(place.dataset, filter(seen, datasets(store)))
        raise NotFound("find a dataset", on=place.dataset, wanted=near)
    if place.number in numbers.deleted:
        raise NotFound("find a version", on=name, got="deleted", wanted=f"another, {place.dataset}@{numbers.alive[-1]}")
    if place.number and place.number not in numbers.every:
        last = f"{place.dataset}@{numbers.every[-1]}"
        raise NotFound(
            "find a version", on=name, wanted=last if numbers.every[-1] == 1 else f"{place.dataset}@1 to {last}"
        )
    return decode(Version, store.get(version_key(place.dataset, place.number or numbers.alive[-1])))


def place_of(name: str) -> Place:
    """Returns what a version's name says, whether or not there is such a version.

    Args:
        name: "dataset@3", or "dataset" for its newest.

    Raises:
        InvalidInput: The name has another form.
    """
    dataset, at, number = name.partition("@")
    checked_name(dataset, "dataset")
    if at and not (number.isdecimal() and number.isascii() and 1 <= int(number[:9]) <= NUMBER_MAX):
        raise InvalidInput("read a version's name", got=repr(name[:80]), wanted="dataset or dataset@number")
    return Place(dataset=dataset, number=int(number) if at else 0)


def folder_of(place: Place, kind: str) -> str:
    """Returns the folder of what is said of one version for ever, such as its pins.

    Args:
        place: The version's.
        kind: What is said.

    Raises:
        InvalidInput: It names no version, but whichever is the newest.
    """
    if not place.number:
        raise InvalidInput("name a version for ever", got=place.dataset, wanted=f"a number, such as {place.dataset}@1")
    return f"{kind}/{place.dataset}/{place.number:06d}"


def version_key(dataset: str, number: int) -> str:
    """Returns where a version lies.

    Args:
        dataset: Its dataset.
        number: Its number.
    """
    return f"catalog/{dataset}/{number:06d}.json"


def deleted_key(dataset: str, number: int) -> str:
    """Returns where it is said that a version was deleted.

    Args:
        dataset: Its dataset.
        number: Its number.
    """
    return f"catalog/{dataset}/{number:06d}.deleted.json"


def _logs(keys: Iterable[str]) -> dict[str, Numbers]:
    every: dict[str, list[int]] = {}
    deleted: dict[str, set[int]] = {}
    for key in keys:
        if entry := _ENTRY.fullmatch(key):
            dataset, number = entry[1], int(entry[2])
            if entry[3]:
                deleted.setdefault(dataset, set()).add(number)
            else:
                every.setdefault(dataset, []).append(number)
    return {
        dataset: Numbers(every=tuple(every[dataset]), deleted=frozenset(deleted.get(dataset, ())))
        for dataset in sorted(every)
    }


def _read_all(store: ObjectStore, keys: list[str]) -> tuple[Version, ...]:
    with ThreadPoolExecutor(REQUESTS_AT_ONCE, "catalog") as pool:
        return tuple(pool.map(lambda key: decode(Version, store.get(key)), keys))
