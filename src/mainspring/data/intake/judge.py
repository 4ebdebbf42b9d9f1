"""Reads and judges one unit of a source, in a worker process when that pays; stores nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from mainspring.data.episode import (
    NANOSECONDS,
    Episode,
    EpisodeRow,
    RawFile,
    VideoTrack,
    columns_to_parquet,
    episode_id,
)
from mainspring.data.features import Features
from mainspring.data.gates.doctor import examined
from mainspring.data.intake.logs.mapping import Mapped
from mainspring.data.intake.units import Unit
from mainspring.data.loss import LOST, Loss, losses_text
from mainspring.data.options import IngestOptions
from mainspring.data.packs import PackPiece, piece_of
from mainspring.data.video.packets import index_of_video
from mainspring.domain.errors import InvalidInput, MainspringError, NotFound
from mainspring.objects import Blob, blob_of_file, reported

OUR_FAULT = "a fault of ours that it laid bare"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """An episode judged sound, with the bytes that are not stored yet.

    Args:
        row: Its row; the pieces in it are of blobs that are not made.
        features: What its steps hold.
        columns: Its columns.
        indexes: Of its videos, in order.
        files: Local files to store, by content.
    """

    row: EpisodeRow
    features: Features
    columns: bytes
    indexes: tuple[bytes, ...]
    files: tuple[tuple[Path, Blob], ...]

    def placed(self, columns: PackPiece, indexes: tuple[PackPiece, ...]) -> EpisodeRow:
        """Returns its row, with pieces that are stored.

        Args:
            columns: Of the columns.
            indexes: Of the indexes.
        """
        return replace(
            self.row,
            columns=columns,
            videos=tuple(replace(video, index=index) for video, index in zip(self.row.videos, indexes, strict=True)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitVerdict:
    """What was found of one episode, or of what should have been some.

    Args:
        name: Where it was found.
        reason: Why it is left out; "" when it is sound.
        note: What was passed over.
        draft: The episode, when it is sound.
    """

    name: str
    reason: str = ""
    note: str = ""
    draft: Draft | None = None


def judged(
    unit: Unit, blobs: Mapping[Path, Blob], folder: Path, arrived_ns: int, options: IngestOptions
) -> tuple[UnitVerdict, ...]:
    """Returns a unit's episodes, each judged; at least one verdict.

    Args:
        unit: The unit.
        blobs: Content of its files, as far as they are known.
        folder: Holds the packets of its cameras when this returns; made by this call.
        arrived_ns: When its last byte had arrived here.
        options: What is said of the source.

    Raises:
        StorageFull: There is no room for the packets.
    """
    folder.mkdir()
    found: list[UnitVerdict] = []
    named = dict(blobs)
    try:
        for mapped in unit.read(folder):
            found.append(_verdict(mapped, named, arrived_ns, options))
    except (InvalidInput, NotFound) as error:
        found.append(UnitVerdict(name=unit.name, reason=str(error)))
    except MainspringError:
        raise  # No room, no answer: that is about this place, not about the recording.
    except Exception as error:  # noqa: BLE001 - one recording must not keep a fleet's others out.
        found.append(UnitVerdict(name=unit.name, reason=f"{OUR_FAULT}: {type(error).__name__}: {str(error)[:200]}"))
    return tuple(found) or (UnitVerdict(name=unit.name, reason="no episode in it"),)


def content_of(path: Path) -> Blob:
    """Returns a file's content name; many episodes may share a file, which is then hashed once.

    Args:
        path: The file.

    Raises:
        NotFound: It is not there.
    """
    with reported("read a file", str(path)):
        status = path.stat()
    return _hashed(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=4_096)
def _hashed(path: Path, size_bytes: int, mtime_ns: int) -> Blob:
    return blob_of_file(path)


def _verdict(mapped: Mapped, blobs: dict[Path, Blob], arrived_ns: int, options: IngestOptions) -> UnitVerdict:
    if mapped.episode is None:
        return UnitVerdict(name=mapped.name, reason=mapped.reason, note=mapped.note)
    try:
        found = examined(mapped.episode, options.allow)
        beyond = [loss for loss in found.losses if loss.share > options.lost_max]
        if found.reasons or beyond:
            reasons = [*found.reasons, *([_too_much(beyond, options.lost_max)] if beyond else ())]
            return UnitVerdict(name=mapped.name, reason="; ".join(reasons), note=mapped.note)
        episode = replace(mapped.episode, videos=found.videos)
        note = "; ".join(filter(None, (mapped.note, *found.allowed)))
        if found.losses:
            gone = losses_text(found.losses)
            episode = replace(episode, metadata={**episode.metadata, LOST: gone})
            note = "; ".join(filter(None, (note, gone)))
        return UnitVerdict(name=mapped.name, note=note, draft=_drafted(mapped.name, episode, blobs, arrived_ns))
    except (InvalidInput, NotFound) as error:
        return UnitVerdict(name=mapped.name, reason=str(error), note=mapped.note)


def _too_much(losses: list[Loss], lost_max: float) -> str:
    percent = math.ceil(max(loss.share for loss in losses) * 100)
    return f"{losses_text(losses)}; at most {100 * lost_max:g} % may be gone, unless --lost-max {percent}% lets it in"


def _drafted(name: str, episode: Episode, blobs: dict[Path, Blob], arrived_ns: int) -> Draft:
    paths = dict.fromkeys([*(file.path for file in episode.files), *(video.path for video in episode.videos)])
    for path in paths:
        if path not in blobs:
            blobs[path] = content_of(path)
    steps = len(episode.time_ns)
    indexes = tuple(index_of_video(video, steps) for video in episode.videos)
    tables = tuple(index.to_parquet() for index in indexes)
    videos = tuple(
        VideoTrack(camera=video.camera, blob=blobs[video.path], index=piece_of(table))
        for video, table in zip(episode.videos, tables, strict=True)
    )
    columns = columns_to_parquet(episode)
    row = EpisodeRow(
        id=episode_id(episode, tuple(blobs[video.path] for video in episode.videos), indexes),
        source=name,
        task=episode.task,
        robot=episode.robot,
        success=episode.success,
        rate_hz=episode.rate_hz,
        frames=steps,
        seconds=float(episode.time_ns[-1] - episode.time_ns[0]) / NANOSECONDS,
        started_ns=int(episode.time_ns[0]),
        arrived_ns=arrived_ns,
        metadata=episode.metadata,
        columns=piece_of(columns),
        videos=videos,
        raw=tuple(RawFile(name=file.name, blob=blobs[file.path]) for file in episode.files),
    )
    return Draft(
        row=row,
        features=episode.features,
        columns=columns,
        indexes=tables,
        files=tuple((path, blobs[path]) for path in paths),
    )
