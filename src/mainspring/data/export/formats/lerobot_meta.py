"""LeRobot metadata: names, features, statistics of what episodes hold, and what it cannot hold.

Source: github.com/huggingface/lerobot, `lerobot/datasets/utils.py` and `compute_stats.py` of 0.3.3 and 0.4.4.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from mainspring.data.episode import Floats, RawFile
from mainspring.data.export.losses import common_losses
from mainspring.data.export.run import Work
from mainspring.data.export.survey import EpisodeSeen, ExportSurvey, Look, part_of
from mainspring.data.export.video import MP4_CODECS, frames_at
from mainspring.data.features import STATE, Features
from mainspring.domain.errors import InvalidInput
from mainspring.objects import get_blob

CHUNK_FILES_MAX = 1_000
RESERVED = ("timestamp", "frame_index", "episode_index", "index", "task_index")
_CAMERA = "observation.images."
_QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
_SAMPLES_MIN, _SAMPLES_MAX, _SAMPLES_POWER = 100, 1_000, 0.75  # As LeRobot samples pictures; it takes up to 10,000.
_SIDE_SMALL, _SIDE_WANTED = 300, 150  # Pictures of a longer side are thinned out towards the second, as LeRobot does.
_SOURCE_STATISTICS_BYTES_MAX = 256 << 20
_NUMBERED = re.compile(r"episode_(\d{1,9})$")
_UNNAMED = re.compile(r"[^A-Za-z0-9._-]+")

Statistic = dict[str, list[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeRobotNames:
    """LeRobot's name of each column and each camera of ours."""

    columns: Mapping[str, str]
    cameras: Mapping[str, str]


def lerobot_names(features: Features) -> LeRobotNames:
    """Returns LeRobot's names.

    Args:
        features: What goes out.

    Raises:
        InvalidInput: Two would be called the same.
    """
    columns = {}
    for column in features.columns:
        plain = "observation.state" if column.name == STATE else _UNNAMED.sub("_", column.name)
        columns[column.name] = f"{plain}_" if plain in RESERVED else plain
    cameras = {}
    for camera in features.cameras:
        plain = _UNNAMED.sub("_", camera.name.strip("/"))
        cameras[camera.name] = plain if plain.startswith("observation.") else _CAMERA + plain
    names = [*columns.values(), *cameras.values()]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidInput("export to LeRobot", got=f"{', '.join(twice)[:200]} twice", wanted="names that differ")
    return LeRobotNames(columns=columns, cameras=cameras)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeRobotShape:
    """What is the same for all episodes of a dataset.

    Args:
        names: LeRobot's names.
        wide: Columns of 64 bits.
        stills: Cameras whose pictures lie in the tables.
        videos: Cameras of video files.
        tasks: The number of each task.
        starts: For each episode, the number of its first row in the whole.
        rate: Steps per second.
    """

    names: LeRobotNames
    wide: frozenset[str]
    stills: tuple[str, ...]
    videos: tuple[str, ...]
    tasks: Mapping[str, int]
    starts: tuple[int, ...]
    rate: Fraction


def lerobot_shape(survey: ExportSurvey) -> LeRobotShape:
    """Returns what is the same for all episodes.

    Args:
        survey: What goes out.

    Raises:
        InvalidInput: They have several rates, not all cameras, or names that become one.
    """
    survey.every_camera("LeRobot")
    cameras = [camera.name for camera in survey.features.cameras]
    # These go into the tables, as they are: LeRobot's "image".
    stills = tuple(camera for camera in cameras if survey.looks(camera) <= {Look.PNG, Look.GRAY, Look.DEPTH})
    return LeRobotShape(
        names=lerobot_names(survey.features),
        wide=survey.wide(),
        stills=stills,
        videos=tuple(camera for camera in cameras if camera not in stills),
        tasks=tasks_of(survey),
        starts=tuple(itertools.accumulate((one.row.frames for one in survey.episodes[:-1]), initial=0)),
        rate=survey.one_rate("LeRobot"),
    )


def codes_again(episode: EpisodeSeen, camera: str) -> bool:
    """Returns whether a camera's video is encoded again.

    Args:
        episode: An episode.
        camera: A camera it has.
    """
    track = episode.track(camera)
    return track is not None and bool(track.why_again(MP4_CODECS))


def lerobot_lost(survey: ExportSurvey, shape: LeRobotShape) -> tuple[str, ...]:
    """Returns what LeRobot cannot hold of a survey.

    Args:
        survey: What goes out.
        shape: See `LeRobotShape`.
    """
    lost: list[str] = []
    episodes = survey.episodes
    if off := [episode.off_grid_ns for episode in episodes if episode.off_grid_ns]:
        told = f"up to {max(off) / 1e6:.3f} ms" if max(off) > 1_000 else f"up to {max(off)} ns"
        lost.append(
            f"times: steps of {len(off)} of {len(episodes)} episodes are {told} off the rate; LeRobot keeps frame / fps"
        )
    if begun := [episode for episode in episodes if episode.row.started_ns]:
        lost.append(f"clock: {len(begun)} of {len(episodes)} episodes know the time of day; LeRobot begins at 0")
    if episodes[0].row.rate_hz % 1:
        lost.append(f"rate: {episodes[0].row.rate_hz:g} Hz is no whole number, which LeRobot's own classes expect")
    robots = sorted({episode.row.robot for episode in episodes})
    if len(robots) > 1:
        lost.append(f"robot: one kind for a whole dataset; these are of {len(robots)}: {', '.join(robots)[:200]}")
    lost += [
        f"depth: LeRobot has none; {camera.name} goes as 16 bit PNG in the tables, which its classes take for "
        "a picture of one channel"
        for camera in survey.features.cameras
        if {track.look for one in episodes for track in one.tracks if track.camera == camera.name} == {Look.DEPTH}
    ]
    return (
        *lost,
        *common_losses(survey, lambda _, track: "" if track.camera in shape.stills else track.why_again(MP4_CODECS)),
    )


def info_json(survey: ExportSurvey, shape: LeRobotShape, pixels: Mapping[str, str], more: Mapping[str, Any]) -> bytes:
    """Returns `meta/info.json`.

    Args:
        survey: What goes out.
        shape: See `LeRobotShape`.
        pixels: By camera, FFmpeg's name of how its pixels lie.
        more: Fields that one version of the format has.
    """
    names, rate = shape.names, shape.rate
    columns = {
        names.columns[column.name]: {
            "dtype": "float64" if column.name in shape.wide else "float32",
            "shape": [len(column.names)],
            "names": list(column.names),
        }
        for column in survey.features.columns
    }
    cameras = {
        names.cameras[camera.name]: _camera(survey, shape, camera.name, pixels.get(camera.name, ""))
        for camera in survey.features.cameras
    }
    reserved = {
        name: {"dtype": "float32" if name == "timestamp" else "int64", "shape": [1], "names": None} for name in RESERVED
    }
    robots = dict.fromkeys(episode.row.robot for episode in survey.episodes if episode.row.robot)
    info = {
        "robot_type": ", ".join(robots)[:200] or None,
        "total_episodes": len(survey.episodes),
        "total_frames": survey.frames,
        "total_tasks": len(shape.tasks),
        "total_videos": len(shape.videos) * len(survey.episodes),
        "chunks_size": CHUNK_FILES_MAX,
        "fps": int(rate) if rate.denominator == 1 else float(rate),
        "splits": {"train": f"0:{len(survey.episodes)}"},
        "features": {**columns, **cameras, **reserved},
        **more,
    }
    if not shape.videos:
        info["video_path"] = None
    return json.dumps(info, indent=4, ensure_ascii=False).encode()


def _camera(survey: ExportSurvey, shape: LeRobotShape, camera: str, pixels: str) -> dict[str, Any]:
    track = survey.episodes[0].track(camera)
    assert track is not None
    channels = 1 if track.look in (Look.GRAY, Look.DEPTH) else 3
    made: dict[str, Any] = {
        "dtype": "image" if camera in shape.stills else "video",
        "shape": [track.height, track.width, channels],
        "names": ["height", "width", "channels"],
    }
    if made["dtype"] == "video":
        made["info"] = {
            "video.height": track.height,
            "video.width": track.width,
            "video.codec": "h264" if codes_again(survey.episodes[0], camera) else track.codec,
            "video.pix_fmt": pixels,
            "video.is_depth_map": False,
            "video.fps": int(shape.rate) if shape.rate.denominator == 1 else float(shape.rate),
            "video.channels": channels,
            "has_audio": False,
        }
    return made


def tasks_of(survey: ExportSurvey) -> dict[str, int]:
    """Returns the number of each task, in the order of their first episodes.

    Args:
        survey: What goes out.
    """
    return {task: number for number, task in enumerate(dict.fromkeys(one.row.task for one in survey.episodes))}


def said_of(episode: EpisodeSeen, taken: Sequence[str]) -> dict[str, Any]:
    """Returns what else is known of an episode, as fields beside LeRobot's own.

    Args:
        episode: The episode.
        taken: Names that mean something else.
    """
    said: dict[str, Any] = {}
    if episode.row.success is not None:
        said["success"] = episode.row.success
    for key, value in sorted(episode.row.metadata.items()):
        name = key if key not in (*taken, "success") and "/" not in key else f"metadata.{key.replace('/', '.')}"
        said[name] = value
    return said


def statistic(values: Floats | Any, count: int) -> Statistic:
    """Returns the statistics of a column or of pixels, as LeRobot names them.

    Args:
        values: [N, D].
        count: What they are said to be of: steps, or pictures.
    """
    found: Statistic = {
        "min": values.min(axis=0).tolist(),
        "max": values.max(axis=0).tolist(),
        "mean": values.mean(axis=0, dtype=np.float64).tolist(),
        "std": values.std(axis=0, dtype=np.float64).tolist(),
        "count": [count],
    }
    quantiles = np.quantile(values, list(_QUANTILES.values()), axis=0)
    return found | {name: row.tolist() for name, row in zip(_QUANTILES, quantiles, strict=True)}


def picture_statistic(work: Work, episode: EpisodeSeen, camera: str) -> Statistic:
    """Returns the statistics of a camera's pictures: those of the source where it has them, else of a sample.

    Args:
        work: See `Work`.
        episode: An episode.
        camera: A camera it has.

    Raises:
        DamagedData: A picture cannot be decoded.
    """
    return _told(work, episode, camera) or _sampled(work, episode, camera)


def _sampled(work: Work, episode: EpisodeSeen, camera: str) -> Statistic:
    part = part_of(work.store, episode, camera, work.fetched, again=False)
    steps = len(part.shown)
    count = max(min(steps, _SAMPLES_MIN), min(int(steps**_SAMPLES_POWER), _SAMPLES_MAX))
    wanted = np.unique(part.shown[np.round(np.linspace(0, steps - 1, count)).astype(np.int64)])
    track = episode.track(camera)
    assert track is not None
    depth = track.look is Look.DEPTH
    pixels = []
    for frame in frames_at(part.path, part.index, wanted):
        image = frame.to_ndarray(format="gray16le")[:, :, None] if depth else frame.to_ndarray(format="rgb24")
        height, width = image.shape[:2]
        longer = width if width > height else height
        thin = int(longer / _SIDE_WANTED) if max(width, height) >= _SIDE_SMALL else 1
        pixels.append(image[::thin, ::thin].reshape(-1, image.shape[2]))
    return _of_pixels(np.concatenate(pixels), len(wanted), most=65_535 if depth else 255)


def _of_pixels(values: NDArray[Any], count: int, *, most: int) -> Statistic:
    """Returns the statistics of pixels [N, C] of whole numbers up to `most`, for three channels of LeRobot's units."""
    found: dict[str, list[Any]] = {name: [] for name in ("min", "max", "mean", "std", *_QUANTILES)}
    share = 255.0 if most == 255 else 1.0  # 16 bits are not scaled by whoever reads them.
    for channel in range(3) if values.shape[1] == 3 else (0, 0, 0):
        times = np.bincount(values[:, channel], minlength=most + 1)
        here = np.flatnonzero(times)
        mean = float((here * times[here]).sum() / len(values))
        spread = float(((here - mean) ** 2 * times[here]).sum() / len(values)) ** 0.5
        places = np.searchsorted(
            np.cumsum(times), np.array(list(_QUANTILES.values())) * (len(values) - 1), side="right"
        )
        numbers = (float(here[0]), float(here[-1]), mean, spread, *places.tolist())
        for name, number in zip(found, numbers, strict=True):
            found[name].append([[number / share]])
    return found | {"count": [count]}


def _told(work: Work, episode: EpisodeSeen, camera: str) -> Statistic | None:
    """Returns what the source's own description says of an episode's pictures."""
    found = _NUMBERED.search(episode.row.source)
    if found is None:
        return None
    told = (_in_raw(work, raw).get((int(found.group(1)), camera)) for raw in episode.row.raw)
    return next(filter(None, told), None)


def _in_raw(work: Work, raw: RawFile) -> Mapping[tuple[int, str], Statistic]:
    lines = raw.name.endswith("meta/episodes_stats.jsonl")
    tables = "meta/episodes/" in raw.name and raw.name.endswith(".parquet")
    if not (lines or tables) or raw.blob.size_bytes > _SOURCE_STATISTICS_BYTES_MAX:
        return {}
    if raw.blob.id not in work.known:
        work.known[raw.blob.id] = (_from_lines if lines else _from_table)(get_blob(work.store, raw.blob))
    found: Mapping[tuple[int, str], Statistic] = work.known[raw.blob.id]
    return found


def _from_lines(data: bytes) -> Mapping[tuple[int, str], Statistic]:
    found: dict[tuple[int, str], Statistic] = {}
    for line in data.splitlines():
        try:
            said = json.loads(line)
            for name, one in said["stats"].items():
                if _is_of_pictures(one):
                    found[int(said["episode_index"]), name] = one
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue  # A line that is none says nothing of its episode: its pictures are sampled.
    return found


def _from_table(data: bytes) -> Mapping[tuple[int, str], Statistic]:
    found: dict[tuple[int, str], Statistic] = {}
    try:
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            names = [name for name in file.schema_arrow.names if name.startswith("stats/")]
            for row in file.read([*names, "episode_index"]).to_pylist():
                cameras: dict[str, Statistic] = {}
                for name in names:
                    _, camera, kind = name.split("/", 2)
                    if row[name] is not None:
                        cameras.setdefault(camera, {})[kind] = row[name]
                for camera, one in cameras.items():
                    if _is_of_pictures(one):
                        found[int(row["episode_index"]), camera] = one
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError):
        return {}
    return found


def _is_of_pictures(said: object) -> bool:
    """Returns whether statistics are those of three channels, whole and finite."""
    if not isinstance(said, dict) or not {"min", "max", "mean", "std", "count"} <= said.keys():
        return False
    try:
        arrays = {name: np.asarray(value, np.float64) for name, value in said.items()}
    except (ValueError, TypeError):
        return False
    shaped = all(array.shape == ((1,) if name == "count" else (3, 1, 1)) for name, array in arrays.items())
    return shaped and all(np.isfinite(array).all() for array in arrays.values())


def merged_statistics(parts: Sequence[Mapping[str, Statistic]]) -> dict[str, Statistic]:
    """Returns the statistics of a whole dataset from those of its episodes, merged as LeRobot does.

    Args:
        parts: By feature, of each episode.
    """
    merged: dict[str, Statistic] = {}
    for name in parts[0]:
        those = [part[name] for part in parts]
        kinds = set.intersection(*(set(one) for one in those))
        stacked = {kind: np.array([one[kind] for one in those], np.float64) for kind in sorted(kinds)}
        count = stacked["count"]
        weight = count.reshape(len(count), *[1] * (stacked["mean"].ndim - 1)) / count.sum()
        mean = (stacked["mean"] * weight).sum(axis=0)
        spread = ((stacked["std"] ** 2 + (stacked["mean"] - mean) ** 2) * weight).sum(axis=0)
        whole = {
            "min": stacked["min"].min(axis=0),
            "max": stacked["max"].max(axis=0),
            "mean": mean,
            "std": np.sqrt(spread),
            "count": count.sum(axis=0).astype(np.int64),
        }
        whole |= {kind: (stacked[kind] * weight).sum(axis=0) for kind in _QUANTILES if kind in stacked}
        merged[name] = {kind: value.tolist() for kind, value in whole.items()}
    return merged
