"""Makes a training view: columns gathered, each frame decoded, resized and encoded once, statistics on the way."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3

from mainspring.data.catalog.choose.splits import Sides, split
from mainspring.data.catalog.condemned import confirm
from mainspring.data.catalog.lineage import record_use
from mainspring.data.catalog.log import Version
from mainspring.data.catalog.versions import episode_table
from mainspring.data.episode import EpisodeRow
from mainspring.data.features import Features
from mainspring.data.layers.layer import features_with, find_layer, layer_pieces
from mainspring.data.packs import PackPiece
from mainspring.data.video.packet import DECODING
from mainspring.data.views.earlier import sides_before
from mainspring.data.views.manifest import (
    SplitManifest,
    ViewManifest,
    ViewRecipe,
    ViewShard,
    view_manifest,
)
from mainspring.data.views.places import datasets_of_view, record_dataset, view_key
from mainspring.data.views.ready import FrameMaker, ReadyEpisode
from mainspring.data.views.shards import Records, ShardRecord, ShardWriter, held_episodes, shard_blobs
from mainspring.data.views.summary import Summary, summary_from_bytes
from mainspring.domain.codec import encode, from_plain, to_plain
from mainspring.domain.errors import DamagedData, Unavailable
from mainspring.domain.ids import EpisodeId
from mainspring.objects import Blob, ObjectStore, fetch_blob, get_blob, put_blob

PRODUCER = 3  # Raised by any change here or in how `video` encodes, PyAV's own included, that changes a view's bytes.
AHEAD_MIN = 8  # Episodes in hand at once: bounds the memory of their columns and the room of their frames.
THREADS_MIN = 4  # Decoding leaves the interpreter; beyond the cores, threads only hide the store's latency.
LOOKED_FOR_MAX = 16  # New episodes in a row before those of a shard that was made; beyond them it is made again.
_ID_LETTERS = 32
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewProgress:
    """Where the making of a view stands.

    Args:
        done: Episodes done.
        total: How many there are.
        reused: How many of those done had been made ready before.
        refused: How many shards that had been made before were not taken over: their pictures are not what is decoded.
    """

    done: int
    total: int
    reused: int
    refused: int = 0


def build_view(
    store: ObjectStore,
    version: Version,
    recipe: ViewRecipe,
    *,
    scratch_dir: Path,
    progress: Callable[[ViewProgress], None] | None = None,
) -> ViewManifest:
    """Returns the view of a version by a recipe, making it unless it was made before.

    What another build by the recipe made of the same episodes is taken over, also when that build was for another
    version, or was killed: the result is the same, byte for byte. See `shards`.

    Args:
        store: Where the version lies and the view goes.
        version: The version.
        recipe: What it is made like.
        scratch_dir: Local folder with room for three shards, and some episodes and their videos.
        progress: Called in the caller's thread, after each episode or each shard that was found.

    Raises:
        InvalidInput: The version and the recipe's layers lack a column or camera of the recipe.
        NotFound: There is no such layer, or it lacks an episode of the version.
        DamagedData: A stored episode is not what the catalog says.
        StorageFull: There is no room in the scratch folder or the store.
    """
    layers = [find_layer(store, id) for id in recipe.layers]
    features = recipe.features(features_with(version.features, layers))
    sides = split(
        store,
        version,
        recipe.holdout_fraction,
        group=recipe.holdout_group,
        keep=True,
        before=partial(sides_before, store, recipe),
    )
    view_id = _view_id(version, recipe, sides)
    if made := view_manifest(store, view_id):
        _record_dataset(store, version, view_id)
        return made
    listed = _listed(store, version)
    held_out = pc.is_in(listed["id"], value_set=sides.ids_held_out)
    scratch_dir.mkdir(parents=True, exist_ok=True)
    ids = listed["id"].to_pylist()
    pieces = tuple(layer_pieces(store, spec.id, ids) for spec in layers if spec.columns)
    told = _Told(total=version.episodes, progress=progress)
    with tempfile.TemporaryDirectory(dir=scratch_dir) as folder, ThreadPoolExecutor(_threads(), "view") as pool:
        builder = _Builder(store, recipe, features, pieces, Path(folder), pool, told)
        built: dict[str, _Side] = {
            "train": builder.side(_Episodes(listed.filter(pc.invert(held_out)))),
            "holdout": builder.side(_Episodes(listed.filter(held_out))),
        }
    train = built["train"].summary
    assert train is not None, "one episode always trains"
    manifest = ViewManifest(
        id=view_id,
        version=version.id,
        recipe=recipe,
        producer=PRODUCER,
        decoding=DECODING,
        features=features,
        statistics=train.statistics(features),
        splits={side: part.manifest for side, part in built.items()},
    )
    _publish(store, version, manifest)
    winner = view_manifest(store, view_id)
    if winner is None:
        raise Unavailable("build a view", on=view_id, got="nothing where its manifest was just stored")
    return winner


def _publish(store: ObjectStore, version: Version, manifest: ViewManifest) -> None:
    """Stores a view's manifest, unless a garbage collection took what it names."""
    shards = [shard for part in manifest.splits.values() for shard in part.shards]
    blobs = [blob for shard in shards for blob in shard_blobs(shard)]
    blobs += [part.episode_table for part in manifest.splits.values()]
    record_use(store, version.name, "view", manifest.id)
    record_dataset(store, manifest.id, version.dataset)
    store.put_if_absent(view_key(manifest.id), encode(manifest))
    try:
        confirm(store, [blob.id for blob in blobs])
    except Unavailable:
        store.delete(view_key(manifest.id))
        raise


def _record_dataset(store: ObjectStore, version: Version, view_id: str) -> None:
    """Records that a view that is there is of a version's dataset too."""
    if version.dataset not in datasets_of_view(store, view_id):  # Which records those of an older release's view.
        record_dataset(store, view_id, version.dataset)


def _threads() -> int:
    return max(THREADS_MIN, len(os.sched_getaffinity(0)))


def _view_id(version: Version, recipe: ViewRecipe, sides: Sides) -> str:
    return _hash(
        {
            "version": version.id,
            "recipe": to_plain(recipe),
            "sides": sides.id,
            "producer": PRODUCER,
            "decoding": DECODING,
        }
    )


def _shard_id(recipe: ViewRecipe, features: Features) -> str:
    """Returns the hash of all that a shard follows from, but its episodes."""
    apart = replace(recipe, holdout_fraction=0.0, holdout_group="id")  # Says which episodes, not what becomes of them.
    return _hash(
        {"features": to_plain(features), "recipe": to_plain(apart), "producer": PRODUCER, "decoding": DECODING}
    )


def _hash(facts: Mapping[str, object]) -> str:
    return blake3(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:_ID_LETTERS]


def _listed(store: ObjectStore, version: Version) -> pa.Table:
    """Returns a version's episodes in the order of a view: what was recorded later comes later."""
    table = episode_table(
        store, version, [field.name for field in fields(EpisodeRow) if field.name not in ("metadata", "raw")]
    )
    return table.take(pc.sort_indices(table, sort_keys=[("started_ns", "ascending"), ("id", "ascending")]))


class _Episodes:
    """Episodes of one side, in order; each becomes a value only when it is asked for."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self.ids: list[str] = table["id"].to_pylist()
        self.places = {id: at for at, id in enumerate(self.ids)}
        self.tasks = table["task"]

    def row(self, at: int) -> EpisodeRow:
        (plain,) = self._table.slice(at, 1).to_pylist()
        return from_plain(EpisodeRow, {**plain, "metadata": {}})


class _Told:
    """Tells the caller how far the build is."""

    def __init__(self, *, total: int, progress: Callable[[ViewProgress], None] | None) -> None:
        self._total = total
        self._progress = progress
        self._done = self._reused = self._refused = 0

    def refuse(self) -> None:
        self._refused += 1

    def advanced(self, episodes: int, reused: int) -> None:
        self._done += episodes
        self._reused += reused
        if self._progress:
            self._progress(ViewProgress(done=self._done, total=self._total, reused=self._reused, refused=self._refused))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """A split, with the summary of its columns; None when it has no rows."""

    manifest: SplitManifest
    summary: Summary | None


class _Builder:
    """Makes the sides of one view."""

    def __init__(
        self,
        store: ObjectStore,
        recipe: ViewRecipe,
        features: Features,
        layers: tuple[Mapping[EpisodeId, PackPiece], ...],
        folder: Path,
        pool: ThreadPoolExecutor,
        told: _Told,
    ) -> None:
        self._store = store
        self._recipe = recipe
        self._features = features
        self._records = Records(store, _shard_id(recipe, features))
        self._folder = folder
        self._pool = pool
        self._told = told
        self._videos = _Videos(store, folder / "videos")
        self._make = FrameMaker(
            store=store, recipe=recipe, features=features, layers=layers, folder=folder, video=self._videos.fetch
        )

    def side(self, side: _Episodes) -> _Side:
        """Returns one side of the view.

        Args:
            side: Its episodes.
        """
        episodes = side.ids
        shards: list[ViewShard] = []
        lengths: list[int] = []
        summary: Summary | None = None
        with _Window(self._pool, self._make, self._videos, side) as window:
            while len(lengths) < len(episodes):
                record = self._shard(window, side, len(lengths))
                shards.append(record.shard)
                lengths += record.rows
                part = summary_from_bytes(get_blob(self._store, record.shard.summary), self._features)
                summary = summary.merged(part) if summary else part
        table = pa.table(
            {
                "id": pa.array(episodes, pa.string()),
                "task": side.tasks,
                "frames": pa.array(lengths, pa.int64()),
            }
        )
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as file:  # Not compressed: readers map it.
            file.write_table(table)
        manifest = SplitManifest(
            rows=sum(lengths),
            episodes=len(episodes),
            shards=tuple(shards),
            episode_table=put_blob(self._store, memoryview(sink.getvalue())),
        )
        return _Side(manifest=manifest, summary=summary)

    def _shard(self, window: _Window, side: _Episodes, at: int) -> ShardRecord:
        """Returns the shard that begins with an episode, found or made."""
        episodes = side.ids
        known = list(self._records.at(episodes[at]))
        for record in [record for record in known if record.serves(episodes, at)]:
            if not self._is_trusted(record, side):
                known.remove(record)
            else:
                self._told.advanced(len(record.episodes), len(record.episodes))
                return record
        for later in episodes[at + 1 : at + 1 + LOOKED_FOR_MAX]:
            known = known or list(
                self._records.at(later)
            )  # What is new came before the first of a shard that was made.
        with tempfile.TemporaryDirectory(dir=self._folder) as name:
            window.held = self._held(known, side, at, Path(name))
            writer = ShardWriter(Path(name), self._recipe.shard_bytes)
            closed = False
            while at < len(episodes) and not closed:
                closed = writer.add(episodes[at], window.take(at))
                self._told.advanced(1, int(episodes[at] in window.held))
                at += 1
            record = writer.store(self._store, closed=closed)
            window.held = {}
        self._records.keep(record)
        return record

    def _held(self, known: Sequence[ShardRecord], side: _Episodes, at: int, folder: Path) -> dict[str, ReadyEpisode]:
        """Returns those of the episodes from one on that the most useful of some shards has ready."""
        span = LOOKED_FOR_MAX + 2 * max((len(record.episodes) for record in known), default=0)
        wanted = set(side.ids[at : at + span])  # What comes later lies in another shard.
        for record in sorted(known, key=lambda record: -len(wanted.intersection(record.episodes))):
            if self._is_trusted(record, side):
                local = {blob.id: fetch_blob(self._store, blob, folder) for blob in record.blobs}
                return {episode: ready for episode, ready in held_episodes(record, local).items() if episode in wanted}
        return {}

    def _is_trusted(self, record: ShardRecord, side: _Episodes) -> bool:
        """Returns whether a shard was made of the pictures that are decoded now, as far as one of its episodes shows.

        Says so when it was not: it is made again.
        """
        cameras = [camera.name for camera in self._features.cameras]
        shared = [number for number, episode in enumerate(record.episodes) if episode in side.places]
        if not cameras or not shared:
            return True
        drawn = min(shared, key=lambda number: blake3(f"drawn {record.episodes[number]}".encode()).digest())
        then = {camera: texts[drawn] for camera, texts in record.pictures.items()}
        row = side.row(side.places[record.episodes[drawn]])
        self._videos.want(row)
        try:
            same = self._make.pictures(row) == then
        except DamagedData:  # Whoever makes it again says what is wrong.
            same = False
        finally:
            self._videos.release(row)
        if not same:
            self._told.refuse()
            _LOG.warning("a shard with episode %s was made of other pictures than are decoded now", row.id)
        return same


class _Videos:
    """Blobs with packets, on this machine while somebody waits for what is made of them."""

    def __init__(self, store: ObjectStore, folder: Path) -> None:
        self._store = store
        self._folder = folder
        self._users: dict[str, int] = {}

    def fetch(self, blob: Blob) -> Path:
        """Returns where a blob lies now."""
        return fetch_blob(self._store, blob, self._folder)

    def want(self, row: EpisodeRow) -> None:
        """Keeps an episode's videos once they are fetched."""
        for track in row.videos:
            self._users[track.blob.id] = self._users.get(track.blob.id, 0) + 1

    def release(self, row: EpisodeRow) -> None:
        """Removes those of an episode's videos that nobody else waits for."""
        for track in row.videos:
            self._users[track.blob.id] -= 1
            if not self._users[track.blob.id]:
                del self._users[track.blob.id]
                (self._folder / track.blob.id).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Pending:
    """An episode being made ready: its place on its side."""

    at: int
    row: EpisodeRow
    future: Future[ReadyEpisode]


class _Window:
    """Episodes made ready in a pool, some of them before they are taken."""

    def __init__(
        self,
        pool: ThreadPoolExecutor,
        make: Callable[[EpisodeRow], ReadyEpisode],
        videos: _Videos,
        side: _Episodes,
    ) -> None:
        self.held: Mapping[str, ReadyEpisode] = {}  # These need not be made.
        self._pool = pool
        self._make = make
        self._videos = videos
        self._side = side
        self._ahead = max(AHEAD_MIN, 2 * _threads())
        self._next = 0
        self._pending: deque[_Pending] = deque()

    def __enter__(self) -> _Window:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pending in self._pending:
            pending.future.cancel()
        wait([pending.future for pending in self._pending])  # What still runs uses the folder that is about to go.

    def take(self, at: int) -> ReadyEpisode:
        """Returns an episode; each call asks for a later one."""
        if ready := self.held.get(self._side.ids[at]):
            return ready
        while self._pending and self._pending[0].at < at:
            self._let_go()
        if not self._pending or self._pending[0].at != at:
            self._pending.appendleft(self._submitted(at))
            self._next = max(self._next, at + 1)
        while len(self._pending) <= self._ahead and self._next < len(self._side.ids):
            if self._side.ids[self._next] not in self.held:
                self._pending.append(self._submitted(self._next))
            self._next += 1
        ready = self._pending[0].future.result()
        self._let_go()
        return ready

    def _submitted(self, at: int) -> _Pending:
        row = self._side.row(at)
        self._videos.want(row)
        return _Pending(at=at, row=row, future=self._pool.submit(self._make, row))

    def _let_go(self) -> None:
        pending = self._pending.popleft()
        pending.future.cancel()
        wait([pending.future])
        self._videos.release(pending.row)
