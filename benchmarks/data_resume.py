"""The first batch after a resume at step 10^9 of 10^10, of a view of a million episodes.

Run as `python -m benchmarks.data_resume [--quick]`. The view is whole but for what it shows: 1,600 shards of 625
episodes of 160 rows with a camera of 64x64 in h264, whose files are those of one shard, linked under names of their
own. They lie in the local cache, as where a run goes on where it ran. Each run is a new process. `resume_s` is from
before the view is opened to the batch of step 10^9; `process_s` is the whole process, Python's start and imports with
it. The order has no end, so that 10^10 steps need nothing that fewer do not; the last of them is asked for as well.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from blake3 import blake3

from mainspring.data.features import Camera, Column, Features
from mainspring.data.loader.loader import Loader, Sampling
from mainspring.data.views.manifest import Packets, SplitManifest, ViewManifest, ViewRecipe, ViewShard
from mainspring.data.views.moments import Statistics
from mainspring.data.views.places import view_key
from mainspring.data.views.view import open_view
from mainspring.domain.codec import encode
from mainspring.domain.ids import VersionId
from mainspring.objects import Blob, open_store

STEP, LAST_STEP, BATCH, CHUNK = 10**9, 10**10 - 1, 64, 50
EPISODES, ROWS, SHARD_EPISODES = 1_000_000, 160, 625
SIZE, GOP, DIMS, CAMERA = 64, 10, 7, "observation.images.top"
VIEW = blake3(b"a view of a million episodes").hexdigest()
RUNS = 5


def linked(path: Path, name: str) -> Blob:
    """Puts a file into the cache under a name as of other bytes."""
    blob = Blob(id=blake3(name.encode()).hexdigest(), size_bytes=path.stat().st_size)
    os.link(path, path.parent / "cache" / blob.id)
    return blob


def make(folder: Path, episodes: int) -> None:
    """Makes a view."""
    import av

    from mainspring.data.video.coded import Coding
    from mainspring.data.video.encode import encode_frames

    (folder / "cache").mkdir()
    rows = SHARD_EPISODES * ROWS
    dice = np.random.default_rng(0)
    y, x = np.mgrid[0:SIZE, 0:SIZE]
    pictures = (np.stack([x, y, x + y], axis=-1) + 3 * step for step in range(ROWS))
    data = io.BytesIO()
    ends = encode_frames(
        (av.VideoFrame.from_ndarray(picture.astype(np.uint8), format="rgb24") for picture in pictures),
        Coding(size=SIZE, gop=GOP, quality=23),
        data,
    )
    (folder / "data").write_bytes(data.getvalue() * SHARD_EPISODES)
    sizes = np.tile(np.diff(ends, prepend=0), SHARD_EPISODES)
    np.save(folder / "ends.npy", np.concatenate([[0], np.cumsum(sizes)]))
    np.save(folder / "values.npy", dice.normal(size=(rows, DIMS)).astype(np.float32))
    table = pa.table(
        {
            "id": [blake3(number.to_bytes(8, "little")).hexdigest() for number in range(episodes)],
            "task": pa.array(["move things"] * episodes),
            "frames": np.full(episodes, ROWS),
        }
    )
    with pa.ipc.new_file(str(folder / "episodes"), table.schema) as file:
        file.write_table(table)
    summary = linked(folder / "episodes", "summary")
    shards = tuple(
        ViewShard(
            rows=rows,
            columns={name: linked(folder / "values.npy", f"{name} {number}") for name in ("action", "state")},
            videos={
                CAMERA: Packets(
                    data=linked(folder / "data", f"data {number}"), ends=linked(folder / "ends.npy", f"ends {number}")
                )
            },
            summary=summary,
        )
        for number in range(episodes // SHARD_EPISODES)
    )
    names = tuple(f"joint_{number}" for number in range(DIMS))
    zeros = (0.0,) * DIMS
    plain = Statistics(count=1, mean=zeros, std=zeros, min=zeros, max=zeros)
    split = SplitManifest(
        rows=episodes * ROWS,
        episodes=episodes,
        shards=shards,
        episode_table=linked(folder / "episodes", "episodes"),
    )
    manifest = ViewManifest(
        id=VIEW,
        version=VersionId(VIEW),
        recipe=ViewRecipe(codec="h264", gop=GOP, image_size=SIZE),
        producer=1,
        features=Features(
            columns=(Column(name="action", names=names), Column(name="state", names=names)),
            cameras=(Camera(name=CAMERA, height=480, width=640),),
        ),
        statistics={"action": plain, "state": plain},
        splits={"train": split, "holdout": SplitManifest(rows=0, episodes=0, shards=(), episode_table=summary)},
    )
    open_store(str(folder / "store")).put(view_key(VIEW), encode(manifest))


def resume(folder: Path) -> None:
    """What a new process does."""
    start = time.perf_counter()
    cpu_start = time.process_time()
    view = open_view(open_store(str(folder / "store")), VIEW, folder / "cache", "train")
    opened_s = time.perf_counter() - start
    loader = Loader(view, Sampling(batch_size=BATCH, seed=0, horizon=CHUNK))
    with loader.stream(STEP) as stream:
        batch = next(stream)
        figures = {"resume_s": time.perf_counter() - start, "resume_cpu_s": time.process_time() - cpu_start}
        assert batch["images"].shape == (BATCH, 1, SIZE, SIZE, 3)
        assert batch["images"].std() > 10
    assert loader.rows(LAST_STEP).max() < view.rows
    print(json.dumps({**figures, "opened_s": opened_s, "rows": view.rows}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--resume", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.resume:
        resume(chosen.resume)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, EPISODES)
        runs = []
        for number in range(3 if chosen.quick else RUNS):
            start = time.perf_counter()
            command = [sys.executable, "-m", "benchmarks.data_resume", "--resume", name]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=120)
            process_s = time.perf_counter() - start
            runs.append({**json.loads(done.stdout), "process_s": process_s})
            print(f"run {number}: {', '.join(f'{key} {value:,.3f}' for key, value in runs[-1].items())}", flush=True)
    print(json.dumps({key: round(statistics.median(run[key] for run in runs), 3) for key in runs[0]}))


if __name__ == "__main__":
    main()
