"""Reads LeRobot datasets on disk, format v2.1 (a file an episode) and v3.0 (many episodes a file).

Source: github.com/huggingface/lerobot, `meta/info.json` as written by its versions 0.1 to 0.4.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mainspring.data.episode import (
    FRAMES_MAX,
    NANOSECONDS,
    Camera,
    Episode,
    Features,
    Floats,
    Recording,
    SourceFile,
    Unreadable,
    VideoFile,
    column_from_table,
)
from mainspring.data.recording import RATE_HZ_MAX
from mainspring.domain.codec import from_plain, loads
from mainspring.domain.errors import DamagedData, InvalidInput, InvalidMessage

STATE = "observation.state"
ACTION = "action"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LeRobotRecording:
    """One episode of a LeRobot dataset, not yet read.

    Args:
        name: "episode_000007".
        root: The dataset's folder.
        index: The episode's number.
        task: Its task, in words.
        robot: Kind of robot.
        rate: Frames per second, exact.
        steps: How many rows it must have.
        features: Names of the dimensions, and cameras.
        data_path: Its Parquet file, inside the root.
        videos: For each camera, its file inside the root and its first frame there.
        meta_paths: The dataset's own description, kept with every episode.
        parse_bytes: None: Parquet and video are parsed outside Python.
    """

    name: str
    root: Path
    index: int
    task: str
    robot: str
    rate: Fraction
    steps: int
    features: Features
    data_path: str
    videos: tuple[tuple[str, int], ...]
    meta_paths: tuple[str, ...]
    parse_bytes: int = 0

    def read(self) -> Episode:
        """See `Recording.read`."""
        paths = [self.data_path, *dict.fromkeys(path for path, _ in self.videos), *self.meta_paths]
        files = self._files(paths)
        table = self._table(files[self.data_path])
        frame = column_from_table(table, "frame_index")[:, 0].astype(np.int64)
        if not np.array_equal(frame, np.arange(self.steps)):
            raise DamagedData(
                "read a LeRobot episode",
                on=self.name,
                got=f"{len(frame)} rows, frames {frame[:3].tolist()}...",
                wanted=f"frames 0 to {self.steps - 1}, each once and in order",
            )
        drift_s = np.abs(column_from_table(table, "timestamp")[:, 0] - frame / float(self.rate))
        if not drift_s.max(initial=0.0) <= 0.5 / float(self.rate):  # Written so that a NaN fails too.
            raise DamagedData(
                "read a LeRobot episode",
                on=self.name,
                got=f"timestamps up to {drift_s.max():.3f} s off their frame numbers",
                wanted=f"at most half a frame at {float(self.rate):g} Hz",
            )
        return Episode(
            task=self.task,
            robot=self.robot,
            success=None,
            rate_hz=float(self.rate),
            features=self.features,
            time_ns=frame * (NANOSECONDS * self.rate.denominator) // self.rate.numerator,
            state=self._vectors(table, STATE, len(self.features.state_names)),
            action=self._vectors(table, ACTION, len(self.features.action_names)),
            videos=tuple(
                VideoFile(camera=camera.name, path=files[path], first_frame=first)
                for camera, (path, first) in zip(self.features.cameras, self.videos, strict=True)
            ),
            files=tuple(SourceFile(name=path, path=files[path]) for path in paths),
        )

    def _files(self, paths: list[str]) -> dict[str, Path]:
        files = {path: _inside(self.root, path) for path in paths}
        missing = [f"no file {path}" for path in paths if not files[path].is_file()]
        empty = [f"an empty file {path}" for path in paths if files[path].is_file() and not files[path].stat().st_size]
        if missing or empty:
            raise DamagedData("read a LeRobot episode", on=self.name, got=", ".join(missing + empty))
        return files

    def _table(self, path: Path) -> pa.Table:
        columns = [STATE, ACTION, "timestamp", "frame_index"]
        return _parquet(path, columns=columns, filters=[("episode_index", "==", self.index)])

    def _vectors(self, table: pa.Table, name: str, dims: int) -> Floats:
        values = column_from_table(table, name)
        if values.shape != (self.steps, dims):
            raise DamagedData(
                "read a LeRobot episode", on=f"{self.name} {name}", got=f"{values.shape}", wanted=f"{self.steps, dims}"
            )
        return values


def lerobot_recordings(root: Path) -> tuple[Recording, ...]:
    """Returns every episode a LeRobot dataset says it has, in number order.

    Args:
        root: The folder that holds `meta/info.json`.

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
    meta_paths = tuple(
        sorted(path.relative_to(root).as_posix() for path in (root / "meta").rglob("*") if path.is_file())
    )
    for entry in listed:
        if entry.index in found or not (0 <= entry.index < EPISODES_MAX and 0 < entry.length <= FRAMES_MAX):
            raise _bad_info(root, f"episode {entry.index} of {entry.length} frames", "each episode once, with frames")
        for path in (entry.data_path, *(path for path, _ in entry.videos)):
            _inside(root, path)
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
            videos=entry.videos,
            meta_paths=meta_paths,
        )
    for index in range(min(info.total_episodes, EPISODES_MAX)):
        found.setdefault(
            index,
            Unreadable(name=_name(index), reason="counted by meta/info.json, not described under meta/episodes"),
        )
    return tuple(found[index] for index in sorted(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    index: int
    length: int
    tasks: tuple[str, ...]
    data_path: str
    videos: tuple[tuple[str, int], ...]


def _episodes_v2(root: Path, info: _Info) -> Iterator[_Listed]:
    cameras = _cameras(info)
    for entry in _json_lines(root / "meta" / "episodes.jsonl"):
        episode = _read(_EpisodeV2, entry, root / "meta" / "episodes.jsonl")
        fields: dict[str, int | str] = {
            "episode_index": episode.episode_index,
            "episode_chunk": episode.episode_index // info.chunks_size,
        }
        yield _Listed(
            index=episode.episode_index,
            length=episode.length,
            tasks=episode.tasks,
            data_path=_filled(info.data_path, fields),
            videos=tuple((_filled(info.video_path or "", {**fields, "video_key": key}), 0) for key in cameras),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _EpisodeV2:
    episode_index: int
    length: int
    tasks: tuple[str, ...] = field(default=())


def _episodes_v3(root: Path, info: _Info, features: Features, rate: Fraction) -> Iterator[_Listed]:
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
        for row in _parquet(path, columns=list(kinds)).to_pylist():
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
            )


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
    for name in (STATE, ACTION):
        feature = info.features.get(name)
        if feature is None or len(feature.shape) != 1 or not 0 < feature.shape[0] <= 4_096:
            raise _bad_info(root, f"features {', '.join(sorted(info.features))[:200]}", f"a vector {name!r}")
    if stills := [name for name, feature in info.features.items() if feature.dtype == "image"]:
        raise InvalidInput(
            "read a LeRobot dataset", on=str(root), got=f"images inside Parquet ({stills[0]})", wanted="video files"
        )
    cameras = _cameras(info)
    if cameras and not info.video_path:
        raise _bad_info(root, "cameras without video_path", "a video_path")
    return Features(
        state_names=_dimension_names(info.features[STATE], "state"),
        action_names=_dimension_names(info.features[ACTION], "action"),
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


def _inside(root: Path, relative: str) -> Path:
    """Returns the path, checked against escape; a Hugging Face cache keeps the files of a snapshot in its `blobs`."""
    path = root / relative
    resolved, base = path.resolve(), root.resolve()
    homes = (base, base.parent.parent / "blobs") if base.parent.name == "snapshots" else (base,)
    if ".." in PurePosixPath(relative).parts or not any(resolved.is_relative_to(home) for home in homes):
        raise InvalidInput(
            "read a LeRobot dataset", on=str(root), got=f"path {relative[:_NAME_MAX]!r}", wanted="a path inside it"
        )
    return path


def _json_lines(path: Path) -> Iterator[object]:
    try:
        with open(path, "rb") as file:
            while line := file.readline(LINE_BYTES_MAX):
                if line.strip():
                    yield json.loads(line)
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedData("read a LeRobot dataset", on=str(path), got=str(error)[:200], wanted="JSON lines") from error


def _parquet(path: Path, *, columns: list[str], filters: list[tuple[str, str, int]] | None = None) -> pa.Table:
    try:
        return pq.read_table(path, columns=columns, filters=filters, partitioning=None)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise DamagedData("read a Parquet file", on=path.name, got=str(error)[:200]) from error


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
