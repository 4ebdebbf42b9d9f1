"""LeRobot datasets as people make them: every part of one can be another than LeRobot's own tools would write."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mainspring.data.episode import Episode
from mainspring.data.options import DEFAULT, IngestOptions
from mainspring.data.readers.episodes.lerobot import lerobot_recordings
from mainspring.data.video.frames import frames_in
from mainspring.data.video.packets import index_of_video
from mainspring.domain.errors import InvalidInput

RATE_HZ = 20
HEIGHT, WIDTH = 32, 48
FRONT = "observation.images.front"
FEATURES: dict[str, dict[str, Any]] = {
    "observation.state": {"dtype": "float32", "shape": [3], "names": ["x", "y", "z"]},
    "action": {"dtype": "float32", "shape": [2], "names": {"motors": ["left", "right"]}},
}
VIDEO = {"dtype": "video", "shape": [HEIGHT, WIDTH, 3], "names": ["height", "width", "channels"]}
PATHS = {
    "v2": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
    "v3": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
}
VIDEOS = {
    "v2": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    "v3": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
}
Rows = dict[str, Any]


def rows(episode: int, length: int) -> Rows:
    """The rows of an episode, which follow from its number."""
    values = np.random.default_rng(episode).normal(size=(length, 5)).astype(np.float32)
    return {
        "observation.state": values[:, :3],
        "action": values[:, 3:],
        "timestamp": (np.arange(length) / RATE_HZ).astype(np.float32),
        "frame_index": np.arange(length),
        "episode_index": np.full(length, episode),
        "index": np.arange(length) + 1_000 * episode,
        "task_index": np.zeros(length, np.int64),
    }


def table_of(columns: Mapping[str, Any]) -> pa.Table:
    """Rows as Parquet keeps them: vectors as lists."""
    return pa.table({name: _cells(values) for name, values in columns.items()})


def lerobot_set(
    root: Path,
    version: str = "v2.1",
    lengths: Sequence[int] = (8, 11),
    *,
    features: Mapping[str, Mapping[str, Any]] | None = None,
    change: Callable[[int, Rows], Rows | None] = lambda _, columns: columns,
    videos: Mapping[str, Sequence[int]] | None = None,
    said: Callable[[int, dict[str, Any]], dict[str, Any]] = lambda _, said: said,
    info: Mapping[str, Any] | None = None,
    tasks: Sequence[str] = ("stack",),
) -> Path:
    """Writes a dataset without statistics.

    Args:
        root: Its folder.
        version: Of its format.
        lengths: Of its episodes, as its description says.
        features: As `info.json` says; by default a state and an action.
        change: Returns what an episode's rows are instead.
        videos: Frames of each episode's video, by camera; further features are made of them.
        said: Returns what is said of an episode instead.
        info: Fields of `info.json`; None as a value leaves one out.
        tasks: Of the set.
    """
    kind = version[:2]
    told = {**(FEATURES if features is None else features), **dict.fromkeys(videos or {}, VIDEO)}
    plain: dict[str, Any] = {
        "codebase_version": version,
        "robot_type": "arm",
        "fps": RATE_HZ,
        "total_episodes": len(lengths),
        "chunks_size": 1000,
        "data_path": PATHS[kind],
        "video_path": VIDEOS[kind],
        "features": told,
        **(info or {}),
    }
    (root / "meta").mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps({key: value for key, value in plain.items() if value is not None}))
    tables: list[pa.Table] = []
    for episode, length in enumerate(lengths):
        columns = rows(episode, length)
        tables.append(table_of(change(episode, columns) or columns))
    listed = [said(episode, _said(episode, length, tasks)) for episode, length in enumerate(lengths)]
    (_write_v2 if kind == "v2" else _write_v3)(root, plain, tables, listed, videos or {}, tasks)
    return root


def _said(episode: int, length: int, tasks: Sequence[str]) -> dict[str, Any]:
    return {"episode_index": episode, "tasks": [tasks[0]], "length": length}


def _write_v2(
    root: Path,
    info: Mapping[str, Any],
    tables: list[pa.Table],
    listed: list[dict[str, Any]],
    videos: Mapping[str, Sequence[int]],
    tasks: Sequence[str],
) -> None:
    lines = [{"task_index": number, "task": task} for number, task in enumerate(tasks)]
    (root / "meta/tasks.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (root / "meta/episodes.jsonl").write_text("\n".join(map(json.dumps, listed)))
    for episode, table in enumerate(tables):
        fields = {"episode_index": episode, "episode_chunk": episode // 1000, "chunk_index": 0}
        write_table(root / (info.get("data_path") or PATHS["v2"]).format(**fields), table)
        for key, counts in videos.items():
            if counts[episode]:
                path = (info.get("video_path") or VIDEOS["v2"]).format(**fields, video_key=key)
                write_frames(root / path, counts[episode], first=100 * episode)


def _write_v3(
    root: Path,
    info: Mapping[str, Any],
    tables: list[pa.Table],
    listed: list[dict[str, Any]],
    videos: Mapping[str, Sequence[int]],
    tasks: Sequence[str],
) -> None:
    write_table(
        root / "meta/tasks.parquet",
        pa.table({"task_index": list(range(len(tasks))), "__index_level_0__": list(tasks)}),
    )
    starts = np.cumsum([0, *(said["length"] for said in listed)])
    for episode, said in enumerate(listed):
        said.setdefault("data/chunk_index", 0)
        said.setdefault("data/file_index", 0)
        said.setdefault("dataset_from_index", int(starts[episode]))
        said.setdefault("dataset_to_index", int(starts[episode + 1]))
        for key, counts in videos.items():
            first = sum(counts[:episode])
            said |= {f"videos/{key}/chunk_index": 0, f"videos/{key}/file_index": 0}
            said |= {f"videos/{key}/from_timestamp": first / RATE_HZ}
            said |= {f"videos/{key}/to_timestamp": (first + counts[episode]) / RATE_HZ}
    write_table(root / "meta/episodes/chunk-000/file-000.parquet", pa.Table.from_pylist(listed))
    write_table(root / PATHS["v3"].format(chunk_index=0, file_index=0), pa.concat_tables(tables))
    for key, counts in videos.items():
        path = VIDEOS["v3"].format(chunk_index=0, file_index=0, video_key=key)
        write_frames(root / path, sum(counts))


def write_table(path: Path, table: pa.Table) -> None:
    """Writes a Parquet file where there may be no folder yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def gray_of(number: int) -> int:
    """The gray of a frame, which says its number."""
    return 20 + 5 * (number % 40)


def write_frames(path: Path, count: int, *, first: int = 0, height: int = HEIGHT, width: int = WIDTH) -> None:
    """Writes a video of even gray frames that say their numbers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=RATE_HZ)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.options = {"crf": "4", "preset": "ultrafast", "g": "4", "bf": "0"}
        for number in range(first, first + count):
            image = np.full((height, width, 3), gray_of(number), np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())


def picture(number: int, codec: str = "png") -> bytes:
    """A picture of one gray that says its number."""
    context: Any = av.CodecContext.create(codec, "w")
    context.width, context.height, context.time_base = WIDTH, HEIGHT, Fraction(1, 25)
    context.pix_fmt = {"mjpeg": "yuvj420p", "png": "rgb24"}.get(codec, "gray16le")
    if context.pix_fmt == "gray16le":
        frame = av.VideoFrame.from_ndarray(depth(number), format="gray16le")
    else:
        gray = np.full((HEIGHT, WIDTH, 3), gray_of(number), np.uint8)
        frame = av.VideoFrame.from_ndarray(gray, format="rgb24").reformat(format=context.pix_fmt)
    return b"".join(bytes(packet) for packet in [*context.encode(frame), *context.encode(None)])


def depth(number: int) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """A picture of 16 bits, no two values of it alike."""
    values: np.ndarray[Any, np.dtype[np.uint16]] = np.arange(HEIGHT * WIDTH, dtype=np.uint16).reshape(HEIGHT, WIDTH)
    return (values * 31 + number).astype(np.uint16)


def statistics(columns: Mapping[str, Any], *, like: Callable[[Any], Any] = lambda values: values) -> dict[str, Any]:
    """Statistics of an episode's numbers, as LeRobot's tools say them."""
    found = {}
    for key, values in columns.items():
        array = like(np.asarray(values).reshape(len(values), -1))
        found[key] = {
            "min": array.min(axis=0).tolist(),
            "max": array.max(axis=0).tolist(),
            "mean": array.mean(axis=0).tolist(),
            "std": array.std(axis=0).tolist(),
            "count": [len(array)],
        }
    return found


def outcome(root: Path, options: IngestOptions = DEFAULT) -> dict[str, Episode | str]:
    """Reads all recordings: each an episode, or why not."""
    found: dict[str, Episode | str] = {}
    for recording in lerobot_recordings(root, options):
        folder = Path(tempfile.mkdtemp(dir=root.parent))
        try:
            found[recording.name] = recording.read(folder)
        except InvalidInput as error:
            found[recording.name] = str(error)
    return found


def episodes(root: Path, options: IngestOptions = DEFAULT) -> list[Episode]:
    """Reads all recordings, each of which must be sound."""
    found = outcome(root, options)
    assert all(isinstance(one, Episode) for one in found.values()), found
    return [one for one in found.values() if isinstance(one, Episode)]


def grays(episode: Episode, camera: int = 0) -> list[int]:
    """The gray of each frame that an episode's steps show."""
    video = episode.videos[camera]
    index = index_of_video(video, len(episode.time_ns))
    frames = [round(float(np.mean(frame.to_ndarray(format="gray")))) for frame in frames_in(video.path, index)]
    return frames if video.shown is None else [frames[at] for at in video.shown]


def _cells(values: Any) -> Any:
    if isinstance(values, np.ndarray) and values.ndim > 1:
        return pa.array(values.tolist(), _list_type(pa.from_numpy_dtype(values.dtype), values.ndim - 1))
    return values if isinstance(values, (pa.Array, pa.ChunkedArray)) else pa.array(values)


def _list_type(kind: pa.DataType, depth: int) -> pa.DataType:
    for _ in range(depth):
        kind = pa.list_(kind)
    return kind
