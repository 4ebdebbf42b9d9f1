"""A training view: a version made ready for one recipe, and how a rank opens it.

What a view holds is described by its manifest, `views/<id>.json`; its bytes are blobs. Each split is a list of shards
of whole episodes, each shard one `.npy` file a column, mapped into memory where it is read.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from mainspring.data.episode import Features
from mainspring.data.views.moments import Statistics
from mainspring.domain.codec import decode
from mainspring.domain.errors import DamagedData, InvalidInput, NotFound
from mainspring.domain.ids import VersionId
from mainspring.objects import Blob, ObjectStore, fetch_blob, get_blob

IMAGE_SIZE_MAX = 1_024
SHARD_BYTES_MAX = 1 << 30

Split: TypeAlias = Literal["train", "holdout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewRecipe:
    """What a view is made like.

    Args:
        image_size: Height and width of its images, in pixels; the picture's aspect is not kept.
        holdout_fraction: Share of episodes kept apart for evaluation, chosen by a hash of their ids, so that an
            episode stays on its side in every version. At least one is kept apart unless the fraction is 0.
        shard_bytes: Size of a shard, unless one episode is larger. The default is large enough for one request to be
            efficient, and small enough to build and fetch shards side by side.
    """

    image_size: int = 64
    holdout_fraction: float = 0.1
    shard_bytes: int = 128 << 20

    def __post_init__(self) -> None:
        """Checks the ranges.

        Raises:
            InvalidInput: A field is out of its range.
        """
        sizes = 8 <= self.image_size <= IMAGE_SIZE_MAX and 1 <= self.shard_bytes <= SHARD_BYTES_MAX
        if not (sizes and 0.0 <= self.holdout_fraction < 1.0):
            raise InvalidInput(
                "accept a view's recipe",
                got=str(self),
                wanted=f"image_size 8 to {IMAGE_SIZE_MAX}, a fraction below 1, shard_bytes 1 to {SHARD_BYTES_MAX}",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Consecutive rows of a split: `rows` of them, and a `.npy` blob for each column."""

    rows: int
    columns: Mapping[str, Blob]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitManifest:
    """One side of a view: its shards in row order, and a Parquet blob with id, task and frames of its episodes."""

    rows: int
    episodes: int
    shards: tuple[Shard, ...]
    episode_table: Blob


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewManifest:
    """What a view is.

    Args:
        id: Hash of version, recipe and producer.
        version: The version it was made of.
        recipe: What it was made like.
        producer: Number of the code that made it; other code makes another view.
        features: Names of the dimensions, and cameras.
        state: Statistics of the state over the training split.
        action: Statistics of the action over the training split.
        splits: By name, "train" and "holdout".
    """

    id: str
    version: VersionId
    recipe: ViewRecipe
    producer: int
    features: Features
    state: Statistics
    action: Statistics
    splits: Mapping[str, SplitManifest]


class View:
    """One split of a view, opened: arrays that are read from mapped files.

    Args:
        manifest: The whole view's manifest.
        split: Which side.
        folder: The local cache its blobs lie in.
        episodes: Table of the split's episodes.
    """

    def __init__(self, manifest: ViewManifest, split: Split, folder: Path, episodes: pa.Table) -> None:
        part = manifest.splits[split]
        self.manifest = manifest
        self.split = split
        self.rows = part.rows
        self.episode_ids: tuple[str, ...] = tuple(episodes["id"].to_pylist())
        self.episode_tasks: tuple[str, ...] = tuple(episodes["task"].to_pylist())
        self.episode_ends: NDArray[np.int64] = np.cumsum(episodes["frames"].to_numpy(), dtype=np.int64)
        if len(self.episode_ends) == 0 or self.episode_ends[-1] != part.rows:
            raise DamagedData("open a view", on=manifest.id, got=f"{len(self.episode_ends)} episodes of {part.rows}")
        self._starts = np.cumsum([0, *(shard.rows for shard in part.shards)])
        self._arrays = {
            column: [_mapped(folder / shard.columns[column].id, shard.rows) for shard in part.shards]
            for column in part.shards[0].columns
        }

    @property
    def has_images(self) -> bool:
        """Returns whether rows come with images."""
        return "images" in self._arrays

    def take(self, column: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Returns some rows of a column, as they were stored.

        Args:
            column: "state" (float32 [S]), "action" (float32 [A]) or "images" (uint8 [V, H, W, 3]).
            rows: Row numbers, of any shape.
        """
        arrays = self._arrays[column]
        if len(arrays) == 1:
            only: NDArray[Any] = arrays[0][rows]
            return only
        out = np.empty((*rows.shape, *arrays[0].shape[1:]), dtype=arrays[0].dtype)
        shards = np.searchsorted(self._starts, rows, side="right") - 1
        for shard in np.unique(shards):
            here = shards == shard
            out[here] = arrays[shard][rows[here] - self._starts[shard]]
        return out


def open_view(store: ObjectStore, view_id: str, cache_dir: Path, split: Split) -> View:
    """Returns one split of a view, its bytes fetched into the local cache unless they are there.

    Any number of ranks may open the same view at once; each blob is fetched once.

    Args:
        store: Where the view lies.
        view_id: The view.
        cache_dir: Local folder, shared by ranks on one machine.
        split: Which side.

    Raises:
        NotFound: There is no such view, or its split is empty.
        DamagedData: A blob is not what its name says.
    """
    manifest = view_manifest(store, view_id)
    if manifest is None:
        raise NotFound("open a view", on=view_id, next_step="build it")
    part = manifest.splits[split]
    if not part.shards:
        raise NotFound("open a view", on=f"{view_id} {split}", got="no episodes on this side")
    for shard in part.shards:
        for blob in shard.columns.values():
            fetch_blob(store, blob, cache_dir)
    return View(manifest, split, cache_dir, pq.read_table(io.BytesIO(get_blob(store, part.episode_table))))


def view_manifest(store: ObjectStore, view_id: str) -> ViewManifest | None:
    """Returns what a view is, or None when it was not built.

    Args:
        store: Where the view lies.
        view_id: The view.
    """
    try:
        return decode(ViewManifest, store.get(view_key(view_id)))
    except NotFound:
        return None


def view_key(view_id: str) -> str:
    """Returns where a view's manifest lies.

    Args:
        view_id: The view.
    """
    return f"views/{view_id}.json"


def _mapped(path: Path, rows: int) -> NDArray[Any]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DamagedData("open a view", on=str(path), got=str(error)) from error
    if len(array) != rows:
        raise DamagedData("open a view", on=str(path), got=f"{len(array)} rows", wanted=f"{rows}")
    return np.asarray(array)  # A plain array over the map: the memmap class makes every indexing slower.
