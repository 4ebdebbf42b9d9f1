"""Reads LeRobot datasets on disk, format v2.1 (a file an episode) and v3.0 (many episodes a file).

Source: github.com/huggingface/lerobot, `meta/info.json` as written by its versions 0.1 to 0.4.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

from mainspring.data.episode import (
    FRAMES_MAX,
    Recording,
    Unreadable,
)
from mainspring.data.features import ACTION, STATE, Camera, Column, Features
from mainspring.data.options import DEFAULT, IngestOptions
from mainspring.data.readers.episodes.lerobot_episode import LeRobotRecording, inside, parquet, rows_in
from mainspring.data.recording import RATE_HZ_MAX
from mainspring.domain.codec import from_plain, loads
from mainspring.domain.errors import DamagedData, InvalidInput, InvalidMessage

__all__ = ["EPISODES_MAX", "READ_VERSIONS", "LeRobotRecording", "lerobot_recordings"]

_STATE = "observation.state"
_KEPT_ELSEWHERE = ("timestamp", "frame_index", "episode_index", "index", "task_index")
_NUMBERS = re.compile(r"(u?int(8|16|32|64)|float(16|32|64)|bool)")
_DIMS_MAX = 4_096
READ_VERSIONS = ("v2.1", "v3.0")
EPISODES_MAX = 1_000_000
LINE_BYTES_MAX = 1 << 20
_RATE_DENOMINATOR_MAX = 1_001  # Television's 30000/1001 is the oddest rate in use.
_PLACEHOLDER = re.compile(r"\{(\w+)(?::0?(\d))?d?\}")
_NAME_MAX = 200
_SECONDS_MAX = 1e9  # Keeps an absurd timestamp an absurd frame number, which decoding then reports.

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Feature:
    dtype: str
    shape: tuple[int, ...]
    names: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Info:
    codebase_version: str
    fps: float
    data_path: str
    features: Mapping[str, _Feature]
    total_episodes: int = 0
    chunks_size: int = 1_000
    video_path: str | None = None
    robot_type: str | None = None


def lerobot_recordings(root: Path, options: IngestOptions = DEFAULT) -> tuple[Recording, ...]:
    """Returns every episode a LeRobot dataset says it has, in number order, then what lies in it beside them.

    The columns of an episode are its state, its action, and every other feature that is a vector of numbers at each
    step. What is described or counted but damaged, and data that belongs to no episode, is there as `Unreadable`.

    Args:
        root: The folder that holds `meta/info.json`.
        options: What is said of it.

    Raises:
        DamagedData: The description is missing parts or is not what it should be.
        InvalidInput: The dataset is of a format that is not read, or a path in it leaves the folder.
    """
    info = _info(root)
    features = _features(root, info)
    if not 0.01 <= info.fps <= RATE_HZ_MAX or info.chunks_size < 1:
        raise _bad_info(root, f"fps {info.fps}, chunks_size {info.chunks_size}", "numbers over 0")
    rate = Fraction(info.fps).limit_denominator(_RATE_DENOMINATOR_MAX)
    listed = _episodes_v2(root, info) if info.codebase_version == "v2.1" else _episodes_v3(root, info, features, rate)
    found: dict[int, Recording] = {}
    beside: list[Recording] = []
    rows_needed: dict[str, int] = {}
    meta_paths = tuple(
        sorted(path.relative_to(root).as_posix() for path in (root / "meta").rglob("*") if path.is_file())
    )
    for entry in listed:
        if isinstance(entry, Unreadable):
            beside.append(entry)
            continue
        if entry.index in found or not (0 <= entry.index < EPISODES_MAX and 0 < entry.length <= FRAMES_MAX):
            raise _bad_info(root, f"episode {entry.index} of {entry.length} frames", "each episode once, with frames")
        for path in (entry.data_path, *(path for path, _ in entry.videos)):
            inside(root, path)
        rows_needed[entry.data_path] = rows_needed.get(entry.data_path, 0) + entry.length
        if entry.problem:
            found[entry.index] = Unreadable(name=_name(entry.index), reason=entry.problem)
            continue
        found[entry.index] = LeRobotRecording(
            name=_name(entry.index),
            root=root,
            index=entry.index,
            task="; ".join(entry.tasks),
            robot=info.robot_type or "",
            rate=rate,
            steps=entry.length,
            features=features,
            data_path=entry.data_path,
            sources=tuple((column.name, _source_of(column.name)) for column in features.columns),
            shared=info.codebase_version != "v2.1",
            videos=entry.videos,
            meta_paths=meta_paths,
        )
    for index in range(min(info.total_episodes, EPISODES_MAX)):
        if index not in found:
            reason = "counted by meta/info.json, not described under meta/episodes"
            found[index] = Unreadable(name=_name(index), reason=reason)
            if info.codebase_version == "v2.1":
                rows_needed[_filled(info.data_path, _fields_v2(index, info))] = 0
    beside += _orphans(root, rows_needed, info)
    return (*(found[index] for index in sorted(found)), *beside)


def _orphans(root: Path, rows_needed: Mapping[str, int], info: _Info) -> Iterator[Unreadable]:
    """Yields the files, and the rows of shared files, that belong to no episode."""
    for path in sorted((root / "data").rglob("*.parquet")):
        name = path.relative_to(root).as_posix()
        if name not in rows_needed:
            yield Unreadable(name=name, reason="rows of no episode: nothing under meta describes this file")
        elif info.codebase_version != "v2.1" and path.is_file() and path.stat().st_size:
            try:
                rows = rows_in(path)
            except DamagedData:
                continue  # Each episode in it says so when it is read.
            if rows > rows_needed[name]:
                reason = f"{rows - rows_needed[name]} of its {rows} rows belong to no episode"
                yield Unreadable(name=name, reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    index: int
    length: int
    tasks: tuple[str, ...]
    data_path: str
    videos: tuple[tuple[str, int], ...]
    problem: str = ""


def _episodes_v2(root: Path, info: _Info) -> Iterator[_Listed | Unreadable]:
    cameras = _cameras(info)
    path = root / "meta" / "episodes.jsonl"
    for number, line in _lines(path):
        try:
            episode = _read(_EpisodeV2, json.loads(line), path)
        except (ValueError, RecursionError, DamagedData) as error:
            name = f"meta/episodes.jsonl line {number}"
            yield Unreadable(name=name, reason=f"describes no episode: {str(error)[:200]}")
            continue
        fields = _fields_v2(episode.episode_index, info)
        yield _Listed(
            index=episode.episode_index,
            length=episode.length,
            tasks=episode.tasks,
            data_path=_filled(info.data_path, fields),
            videos=tuple((_filled(info.video_path or "", {**fields, "video_key": key}), 0) for key in cameras),
        )


def _fields_v2(index: int, info: _Info) -> dict[str, int | str]:
    return {"episode_index": index, "episode_chunk": index // info.chunks_size}


@dataclass(frozen=True, slots=True, kw_only=True)
class _EpisodeV2:
    episode_index: int
    length: int
    tasks: tuple[str, ...] = field(default=())


def _episodes_v3(root: Path, info: _Info, features: Features, rate: Fraction) -> Iterator[_Listed | Unreadable]:
    paths = sorted((root / "meta" / "episodes").rglob("*.parquet"))
    if not paths:
        raise _bad_info(root, "no file under meta/episodes", "Parquet files that list the episodes")
    keys = [camera.name for camera in features.cameras]
    kinds: dict[str, type] = {"tasks": list, "episode_index": int, "length": int}
    kinds |= {f"data/{part}": int for part in ("chunk_index", "file_index")}
    for key in keys:
        kinds |= {f"videos/{key}/{part}": int for part in ("chunk_index", "file_index")}
        kinds |= {f"videos/{key}/from_timestamp": float}
    for path in paths:
        told = [f"videos/{key}/to_timestamp" for key in keys] + ["dataset_from_index", "dataset_to_index"]
        for row in parquet(path, columns=[*kinds, *told], rows_max=EPISODES_MAX + 1).to_pylist():
            if bad := [name for name, kind in kinds.items() if not isinstance(row.get(name), kind)]:
                raise DamagedData("read a LeRobot dataset", on=str(path), got=f"no usable {', '.join(bad)}"[:300])
            videos = []
            for key in keys:
                place = {part: row[f"videos/{key}/{part}"] for part in ("chunk_index", "file_index")}
                first_frame = round(min(max(row[f"videos/{key}/from_timestamp"], 0.0), _SECONDS_MAX) * rate)
                videos.append((_filled(info.video_path or "", {**place, "video_key": key}), first_frame))
            place = {part: row[f"data/{part}"] for part in ("chunk_index", "file_index")}
            yield _Listed(
                index=row["episode_index"],
                length=row["length"],
                tasks=tuple(map(str, row["tasks"])),
                data_path=_filled(info.data_path, place),
                videos=tuple(videos),
                problem=_disagreement(row, keys, float(rate)),
            )


def _disagreement(row: Mapping[str, Any], keys: list[str], rate_hz: float) -> str:
    """Returns where what is said of an episode disagrees with its length; "" when nothing does."""
    first, last = row.get("dataset_from_index"), row.get("dataset_to_index")
    if isinstance(first, int) and isinstance(last, int) and last - first != row["length"]:
        return f"rows {first} to {last} of the dataset, but {row['length']} frames"
    for key in keys:
        end = row.get(f"videos/{key}/to_timestamp")
        if isinstance(end, float):
            frames = (end - row[f"videos/{key}/from_timestamp"]) * rate_hz
            if not abs(frames - row["length"]) < 1.0:  # Written so that a NaN fails too.
                return f"{frames:.1f} frames of {key}, but {row['length']} frames"
    return ""


def _info(root: Path) -> _Info:
    path = root / "meta" / "info.json"
    try:
        plain = loads(path.read_bytes())
    except (OSError, InvalidMessage) as error:
        raise DamagedData("read a LeRobot dataset", on=str(path), got=str(error)[:200], wanted="JSON") from error
    version = plain.get("codebase_version") if isinstance(plain, dict) else None
    if version not in READ_VERSIONS:
        raise InvalidInput(
            "read a LeRobot dataset",
            on=str(path),
            got=f"codebase_version {version!r}",
            wanted=f"{' or '.join(READ_VERSIONS)}; no other is read yet",
        )
    return _read(_Info, plain, path)


def _features(root: Path, info: _Info) -> Features:
    for name in (_STATE, ACTION):
        feature = info.features.get(name)
        if feature is None or len(feature.shape) != 1 or not 0 < feature.shape[0] <= _DIMS_MAX:
            raise _bad_info(root, f"features {', '.join(sorted(info.features))[:200]}", f"a vector {name!r}")
    if stills := [name for name, feature in info.features.items() if feature.dtype == "image"]:
        raise InvalidInput(
            "read a LeRobot dataset", on=str(root), got=f"images inside Parquet ({stills[0]})", wanted="video files"
        )
    cameras = _cameras(info)
    if cameras and not info.video_path:
        raise _bad_info(root, "cameras without video_path", "a video_path")
    columns = [Column(name=STATE, names=_dimension_names(info.features[_STATE], STATE))]
    for name, feature in info.features.items():
        numbers = _NUMBERS.fullmatch(feature.dtype) and len(feature.shape) == 1 and 0 < feature.shape[0] <= _DIMS_MAX
        if numbers and name not in (_STATE, STATE, *_KEPT_ELSEWHERE):
            columns.append(Column(name=name, names=_dimension_names(feature, name)))
    return Features(
        columns=tuple(sorted(columns, key=lambda column: column.name)),
        cameras=tuple(_camera(root, key, info.features[key]) for key in cameras),
    )


def _cameras(info: _Info) -> tuple[str, ...]:
    return tuple(sorted(name for name, feature in info.features.items() if feature.dtype == "video"))


def _camera(root: Path, key: str, feature: _Feature) -> Camera:
    order = feature.names if isinstance(feature.names, list) else ["height", "width", "channels"]
    size = dict(zip(map(str, order), feature.shape, strict=False))
    if not (0 < size.get("height", 0) <= 16_384 and 0 < size.get("width", 0) <= 16_384):
        raise _bad_info(root, f"{key} of shape {feature.shape}", "height, width and channels")
    return Camera(name=key, height=size["height"], width=size["width"])


def _dimension_names(feature: _Feature, prefix: str) -> tuple[str, ...]:
    """Returns the names however they are nested: a list, a list of lists, or lists under a kind of motor."""
    flat: list[str] = []
    pending = [feature.names]
    while pending:
        names = pending.pop(0)
        if isinstance(names, str):
            flat.append(names[:_NAME_MAX])
        elif isinstance(names, (list, Mapping)):
            pending[:0] = list(names.values() if isinstance(names, Mapping) else names)
    if len(flat) == feature.shape[0]:
        return tuple(flat)
    return tuple(f"{prefix}_{dim}" for dim in range(feature.shape[0]))


def _filled(template: str, fields: Mapping[str, int | str]) -> str:
    """Fills a path template; `str.format` would let a dataset reach attributes and ask for gigabytes of padding."""

    def fill(match: re.Match[str]) -> str:
        name, width = match.group(1), int(match.group(2) or 0)
        if name not in fields:
            raise InvalidInput("fill a path of meta/info.json", on=template[:_NAME_MAX], got=f"{{{name}}}")
        return str(fields[name]).zfill(width) if width else str(fields[name])

    path = _PLACEHOLDER.sub(fill, template)
    if set("{}\0") & set(path):
        raise InvalidInput("fill a path of meta/info.json", on=template[:_NAME_MAX], wanted="{name} or {name:03d}")
    return path


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with open(path, "rb") as file:
            number = 0
            while line := file.readline(LINE_BYTES_MAX):
                number += 1
                if line.strip():
                    yield number, line
    except OSError as error:
        raise DamagedData("read a LeRobot dataset", on=str(path), got=str(error)[:200], wanted="JSON lines") from error


def _read(kind: type[Value], plain: object, path: Path) -> Value:
    try:
        return from_plain(kind, plain)
    except InvalidMessage as error:
        raise DamagedData("read a LeRobot dataset", on=f"{path}, {error.on}", got=error.got, wanted=error.wanted) from (
            error
        )


def _bad_info(root: Path, got: str, wanted: str) -> DamagedData:
    return DamagedData("read a LeRobot dataset", on=str(root / "meta" / "info.json"), got=got, wanted=wanted)


def _name(index: int) -> str:
    return f"episode_{index:06d}"


def _source_of(column: str) -> str:
    """Returns the dataset's name of a column."""
    return _STATE if column == STATE else column
