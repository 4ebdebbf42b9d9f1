"""Takes a source of recordings in: judge each, keep the sound ones, report the rest, freeze a version.

Idempotent by content: the same bytes make the same blobs, episodes and version, however often they come.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path

from mainspring.data.catalog.versions import Version, extend, newest_version
from mainspring.data.episode import (
    NANOSECONDS,
    EpisodeRow,
    Features,
    RawFile,
    Recording,
    VideoTrack,
    columns_to_parquet,
    episode_id,
)
from mainspring.data.gates.doctor import problems
from mainspring.data.ingest.sources import recordings_in
from mainspring.data.pool import mapped
from mainspring.domain.errors import InvalidInput, NotFound, Unavailable
from mainspring.domain.ids import checked_name
from mainspring.objects import Blob, ObjectStore, blob_of, blob_of_file, put_blob, put_blob_file

PROCESSES_PAY_BYTES = 64 << 20  # Python parses about 20 MB/s; below three seconds of that, starting workers costs more.
THREADS_MIN = 8  # A remote store answers in tens of milliseconds, so several calls must be under way.
AHEAD = 2  # Recordings in hand for each worker: bounds memory, and hides one slow store behind the next recording.


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A recording that is not in the version, and why, for people."""

    source: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestProgress:
    """Where an ingest stands.

    Args:
        done: Recordings judged.
        total: Recordings found.
        source: The one judged last.
        reason: Why it is left out, "" when it is sound.
    """

    done: int
    total: int
    source: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestReport:
    """What came of an ingest.

    Args:
        dataset: The dataset.
        version: The version that holds every sound episode; None when there was none to hold.
        episodes: Sound episodes in the source.
        added: How many of them the dataset did not hold before.
        frames: Steps in the sound episodes.
        left_out: Every other recording, in source order.
    """

    dataset: str
    version: Version | None
    episodes: int
    added: int
    frames: int
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sound:
    """An episode judged sound, with what must be stored for it."""

    row: EpisodeRow
    features: Features
    columns: bytes
    files: tuple[tuple[Path, Blob], ...]


def ingest(
    source: Path,
    store: ObjectStore,
    dataset: str,
    *,
    progress: Callable[[IngestProgress], None] | None = None,
) -> IngestReport:
    """Adds a source's sound recordings to a dataset.

    Large sources that Python must parse are read by worker processes; a program that calls this must then be
    importable, with its own start under `if __name__ == "__main__"`.

    Args:
        source: A folder of MCAP files, one MCAP file, or a LeRobot dataset's folder.
        store: Where bytes, episodes and catalog go.
        dataset: Name of the dataset, which begins to exist with its first version.
        progress: Called in the caller's thread after each recording.

    Raises:
        NotFound: There is nothing at `source`.
        InvalidInput: It holds no recordings of a kind that is read, or the dataset's name cannot be a name.
        DamagedData: What describes the whole dataset does not hold together.
        StorageFull: The store is full. What was stored stays, and is used by the next try.
    """
    checked_name(dataset, "dataset")
    recordings = recordings_in(source)
    judged: list[_Sound | LeftOut] = []
    threads = max(THREADS_MIN, _cores())
    with ExitStack() as stack:
        workers = _workers(recordings, stack)
        pool = stack.enter_context(ThreadPoolExecutor(threads, thread_name_prefix="ingest"))
        results = stack.enter_context(
            closing(mapped(pool, lambda item: _take(item, store, workers), recordings, ahead=AHEAD * threads))
        )
        for recording, result in zip(recordings, results, strict=True):
            judged.append(result)
            if progress:
                reason = result.reason if isinstance(result, LeftOut) else ""
                progress(IngestProgress(done=len(judged), total=len(recordings), source=recording.name, reason=reason))
    return _reported(store, dataset, judged)


def _workers(recordings: tuple[Recording, ...], stack: ExitStack) -> Executor | None:
    if sum(recording.parse_bytes for recording in recordings) < PROCESSES_PAY_BYTES:
        return None
    return stack.enter_context(ProcessPoolExecutor(_cores(), mp_context=get_context("spawn")))


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _take(recording: Recording, store: ObjectStore, workers: Executor | None) -> _Sound | LeftOut:
    """Judges one recording, in a worker process when there are any, and stores what a sound one needs."""
    try:
        result = workers.submit(_judged, recording).result() if workers else _judged(recording)
    except BrokenExecutor as error:
        raise Unavailable("ingest", on=recording.name, got="a worker process died, perhaps for lack of memory") from (
            error
        )
    if isinstance(result, _Sound):
        put_blob(store, result.columns)
        for path, blob in result.files:
            put_blob_file(store, path, blob)
        result = replace(result, columns=b"", files=())  # Stored; what is kept of 100,000 episodes must be small.
    return result


def _judged(recording: Recording) -> _Sound | LeftOut:
    try:
        episode = recording.read()
        if reasons := problems(episode):
            return LeftOut(source=recording.name, reason="; ".join(reasons))
        files = {file.path: _named(file.path) for file in episode.files}
    except (InvalidInput, NotFound) as error:
        return LeftOut(source=recording.name, reason=str(error))
    videos = tuple(
        VideoTrack(camera=video.camera, blob=files[video.path], first_frame=video.first_frame)
        for video in episode.videos
    )
    columns = columns_to_parquet(episode)
    row = EpisodeRow(
        id=episode_id(episode, videos),
        source=recording.name,
        task=episode.task,
        robot=episode.robot,
        success=episode.success,
        rate_hz=episode.rate_hz,
        frames=len(episode.time_ns),
        seconds=float(episode.time_ns[-1] - episode.time_ns[0]) / NANOSECONDS,
        columns=blob_of(columns),
        videos=videos,
        raw=tuple(RawFile(name=file.name, blob=files[file.path]) for file in episode.files),
    )
    return _Sound(row=row, features=episode.features, columns=columns, files=tuple(files.items()))


def _named(path: Path) -> Blob:
    """Returns a file's content name; many episodes may share a file, which is then hashed once."""
    status = path.stat()
    return _hashed(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=4_096)
def _hashed(path: Path, size_bytes: int, mtime_ns: int) -> Blob:
    return blob_of_file(path)


def _reported(store: ObjectStore, dataset: str, judged: list[_Sound | LeftOut]) -> IngestReport:
    """Freezes the sound episodes that share the dataset's features, or the most common ones of a new dataset."""
    newest = newest_version(store, dataset)
    sound = [result for result in judged if isinstance(result, _Sound)]
    common = Counter(result.features for result in sound).most_common(1)
    features = newest.features if newest else common[0][0] if common else None
    kept = {result.row.id: result.row for result in reversed(sound) if result.features == features}
    left_out = [
        result
        if isinstance(result, LeftOut)
        else LeftOut(source=result.row.source, reason=f"it has {result.features}; the dataset has {features}")
        for result in judged
        if isinstance(result, LeftOut) or result.features != features
    ]
    version = extend(store, dataset, tuple(kept.values()), features) if kept and features else newest
    return IngestReport(
        dataset=dataset,
        version=version,
        episodes=len(kept),
        added=(version.episodes - (newest.episodes if newest else 0)) if version else 0,
        frames=sum(row.frames for row in kept.values()),
        left_out=tuple(left_out),
    )
