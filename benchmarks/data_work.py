"""What the benchmarks of data read: 50 episodes of 300 steps with two cameras of 224x224, made, not recorded.

A scene is a smooth picture that slowly moves, with sharp things that move on it and a little noise, so that codecs
have about as much to do as with a robot's cameras.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

CAMERAS = ("observation.images.front", "observation.images.wrist")
RATE_HZ = 30
SIZE = 224
STATE_DIMS, ACTION_DIMS, CHUNK = 14, 14, 50
NOISE = 2.0  # Levels of 255, a good camera's in good light.


def frames(seed: int, steps: int) -> Iterator[NDArray[np.uint8]]:
    """Yields [H, W, 3] pictures of a scene."""
    dice = np.random.default_rng(seed)
    y, x = np.mgrid[0:SIZE, 0:SIZE] / SIZE
    waves = dice.uniform(1, 6, (4, 2))
    colours = dice.uniform(20, 60, (4, 3))
    things = [(dice.uniform(0.1, 0.9, 2), dice.uniform(-0.01, 0.01, 2), dice.integers(0, 255, 3)) for _ in range(6)]
    noise = dice.normal(0, NOISE, (8, SIZE, SIZE, 3))
    for step in range(steps):
        picture = np.full((SIZE, SIZE, 3), 110.0)
        for (a, b), colour in zip(waves, colours, strict=True):
            picture += np.sin(2 * np.pi * (a * x + b * y) + 0.01 * step)[..., None] * colour
        for place, speed, colour in things:
            at = np.abs((place + step * speed) % 2 - 1)
            inside = (np.abs(x - at[0]) < 0.06) & (np.abs(y - at[1]) < 0.09)
            picture[inside] = colour
        yield np.clip(picture + noise[step % 8], 0, 255).astype(np.uint8)


def write_lerobot(root: Path, episodes: int, steps: int) -> Path:
    """Writes them as a LeRobot v3.0 dataset, as its own tools encode it: AV1, a group of pictures of 2, CRF 30."""
    features: dict[str, Any] = {
        camera: {"dtype": "video", "shape": [SIZE, SIZE, 3], "names": ["height", "width", "channels"]}
        for camera in CAMERAS
    }
    vector = {"dtype": "float32", "shape": [STATE_DIMS], "names": [f"j{dim}" for dim in range(STATE_DIMS)]}
    features |= {"observation.state": vector, "action": vector}
    features |= {"timestamp": {"dtype": "float32", "shape": [1], "names": None}}
    features |= {
        name: {"dtype": "int64", "shape": [1], "names": None}
        for name in ("frame_index", "episode_index", "index", "task_index")
    }
    total = episodes * steps
    info = {
        "codebase_version": "v3.0",
        "robot_type": "made",
        "fps": RATE_HZ,
        "total_episodes": episodes,
        "total_frames": total,
        "total_tasks": 1,
        "chunks_size": 1000,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 500,
        "splits": {"train": f"0:{episodes}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": features,
    }
    for folder in ("meta/episodes/chunk-000", "data/chunk-000", *(f"videos/{camera}/chunk-000" for camera in CAMERAS)):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "meta/info.json").write_text(json.dumps(info))
    values = np.cumsum(np.random.default_rng(0).normal(0, 0.01, (total, STATE_DIMS)), axis=0).astype(np.float32)
    step = np.arange(total) % steps
    table = {
        "observation.state": list(values),
        "action": list(np.roll(values, -1, axis=0)),
        "timestamp": (step / RATE_HZ).astype(np.float32),
        "frame_index": step,
        "episode_index": np.arange(total) // steps,
        "index": np.arange(total),
        "task_index": np.zeros(total, np.int64),
    }
    pq.write_table(pa.table(table), root / "data/chunk-000/file-000.parquet")
    _write_meta(root, episodes, steps, values)
    for number, camera in enumerate(CAMERAS):
        _write_video(root / f"videos/{camera}/chunk-000/file-000.mp4", number, episodes, steps)
    return root


def _write_meta(root: Path, episodes: int, steps: int, values: NDArray[np.float32]) -> None:
    starts = np.arange(episodes) * steps
    zeros = np.zeros(episodes, np.int64)
    listed: dict[str, Any] = {
        "episode_index": np.arange(episodes),
        "tasks": [["move things"]] * episodes,
        "length": np.full(episodes, steps),
        "data/chunk_index": zeros,
        "data/file_index": zeros,
        "dataset_from_index": starts,
        "dataset_to_index": starts + steps,
        "meta/episodes/chunk_index": zeros,
        "meta/episodes/file_index": zeros,
    }
    for camera in CAMERAS:
        listed |= {f"videos/{camera}/{part}_index": zeros for part in ("chunk", "file")}
        listed |= {f"videos/{camera}/from_timestamp": starts / RATE_HZ}
        listed |= {f"videos/{camera}/to_timestamp": (starts + steps) / RATE_HZ}
    pq.write_table(pa.table(listed), root / "meta/episodes/chunk-000/file-000.parquet")
    tasks = pa.table({"task_index": [0], "__index_level_0__": ["move things"]})
    index = "__index_level_0__"
    types = {"pandas_type": "unicode", "numpy_type": "object", "metadata": None}
    indices = [{"name": None, "field_name": index, **types}]
    columns = {"columns": indices, "index_columns": [index], "column_indexes": []}
    pq.write_table(tasks.replace_schema_metadata({"pandas": json.dumps(columns)}), root / "meta/tasks.parquet")
    statistics: dict[str, Any] = {
        name: {
            "mean": values.mean(axis=0).tolist(),
            "std": values.std(axis=0).tolist(),
            "min": values.min(axis=0).tolist(),
            "max": values.max(axis=0).tolist(),
            "count": [len(values)],
        }
        for name in ("observation.state", "action")
    }
    (root / "meta/stats.json").write_text(json.dumps(statistics))


def _write_video(path: Path, camera: int, episodes: int, steps: int) -> None:
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libsvtav1", rate=RATE_HZ, options={"g": "2", "crf": "30", "preset": "12"})
        stream.width, stream.height, stream.pix_fmt = SIZE, SIZE, "yuv420p"
        for episode in range(episodes):
            for picture in frames(2 * episode + camera, steps):
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))
