"""Takes a source of recordings in: judge each, keep the sound ones, report the rest, freeze a version.

Idempotent by content: the same bytes make the same blobs, episodes and version, however often they come. What is judged
is stored and journaled in batches, so that an ingest that was killed goes on where it was; only at the end, when
everything is there, episodes become a version.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mainspring.data.catalog.fragments import FRAGMENT_ROWS_MAX
from mainspring.data.catalog.log import Origin, Version, VersionCandidate, newest_version
from mainspring.data.catalog.versions import episode_table, prepare
from mainspring.data.catalog.versions import publish as publish_plainly
from mainspring.data.features import Features
from mainspring.data.intake.batch import Batch
from mainspring.data.intake.interventions import label_interventions
from mainspring.data.intake.journal import Journal, Keys, hash_of, keys_from
from mainspring.data.intake.judge import UnitVerdict, content_of, judged
from mainspring.data.intake.logs.recipe import Recipe
from mainspring.data.intake.report import NAMED_MAX, IngestProgress, IngestReport, LeftOut, Noted
from mainspring.data.intake.sources import NATIVE, Survey, survey_of, units_in
from mainspring.data.intake.staging.port import LOCAL, Staging
from mainspring.data.intake.units import Unit, key_of, mark_of
from mainspring.data.intake.workers import (
    PROCESSES_PAY_BYTES,
    PROCESSES_PAY_UNIT_BYTES,
    Workers,
    cores,
    scratch_folder,
)
from mainspring.data.options import DEFAULT, IngestOptions
from mainspring.data.pool import mapped
from mainspring.domain.errors import Conflict, InvalidInput, NotFound
from mainspring.domain.ids import checked_name
from mainspring.domain.ports import Clock
from mainspring.objects import Blob, ObjectStore, blob_of_file, put_blob_file

THREADS_MIN = 8  # A remote store answers in tens of milliseconds, so several calls must be under way.
AHEAD = 2  # Units in hand for each thread: bounds memory, and hides one slow store behind the next unit.
BATCH_LINES_MAX = 4_096  # Of the journal: about 4 MB, written at once.
BATCH_BYTES_MAX = 64 << 20  # One pack.
BATCH_SECONDS_MAX = 30.0  # What a kill loses at most, besides the unit under way.
_NANOSECONDS = 1_000_000_000

Publish: TypeAlias = Callable[[ObjectStore, VersionCandidate], Version]
Progress: TypeAlias = Callable[[IngestProgress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """A unit in hand.

    Args:
        unit: The unit.
        size_bytes: Of its files.
        mark: How they look.
        key: What decides its episodes; "" when that is not known, so that it must be read again next time.
        verdicts: What was found in it; none when that is known from before.
    """

    unit: Unit
    size_bytes: int
    mark: int
    key: str
    verdicts: tuple[UnitVerdict, ...]


def ingest(
    source: Path,
    store: ObjectStore,
    dataset: str,
    *,
    clock: Clock,
    recipe: Recipe | None = None,
    options: IngestOptions = DEFAULT,
    progress: Progress | None = None,
    publish: Publish = publish_plainly,
) -> IngestReport:
    """Adds a source's sound recordings to a dataset.

    May be killed at any point and run again: it then does only the rest. Large sources that Python must parse are read
    by worker processes; a program that calls this must then be importable, with its own start under
    `if __name__ == "__main__"`.

    Args:
        source: A file, or a folder of any depth with LeRobot datasets, MCAP files, ROS bags and ULog files.
        store: Where bytes, episodes and catalog go.
        dataset: Name of the dataset, which begins to exist with its first version.
        clock: Says when episodes arrived, and how long it takes.
        recipe: How the topics of logs become episodes; not needed for LeRobot datasets and files of our own recorder.
        options: What is said of the source.
        progress: Called in the caller's thread after each recording.
        publish: Turns a candidate into a version, or raises: the place for gates.

    Raises:
        NotFound: There is nothing at `source`.
        InvalidInput: It holds no recordings of a kind that is read, or the dataset's name cannot be a name.
        DamagedData: What describes the whole of a LeRobot dataset does not hold together.
        StorageFull: There is no room. What was stored stays, and is used by the next try; nothing was published.
    """
    checked_name(dataset, "dataset")
    survey = survey_of(source, recipe, options)
    return ingest_units(
        units_in(source, recipe, options),
        survey,
        store,
        dataset,
        clock=clock,
        recipe=recipe,
        options=options,
        progress=progress,
        publish=publish,
    )


def ingest_units(
    units: Iterable[Unit],
    survey: Survey,
    store: ObjectStore,
    dataset: str,
    *,
    clock: Clock,
    recipe: Recipe | None,
    options: IngestOptions = DEFAULT,
    progress: Progress | None = None,
    publish: Publish = publish_plainly,
    arrived_ns: Callable[[Unit], int] | None = None,
    staging: Staging = LOCAL,
) -> IngestReport:
    """Adds units to a dataset; see `ingest`.

    Args:
        units: What is read.
        survey: How much that is.
        store: Where to.
        dataset: The dataset.
        clock: See `ingest`.
        recipe: What the units' logs are read by.
        options: What the units were found by.
        progress: See `ingest`.
        publish: See `ingest`.
        arrived_ns: When each unit's last byte had arrived; by default, when it is taken in hand.
        staging: Has the files of units that lie elsewhere.
    """
    started_s = clock.monotonic_s()
    newest = newest_version(store, dataset)
    journal = Journal(
        store,
        dataset,
        f"{recipe.id if recipe else NATIVE}-{options.id}",
        held=_held(store, newest),
        features=newest.features if newest else None,
    )
    intake = _Intake(store, journal, clock, arrived_ns, options, staging)
    with ExitStack() as stack:
        intake.run(units, survey, progress, stack)
    keys = keys_from(intake.keys)
    lines = journal.lines(keys)
    version = _published(
        store,
        dataset,
        journal,
        keys,
        lines,
        lambda ready: publish(store, ready),
        Origin(kind="ingest", detail=f"recipe {recipe.id}" if recipe else NATIVE),
    )
    journal.fold(_held(store, version), version.features if version else None)
    return _reported(dataset, version, journal, lines, intake, newest, seconds=clock.monotonic_s() - started_s)


class _Intake:
    """One pass over units: reads, judges, stores, journals."""

    def __init__(
        self,
        store: ObjectStore,
        journal: Journal,
        clock: Clock,
        arrived_ns: Callable[[Unit], int] | None,
        options: IngestOptions,
        staging: Staging,
    ) -> None:
        self._staging = staging
        self.keys = bytearray()  # 32 letters each: of a million units, 32 MB.
        self.unstable: list[LeftOut] = []  # The first of those that are in no line of the journal.
        self.unstable_count = 0
        self.units = self.known = self.read_bytes = 0
        self._done_bytes = 0
        self._store, self._journal, self._clock, self._options = store, journal, clock, options
        self._arrived_ns = arrived_ns or (lambda _: int(clock.now_s() * _NANOSECONDS))
        self._folders = itertools.count()

    def run(self, units: Iterable[Unit], survey: Survey, progress: Progress | None, stack: ExitStack) -> None:
        """Takes every unit in hand; when this returns all are in the journal."""
        scratch = stack.enter_context(scratch_folder())
        pays = survey.parse_bytes >= max(PROCESSES_PAY_BYTES, PROCESSES_PAY_UNIT_BYTES * survey.units)
        workers = stack.enter_context(Workers(cores())) if pays else None
        threads = max(THREADS_MIN, cores())
        pool = stack.enter_context(ThreadPoolExecutor(threads, thread_name_prefix="ingest"))
        results: Iterator[_Taken] = stack.enter_context(
            closing(mapped(pool, lambda unit: self._take(unit, scratch, workers), units, ahead=AHEAD * threads))
        )
        batch, since_s = Batch(self._store), self._clock.monotonic_s()
        for taken in results:
            self._count(taken)
            if taken.key:
                batch.add(taken.key, taken.mark, taken.verdicts)
            if progress:
                progress(self._standing(taken, survey))
            late = self._clock.monotonic_s() - since_s >= BATCH_SECONDS_MAX
            if late or batch.line_count >= BATCH_LINES_MAX or batch.size_bytes >= BATCH_BYTES_MAX:
                self._write(batch)
                batch, since_s = Batch(self._store), self._clock.monotonic_s()
        self._write(batch)

    def _write(self, batch: Batch) -> None:
        if batch.line_count:
            self._journal.add(batch.stored())

    def _standing(self, taken: _Taken, survey: Survey) -> IngestProgress:
        return IngestProgress(
            done=self.units,
            total=max(survey.units, self.units),  # Files may have come since the survey.
            source=taken.unit.name,
            reason=next((verdict.reason for verdict in taken.verdicts if verdict.reason), ""),
            done_bytes=self._done_bytes,
            total_bytes=max(survey.size_bytes, self._done_bytes),
        )

    def _count(self, taken: _Taken) -> None:
        self.units += 1
        self._done_bytes += taken.size_bytes
        self.keys += taken.key.encode()
        if not taken.verdicts:
            self.known += 1
            return
        self.read_bytes += taken.size_bytes
        if not taken.key:
            self.unstable_count += len(taken.verdicts)
            if len(self.unstable) < NAMED_MAX:
                self.unstable += [LeftOut(source=verdict.name, reason=verdict.reason) for verdict in taken.verdicts]

    def _take(self, unit: Unit, scratch: Path, workers: Workers | None) -> _Taken:
        """Judges one unit unless it is known, and stores the files of what is sound in it."""
        mark = mark_of(unit, self._staging)
        there = [file.path for file in unit.files if file.path.is_file()]
        folder = scratch / f"{next(self._folders):08d}"
        verdicts: tuple[UnitVerdict, ...] = ()
        size_bytes = 0
        try:
            size_bytes = sum(path.stat().st_size for path in there)
            key = self._journal.key_of(mark)
            if key is None or not self._journal.done(key):
                with self._staging.held(there):
                    blobs = {path: content_of(path) for path in there}
                    key = key_of(unit, blobs)
                    if not self._journal.done(key):
                        verdicts = self._judged(unit, blobs, folder, workers)
                        self._store_files(unit, mark, verdicts, folder)
        except (InvalidInput, NotFound, Conflict) as error:  # What is wrong with its content, a verdict says.
            key, verdicts = "", (UnitVerdict(name=unit.name, reason=f"{error}; it is read again next time"),)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return _Taken(unit=unit, size_bytes=size_bytes, mark=mark, key=key, verdicts=verdicts)

    def _judged(
        self, unit: Unit, blobs: Mapping[Path, Blob], folder: Path, workers: Workers | None
    ) -> tuple[UnitVerdict, ...]:
        arrived_ns = self._arrived_ns(unit)
        if workers is None:
            return judged(unit, blobs, folder, arrived_ns, self._options)
        return workers.run(unit.name, judged, unit, blobs, folder, arrived_ns, self._options)

    def _store_files(self, unit: Unit, mark: int, verdicts: tuple[UnitVerdict, ...], folder: Path) -> None:
        """Stores the files of sound episodes; nothing may stay under a name of other bytes when one has changed."""
        files = {path: blob for verdict in verdicts if verdict.draft for path, blob in verdict.draft.files}
        changed = mark_of(unit, self._staging) != mark
        for path, blob in files.items():
            if not changed:
                put_blob_file(self._store, path, blob)
        if not changed and mark_of(unit, self._staging) != mark:
            changed = True
            for blob in files.values():
                self._store.fetch_file(blob.key, folder / "stored")
                if blob_of_file(folder / "stored") != blob:
                    self._store.delete(blob.key)
        if changed:
            raise Conflict("read a recording", on=unit.name, got="a file that changed while it was read")


def _held(store: ObjectStore, version: Version | None) -> pa.Array:
    """Returns the ids a version holds."""
    empty = pa.array([], pa.string())
    return pa.concat_arrays([empty, *episode_table(store, version, ["id"])["id"].chunks]) if version else empty


def _published(
    store: ObjectStore,
    dataset: str,
    journal: Journal,
    keys: Keys,
    lines: pa.Table,
    publish: Callable[[VersionCandidate], Version],
    origin: Origin,
) -> Version | None:
    """Freezes the sound episodes that share the dataset's features, or the most common ones of a new dataset."""
    newest = newest_version(store, dataset)
    said = hash_of(newest.features) if newest else _most_common(lines)
    if not said:
        return None
    pending: list[pa.Table] = []
    for table in journal.rows(keys, said, held=_held(store, newest)):
        pending.append(table)
        if sum(part.num_rows for part in pending) >= FRAGMENT_ROWS_MAX:  # A million rows at once would be a GiB.
            newest = _frozen(store, dataset, pending, journal.features(said), publish, origin)
            pending = []
    return _frozen(store, dataset, pending, journal.features(said), publish, origin) if pending else newest


def _frozen(
    store: ObjectStore,
    dataset: str,
    tables: list[pa.Table],
    features: Features,
    publish: Callable[[VersionCandidate], Version],
    origin: Origin,
) -> Version:
    episodes = pa.concat_tables(tables)
    label_interventions(store, episodes)  # Before anybody can ask for them.
    return publish(prepare(store, dataset, episodes, features, origin))


def _most_common(lines: pa.Table) -> str:
    """Returns the features that most sound episodes have, "" when none is sound; whichever order they come in."""
    said = pc.value_counts(lines["features"].filter(pc.equal(lines["reason"], ""))).to_pylist()
    return max(((entry["counts"], entry["values"]) for entry in said), default=(0, ""))[1]


def _reported(
    dataset: str,
    version: Version | None,
    journal: Journal,
    lines: pa.Table,
    intake: _Intake,
    before: Version | None,
    *,
    seconds: float,
) -> IngestReport:
    said = hash_of(version.features) if version else ""
    fits = pc.and_(pc.equal(lines["reason"], ""), pc.equal(lines["features"], said))
    kept = lines.filter(fits).group_by("episode").aggregate([("frames", "min")])
    others = lines.filter(pc.invert(fits)).sort_by("name")
    left_out = [
        LeftOut(source=line["name"], reason=line["reason"] or _unfit(journal, line["features"], version))
        for line in others.slice(0, NAMED_MAX).to_pylist()
    ]
    noted = lines.filter(pc.and_(fits, pc.not_equal(lines["note"], ""))).sort_by("name")
    return IngestReport(
        dataset=dataset,
        version=version,
        episodes=kept.num_rows,
        added=(version.episodes if version else 0) - (before.episodes if before else 0),
        frames=pc.sum(kept["frames_min"]).as_py() or 0,
        refused=_times(others, keys_from(intake.keys)) + intake.unstable_count,
        left_out=tuple(sorted([*left_out, *intake.unstable], key=lambda entry: entry.source)),
        noted=tuple(Noted(source=line["name"], note=line["note"]) for line in noted.slice(0, NAMED_MAX).to_pylist()),
        recordings=intake.units,
        known=intake.known,
        read_bytes=intake.read_bytes,
        seconds=seconds,
    )


def _times(lines: pa.Table, keys: Keys) -> int:
    """Returns how many lines there would be if equal units were not journaled as one."""
    units, times = np.unique(keys, return_counts=True)
    found = lines.group_by("key").aggregate([("mark", "count"), ("mark", "count_distinct")])
    each = found["mark_count"].to_numpy() // found["mark_count_distinct"].to_numpy()
    at = np.searchsorted(units, np.array(found["key"].to_pylist(), units.dtype))
    return int((times[at] * each).sum())


def _unfit(journal: Journal, said: str, version: Version | None) -> str:
    return f"it has {journal.features(said)}; the dataset has {version.features if version else 'none'}"
