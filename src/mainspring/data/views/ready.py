"""Makes one episode ready for a shard: its columns at the view's rate, each frame decoded, resized and encoded once."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from mainspring.data.episode import NANOSECONDS, EpisodeRow, Integers, VideoTrack, column_from_table, shown_at
from mainspring.data.features import Features
from mainspring.data.packs import PackPiece, read_piece
from mainspring.data.video.coded import Coded
from mainspring.data.video.encode import encode_frames
from mainspring.data.video.frames import PictureHash, frames_shown, hash_of_frames, read_frames
from mainspring.data.video.packets import index_from_parquet
from mainspring.data.views.manifest import IMAGES, RAW, ViewRecipe
from mainspring.domain.errors import DamagedData, MainspringError
from mainspring.domain.ids import EpisodeId
from mainspring.objects import Blob, ObjectStore, reported

_RATE_DENOMINATOR_MAX = 1_001  # Of 30000/1001, the oddest rate in use.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReadyEpisode:
    """An episode as its shard keeps it, in memory or in mapped files that vanish with it.

    Args:
        columns: [rows, ...] each; pixels among them when the codec is "raw".
        videos: For each camera, when the codec has packets.
        pictures: For each camera, the hash of what its source's packets were decoded to.
    """

    columns: Mapping[str, NDArray[Any]]
    videos: Mapping[str, Coded]
    pictures: Mapping[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Returns how many rows it has."""
        return len(next(iter(self.columns.values())))

    @property
    def size_bytes(self) -> int:
        """Returns how much of a shard it takes."""
        columns = sum(array.nbytes for array in self.columns.values())
        return columns + sum(coded.data.nbytes + coded.ends.nbytes for coded in self.videos.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameMaker:
    """What making episodes ready takes.

    Args:
        store: Where the episodes lie.
        recipe: What the view is made like.
        features: The columns and cameras it keeps.
        layers: For each layer that columns come from, where each episode's lie.
        folder: For files that vanish when they are let go.
        video: Brings a blob with packets here.
    """

    store: ObjectStore
    recipe: ViewRecipe
    features: Features
    layers: tuple[Mapping[EpisodeId, PackPiece], ...]
    folder: Path
    video: Callable[[Blob], Path]

    def __call__(self, row: EpisodeRow) -> ReadyEpisode:
        """Returns an episode made ready.

        Args:
            row: The episode.

        Raises:
            DamagedData: It is not what the catalog says, or holds numbers that are not finite.
            StorageFull: There is no room in the folder.
        """
        try:
            return self._made(row)
        except DamagedData as error:
            raise _named(error, row) from error

    def pictures(self, row: EpisodeRow) -> dict[str, str]:
        """Returns the hash of what each camera's packets are decoded to now, as `ReadyEpisode.pictures` says it.

        Args:
            row: The episode.

        Raises:
            DamagedData: They cannot be decoded.
        """
        names = {camera.name for camera in self.features.cameras}
        return {
            track.camera: hash_of_frames(
                self.video(track.blob), index_from_parquet(read_piece(self.store, track.index))
            )
            for track in row.videos
            if track.camera in names
        }

    def _made(self, row: EpisodeRow) -> ReadyEpisode:
        table = pq.read_table(pa.BufferReader(read_piece(self.store, row.columns)))
        steps = steps_at(table["time_ns"].to_numpy(), self.recipe.rate_hz)
        columns: dict[str, NDArray[Any]] = {}
        wide = self._with_layers(table, row)
        for column in self.features.columns:
            values = column_from_table(wide, column.name)
            if values.shape != (row.frames, len(column.names)) or not np.isfinite(values).all():
                raise DamagedData(
                    "read a column",
                    on=column.name,
                    got=f"{values.shape}, or numbers that are not finite",
                    wanted=f"{row.frames} finite rows",
                )
            columns[column.name] = values[steps].astype(np.float32)
        tracks = {track.camera: track for track in row.videos}
        videos: dict[str, Coded] = {}
        pictures = {camera.name: PictureHash() for camera in self.features.cameras}
        with reported("build a view", str(self.folder)):
            raw, size = self.recipe.codec == RAW, self.recipe.image_size
            if self.features.cameras and raw:
                columns[IMAGES] = _pixels(self.folder, (len(steps), len(self.features.cameras), size, size, 3))
            for view, camera in enumerate(self.features.cameras):
                shown = shown_at(table, camera.name)[steps]
                frames = self._frames(tracks[camera.name], shown, pictures[camera.name])
                if raw:
                    read_frames(frames, columns[IMAGES][:, view])
                else:
                    videos[camera.name] = self._coded(frames)
        return ReadyEpisode(
            columns=columns, videos=videos, pictures={name: each.text for name, each in pictures.items()}
        )

    def _with_layers(self, table: pa.Table, row: EpisodeRow) -> pa.Table:
        for pieces in self.layers:
            more = pq.read_table(pa.BufferReader(read_piece(self.store, pieces[row.id])))
            if more.num_rows != table.num_rows:
                raise DamagedData("read a layer", got=f"{more.num_rows} steps", wanted=f"{table.num_rows}")
            for name in more.column_names:
                table = table.append_column(name, more[name])
        return table

    def _coded(self, frames: Iterator[Any]) -> Coded:
        coding = self.recipe.coding
        with tempfile.TemporaryFile(dir=self.folder) as file:
            ends = encode_frames(frames, coding, file)
            file.flush()
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return Coded(data=memoryview(mapped), ends=ends)

    def _frames(self, track: VideoTrack, shown: Integers, pictures: PictureHash) -> Iterator[Any]:
        return frames_shown(
            self.video(track.blob), index_from_parquet(read_piece(self.store, track.index)), shown, pictures=pictures
        )


def steps_at(time_ns: Integers, rate_hz: float | None) -> Integers:
    """Returns which step each row of a view shows: at the rate, the nearest in time; of two as near, the earlier.

    Args:
        time_ns: [T] times of the steps, rising.
        rate_hz: Rows per second, from the first step to the last; None for every step.
    """
    if rate_hz is None or len(time_ns) == 0:
        return np.arange(len(time_ns), dtype=np.int64)
    rate = Fraction(rate_hz).limit_denominator(_RATE_DENOMINATOR_MAX)
    assert rate > 0
    span = int(time_ns[-1] - time_ns[0])
    rows = np.arange(span * rate.numerator // (NANOSECONDS * rate.denominator) + 1, dtype=np.int64)
    whole, rest = np.divmod(rows * rate.denominator, rate.numerator)  # Seconds and their parts: no product overflows.
    wanted = time_ns[0] + whole * NANOSECONDS + rest * NANOSECONDS // rate.numerator
    after = np.searchsorted(time_ns, wanted).clip(1, max(1, len(time_ns) - 1))
    before = after - 1
    nearer = wanted - time_ns[before] <= time_ns[after.clip(max=len(time_ns) - 1)] - wanted
    steps: Integers = np.where(nearer, before, after)
    return steps.astype(np.int64)


def _pixels(folder: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Returns an array in a file without a name; its room on disk is taken, as a map over a full disk kills."""
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, int(np.prod(shape)))
        return np.asarray(np.memmap(file, np.uint8, "r+", shape=shape))


def _named(error: MainspringError, row: EpisodeRow) -> DamagedData:
    """Returns an error that says which episode it is about."""
    return DamagedData(
        "make an episode ready",
        on=f"episode {row.id} ({row.source}): {error.attempted} {error.on}".strip(),
        got=error.got,
        wanted=error.wanted,
    )
