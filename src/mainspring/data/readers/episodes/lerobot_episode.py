"""Reads one episode of a LeRobot dataset: its rows, checked against what the dataset says of it, and its files."""

from __future__ import annotations

from dataclasses import dataclass, fields
from fractions import Fraction
from pathlib import Path, PurePosixPath

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mainspring.data.episode import NANOSECONDS, Episode, Floats, SourceFile, VideoFile, column_from_table
from mainspring.data.features import Features
from mainspring.domain.errors import DamagedData, InvalidInput

SUCCESS = "next.success"  # LeRobot's column of whether the task was done, true at the step that did it.
_EPISODE = "episode_index"
_NAME_MAX = 200
_BATCH_ROWS = 16_384  # Decoded at once: some megabytes, and few enough calls.


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
        sources: For each column, the dataset's own name of it.
        shared: Whether its Parquet file holds other episodes too.
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
    sources: tuple[tuple[str, str], ...]
    shared: bool
    videos: tuple[tuple[str, int], ...]
    meta_paths: tuple[str, ...]
    parse_bytes: int = 0

    @property
    def part(self) -> str:
        """See `Recording.part`. The dataset's description grows with it; only what it says of this one counts."""
        said = [field.name for field in fields(self) if field.name not in ("root", "meta_paths")]
        return " ".join(f"{name}={getattr(self, name)!r}" for name in said)

    def read(self, folder: Path) -> Episode:
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
        columns = {
            column: self._vectors(table, name, len(self.features.names(column))) for column, name in self.sources
        }
        return Episode(
            task=self.task,
            robot=self.robot,
            success=bool(columns[SUCCESS].any()) if SUCCESS in columns else None,
            rate_hz=float(self.rate),
            features=self.features,
            time_ns=frame * (NANOSECONDS * self.rate.denominator) // self.rate.numerator,
            columns=columns,
            videos=tuple(
                VideoFile(camera=camera.name, path=files[path], first_frame=first)
                for camera, (path, first) in zip(self.features.cameras, self.videos, strict=True)
            ),
            files=tuple(SourceFile(name=path, path=files[path]) for path in paths),
        )

    def _files(self, paths: list[str]) -> dict[str, Path]:
        files = {path: inside(self.root, path) for path in paths}
        missing = [f"no file {path}" for path in paths if not files[path].is_file()]
        empty = [f"an empty file {path}" for path in paths if files[path].is_file() and not files[path].stat().st_size]
        if missing or empty:
            raise DamagedData("read a LeRobot episode", on=self.name, got=", ".join(missing + empty))
        return files

    def _table(self, path: Path) -> pa.Table:
        columns = [*(name for _, name in self.sources), "timestamp", "frame_index"]
        if not self.shared and (rows := rows_in(path)) > self.steps:
            got = f"{rows - self.steps} rows of no or another episode, or too many, in its own file"
            raise DamagedData("read a LeRobot episode", on=self.name, got=got, wanted="its own rows only")
        table = parquet(path, columns=columns, rows_max=self.steps + 1, episode=self.index)
        return table

    def _vectors(self, table: pa.Table, name: str, dims: int) -> Floats:
        values = column_from_table(_as_numbers(table, name), name)
        if values.shape != (self.steps, dims):
            raise DamagedData(
                "read a LeRobot episode", on=f"{self.name} {name}", got=f"{values.shape}", wanted=f"{self.steps, dims}"
            )
        return values


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
            "read a LeRobot dataset", on=str(root), got=f"path {relative[:_NAME_MAX]!r}", wanted="a path inside it"
        )
    return path


def parquet(path: Path, *, columns: list[str], rows_max: int, episode: int | None = None) -> pa.Table:
    """Returns some columns of the first rows of a Parquet file.

    Args:
        path: The file.
        columns: Their names; those that are missing are left out.
        rows_max: How many rows at most: a small file may hold more of them than any memory does.
        episode: Whose rows; None for all.

    Raises:
        DamagedData: It cannot be read.
    """
    try:
        with pq.ParquetFile(path) as file:
            here = [name for name in columns if name in file.schema_arrow.names]
            parts: list[pa.RecordBatch] = []
            left = rows_max
            wanted = here if episode is None else [*here, _EPISODE]
            groups = [group for group in range(file.num_row_groups) if _may_hold(file, group, episode)]
            for batch in file.iter_batches(_BATCH_ROWS, groups, wanted, use_threads=False):
                part = batch if episode is None else batch.filter(pc.equal(batch[_EPISODE], episode))
                parts.append(part.select(here).slice(0, left))
                left -= parts[-1].num_rows
                if not left:
                    break
            schema = pa.schema([file.schema_arrow.field(name) for name in here])
            return pa.Table.from_batches(parts, schema)
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedData("read a Parquet file", on=path.name, got=str(error)[:200]) from error


def _may_hold(file: pq.ParquetFile, group: int, episode: int | None) -> bool:
    """Returns whether a group of rows may hold some of an episode, by what the file says of its extremes."""
    columns = file.metadata.row_group(group)
    for place in range(columns.num_columns if episode is not None else 0):
        column = columns.column(place)
        if column.path_in_schema == _EPISODE and column.statistics is not None and column.statistics.has_min_max:
            return bool(column.statistics.min <= episode <= column.statistics.max)
    return True


def rows_in(path: Path) -> int:
    """Returns how many rows a Parquet file has.

    Args:
        path: The file.

    Raises:
        DamagedData: It cannot be read.
    """
    try:
        return int(pq.read_metadata(path).num_rows)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DamagedData("read a Parquet file", on=path.name, got=str(error)[:200]) from error


def _as_numbers(table: pa.Table, name: str) -> pa.Table:
    """Turns a column of truth values into one of 0 and 1."""
    if name not in table.column_names or not pa.types.is_boolean(table[name].type):
        return table
    return table.set_column(table.column_names.index(name), name, table[name].cast(pa.uint8()))
