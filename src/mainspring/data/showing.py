"""An episode as a page shows it: curves of few points, and a strip of small pictures, without a drawing library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from mainspring.data.episode import NANOSECONDS, EpisodeRow, column_from_table, shown_at
from mainspring.data.features import Features
from mainspring.data.packs import read_piece
from mainspring.data.video.frames import frames_shown
from mainspring.data.video.packets import index_from_parquet
from mainspring.data.video.pictures import PngEncoder
from mainspring.domain.errors import NotFound
from mainspring.objects import ObjectStore, fetch_blob

STRIP_PICTURES = 8  # In a row: a thumb's length each where a page is wide.
STRIP_WIDTH = 160  # Of each, in pixels.
STRIP_HEIGHT_MAX = 240  # Of a camera that stands upright.
CAMERAS_MAX = 8  # Rows of a strip.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ColumnCurve:
    """One column of an episode over time.

    Args:
        dims: What each dimension is called.
        times_s: Of each point, from the episode's first step.
        values: Points by dimensions.
    """

    name: str
    dims: tuple[str, ...]
    times_s: NDArray[np.float64]
    values: NDArray[np.float64]


def episode_curves(store: ObjectStore, row: EpisodeRow, features: Features, *, points: int) -> Sequence[ColumnCurve]:
    """Returns the columns of an episode, at steps evenly apart.

    Args:
        store: Where the episode lies.
        row: The episode.
        features: Of its version.
        points: At most so many steps.

    Raises:
        DamagedData: The episode's bytes are not what they should be.
    """
    table = pq.read_table(pa.BufferReader(read_piece(store, row.columns)))
    times_s = (table["time_ns"].to_numpy() - row.started_ns) / NANOSECONDS
    steps = np.unique(np.linspace(0, row.frames - 1, min(points, row.frames)).astype(np.int64))
    found = []
    for column in features.columns:
        values = np.asarray(column_from_table(table, column.name), np.float64)
        values = values[:, None] if values.ndim == 1 else values
        found.append(
            ColumnCurve(name=column.name, dims=tuple(column.names), times_s=times_s[steps], values=values[steps])
        )
    return found


def picture_strip(store: ObjectStore, row: EpisodeRow, *, cache_dir: Path) -> bytes:
    """Returns pictures of an episode as PNG: a row a camera, from its beginning to its end.

    Args:
        store: Where the episode lies.
        row: The episode.
        cache_dir: Local folder for its videos.

    Raises:
        NotFound: It has no video.
        DamagedData: The episode's bytes are not what they should be.
    """
    table = pq.read_table(pa.BufferReader(read_piece(store, row.columns)))
    steps = np.linspace(0, row.frames - 1, STRIP_PICTURES).astype(np.int64)
    rows = []
    for track in row.videos[:CAMERAS_MAX]:
        index = index_from_parquet(read_piece(store, track.index))
        video = fetch_blob(store, track.blob, cache_dir)
        frames = frames_shown(video, index, shown_at(table, track.camera)[steps])
        rows.append(np.hstack([_small(frame) for frame in frames]))
    if not rows:
        raise NotFound("show pictures of an episode", on=row.id[:12], got="an episode without cameras")
    return PngEncoder().encode(np.vstack(rows))


def _small(frame: Any) -> NDArray[np.uint8]:
    height = max(2, min(STRIP_HEIGHT_MAX, round(STRIP_WIDTH * frame.height / frame.width)))
    small: NDArray[np.uint8] = frame.reformat(width=STRIP_WIDTH, height=height, format="rgb24").to_ndarray()
    return small
