"""Training samples per CPU-second: ours, LeRobotDataset, Grain with ArrayRecord, MosaicML MDS and LitData.

Run as `python -m benchmarks.data_loader [--quick] [--work FOLDER]`. A sample is a frame of each camera, the state and a
chunk of 50 actions; batches of 64 arrive in the process that trains. Two sets: 50 episodes of 300 steps with two
cameras of 224x224, made; and recordings of a humanoid (one camera), where they are. Every loader runs in a process of
its own, once decoding there and once in one worker, the better of the two counting; they take turns. Before and after a
turn a loader is left until it has filled its buffers, so that the CPU time of all its processes is that of the samples
it gave. The limit is the decoding of our view's packets, in the order of its blocks, with the frames thrown away.

Orders: ours are blocks of 10 rows from 96 places; LeRobot's and Grain's are global shuffles of rows; MDS and LitData
shuffle within and among their shards. `ratios` are of medians, but for ours to the limit: the median of the turns'.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.data_peers import BATCH, CHUNK, PEERS, QUALITY, WRITERS, Made, encoded
from benchmarks.data_work import write_lerobot

from mainspring.app.base.system import SystemClock
from mainspring.data.intake.ingest import ingest
from mainspring.data.loader.loader import Loader, Sampling
from mainspring.data.loader.permutation import Permutation
from mainspring.data.video.gop import GopDecoder
from mainspring.data.views.build import build_view
from mainspring.data.views.manifest import ViewRecipe
from mainspring.data.views.view import View, open_view
from mainspring.objects import open_store

HUMANOID = Path(__file__).parents[2] / "shared" / "robots" / "unitree_g1_bottle"
SIZE, GOP = 224, 10
ROUNDS = 5
TURN_CPU_S = 1.5  # Of a loader's time a turn: a hundred times what its CPU time is counted in.
OURS = ("yuv", "limit", "rgb")
WARM_SAMPLES = 6_000  # More than twice our ring.
NEEDS = {"lerobot": "lerobot", "grain": "array_record", "mds": "streaming", "litdata": "litdata"}


# ---------------------------------------------------------------- what is read


def prepare(made: Made, source: Path) -> View:
    """Makes our view and, of the frames it gives, everybody's files; what lies there already stays."""
    store = open_store(str(made.folder / "store"))
    listed = made.folder / "view"
    if not listed.exists():
        version = ingest(source, store, "made", clock=SystemClock()).version
        assert version is not None
        recipe = ViewRecipe(codec="h264", gop=GOP, image_size=SIZE, holdout_fraction=0.0)
        manifest = build_view(store, version, recipe, scratch_dir=made.folder / "scratch")
        listed.write_text(manifest.id)
    view = open_view(store, listed.read_text(), made.folder / "cache", "train")
    rows = np.arange(view.rows)
    ends = view.episode_ends[view.episode_of(rows)]
    np.savez(made.folder / "columns.npz", state=view.take("state", rows), action=view.take("action", rows), ends=ends)
    for name, write in WRITERS.items():
        folder, done = made.folder / name, made.folder / f"{name}.done"
        if importlib.util.find_spec(NEEDS[name]) is None or done.exists():
            continue
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        write(made, jpegs(view))
        done.touch()
    return view


def jpegs(view: View) -> Iterator[list[bytes]]:
    """Yields the JPEGs of each row, a group of pictures decoded at once."""
    decoder = GopDecoder()
    for start, end in zip(view.episode_starts.tolist(), view.episode_ends.tolist(), strict=True):
        for first in range(start, end, GOP):
            pictures = np.empty((len(view.cameras), min(GOP, end - first), SIZE, SIZE, 3), np.uint8)
            for camera, out in zip(view.cameras, pictures, strict=True):
                decoder.decode(view.packets(camera, first, len(out)), out, on=camera)
            for row in range(pictures.shape[1]):
                yield [encoded(picture) for picture in pictures[:, row]]


def size_bytes(made: Made, view: View) -> dict[str, int]:
    shards = view.manifest.splits["train"].shards
    columns = sum(blob.size_bytes for shard in shards for blob in shard.columns.values())
    video = sum(part.data.size_bytes + part.ends.size_bytes for shard in shards for part in shard.videos.values())
    sizes = {"ours": columns + video}
    for name in (*WRITERS, "lerobot"):
        files = [path for path in (made.folder / name).rglob("*") if path.is_file()]
        if files:
            sizes[name] = sum(path.stat().st_size for path in files) + columns * (name != "lerobot")
    return sizes


# ---------------------------------------------------------------- one loader, in a process of its own


def loader(name: str, made: Made, workers: int) -> Iterator[Any]:
    if name in PEERS:
        return PEERS[name](made, workers)
    store = open_store(str(made.folder / "store"))
    view = open_view(store, (made.folder / "view").read_text(), made.folder / "cache", "train")
    if name == "limit":
        return limit(view)
    sampling = Sampling(batch_size=BATCH, seed=0, horizon=CHUNK, pixels="rgb" if name == "rgb" else "yuv")
    return Loader(view, sampling, workers=workers).stream(0)


def limit(view: View) -> Iterator[Any]:
    """Decodes blocks of our view, in a random order, and throws the frames away."""
    decoder, nowhere = GopDecoder(), [None] * GOP
    starts = np.concatenate(
        [
            np.arange(start, end - GOP + 1, GOP)
            for start, end in zip(view.episode_starts, view.episode_ends, strict=True)
        ]
    )
    at = rows = 0
    while True:
        first = int(starts[Permutation(len(starts), at // len(starts))(np.array([at % len(starts)]))[0]])
        for camera in view.cameras:
            decoder.decode(view.packets(camera, first, GOP), nowhere, on=camera)
        at, rows = at + 1, rows + GOP
        while rows >= BATCH:
            rows -= BATCH
            yield {}


def cpu_s(process: int) -> float:
    """Returns the CPU time of a process and all it started."""
    total = 0.0
    with contextlib.suppress(OSError):  # It ended meanwhile, and counts with whoever started it.
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        for thread in Path(f"/proc/{process}/task").iterdir():
            total += sum(cpu_s(int(child)) for child in (thread / "children").read_text().split())
    return total


def settled() -> float:
    """Waits until nothing of this loader works any more, and returns the CPU time it took in all."""
    before, quiet, deadline = cpu_s(os.getpid()), 0, time.monotonic() + 60
    while quiet < 3 and time.monotonic() < deadline:
        time.sleep(0.15)
        now = cpu_s(os.getpid())
        quiet = quiet + 1 if now - before < 0.02 else 0
        before = now
    return before


def serve(name: str, made: Made, workers: int) -> None:
    """Gives as many batches as a line of stdin says, and says what they took."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    batches = loader(name, made, workers)
    shapes = {key: list(value.shape) for key, value in next(batches).items() if hasattr(value, "shape")}
    print(json.dumps(shapes), flush=True)
    for line in sys.stdin:
        before, start = settled(), time.perf_counter()
        for _ in range(int(line)):
            next(batches)
        wall_s = time.perf_counter() - start
        print(json.dumps({"cpu_s": settled() - before, "wall_s": wall_s}), flush=True)
    os._exit(0)  # Some never end their threads.


class Running:
    def __init__(self, name: str, made: Made, workers: int) -> None:
        self.name, self.workers = name, workers
        words = [sys.executable, "-m", "benchmarks.data_loader", "--serve", name, "--work", str(made.folder)]
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process.
        self.process = subprocess.Popen(
            [*words, "--workers", str(workers)], stdin=-1, stdout=-1, stderr=self.log, text=True, cwd=Path.cwd()
        )
        self.rates: list[float] = []
        self.batches = 4
        self.shapes = self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        self.log.seek(0)
        raise RuntimeError(f"{self.name}: " + " ".join(self.log.read()[-300:].split()))

    def turn(self, batches: int) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{batches}\n")
        self.process.stdin.flush()
        return batches * BATCH / max(1e-3, float(self._answer()["cpu_s"]))

    def warm(self, turn_cpu_s: float) -> None:
        rate = self.turn(WARM_SAMPLES // BATCH if self.name in OURS else 4)
        self.batches = max(2, round(rate * turn_cpu_s / BATCH))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def measure(made: Made, names: list[str], *, quick: bool) -> dict[str, float]:
    """Returns samples per CPU-second of each loader that runs; and "of_limit", ours as YUV over the limit, by turns."""
    running: list[Running] = []
    try:
        for name in names:
            for workers in (0,) if name == "limit" else (0, 1):
                try:
                    running.append(Running(name, made, workers))
                    running[-1].warm(TURN_CPU_S / 3 if quick else TURN_CPU_S)
                    print(f"  {name}, {workers} workers: {running[-1].shapes}", flush=True)
                except RuntimeError as error:
                    print(f"  absent: {error}", flush=True)
        for number in range(3 if quick else ROUNDS):
            for each in running:
                each.rates.append(each.turn(each.batches))
            line = ", ".join(f"{each.name}/{each.workers} {each.rates[-1]:,.0f}" for each in running)
            print(f"  turn {number}: {line}", flush=True)
    finally:
        for each in running:
            each.close()
    rates: dict[str, float] = {}
    for each in running:
        rates[f"{each.name}/{each.workers}"] = statistics.median(each.rates)
        rates[each.name] = max(rates.get(each.name, 0.0), rates[f"{each.name}/{each.workers}"])
    (limit_rates,) = (each.rates for each in running if each.name == "limit")
    for each in running:
        if each.name == "yuv":  # A turn's neighbours meet the same machine.
            ratio = statistics.median(ours / limit for ours, limit in zip(each.rates, limit_rates, strict=True))
            rates["of_limit"] = max(rates.get("of_limit", 0.0), ratio)
    return rates


def result_of(rates: dict[str, float], sizes: dict[str, int]) -> dict[str, Any]:
    peers = {name: round(rates[name]) for name in PEERS if name in rates}
    fastest = max((rate for name, rate in peers.items() if name != "lerobot"), default=0)
    smallest = min((size for name, size in sizes.items() if name in WRITERS), default=0)
    ratios = {"yuv_to_limit": rates["of_limit"]}
    if "lerobot" in peers:
        ratios["rgb_to_lerobot"] = rates["rgb"] / peers["lerobot"]
    if fastest:
        ratios["yuv_to_fastest_jpeg"] = rates["yuv"] / fastest
    if smallest:
        ratios["bytes_to_smallest_jpeg"] = sizes["ours"] / smallest
    return {
        "ours_rgb": round(rates["rgb"]),
        "ours_yuv": round(rates["yuv"]),
        "peers": peers,
        "bytes": sizes,
        "decode_limit": round(rates["limit"]),
        "ratios": {name: round(value, 3) for name, value in ratios.items()},
        "by_workers": {name: round(rate) for name, rate in rates.items() if "/" in name},
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--work", type=Path, help="where the sets are made, or were; a temporary folder otherwise")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=0, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        serve(chosen.serve, Made(folder=chosen.work), chosen.workers)
        return
    with tempfile.TemporaryDirectory() as temporary:
        work = chosen.work or Path(temporary)
        made, humanoid = Made(folder=work / "made"), Made(folder=work / "humanoid")
        made.folder.mkdir(parents=True, exist_ok=True)
        if not (made.folder / "lerobot" / "meta" / "stats.json").exists():
            write_lerobot(made.folder / "lerobot", 6 if chosen.quick else 50, 300)
        here = [name for name in PEERS if importlib.util.find_spec(NEEDS[name]) is not None]
        print(f"JPEG of quality {QUALITY}; absent peers: {', '.join(sorted(set(PEERS) - set(here))) or 'none'}")
        view = prepare(made, made.folder / "lerobot")
        print(f"made: {view.rows:,} rows", flush=True)
        rates = measure(made, [*OURS, *here], quick=chosen.quick)
        result = result_of(rates, size_bytes(made, view))
        if HUMANOID.exists():
            humanoid.folder.mkdir(parents=True, exist_ok=True)
            view = prepare(humanoid, HUMANOID)
            print(f"humanoid: {view.rows:,} rows; its v2.1 files are not LeRobot 0.4's", flush=True)
            rates = measure(humanoid, [*OURS, *(name for name in here if name != "lerobot")], quick=chosen.quick)
            result["humanoid"] = result_of(rates, size_bytes(humanoid, view))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
