"""What others load training samples from, each at its best sensible setting, for `benchmarks.data_loader`.

JPEG formats hold what our view's frames look like, as JPEG of quality 92 and 4:2:0, decoded by libjpeg-turbo through
simplejpeg where it is installed, else through Pillow. States and action chunks come from arrays in memory, for all of
them alike. Peers are imported where they are used, so that those which are not installed are absent and no more.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

QUALITY = 92
BATCH, CHUNK = 64, 50
SIMPLEJPEG = find_spec("simplejpeg") is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A set in every format: a folder, with columns.npz in it."""

    folder: Path

    def columns(self) -> Columns:
        with np.load(self.folder / "columns.npz") as stored:
            return Columns(state=stored["state"], action=stored["action"], ends=stored["ends"])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """State and action of every row, and the row behind its episode's last."""

    state: NDArray[np.float32]
    action: NDArray[np.float32]
    ends: NDArray[np.int64]

    def sample(self, row: int, jpegs: list[bytes]) -> dict[str, Any]:
        ahead = np.arange(row, row + CHUNK)
        end = self.ends[row]
        return {
            "images": np.stack([decoded(jpeg) for jpeg in jpegs]),
            "state": self.state[row],
            "actions": self.action[np.minimum(ahead, end - 1)],
            "valid": ahead < end,
        }


def encoded(picture: NDArray[np.uint8]) -> bytes:
    out = io.BytesIO()
    import_module("PIL.Image").fromarray(picture).save(out, "JPEG", quality=QUALITY, subsampling=2)
    return out.getvalue()


def decoded(jpeg: bytes) -> NDArray[np.uint8]:
    if SIMPLEJPEG:
        picture: NDArray[np.uint8] = import_module("simplejpeg").decode_jpeg(jpeg)
        return picture
    return np.asarray(import_module("PIL.Image").open(io.BytesIO(jpeg)))


def endless(make: Callable[[], Any]) -> Iterator[Any]:
    again = make()
    while True:
        yield from again


def torch_with_one_thread() -> Any:
    """Imports torch and torchvision, of which only the Python half is wanted where its library does not load."""
    torch = import_module("torch")
    torch.set_num_threads(1)
    for _ in range(64):  # One operator of it a turn.
        try:
            import_module("torchvision")
        except RuntimeError as error:
            missing = re.search(r"operator torchvision::(\w+) does not exist", str(error))
            if missing is None:
                raise
            for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
                del sys.modules[name]
            torch.library.define(f"torchvision::{missing[1]}", "(Tensor x) -> Tensor")
        else:
            break
    return torch


# ---------------------------------------------------------------- LeRobotDataset


def lerobot(made: Made, workers: int) -> Iterator[Any]:
    """Random rows of the dataset's own video, through torchcodec."""
    torch = torch_with_one_thread()
    datasets = import_module("lerobot.datasets.lerobot_dataset")
    chunk = {"action": [step / 30 for step in range(CHUNK)]}
    rows = datasets.LeRobotDataset(
        "made/made", root=made.folder / "lerobot", delta_timestamps=chunk, video_backend="torchcodec"
    )
    return endless(
        lambda: torch.utils.data.DataLoader(
            rows, batch_size=BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0, drop_last=True
        )
    )


# ---------------------------------------------------------------- Grain with ArrayRecord


def write_grain(made: Made, rows: Iterator[list[bytes]]) -> None:
    module = import_module("array_record.python.array_record_module")
    writer = module.ArrayRecordWriter(str(made.folder / "grain" / "rows.arrayrecord"), "group_size:1,uncompressed")
    for row, jpegs in enumerate(rows):
        sizes = np.array([row, *map(len, jpegs)], np.int64)
        writer.write(np.int64(len(jpegs)).tobytes() + sizes.tobytes() + b"".join(jpegs))
    writer.close()


class Parsed:
    """Reads one record of ArrayRecord."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns

    def __call__(self, record: bytes) -> dict[str, Any]:
        count = int(np.frombuffer(record, np.int64, 1)[0])
        row, *sizes = np.frombuffer(record, np.int64, count + 1, 8).tolist()
        at, jpegs = 8 * (count + 2), []
        for size in sizes:
            jpegs.append(record[at : at + size])
            at += size
        return self.columns.sample(row, jpegs)


def grain(made: Made, workers: int) -> Iterator[Any]:
    """A global shuffle, as Grain has it."""
    pygrain = import_module("grain.python")
    import_module("absl.flags").FLAGS(["benchmark"])
    source = pygrain.ArrayRecordDataSource([str(made.folder / "grain" / "rows.arrayrecord")])
    rows = pygrain.MapDataset.source(source).seed(0).shuffle().repeat().map(Parsed(made.columns())).batch(BATCH)
    read = rows.to_iter_dataset(pygrain.ReadOptions(num_threads=1, prefetch_buffer_size=4))
    if workers:
        read = read.mp_prefetch(pygrain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=2))
    return iter(read)


# ---------------------------------------------------------------- MosaicML MDS


def write_mds(made: Made, rows: Iterator[list[bytes]]) -> None:
    torch_with_one_thread()
    streaming = import_module("streaming")
    first = next(rows)
    columns = {"row": "int", **{f"camera{number}": "bytes" for number in range(len(first))}}
    with streaming.MDSWriter(out=str(made.folder / "mds"), columns=columns) as writer:
        for row, jpegs in enumerate(_with(first, rows)):
            writer.write({"row": row, **{f"camera{number}": jpeg for number, jpeg in enumerate(jpegs)}})


def mds(made: Made, workers: int) -> Iterator[Any]:
    """Its shuffle by blocks (py1e)."""
    torch = torch_with_one_thread()
    streaming = import_module("streaming")
    import_module("streaming.base.util").clean_stale_shared_memory()
    columns = made.columns()

    class Rows(streaming.StreamingDataset):  # type: ignore[misc,name-defined]
        def __getitem__(self, at: Any) -> Any:
            row = super().__getitem__(at)
            return columns.sample(row["row"], [row[name] for name in row if name.startswith("camera")])

    rows = Rows(local=str(made.folder / "mds"), shuffle=True, batch_size=BATCH, num_canonical_nodes=1)
    return endless(
        lambda: torch.utils.data.DataLoader(
            rows, batch_size=BATCH, num_workers=workers, persistent_workers=workers > 0, drop_last=True
        )
    )


# ---------------------------------------------------------------- LitData


def write_litdata(made: Made, rows: Iterator[list[bytes]]) -> None:
    torch_with_one_thread()
    cache = import_module("litdata.streaming.cache").Cache(str(made.folder / "litdata"), chunk_bytes=64 << 20)
    for row, jpegs in enumerate(rows):
        cache[row] = {"row": row, **{f"camera{number}": jpeg for number, jpeg in enumerate(jpegs)}}
    cache.done()
    cache.merge()


def litdata(made: Made, workers: int) -> Iterator[Any]:
    """Its shuffle."""
    torch_with_one_thread()
    streaming = import_module("litdata")
    columns = made.columns()

    class Rows(streaming.StreamingDataset):  # type: ignore[misc,name-defined]
        def __getitem__(self, at: Any) -> Any:
            row = super().__getitem__(at)
            return columns.sample(row["row"], [row[name] for name in row if name.startswith("camera")])

    rows = Rows(str(made.folder / "litdata"), shuffle=True, drop_last=True)
    return endless(
        lambda: streaming.StreamingDataLoader(
            rows, batch_size=BATCH, num_workers=workers, persistent_workers=workers > 0
        )
    )


def _with(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


WRITERS: dict[str, Callable[[Made, Iterator[list[bytes]]], None]] = {
    "grain": write_grain,
    "mds": write_mds,
    "litdata": write_litdata,
}
PEERS: dict[str, Callable[[Made, int], Iterator[Any]]] = {
    "lerobot": lerobot,
    "grain": grain,
    "mds": mds,
    "litdata": litdata,
}
