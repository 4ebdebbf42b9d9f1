"""Reads what a LeRobot dataset says of the whole of itself: `meta/info.json`, its templates of paths, its tasks.

Source: github.com/huggingface/lerobot, `meta/` as written by its versions 0.1 to 0.6; what others write after them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.parquet as pq

from mainspring.data.options import IngestOptions
from mainspring.data.readers.episodes.shaping import rate_of
from mainspring.data.recording import RATE_HZ_MAX
from mainspring.domain.errors import DamagedData, InvalidInput

READ_VERSIONS = ("v2.0", "v2.1", "v3.0")
SHARED_SINCE = 3  # The major version from which many episodes share a file.
RATE_HZ_MIN = 0.01
EPISODES_MAX = 1_000_000
INFO_BYTES_MAX = 64 << 20
LINE_BYTES_MAX = 16 << 20  # Of JSON lines: statistics of a wide robot are some 100 KB.
TASKS_MAX = 1_000_000
NAME_MAX = 200
DIMS_MAX = 4_096  # Of one column: more is a picture or a point cloud.
_CHUNK = 1_000
_OLD = "meta_data/info.json"  # Where versions 1 said what they are.
_DATA_V2 = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
_DATA_V3 = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_VIDEO_V2 = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
_VIDEO_V3 = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
_VIDEO_BY_KEY = "videos/{video_key}/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.mp4"
_VIDEO_PLAIN = "videos/{video_key}/episode_{episode_index:06d}.mp4"
PICTURE_PATHS = (
    "images/{image_key}/episode_{episode_index:06d}/frame_{frame_index:06d}.png",
    "images/{image_key}/episode-{episode_index:06d}/frame-{frame_index:06d}.png",
)
_PLACEHOLDER = re.compile(r"\{(\w+)(?::0?(\d{1,2})?d?)?\}")
_SUFFIXES = (".mp4", ".mkv", ".webm", ".mov", ".avi")
_POINTER = b"version https://git-lfs"
_POINTER_BYTES_MAX = 1_024
VIDEOS_MAX = 1_000_000  # Looked at in search of those that lie elsewhere.
_TAIL = 3  # Folders of camera and chunk in whichever order, and the file: enough to be one video's alone.


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """What is said of a column or camera.

    Args:
        dtype: "float32", "video", "image", "string" and so on.
        shape: Of one step; None when nothing is said.
        names: Of its dimensions, however they are nested.
        height: Pixels, of a camera whose further description says so; else 0.
        width: The same.
    """

    dtype: str
    shape: tuple[int, ...] | None = None
    names: object = None
    height: int = 0
    width: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Info:
    """What is said of a whole dataset.

    Args:
        version: Of the format, such as "v2.1".
        major: The number before its point: from `SHARED_SINCE` on, episodes share files.
        rate: Frames per second, exact.
        data_path: Template of the path of an episode's rows.
        video_paths: Templates of the paths of its videos: what is said, then what is usual.
        features: By name.
        total_episodes: How many there should be.
        chunks_size: Episodes in a folder.
        robot: Kind of robot.
    """

    version: str
    major: int
    rate: Fraction
    data_path: str
    video_paths: tuple[str, ...]
    features: Mapping[str, Feature]
    total_episodes: int
    chunks_size: int
    robot: str

    @property
    def shared(self) -> bool:
        """Returns whether many episodes share a file."""
        return self.major >= SHARED_SINCE


def is_lerobot_set(folder: Path) -> bool:
    """Returns whether a folder is a LeRobot dataset, of a format that is read or of an older one.

    Args:
        folder: The folder.
    """
    return (folder / "meta" / "info.json").is_file() or (folder / _OLD).is_file()


def info_of(root: Path, options: IngestOptions) -> Info:
    """Returns what a dataset says of itself.

    Args:
        root: Its folder.
        options: What is said of it, which fills in a rate it does not say.

    Raises:
        DamagedData: The description is no JSON, or parts of it are missing or make no sense: all of them are named.
        InvalidInput: It is of a format that is not read.
    """
    if not (root / "meta" / "info.json").exists() and (root / _OLD).exists():
        raise _other_version(root / _OLD, "a dataset of LeRobot v1.x", 1)
    path = root / "meta" / "info.json"
    plain = json_file(path)
    if not isinstance(plain, dict):
        raise DamagedData("read a LeRobot dataset", on=str(path), got=f"{type(plain).__name__}", wanted="an object")
    version, major = _version(root, path, plain)
    problems: list[str] = []
    features = _features(plain.get("features"), problems)
    rate_hz = _number(plain.get("fps"))
    if not RATE_HZ_MIN <= rate_hz <= RATE_HZ_MAX and options.rate_hz is not None:
        rate_hz = options.rate_hz
    if not RATE_HZ_MIN <= rate_hz <= RATE_HZ_MAX:
        wanted = f"wanted {RATE_HZ_MIN:g} to {RATE_HZ_MAX:g}, or --rate HZ"
        problems.append(f"fps {str(plain.get('fps'))[:40]!r}, {wanted}")
    counts = {name: _number(plain.get(name, usual)) for name, usual in (("total_episodes", 0), ("chunks_size", _CHUNK))}
    problems += [f"{name} {str(plain.get(name))[:40]!r}" for name, count in counts.items() if not 0 <= count <= 1e12]
    shared = major >= SHARED_SINCE
    said = {"data_path": _DATA_V3 if shared else _DATA_V2, "video_path": _VIDEO_V3 if shared else _VIDEO_V2}
    for name in said:
        if plain.get(name) is not None and not isinstance(plain[name], str):
            problems.append(f"{name} {str(plain[name])[:40]!r}, wanted a template of paths")
        said[name] = plain.get(name) or said[name]
    if problems:
        raise DamagedData("read a LeRobot dataset", on=str(path), got="; ".join(problems))
    usual = (_VIDEO_V3,) if shared else (_VIDEO_V2, _VIDEO_BY_KEY, _VIDEO_PLAIN)
    return Info(
        version=version,
        major=major,
        rate=rate_of(rate_hz),
        data_path=said["data_path"],
        video_paths=tuple(dict.fromkeys((said["video_path"], *usual))),
        features=features,
        total_episodes=int(counts["total_episodes"]),
        chunks_size=max(1, int(counts["chunks_size"])),
        robot=plain["robot_type"] if isinstance(plain.get("robot_type"), str) else "",
    )


def json_file(path: Path) -> object:
    """Returns what a JSON file holds; NaN and Infinity are numbers to whoever wrote it, and so is a mark of UTF-8.

    Args:
        path: The file.

    Raises:
        DamagedData: It is missing, too large, or no JSON: where it breaks is named.
    """
    try:
        if path.stat().st_size > INFO_BYTES_MAX:
            got = f"{path.stat().st_size:,} bytes"
            raise DamagedData("read a LeRobot dataset", on=str(path), got=got, wanted=f"at most {INFO_BYTES_MAX:,}")
        data = path.read_bytes()
        if data.startswith(_POINTER):
            raise DamagedData("read a LeRobot dataset", on=str(path), got=pointed())
        if not data.strip():
            raise DamagedData("read a LeRobot dataset", on=str(path), got="an empty file", wanted="JSON")
        found: object = json.loads(data.decode("utf-8-sig"))
        return found
    except (OSError, ValueError, RecursionError) as error:
        got = str(error)[:200]
        raise DamagedData("read a LeRobot dataset", on=str(path), got=got, wanted="JSON in UTF-8") from error


def json_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields the lines of a file that are not empty, with their numbers from 1 on.

    Args:
        path: The file.

    Raises:
        DamagedData: It cannot be read.
    """
    try:
        with open(path, "rb") as file:
            if file.read(len(_POINTER)) == _POINTER:
                raise DamagedData("read a LeRobot dataset", on=str(path), got=pointed())
            file.seek(0)
            number = 0
            while line := file.readline(LINE_BYTES_MAX):
                number += 1
                if line.strip():
                    yield number, line.removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise DamagedData("read a LeRobot dataset", on=str(path), got=str(error)[:200], wanted="JSON lines") from error


def tasks_of(root: Path) -> Mapping[int, str]:
    """Returns the dataset's tasks by number; none where it lists none that can be read.

    Args:
        root: Its folder.
    """
    found: dict[int, str] = {}
    lines, table = root / "meta" / "tasks.jsonl", root / "meta" / "tasks.parquet"
    try:
        if table.is_file():
            rows = pq.read_table(table)
            texts = [name for name in ("task", "__index_level_0__", "index") if name in rows.column_names]
            if texts and "task_index" in rows.column_names and rows.num_rows <= TASKS_MAX:
                numbers, words = rows["task_index"].to_pylist(), rows[texts[0]].to_pylist()
                return {number: str(word) for number, word in zip(numbers, words, strict=True) if number is not None}
        if lines.is_file():
            for number, line in json_lines(lines):
                said = json.loads(line)
                if number <= TASKS_MAX and isinstance(said.get("task_index"), int):
                    found[said["task_index"]] = str(said.get("task", ""))
    except (pa.ArrowException, OSError, ValueError, AttributeError, RecursionError, DamagedData):
        return found  # The episodes name their tasks too.
    return found


def filled(template: str, fields: Mapping[str, int | str]) -> str:
    """Fills a path template; `str.format` would let a dataset reach attributes and ask for gigabytes of padding.

    Args:
        template: Such as "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet".
        fields: Values by name.

    Raises:
        InvalidInput: It asks for a field that there is none of, or has another form.
    """

    def fill(match: re.Match[str]) -> str:
        name, width = match.group(1), int(match.group(2) or 0)
        if name not in fields:
            wanted = ", ".join(f"{{{field}}}" for field in sorted(fields))
            raise InvalidInput(
                "fill a path of meta/info.json", on=template[:NAME_MAX], got=f"{{{name}}}", wanted=f"of {wanted}"
            )
        return str(fields[name]).zfill(width)

    path = _PLACEHOLDER.sub(fill, template)
    if set("{}\0") & set(path):
        raise InvalidInput("fill a path of meta/info.json", on=template[:NAME_MAX], wanted="{name} or {name:03d}")
    return path


def fields_of(index: int, info: Info, *, chunk: int | None = None, file: int | None = None) -> dict[str, int | str]:
    """Returns what a template of paths may ask for, by every name in use.

    Args:
        index: The episode's number.
        info: What is said of the dataset.
        chunk: Its chunk; by default, as many episodes as a chunk holds make one.
        file: Its file in the chunk, where episodes share files.
    """
    chunk = index // info.chunks_size if chunk is None else chunk
    fields: dict[str, int | str] = dict.fromkeys(("episode_index", "episode", "episode_id", "ep_index"), index)
    fields |= dict.fromkeys(("episode_chunk", "chunk_index", "chunk", "chunk_id"), chunk)
    return fields | dict.fromkeys(("file_index", "file", "file_id"), index if file is None else file)


def camera_fields(key: str) -> dict[str, int | str]:
    """Returns what a template of paths may ask for of a camera.

    Args:
        key: Its name in the dataset.
    """
    return dict.fromkeys(("video_key", "image_key", "camera_key", "camera", "key"), key)


class LeRobotPaths:
    """Says which files of a dataset are there; none is looked at that a link leads to from inside to elsewhere.

    Args:
        root: The dataset's folder.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._inside: set[str] = set()
        self._ends: dict[tuple[str, ...], list[str]] | None = None

    def first(self, candidates: tuple[str, ...]) -> str | None:
        """Returns the first of some paths at which there is a file, or one of another kind of video.

        Args:
            candidates: Inside the dataset.

        Raises:
            InvalidInput: One leaves the dataset.
        """
        for path in candidates:
            if self.has(path):
                return path
        for path in candidates:
            for suffix in _SUFFIXES if path.endswith(_SUFFIXES) else ():
                other = str(PurePosixPath(path).with_suffix(suffix))
                if self.has(other):
                    return other
        return next((found for path in candidates if (found := self._moved(path)) is not None), None)

    def _moved(self, path: str) -> str | None:
        """Returns the one video that lies under another folder than is said, but is called the same from there on."""
        if self._ends is None:
            self._ends = {}
            found = (one for one in self._root.rglob("*") if one.suffix in _SUFFIXES and not one.is_symlink())
            for video in islice(found, VIDEOS_MAX):
                name = video.relative_to(self._root)
                self._ends.setdefault(name.parts[-_TAIL:], []).append(name.as_posix())
        there = self._ends.get(PurePosixPath(path).parts[-_TAIL:], [])
        return there[0] if len(there) == 1 and self.has(there[0]) else None

    def has(self, path: str) -> bool:
        """Returns whether there is a file.

        Args:
            path: Inside the dataset.

        Raises:
            InvalidInput: It leaves the dataset.
        """
        place = self._root / path
        folder = path.rpartition("/")[0]
        if folder not in self._inside or place.is_symlink():
            inside(self._root, path)
            self._inside.add(folder)
        return place.is_file()


def inside(root: Path, relative: str) -> Path:
    """Returns the path, checked against escape; a Hugging Face cache keeps the files of a snapshot in its `blobs`.

    Args:
        root: The dataset's folder.
        relative: A path its description gives.

    Raises:
        InvalidInput: The path leaves the folder.
    """
    path = root / relative
    resolved, base = path.resolve(), root.resolve()
    homes = (base, base.parent.parent / "blobs") if base.parent.name == "snapshots" else (base,)
    if ".." in PurePosixPath(relative).parts or not any(resolved.is_relative_to(home) for home in homes):
        raise InvalidInput(
            "read a LeRobot dataset", on=str(root), got=f"path {relative[:NAME_MAX]!r}", wanted="a path inside it"
        )
    return path


def not_there(path: Path, name: str) -> str:
    """Returns why a file cannot be read as what it should be, before it is opened; "" when nothing speaks against it.

    Args:
        path: The file.
        name: Its name inside the dataset.
    """
    try:
        size_bytes = path.stat().st_size
        with open(path, "rb") as file:
            start = file.read(len(_POINTER)) if size_bytes <= _POINTER_BYTES_MAX else b"."
    except OSError:
        return f"no file {name}"
    pointer = f"{name} is {pointed()}" if start == _POINTER else ""
    return pointer if size_bytes else f"an empty file {name}"


def pointed() -> str:
    """Returns what to do about a file that only says where its content is."""
    return "a Git LFS pointer, not the file: git lfs pull"


def _version(root: Path, path: Path, plain: Mapping[str, object]) -> tuple[str, int]:
    said = plain.get("codebase_version")
    if said is None:
        if (root / "meta" / "episodes.jsonl").is_file():
            return "v2.1", 2
        if (root / "meta" / "episodes").is_dir():
            return "v3.0", 3
    match = re.fullmatch(r"v?(\d+)(?:\.(\d+))?(?:\.\d+)*", str(said)) if said is not None else None
    if match is None or match.group(1) not in ("2", "3"):
        raise _other_version(path, f"codebase_version {str(said)[:40]!r}", int(match.group(1)) if match else 0)
    return f"v{match.group(1)}.{match.group(2) or 0}", int(match.group(1))


def _other_version(path: Path, got: str, major: int) -> InvalidInput:
    convert = "convert it with lerobot 0.3: python -m lerobot.datasets.v2.convert_dataset_v1_to_v2"
    return InvalidInput(
        "read a LeRobot dataset",
        on=str(path),
        got=got,
        wanted=f"{', '.join(READ_VERSIONS)}; no other is read yet",
        next_step=convert if major == 1 else "",
    )


def _features(plain: object, problems: list[str]) -> Mapping[str, Feature]:
    if not isinstance(plain, dict) or not plain:
        problems.append("no features")
        return {}
    found: dict[str, Feature] = {}
    for name, said in plain.items():
        if not isinstance(said, dict) or not isinstance(said.get("dtype"), str):
            problems.append(f"feature {name[:80]!r} without a dtype")
            continue
        more: dict[str, object] = next(
            (said[key] for key in ("info", "video_info") if isinstance(said.get(key), dict)), {}
        )
        size = [more.get(f"video.{side}") for side in ("height", "width")]
        height, width = (side if isinstance(side, int) and 0 < side <= 16_384 else 0 for side in size)
        found[name] = Feature(
            dtype=said["dtype"], shape=_shape(said.get("shape")), names=said.get("names"), height=height, width=width
        )
    return found


def _shape(said: object) -> tuple[int, ...] | None:
    sides = list(said) if isinstance(said, list) else [said] if isinstance(said, int) else None
    if sides is None:
        return None
    whole = [int(side) for side in sides if isinstance(side, (int, float)) and math.isfinite(side) and side > 0]
    return tuple(whole) if len(whole) == len(sides) else None


def _number(said: object) -> float:
    """Returns a number however it is written; a NaN for what is none, which no range holds."""
    try:
        return float(said) if isinstance(said, (int, float, str)) and not isinstance(said, bool) else math.nan
    except (ValueError, OverflowError):
        return math.nan
