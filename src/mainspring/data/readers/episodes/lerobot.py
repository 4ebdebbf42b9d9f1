"""Reads LeRobot datasets on disk: formats v2.0 and v2.1 (a file an episode), and v3 (many episodes a file).

Source: github.com/huggingface/lerobot, as written by its versions 0.1 to 0.6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mainspring.data.episode import FRAMES_MAX, Recording, Unreadable
from mainspring.data.options import DEFAULT, IngestOptions
from mainspring.data.readers.episodes.lerobot_columns import ColumnPlan, Kept, checked, planned
from mainspring.data.readers.episodes.lerobot_episode import LeRobotRecording
from mainspring.data.readers.episodes.lerobot_info import (
    EPISODES_MAX,
    READ_VERSIONS,
    Info,
    LeRobotPaths,
    fields_of,
    filled,
    info_of,
    is_lerobot_set,
    tasks_of,
)
from mainspring.data.readers.episodes.lerobot_listing import (
    Clip,
    Listed,
    data_paths,
    listed_episodes,
    statistics_of_set,
)
from mainspring.data.readers.episodes.lerobot_parquet import EPISODE, rows_in, rows_of, schema_of
from mainspring.data.readers.episodes.lerobot_pictures import first_picture
from mainspring.data.readers.episodes.lerobot_stats import Packed
from mainspring.domain.errors import DamagedData

__all__ = ["EPISODES_MAX", "READ_VERSIONS", "LeRobotRecording", "is_lerobot_set", "lerobot_plan", "lerobot_recordings"]

_SCHEMAS_MAX = 3  # Files whose columns are looked at: the first, the last, one between.
_UNTOLD_MAX = 1_000  # Episodes that are counted but not described, each told by itself.


def lerobot_recordings(root: Path, options: IngestOptions = DEFAULT) -> tuple[Recording, ...]:
    """Returns every episode a LeRobot dataset says it has, in number order, then what lies in it beside them.

    The columns of an episode are its state, its action, and every other feature that is numbers at each step. What is
    described or counted but damaged, and data that belongs to no episode, is there as `Unreadable`. A camera of which
    no episode has a file is left out when others have; of a camera that some episodes lack, those are refused.

    Args:
        root: The folder that holds `meta/info.json`.
        options: What is said of it.

    Raises:
        DamagedData: The description is missing parts or is not what it should be.
        InvalidInput: The dataset is of a format that is not read, has no state or action that is known, or a path in it
            leaves the folder. All that is wrong with the whole of it is told at once.
    """
    info = info_of(root, options)
    plan = checked(lerobot_plan(root, info, options), str(root / "meta" / "info.json"))
    found: dict[int, Listed | Unreadable] = {}
    beside: list[Recording] = []
    for entry in listed_episodes(root, info, plan, stale=options.stale_statistics):
        if isinstance(entry, Unreadable):
            beside.append(entry)
        elif not 0 <= entry.index < EPISODES_MAX:
            beside.append(Unreadable(name=_name(entry.index), reason=f"a number beyond {EPISODES_MAX}"))
        elif entry.index in found:
            if found[entry.index] != entry:
                found[entry.index] = Unreadable(name=_name(entry.index), reason="described twice, and differently")
        else:
            found[entry.index] = entry
    placed = _placed(root, plan, {index: entry for index, entry in found.items() if isinstance(entry, Listed)})
    recordings: dict[int, Recording] = {i: entry for i, entry in found.items() if isinstance(entry, Unreadable)}
    whole = _Whole(root, info, placed.plan, options)
    for index, entry in placed.listed.items():
        recordings[index] = whole.recording(entry)
    rows_needed: dict[str, dict[int, int]] = {}
    for entry in placed.listed.values():
        rows_needed.setdefault(entry.data_path, {})[entry.index] = entry.length or 0
    untold = [index for index in range(min(info.total_episodes, EPISODES_MAX)) if index not in recordings]
    for index in untold[:_UNTOLD_MAX]:
        reason = "counted by meta/info.json, not described under meta/episodes"
        recordings[index] = Unreadable(name=_name(index), reason=reason)
        if not info.shared:
            rows_needed.setdefault(filled(info.data_path, fields_of(index, info)), {})
    if len(untold) > _UNTOLD_MAX:
        reason = f"{len(untold)} episodes are counted, and not described under meta/episodes"
        beside.append(Unreadable(name="meta/info.json", reason=reason))
    beside += _orphans(root, rows_needed, info)
    return (*(recordings[index] for index in sorted(recordings)), *beside)


def lerobot_plan(root: Path, info: Info, options: IngestOptions) -> ColumnPlan:
    """Returns what the episodes of a dataset have, with what speaks against reading them.

    Args:
        root: The dataset's folder.
        info: What is said of it.
        options: What is said of it by whoever takes it in.

    Raises:
        InvalidInput: A path leaves the folder, or cannot be made.
    """
    places = LeRobotPaths(root)
    paths = [path for path in data_paths(root, info) if places.has(path)]
    if not paths:
        paths = [path.relative_to(root).as_posix() for path in sorted((root / "data").rglob("*.parquet"))]
        paths = [path for path in paths[:_SCHEMAS_MAX] if places.has(path)]
    return planned(info, {part.name: part.type for path in paths for part in schema_of(root / path) or ()}, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """Episodes with the files that their cameras have, and the plan without cameras that none has."""

    plan: ColumnPlan
    listed: Mapping[int, Listed]


def _placed(root: Path, plan: ColumnPlan, listed: Mapping[int, Listed]) -> _Placed:
    places = LeRobotPaths(root)
    there = dict.fromkeys((part.key for part in plan.cameras), 0)
    found: dict[int, Listed] = {}
    for index, entry in listed.items():
        places.has(entry.data_path)
        clips = tuple(_found_clip(places, clip) for clip in entry.clips)
        for clip in clips:
            there[clip.key] += bool(clip.paths and places.has(clip.paths[0]))
        for part in plan.cameras:
            if part.kept is Kept.FILES:
                there[part.key] += places.first(first_picture(root, part.key, index)) is not None
            elif part.kept is Kept.PARQUET:
                there[part.key] += 1
        moved = tuple(
            f"{clip.key}: its video lies under {clip.paths[0].partition('/')[0]}, where nobody says so"
            for clip, said in zip(clips, entry.clips, strict=True)
            if clip.paths and clip.paths[0].partition("/")[0] not in {path.partition("/")[0] for path in said.paths}
        )
        found[index] = replace(entry, clips=clips, notes=(*entry.notes, *moved))
    lacking = [key for key, count in there.items() if not count]
    if not lacking or len(lacking) == len(there):  # Without any picture, somebody forgot to fetch them.
        return _Placed(plan=plan, listed={index: _told(plan, entry) for index, entry in found.items()})
    plan = plan.without(lacking, f"left out, as there is no file of them: camera {', '.join(lacking)}")
    return _Placed(
        plan=plan,
        listed={
            index: _told(plan, replace(entry, clips=tuple(clip for clip in entry.clips if clip.key not in lacking)))
            for index, entry in found.items()
        },
    )


def _found_clip(places: LeRobotPaths, clip: Clip) -> Clip:
    """Returns a clip with the one path it is at, or with the one it should be at."""
    path = places.first(clip.paths) or (clip.paths[0] if clip.paths else None)
    return replace(clip, paths=(path,) if path else ())


def _told(plan: ColumnPlan, entry: Listed) -> Listed:
    """Returns an episode with a problem where nothing says which file a camera's frames are in."""
    lacking = [clip.key for clip in entry.clips if not clip.paths]
    if not lacking:
        return entry
    names = [part.name for part in plan.cameras if part.key in lacking]
    said = f"no file is named for {', '.join(lacking)} ({' '.join(f'--without-camera {name}' for name in names)} "
    return replace(entry, problem="; ".join(filter(None, (entry.problem, f"{said}lets it in)"))))


class _Whole:
    """What the recordings of a dataset share."""

    def __init__(self, root: Path, info: Info, plan: ColumnPlan, options: IngestOptions) -> None:
        self._root, self._info, self._plan, self._options = root, info, plan, options
        self._tasks = tasks_of(root)
        self._bounds: Packed = statistics_of_set(root, plan.keys)
        self._meta_paths = tuple(
            sorted(path.relative_to(root).as_posix() for path in (root / "meta").rglob("*") if path.is_file())
        )

    def recording(self, entry: Listed) -> Recording:
        """Returns an episode, not yet read, or why it cannot be."""
        if entry.length is not None and not 0 < entry.length <= FRAMES_MAX:
            return Unreadable(name=_name(entry.index), reason=f"an episode of {entry.length} frames")
        if entry.problem:
            return Unreadable(name=_name(entry.index), reason=entry.problem)
        said = set(entry.tasks)
        tasks = {number: task for number, task in self._tasks.items() if not said or task in said}
        return LeRobotRecording(
            name=_name(entry.index),
            root=self._root,
            plan=self._plan,
            listed=entry,
            rate=self._info.rate,
            robot=self._info.robot,
            shared=self._info.shared,
            task_names=tuple(sorted(tasks.items())),
            bounds=() if entry.statistics else self._bounds,
            meta_paths=self._meta_paths,
            resample_hz=self._options.resample_hz,
            stale_statistics=self._options.stale_statistics,
        )


def _orphans(root: Path, rows_needed: Mapping[str, Mapping[int, int]], info: Info) -> Iterator[Unreadable]:
    """Yields the files, and the rows of shared files, that belong to no episode."""
    for path in sorted((root / "data").rglob("*.parquet")):
        name = path.relative_to(root).as_posix()
        if name not in rows_needed:
            yield Unreadable(name=name, reason="rows of no episode: nothing under meta describes this file")
        elif info.shared and path.is_file() and path.stat().st_size:
            try:
                rows = rows_in(path)
                needed = rows_needed[name]
                extra = rows - sum(needed.values())
                if extra > 0:
                    extra = _beside(path, needed, rows)
            except DamagedData:
                continue  # Each episode in it says so when it is read.
            if extra > 0:
                yield Unreadable(name=name, reason=f"{extra} of its {rows} rows belong to no episode")


def _beside(path: Path, needed: Mapping[int, int], rows: int) -> int:
    """Returns how many rows are of no episode, or more of one than the one by which its length may be off."""
    table = rows_of(path, [EPISODE], rows_max=min(rows, FRAMES_MAX)).table
    if EPISODE not in table.column_names:
        return rows
    numbers, counts = np.unique(table[EPISODE].to_numpy(zero_copy_only=False), return_counts=True)
    extra = 0
    for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
        length = needed.get(number)
        extra += count if length is None else count - length if length and count - length > 1 else 0
    return extra


def _name(index: int) -> str:
    return f"episode_{index:06d}"
