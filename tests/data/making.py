"""Small real recordings and datasets for the tests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mainspring.data.catalog.versions import Version
from mainspring.data.intake.ingest import ingest
from mainspring.data.recording import EpisodeWriter
from mainspring.objects import ObjectStore
from mainspring.testing.time_and_chance import FakeClock

ROBOTS = Path(__file__).parents[3] / "shared" / "robots"
RATE_HZ = 20
PERIOD_NS = 50_000_000
CAMERA = "observation.images.front"
HEIGHT, WIDTH = 48, 64


def record(
    path: Path,
    *,
    steps: int = 30,
    seed: int = 0,
    state_dims: int = 5,
    action_dims: int = 3,
    task: str = "pick",
    scale: float = 1.0,
) -> Path:
    """Writes one MCAP recording whose values follow from the seed."""
    values = np.random.default_rng(seed)
    with EpisodeWriter(path, task=task, robot="arm", rate_hz=RATE_HZ) as writer:
        for step in range(steps):
            state, action = values.normal(size=state_dims), values.normal(size=action_dims)
            writer.write(step * PERIOD_NS, scale * state, scale * action)
        writer.finish(success=seed % 2 == 0)
    return path


def record_many(folder: Path, count: int, *, first_seed: int = 0) -> Path:
    """Writes several MCAP recordings of differing lengths."""
    for index in range(count):
        record(folder / f"{index:03d}.mcap", steps=20 + 3 * index, seed=first_seed + index)
    return folder


def version_of(store: ObjectStore, source: Path, dataset: str = "pick") -> Version:
    """Ingests a source and returns the version."""
    version = ingest(source, store, dataset, clock=FakeClock()).version
    assert version is not None
    return version


def write_video(path: Path, grays: Iterable[int]) -> None:
    """Writes a video of even gray frames."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=RATE_HZ)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.codec_context.gop_size = 4
        stream.codec_context.bit_rate = 8_000_000  # Enough that each gray survives.
        for gray in grays:
            frame = av.VideoFrame.from_ndarray(np.full((HEIGHT, WIDTH, 3), gray, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def gray_of(episode: int, frame: int) -> int:
    """Returns the gray of a frame, so that a test can tell which one it sees."""
    return (40 + 50 * episode + 4 * frame) % 256


def _info(version: str, lengths: list[int], *, video: bool) -> dict[str, Any]:
    features: dict[str, Any] = {
        "observation.state": {"dtype": "float32", "shape": [3], "names": ["x", "y", "z"]},
        "action": {"dtype": "float32", "shape": [2], "names": {"motors": ["left", "right"]}},
    }
    if video:
        features[CAMERA] = {"dtype": "video", "shape": [HEIGHT, WIDTH, 3], "names": ["height", "width", "channels"]}
    return {
        "codebase_version": version,
        "robot_type": "arm",
        "fps": RATE_HZ,
        "total_episodes": len(lengths),
        "chunks_size": 1000,
        "features": features,
    }


def _rows(episode: int, length: int) -> dict[str, Any]:
    values = np.random.default_rng(episode).normal(size=(length, 5)).astype(np.float32)
    return {
        "observation.state": [row.tolist() for row in values[:, :3]],
        "action": [row.tolist() for row in values[:, 3:]],
        "timestamp": (np.arange(length) / RATE_HZ).astype(np.float32),
        "frame_index": np.arange(length),
        "episode_index": np.full(length, episode),
    }


def write_lerobot_v2(root: Path, lengths: list[int], *, video: bool = False) -> Path:
    """Writes a LeRobot v2.1 dataset: a Parquet file and a video for each episode."""
    (root / "meta").mkdir(parents=True)
    (root / "data" / "chunk-000").mkdir(parents=True)
    info = _info("v2.1", lengths, video=video)
    info["data_path"] = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
    info["video_path"] = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
    (root / "meta" / "info.json").write_text(json.dumps(info))
    lines = [{"episode_index": i, "tasks": ["stack"], "length": length} for i, length in enumerate(lengths)]
    (root / "meta" / "episodes.jsonl").write_text("\n".join(map(json.dumps, lines)))
    for episode, length in enumerate(lengths):
        pq.write_table(pa.table(_rows(episode, length)), root / f"data/chunk-000/episode_{episode:06d}.parquet")
        if video:
            grays = [gray_of(episode, frame) for frame in range(length)]
            write_video(root / f"videos/chunk-000/{CAMERA}/episode_{episode:06d}.mp4", grays)
    return root


def write_lerobot_v3(root: Path, lengths: list[int]) -> Path:
    """Writes a LeRobot v3.0 dataset: one Parquet file and one video for all episodes."""
    info = _info("v3.0", lengths, video=True)
    info["data_path"] = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
    info["video_path"] = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
    (root / "meta" / "episodes" / "chunk-000").mkdir(parents=True)
    (root / "data" / "chunk-000").mkdir(parents=True)
    (root / "meta" / "info.json").write_text(json.dumps(info))
    starts = np.cumsum([0, *lengths])[:-1].tolist()
    listed: Mapping[str, Any] = {
        "episode_index": list(range(len(lengths))),
        "tasks": [["stack"]] * len(lengths),
        "length": lengths,
        "data/chunk_index": [0] * len(lengths),
        "data/file_index": [0] * len(lengths),
        f"videos/{CAMERA}/chunk_index": [0] * len(lengths),
        f"videos/{CAMERA}/file_index": [0] * len(lengths),
        f"videos/{CAMERA}/from_timestamp": [start / RATE_HZ for start in starts],
    }
    pq.write_table(pa.table(dict(listed)), root / "meta/episodes/chunk-000/file-000.parquet")
    rows = pa.concat_tables([pa.table(_rows(episode, length)) for episode, length in enumerate(lengths)])
    pq.write_table(rows, root / "data/chunk-000/file-000.parquet")
    grays = [gray_of(episode, frame) for episode, length in enumerate(lengths) for frame in range(length)]
    write_video(root / f"videos/{CAMERA}/chunk-000/file-000.mp4", grays)
    return root


def copy_humanoid(root: Path, episodes: int) -> Path:
    """Copies the first episodes of the real humanoid dataset."""
    source = ROBOTS / "unitree_g1_bottle"
    video = "videos/chunk-000/observation.images.cam_high/episode_{:06d}.mp4"
    names = ["meta/info.json"]
    for episode in range(episodes):
        names += [f"data/chunk-000/episode_{episode:06d}.parquet", video.format(episode)]
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes((source / name).read_bytes())
    lines = (source / "meta/episodes.jsonl").read_text().splitlines()[:episodes]
    (root / "meta/episodes.jsonl").write_text("\n".join(lines))
    edit_info(root, total_episodes=episodes)
    return root


def edit_info(root: Path, **changes: Any) -> None:
    """Changes fields of a dataset's `info.json`."""
    path = root / "meta" / "info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
