"""Damages a source, takes it in, and says what became of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from zlib import crc32

import numpy as np
import pyarrow.parquet as pq
from blake3 import blake3
from tests.data.damage.breaking import damage_one
from tests.data.damage.sources import REAL, SOURCES, Source

from mainspring.data.catalog.versions import episode_rows
from mainspring.data.episode import EpisodeRow, shown_at
from mainspring.data.intake.ingest import ingest
from mainspring.data.intake.judge import OUR_FAULT
from mainspring.data.loss import LOST
from mainspring.data.packs import read_piece
from mainspring.data.video.frames import frames_shown, plane_lines
from mainspring.data.video.packets import index_from_parquet
from mainspring.domain.errors import MainspringError
from mainspring.objects import ObjectStore, fetch_blob, open_store
from mainspring.testing.time_and_chance import FakeClock

TRIALS = 300


class Outcome(Enum):
    """What became of a damaged source; of several episodes, the worst."""

    HARMLESS = "harmless"  # Taken in, and every episode says the same.
    MARKED = "marked"  # Taken in, and what changed says that something is lost.
    REFUSED = "refused"
    UNDETECTED = "undetected"  # Taken in changed and unmarked, and nothing else objects either.
    SILENT = "silent"  # The same, but something that is not ours objects.
    FAULT = "fault"  # An error that is none of the project's own.


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One damage and what became of it."""

    number: int
    kind: str
    damage: str
    outcome: Outcome
    said: str

    def __str__(self) -> str:
        """Returns one line."""
        return f"{self.number} {self.outcome.value}: {self.kind}, {self.damage}: {self.said}"


def trials(first: int, count: int, *, every: Mapping[str, Source] = SOURCES) -> Iterator[Trial]:
    """Yields damages by their numbers, over the kinds in turn.

    Args:
        first: The first number.
        count: How many.
        every: The kinds.
    """
    names = sorted(every)
    for number in range(first, first + count):
        yield trial(number, names[number % len(names)])


def trial(number: int, name: str) -> Trial:
    """Returns one damage of one kind; the same numbers always do the same.

    Args:
        number: The damage's.
        name: The kind.
    """
    source = {**SOURCES, **REAL}[name]
    dice = np.random.default_rng([number, crc32(name.encode())])
    with TemporaryDirectory() as place:
        folder = Path(place)
        shutil.copytree(_sound_folder(name), folder / "raw")
        damage = damage_one(folder / "raw", dice)
        sound = _sound(name)
        try:
            found, refused = _taken_in(source, folder)
        except MainspringError as error:
            return Trial(number=number, kind=name, damage=damage, outcome=Outcome.REFUSED, said=str(error)[:200])
        except Exception as error:  # noqa: BLE001 - any other is what the trial looks for.
            said = f"{type(error).__name__}: {error}"
            return Trial(number=number, kind=name, damage=damage, outcome=Outcome.FAULT, said=said[:200])
        outcome, said = _judged(sound, found, refused)
        if outcome is Outcome.SILENT and not (objection := source.objection(folder / "raw")):
            outcome = Outcome.UNDETECTED
        elif outcome is Outcome.SILENT:
            said = f"{said}; {objection}"
        return Trial(number=number, kind=name, damage=damage, outcome=outcome, said=said[:300])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Episode:
    content: str
    lost: str


def _judged(sound: Mapping[str, _Episode], found: Mapping[str, _Episode], refused: str) -> tuple[Outcome, str]:
    if OUR_FAULT in refused:
        return Outcome.FAULT, refused
    contents = {each.content for each in sound.values()}
    changed = [name for name, each in found.items() if each.content not in contents and not each.lost]
    if changed:
        return Outcome.SILENT, f"{changed[0]} changed and is not marked"
    missing = sorted(sound.keys() - found.keys())
    if missing and not refused:
        return Outcome.SILENT, f"{missing[0]} is gone without a word"
    if missing:
        return Outcome.REFUSED, refused
    if marked := [each.lost for each in found.values() if each.lost]:
        return Outcome.MARKED, marked[0]
    return Outcome.HARMLESS, ""


def _taken_in(source: Source, folder: Path) -> tuple[dict[str, _Episode], str]:
    """Returns the episodes by their names, and why others were left out."""
    store = open_store("memory://")
    report = ingest(folder / "raw", store, "damaged", clock=FakeClock(), recipe=source.recipe, options=source.options)
    refused = "; ".join(left.reason for left in report.left_out)
    if report.version is None:
        return {}, refused or "no version"
    rows = episode_rows(store, report.version)
    return {
        row.source: _Episode(content=_content(store, row, folder / "cache"), lost=row.metadata.get(LOST, ""))
        for row in rows
    }, refused


def _content(store: ObjectStore, row: EpisodeRow, cache_dir: Path) -> str:
    """Returns the hash of what an episode says and shows."""
    facts = {key: value for key, value in row.metadata.items() if key != LOST}
    hasher = blake3(repr((row.task, row.robot, row.success, row.rate_hz, sorted(facts.items()))).encode())
    table = pq.read_table(BytesIO(read_piece(store, row.columns)))
    for name in sorted(table.column_names):
        if not name.startswith("camera:"):
            hasher.update(f"{name} {table[name].to_pylist()}".encode())
    for track in row.videos:
        index = index_from_parquet(read_piece(store, track.index))
        shown = shown_at(table, track.camera)
        try:
            for frame in frames_shown(fetch_blob(store, track.blob, cache_dir), index, shown):
                for plane in range(len(frame.planes)):
                    hasher.update(bytes(plane_lines(frame, plane)))
        except MainspringError as error:
            hasher.update(f"cannot be shown: {error}".encode())
    return hasher.hexdigest()


_KEPT = TemporaryDirectory(prefix="sound-")  # Of this process; gone with it.


@cache
def _sound_folder(name: str) -> Path:
    folder = Path(_KEPT.name, str(crc32(name.encode())))
    folder.mkdir()
    {**SOURCES, **REAL}[name].make(folder)
    return folder


@cache
def _sound(name: str) -> Mapping[str, _Episode]:
    """Returns the episodes of a kind's sound source; nothing may be wrong with it, in any reader's eyes."""
    source = {**SOURCES, **REAL}[name]
    with TemporaryDirectory() as place:
        folder = Path(place)
        shutil.copytree(_sound_folder(name), folder / "raw")
        found, refused = _taken_in(source, folder)
    assert found, (name, refused)
    assert not refused, (name, refused)
    assert not any(each.lost for each in found.values()), (name, found)
    assert not (said := source.objection(_sound_folder(name))), (name, said)
    return found
