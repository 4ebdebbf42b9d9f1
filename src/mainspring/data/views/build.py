"""Makes a training view: columns gathered, statistics in the same pass, each frame decoded and resized once."""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3
from numpy.typing import NDArray

from mainspring.data.catalog.versions import Version, episode_rows
from mainspring.data.episode import EpisodeRow, Features, column_from_table
from mainspring.data.pool import mapped
from mainspring.data.video.frames import read_frames
from mainspring.data.views.moments import Moments
from mainspring.data.views.view import Shard, Split, SplitManifest, ViewManifest, ViewRecipe, view_key, view_manifest
from mainspring.domain.codec import encode, to_plain
from mainspring.domain.errors import Unavailable
from mainspring.domain.ids import EpisodeId
from mainspring.objects import ObjectStore, blob_of_file, fetch_blob, get_blob, put_blob, put_blob_file, reported

PRODUCER = 1  # Raised by any change here or in `video` that changes a view's bytes.
AHEAD = 8  # Episodes in hand at once: bounds the memory of their columns.
THREADS_MIN = 4  # Decoding leaves the interpreter; beyond the cores, threads only hide the store's latency.
_ID_LETTERS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewProgress:
    """Where the making of a view stands: episodes done, and how many there are."""

    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What every part of a build needs."""

    store: ObjectStore
    features: Features
    recipe: ViewRecipe
    folder: Path
    pool: ThreadPoolExecutor
    advanced: Callable[[], None]

    @property
    def rows_max(self) -> int:
        images = len(self.features.cameras) * self.recipe.image_size**2 * 3
        row_bytes = 4 * (len(self.features.state_names) + len(self.features.action_names)) + images
        return max(1, self.recipe.shard_bytes // row_bytes)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Part:
    """One episode of a shard, and where its columns go."""

    row: EpisodeRow
    out: dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _PartMoments:
    """The moments of some episodes."""

    state: Moments
    action: Moments

    def merged(self, other: _PartMoments) -> _PartMoments:
        return _PartMoments(state=self.state.merged(other.state), action=self.action.merged(other.action))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Built:
    """A split, with the moments of its columns; None when it has no rows."""

    manifest: SplitManifest
    moments: _PartMoments | None


def build_view(
    store: ObjectStore,
    version: Version,
    recipe: ViewRecipe,
    *,
    scratch_dir: Path,
    progress: Callable[[ViewProgress], None] | None = None,
) -> ViewManifest:
    """Returns the view of a version by a recipe, making it unless it was made before.

    Args:
        store: Where the version lies and the view goes.
        version: The version.
        recipe: What it is made like.
        scratch_dir: Local folder with room for one shard and its videos.
        progress: Called in the caller's thread after each episode.

    Raises:
        DamagedData: A stored episode is not what the catalog says.
        StorageFull: There is no room in the scratch folder or the store.
    """
    view_id = _view_id(version, recipe)
    if made := view_manifest(store, view_id):
        return made
    rows = episode_rows(store, version)
    sides = {row.id: side for row, side in zip(rows, _sides([row.id for row in rows], recipe), strict=True)}
    done = 0

    def advanced() -> None:
        nonlocal done
        done += 1
        if progress:
            progress(ViewProgress(done=done, total=len(rows)))

    scratch_dir.mkdir(parents=True, exist_ok=True)
    threads = max(THREADS_MIN, len(os.sched_getaffinity(0)))
    with tempfile.TemporaryDirectory(dir=scratch_dir) as folder, ThreadPoolExecutor(threads, "view") as pool:
        work = _Work(
            store=store,
            features=version.features,
            recipe=recipe,
            folder=Path(folder),
            pool=pool,
            advanced=advanced,
        )
        built = {side: _built(work, [row for row in rows if sides[row.id] == side]) for side in ("train", "holdout")}
    train = built["train"].moments
    assert train is not None, "one episode always trains"
    manifest = ViewManifest(
        id=view_id,
        version=version.id,
        recipe=recipe,
        producer=PRODUCER,
        features=version.features,
        state=train.state.statistics(),
        action=train.action.statistics(),
        splits={side: part.manifest for side, part in built.items()},
    )
    store.put_if_absent(view_key(view_id), encode(manifest))
    winner = view_manifest(store, view_id)
    if winner is None:
        raise Unavailable("build a view", on=view_id, got="nothing where its manifest was just stored")
    return winner


def _view_id(version: Version, recipe: ViewRecipe) -> str:
    facts = {"version": version.id, "recipe": to_plain(recipe), "producer": PRODUCER}
    return blake3(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:_ID_LETTERS]


def _sides(episodes: Sequence[EpisodeId], recipe: ViewRecipe) -> list[Split]:
    """Returns each episode's side. The lowest hash is held out when no other is, and one episode always trains."""
    draws = [int.from_bytes(blake3(episode.encode()).digest(length=8)) / 2**64 for episode in episodes]
    lowest, *others = sorted(draws)
    limit = 0.0
    if others and recipe.holdout_fraction > 0.0:
        limit = others[0] if lowest >= recipe.holdout_fraction else min(recipe.holdout_fraction, others[-1])
    return ["holdout" if draw < limit else "train" for draw in draws]


def _built(work: _Work, rows: list[EpisodeRow]) -> _Built:
    shards: list[Shard] = []
    moments: list[_PartMoments] = []
    for group in _groups(rows, work.rows_max):
        shards.append(_shard(work, group, moments))
    table = pa.table(
        {
            "id": pa.array([row.id for row in rows], pa.string()),
            "task": pa.array([row.task for row in rows], pa.string()),
            "frames": pa.array([row.frames for row in rows], pa.int64()),
        }
    )
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return _Built(
        manifest=SplitManifest(
            rows=sum(row.frames for row in rows),
            episodes=len(rows),
            shards=tuple(shards),
            episode_table=put_blob(work.store, sink.getvalue()),
        ),
        moments=reduce(_PartMoments.merged, moments) if rows else None,
    )


def _groups(rows: list[EpisodeRow], rows_max: int) -> Iterator[list[EpisodeRow]]:
    group: list[EpisodeRow] = []
    for row in rows:
        if group and sum(held.frames for held in group) + row.frames > rows_max:
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def _shard(work: _Work, group: list[EpisodeRow], moments: list[_PartMoments]) -> Shard:
    frames = sum(row.frames for row in group)
    size, cameras = work.recipe.image_size, len(work.features.cameras)
    shapes: dict[str, tuple[Any, tuple[int, ...]]] = {
        "state": (np.float32, (len(work.features.state_names),)),
        "action": (np.float32, (len(work.features.action_names),)),
    }
    if cameras:
        shapes["images"] = (np.uint8, (cameras, size, size, 3))
    with tempfile.TemporaryDirectory(dir=work.folder) as name, reported("build a view", name):
        folder = Path(name)
        arrays = {column: _allocated(folder / column, frames, *shapes[column]) for column in shapes}
        starts = np.cumsum([0, *(row.frames for row in group)])[:-1].tolist()
        parts = [
            _Part(row=row, out={column: array[start : start + row.frames] for column, array in arrays.items()})
            for row, start in zip(group, starts, strict=True)
        ]
        with closing(mapped(work.pool, lambda part: _fill(work, part, folder), parts, ahead=AHEAD)) as filled:
            for part in filled:
                moments.append(part)
                work.advanced()
        columns = {}
        for column, array in arrays.items():
            array.flush()
            columns[column] = blob_of_file(folder / column)
            put_blob_file(work.store, folder / column, columns[column])
    return Shard(rows=frames, columns=columns)


def _allocated(path: Path, rows: int, dtype: Any, shape: tuple[int, ...]) -> np.memmap[Any, Any]:
    """Returns a mapped `.npy` file with its room on disk taken: a map over a full disk would kill the process."""
    array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(rows, *shape))
    with open(path, "r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


def _fill(work: _Work, part: _Part, folder: Path) -> _PartMoments:
    table = pq.read_table(io.BytesIO(get_blob(work.store, part.row.columns)))
    state, action = column_from_table(table, "state"), column_from_table(table, "action")
    part.out["state"][:] = state
    part.out["action"][:] = action
    for view, track in enumerate(part.row.videos):
        path = fetch_blob(work.store, track.blob, folder / "videos")
        read_frames(path, part.out["images"][:, view], first_frame=track.first_frame, rate_hz=part.row.rate_hz)
    return _PartMoments(state=Moments.of(state), action=Moments.of(action))
