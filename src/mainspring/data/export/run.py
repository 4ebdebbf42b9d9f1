"""Writes an export job after job, each file whole or not there: the same command does the rest after a kill."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from blake3 import blake3

from mainspring.data.export.survey import EpisodeSeen, ExportSurvey
from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import Conflict, InvalidMessage, NotFound
from mainspring.objects import ObjectStore, reported

MARKER = "mainspring-export.json"  # Says what a destination holds, and whether all of it is there.
EXPORT_JOURNAL = "mainspring-export"  # A folder of the destination, gone when the export is finished.
_MEANING = 1  # Raised when the same export writes other files.
_LETTERS = 32
_FETCHED_BYTES_MAX = 1 << 30  # Videos kept on this machine between jobs: sources of many episodes are fetched once.


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a job works with.

    Args:
        store: Where the version lies.
        fetched: Local folder for what is fetched.
        folder: An empty local folder for the files the job makes.
        known: What jobs keep for those after them, by name: it was read, and would be read again.
    """

    store: ObjectStore
    fetched: Path
    folder: Path
    known: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeFile:
    """A file made: where it goes below the destination, and where it lies now."""

    key: str
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """What a job made.

    Args:
        files: The files.
        facts: What the last job must know of it; plain values.
        copied: Frames whose packets were copied.
        again: Frames that were encoded again.
    """

    files: tuple[MadeFile, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    copied: int = 0
    again: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Some files of an export, made at once.

    Args:
        name: Unique among the export's jobs.
        make: Makes them.
    """

    name: str
    make: Callable[[Work], JobResult]


class ExportFormat(Protocol):
    """Writes a survey's episodes; a value that nothing changes."""

    @property
    def lost(self) -> tuple[str, ...]:
        """Returns what it cannot hold of them, in words."""

    @property
    def jobs(self) -> Sequence[Job]:
        """Returns what makes the files of episodes; the same for the same survey."""

    def finish(self, facts: Mapping[str, Mapping[str, Any]], work: Work) -> JobResult:
        """Makes the files about the whole.

        Args:
            facts: By the name of a job, what it said.
            work: See `Work`.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file that is at its destination."""

    key: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDone:
    """A job whose files are all at their destination; `facts` is JSON."""

    name: str
    files: tuple[StoredFile, ...]
    facts: str
    copied: int
    again: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """What an export wrote.

    Args:
        version: The version.
        format: In which format.
        id: Hash of what goes out and how.
        episodes: How many.
        frames: Steps in all of them.
        files: How many files.
        size_bytes: In all of them.
        copied: Pictures whose packets were copied.
        again: Pictures that were encoded again.
        lost: What the format does not hold.
        finished: Whether all of it is there.
    """

    version: str
    format: str
    id: str
    episodes: int
    frames: int
    files: int = 0
    size_bytes: int = 0
    copied: int = 0
    again: int = 0
    lost: tuple[str, ...] = ()
    finished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportProgress:
    """How far an export is: jobs done, of all; files and bytes written, those of earlier tries included."""

    done: int
    total: int
    files: int
    size_bytes: int


def run_export(
    store: ObjectStore,
    survey: ExportSurvey,
    name: str,
    format: ExportFormat,
    dest: ObjectStore,
    *,
    scratch: Path,
    progress: Callable[[ExportProgress], None] | None = None,
) -> ExportReport:
    """Writes a survey's episodes to a destination. May be repeated: what is there is not made again.

    Args:
        store: Where the episodes lie.
        survey: What goes out.
        name: The format's name.
        format: What writes it.
        dest: Where to; empty, or holding the same export, begun before.
        scratch: Local folder for files on their way.
        progress: Called after each job.

    Raises:
        Conflict: The destination holds something else.
        DamagedData: What is stored is not what it should be.
        StorageFull: There is no room.
    """
    begun = ExportReport(
        version=survey.version,
        format=name,
        id=blake3(f"{_MEANING} {name} {survey.id}".encode()).hexdigest()[:_LETTERS],
        episodes=len(survey.episodes),
        frames=survey.frames,
        lost=format.lost,
    )
    held = _held(dest, begun)
    if held.finished and _is_there(dest, held):
        return held
    with reported("export a version", str(scratch)):
        scratch.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=scratch, prefix="export-") as local:
            work = Work(store=store, fetched=Path(local, "fetched"), folder=Path(local, "made"))
            done = _all_made(dest, format, work, progress)
    report = ExportReport(
        version=begun.version,
        format=name,
        id=begun.id,
        episodes=begun.episodes,
        frames=begun.frames,
        files=sum(len(entry.files) for entry in done),
        size_bytes=sum(file.size_bytes for entry in done for file in entry.files),
        copied=sum(entry.copied for entry in done),
        again=sum(entry.again for entry in done),
        lost=begun.lost,
        finished=True,
    )
    dest.put(MARKER, encode(report))
    _forget(dest)
    if progress:
        progress(ExportProgress(done=len(done), total=len(done), files=report.files, size_bytes=report.size_bytes))
    return report


def _all_made(
    dest: ObjectStore, format: ExportFormat, work: Work, progress: Callable[[ExportProgress], None] | None
) -> list[JobDone]:
    """Does what is not done yet, the files about the whole last."""
    done: list[JobDone] = []
    jobs, earlier = format.jobs, _journal(dest)
    files = size_bytes = 0
    for job in jobs:
        done.append(earlier.get(job.name) or _made(dest, job, work))
        _trim(work.fetched)
        files += len(done[-1].files)
        size_bytes += sum(file.size_bytes for file in done[-1].files)
        if progress:
            progress(ExportProgress(done=len(done), total=len(jobs) + 1, files=files, size_bytes=size_bytes))
    facts = {entry.name: json.loads(entry.facts) for entry in done}
    return [*done, _made(dest, Job(name="whole", make=lambda work: format.finish(facts, work)), work, journal=False)]


def _held(dest: ObjectStore, begun: ExportReport) -> ExportReport:
    """Returns what a destination holds of an export; begins it where there is nothing."""
    try:
        held = decode(ExportReport, dest.get(MARKER))
    except NotFound:
        if there := dest.list(""):
            raise Conflict(
                "export a version",
                on=begun.version,
                got=f"{len(there)} files, such as {there[0].key}"[:300],
                wanted="an empty destination",
                next_step="name another",
            ) from None
        dest.put_if_absent(MARKER, encode(begun))
        held = decode(ExportReport, dest.get(MARKER))
    except InvalidMessage as error:
        raise Conflict("export a version", on=MARKER, got=str(error)[:200], wanted="an empty destination") from error
    if held.id != begun.id:
        raise Conflict(
            "export a version",
            on=begun.version,
            got=f"a destination with another export: {held.version} as {held.format}, {held.episodes} episodes",
            wanted="an empty destination, or the same export begun before",
            next_step="name another",
        )
    return held


def _is_there(dest: ObjectStore, held: ExportReport) -> bool:
    """Returns whether a finished export still has all its files; what others put beside them counts for nothing."""
    _forget(dest)
    sizes = [entry.size_bytes for entry in dest.list("") if entry.key != MARKER]
    return len(sizes) >= held.files and sum(sizes) >= held.size_bytes


def _forget(dest: ObjectStore) -> None:
    for kept in dest.list(EXPORT_JOURNAL):
        dest.delete(kept.key)


def _journal(dest: ObjectStore) -> dict[str, JobDone]:
    """Returns the jobs that were done before, by name; one whose files are not there is not done."""
    entries = dest.list(EXPORT_JOURNAL)
    if not entries:
        return {}
    sizes = {entry.key: entry.size_bytes for entry in dest.list("")}
    found: dict[str, JobDone] = {}
    for entry in entries:
        try:
            done = decode(JobDone, dest.get(entry.key))
        except (InvalidMessage, NotFound):
            continue
        if all(sizes.get(file.key) == file.size_bytes for file in done.files):
            found[done.name] = done
    return found


def _made(dest: ObjectStore, job: Job, work: Work, *, journal: bool = True) -> JobDone:
    work.folder.mkdir()
    try:
        result = job.make(work)
        files = []
        for file in result.files:
            dest.put_file(file.key, file.path)
            files.append(StoredFile(key=file.key, size_bytes=file.path.stat().st_size))
    finally:
        shutil.rmtree(work.folder, ignore_errors=True)
    done = JobDone(
        name=job.name, files=tuple(files), facts=json.dumps(result.facts), copied=result.copied, again=result.again
    )
    if journal:
        dest.put(f"{EXPORT_JOURNAL}/{blake3(job.name.encode()).hexdigest()[:_LETTERS]}.json", encode(done))
    return done


def _trim(fetched: Path) -> None:
    """Lets go of what was fetched when it is too much: a local copy is no more than that."""
    if not fetched.is_dir():
        return
    files = [(path.stat().st_mtime, path.stat().st_size, path) for path in fetched.iterdir()]
    held = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if held <= _FETCHED_BYTES_MAX:
            break
        path.unlink(missing_ok=True)
        held -= size


def episode_job(prefix: str, episode: EpisodeSeen, make: Callable[[EpisodeSeen, Work], JobResult]) -> Job:
    """Returns the job of one episode.

    Args:
        prefix: Of its name.
        episode: The episode.
        make: Makes its files.
    """
    return Job(name=f"{prefix} {episode.number}", make=lambda work: make(episode, work))
