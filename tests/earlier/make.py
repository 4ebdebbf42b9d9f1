"""Makes what `test_earlier.py` reads: a home, a checkpoint, a dataset and frames, as a version of Mainspring left them.

    python tests/earlier/make.py CHECKOUT

runs that checkout's own commands and writes `home.tar.xz` and `frames.jsonl` beside this file. What it calls is what
people call: the command line, `mainspring.join`, the names of `mainspring.data` and `domain.codec.frame`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import tomllib
import types
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

HERE = Path(__file__).resolve().parent
LEFT_OUT = ("cache", "server.json", "lock")  # What is made anew, or says where a process was.
CAMERA = "observation.images.front"
WAIT_S = 60.0
PROGRAM = """
import sys
import numpy as np
import mainspring as ms
from mainspring.session import Block

session = ms.join()
restored = session.restore()
step = restored.step if restored else 0
while step < 6:
    step += 1
    weights = np.arange(6.0).reshape(2, 3) * step + session.rank
    stop = session.report(step, {"loss": 1.0 / step})
    whole = np.full(5, step, dtype=np.float32)
    blocks = [
        Block(path="params/kernel", data=weights, global_shape=(4, 3), start=(2 * session.rank, 0)),
        Block.whole("params/bias", whole, once=session.rank == 0),
    ]
    session.snapshot(step, blocks, {"step": step, "who": "earlier"})
    if stop:
        sys.exit(75)
session.result({f"rank_{session.rank}": step})
print("the end of rank", session.rank)
"""
PRODUCER = """
import numpy as np
from mainspring.data import producer

@producer(columns={"speed": ("all",)}, facts=("top",))
def motion(episode, *, scale: float = 2.0):
    state = np.asarray(episode.columns["state"])
    speed = scale * np.linalg.norm(np.diff(state, axis=0, prepend=state[:1]), axis=1, keepdims=True)
    return {"speed": speed.astype(np.float32), "top": float(speed.max())}
"""
MODULES = (
    *("mainspring.domain.answers", "mainspring.domain.wire.controller", "mainspring.domain.wire.node"),
    *("mainspring.domain.wire.rank", "mainspring.engines.far_wire", "mainspring.engines.remote.wire"),
    *(f"mainspring.domain.answers.{name}" for name in ("arrivals", "clusters", "jobs", "plans", "problems")),
    *("mainspring.app.engines", "mainspring.app.server.engines"),
    *("mainspring.engines.common.forwarding", "mainspring.engines.slurm.kind"),
)
CHOSEN: dict[str, Any] = {  # Fields that a check wants otherwise.
    "spares": 0,
    "evaluates": "trained@1",
    "address": "ws://node-1:8000",
    "secret_files": ("KEY",),
    "shared": "/shared",
    "scratch": "/scratch",
    "python": "/python",
    "qos": {"standard": "q"},
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "tier_partitions": {"standard": "partitions"},
}
CONFIG = {
    "port": 0,
    "clusters": [
        {"name": "alpha", "chip": "h100", "chips_per_node": 1, "nodes": 2, "dollars_per_chip_hour": 3.0},
    ],
}


def sample(kind: Any, word: str = "a") -> Any:
    """Returns a value of a type that a message may hold, with something in every field."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return sample(arguments[0], word)
    if origin is tuple:
        return (sample(arguments[0], word),)
    if origin is Mapping:
        return {"b": sample(arguments[1], word)}
    kind = getattr(kind, "__supertype__", kind)
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        names = [field.name for field in dataclasses.fields(kind)]
        fields = {name: sample(hints[name], name.replace("_", "-")) for name in names}
        chosen = {name: CHOSEN[name] for name in names if isinstance(fields[name], type(CHOSEN.get(name)))}
        made: Any = kind
        return made(**fields | chosen)
    if issubclass(kind, Enum):
        return list(kind)[-1]
    return {str: word, int: 1, float: 0.5, bool: True}[kind]


def messages() -> dict[str, Any]:
    """Returns one message of every class that travels in frames, by its name there."""
    from mainspring.domain.errors import InvalidInput

    found = {}
    for module in MODULES:
        with contextlib.suppress(ImportError):
            for kind in vars(importlib.import_module(module)).values():
                if isinstance(kind, type) and dataclasses.is_dataclass(kind):
                    with contextlib.suppress(AssertionError, KeyError, InvalidInput):  # No message.
                        value = sample(kind)
                        found[json.loads(frame_of(value))["type"]] = value
    return found


def frame_of(message: Any) -> str:
    """Returns the body of a message's frame."""
    from mainspring.domain.codec import frame

    return frame(message)[4:].decode()


def batch_hash(objects: str, view: str, cache: Path) -> str:
    """Returns a hash of the first batch of a view's training side."""
    from hashlib import sha256

    from mainspring.data import Loader, Sampling, open_view
    from mainspring.objects import open_store

    opened = open_view(open_store(objects), view, cache, "train")
    hasher = sha256()
    with Loader(opened, Sampling(batch_size=8, seed=3, horizon=4), rank=0, world_size=1, workers=0).stream(
        0
    ) as batches:
        for name, array in sorted(next(batches).items()):
            hasher.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return hasher.hexdigest()


class Maker:
    """Types commands of a checkout."""

    def __init__(self, checkout: Path, folder: Path) -> None:
        scripts = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]["scripts"]
        module, _, function = scripts["ms"].partition(":")
        self.words = [sys.executable, "-c", f"from {module} import {function}; {function}()"]
        self.folder, self.home = folder, folder / "home"
        python = folder / "bin" / "python"  # Its name, and no path of this machine, comes to stand in records.
        python.parent.mkdir()
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        self.environment = {
            "PATH": f"{python.parent}:/usr/bin:/bin",
            "PYTHONPATH": str(checkout / "src"),
            "MAINSPRING_HOME": str(self.home),
            "HOME": str(folder),
        }

    def ms(self, *words: str) -> Any:
        at = words.index("--") if "--" in words else len(words)
        done = subprocess.run(
            [*self.words, *words[:at], "--json", *words[at:]],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise SystemExit(f"ms {' '.join(words)}: {done.returncode}\n{done.stdout}\n{done.stderr}")
        return json.loads(done.stdout) if done.stdout.strip() else None

    def told(self, *words: str) -> str:
        """Returns what people are shown, on a very wide screen."""
        environment = {**self.environment, "COLUMNS": "400"}
        return subprocess.run([*self.words, *words], env=environment, capture_output=True, text=True, check=True).stdout

    def run(self, name: str, *words: str) -> str:
        """Returns the id of a job that was submitted."""
        told = self.ms("run", "--name", name, "--on", "h100", "--no-code", *words)
        return str(told["id"] if isinstance(told, dict) else told[0]["id"])

    def until(self, job: str, *states: str) -> None:
        over_s = time.monotonic() + WAIT_S
        while (state := self.ms("status", job)["state"]) not in states:
            if time.monotonic() > over_s:
                raise SystemExit(f"{job} is {state}, wanted {states}")
            threading.Event().wait(0.2)


def make_home(maker: Maker) -> dict[str, Any]:
    """Runs jobs; returns what is to be read of them. The one that runs at the end has lost its processes."""
    maker.home.mkdir()
    (maker.home / "config.yaml").write_text(json.dumps(CONFIG))
    maker.ms("up")
    maker.ms("team", "set", "vision", "--under", "lab", "--guarantee", "h100=1", "--weight", "2")
    trained = maker.run("trained", "--replicas", "2", "--team", "vision", "--", "python", "-c", PROGRAM)
    maker.until(trained, "succeeded")
    failed = maker.run("failed", "--tier", "opportunistic", "--", "sh", "-c", "echo about to fail; exit 3")
    maker.until(failed, "failed")
    gate = maker.folder / "gate"  # There while this is made, and nowhere afterwards.
    gate.touch()
    running = maker.run("running", "--replicas", "2", "--", "sh", "-c", f"while test -e {gate}; do sleep 0.2; done")
    queued = maker.run("queued", "--after", running, "--", "sh", "-c", "echo its turn has come")
    maker.until(running, "running")
    shown = {id: maker.ms("status", id) for id in (trained, failed, running, queued)}
    events = [
        " ".join(line.split())
        for id in shown
        for line in maker.told("status", id).splitlines()
        if line.strip()[:1] == "+"
    ]
    maker.ms("down")
    for agent in processes(str(maker.home)):
        os.kill(agent, signal.SIGKILL)
    gate.unlink()
    return {
        "trained": trained,
        "failed": failed,
        "running": running,
        "queued": queued,
        "states": {id: view["state"] for id, view in shown.items()},
        "result": shown[trained]["result"],
        "events": events,
    }


def processes(word: str) -> list[int]:
    """Returns this user's processes that name the word."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and int(path.name) != os.getpid():
            try:
                if word.encode() in (path / "cmdline").read_bytes():
                    found.append(int(path.name))
            except OSError:
                pass
    return found


def make_source(root: Path, lengths: list[int]) -> None:
    """Writes a LeRobot v2.1 dataset: rows in Parquet, a small video for each episode."""
    import av
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    info = {
        "codebase_version": "v2.1",
        "robot_type": "arm",
        "fps": 10,
        "total_episodes": len(lengths),
        "chunks_size": 1000,
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
        "features": {
            "observation.state": {"dtype": "float32", "shape": [3], "names": ["x", "y", "z"]},
            "action": {"dtype": "float32", "shape": [2], "names": {"motors": ["left", "right"]}},
            CAMERA: {"dtype": "video", "shape": [32, 32, 3], "names": ["height", "width", "channels"]},
        },
    }
    for folder in ("meta", "data/chunk-000", f"videos/chunk-000/{CAMERA}"):
        (root / folder).mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps(info))
    lines = [{"episode_index": at, "tasks": ["stack"], "length": length} for at, length in enumerate(lengths)]
    (root / "meta/episodes.jsonl").write_text("\n".join(map(json.dumps, lines)))
    for episode, length in enumerate(lengths):
        values = np.random.default_rng(episode).normal(size=(length, 5)).astype(np.float32)
        rows = {
            "observation.state": list(values[:, :3]),
            "action": list(values[:, 3:]),
            "timestamp": (np.arange(length) / 10).astype(np.float32),
            "frame_index": np.arange(length),
            "episode_index": np.full(length, episode),
        }
        pq.write_table(pa.table(rows), root / f"data/chunk-000/episode_{episode:06d}.parquet")
        with av.open(str(root / f"videos/chunk-000/{CAMERA}/episode_{episode:06d}.mp4"), "w") as video:
            stream: Any = video.add_stream("libx264", rate=10, options={"g": "5", "preset": "veryfast"})
            stream.width = stream.height = 32
            stream.pix_fmt = "yuv420p"
            for at in range(length):
                picture = np.full((32, 32, 3), (40 * episode + 7 * at) % 256, dtype=np.uint8)
                video.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
            video.mux(stream.encode())


def make_dataset(maker: Maker) -> dict[str, Any]:
    """Takes two of three episodes in, and makes of them all that is made of a version."""
    source = maker.folder / "source"
    make_source(source, [20, 24, 22])
    first = maker.folder / "first"
    shutil.copytree(source, first)
    lines = (first / "meta/episodes.jsonl").read_text().splitlines()
    (first / "meta/episodes.jsonl").write_text("\n".join(lines[:2]))
    maker.ms("data", "ingest", str(first), "--dataset", "stack")
    (maker.folder / "motion.py").write_text(PRODUCER)
    layer = maker.ms("data", "layer", "stack", str(maker.folder / "motion.py") + ":motion")
    words = ("--image-size", "16", "--codec", "h264", "--gop", "5", "--holdout", "0", "--shard-mib", "1")
    view = maker.ms("data", "view", "stack", *words)
    maker.ms("data", "split", "stack", "--holdout", "0.5", "--as", "sides")
    maker.ms("data", "pin", "stack", "--reason", "a baseline", "--by", "ada")
    shown = maker.ms("data", "show", "stack")
    return {"view": view["id"], "version": shown["version"]["id"], "episodes": 2, "layer": layer}


def pack(folder: Path, target: Path) -> None:
    """Packs the folder, as made on no day and by nobody."""

    def bare(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return None if Path(entry.name).name in LEFT_OUT else entry

    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for path in folder.rglob("launched.json"):
        path.write_text(path.read_text().replace(boot, "00000000-0000-0000-0000-000000000000"))
    with tarfile.open(target, "w:xz") as archive:
        for name in ("facts.json", "home", "source"):
            archive.add(folder / name, arcname=name, filter=bare)


def main(checkout: Path) -> None:
    frames = [frame_of(value) for _, value in sorted(messages().items())]
    (HERE / "frames.jsonl").write_text("".join(f"{line}\n" for line in frames))
    folder = Path(tempfile.gettempdir()) / "mainspring-earlier"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    maker = Maker(checkout, folder)
    try:
        facts = {"jobs": make_home(maker), "data": make_dataset(maker)}
        facts["data"]["batch"] = batch_hash(f"file://{maker.home}/objects", facts["data"]["view"], folder / "cache")
        (folder / "facts.json").write_text(json.dumps(facts, indent=1))
        pack(folder, HERE / "home.tar.xz")
    finally:
        for left in processes(str(folder)):
            os.kill(left, signal.SIGKILL)
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(sys.argv[1]).resolve() / "src"))
    main(Path(sys.argv[1]).resolve())
