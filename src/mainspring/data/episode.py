"""One recording as columns: what every source is read into, and how it is named by its content."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3
from numpy.typing import NDArray

from mainspring.data.features import Camera, Features
from mainspring.data.loss import Loss
from mainspring.data.packs import PackPiece
from mainspring.domain.codec import to_plain
from mainspring.domain.errors import DamagedData
from mainspring.domain.ids import EpisodeId
from mainspring.objects import Blob

if TYPE_CHECKING:  # Decoders are heavy, and a rank that reads batches needs none.
    from mainspring.data.video.packets import PacketIndex

FRAMES_MAX = 10_000_000  # A day at 100 Hz; bounds what one recording may ask of memory.
NANOSECONDS = 1_000_000_000
SHOWN = "camera:"  # Before a camera's name: the column of the frames its steps show, where that is not the step's own.
_ID_LETTERS = 32  # 128 bits: no collision among 10^12 episodes.

Integers: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VideoFile:
    """A camera's frames inside a local file: one for each step, from `first_frame` on.

    Args:
        camera: Its name.
        path: A video file of the source, or bare packets made from its messages.
        first_frame: The frame of the first step, in a video file.
        index: Where the frames are, when the file is bare packets; `first_frame` then means nothing.
        shown: [T] int32, the frame of the track that each step shows, when that is not the step's own number: packets
            that depend on each other cannot be left out or repeated.
        lost: Numbers of the frames that are damaged, rising, once somebody decoded them: 0 is the first step's.
    """

    camera: str
    path: Path
    first_frame: int = 0
    index: PacketIndex | None = None
    shown: NDArray[np.int32] | None = None
    lost: tuple[int, ...] = ()


def camera_of(video: VideoFile) -> Camera:
    """Returns what an episode's features say of a camera whose packets are indexed.

    Args:
        video: Its frames.
    """
    assert video.index is not None, video.camera
    return Camera(name=video.camera, height=video.index.height, width=video.index.width)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file an episode was read from, and its name inside the source."""

    name: str
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Episode:
    """One recording, read but not yet judged.

    Args:
        task: What the robot was asked to do.
        robot: Kind of robot.
        success: Whether it was done; None when nobody knows.
        rate_hz: Steps per second, as declared.
        features: Its columns and cameras.
        time_ns: [T] integer nanoseconds; absolute where the source knows, else from 0.
        columns: By name, [T, D] each.
        videos: One for each camera, in the features' order.
        files: Every file it was read from.
        metadata: What else is known of the whole of it, in words: operator, site, ...
        losses: What of the recording is gone.
        note: How it was read where its source leaves a choice, and what was passed over; no part of its content.
    """

    task: str
    robot: str
    success: bool | None
    rate_hz: float
    features: Features
    time_ns: Integers
    columns: Mapping[str, Floats]
    videos: tuple[VideoFile, ...] = ()
    files: tuple[SourceFile, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    losses: tuple[Loss, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        """Checks that the columns agree in length and width."""
        steps = len(self.time_ns)
        wanted = {column.name: (steps, len(column.names)) for column in self.features.columns}
        assert {name: values.shape for name, values in self.columns.items()} == wanted, wanted
        assert [video.camera for video in self.videos] == [camera.name for camera in self.features.cameras]
        assert all(video.shown is None or len(video.shown) == steps for video in self.videos)


@dataclass(frozen=True, slots=True, kw_only=True)
class RawFile:
    """A source's own file, kept as it was."""

    name: str
    blob: Blob


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoTrack:
    """A camera's frames, one for each step: packets inside a blob, found by an index (`PacketIndex`, Parquet)."""

    camera: str
    blob: Blob
    index: PackPiece


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRow:
    """One episode of a version, as the catalog keeps it.

    Args:
        id: Hash of its content, wherever it came from.
        source: Name inside the source it was first read from.
        task: What the robot was asked to do.
        robot: Kind of robot.
        success: Whether it was done; None when nobody knows.
        rate_hz: Steps per second.
        frames: How many steps.
        seconds: How long, from the first step to the last.
        started_ns: Time of the first step.
        arrived_ns: When its last byte had arrived here.
        metadata: What else is known of the whole of it, in words.
        columns: Parquet with time_ns, frame, and the features' columns as vectors of doubles.
        videos: One for each camera.
        raw: Every file of the source it was read from.
    """

    id: EpisodeId
    source: str
    task: str
    robot: str
    success: bool | None
    rate_hz: float
    frames: int
    seconds: float
    started_ns: int
    arrived_ns: int
    metadata: Mapping[str, str]
    columns: PackPiece
    videos: tuple[VideoTrack, ...]
    raw: tuple[RawFile, ...] = field(default=())


class Recording(Protocol):
    """One episode of a source, not yet read. Values: they travel to worker processes."""

    @property
    def name(self) -> str:
        """Returns its name inside the source."""

    @property
    def parse_bytes(self) -> int:
        """Returns how many bytes must be parsed in Python, which one process does one at a time."""

    @property
    def part(self) -> str:
        """Returns what decides it beside its files: which part of them it is, and what is said of it elsewhere."""

    def read(self, folder: Path) -> Episode:
        """Reads it.

        Args:
            folder: Where it may put files of packets, which are the caller's to remove.

        Raises:
            DamagedData: Its bytes do not hold together.
            InvalidInput: It is of a kind that is not read.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A recording that is known to be unreadable before it is opened, and why."""

    name: str
    reason: str
    parse_bytes: int = 0

    @property
    def part(self) -> str:
        """See `Recording.part`."""
        return f"{self.name} {self.reason}"

    def read(self, folder: Path) -> Episode:
        """Raises `DamagedData` with the reason."""
        raise DamagedData("read a recording", on=self.name, got=self.reason)


def episode_id(episode: Episode, blobs: tuple[Blob, ...], indexes: tuple[PacketIndex, ...]) -> EpisodeId:
    """Returns the hash of everything an episode says, whichever files said it.

    Args:
        episode: The episode.
        blobs: The content of the files its videos are in.
        indexes: Where in them each video's frames are.
    """
    videos = zip(episode.videos, blobs, indexes, strict=True)
    facts = {
        "format": 1,
        "task": episode.task,
        "robot": episode.robot,
        "success": episode.success,
        "rate_hz": episode.rate_hz,
        "features": to_plain(episode.features),
        "videos": [(video.camera, blob.id, index.id) for video, blob, index in videos],
        "metadata": dict(sorted(episode.metadata.items())),
        "steps": len(episode.time_ns),
    }
    hasher = blake3(json.dumps(facts, sort_keys=True, separators=(",", ":")).encode())
    hasher.update(np.ascontiguousarray(episode.time_ns, dtype="<i8").data.cast("B"))
    for _, values in sorted(episode.columns.items()):
        hasher.update(np.ascontiguousarray(values, dtype="<f8").data.cast("B"))
    for video in episode.videos:
        if video.shown is not None:
            hasher.update(b"shown " + video.camera.encode() + b"\0")
            hasher.update(np.ascontiguousarray(video.shown, dtype="<i4").data.cast("B"))
    return EpisodeId(hasher.hexdigest()[:_ID_LETTERS])


def columns_to_parquet(episode: Episode) -> bytes:
    """Returns an episode's columns as a Parquet file.

    Args:
        episode: The episode.
    """
    table = pa.table(
        {
            "time_ns": pa.array(episode.time_ns),
            "frame": pa.array(np.arange(len(episode.time_ns), dtype=np.int64)),
            **{name: _vectors(values) for name, values in sorted(episode.columns.items())},
            **{SHOWN + video.camera: video.shown for video in episode.videos if video.shown is not None},
        }
    )
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", use_dictionary=False)
    return sink.getvalue()


def column_from_table(table: pa.Table, name: str) -> Floats:
    """Returns a column of vectors or numbers as [T, D].

    Args:
        table: A table of T rows.
        name: The column.

    Raises:
        DamagedData: It is missing, holds nulls, or its vectors differ in length.
    """
    if name not in table.column_names:
        raise DamagedData("read a column", on=name, got=f"columns {', '.join(table.column_names)}")
    chunks = table[name].chunks
    column = pa.concat_arrays(chunks) if chunks else pa.array([], pa.float64())
    if column.null_count:
        raise DamagedData("read a column", on=name, got="empty cells")
    ragged = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    if ragged and len(set(column.value_lengths().to_pylist())) > 1:
        raise DamagedData("read a column", on=name, got="vectors of several lengths", wanted="one length")
    values = column.flatten() if pa.types.is_nested(column.type) else column
    if values.null_count or not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        raise DamagedData("read a column", on=name, got=f"{values.null_count} empty of {values.type}", wanted="numbers")
    flat: Floats = np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.float64)
    return flat.reshape(table.num_rows, -1) if table.num_rows else flat.reshape(0, 1)


def shown_at(table: pa.Table, camera: str) -> Integers:
    """Returns which frame of a camera's track each step of an episode shows.

    Args:
        table: The episode's columns; "camera:<name>" tells it where steps and frames differ.
        camera: The camera.
    """
    name = SHOWN + camera
    if name not in table.column_names:
        return np.arange(table.num_rows, dtype=np.int64)
    shown: Integers = np.asarray(table[name].to_numpy(), np.int64)
    return shown


def _vectors(values: Floats) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
