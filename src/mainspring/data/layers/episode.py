"""An episode as a producer sees it: its columns at hand, its pictures decoded as they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from mainspring.data.episode import SHOWN, EpisodeRow, Floats, Integers, column_from_table, shown_at
from mainspring.data.packs import PackPiece, read_piece
from mainspring.data.video.frames import frames_shown
from mainspring.data.video.packets import index_from_parquet
from mainspring.domain.errors import InvalidInput
from mainspring.objects import ObjectStore, fetch_blob

_BESIDE = ("time_ns", "frame")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recorded:
    """One episode of T steps.

    Args:
        row: What the catalog knows of it.
        time_ns: [T].
        columns: [T, D] of the episode and of the layers that were asked for.
        table: All its columns as they are stored.
        store: Where its videos lie.
        folder: Local folder for them.
    """

    row: EpisodeRow
    time_ns: Integers
    columns: Mapping[str, Floats]
    table: pa.Table
    store: ObjectStore
    folder: Path

    def frames(self, camera: str) -> Iterator[NDArray[np.uint8]]:
        """Yields a camera's picture at each step, [H, W, 3] RGB.

        Args:
            camera: Its name.

        Raises:
            InvalidInput: The episode has no such camera.
            DamagedData: Its packets are not what they should be.
        """
        for track in self.row.videos:
            if track.camera == camera:
                break
        else:
            raise InvalidInput(
                "look at a camera",
                on=self.row.id,
                got=repr(camera[:80]),
                wanted=(", ".join(track.camera for track in self.row.videos) or "none")[:300],
            )
        index = index_from_parquet(read_piece(self.store, track.index))
        for frame in frames_shown(fetch_blob(self.store, track.blob, self.folder), index, shown_at(self.table, camera)):
            yield frame.to_ndarray(format="rgb24")


def read_recorded(store: ObjectStore, row: EpisodeRow, layers: tuple[PackPiece, ...], folder: Path) -> Recorded:
    """Returns an episode as a producer sees it.

    Args:
        store: Where it lies.
        row: The episode.
        layers: Pieces of the layers it is to see, of this episode.
        folder: Local folder for its videos.

    Raises:
        NotFound: Bytes of it are missing.
        DamagedData: They are not what they should be.
    """
    table = pq.read_table(pa.BufferReader(read_piece(store, row.columns)))
    names = [name for name in table.column_names if name not in _BESIDE and not name.startswith(SHOWN)]
    columns = {name: column_from_table(table, name) for name in names}
    for piece in layers:
        more = pq.read_table(pa.BufferReader(read_piece(store, piece)))
        columns |= {name: column_from_table(more, name) for name in more.column_names}
    return Recorded(
        row=row, time_ns=table["time_ns"].to_numpy(), columns=columns, table=table, store=store, folder=folder
    )
