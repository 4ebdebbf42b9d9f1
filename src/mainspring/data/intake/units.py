"""Units of ingest, read at once: a log, or an episode of a dataset; what decides it, and how its files look."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from blake3 import blake3

from mainspring.data.episode import Recording, SourceFile, Unreadable
from mainspring.data.intake.logs.mapping import Mapped, mapped_episodes
from mainspring.data.intake.logs.recipe import MappingRecipe
from mainspring.data.intake.logs.said import said_by
from mainspring.data.intake.staging.port import LOCAL, Staging
from mainspring.data.options import DEFAULT, IngestOptions
from mainspring.data.readers.log import open_log
from mainspring.objects import Blob

_KEY_LETTERS = 32


class Unit(Protocol):
    """What is read at once: a log, or an episode of a dataset. Values: they travel to worker processes."""

    @property
    def name(self) -> str:
        """Returns its name inside the source."""

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """Returns the files that decide what its episodes are."""

    @property
    def parse_bytes(self) -> int:
        """Returns how many bytes must be parsed in Python, which one process does one at a time."""

    @property
    def movable(self) -> Path | None:
        """Returns the file or folder that is all of it, and may be moved; None when others share its files."""

    @property
    def part(self) -> str:
        """Returns what else decides it: which part of the files it is, and what is said of it elsewhere."""

    def read(self, folder: Path) -> Iterator[Mapped]:
        """Yields its episodes.

        Args:
            folder: Where it may put files of packets, which are the caller's to remove.

        Raises:
            DamagedData: Its bytes do not hold together.
            InvalidInput: It is of a kind that is not read.
            StorageFull: There is no room in the folder.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeUnit:
    """A recording that is an episode.

    Args:
        name: See `Unit`.
        recording: The recording.
        files: See `Unit`.
        movable: See `Unit`.
    """

    name: str
    recording: Recording
    files: tuple[SourceFile, ...]
    movable: Path | None = None

    @property
    def parse_bytes(self) -> int:
        """See `Unit.parse_bytes`."""
        return self.recording.parse_bytes

    @property
    def part(self) -> str:
        """See `Unit.part`."""
        return self.recording.part

    def read(self, folder: Path) -> Iterator[Mapped]:
        """See `Unit.read`."""
        if isinstance(self.recording, Unreadable):  # Its reason is a sentence already.
            yield Mapped(name=self.name, reason=self.recording.reason)
            return
        episode = self.recording.read(folder)
        yield Mapped(name=self.name, episode=episode, note=episode.note)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogUnit:
    """A log whose topics a recipe makes episodes of.

    Args:
        name: See `Unit`.
        path: The file or folder.
        files: See `Unit`.
        recipe: The recipe.
        parse_bytes: See `Unit`.
        options: What is said of the source.
    """

    name: str
    path: Path
    files: tuple[SourceFile, ...]
    recipe: MappingRecipe
    parse_bytes: int
    options: IngestOptions = DEFAULT

    @property
    def movable(self) -> Path | None:
        """See `Unit.movable`."""
        return self.path

    @property
    def part(self) -> str:
        """See `Unit.part`."""
        return ""

    def read(self, folder: Path) -> Iterator[Mapped]:
        """See `Unit.read`."""
        log = open_log(self.path, self.options.definitions, folder / "unpacked")
        said = said_by(self.path)
        yield from mapped_episodes(log, self.recipe, name=self.name, files=self.files, said=said, folder=folder)


def key_of(unit: Unit, blobs: Mapping[Path, Blob]) -> str:
    """Returns the hash of everything that decides what a unit's episodes are, but for the recipe.

    Args:
        unit: The unit.
        blobs: Content of its files; those that are missing are not in it.
    """
    hasher = blake3(unit.part.encode("utf-8", "replace"))
    for file in unit.files:
        hasher.update(f"\0{blobs[file.path].id if file.path in blobs else 'missing'}".encode())
    return hasher.hexdigest()[:_KEY_LETTERS]


def mark_of(unit: Unit, staging: Staging = LOCAL) -> int:
    """Returns a number for how a unit's files look: another one as soon as somebody writes to one of them.

    Args:
        unit: The unit.
        staging: Says how those look that lie elsewhere; the others are looked at on disk.
    """
    hasher = blake3(unit.part.encode("utf-8", "replace"))
    for file in unit.files:
        elsewhere = staging.look(file.path)
        try:
            seen = file.path.stat()
            look: tuple[object, ...] = (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)
        except OSError:
            look = ("missing",)
        if elsewhere is not None:
            look = (elsewhere,)
        hasher.update(os.fsencode(file.path.absolute()) + repr(look).encode())
    return int.from_bytes(hasher.digest(8), "big")


def size_of(path: Path) -> int:
    """Returns a file's length; 0 when it has vanished since it was listed.

    Args:
        path: The file.
    """
    try:
        return path.stat().st_size
    except OSError:
        return 0
