"""Lists the episodes a LeRobot dataset says it has: lines of JSON up to v2.1, rows of Parquet since v3.0."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mainspring.data.episode import Unreadable
from mainspring.data.readers.episodes.lerobot_columns import ColumnPlan, Kept, LeRobotCamera
from mainspring.data.readers.episodes.lerobot_info import (
    EPISODES_MAX,
    Info,
    camera_fields,
    fields_of,
    filled,
    json_file,
    json_lines,
)
from mainspring.data.readers.episodes.lerobot_parquet import rows_of, schema_of
from mainspring.data.readers.episodes.lerobot_stats import Packed, packed, packed_rows
from mainspring.domain.errors import DamagedData

TEXT_MAX = 1 << 16  # Letters of one thing that is said of an episode: beyond it, it is a table of its own.
_OFF_BY_ONE = 1.5  # Frames: what ends a frame early or late is told where it is read.
_SECONDS_MAX = 1e9  # Keeps an absurd timestamp an absurd frame number, which reading then reports.
_KNOWN = ("episode_index", "length", "tasks", "dataset_from_index", "dataset_to_index", "stats", "__index_level_0__")
_PLACED = ("data/", "videos/", "stats/", "meta/")
_SUCCESS = ("success", "is_success", "episode_success", "is_episode_successful")
_YES, _NO = ("true", "1", "1.0", "yes", "success"), ("false", "0", "0.0", "no", "failure")


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """A camera's part of an episode.

    Args:
        key: The dataset's name of the camera.
        paths: Where its file may be, the likeliest first.
        first: Frame of the file that the first step shows.
        frames: How many it has there; None where the file is its own, and tells.
    """

    key: str
    paths: tuple[str, ...]
    first: int = 0
    frames: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """What is said of one episode.

    Args:
        index: Its number.
        length: Its rows; None when nobody says.
        tasks: In words.
        data_path: The file of its rows.
        clips: Of its cameras of video.
        success: Whether it was done; None when nobody says.
        extras: What else is said of it, by name.
        statistics: Of its numbers.
        problem: Why what is said cannot be so; "" when it can.
        notes: What was passed over.
    """

    index: int
    length: int | None
    tasks: tuple[str, ...]
    data_path: str
    clips: tuple[Clip, ...]
    success: bool | None = None
    extras: tuple[tuple[str, str], ...] = ()
    statistics: Packed = ()
    problem: str = ""
    notes: tuple[str, ...] = ()


def listed_episodes(root: Path, info: Info, plan: ColumnPlan, *, stale: bool) -> Iterator[Listed | Unreadable]:
    """Yields what is said of each episode, and what says nothing that could be understood.

    Args:
        root: The dataset's folder.
        info: What is said of the dataset.
        plan: What its episodes have.
        stale: Whether counts beside the rows may disagree with each other.

    Raises:
        DamagedData: There is no list of episodes.
        InvalidInput: A template of paths cannot be filled.
    """
    yield from _of_tables(root, info, plan, stale=stale) if info.shared else _of_lines(root, info, plan)


def statistics_of_set(root: Path, columns: tuple[str, ...]) -> Packed:
    """Returns what is said of the numbers of all episodes together; nothing where that cannot be read.

    Args:
        root: The dataset's folder.
        columns: Of which columns.
    """
    path = root / "meta" / "stats.json"
    try:
        return packed(json_file(path), columns) if path.is_file() else ()
    except DamagedData:
        return ()


def data_paths(root: Path, info: Info) -> Iterator[str]:
    """Yields some files of rows that are there, without the list of episodes: the first, the last and one between.

    Args:
        root: The dataset's folder.
        info: What is said of the dataset.
    """
    numbers = (0, info.total_episodes // 2, info.total_episodes - 1) if not info.shared else (0,)
    for number in dict.fromkeys(max(0, number) for number in numbers):
        yield filled(info.data_path, fields_of(number, info, chunk=0 if info.shared else None, file=None))


def _of_lines(root: Path, info: Info, plan: ColumnPlan) -> Iterator[Listed | Unreadable]:
    statistics = _statistics_of_lines(root, plan)
    for number, line in json_lines(root / "meta" / "episodes.jsonl"):
        name = f"meta/episodes.jsonl line {number}"
        try:
            said = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield Unreadable(name=name, reason=f"describes no episode: {str(error)[:200]}")
            continue
        index = _whole(said.get("episode_index")) if isinstance(said, dict) else None
        if index is None:
            yield Unreadable(name=name, reason="describes no episode: no episode_index")
            continue
        fields = fields_of(index, info)
        clips = tuple(_clip(info, part, fields) for part in plan.cameras if part.kept is Kept.VIDEO)
        success, extras, notes = _said_of(said)
        yield Listed(
            index=index,
            length=_whole(said.get("length")),
            tasks=_tasks(said.get("tasks", said.get("task"))),
            data_path=filled(info.data_path, fields),
            clips=clips,
            success=success,
            extras=extras,
            statistics=statistics.get(index, ()),
            notes=notes,
        )


def _statistics_of_lines(root: Path, plan: ColumnPlan) -> dict[int, Packed]:
    path = root / "meta" / "episodes_stats.jsonl"
    found: dict[int, Packed] = {}
    for _, line in json_lines(path) if path.is_file() else ():
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            continue  # What cannot be read objects to nothing.
        index = _whole(said.get("episode_index")) if isinstance(said, dict) else None
        if index is not None and len(found) < EPISODES_MAX:
            found[index] = packed(said.get("stats"), (*plan.keys, "timestamp"))
    return found


def _of_tables(root: Path, info: Info, plan: ColumnPlan, *, stale: bool) -> Iterator[Listed | Unreadable]:
    paths = sorted((root / "meta" / "episodes").rglob("*.parquet"))
    if not paths:
        on, wanted = str(root / "meta" / "episodes"), "Parquet files that list the episodes"
        raise DamagedData("read a LeRobot dataset", on=on, got="no file", wanted=wanted)
    for path in paths:
        name = path.relative_to(root).as_posix()
        try:
            schema = schema_of(path)
            table = rows_of(path, schema.names if schema is not None else [], rows_max=EPISODES_MAX + 1).table
        except DamagedData as error:
            yield Unreadable(name=name, reason=str(error))
            continue
        statistics = packed_rows(table, (*plan.keys, "timestamp"))
        own = [column for column in table.column_names if not column.startswith("stats/")]
        for number, row in enumerate(table.select(own).to_pylist()):
            listed = _of_row(info, plan, row, statistics[number], stale=stale)
            yield listed or Unreadable(name=f"{name} row {number}", reason="describes no episode: no episode_index")


def _of_row(info: Info, plan: ColumnPlan, row: Mapping[str, Any], statistics: Packed, *, stale: bool) -> Listed | None:
    index = _whole(row.get("episode_index"))
    if index is None:
        return None
    first, last = _whole(row.get("dataset_from_index")), _whole(row.get("dataset_to_index"))
    length = _whole(row.get("length"))
    problems = []
    if first is not None and last is not None:
        length = last - first if length is None else length
        if abs(last - first - length) >= _OFF_BY_ONE and not stale:
            problems.append(
                f"rows {first} to {last} of the dataset, but {length} frames (--stale-statistics lets it in)"
            )
    place = [_whole(row.get(f"data/{part}")) for part in ("chunk_index", "file_index")]
    fields = fields_of(index, info, chunk=place[0] or 0, file=place[1] or 0)
    clips = []
    for part in plan.cameras:
        if part.kept is Kept.VIDEO:
            clip = _clip_of_row(info, part, row, index)
            clips.append(clip)
            if clip.frames is not None and length and not 0 < clip.frames <= 2 * length + 1:
                problems.append(f"{clip.frames} frames of {part.key}, but {length} frames")
    success, extras, notes = _said_of({key: said for key, said in row.items() if not key.startswith(_PLACED)})
    return Listed(
        index=index,
        length=length,
        tasks=_tasks(row.get("tasks", row.get("task"))),
        data_path=filled(info.data_path, fields),
        clips=tuple(clips),
        success=success,
        extras=extras,
        statistics=statistics,
        problem="; ".join(problems),
        notes=notes,
    )


def _clip_of_row(info: Info, part: LeRobotCamera, row: Mapping[str, Any], index: int) -> Clip:
    said = {field: row.get(f"videos/{part.key}/{field}") for field in ("chunk_index", "file_index")}
    begin, end = (_seconds(row.get(f"videos/{part.key}/{side}_timestamp")) for side in ("from", "to"))
    if said["chunk_index"] is None and said["file_index"] is None:
        return Clip(key=part.key, paths=())
    fields = fields_of(index, info, chunk=_whole(said["chunk_index"]) or 0, file=_whole(said["file_index"]) or 0)
    clip = _clip(info, part, fields)
    return Clip(
        key=clip.key,
        paths=clip.paths,
        first=round((begin or 0.0) * info.rate),
        frames=round((end - (begin or 0.0)) * info.rate) if end is not None else None,
    )


def _clip(info: Info, part: LeRobotCamera, fields: Mapping[str, int | str]) -> Clip:
    said = {**fields, **camera_fields(part.key)}
    return Clip(key=part.key, paths=tuple(filled(template, said) for template in info.video_paths))


def _said_of(said: Mapping[str, Any]) -> tuple[bool | None, tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Returns whether the episode was a success, what else is said of it, and what of that is too long to keep."""
    success: bool | None = None
    extras: list[tuple[str, str]] = []
    notes: list[str] = []
    for key, value in said.items():
        if key in _KNOWN or key == "task" or value is None:
            continue
        verdict = _verdict(value) if key in _SUCCESS else None
        text = value if isinstance(value, str) else json.dumps(value, default=str, sort_keys=True)
        if verdict is not None:
            success = verdict
        elif len(text) > TEXT_MAX:
            notes.append(f"{key[:80]}: {len(text)} letters, left to the source's own file")
        elif text:
            extras.append((key, text))
    return success, tuple(sorted(extras)), tuple(notes)


def _verdict(value: object) -> bool | None:
    word = str(value).strip().lower()
    return True if word in _YES else False if word in _NO else None


def _tasks(said: object) -> tuple[str, ...]:
    if isinstance(said, (list, tuple)):
        return tuple(str(task) for task in said if task is not None)
    return (str(said),) if said is not None else ()


def _whole(said: object) -> int | None:
    """Returns a whole number that may be written as a float or in letters; None where it is none."""
    try:
        number = float(said) if isinstance(said, (int, float, str)) and not isinstance(said, bool) else math.nan
    except (ValueError, OverflowError):
        return None
    return int(number) if math.isfinite(number) and number == math.floor(number) and abs(number) < 2**53 else None


def _seconds(said: object) -> float | None:
    if not isinstance(said, (int, float)) or isinstance(said, bool) or not math.isfinite(said):
        return None
    return min(max(float(said), 0.0), _SECONDS_MAX)
