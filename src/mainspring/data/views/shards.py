"""Shards of a view in the making: where they end, how they are written, and the records by which they are found again.

A shard ends after an episode when it holds half of `shard_bytes` or more and the episode's id draws the end (so that
shards are one `shard_bytes` on average), or when it holds one and a half. So where it ends follows from the episodes
in it alone: a version that grew has the same shards up to its old last one, one that lost an episode has the same ones
but those around it. Whoever writes a shard leaves a record under the id of its first episode. A build that finds a
record of just the episodes it needs takes that shard; of some of them, their bytes. That is how a build goes on where
another was killed, and how a view of a newer version costs what is new in it.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from mainspring.data.video.coded import Coded
from mainspring.data.views.manifest import IMAGES, Packets, ViewShard
from mainspring.data.views.ready import ReadyEpisode
from mainspring.data.views.summary import Summary, summary_to_bytes
from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import NotFound
from mainspring.objects import Blob, ObjectStore, blob_of_file, put_blob, put_blob_file, reported

EPISODES_MAX = 50_000  # In a shard: keeps its record and its list in memory small when episodes are tiny.
RECORDS_READ_MAX = 64  # Versions whose shards begin alike; beyond these a shard is perhaps made again.
_SUMMARY_ROWS = 1 << 16  # Rows summed at once: a few megabytes, and large enough for vectors to pay.
_ID_LETTERS = 32
_DRAWS = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRecord:
    """A shard that somebody made.

    Args:
        shard: The shard.
        episodes: Ids of its episodes, in row order.
        rows: How many rows each has.
        closed: Whether it ended by rule; else there were no more episodes.
        pictures: For each camera, the hash of what each episode's packets were decoded to when it was made.
    """

    shard: ViewShard
    episodes: tuple[str, ...]
    rows: tuple[int, ...]
    closed: bool
    pictures: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def serves(self, episodes: Sequence[str], at: int) -> bool:
        """Returns whether a build of some episodes would make the same shard.

        Args:
            episodes: All of them.
            at: The first of the shard.
        """
        end = at + len(self.episodes)
        return tuple(episodes[at:end]) == self.episodes and (self.closed or end == len(episodes))

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """Returns every blob it needs."""
        return shard_blobs(self.shard)


def shard_blobs(shard: ViewShard) -> tuple[Blob, ...]:
    """Returns every blob of a shard.

    Args:
        shard: The shard.
    """
    videos = (blob for video in shard.videos.values() for blob in (video.data, video.ends))
    return (*shard.columns.values(), *videos, shard.summary)


class Records:
    """The shards made by one recipe, by their first episode.

    Args:
        store: Where they lie, under `view_shards/<recipe>/<first episode>/`.
        recipe: Names everything but the episodes that a shard's bytes follow from.
    """

    def __init__(self, store: ObjectStore, recipe: str) -> None:
        self._store = store
        self._recipe = recipe

    def at(self, episode: str) -> tuple[ShardRecord, ...]:
        """Returns the shards that begin with an episode and whose bytes are there.

        Args:
            episode: Its id.
        """
        found = []
        for entry in self._store.list(f"view_shards/{self._recipe}/{episode}")[:RECORDS_READ_MAX]:
            try:
                record = decode(ShardRecord, self._store.get(entry.key))
            except NotFound:  # Collected just now.
                continue
            if all(self._store.size(blob.key) == blob.size_bytes for blob in record.blobs):
                found.append(record)
        return tuple(found)

    def keep(self, record: ShardRecord) -> None:
        """Stores a record.

        Args:
            record: The record.
        """
        name = blake3("\n".join(record.episodes).encode()).hexdigest()[:_ID_LETTERS]
        key = f"view_shards/{self._recipe}/{record.episodes[0]}/{name}-{'closed' if record.closed else 'open'}.json"
        self._store.put(key, encode(record))


def ends_shard(episode: str, *, episode_bytes: int, held_bytes: int, episodes: int, shard_bytes: int) -> bool:
    """Returns whether a shard ends after an episode.

    Args:
        episode: Its id.
        episode_bytes: What it takes.
        held_bytes: What the shard takes with it.
        episodes: How many the shard holds with it.
        shard_bytes: What shards take on average.
    """
    half = shard_bytes / 2
    if held_bytes >= 3 * half or episodes >= EPISODES_MAX:
        return True
    draw = int.from_bytes(blake3(b"shard" + episode.encode()).digest(length=8)) / _DRAWS
    return held_bytes >= half and draw < episode_bytes / half


class ShardWriter:
    """Writes one shard, an episode after the other.

    Args:
        folder: An empty folder for its files.
        shard_bytes: What shards take on average.
    """

    def __init__(self, folder: Path, shard_bytes: int) -> None:
        self._folder = folder
        self._shard_bytes = shard_bytes
        self._files: dict[str, IO[bytes]] = {}
        self._shapes: dict[str, tuple[Any, tuple[int, ...]]] = {}
        self._ends: dict[str, list[NDArray[np.int64]]] = {}
        self._video_bytes: dict[str, int] = {}
        self._episodes: list[str] = []
        self._rows: list[int] = []
        self._pictures: dict[str, list[str]] = {}
        self._size_bytes = 0

    def add(self, episode: str, ready: ReadyEpisode) -> bool:
        """Adds an episode, and returns whether the shard ends after it.

        Args:
            episode: Its id.
            ready: The episode.

        Raises:
            StorageFull: There is no room in the folder.
        """
        with reported("build a view", str(self._folder)):
            for name, array in ready.columns.items():
                if name not in self._files:
                    self._files[name] = self._opened("column", name)
                    self._shapes[name] = (array.dtype, array.shape[1:])
                    _write_header(self._files[name], array.dtype, (0, *array.shape[1:]))
                self._files[name].write(np.ascontiguousarray(array).data)
            for camera, coded in ready.videos.items():
                if camera not in self._ends:
                    self._files[f"video:{camera}"] = self._opened("video", camera)
                    self._ends[camera] = [np.zeros(1, np.int64)]
                    self._video_bytes[camera] = 0
                self._files[f"video:{camera}"].write(coded.data)
                self._ends[camera].append(coded.ends + self._video_bytes[camera])
                self._video_bytes[camera] += coded.data.nbytes
        self._episodes.append(episode)
        self._rows.append(ready.rows)
        for camera, text in ready.pictures.items():
            self._pictures.setdefault(camera, []).append(text)
        self._size_bytes += ready.size_bytes
        return ends_shard(
            episode,
            episode_bytes=ready.size_bytes,
            held_bytes=self._size_bytes,
            episodes=len(self._episodes),
            shard_bytes=self._shard_bytes,
        )

    def store(self, store: ObjectStore, *, closed: bool) -> ShardRecord:
        """Stores the shard and returns its record, not yet kept.

        Args:
            store: Where to.
            closed: Whether it ended by rule.

        Raises:
            StorageFull: There is no room.
        """
        rows = sum(self._rows)
        with reported("build a view", str(self._folder)):
            for name, (dtype, shape) in self._shapes.items():
                self._files[name].seek(0)
                _write_header(self._files[name], dtype, (rows, *shape))
            for file in self._files.values():
                file.close()
        columns = {name: self._stored(store, "column", name) for name in self._shapes}
        videos = {}
        for camera, ends in self._ends.items():
            sink = io.BytesIO()
            np.save(sink, np.concatenate(ends), allow_pickle=False)
            videos[camera] = Packets(data=self._stored(store, "video", camera), ends=put_blob(store, sink.getbuffer()))
        return ShardRecord(
            shard=ViewShard(
                rows=rows,
                columns=columns,
                videos=videos,
                summary=put_blob(store, summary_to_bytes(self._summary(rows))),
            ),
            episodes=tuple(self._episodes),
            rows=tuple(self._rows),
            closed=closed,
            pictures={camera: tuple(texts) for camera, texts in self._pictures.items()},
        )

    def _summary(self, rows: int) -> Summary:
        names = sorted(name for name in self._shapes if name != IMAGES)
        columns = {name: np.load(self._folder / _name("column", name), mmap_mode="r") for name in names}
        parts = [
            Summary.of({name: columns[name][at : at + _SUMMARY_ROWS] for name in names})
            for at in range(0, rows, _SUMMARY_ROWS)
        ]
        whole, *others = parts
        for part in others:
            whole = whole.merged(part)
        return whole

    def _opened(self, kind: str, name: str) -> IO[bytes]:
        return open(self._folder / _name(kind, name), "w+b")

    def _stored(self, store: ObjectStore, kind: str, name: str) -> Blob:
        path = self._folder / _name(kind, name)
        blob = blob_of_file(path)
        put_blob_file(store, path, blob)
        return blob


def held_episodes(record: ShardRecord, local: Mapping[str, Path]) -> dict[str, ReadyEpisode]:
    """Returns a shard's episodes as they were ready before.

    Args:
        record: The shard.
        local: Where its blobs lie on this machine, by id.
    """
    shard = record.shard
    columns = {name: np.load(local[blob.id], mmap_mode="r") for name, blob in shard.columns.items()}
    videos = {
        camera: (np.memmap(local[video.data.id], np.uint8, "r"), np.load(local[video.ends.id]))
        for camera, video in shard.videos.items()
    }
    found, begin = {}, 0
    for number, (episode, rows) in enumerate(zip(record.episodes, record.rows, strict=True)):
        end = begin + rows
        coded = {}
        for camera, (data, ends) in videos.items():
            first, last = int(ends[begin]), int(ends[end])
            coded[camera] = Coded(data=data[first:last].data, ends=ends[begin + 1 : end + 1] - first)
        found[episode] = ReadyEpisode(
            columns={name: array[begin:end] for name, array in columns.items()},
            videos=coded,
            pictures={camera: texts[number] for camera, texts in record.pictures.items()},
        )
        begin = end
    return found


def _name(kind: str, name: str) -> str:
    """Returns a file name for a column's or camera's name, which may hold anything."""
    return f"{kind}-{blake3(name.encode()).hexdigest()[:_ID_LETTERS]}"


def _write_header(file: IO[bytes], dtype: Any, shape: tuple[int, ...]) -> None:
    """Writes the header of a `.npy` file, which keeps room for any number of rows and so can be written again."""
    np.lib.format.write_array_header_1_0(
        file, {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
    )
