"""The lab's data, to be looked at: read from the catalog in the object store, of which the controller keeps nothing.

Videos came from robots, and what decodes them is large: a process of its own does so, bounded in time and memory.
"""

from __future__ import annotations

import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from math import isfinite
from threading import BoundedSemaphore, Lock
from typing import Any, final

from mainspring import data  # Loads its names when they are used: a server that shows none needs none.
from mainspring.control.service.stored.owners import DatasetOwners, opened_store
from mainspring.control.store.tokens import LAB_ITSELF, Caller
from mainspring.domain import answers
from mainspring.domain.codec import from_plain
from mainspring.domain.errors import InvalidInput, NotFound, TooManyRequests, Unavailable
from mainspring.objects import ObjectStore

CANDIDATES_MAX, LINKS_MAX, VERSIONS_MAX = 50, 500, 200  # Of one answer: what people look at.
PICTURES_S = 60.0  # What decoding the longest episode may take.
PICTURES_AT_ONCE = 2  # Of this server: each takes a core.
PICTURES_WAIT_S = 20.0  # What somebody waits for others' pictures.
PICTURES_KEPT = 64  # Half a megabyte each.
PICTURES_BYTES_MAX = 8 << 20
_NANOSECONDS = 1_000_000_000
_decoding = BoundedSemaphore(PICTURES_AT_ONCE)
_kept: OrderedDict[tuple[str, str, str], bytes] = OrderedDict()
_keeping = Lock()


@final
class Datasets:
    """What may be asked of data. Used by many threads.

    Args:
        owners: Whose it is.
        objects_url: Where it is.
    """

    def __init__(self, owners: DatasetOwners, objects_url: str) -> None:
        self.owners = owners
        self._objects_url = objects_url

    def every(self, caller: Caller = LAB_ITSELF) -> tuple[answers.DatasetView, ...]:
        """Returns every dataset that the caller may read, in order of name.

        Raises:
            Unavailable: The object store does not answer, or this server reads no data.
        """
        with _readable():
            store = self._store
            published, teams = _published(store), self.owners.teams()
            return tuple(
                answers.DatasetView(
                    name=one.dataset,
                    number=one.number,
                    episodes=one.episodes,
                    frames=one.frames,
                    seconds=one.seconds,
                    size_bytes=one.size_bytes,
                    tasks=one.tasks[:8],
                    versions=one.number,
                    candidates=len(data.candidates(store, one.dataset)),
                    published_s=published.get(one.name),
                    team=teams.get(one.dataset),
                )
                for one in data.newest_versions(store, seen=self.owners.seen_by(caller))
            )

    def one(self, dataset: str, caller: Caller = LAB_ITSELF) -> answers.DatasetDetail:
        """Returns a dataset.

        Raises:
            NotFound: There is none of that name for the caller.
            Unavailable: See `every`.
        """
        with _readable():
            store, seen = self._store, self.owners.seen_by(caller)
            newest, published = data.resolve(store, dataset.partition("@")[0], seen=seen), _published(store)
            fresh = data.freshness(store, newest)
            waiting = [data.candidate(store, newest.dataset, id) for id in data.candidates(store, newest.dataset)]
            return answers.DatasetDetail(
                name=newest.dataset,
                versions=tuple(
                    _version(one, published.get(one.name), seen)
                    for one in reversed(data.versions(store, newest.dataset)[-VERSIONS_MAX:])
                ),
                columns={column.name: tuple(column.names) for column in newest.features.columns},
                cameras=tuple(camera.name for camera in newest.features.cameras),
                candidates=tuple(
                    answers.CandidateView(
                        id=one.id,
                        origin=_origin(one.origin),
                        findings=tuple(str(finding) for finding in data.judge(store, one)),
                    )
                    for one in waiting[:CANDIDATES_MAX]
                ),
                lineage=(
                    *_links(data.ancestors(store, newest), -1, seen),
                    *_links(data.descendants(store, newest), 1, seen),
                ),
                freshness=answers.DatasetFreshness(
                    episodes=fresh.episodes, median_s=fresh.median_s, late_s=fresh.late_s, max_s=fresh.max_s
                ),
                team=self.owners.of(newest.dataset).team,
            )

    def episodes(
        self, dataset: str, number: str, caller: Caller = LAB_ITSELF, *, skip: int = 0, limit: int = 100
    ) -> tuple[answers.EpisodeView, ...]:
        """Returns episodes of a version, in order of id.

        Raises:
            NotFound: There is no such version for the caller.
            Unavailable: See `every`.
        """
        with _readable():
            table = data.episode_table(self._store, self._version(dataset, number, caller)).slice(skip, limit)
            return tuple(map(_episode, _rows(table)))

    def episode(
        self, dataset: str, number: str, episode: str, caller: Caller = LAB_ITSELF, *, points: int = 300
    ) -> answers.EpisodeDetail:
        """Returns an episode with the curves of its columns.

        Raises:
            NotFound: There is no such version for the caller, or no such episode in it.
            Unavailable: See `every`.
        """
        with _readable():
            version = self._version(dataset, number, caller)
            row = self._row(version, episode)
            curves = data.episode_curves(self._store, row, version.features, points=points)
            return answers.EpisodeDetail(
                episode=_episode(row),
                version=version.name,
                curves=tuple(
                    answers.EpisodeCurve(
                        name=curve.name,
                        dims=curve.dims,
                        times_s=tuple(curve.times_s.tolist()),
                        values=tuple(
                            tuple(_short(value) if isfinite(value) else None for value in point)
                            for point in curve.values.tolist()
                        ),
                    )
                    for curve in curves
                ),
            )

    def pictures(self, dataset: str, number: str, episode: str, caller: Caller = LAB_ITSELF) -> bytes:
        """Returns pictures of an episode as PNG.

        Raises:
            NotFound: There is no such version or episode for the caller, or it has no video.
            TooManyRequests: Others' pictures are being decoded.
            Unavailable: They cannot be decoded, or not in time.
        """
        with _readable():
            version = self._version(dataset, number, caller)
            row = self._row(version, episode)
        if not row.videos:
            raise NotFound("show pictures of an episode", on=row.id[:12], got="an episode without cameras")
        key = (self._objects_url, version.name, row.id)
        with _keeping:
            if (found := _kept.get(key)) is not None:
                _kept.move_to_end(key)
                return found
        if not _decoding.acquire(timeout=PICTURES_WAIT_S):
            raise TooManyRequests("show pictures of an episode", got="others being drawn", next_step="try again")
        try:
            made = self._decoded(version.name, row.id)
        finally:
            _decoding.release()
        with _keeping:
            _kept[key] = made
            while len(_kept) > PICTURES_KEPT:
                _kept.popitem(last=False)
        return made

    def _decoded(self, version: str, episode: str) -> bytes:
        words = ["--objects", self._objects_url, "--version", version, "--episode", episode]
        try:
            done = subprocess.run(
                [sys.executable, "-m", "mainspring", "pictures", *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PICTURES_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Unavailable(
                "show pictures of an episode", on=episode[:12], got=f"none in {PICTURES_S:.0f} s"
            ) from error
        if done.returncode or not done.stdout or len(done.stdout) > PICTURES_BYTES_MAX:
            said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2][:300]
            raise Unavailable(
                "show pictures of an episode", on=episode[:12], got=said or f"exit code {done.returncode}"
            )
        return done.stdout

    @property
    def _store(self) -> ObjectStore:
        return opened_store(self._objects_url)

    def _version(self, dataset: str, number: str, caller: Caller) -> Any:
        if not number.isascii() or not number.isdigit() or len(number) > 9:
            raise InvalidInput("find a version", got=repr(number[:40]), wanted="its number, such as 3")
        return data.resolve(self._store, f"{dataset}@{int(number)}", seen=self.owners.seen_by(caller))

    def _row(self, version: Any, episode: str) -> Any:
        ids = data.episode_table(self._store, version, ["id"])["id"].to_pylist()
        if episode not in ids:
            raise NotFound("find an episode", on=version.name, got=repr(episode[:80]), wanted="the id of one of it")
        return _rows(data.episode_table(self._store, version).slice(ids.index(episode), 1))[0]


@contextmanager
def _readable() -> Iterator[None]:
    """Tells what to do where what reads data is not installed."""
    try:
        yield
    except ImportError as error:
        raise Unavailable(
            "look at data", got=f"no package {error.name!r}", next_step="pip install 'mainspring[data]' for the server"
        ) from error


def _published(store: ObjectStore) -> dict[str, float]:
    """Returns when each version was published, by the store's clock."""
    found = {}
    for seen in store.list("catalog"):
        dataset, _, file = seen.key.removeprefix("catalog/").rpartition("/")
        number = file.partition(".")[0]
        if number.isdigit():
            found[f"{dataset}@{int(number)}"] = seen.modified_s
    return found


def _version(one: Any, published_s: float | None, seen: Callable[[str], bool]) -> answers.VersionView:
    return answers.VersionView(
        name=one.name,
        number=one.number,
        id=one.id,
        episodes=one.episodes,
        frames=one.frames,
        seconds=one.seconds,
        size_bytes=one.size_bytes,
        lossy=one.lossy,
        parent=one.parent if seen(_dataset(one.parent)) else "",
        origin=_origin(one.origin),
        inputs=tuple(name for name in one.origin.inputs if seen(_dataset(name))),
        waivers=tuple(f"{waiver.gate}, by {waiver.by}: {waiver.reason}" for waiver in one.waivers),
        published_s=published_s,
    )


def _origin(origin: Any) -> str:
    return f"{origin.kind}: {origin.detail}" if origin.detail else str(origin.kind)


def _links(links: Sequence[Any], turn: int, seen: Callable[[str], bool]) -> Iterator[answers.LineageLink]:
    """Yields links, but for those that name what may not be read, nearest first."""
    shown = (link for link in links if seen(_dataset(link.of)) and (link.kind != "version" or seen(_dataset(link.id))))
    for link in islice(shown, LINKS_MAX):
        yield answers.LineageLink(of=link.of, kind=link.kind, id=link.id, depth=turn * link.depth)


def _dataset(version: str) -> str:
    return version.partition("@")[0]


def _rows(table: Any) -> Sequence[Any]:
    return [from_plain(data.EpisodeRow, row) for row in table.to_pylist(maps_as_pydicts="strict")]


def _episode(row: Any) -> answers.EpisodeView:
    return answers.EpisodeView(
        id=row.id,
        source=row.source,
        task=row.task,
        robot=row.robot,
        success=row.success,
        frames=row.frames,
        seconds=row.seconds,
        rate_hz=row.rate_hz,
        started_s=row.started_ns / _NANOSECONDS,
        arrived_s=row.arrived_ns / _NANOSECONDS,
        cameras=tuple(track.camera for track in row.videos),
        metadata=dict(row.metadata),
    )


def _short(value: float) -> float:
    return float(f"{value:.6g}")
