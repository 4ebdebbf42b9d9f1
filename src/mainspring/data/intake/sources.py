"""Finds what a source holds: logs, and datasets of episodes, at any depth and mixed as they come."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mainspring.data.episode import Recording, SourceFile, Unreadable
from mainspring.data.intake.logs.clip import ClipRecording
from mainspring.data.intake.logs.recipe import MappingRecipe, Recipe
from mainspring.data.intake.staging.archive import archive_suffix
from mainspring.data.intake.staging.port import LOCAL, Staging
from mainspring.data.intake.units import EpisodeUnit, LogUnit, Unit, size_of
from mainspring.data.intake.unknown import folder_reason, is_pointer, named, reason_of
from mainspring.data.options import DEFAULT, IngestOptions
from mainspring.data.readers.episodes.hdf5 import HDF5_SUFFIXES, hdf5_recordings
from mainspring.data.readers.episodes.lerobot import LeRobotRecording, is_lerobot_set, lerobot_recordings
from mainspring.data.readers.episodes.mcap_episode import McapRecording
from mainspring.data.readers.episodes.rlds import RldsRecording, is_rlds, rlds_recordings
from mainspring.data.readers.episodes.table.episode import TableRecording, table_recordings
from mainspring.data.readers.episodes.table.recipe import TableRecipe
from mainspring.data.readers.episodes.zarr import ZarrRecording, is_zarr, zarr_recordings
from mainspring.data.readers.log import log_suffix
from mainspring.data.readers.split import split_files
from mainspring.domain.errors import InvalidInput, MainspringError, NotFound

UNITS_MAX = 10_000_000
DEPTH_MAX = 64
NATIVE = "native"  # What stands for a recipe where the files say themselves what their episodes are.
_READ = "LeRobot v2 or v3 datasets, HDF5, Zarr, RLDS, tables, MCAP, ROS 1 and ROS 2 bags, ULog"
_BAG = "metadata.yaml"
_BAG_WORDS = (
    b"rosbag2",
    b"bagfile_information",
    b"storage_identifier",
    b"relative_file_paths",
    b"serialization_format",
)
_LINK = "a link that leads out of the source: name the folder it leads to as a source of its own"


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What a source holds, before anything is read.

    Args:
        units: How many.
        size_bytes: Bytes in their files.
        parse_bytes: Bytes that must be parsed in Python.
    """

    units: int
    size_bytes: int
    parse_bytes: int


def survey_of(source: Path, recipe: Recipe | None, options: IngestOptions = DEFAULT) -> Survey:
    """Returns what a source holds.

    Args:
        source: A file or folder.
        recipe: How its logs are read.
        options: What is said of it.

    Raises:
        NotFound: Nothing is there.
        InvalidInput: Nothing there is a recording of a known kind, or there are too many.
        DamagedData: The description of a LeRobot dataset does not hold together.
    """
    if not source.exists():
        raise NotFound("read a source", on=str(source), got="nothing there", wanted=_READ)
    units = size_bytes = parse_bytes = 0
    for unit in units_in(source, recipe, options):
        units += 1
        parse_bytes += unit.parse_bytes
        size_bytes += sum(size_of(file.path) for file in unit.files)
        if units > UNITS_MAX:
            raise InvalidInput("read a source", on=str(source), got=f"over {UNITS_MAX} recordings", wanted="fewer")
    if not units:
        what = named(source)
        raise InvalidInput("read a source", on=str(source), got=what.got, wanted=_READ, next_step=what.next_step)
    return Survey(units=units, size_bytes=size_bytes, parse_bytes=parse_bytes)


def survey_of_units(units: Sequence[Unit]) -> Survey:
    """Returns how much there is in units that are at hand.

    Args:
        units: Each.
    """
    sizes = [size_of(file.path) for unit in units for file in unit.files]
    return Survey(units=len(units), size_bytes=sum(sizes), parse_bytes=sum(unit.parse_bytes for unit in units))


def units_in(
    source: Path, recipe: Recipe | None, options: IngestOptions = DEFAULT, staging: Staging = LOCAL
) -> Iterator[Unit]:
    """Yields what a source holds, in name order within each folder, unread.

    Args:
        source: A file, or a folder: a LeRobot dataset, a ROS 2 bag, or any tree of these and of files.
        recipe: How logs are read; without one, only the files of our own recorder are.
        options: What is said of the source.
        staging: Has what must be looked into, of a source that lies elsewhere.

    Raises:
        DamagedData: The source is a LeRobot dataset whose description does not hold together.
        InvalidInput: The same, of a format that is not read.
    """
    if isinstance(recipe, TableRecipe):
        for recording in table_recordings(source, recipe, options):
            yield EpisodeUnit(
                name=recording.name,
                recording=recording,
                files=recording.files if isinstance(recording, TableRecording) else (),
            )
        return
    how = _How(root=source, recipe=recipe, options=options, staging=staging)
    if source.is_file():
        yield from _units_at(source, source.name, how)
    elif is_lerobot_set(source):
        yield from _lerobot(source, "", how)
    elif is_bag(source):
        yield from _bag_units(source, source.name, how)
    elif is_zarr(source):
        yield from _zarr_units(source, source.name, how)
    elif is_rlds(source):
        yield from _rlds_units(source, "", how)
    else:
        yield from _below(source, "", how, DEPTH_MAX)


def is_bag(folder: Path) -> bool:
    """Returns whether a folder is a ROS 2 bag.

    Args:
        folder: The folder.
    """
    try:
        with open(folder / _BAG, "rb") as file:
            start = file.read(4_096)
    except OSError:
        return bool(split_files(folder))
    return any(word in start for word in _BAG_WORDS)  # Of a damaged one some are left, or there is nothing to read.


@dataclass(frozen=True, slots=True, kw_only=True)
class _How:
    """What a walk carries: the source it began at, and how it is read."""

    root: Path
    recipe: MappingRecipe | None
    options: IngestOptions
    staging: Staging


def _below(folder: Path, prefix: str, how: _How, depth: int) -> Iterator[Unit]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        yield _unreadable(prefix.rstrip("/") or folder.name, "a folder that cannot be listed")
        return
    for entry in entries:
        name, path = prefix + _printable(entry.name), Path(entry.path)
        if entry.name.startswith("."):
            continue
        read = bool(log_suffix(path)) or path.suffix.lower() in HDF5_SUFFIXES
        if entry.is_symlink() and (path.is_dir() or read) and _leaves(path, how.root):
            yield _unreadable(name, _LINK)
        elif not entry.is_dir(follow_symlinks=False):
            if path.is_file():  # A link that leads to itself is none; `entry` would raise.
                yield from _units_at(path, name, how)
        elif is_lerobot_set(path):
            try:
                yield from _lerobot(path, f"{name}/", how)
            except MainspringError as error:
                yield _unreadable(name, str(error))
        elif is_bag(path):
            yield from _bag_units(path, name, how)
        elif is_zarr(path):
            yield from _zarr_units(path, name, how)
        elif is_rlds(path):
            yield from _rlds_units(path, f"{name}/", how)
        elif reason := folder_reason(path):
            yield _unreadable(name, reason)
        elif depth:
            yield from _below(path, f"{name}/", how, depth - 1)
        else:
            yield _unreadable(name, f"a folder {DEPTH_MAX} deep")


def _units_at(path: Path, name: str, how: _How) -> Iterator[Unit]:
    suffix = path.suffix.lower()  # Cameras' cards and Windows write capitals.
    if is_pointer(path):
        yield _unreadable(name, reason_of(path))
    elif suffix in HDF5_SUFFIXES:
        with how.staging.held((path,)):  # Its episodes are known only from its content.
            recordings = hdf5_recordings(path, name, how.options)
        yield from _file_units(recordings, path, name)
    elif suffix == ".zip" and is_zarr(path):
        with how.staging.held((path,)):
            zarr_units = tuple(_zarr_units(path, name, how))
        yield from zarr_units
    elif archive_suffix(path.name):
        yield _unreadable(name, f"an archive: name it as a source of its own, ms data ingest {path}")
    elif log_suffix(path):
        files = (SourceFile(name=name, path=path),)
        parse_bytes = size_of(path)
        if how.recipe:
            yield LogUnit(
                name=name, path=path, files=files, recipe=how.recipe, parse_bytes=parse_bytes, options=how.options
            )
        elif suffix == ".mcap":
            yield EpisodeUnit(
                name=name,
                recording=ClipRecording(McapRecording(name=name, path=path, parse_bytes=parse_bytes)),
                files=files,
                movable=path,
            )
        else:
            yield _unmapped(name)
    elif reason := reason_of(path):
        yield _unreadable(name, reason)


def _leaves(path: Path, root: Path) -> bool:
    """Returns whether a link leads out of a source: whoever sends recordings must not have other files read."""
    try:
        return not path.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError):
        return False  # It leads to itself, and so nowhere.


def _bag_units(folder: Path, name: str, how: _How) -> Iterator[Unit]:
    if how.recipe is None:
        yield _unmapped(name)
        return
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    if any(path.is_symlink() and _leaves(path, how.root) for path in paths):
        yield _unreadable(name, _LINK)
        return
    files = tuple(SourceFile(name=f"{name}/{_printable(path.name)}", path=path) for path in paths)
    yield LogUnit(
        name=name,
        path=folder,
        files=files,
        recipe=how.recipe,
        parse_bytes=sum(map(size_of, paths)),
        options=how.options,
    )


def _lerobot(root: Path, prefix: str, how: _How) -> Iterator[Unit]:
    for recording in lerobot_recordings(root, how.options):
        names: list[str] = []
        if isinstance(recording, LeRobotRecording):
            names = [*recording.paths]
        yield EpisodeUnit(
            name=prefix + recording.name,
            recording=recording,
            files=tuple(SourceFile(name=name, path=root / name) for name in names),
        )


def _file_units(recordings: tuple[Recording, ...], path: Path, name: str) -> Iterator[Unit]:
    """Yields the episodes of one file."""
    files = (SourceFile(name=name, path=path),)
    movable = path if len(recordings) == 1 else None
    for recording in recordings:
        yield EpisodeUnit(name=recording.name, recording=recording, files=files, movable=movable)


def _zarr_units(path: Path, name: str, how: _How) -> Iterator[Unit]:
    for recording in zarr_recordings(path, name, how.options):
        files = recording.files if isinstance(recording, ZarrRecording) else ()
        if any(file.path.is_symlink() and _leaves(file.path, how.root) for file in files):
            yield _unreadable(recording.name, _LINK)
            continue
        yield EpisodeUnit(
            name=recording.name,
            recording=recording,
            files=files,
            movable=path if isinstance(recording, ZarrRecording) and recording.number is None else None,
        )


def _rlds_units(folder: Path, prefix: str, how: _How) -> Iterator[Unit]:
    for recording in rlds_recordings(folder, prefix, how.options, how.staging.held):
        files = recording.files if isinstance(recording, RldsRecording) else ()
        if any(file.path.is_symlink() and _leaves(file.path, how.root) for file in files):
            yield _unreadable(recording.name, _LINK)
        else:
            yield EpisodeUnit(name=recording.name, recording=recording, files=files)


def _unmapped(name: str) -> Unit:
    return _unreadable(name, "a log of topics: a recipe must say what they mean, and `ms data inspect` proposes one")


def _unreadable(name: str, reason: str) -> Unit:
    return EpisodeUnit(name=name, recording=Unreadable(name=name, reason=reason), files=())


def _printable(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "replace")
