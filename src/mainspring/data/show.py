"""Draws an episode on one sheet: pictures of its cameras over time, and the curves of its columns below."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from mainspring.data.episode import NANOSECONDS, EpisodeRow, VideoTrack, column_from_table, shown_at
from mainspring.data.features import Features
from mainspring.data.packs import read_piece
from mainspring.data.video.frames import frames_shown
from mainspring.data.video.packets import index_from_parquet
from mainspring.domain.errors import Unavailable
from mainspring.objects import ObjectStore, fetch_blob

PICTURES = 8  # In a row: on a sheet as wide as a page each is still a thumb's length.
LEGEND_MAX = 14  # Names beside a curve's axes; more do not fit its height.
_WIDTH_IN, _CURVES_IN, _DPI = 16.0, 2.6, 100


def contact_sheet(store: ObjectStore, row: EpisodeRow, features: Features, path: Path, *, cache_dir: Path) -> None:
    """Writes a PNG of an episode.

    Args:
        store: Where the episode lies.
        row: The episode.
        features: Of its version.
        path: The file to write; whole or not at all.
        cache_dir: Local folder for its videos.

    Raises:
        Unavailable: Matplotlib is not installed.
        DamagedData: The episode's bytes are not what they should be.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise Unavailable(
            "draw an episode", got="no package 'matplotlib'", next_step="pip install 'mainspring[plot]'"
        ) from error
    table = pq.read_table(pa.BufferReader(read_piece(store, row.columns)))
    times_s = (table["time_ns"].to_numpy() - row.started_ns) / NANOSECONDS
    steps = np.unique(np.linspace(0, row.frames - 1, PICTURES).astype(np.int64))
    heights = [_WIDTH_IN / PICTURES * camera.height / camera.width + 0.3 for camera in features.cameras]
    heights += [_CURVES_IN] * len(features.columns)
    figure = Figure(figsize=(_WIDTH_IN, sum(heights) + 0.6), dpi=_DPI, layout="constrained")
    verdict = {True: ", success", False: ", failure", None: ""}[row.success]
    title = f"{row.id[:12]}  {row.source}  {row.task!r}  {row.frames} steps at {row.rate_hz:g} Hz{verdict}"
    figure.suptitle(title[:160], fontsize=11)
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    for part, track in zip(parts, row.videos, strict=False):
        _draw_pictures(part, track, _pictures(store, track, table, steps, cache_dir), times_s[steps])
    for part, column in zip(parts[len(row.videos) :], features.columns, strict=True):
        values = column_from_table(table, column.name)
        axes = part.subplots()
        axes.plot(times_s, values, linewidth=0.9)
        axes.set_ylabel(column.name)
        axes.margins(x=0.005)
        axes.grid(alpha=0.25)
        if len(column.names) <= LEGEND_MAX:
            axes.legend(column.names, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(drawn.getvalue())
    partial.rename(path)


def _pictures(
    store: ObjectStore, track: VideoTrack, table: pa.Table, steps: NDArray[np.int64], cache_dir: Path
) -> list[NDArray[np.uint8]]:
    index = index_from_parquet(read_piece(store, track.index))
    video = fetch_blob(store, track.blob, cache_dir)
    shown = shown_at(table, track.camera)[steps]
    return [frame.to_ndarray(format="rgb24") for frame in frames_shown(video, index, shown)]


def _draw_pictures(
    part: Any, track: VideoTrack, pictures: list[NDArray[np.uint8]], times_s: NDArray[np.float64]
) -> None:
    for axes, picture, time_s in zip(part.subplots(1, PICTURES, squeeze=False)[0], pictures, times_s, strict=False):
        axes.imshow(picture)
        axes.set_title(f"{time_s:.1f} s", fontsize=7, pad=2)
    for axes in part.axes:
        axes.axis("off")
    part.axes[0].text(0.02, 0.96, track.camera, transform=part.axes[0].transAxes, fontsize=7, va="top", color="white")
