"""Episodes without recordings behind them: rows whose blobs are a few bytes each."""

from __future__ import annotations

import time
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from blake3 import blake3

from mainspring.data.catalog.fragments import table_of
from mainspring.data.catalog.versions import Version, extend
from mainspring.data.episode import EpisodeRow, RawFile, VideoTrack
from mainspring.data.features import Column, Features
from mainspring.data.packs import Pack, PackPiece, piece_of
from mainspring.domain.ids import EpisodeId
from mainspring.objects import Blob, ObjectStore, put_blob
from mainspring.testing.time_and_chance import FakeClock

FEATURES = Features(columns=(Column(name="action", names=("grip",)), Column(name="state", names=("x", "y"))))
GRACE_S = 86_400.0


def clock_of_now() -> FakeClock:
    """Returns a clock near the one by which stores tell ages."""
    return FakeClock(time.time() + 2)


def episode(store: ObjectStore, seed: int, *, session: str = "") -> EpisodeRow:
    """Stores an episode's blobs and returns its row; everything follows from the seed."""
    video = put_blob(store, b"video of %d" % seed)
    return EpisodeRow(
        id=EpisodeId(blake3(b"%d" % seed).hexdigest()[:32]),
        source=f"{seed:06d}.mcap",
        task=("pick", "place", "pour")[seed % 3],
        robot="arm",
        success=(True, False, None)[seed // 3 % 3],
        rate_hz=20.0,
        frames=20 + seed % 50,
        seconds=1.0 + seed % 50 / 20,
        started_ns=seed * 10**9,
        arrived_ns=seed * 10**9 + 5,
        metadata={"session": session or f"session-{seed // 4}", "operator": f"op {seed % 5}"},
        columns=_piece(store, b"columns of %d" % seed),
        videos=(VideoTrack(camera="front", blob=video, index=_piece(store, b"index of %d" % seed)),),
        raw=(RawFile(name=f"{seed:06d}.mcap", blob=put_blob(store, b"raw %d" % seed)),),
    )


def _piece(store: ObjectStore, data: bytes) -> PackPiece:
    put_blob(store, data)
    return piece_of(data)


def episodes(store: ObjectStore, seeds: Iterable[int]) -> tuple[EpisodeRow, ...]:
    """Stores several episodes' blobs."""
    return tuple(episode(store, seed) for seed in seeds)


def packed(store: ObjectStore, seeds: Iterable[int]) -> tuple[EpisodeRow, ...]:
    """Returns rows whose columns lie in one pack, and that have nothing else: quick to make."""
    pack, seeds = Pack(), list(seeds)
    parts = [pack.add(b"columns of %d" % seed) for seed in seeds]
    place = pack.store(store)
    return tuple(
        EpisodeRow(
            id=EpisodeId(blake3(b"%d" % seed).hexdigest()[:32]),
            source=f"{seed:06d}.mcap",
            task="pick",
            robot="arm",
            success=seed % 2 == 0,
            rate_hz=20.0,
            frames=20,
            seconds=1.0,
            started_ns=0,
            arrived_ns=0,
            metadata={},
            columns=place(part),
            videos=(),
        )
        for seed, part in zip(seeds, parts, strict=True)
    )


def version_of(store: ObjectStore, seeds: Iterable[int], dataset: str = "pick") -> Version:
    """Stores episodes and returns the version that has them too."""
    return extend(store, dataset, episodes(store, seeds), FEATURES)


def blobs_of(rows: Iterable[EpisodeRow]) -> set[Blob]:
    """Returns every blob that rows name."""
    found: set[Blob] = set()
    for row in rows:
        found |= {row.columns.blob, *(file.blob for file in row.raw)}
        found |= {blob for track in row.videos for blob in (track.blob, track.index.blob)}
    return found


def wide_table(store: ObjectStore, count: int, *, letters: int = 150) -> pa.Table:
    """Returns many rows, all like one but for their ids and sources, which nothing compresses."""
    draws = np.random.default_rng(1)
    row = table_of([episode(store, 0)])
    table = row.take(pa.array(np.zeros(count, np.int64)))
    ids = draws.bytes(16 * count).hex()
    sources = draws.bytes(letters * count).hex()
    for name, text in (("id", ids), ("source", sources)):
        width = len(text) // count
        values = pa.array([text[start : start + width] for start in range(0, len(text), width)])
        table = table.set_column(table.column_names.index(name), name, values)
    return table
