"""Watches a folder and takes in what arrives there, round by round, for as long as it is let."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mainspring.data.catalog.versions import publish as publish_plainly
from mainspring.data.intake.ingest import Progress, Publish, ingest_units
from mainspring.data.intake.logs.recipe import Recipe
from mainspring.data.intake.report import IngestReport
from mainspring.data.intake.sources import survey_of_units, units_in
from mainspring.data.intake.units import Unit, mark_of
from mainspring.data.options import DEFAULT, IngestOptions
from mainspring.domain.errors import InvalidInput, NotFound
from mainspring.domain.ids import checked_name
from mainspring.domain.ports import Clock
from mainspring.objects import ObjectStore, reported

ROUND_UNITS_MAX = 4_096  # As a batch of the journal.
SETTLE_S = 10.0  # Twice what rsync and cameras' cards pause in the middle of a file.
POLL_S = 2.0
_NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settling:
    """A unit that may still be growing."""

    mark: int
    since_s: float
    arrived_ns: int


def watch(
    folder: Path,
    store: ObjectStore,
    dataset: str,
    *,
    clock: Clock,
    wait: Callable[[float], bool],
    recipe: Recipe | None = None,
    options: IngestOptions = DEFAULT,
    moved: Path | None = None,
    settle_s: float = SETTLE_S,
    poll_s: float = POLL_S,
    round_units_max: int = ROUND_UNITS_MAX,
    progress: Progress | None = None,
    publish: Publish = publish_plainly,
) -> Iterator[IngestReport]:
    """Yields a report for each round in which something was read.

    A recording is read once its files have not changed for `settle_s`; files whose names begin with a dot are passed
    over, so who renames a finished file into place need not fear. What was read is remembered by how its files look:
    after a restart nothing is read twice, whether or not it was published, but what was refused is tried once more.

    Args:
        folder: What is watched, at any depth; see `ingest`.
        store: See `ingest`.
        dataset: See `ingest`.
        clock: Says when things changed.
        wait: Waits for so many seconds, and returns whether to go on.
        recipe: See `ingest`.
        options: See `ingest`.
        moved: Where recordings go once they are read, inside the same file system; they stay where they are without it,
            which costs a look at each of them in every round. Parts of a LeRobot dataset always stay.
        settle_s: See above.
        poll_s: Between two looks.
        round_units_max: Recordings that are published at once; more come in the next round, without waiting.
        progress: See `ingest`.
        publish: See `ingest`; what it raises ends the watch.

    Raises:
        NotFound: There is no such folder.
        InvalidInput: The dataset's name cannot be a name, or recordings would be moved inside the folder.
        StorageFull: There is no room; to be started again when there is.
    """
    checked_name(dataset, "dataset")
    _check(folder, moved)
    how: dict[str, Any] = {"recipe": recipe, "options": options, "progress": progress, "publish": publish}
    taken = partial(ingest_units, store=store, dataset=dataset, clock=clock, **how)
    settling: dict[str, _Settling] = {}
    read: set[int] = set()
    while True:
        ready, settling, seen = _looked(folder, recipe, options, settling, read, clock, settle_s)
        ready = ready[:round_units_max]
        read &= seen  # What is gone need not be remembered.
        if ready:
            arrived = {unit.name: settling.pop(unit.name).arrived_ns for unit in ready}
            marks = {mark_of(unit) for unit in ready}
            report = taken(ready, survey_of_units(ready), arrived_ns=lambda unit, arrived=arrived: arrived[unit.name])  # type: ignore[misc]
            read |= marks
            if moved is not None:
                _move(ready, marks, moved)
            if report.known < report.recordings:
                yield report
        if not wait(0.0 if len(ready) == round_units_max else poll_s):
            return


def _check(folder: Path, moved: Path | None) -> None:
    if not folder.is_dir():
        raise NotFound("watch a folder", on=str(folder), got="no folder")
    if moved is not None and moved.resolve().is_relative_to(folder.resolve()):
        raise InvalidInput("watch a folder", on=str(folder), got=f"recordings moved to {moved}", wanted="another place")


def _looked(
    folder: Path,
    recipe: Recipe | None,
    options: IngestOptions,
    before: dict[str, _Settling],
    read: set[int],
    clock: Clock,
    settle_s: float,
) -> tuple[list[Unit], dict[str, _Settling], set[int]]:
    """Returns what has settled, everything that was seen and not read, and the marks of everything that was seen."""
    now_s, now_ns = clock.monotonic_s(), int(clock.now_s() * _NANOSECONDS)
    ready: list[Unit] = []
    settling: dict[str, _Settling] = {}
    seen: set[int] = set()
    try:
        for unit in units_in(folder, recipe, options):
            mark = mark_of(unit)
            seen.add(mark)
            if mark in read:
                continue
            known = before.get(unit.name)
            if known is None or known.mark != mark:
                known = _Settling(mark=mark, since_s=now_s, arrived_ns=now_ns)
            settling[unit.name] = known
            if now_s - known.since_s >= settle_s:
                ready.append(unit)
    except InvalidInput:  # A dataset that is the folder itself, whose description has not wholly arrived.
        return [], before, read
    return ready, settling, seen


def _move(units: list[Unit], marks: set[int], moved: Path) -> None:
    """Moves what was read away, unless it has changed since."""
    for unit in units:
        if unit.movable is None or mark_of(unit) not in marks:
            continue
        target = moved / unit.name
        with reported("move a recording", f"{unit.movable} to {target}"):
            number = 0
            while target.exists():  # The same name came before, with other content or with the same.
                number += 1
                target = moved / f"{unit.name}.{number}"
            target.parent.mkdir(parents=True, exist_ok=True)
            unit.movable.rename(target)
