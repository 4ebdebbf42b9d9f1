"""A training view: a version made ready for one recipe, and how a rank opens it.

What a view holds is described by its manifest, `views/<id>.json`; its bytes are blobs. Each split is a list of shards
of whole episodes: a `.npy` file a column, and for each camera either pixels among the columns or packets of h264 or
JPEG. All of it is mapped into memory where it is read, or fetched by ranges.
"""

from __future__ import annotations

import mmap
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mainspring.data.video.coded import Coded
from mainspring.data.views.manifest import IMAGES, Split, ViewManifest, view_manifest
from mainspring.domain.errors import DamagedData, InvalidInput, NotFound
from mainspring.objects import Blob, ObjectStore, fetch_blob, reported

Integers: TypeAlias = NDArray[np.int64]


class Ranges(Protocol):
    """Reads bytes of blobs; for many threads. What it returns must not be changed."""

    def __call__(self, blob: Blob, offset: int, size_bytes: int) -> memoryview:
        """Returns some of a blob's bytes.

        Raises:
            DamagedData: The blob ends before the range does.
        """


class Files(Protocol):
    """Returns where a blob lies on this machine, bringing it there first if need be; for many threads."""

    def __call__(self, blob: Blob) -> Path:
        """Returns the path of a checked copy, which stays at least until it is opened."""


class MappedRanges:
    """Reads ranges of blobs from local files, without copying them.

    Args:
        files: Where the blobs lie.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._maps: dict[str, memoryview] = {}

    def __call__(self, blob: Blob, offset: int, size_bytes: int) -> memoryview:
        """Returns some of a blob's bytes.

        Args:
            blob: The blob.
            offset: Where they begin.
            size_bytes: How many.

        Raises:
            DamagedData: The blob's file ends before the range does.
        """
        held = self._maps.get(blob.id)
        if held is None:
            path = self._files(blob)
            with reported("map a blob", str(path)), open(path, "rb") as file:
                held = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            self._maps[blob.id] = held
        part = held[offset : offset + size_bytes]
        if len(part) != size_bytes:
            raise DamagedData("read a range", on=blob.key, got=f"{len(held)} bytes", wanted=f"{offset + size_bytes}")
        return part


class View:
    """One split of a view, opened.

    Args:
        manifest: The whole view's manifest.
        split: Which side.
        files: Brings its columns here when they are first read.
        ranges: Reads packets of its videos.
        episodes: Table of the split's episodes: id, task, frames.

    Raises:
        DamagedData: The table is not the manifest's.
    """

    def __init__(self, manifest: ViewManifest, split: Split, files: Files, ranges: Ranges, episodes: pa.Table) -> None:
        part = manifest.splits[split]
        self.manifest = manifest
        self.split = split
        self.rows = part.rows
        self.episodes = episodes
        frames = np.from_dlpack(episodes["frames"].combine_chunks())  # `to_numpy` imports pandas: 0.3 s of a resume.
        self.episode_ends: Integers = np.cumsum(frames, dtype=np.int64)
        if len(self.episode_ends) == 0 or self.episode_ends[-1] != part.rows:
            raise DamagedData("open a view", on=manifest.id, got=f"{len(self.episode_ends)} episodes of {part.rows}")
        self.episode_starts: Integers = np.concatenate([np.zeros(1, np.int64), self.episode_ends[:-1]])
        self._files = files
        self._ranges = ranges
        self._shards = part.shards
        self._shard_starts: Integers = np.cumsum([0, *(shard.rows for shard in part.shards)], dtype=np.int64)
        self._arrays: dict[str, NDArray[Any]] = {}

    @cached_property
    def episode_ids(self) -> tuple[str, ...]:
        """Returns the episodes' ids in row order; `episodes["id"]` is the same without a Python object for each."""
        return tuple(self.episodes["id"].to_pylist())

    @property
    def has_images(self) -> bool:
        """Returns whether `take` gives images: the view holds pixels."""
        return IMAGES in self._shards[0].columns

    @property
    def cameras(self) -> tuple[str, ...]:
        """Returns the cameras in the order of a batch's images."""
        return tuple(camera.name for camera in self.manifest.features.cameras)

    @property
    def codec(self) -> str:
        """Returns how it keeps frames: "raw", "h264" or "jpeg"."""
        return self.manifest.recipe.codec

    @property
    def has_packets(self) -> bool:
        """Returns whether frames must be decoded, of `packets`."""
        return bool(self._shards[0].videos)

    @property
    def gop(self) -> int:
        """Returns how many rows are decoded together; 1 when nothing need be decoded.

        Decoding can begin at an episode's first row and each `gop` rows after it.
        """
        return self.manifest.recipe.coding.gop if self._shards[0].videos else 1

    def episode_of(self, rows: Integers) -> Integers:
        """Returns the number of the episode that each row lies in.

        Args:
            rows: Row numbers, of any shape.
        """
        found: Integers = np.searchsorted(self.episode_ends, rows, side="right")
        return found

    def phases(self, rows: Integers) -> Integers:
        """Returns how far each row lies into its group: decoding must begin so many rows before it.

        Args:
            rows: Row numbers, of any shape.
        """
        inside: Integers = (rows - self.episode_starts[self.episode_of(rows)]) % self.gop
        return inside

    def take(self, column: str, rows: Integers) -> NDArray[Any]:
        """Returns some rows of a column, as they were stored.

        Args:
            column: A column (float32 [D]), or "images" (uint8 [V, H, W, 3]) when it `has_images`.
            rows: Row numbers, of any shape.

        Raises:
            InvalidInput: There is no such column.
            DamagedData: Its file is not what it should be.
        """
        if column not in self._shards[0].columns:
            raise InvalidInput(
                "read a view's column",
                on=self.manifest.id,
                got=repr(column[:80]),
                wanted=", ".join(sorted(self._shards[0].columns))[:300],
            )
        if len(self._shards) == 1:
            only: NDArray[Any] = self._array(0, column)[rows]
            return only
        shards = np.searchsorted(self._shard_starts, rows, side="right") - 1
        needed = np.unique(shards)
        first = self._array(int(needed[0]) if len(needed) else 0, column)
        out = np.empty((*rows.shape, *first.shape[1:]), dtype=first.dtype)
        for shard in needed.tolist():
            here = shards == shard
            out[here] = self._array(shard, column)[rows[here] - self._shard_starts[shard]]
        return out

    def packets(self, camera: str, first_row: int, rows: int) -> Coded:
        """Returns the packets of consecutive rows of one episode, as they lie in memory.

        Args:
            camera: The camera.
            first_row: Where decoding begins: an episode's first row, or a multiple of `gop` rows after it.
            rows: How many, over 0.

        Raises:
            InvalidInput: The view has no packets of such a camera.
            DamagedData: Its files are not what they should be.
        """
        shard = int(np.searchsorted(self._shard_starts, first_row, side="right")) - 1
        video = self._shards[shard].videos.get(camera)
        if video is None:
            have = ", ".join(self._shards[shard].videos) or "none"
            raise InvalidInput("read a view's packets", on=self.manifest.id, got=camera[:80], wanted=f"one of {have}")
        at = first_row - int(self._shard_starts[shard])
        ends = self._array(shard, f"{_ENDS}{camera}")[at : at + rows + 1]
        assert len(ends) == rows + 1, "the rows of one episode lie in one shard"
        begin, end = int(ends[0]), int(ends[-1])
        return Coded(data=self._ranges(video.data, begin, end - begin), ends=ends[1:] - begin)

    def where(self, row: int) -> str:
        """Returns which episode's which row this is, for messages.

        Args:
            row: A row number.
        """
        number = int(np.searchsorted(self.episode_ends, row, side="right"))
        return f"episode {self.episodes['id'][number].as_py()}, row {row - int(self.episode_starts[number])} of it"

    def _array(self, shard: int, column: str) -> NDArray[Any]:
        """Returns a shard's column, mapped when it is first wanted; packets' ends are columns of one row more."""
        part = self._shards[shard]
        ends = column.startswith(_ENDS)
        blob = part.videos[column.removeprefix(_ENDS)].ends if ends else part.columns[column]
        array = self._arrays.get(blob.id)
        if array is None:
            array = self._arrays[blob.id] = _mapped(self._files(blob), part.rows + ends)
        return array


_ENDS = "ends:"  # No column is called so, because a camera's name follows it.


def open_view(
    store: ObjectStore,
    view_id: str,
    cache_dir: Path,
    split: Split,
    *,
    files: Files | None = None,
    ranges: Ranges | None = None,
) -> View:
    """Returns one split of a view.

    Unless told otherwise, all its bytes are fetched into the local cache first, unless they are there. Any number of
    ranks may open the same view at once; each blob is fetched once.

    Args:
        store: Where the view lies.
        view_id: The view.
        cache_dir: Local folder, shared by ranks on one machine.
        split: Which side.
        files: How to bring columns here when they are first read, instead of all of them at once.
        ranges: How to read packets of videos, instead of fetching all of them.

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

    def fetched(blob: Blob) -> Path:
        return fetch_blob(store, blob, cache_dir)

    local = files or fetched
    for shard in part.shards if files is None else ():
        for blob in (*shard.columns.values(), *(video.ends for video in shard.videos.values())):
            local(blob)
    for shard in part.shards if ranges is None else ():
        for video in shard.videos.values():
            local(video.data)
    table = local(part.episode_table)
    try:
        with pa.memory_map(str(table)) as source:
            episodes = pa.ipc.open_file(source).read_all()
    except (pa.ArrowException, OSError) as error:
        raise DamagedData("open a view", on=str(table), got=str(error)[:200]) from error
    return View(manifest, split, local, ranges or MappedRanges(local), episodes)


def _mapped(path: Path, rows: int) -> NDArray[Any]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DamagedData("open a view", on=str(path), got=str(error)) from error
    if len(array) != rows:
        raise DamagedData("open a view", on=str(path), got=f"{len(array)} rows", wanted=f"{rows}")
    return np.asarray(array)  # A plain array over the map: the memmap class makes every indexing slower.
